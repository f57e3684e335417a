//! SCRAM (RFC 5802, RFC 7677): the stored form of a password, and both sides of the exchange.
//!
//! ```text
//! client  n,[a=authzid],n=user,r=client nonce[,extensions]
//! server  r=client nonce + server nonce,s=salt,i=iterations
//! client  c=biws,r=both nonces[,extensions],p=proof
//! server  v=signature
//! ```
//!
//! As in Kafka, there is no channel binding, because Kafka's clients do not support it.

mod client;
mod credential;
mod server;

pub use client::{Client, ClientError};
pub use credential::{Credential, Hash, random_salt, salted_password};
pub use server::{First, Waiting, random_nonce};
