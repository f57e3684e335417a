//! The bodies of the fuzz targets: each takes any bytes and must return. `cargo fuzz` calls them from /fuzz. The tests
//! call them for a few seconds with mutated and random inputs.
//!
//! Built only for tests and with the feature `fuzzing`.

use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::jwks::KeySet;
use crate::jwt::{Expected, verify};
use crate::scram::{Credential, First, Hash};
use crate::{oauthbearer, plain};

/// The nonce of the fuzzed exchanges.
pub const NONCE: &str = "server";

static CREDENTIAL: LazyLock<Arc<Credential>> =
    LazyLock::new(|| Arc::new(Credential::new(Hash::Sha256, "pencil", b"salt".to_vec(), NonZeroU32::MIN)));

/// Two messages of SCRAM, with a zero byte between them.
pub fn scram(data: &[u8]) {
    let cut = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let Ok(first) = First::parse(&data[..cut]) else { return };
    let Ok((challenge, waiting)) = first.challenge(Hash::Sha256, Some(CREDENTIAL.clone()), NONCE) else {
        return;
    };
    assert!(challenge.is_ascii() && challenge.contains(NONCE));
    if let Ok((answer, user)) = waiting.finish(data.get(cut + 1..).unwrap_or_default()) {
        assert!(answer.starts_with("v=") && !user.is_empty());
    }
}

/// A message of PLAIN.
pub fn plain(data: &[u8]) {
    if let Ok(attempt) = plain::Attempt::parse(data) {
        let user = attempt.user.clone();
        let known = (user == "user").then_some((Hash::Sha256, &**CREDENTIAL));
        if let Ok(name) = attempt.check(known, (Hash::Sha256, NonZeroU32::MIN)) {
            assert_eq!((name.as_str(), user.as_str()), ("user", "user"));
        }
    }
}

/// The first message of OAUTHBEARER, and its token.
pub fn oauthbearer(data: &[u8]) {
    if let Ok(first) = oauthbearer::First::parse(data) {
        assert!(!first.token.is_empty());
        jwt(first.token.as_bytes());
    }
}

/// A public key whose private key is unknown.
const KEYS: &str = r#"{"keys": [{"kty": "EC", "kid": "one", "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

/// A token.
pub fn jwt(data: &[u8]) {
    static SET: LazyLock<KeySet> =
        LazyLock::new(|| KeySet::parse(KEYS.as_bytes()).expect("it is a good one"));
    let expected = Expected {
        audiences: Vec::new(),
        issuer: None,
        subject_claim: "sub".into(),
        scope_claim: "scope".into(),
        clock_skew: Duration::ZERO,
    };
    if let Ok(token) = std::str::from_utf8(data) {
        assert!(verify(token, &SET, &expected, 0).is_err(), "its signature cannot be made");
    }
}

/// A document with keys.
pub fn jwks(data: &[u8]) {
    if let Ok(set) = KeySet::parse(data) {
        assert!((1..=100).contains(&set.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scram::Client;

    fn run(target: fn(&[u8]), seeds: &[Vec<u8>]) {
        let rounds = testing::fuzz::run(5, seeds, target);
        assert!(rounds > 1000, "only {rounds} rounds were run");
    }

    #[test]
    fn fuzz_scram() {
        let mut client = Client::new(Hash::Sha256, "user", "pencil", "client".into());
        let first = First::parse(client.first().as_bytes()).unwrap();
        let (challenge, _) = first.challenge(Hash::Sha256, Some(CREDENTIAL.clone()), NONCE).unwrap();
        let whole = format!("{}\0{}", client.first(), client.last(&challenge).unwrap());
        let extended = whole.replacen("n,,n=user", "n,a=us=2Cer,n=us=2Cer", 1).replacen(",p=", ",x=y,p=", 1);
        run(scram, &[whole.into_bytes(), extended.into_bytes(), client.first().into_bytes()]);
    }

    #[test]
    fn fuzz_plain() {
        run(plain, &[b"\0user\0pencil".to_vec(), b"user\0user\0pencil".to_vec(), b"\0other\0pen".to_vec()]);
    }

    fn token() -> String {
        let provider = crate::testing::Provider::new(false);
        let header = serde_json::json!({"alg": "ES256", "kid": "one"});
        provider.sign(&header, &crate::testing::claims(&serde_json::json!({"scope": ["a"], "aud": "b"})))
    }

    #[test]
    fn fuzz_oauthbearer() {
        let whole = format!("n,a=a=2Cb,\x01auth=Bearer {}\x01x=y\x01\x01", token());
        run(oauthbearer, &[whole.into_bytes(), b"n,,\x01auth=Bearer a.b.c\x01\x01".to_vec()]);
    }

    #[test]
    fn fuzz_jwt() {
        run(jwt, &[token().into_bytes(), b"e30.e30.e30".to_vec()]);
    }

    #[test]
    fn fuzz_jwks() {
        let rsa = br#"{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "use": "sig", "key_ops": ["verify"], "alg": "RS256"}]}"#;
        run(jwks, &[KEYS.as_bytes().to_vec(), rsa.to_vec(), br#"{"keys": []}"#.to_vec()]);
    }
}
