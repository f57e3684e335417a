//! The coordinators and leaders of other brokers, as the coordinators of this one ask them.
//!
//! The leader of a partition asks the transaction coordinator whether a transaction contains the partition. A transaction
//! coordinator sends markers to the leaders of a transaction's partitions. A group coordinator has to learn how
//! transactions end. Other brokers are other processes, except in tests: there, a process has several.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::RwLock;
use wire::{ApiKey, Bytes, Chunks, Message, Reader, Text, frame};

use super::{Coordinator, TransactionCoordinator};
use crate::partition::Partition;
use crate::placement::Placement;
use crate::topics::{OFFSETS_TOPIC, Removals, TRANSACTIONS_TOPIC};

/// The client id of requests between brokers that clients may send as well.
pub const BROKER_CLIENT_ID: &str = "mainstem-broker";

/// APIs of brokers alone begin at this key.
const FIRST_INTERNAL: i16 = 10_000;

/// Sends requests to other brokers.
pub trait Remote: fmt::Debug + Send + Sync {
    /// Sends a request to the broker at `address` (host, port), and returns the answer without its size. Both have the
    /// correlation id 0. A request may arrive twice.
    fn call(
        &self,
        address: (String, u16),
        request: Chunks,
    ) -> Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + '_>>;

    /// As [`Remote::call`]. Blocks.
    fn call_blocking(&self, address: (String, u16), request: &Chunks) -> io::Result<Bytes>;
}

/// A request to a broker, of some version.
fn encode<Q: Message>(version: i16, request: &Q) -> io::Result<(ApiKey, Chunks)> {
    let api = Q::KEY.and_then(ApiKey::from_i16).ok_or(io::ErrorKind::Unsupported)?;
    let client = Text::from_static(BROKER_CLIENT_ID);
    // An API of brokers alone tells who asks. A request with a block is often small, and its name would be a hundredth of it.
    let client = (api.code() < FIRST_INTERNAL).then_some(&client);
    let request = frame::encode_request(api, version, 0, client, request);
    Ok((api, request.map_err(io::Error::other)?))
}

fn decode<A: Message>(api: ApiKey, version: i16, answer: Bytes) -> io::Result<A> {
    let mut reader = Reader::new(answer);
    frame::decode_response_header(&mut reader, api, version).map_err(io::Error::other)?;
    A::decode(&mut reader, version).map_err(io::Error::other)
}

#[derive(Debug, Default)]
struct Peer {
    groups: Weak<Coordinator>,
    transactions: Weak<TransactionCoordinator>,
}

/// How brokers in other processes are reached.
#[derive(Debug)]
struct Others {
    placement: Arc<Placement>,
    /// The listener that other brokers use.
    listener: String,
    remote: Arc<dyn Remote>,
}

/// The other brokers.
#[derive(Debug, Default)]
pub struct Peers {
    here: RwLock<BTreeMap<i32, Peer>>,
    others: OnceLock<Others>,
}

impl Peers {
    /// Adds the coordinators of a broker in this process.
    pub fn add(&self, node: i32, groups: &Arc<Coordinator>, transactions: &Arc<TransactionCoordinator>) {
        let peer = Peer { groups: Arc::downgrade(groups), transactions: Arc::downgrade(transactions) };
        self.here.write().insert(node, peer);
    }

    /// Says how brokers in other processes are reached: at their listeners of this name. Only the first call counts.
    pub fn reach_others(&self, placement: &Arc<Placement>, listener: String, remote: Arc<dyn Remote>) {
        let placement = placement.clone();
        let _ = self.others.set(Others { placement, listener, remote });
    }

    /// Makes every coordinator load or unload a partition of an internal topic, depending on the leader of the
    /// partition.
    pub fn follow(&self, partition: &Arc<Partition>) {
        let topic = partition.topic.as_str();
        for Peer { groups, transactions } in self.here.read().values() {
            match (topic, groups.upgrade(), transactions.upgrade()) {
                (OFFSETS_TOPIC, Some(groups), _) => groups.follow(partition),
                (TRANSACTIONS_TOPIC, _, Some(transactions)) => transactions.follow(partition),
                _ => {}
            }
        }
    }

    /// The group coordinator of a broker in this process.
    pub fn groups(&self, node: i32) -> Option<Arc<Coordinator>> {
        self.here.read().get(&node)?.groups.upgrade()
    }

    /// The transaction coordinator of a broker in this process.
    pub fn transactions(&self, node: i32) -> Option<Arc<TransactionCoordinator>> {
        self.here.read().get(&node)?.transactions.upgrade()
    }

    /// The answer of a broker in another process. `None` if it does not answer.
    pub async fn ask<Q: Message, A: Message>(&self, node: i32, version: i16, request: &Q) -> Option<A> {
        let Others { placement, listener, remote } = self.others.get()?;
        let address = placement.address(node, listener)?;
        let asked = async {
            let (api, request) = encode(version, request)?;
            decode(api, version, remote.call(address, request).await?)
        };
        let answer = asked.await;
        answer
            .inspect_err(|error| tracing::debug!(broker = node, %error, "another broker did not answer"))
            .ok()
    }
}

impl Peers {
    /// As [`Peers::ask`]. Blocks.
    pub fn ask_blocking<Q: Message, A: Message>(
        &self,
        node: i32,
        version: i16,
        request: &Q,
    ) -> io::Result<A> {
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "it is not alive");
        let Others { placement, listener, remote } = self.others.get().ok_or_else(unknown)?;
        let address = placement.address(node, listener).ok_or_else(unknown)?;
        let (api, request) = encode(version, request)?;
        decode(api, version, remote.call_blocking(address, &request)?)
    }
}

impl Removals for Peers {
    fn moved(&self, partition: &Arc<Partition>) {
        self.follow(partition);
    }
}
