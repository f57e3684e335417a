//! PLAIN (RFC 4616): user and password in one message.
//!
//! ```text
//! [authzid] NUL user NUL password
//! ```
//!
//! The password is checked against the SCRAM credential of the user, so no password is stored.

use std::fmt;
use std::num::NonZeroU32;

use crate::Failure;
use crate::scram::{Credential, Hash, salted_password};

/// A client's message.
#[derive(Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The claimed user.
    pub user: String,
    authzid: String,
    password: String,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({:?}, [hidden])", self.user)
    }
}

impl Attempt {
    /// Reads the message.
    pub fn parse(message: &[u8]) -> Result<Attempt, Failure> {
        let message = String::from_utf8_lossy(message);
        // Kafka stops counting at the fourth.
        let parts: Vec<&str> = message.splitn(5, '\0').take(4).collect();
        let [authzid, user, password] = parts[..] else {
            let why = format!("Invalid SASL/PLAIN response: expected 3 tokens, got {}", parts.len());
            return Err(Failure::Told(why));
        };
        if user.is_empty() {
            return Err(Failure::told("Authentication failed: username not specified"));
        }
        if password.is_empty() {
            return Err(Failure::told("Authentication failed: password not specified"));
        }
        Ok(Attempt { user: user.into(), authzid: authzid.into(), password: password.into() })
    }

    /// Checks the password against the user's credential. This is slow, and equally slow for an unknown user:
    /// `otherwise` gives the cost of a check then. Returns the client's name.
    pub fn check(
        self,
        credential: Option<(Hash, &Credential)>,
        otherwise: (Hash, NonZeroU32),
    ) -> Result<String, Failure> {
        let proven = match credential {
            Some((hash, credential)) => credential.is_of(hash, &self.password),
            None => {
                let (hash, iterations) = otherwise;
                std::hint::black_box(salted_password(hash, &self.password, b"nobody's salt", iterations));
                false
            }
        };
        if !proven {
            return Err(Failure::told("Authentication failed: Invalid username or password"));
        }
        if !self.authzid.is_empty() && self.authzid != self.user {
            return Err(Failure::told(
                "Authentication failed: Client requested an authorization id that is different from username",
            ));
        }
        Ok(self.user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERWISE: (Hash, NonZeroU32) = (Hash::Sha256, NonZeroU32::MIN);

    fn outcome(message: &str) -> Result<String, Failure> {
        let credential = Credential::new(Hash::Sha512, "secret", b"salt".to_vec(), NonZeroU32::MIN);
        let attempt = Attempt::parse(message.as_bytes())?;
        let known = (attempt.user == "alice").then_some((Hash::Sha512, &credential));
        attempt.check(known, OTHERWISE)
    }

    #[test]
    fn the_answers_are_kafkas() {
        assert_eq!(outcome("\0alice\0secret").unwrap(), "alice");
        assert_eq!(outcome("alice\0alice\0secret").unwrap(), "alice");
        let cases = [
            ("", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
            ("alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
            ("\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
            ("\0\0\0\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
            ("\0\0secret", "Authentication failed: username not specified"),
            ("\0alice\0", "Authentication failed: password not specified"),
            ("\0alice\0wrong", "Authentication failed: Invalid username or password"),
            ("\0bob\0secret", "Authentication failed: Invalid username or password"),
            ("bob\0alice\0wrong", "Authentication failed: Invalid username or password"),
            (
                "bob\0alice\0secret",
                "Authentication failed: Client requested an authorization id that is different from username",
            ),
        ];
        for (message, why) in cases {
            assert_eq!(outcome(message), Err(Failure::Told(why.into())), "{message:?}");
        }
        let bytes = Attempt::parse(b"\0al\xffice\0secret").unwrap();
        assert_eq!(bytes.user, "al\u{fffd}ice");
        assert_eq!(format!("{bytes:?}"), "Attempt(\"al\u{fffd}ice\", [hidden])");
    }
}
