//! DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554): the users with a SCRAM password.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use sasl::scram::{Credential, Hash};
use wire::messages::{
    self as m, alter_user_scram_credentials_request as alter,
    alter_user_scram_credentials_response as altered, describe_user_scram_credentials_response as described,
};
use wire::{ErrorCode, Text};

use crate::failure::Failure;
use crate::request::Request;
use crate::security::audit;
use crate::users::{Credentials, ITERATIONS_MAX, ITERATIONS_MIN, USERS_MAX, UserChange, Users};

/// Bound in bytes of a name. Names are held in memory.
const NAME_BYTES_MAX: usize = 1024;
/// Bound in bytes of a salt or a salted password. Kafka's clients send 64 at most.
const BYTES_MAX: usize = 1024;

fn code_of(hash: Hash) -> i8 {
    match hash {
        Hash::Sha256 => 1,
        Hash::Sha512 => 2,
    }
}

fn hash_of(code: i8) -> Option<Hash> {
    Hash::ALL.into_iter().find(|hash| code_of(*hash) == code)
}

/// Answers DescribeUserScramCredentials.
pub async fn describe(
    request: Request<m::DescribeUserScramCredentialsRequest>,
) -> m::DescribeUserScramCredentialsResponse {
    let Request { broker, body: request, .. } = &request;
    let mut asked: Vec<(Text, bool)> = Vec::new();
    match &request.users {
        Some(users) if !users.is_empty() => {
            let mut places = HashMap::new();
            for user in users {
                match places.get(&user.name) {
                    Some(at) => {
                        let at: usize = *at;
                        asked[at].1 = true;
                    }
                    None => {
                        places.insert(user.name.clone(), asked.len());
                        asked.push((user.name.clone(), false));
                    }
                }
            }
        }
        _ => asked.extend(broker.users.all().into_keys().map(|user| (Text::from(user), false))),
    }
    let results = asked.into_iter().map(|(user, twice)| result(user, twice, &broker.users)).collect();
    m::DescribeUserScramCredentialsResponse { results, ..Default::default() }
}

fn result(user: Text, twice: bool, users: &Users) -> described::DescribeUserScramCredentialsResult {
    let failed = |code: ErrorCode, why: &str| described::DescribeUserScramCredentialsResult {
        error_code: code.code(),
        error_message: Some(Text::from(format!("{why}: {user}"))),
        user: user.clone(),
        ..Default::default()
    };
    if twice {
        let why = "Cannot describe SCRAM credentials for the same user twice in a single request";
        return failed(ErrorCode::DuplicateResource, why);
    }
    let Some(credentials) = users.of(&user) else {
        let why = "Attempt to describe a user credential that does not exist";
        return failed(ErrorCode::ResourceNotFound, why);
    };
    let info = |(hash, credential): (Hash, &Arc<Credential>)| described::CredentialInfo {
        mechanism: code_of(hash),
        iterations: i32::try_from(credential.iterations.get()).unwrap_or(i32::MAX),
    };
    let credential_infos = credentials.iter().map(info).collect();
    described::DescribeUserScramCredentialsResult { user, credential_infos, ..Default::default() }
}

/// Answers AlterUserScramCredentials. All valid changes are made at once, and are durable before the answer.
pub async fn alter(
    Request { broker, caller, body: request, .. }: Request<m::AlterUserScramCredentialsRequest>,
) -> m::AlterUserScramCredentialsResponse {
    let (results, request) = broker
        .blocking(move |broker| {
            let results = broker.users.change(|all| sorted_out(all, &request));
            let results = results.unwrap_or_else(|error| {
                let failure = Failure::from(error);
                let deleted = request.deletions.iter().map(|deletion| &deletion.name);
                let names = deleted.chain(request.upsertions.iter().map(|upsertion| &upsertion.name));
                let names: BTreeSet<&Text> = names.collect();
                names.into_iter().map(|name| answer(name, Some(&failure))).collect()
            });
            (results, request)
        })
        .await;
    let changed = results.iter().filter(|result| result.error_code == 0).map(|result| &result.user);
    let changed: HashSet<&Text> = changed.collect();
    let set = request.upsertions.iter().map(|of| (&of.name, "set", of.mechanism));
    let deleted = request.deletions.iter().map(|of| (&of.name, "deleted", of.mechanism));
    // No user occurs twice among the changed ones.
    for (user, what, mechanism) in set.chain(deleted).filter(|(user, ..)| changed.contains(user)) {
        let details = format!("{} {what}", hash_of(mechanism).map_or("", Hash::mechanism));
        audit::changed(&caller.origin, "changed credentials of user", user, &details);
    }
    m::AlterUserScramCredentialsResponse { results, ..Default::default() }
}

fn answer(user: &Text, failure: Option<&Failure>) -> altered::AlterUserScramCredentialsResult {
    altered::AlterUserScramCredentialsResult {
        user: user.clone(),
        error_code: failure.map_or(0, |failure| failure.code.code()),
        error_message: failure.map(Failure::text),
    }
}

/// The outcome for one user of the request: the change, or the reason why there is none.
type Wanted = Result<UserChange, Failure>;

/// Splits the request into changes and failures, the changes first. As in Kafka, a user may occur once, whatever the
/// mechanism. A user that occurs twice is not changed and gets its first error.
fn sorted_out(
    all: &BTreeMap<String, Credentials>,
    request: &m::AlterUserScramCredentialsRequest,
) -> (Vec<altered::AlterUserScramCredentialsResult>, Vec<UserChange>) {
    let mut wanted: Vec<(Text, Wanted)> = Vec::new();
    let mut places: HashMap<Text, usize> = HashMap::new();
    let mut room = USERS_MAX.saturating_sub(all.len());
    let mut take = |name: &Text, checked: &mut dyn FnMut() -> Wanted| match places.get(name) {
        None => {
            places.insert(name.clone(), wanted.len());
            wanted.push((name.clone(), checked()));
        }
        Some(at) if wanted[*at].1.is_ok() => {
            let why = "A user credential cannot be altered twice in the same request";
            wanted[*at].1 = Err(Failure::because(ErrorCode::DuplicateResource, why));
        }
        Some(_) => {}
    };
    for deletion in &request.deletions {
        take(&deletion.name, &mut || check_deletion(all, deletion));
    }
    for upsertion in &request.upsertions {
        take(&upsertion.name, &mut || check_upsertion(all, upsertion, &mut room));
    }
    let (mut results, mut changes, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for (name, wanted) in wanted {
        match wanted {
            Ok(change) => {
                results.push(answer(&name, None));
                changes.push(change);
            }
            Err(failure) => failures.push(answer(&name, Some(&failure))),
        }
    }
    results.append(&mut failures);
    (results, changes)
}

fn unacceptable(why: impl Into<Text>) -> Failure {
    Failure::because(ErrorCode::UnacceptableCredential, why)
}

fn check_name(name: &Text, mechanism: i8) -> Result<Hash, Failure> {
    if name.is_empty() {
        return Err(unacceptable("Username must not be empty"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(unacceptable(format!("a user's name may have {NAME_BYTES_MAX} bytes at most")));
    }
    let why = "Unknown SCRAM mechanism";
    hash_of(mechanism).ok_or_else(|| Failure::because(ErrorCode::UnsupportedSaslMechanism, why))
}

fn check_deletion(all: &BTreeMap<String, Credentials>, deletion: &alter::ScramCredentialDeletion) -> Wanted {
    let hash = check_name(&deletion.name, deletion.mechanism)?;
    if all.get(deletion.name.as_str()).is_none_or(|credentials| credentials.of(hash).is_none()) {
        let why = "Attempt to delete a user credential that does not exist";
        return Err(Failure::because(ErrorCode::ResourceNotFound, why));
    }
    Ok((deletion.name.to_string(), hash, None))
}

fn check_upsertion(
    all: &BTreeMap<String, Credentials>,
    upsertion: &alter::ScramCredentialUpsertion,
    room: &mut usize,
) -> Wanted {
    let hash = check_name(&upsertion.name, upsertion.mechanism)?;
    if upsertion.iterations < ITERATIONS_MIN {
        return Err(unacceptable("Too few iterations"));
    }
    if upsertion.iterations > ITERATIONS_MAX {
        return Err(unacceptable("Too many iterations"));
    }
    let iterations = u32::try_from(upsertion.iterations).ok().and_then(NonZeroU32::new);
    let iterations = iterations.ok_or_else(|| unacceptable("Too few iterations"))?;
    let (salt, salted) = (&upsertion.salt, &upsertion.salted_password);
    // Kafka accepts an empty salt, and fails with an unknown error on an empty password.
    if salted.is_empty() || salted.len() > BYTES_MAX || salt.len() > BYTES_MAX {
        return Err(unacceptable("the salted password is empty, or it or the salt is too long"));
    }
    if !all.contains_key(upsertion.name.as_str()) {
        let why = format!("there are {USERS_MAX} users already: delete some");
        *room = room.checked_sub(1).ok_or_else(|| unacceptable(why))?;
    }
    let credential = Credential::of_salted(hash, salted, salt.to_vec(), iterations);
    Ok((upsertion.name.to_string(), hash, Some(credential)))
}
