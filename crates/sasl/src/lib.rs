//! Kafka's SASL mechanisms as pure logic: messages in, challenges and outcomes out.
//!
//! The mechanisms are PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677) and OAUTHBEARER (RFC 7628) with
//! signed tokens (RFC 7519). Frames, sockets, the store of users and the fetching of keys are elsewhere. The caller
//! hands in the time.
//!
//! Invariants:
//! - Messages are untrusted: any bytes have an outcome. Its cost is bounded by their length and, for passwords, by the
//!   iterations of the stored credential.
//! - The secrets that prove an identity (passwords, keys, tokens) are never part of an error or of `Debug` output.
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

/// A SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// User and password in clear text.
    Plain,
    /// A challenge that only a client with the password can answer.
    Scram(Hash),
    /// A token signed by a provider that the server trusts.
    OauthBearer,
}

impl Mechanism {
    /// All mechanisms.
    pub const ALL: [Mechanism; 4] = [
        Mechanism::Plain,
        Mechanism::Scram(Hash::Sha256),
        Mechanism::Scram(Hash::Sha512),
        Mechanism::OauthBearer,
    ];

    /// The name registered with IANA.
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

/// Why a log-in is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The client gets this message, in Kafka's words.
    #[error("{0}")]
    Told(String),
    /// The client learns only that its credentials are invalid. More could reveal which users exist.
    #[error("{0}")]
    Untold(&'static str),
}

impl Failure {
    fn told(why: &str) -> Failure {
        Failure::Told(why.to_owned())
    }
}

/// Decodes a name in the form of SCRAM and OAUTHBEARER: `=2C` is a comma and `=3D` an equals sign. No other equals sign
/// is allowed.
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
    // As in Kafka: ASCII, without characters that end a message or a text elsewhere.
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
