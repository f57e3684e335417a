//! The SASL mechanisms that Kafka has, as pure logic: messages in, challenges and outcomes out.
//!
//! PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677) and OAUTHBEARER (RFC 7628) with signed tokens (RFC 7519).
//! Frames, sockets, the store of users and where keys are fetched from are the business of others; the time is handed in.
//!
//! Invariants:
//! - Messages come from anybody: whatever their bytes are, there is an outcome, and its cost is bounded by their length
//!   and, for passwords, by the iterations that the stored credential has.
//! - What proves an identity (passwords, keys, tokens) is never part of an error, nor of what `Debug` shows.
//! - Proofs are compared in constant time.

pub mod algorithm;
pub mod jaas;
pub mod jwks;
pub mod jwt;
pub mod oauthbearer;
pub mod plain;
pub mod scram;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use scram::Hash;

/// How a client proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// User and password as they are.
    Plain,
    /// A challenge that only who knows the password can answer.
    Scram(Hash),
    /// A token that somebody signed whom the server trusts.
    OauthBearer,
}

impl Mechanism {
    /// All there are.
    pub const ALL: [Mechanism; 4] = [
        Mechanism::Plain,
        Mechanism::Scram(Hash::Sha256),
        Mechanism::Scram(Hash::Sha512),
        Mechanism::OauthBearer,
    ];

    /// As IANA registered it.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::Scram(hash) => hash.mechanism(),
            Mechanism::OauthBearer => "OAUTHBEARER",
        }
    }

    /// The mechanism of this name.
    pub fn from_name(name: &str) -> Option<Mechanism> {
        Mechanism::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }
}

/// Why a client is not who it says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The client may know, in these words, which are Kafka's.
    #[error("{0}")]
    Told(String),
    /// The client is told only that its credentials are invalid: more could tell it which users there are.
    #[error("{0}")]
    Untold(&'static str),
}

impl Failure {
    fn told(why: &str) -> Failure {
        Failure::Told(why.to_owned())
    }
}

/// Decodes a name as SCRAM and OAUTHBEARER write it: `=2C` is a comma and `=3D` an equals sign; no other one may stand.
fn saslname(encoded: &str) -> Option<String> {
    let mut name = String::with_capacity(encoded.len());
    let mut parts = encoded.split('=');
    name.push_str(parts.next()?);
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        name.push(match code {
            "2C" => ',',
            "3D" => '=',
            _ => return None,
        });
        name.push_str(rest);
    }
    // As Kafka has it: ASCII, and nothing that ends a message or a text elsewhere.
    let allowed =
        !name.is_empty() && name.bytes().all(|byte| (1..=0x7f).contains(&byte)) && !encoded.contains(',');
    allowed.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanisms_have_their_names() {
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::from_name(mechanism.name()), Some(mechanism));
        }
        assert_eq!(Mechanism::from_name("plain"), None);
    }

    #[test]
    fn names_are_decoded_and_other_equals_signs_refused() {
        assert_eq!(saslname("a=2Cb=3Dc").as_deref(), Some("a,b=c"));
        assert_eq!(saslname("=3D2C").as_deref(), Some("=2C"));
        for wrong in ["", "a=", "a=2", "a=2c", "a=41", "a,b", "a\0b", "ä", "=2Cä", "=ä"] {
            assert_eq!(saslname(wrong), None, "{wrong}");
        }
    }
}
