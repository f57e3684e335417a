//! Requests from this broker to the others of its cluster, over connections that stay open between requests.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use broker::Remote;
use client::{Security, address};
use wire::{Bytes, Chunks};

use crate::commands::peer::{ClientError, Patience, Peer};

/// A broker that is away must not hold up what waits for others.
const PATIENCE: Patience = Patience { connect: Duration::from_secs(2), answer: Duration::from_secs(10) };
/// Connections to one broker that are kept between requests.
const IDLE_MAX: usize = 8;

/// The connections to other brokers that are not in use, by address.
type Idle = Arc<Mutex<HashMap<String, Vec<Peer>>>>;

/// The other brokers of the cluster.
#[derive(Debug)]
pub struct OtherBrokers {
    security: Arc<Security>,
    idle: Idle,
}

impl OtherBrokers {
    /// Brokers that are reached with these settings.
    pub fn new(security: Security) -> OtherBrokers {
        OtherBrokers { security: Arc::new(security), idle: Idle::default() }
    }
}

impl Remote for OtherBrokers {
    fn call(
        &self,
        (host, port): (String, u16),
        request: Chunks,
    ) -> Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + '_>> {
        let address = address(&host, i32::from(port));
        let (security, idle) = (self.security.clone(), self.idle.clone());
        Box::pin(async move {
            let asked = tokio::task::spawn_blocking(move || ask(&address, &security, &idle, &request));
            asked.await.map_err(io::Error::other)?
        })
    }

    fn call_blocking(&self, (host, port): (String, u16), request: &Chunks) -> io::Result<Bytes> {
        ask(&address(&host, i32::from(port)), &self.security, &self.idle, request)
    }
}

/// Sends a request over a connection that is open, or over a new one. The other broker may have closed the open ones.
fn ask(address: &str, security: &Security, idle: &Idle, request: &Chunks) -> io::Result<Bytes> {
    let taken = || idle.lock().unwrap_or_else(PoisonError::into_inner).get_mut(address).and_then(Vec::pop);
    let (answer, peer) = loop {
        let open = taken();
        let was_open = open.is_some();
        let peer = match open {
            Some(peer) => Ok(peer),
            None => Peer::connect_within(address, security, PATIENCE),
        };
        let asked = peer.and_then(|mut peer| Ok((peer.exchange(request)?, peer)));
        match asked {
            Ok(asked) => break asked,
            // The other broker has closed it since. One that does not answer does not answer on another connection either.
            Err(ClientError::Lost { .. }) if was_open => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    };
    let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = idle.entry(address.to_owned()).or_default();
    if kept.len() < IDLE_MAX {
        kept.push(peer);
    }
    Ok(answer)
}
