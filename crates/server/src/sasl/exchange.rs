//! One log-in in progress: messages of the client in, challenges out, until the client's identity is known.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use sasl::scram::{Credential, First, Hash, Waiting, random_nonce};
use sasl::{Failure, Mechanism, oauthbearer, plain};

use super::{Hashing, Sasl};

/// The state of a log-in.
#[derive(Debug)]
enum Stage {
    Plain,
    Scram(Hash),
    Proof(Waiting),
    Token,
    /// The client was told that its token is invalid, and must answer that.
    TokenRefused,
    Over,
}

/// One log-in.
#[derive(Debug)]
pub struct Exchange {
    stage: Stage,
    /// The user that the client claims to be, once it has named one.
    pub user: Option<String>,
}

/// The result of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The client has to answer this challenge.
    Challenge(Vec<u8>),
    /// The client is authenticated.
    Done {
        answer: Vec<u8>,
        user: String,
        /// The end of the credential's validity, in milliseconds since the Unix epoch.
        expires_ms: Option<i64>,
    },
}

impl Exchange {
    /// Begins a log-in.
    pub fn new(mechanism: Mechanism) -> Exchange {
        let stage = match mechanism {
            Mechanism::Plain => Stage::Plain,
            Mechanism::Scram(hash) => Stage::Scram(hash),
            Mechanism::OauthBearer => Stage::Token,
        };
        Exchange { stage, user: None }
    }

    /// Handles the client's next message. After a failure there is no next message.
    pub async fn step(&mut self, sasl: &Sasl, message: Bytes) -> Result<Step, Failure> {
        let done = |answer, user| Step::Done { answer, user, expires_ms: None };
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Plain => {
                let attempt = plain::Attempt::parse(&message)?;
                self.user = Some(attempt.user.clone());
                let credential = sasl.users.find_any(&attempt.user);
                let user = checked(attempt, credential, sasl.users.usual_cost(), &sasl.hashing).await?;
                Ok(done(Vec::new(), user))
            }
            Stage::Scram(hash) => {
                let first = First::parse(&message)?;
                self.user = Some(first.user.clone());
                let credential = sasl.users.find(hash, &first.user);
                let nonce = random_nonce().ok_or(Failure::Untold("the system has no random numbers"))?;
                let (challenge, waiting) = first.challenge(hash, credential, &nonce)?;
                self.stage = Stage::Proof(waiting);
                Ok(Step::Challenge(challenge.into_bytes()))
            }
            Stage::Proof(waiting) => {
                let (answer, user) = waiting.finish(&message)?;
                Ok(done(answer.into_bytes(), user))
            }
            Stage::TokenRefused if *message == *oauthbearer::ACKNOWLEDGEMENT => {
                Err(Failure::Told(oauthbearer::REFUSAL.to_owned()))
            }
            // As in Kafka, another token may come instead of the acknowledgement.
            Stage::Token | Stage::TokenRefused => {
                let first = oauthbearer::First::parse(&message)?;
                let keys =
                    sasl.log_in.keys.as_ref().ok_or(Failure::Untold("there are no keys for tokens"))?;
                match keys.verify(&first.token, super::now_ms()).await {
                    Ok(token) => {
                        let user = first.finish(&token)?;
                        Ok(Step::Done { answer: Vec::new(), user, expires_ms: Some(token.expires_ms) })
                    }
                    Err(error) => {
                        sasl.report.token_refused(&error);
                        self.stage = Stage::TokenRefused;
                        Ok(Step::Challenge(oauthbearer::REFUSAL.as_bytes().to_vec()))
                    }
                }
            }
            Stage::Over => Err(Failure::Untold("the log-in is over")),
        }
    }
}

/// Checks a password on a thread for blocking work, when it has a turn.
async fn checked(
    attempt: plain::Attempt,
    credential: Option<(Hash, Arc<Credential>)>,
    otherwise: (Hash, NonZeroU32),
    hashing: &Hashing,
) -> Result<String, Failure> {
    let waiting = hashing.waiting.try_acquire();
    let waiting = waiting.map_err(|_| Failure::Untold("too many passwords wait for being checked"))?;
    let turn = hashing.turns.clone().acquire_owned().await;
    let turn = turn.map_err(|_| Failure::Untold("the server is stopping"))?;
    drop(waiting);
    let work = tokio::task::spawn_blocking(move || {
        // The turn is held until the work is done, even if the client has disconnected.
        let _turn = turn;
        let credential = credential.as_ref().map(|(hash, credential)| (*hash, &**credential));
        attempt.check(credential, otherwise)
    });
    work.await.unwrap_or(Err(Failure::Untold("checking the password ended in a bug")))
}
