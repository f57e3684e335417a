//! The stored form of a password: enough to check a proof, not enough to make one.

use std::fmt;
use std::num::NonZeroU32;

use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};
use subtle::ConstantTimeEq;

/// Bytes of a new salt.
const SALT_BYTES: usize = 24;

/// The hash function, the only difference between the SCRAM mechanisms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hash {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

impl Hash {
    /// All hash functions.
    pub const ALL: [Hash; 2] = [Hash::Sha256, Hash::Sha512];

    /// The mechanism's name.
    pub const fn mechanism(self) -> &'static str {
        match self {
            Hash::Sha256 => "SCRAM-SHA-256",
            Hash::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// The hash of the mechanism with this name.
    pub fn from_mechanism(name: &str) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.mechanism() == name)
    }

    fn digest(self) -> &'static digest::Algorithm {
        match self {
            Hash::Sha256 => &digest::SHA256,
            Hash::Sha512 => &digest::SHA512,
        }
    }

    pub(super) fn of(self, bytes: &[u8]) -> Vec<u8> {
        digest::digest(self.digest(), bytes).as_ref().to_vec()
    }

    pub(super) fn hmac(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Hash::Sha256 => hmac::HMAC_SHA256,
            Hash::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::sign(&hmac::Key::new(algorithm, key), message).as_ref().to_vec()
    }
}

/// RFC 5802's `SaltedPassword`. It is slow on purpose: some milliseconds for some thousand iterations.
pub fn salted_password(hash: Hash, password: &str, salt: &[u8], iterations: NonZeroU32) -> Vec<u8> {
    let algorithm = match hash {
        Hash::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
        Hash::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
    };
    let mut salted = vec![0; hash.digest().output_len()];
    pbkdf2::derive(algorithm, iterations, salt, password.as_bytes(), &mut salted);
    salted
}

/// A new salt. `None` if the system has no random numbers.
pub fn random_salt() -> Option<Vec<u8>> {
    let mut salt = vec![0; SALT_BYTES];
    SystemRandom::new().fill(&mut salt).ok()?;
    Some(salt)
}

/// The stored form of a user's password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The number of hash iterations.
    pub iterations: NonZeroU32,
    /// Different for each credential.
    pub salt: Vec<u8>,
    /// Hash of the key that the client proves to have.
    pub stored_key: Vec<u8>,
    /// Key by which the server proves that it knows the user.
    pub server_key: Vec<u8>,
}

impl Credential {
    /// The stored form of `password`. Slow.
    pub fn new(hash: Hash, password: &str, salt: Vec<u8>, iterations: NonZeroU32) -> Credential {
        let salted = salted_password(hash, password, &salt, iterations);
        Credential::of_salted(hash, &salted, salt, iterations)
    }

    /// The stored form of a password that the caller has already salted.
    pub fn of_salted(hash: Hash, salted: &[u8], salt: Vec<u8>, iterations: NonZeroU32) -> Credential {
        Credential {
            iterations,
            salt,
            stored_key: hash.of(&hash.hmac(salted, b"Client Key")),
            server_key: hash.hmac(salted, b"Server Key"),
        }
    }

    /// Whether this is the credential of `password`. Slow.
    pub fn is_of(&self, hash: Hash, password: &str) -> bool {
        let salted = salted_password(hash, password, &self.salt, self.iterations);
        equal(&hash.of(&hash.hmac(&salted, b"Client Key")), &self.stored_key)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential([hidden])")
    }
}

/// Whether both are equal. The time of the comparison does not reveal where they differ.
pub(super) fn equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_knows_its_password_and_shows_nothing() {
        let iterations = NonZeroU32::new(10).unwrap();
        for hash in Hash::ALL {
            let credential = Credential::new(hash, "pencil", random_salt().unwrap(), iterations);
            assert!(credential.is_of(hash, "pencil"));
            for wrong in ["", "pencil ", "Pencil", "pen"] {
                assert!(!credential.is_of(hash, wrong), "{wrong}");
            }
            assert_eq!(format!("{credential:?}"), "Credential([hidden])");
        }
        let other = Credential::new(Hash::Sha256, "pencil", b"s".to_vec(), iterations);
        assert!(!other.is_of(Hash::Sha512, "pencil"));
        assert_ne!(random_salt(), random_salt());
    }
}
