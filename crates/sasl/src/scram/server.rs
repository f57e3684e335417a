//! The server's side of the exchange, like Kafka's `ScramSaslServer`.
//!
//! Kafka never sends an `e=` error of the RFC. A client that fails gets Kafka's own error response, and is
//! disconnected.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::{SecureRandom, SystemRandom};

use super::credential::{Credential, Hash, equal};
use crate::{Failure, saslname};

const NONCE_BYTES: usize = 18;
/// The GS2 header that clients without channel binding and authorisation id send, as the last message repeats it.
const BIWS: &str = "n,,";
/// Set by clients that use a delegation token in place of a password.
const TOKEN_EXTENSION: &str = "tokenauth";

/// A new nonce. `None` if the system has no random numbers.
pub fn random_nonce() -> Option<String> {
    let mut nonce = [0; NONCE_BYTES];
    SystemRandom::new().fill(&mut nonce).ok()?;
    Some(URL_SAFE_NO_PAD.encode(nonce))
}

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    /// The claimed user.
    pub user: String,
    authzid: Option<String>,
    header: String,
    bare: String,
    nonce: String,
}

impl First {
    /// Reads the message.
    pub fn parse(message: &[u8]) -> Result<First, Failure> {
        let wrong = Failure::Untold("the first message is not one of SCRAM");
        let message = std::str::from_utf8(message).ok().filter(|message| message.is_ascii());
        let rest = message.and_then(|message| message.strip_prefix("n,")).ok_or(wrong.clone())?;
        let (authzid, bare) = rest.split_once(',').ok_or(wrong.clone())?;
        let header = format!("n,{authzid},");
        let authzid = match authzid {
            "" => None,
            given => {
                let name = given.strip_prefix("a=").and_then(saslname);
                Some(name.ok_or(wrong.clone())?)
            }
        };
        let mut fields = bare.split(',');
        let user = fields.next().and_then(|field| field.strip_prefix("n=")).and_then(saslname);
        let nonce = fields.next().and_then(|field| field.strip_prefix("r="));
        let nonce = nonce.filter(|nonce| is_nonce(nonce)).ok_or(wrong.clone())?.to_owned();
        for field in fields {
            let (name, value) = extension(field).ok_or(wrong.clone())?;
            if name == TOKEN_EXTENSION && value.eq_ignore_ascii_case("true") {
                return Err(Failure::Untold("there are no delegation tokens"));
            }
        }
        Ok(First { user: user.ok_or(wrong)?, authzid, header, bare: bare.to_owned(), nonce })
    }

    /// The challenge for this message. `credential` is the user's, if the user exists; `nonce` must be new.
    pub fn challenge(
        self,
        hash: Hash,
        credential: Option<Arc<Credential>>,
        nonce: &str,
    ) -> Result<(String, Waiting), Failure> {
        // Like Kafka, refuse an unknown user at once. A false challenge would hide no more: a client that measures
        // learns as much from it.
        let credential = credential.ok_or(Failure::Untold("there is no such user"))?;
        if self.authzid.as_ref().is_some_and(|authzid| *authzid != self.user) {
            return Err(Failure::told(
                "Authentication failed: Client requested an authorization id that is different from username",
            ));
        }
        let nonce = format!("{}{nonce}", self.nonce);
        let salt = STANDARD.encode(&credential.salt);
        let challenge = format!("r={nonce},s={salt},i={}", credential.iterations);
        let waiting = Waiting { hash, first: self, challenge: challenge.clone(), nonce, credential };
        Ok((challenge, waiting))
    }
}

/// An exchange after its challenge was sent.
pub struct Waiting {
    hash: Hash,
    first: First,
    challenge: String,
    nonce: String,
    credential: Arc<Credential>,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiting({}, {:?})", self.hash.mechanism(), self.first.user)
    }
}

impl Waiting {
    /// Checks the proof in the client's last message. Returns the last message to the client, and the client's name.
    pub fn finish(self, message: &[u8]) -> Result<(String, String), Failure> {
        let wrong = Failure::Untold("the last message is not one of SCRAM");
        let message = std::str::from_utf8(message).ok().filter(|message| message.is_ascii());
        let (without_proof, proof) =
            message.and_then(|message| message.rsplit_once(",p=")).ok_or(wrong.clone())?;
        let proof = STANDARD.decode(proof).map_err(|_| wrong.clone())?;
        let mut fields = without_proof.split(',');
        let binding = fields.next().and_then(|field| field.strip_prefix("c=")).ok_or(wrong.clone())?;
        let nonce = fields.next().and_then(|field| field.strip_prefix("r=")).ok_or(wrong.clone())?;
        if !fields.all(|field| extension(field).is_some()) {
            return Err(wrong);
        }
        // Some clients leave the authorisation id out when they repeat the header.
        let repeated = |header: &str| binding == STANDARD.encode(header);
        if !repeated(&self.first.header) && !repeated(BIWS) {
            return Err(Failure::Untold("the last message repeats another header than the first one had"));
        }
        // As in Kafka: until version 2.6 librdkafka repeated its own nonce at the front. Only the end is fresh, and it
        // is signed.
        if !nonce.ends_with(&self.nonce) || !is_nonce(nonce) {
            return Err(Failure::Untold("the last message has another nonce: perhaps it is an old one"));
        }
        let signed = format!("{},{},{without_proof}", self.first.bare, self.challenge);
        let (hash, credential) = (self.hash, &self.credential);
        let signature = hash.hmac(&credential.stored_key, signed.as_bytes());
        let key: Vec<u8> = signature.iter().zip(&proof).map(|(signature, proof)| signature ^ proof).collect();
        if proof.len() != signature.len() || !equal(&hash.of(&key), &credential.stored_key) {
            return Err(Failure::Untold("the password is wrong"));
        }
        let signature = hash.hmac(&credential.server_key, signed.as_bytes());
        Ok((format!("v={}", STANDARD.encode(signature)), self.first.user))
    }
}

/// Whether the text is printable and has no commas.
fn is_nonce(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x21..=0x7e).contains(&byte) && byte != b',')
}

/// Name and value of an extension. `m` is not an extension: it demands an extension that is unknown here.
fn extension(field: &str) -> Option<(&str, &str)> {
    let (name, value) = field.split_once('=')?;
    let letters = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic());
    (letters && name != "m" && !value.is_empty() && !value.contains('\0')).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::super::Client;
    use super::*;

    fn credential(hash: Hash, password: &str, salt: &str, iterations: u32) -> Arc<Credential> {
        let salt = STANDARD.decode(salt).unwrap();
        Arc::new(Credential::new(hash, password, salt, NonZeroU32::new(iterations).unwrap()))
    }

    fn pencil(hash: Hash) -> Arc<Credential> {
        credential(hash, "pencil", "c2FsdA==", 16)
    }

    fn begun(hash: Hash, message: &str, nonce: &str) -> Result<(String, Waiting), Failure> {
        First::parse(message.as_bytes())?.challenge(hash, Some(pencil(hash)), nonce)
    }

    /// RFC 7677, section 3.
    #[test]
    fn the_example_of_the_rfc_for_sha_256() {
        let credential = credential(Hash::Sha256, "pencil", "W22ZaJ0SNY7soEsUEjb6gQ==", 4096);
        let first = First::parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
        let nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let (challenge, waiting) = first.challenge(Hash::Sha256, Some(credential), nonce).unwrap();
        assert_eq!(
            challenge,
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let last = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
            p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let (answer, user) = waiting.finish(last.as_bytes()).unwrap();
        assert_eq!(answer, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        assert_eq!(user, "user");
    }

    /// Computed with another implementation (Python's `hashlib`), because the RFCs have no example.
    #[test]
    fn the_same_for_sha_512() {
        let credential =
            credential(Hash::Sha512, "pencil", "Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=", 4096);
        let first = First::parse(b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL").unwrap();
        let (_, waiting) = first.challenge(Hash::Sha512, Some(credential), "Hm7XqdNyNyH0x4mY1RMa").unwrap();
        let last = "c=biws,r=fyko+d2lbbFgONRv9qkxdawLHm7XqdNyNyH0x4mY1RMa,\
            p=VwcBSwOEuvD9/KI4YHCp5mQFvGBLOvCNWZjj6DOqTp6zApH13dxmIJYg+3XYJT1isf8modC2wRKaFaDHS/odWQ==";
        let (answer, user) = waiting.finish(last.as_bytes()).unwrap();
        assert_eq!(
            answer,
            "v=Jcmc/RD8kwNUT/Ze78HQHA4AdRbj7CKLyn0TUDVAF1Mk9ySxb+uo/OMkDKX/roR9IfobIOuINawY7rdIrf9R5A=="
        );
        assert_eq!(user, "user");
    }

    #[test]
    fn names_and_extensions_are_read() {
        let first = First::parse(b"n,a=a=2Cb,n=a=2Cb,r=xyz,some=thing").unwrap();
        assert_eq!((first.user.as_str(), first.authzid.as_deref()), ("a,b", Some("a,b")));
        assert_eq!((first.header.as_str(), first.bare.as_str()), ("n,a=a=2Cb,", "n=a=2Cb,r=xyz,some=thing"));
        let wrong = [
            "",
            "n",
            "n,",
            "n,,",
            "y,,n=u,r=x",
            "p=tls-unique,,n=u,r=x",
            "n,,n=u",
            "n,,n=,r=x",
            "n,,n=u,r=",
            "n,,r=x,n=u",
            "n,,m=a,n=u,r=x",
            "n,,n=u,r=x,m=a",
            "n,a=,n=u,r=x",
            "n,b,n=u,r=x",
            "n,,n=u=41,r=x",
            "n,,n=u,r=x,",
            "n,,n=u,r=x,1=2",
            "n,,n=u,r=x y",
            "n,,n=ü,r=x",
            "n,,n=u,r=x,a=",
        ];
        for wrong in wrong {
            assert!(matches!(First::parse(wrong.as_bytes()), Err(Failure::Untold(_))), "{wrong}");
        }
        assert!(First::parse(b"n,,n=u,r=\xff").is_err());
        assert_eq!(
            First::parse(b"n,,n=u,r=x,tokenauth=true"),
            Err(Failure::Untold("there are no delegation tokens"))
        );
        First::parse(b"n,,n=u,r=x,tokenauth=false").unwrap();
    }

    #[test]
    fn nobody_else_gets_in() {
        for hash in Hash::ALL {
            let first = First::parse(b"n,,n=nobody,r=x").unwrap();
            assert_eq!(
                first.challenge(hash, None, "y").unwrap_err(),
                Failure::Untold("there is no such user")
            );
            let told = begun(hash, "n,a=root,n=user,r=x", "y").unwrap_err();
            assert!(matches!(told, Failure::Told(why) if why.contains("authorization id that is different")));
            let mut client = Client::new(hash, "user", "pen", "x".into());
            let (challenge, waiting) = begun(hash, &client.first(), "y").unwrap();
            let refused = waiting.finish(client.last(&challenge).unwrap().as_bytes()).unwrap_err();
            assert_eq!(refused, Failure::Untold("the password is wrong"));
        }
    }

    #[test]
    fn an_old_exchange_is_worth_nothing() {
        let mut client = Client::new(Hash::Sha256, "user", "pencil", "x".into());
        let (challenge, waiting) = begun(Hash::Sha256, &client.first(), &random_nonce().unwrap()).unwrap();
        let last = client.last(&challenge).unwrap();
        waiting.finish(last.as_bytes()).unwrap();
        let (_, waiting) = begun(Hash::Sha256, &client.first(), &random_nonce().unwrap()).unwrap();
        let refused = waiting.finish(last.as_bytes()).unwrap_err();
        assert!(matches!(refused, Failure::Untold(why) if why.contains("another nonce")));
        assert_ne!(random_nonce(), random_nonce());
    }

    #[test]
    fn a_nonce_that_comes_twice_is_taken() {
        let credential = pencil(Hash::Sha256);
        let (challenge, waiting) = begun(Hash::Sha256, "n,,n=user,r=x", "y").unwrap();
        // A message in the form of librdkafka 2.0, made by hand.
        let salted =
            super::super::salted_password(Hash::Sha256, "pencil", &credential.salt, credential.iterations);
        let key = Hash::Sha256.hmac(&salted, b"Client Key");
        let without_proof = "c=biws,r=xxy";
        let signed = format!("n=user,r=x,{challenge},{without_proof}");
        let signature = Hash::Sha256.hmac(&Hash::Sha256.of(&key), signed.as_bytes());
        let proof: Vec<u8> = key.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect();
        let last = format!("{without_proof},p={}", STANDARD.encode(proof));
        assert_eq!(waiting.finish(last.as_bytes()).unwrap().1, "user");
    }

    #[test]
    fn a_changed_last_message_is_refused() {
        let hash = Hash::Sha512;
        let finish = |change: &dyn Fn(&str) -> String| {
            let mut client = Client::new(hash, "user", "pencil", "x".into());
            let (challenge, waiting) = begun(hash, &client.first(), "y").unwrap();
            waiting.finish(change(&client.last(&challenge).unwrap()).as_bytes())
        };
        finish(&str::to_owned).unwrap();
        let changes: [(&str, &str); 8] = [
            ("c=biws", "c=eSws"),
            ("c=biws", "c=!"),
            ("r=xy", "r=xz"),
            ("r=xy", "r=y"),
            (",p=", ",z=1,p="),
            (",p=", ",p=AAAA"),
            (",p=", ",q="),
            ("==", "="),
        ];
        for (from, to) in changes {
            assert!(finish(&|last| last.replacen(from, to, 1)).is_err(), "{from} {to}");
        }
        assert!(finish(&|last| last[..last.find(",p=").unwrap() + 3].to_owned()).is_err());
    }
}
