//! The client's side of the exchange.

use std::fmt;
use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::credential::{Hash, equal, salted_password};

/// Upper bound of the iterations that a server may ask for. More would be an attack.
const ITERATIONS_MAX: u32 = 1 << 20;

/// Why the exchange cannot go on, or the server is not to be trusted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The message is not one of SCRAM.
    #[error("the server's message is not one of SCRAM")]
    Garbled,
    /// The server may have answered an old exchange.
    #[error("the server answered with another nonce than was sent")]
    Nonce,
    /// Zero iterations, or too many.
    #[error("the server asks for {0} iterations")]
    Iterations(u32),
    /// The error in the words of the RFC.
    #[error("the server says {0}")]
    Refused(String),
    /// Another party may stand in the server's place.
    #[error("the server does not know the password itself")]
    Impostor,
}

/// One exchange.
pub struct Client {
    hash: Hash,
    nonce: String,
    first_bare: String,
    password: String,
    server_signature: Vec<u8>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, [hidden])", self.hash.mechanism())
    }
}

impl Client {
    /// `nonce` is printable, without commas, and never used again.
    pub fn new(hash: Hash, user: &str, password: &str, nonce: String) -> Client {
        let name = user.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={name},r={nonce}");
        Client { hash, nonce, first_bare, password: password.into(), server_signature: Vec::new() }
    }

    /// The first message of the exchange.
    pub fn first(&self) -> String {
        format!("n,,{}", self.first_bare)
    }

    /// The answer to the server's first message. Slow.
    pub fn last(&mut self, server_first: &str) -> Result<String, ClientError> {
        let field = |name| field(server_first, name).ok_or(ClientError::Garbled);
        let nonce = field("r=")?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ClientError::Nonce);
        }
        let salt = STANDARD.decode(field("s=")?).map_err(|_| ClientError::Garbled)?;
        let iterations: u32 = field("i=")?.parse().map_err(|_| ClientError::Garbled)?;
        let Some(count) = NonZeroU32::new(iterations).filter(|count| count.get() <= ITERATIONS_MAX) else {
            return Err(ClientError::Iterations(iterations));
        };
        let hash = self.hash;
        let salted = salted_password(hash, &self.password, &salt, count);
        let client_key = hash.hmac(&salted, b"Client Key");
        let without_proof = format!("c=biws,r={nonce}");
        let message = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = hash.hmac(&hash.of(&client_key), message.as_bytes());
        let proof: Vec<u8> =
            client_key.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect();
        self.server_signature = hash.hmac(&hash.hmac(&salted, b"Server Key"), message.as_bytes());
        Ok(format!("{without_proof},p={}", STANDARD.encode(proof)))
    }

    /// Checks the server's last message: the server has to know the credential as well.
    pub fn check(&self, server_last: &str) -> Result<(), ClientError> {
        if let Some(error) = field(server_last, "e=") {
            return Err(ClientError::Refused(error.into()));
        }
        let signature = field(server_last, "v=").ok_or(ClientError::Garbled)?;
        let signature = STANDARD.decode(signature).map_err(|_| ClientError::Garbled)?;
        let known = !self.server_signature.is_empty() && equal(&signature, &self.server_signature);
        if known { Ok(()) } else { Err(ClientError::Impostor) }
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
        let mut client = Client::new(Hash::Sha256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO".into());
        assert_eq!(client.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let server_first =
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let last = client.last(server_first).unwrap();
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        client.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
        assert_eq!(client.check("v=AAAA"), Err(ClientError::Impostor));
        assert_eq!(client.check("e=invalid-proof"), Err(ClientError::Refused("invalid-proof".into())));
    }

    #[test]
    fn a_replayed_or_greedy_server_is_refused() {
        let mut client = Client::new(Hash::Sha512, "a,b=c", "p", "mine".into());
        assert_eq!(client.first(), "n,,n=a=2Cb=3Dc,r=mine");
        assert_eq!(client.last("r=other1,s=AAAA,i=4096"), Err(ClientError::Nonce));
        assert_eq!(client.last("r=mine,s=AAAA,i=4096"), Err(ClientError::Nonce));
        assert_eq!(client.last("r=mine1,s=AAAA,i=4000000000"), Err(ClientError::Iterations(4_000_000_000)));
        assert_eq!(client.last("r=mine1,s=AAAA,i=0"), Err(ClientError::Iterations(0)));
        assert_eq!(client.last("nothing"), Err(ClientError::Garbled));
    }
}
