//! The client's side of SCRAM (RFC 5802, RFC 7677), with `ring`'s HMAC and PBKDF2.

use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};

use crate::security::Mechanism;

/// A server may ask for this much work; more is taken for an attack.
const ITERATIONS_MAX: u32 = 1 << 20;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    #[error("the server's message is not one of SCRAM")]
    Garbled,
    #[error("the server answered with another nonce than was sent")]
    Nonce,
    #[error("the server asks for {0} iterations")]
    Iterations(u32),
    #[error("the server says {0}")]
    Refused(String),
    #[error("the server does not know the password itself")]
    Impostor,
}

/// One exchange.
pub struct Scram {
    sha512: bool,
    nonce: String,
    first_bare: String,
    password: String,
    server_signature: Vec<u8>,
}

impl Scram {
    /// `nonce` is printable, without commas, and never used again.
    pub fn new(mechanism: Mechanism, user: &str, password: &str, nonce: String) -> Scram {
        let name = user.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={name},r={nonce}");
        let sha512 = mechanism == Mechanism::ScramSha512;
        Scram { sha512, nonce, first_bare, password: password.into(), server_signature: Vec::new() }
    }

    pub fn first(&self) -> String {
        format!("n,,{}", self.first_bare)
    }

    /// The answer to the server's first message.
    pub fn last(&mut self, server_first: &str) -> Result<String, ScramError> {
        let field = |name| field(server_first, name).ok_or(ScramError::Garbled);
        let nonce = field("r=")?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Nonce);
        }
        let salt = STANDARD.decode(field("s=")?).map_err(|_| ScramError::Garbled)?;
        let iterations: u32 = field("i=")?.parse().map_err(|_| ScramError::Garbled)?;
        let Some(count) = NonZeroU32::new(iterations).filter(|count| count.get() <= ITERATIONS_MAX) else {
            return Err(ScramError::Iterations(iterations));
        };
        let (derivation, hash) = if self.sha512 {
            (pbkdf2::PBKDF2_HMAC_SHA512, &digest::SHA512)
        } else {
            (pbkdf2::PBKDF2_HMAC_SHA256, &digest::SHA256)
        };
        let mut salted = vec![0; hash.output_len()];
        pbkdf2::derive(derivation, count, &salt, self.password.as_bytes(), &mut salted);
        let client_key = self.hmac(&salted, b"Client Key");
        let stored_key = digest::digest(hash, &client_key);
        let without_proof = format!("c=biws,r={nonce}");
        let message = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = self.hmac(stored_key.as_ref(), message.as_bytes());
        let proof: Vec<u8> =
            client_key.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect();
        let server_key = self.hmac(&salted, b"Server Key");
        self.server_signature = self.hmac(&server_key, message.as_bytes());
        Ok(format!("{without_proof},p={}", STANDARD.encode(proof)))
    }

    /// Checks the server's last message: it has to know the password as well.
    pub fn check(&self, server_last: &str) -> Result<(), ScramError> {
        if let Some(error) = field(server_last, "e=") {
            return Err(ScramError::Refused(error.into()));
        }
        let signature = field(server_last, "v=").ok_or(ScramError::Garbled)?;
        let signature = STANDARD.decode(signature).map_err(|_| ScramError::Garbled)?;
        if signature == self.server_signature { Ok(()) } else { Err(ScramError::Impostor) }
    }

    fn hmac(&self, key: &[u8], message: &[u8]) -> Vec<u8> {
        let algorithm = if self.sha512 { hmac::HMAC_SHA512 } else { hmac::HMAC_SHA256 };
        hmac::sign(&hmac::Key::new(algorithm, key), message).as_ref().to_vec()
    }
}

fn field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    message.split(',').find_map(|part| part.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exchange of RFC 7677, section 3.
    #[test]
    fn the_rfcs_example_comes_out() {
        let mut scram = Scram::new(Mechanism::ScramSha256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO".into());
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let server_first =
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let last = scram.last(server_first).unwrap();
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        scram.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
        assert_eq!(scram.check("v=AAAA"), Err(ScramError::Impostor));
        assert_eq!(scram.check("e=invalid-proof"), Err(ScramError::Refused("invalid-proof".into())));
    }

    #[test]
    fn a_replayed_or_greedy_server_is_refused() {
        let mut scram = Scram::new(Mechanism::ScramSha512, "a,b=c", "p", "mine".into());
        assert_eq!(scram.first(), "n,,n=a=2Cb=3Dc,r=mine");
        assert_eq!(scram.last("r=other1,s=AAAA,i=4096"), Err(ScramError::Nonce));
        assert_eq!(scram.last("r=mine,s=AAAA,i=4096"), Err(ScramError::Nonce));
        assert_eq!(scram.last("r=mine1,s=AAAA,i=4000000000"), Err(ScramError::Iterations(4_000_000_000)));
        assert_eq!(scram.last("r=mine1,s=AAAA,i=0"), Err(ScramError::Iterations(0)));
        assert_eq!(scram.last("nothing"), Err(ScramError::Garbled));
    }
}
