//! Users with SCRAM passwords, by request frames: allowed changes, the answers, and what survives a restart.

use std::num::NonZeroU32;

use broker::Connection;
use sasl::scram::{Hash, salted_password};
use wire::messages as m;
use wire::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use wire::messages::describe_user_scram_credentials_request::UserName;
use wire::{Bytes, ErrorCode, Text};

use crate::common::{call, close, connect, open};

const SHA256: i8 = 1;
const SHA512: i8 = 2;
const TWICE: &str = "A user credential cannot be altered twice in the same request";

fn put(name: &str, mechanism: i8, iterations: i32) -> ScramCredentialUpsertion {
    let count = NonZeroU32::new(iterations.unsigned_abs()).unwrap();
    let hash = if mechanism == SHA512 { Hash::Sha512 } else { Hash::Sha256 };
    ScramCredentialUpsertion {
        name: Text::copied(name),
        mechanism,
        iterations,
        salt: Bytes::from_static(b"salt"),
        salted_password: salted_password(hash, "secret", b"salt", count).into(),
    }
}

fn delete(name: &str, mechanism: i8) -> ScramCredentialDeletion {
    ScramCredentialDeletion { name: Text::copied(name), mechanism }
}

/// The user, error code and message of each result.
type Results = Vec<(String, i16, Option<String>)>;

async fn alter(
    connection: &mut Connection,
    deletions: Vec<ScramCredentialDeletion>,
    upsertions: Vec<ScramCredentialUpsertion>,
) -> Results {
    let request = m::AlterUserScramCredentialsRequest { deletions, upsertions };
    let answer: m::AlterUserScramCredentialsResponse = call(connection, 0, &request).await;
    let result = |result: &m::alter_user_scram_credentials_response::AlterUserScramCredentialsResult| {
        (result.user.to_string(), result.error_code, result.error_message.as_ref().map(ToString::to_string))
    };
    answer.results.iter().map(result).collect()
}

/// User, error code, message, and mechanisms with their iterations.
type Described = Vec<(String, i16, String, Vec<(i8, i32)>)>;

async fn describe(connection: &mut Connection, users: Option<&[&str]>) -> Described {
    let name = |name: &&str| UserName { name: Text::copied(name) };
    let users = users.map(|users| users.iter().map(name).collect());
    let request = m::DescribeUserScramCredentialsRequest { users };
    let answer: m::DescribeUserScramCredentialsResponse = call(connection, 0, &request).await;
    assert_eq!(answer.error_code, 0);
    let results = answer.results.iter().map(|result| {
        let infos = result.credential_infos.iter().map(|info| (info.mechanism, info.iterations)).collect();
        let message = result.error_message.as_ref().unwrap().to_string();
        (result.user.to_string(), result.error_code, message, infos)
    });
    results.collect()
}

fn fine(name: &str) -> (String, i16, Option<String>) {
    (name.into(), 0, None)
}

fn failed(name: &str, code: ErrorCode, why: &str) -> (String, i16, Option<String>) {
    (name.into(), code.code(), Some(why.into()))
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_made_changed_and_deleted_and_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    assert_eq!(describe(&mut connection, None).await, []);
    let both = vec![put("alice", SHA256, 4096), put("bob", SHA512, 16_384)];
    assert_eq!(alter(&mut connection, vec![], both).await, [fine("alice"), fine("bob")]);
    assert_eq!(alter(&mut connection, vec![], vec![put("alice", SHA512, 8192)]).await, [fine("alice")]);
    let all: Described = vec![
        ("alice".into(), 0, "".into(), vec![(SHA256, 4096), (SHA512, 8192)]),
        ("bob".into(), 0, "".into(), vec![(SHA512, 16_384)]),
    ];
    assert_eq!(describe(&mut connection, None).await, all);
    assert_eq!(describe(&mut connection, Some(&[])).await, all);
    let credential = broker.users().find(Hash::Sha512, "alice").unwrap();
    assert!(credential.is_of(Hash::Sha512, "secret") && !credential.is_of(Hash::Sha512, "Secret"));
    drop(connection);
    close(broker).await;

    let broker = open(directory.path());
    let mut connection = connect(&broker);
    assert_eq!(describe(&mut connection, None).await, all);
    assert_eq!(broker.users().find(Hash::Sha512, "alice"), Some(credential));
    let changed = alter(&mut connection, vec![delete("bob", SHA512)], vec![put("alice", SHA256, 5000)]).await;
    assert_eq!(changed, [fine("bob"), fine("alice")]);
    assert_eq!(
        describe(&mut connection, Some(&["bob", "alice", "carol", "dora", "dora", "dora"])).await,
        [
            (
                "bob".into(),
                ErrorCode::ResourceNotFound.code(),
                "Attempt to describe a user credential that does not exist: bob".into(),
                vec![]
            ),
            ("alice".into(), 0, "".into(), vec![(SHA256, 5000), (SHA512, 8192)]),
            (
                "carol".into(),
                ErrorCode::ResourceNotFound.code(),
                "Attempt to describe a user credential that does not exist: carol".into(),
                vec![]
            ),
            (
                "dora".into(),
                ErrorCode::DuplicateResource.code(),
                "Cannot describe SCRAM credentials for the same user twice in a single request: dora".into(),
                vec![]
            ),
        ]
    );
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_with_kafkas_words_and_the_rest_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    alter(&mut connection, vec![], vec![put("old", SHA256, 4096), put("both", SHA256, 4096)]).await;
    let long = "x".repeat(1025);
    let empty = ScramCredentialUpsertion { salted_password: Bytes::new(), ..put("empty", SHA256, 4096) };
    let deletions = vec![
        delete("gone", SHA256),
        delete("old", SHA512),
        delete("", SHA256),
        delete("unknown", 3),
        delete("both", SHA256),
        delete("gone", SHA256),
    ];
    let upsertions = vec![
        put("few", SHA256, 4095),
        put("many", SHA512, 16_385),
        put("good", SHA256, 4096),
        put("both", SHA512, 4096),
        put("twice", SHA256, 4096),
        put("twice", SHA512, 4096),
        put("twice", SHA512, 4096),
        put("zero", 0, 4096),
        put(&long, SHA256, 4096),
        empty,
    ];
    let results = alter(&mut connection, deletions, upsertions).await;
    let unacceptable = ErrorCode::UnacceptableCredential;
    let absent = "Attempt to delete a user credential that does not exist";
    assert_eq!(
        results,
        [
            fine("good"),
            failed("gone", ErrorCode::ResourceNotFound, absent),
            failed("old", ErrorCode::ResourceNotFound, absent),
            failed("", unacceptable, "Username must not be empty"),
            failed("unknown", ErrorCode::UnsupportedSaslMechanism, "Unknown SCRAM mechanism"),
            failed("both", ErrorCode::DuplicateResource, TWICE),
            failed("few", unacceptable, "Too few iterations"),
            failed("many", unacceptable, "Too many iterations"),
            failed("twice", ErrorCode::DuplicateResource, TWICE),
            failed("zero", ErrorCode::UnsupportedSaslMechanism, "Unknown SCRAM mechanism"),
            failed(&long, unacceptable, "a user's name may have 1024 bytes at most"),
            failed("empty", unacceptable, "the salted password is empty, or it or the salt is too long"),
        ]
    );
    let names: Vec<String> = describe(&mut connection, None).await.into_iter().map(|user| user.0).collect();
    assert_eq!(names, ["both", "good", "old"]);
    drop(connection);
    close(broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_sasl_on_the_listener_nobody_logs_in() {
    let directory = tempfile::tempdir().unwrap();
    let broker = open(directory.path());
    let mut connection = connect(&broker);
    let request = m::SaslHandshakeRequest { mechanism: Text::from_static("PLAIN") };
    let answer: m::SaslHandshakeResponse = call(&mut connection, 1, &request).await;
    assert_eq!((answer.error_code, answer.mechanisms), (ErrorCode::IllegalSaslState.code(), vec![]));
    let request = m::SaslAuthenticateRequest { auth_bytes: Bytes::from_static(b"\0a\0b") };
    let answer: m::SaslAuthenticateResponse = call(&mut connection, 2, &request).await;
    assert_eq!(answer.error_code, ErrorCode::IllegalSaslState.code());
    let why = "SaslAuthenticate request received after successful authentication";
    assert_eq!(answer.error_message.unwrap().as_str(), why);
    drop(connection);
    close(broker).await;
}
