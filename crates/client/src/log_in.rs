//! Credentials, and the client's side of each SASL mechanism.

use std::fmt;

use sasl::scram::{Client, Hash, random_nonce};
use sasl::{Mechanism, scram};

/// The credentials of a user.
#[derive(Clone)]
pub enum LogIn {
    /// PLAIN (RFC 4616).
    Plain {
        /// The user's name.
        user: String,
        /// Sent to the server in clear text.
        password: String,
    },
    /// SCRAM (RFC 5802).
    Scram {
        /// SHA-256 or SHA-512.
        hash: Hash,
        /// The user's name.
        user: String,
        /// Never sent to the server.
        password: String,
    },
    /// OAUTHBEARER (RFC 7628) with this token.
    Token(String),
}

impl fmt::Debug for LogIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mechanism().name())
    }
}

/// The reason why the client ends a log-in.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LogInError {
    /// The client cannot make a nonce.
    #[error("the system has no random numbers")]
    Random,
    /// The server's message is wrong, or its proof of the credential is.
    #[error(transparent)]
    Scram(#[from] scram::ClientError),
    /// The server refused the token for this reason (RFC 7628, section 3.2.2).
    #[error("{0}")]
    Token(String),
}

/// An exchange that waits for the server's next message.
#[derive(Debug)]
pub(crate) struct Exchange(State);

#[derive(Debug)]
enum State {
    Plain,
    Token,
    ScramFirst(Client),
    ScramLast(Client),
}

/// The next step after a message of the server.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send this message, then give the response to the exchange.
    Send(Exchange, String),
    /// The log-in succeeded.
    Done,
}

impl LogIn {
    /// The mechanism of the credentials.
    pub fn mechanism(&self) -> Mechanism {
        match self {
            LogIn::Plain { .. } => Mechanism::Plain,
            LogIn::Scram { hash, .. } => Mechanism::Scram(*hash),
            LogIn::Token(_) => Mechanism::OauthBearer,
        }
    }

    /// Starts an exchange. Returns its first message too.
    ///
    /// # Errors
    /// [`LogInError::Random`].
    pub(crate) fn begin(&self) -> Result<(Exchange, String), LogInError> {
        Ok(match self {
            LogIn::Plain { user, password } => (Exchange(State::Plain), format!("\0{user}\0{password}")),
            LogIn::Token(token) => (Exchange(State::Token), format!("n,,\x01auth=Bearer {token}\x01\x01")),
            LogIn::Scram { hash, user, password } => {
                let nonce = random_nonce().ok_or(LogInError::Random)?;
                let client = Client::new(*hash, user, password, nonce);
                let first = client.first();
                (Exchange(State::ScramFirst(client)), first)
            }
        })
    }
}

impl Exchange {
    /// Takes the message of a response without an error. With SCRAM the first message costs as many iterations as the server
    /// asks for.
    ///
    /// # Errors
    /// [`LogInError::Scram`] and [`LogInError::Token`].
    pub(crate) fn receive(self, message: &str) -> Result<Next, LogInError> {
        match self.0 {
            State::Plain => Ok(Next::Done),
            State::Token if message.is_empty() => Ok(Next::Done),
            State::Token => Err(LogInError::Token(message.to_owned())),
            State::ScramFirst(mut client) => {
                let last = client.last(message)?;
                Ok(Next::Send(Exchange(State::ScramLast(client)), last))
            }
            State::ScramLast(client) => {
                client.check(message)?;
                Ok(Next::Done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use sasl::scram::{Credential, First};

    use super::*;

    #[test]
    fn scram_goes_both_ways() {
        let hash = Hash::Sha512;
        let log_in = LogIn::Scram { hash, user: "alice".into(), password: "pencil".into() };
        let stored = Arc::new(Credential::new(hash, "pencil", b"salt".to_vec(), NonZeroU32::MIN));
        let (exchange, first) = log_in.begin().unwrap();
        let (challenge, waiting) =
            First::parse(first.as_bytes()).unwrap().challenge(hash, Some(stored), "server").unwrap();
        let Next::Send(exchange, last) = exchange.receive(&challenge).unwrap() else { panic!() };
        let (answer, user) = waiting.finish(last.as_bytes()).unwrap();
        assert_eq!(user, "alice");
        assert!(matches!(exchange.receive(&answer).unwrap(), Next::Done));
        // A server with another nonce.
        let (exchange, _) = log_in.begin().unwrap();
        assert!(exchange.receive("r=other,s=AAAA,i=1").is_err());
        assert!(!format!("{log_in:?}").contains("pencil"));
    }

    #[test]
    fn passwords_and_tokens_are_one_message() {
        let log_in = LogIn::Plain { user: "alice".into(), password: "secret".into() };
        let (exchange, first) = log_in.begin().unwrap();
        assert_eq!(first, "\0alice\0secret");
        assert!(matches!(exchange.receive("").unwrap(), Next::Done));
        let log_in = LogIn::Token("a.b.c".into());
        let (exchange, first) = log_in.begin().unwrap();
        assert_eq!(first, "n,,\x01auth=Bearer a.b.c\x01\x01");
        let error = exchange.receive(r#"{"status":"invalid_token"}"#).unwrap_err();
        assert_eq!(error.to_string(), r#"{"status":"invalid_token"}"#);
        let (exchange, _) = log_in.begin().unwrap();
        assert!(matches!(exchange.receive("").unwrap(), Next::Done));
    }
}
