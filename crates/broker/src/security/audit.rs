//! The audit log: what was denied, and what administrators changed. Lines of the target `audit`, at level info.
//!
//! A client that is denied asks again and again, and may ask about a million names: the same denial is written once in
//! [`INTERVAL`], and of one principal no more than [`LINES_MAX`]; what was left out is counted, and the count is written.
//! Names are written with escapes: they are the client's. Changes are always written, each.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Decision;
use super::acl::{Operation, ResourceType};
use crate::caller::{Caller, Origin, Principal};

/// The same denial is written once in so long.
const INTERVAL: Duration = Duration::from_secs(10);
/// Denials of one principal that are written in that time.
const LINES_MAX: u64 = 100;
/// Principals that are counted apart; there are as many as have logged in, and the rest shares one count.
const PRINCIPALS_MAX: usize = 1000;
/// Bytes of a name that are written: names of topics have 249 at most.
const NAME_BYTES_MAX: usize = 256;

/// What makes two denials the same, besides who was denied.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Denial {
    host: IpAddr,
    operation: Operation,
    resource: ResourceType,
    name: String,
}

/// What one principal was denied since the interval began.
#[derive(Debug, Default)]
struct Denied {
    /// Those that were written, and how often each came again.
    written: HashMap<Denial, u64>,
    /// Those that were not, being too many.
    unwritten: u64,
}

#[derive(Debug, Default)]
struct State {
    begun: Option<Instant>,
    principals: HashMap<Option<Principal>, Denied>,
}

/// The record of denials.
#[derive(Debug, Default)]
pub struct Audit {
    state: Mutex<State>,
}

impl Audit {
    /// Writes that something was denied.
    pub fn denied(
        &self,
        caller: &Caller,
        operation: Operation,
        resource: ResourceType,
        name: &str,
        why: &Decision,
    ) {
        let origin = &caller.origin;
        let name = name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
        let denial = Denial { host: origin.host(), operation, resource, name };
        let mut state = self.state.lock();
        let before = state.over();
        state.begun.get_or_insert_with(Instant::now);
        let known = state.principals.len() < PRINCIPALS_MAX
            || state.principals.contains_key(&Some(origin.principal.clone()));
        let denied = state.principals.entry(known.then(|| origin.principal.clone())).or_default();
        let is_full = denied.written.len() as u64 >= LINES_MAX;
        let is_new = match denied.written.get_mut(&denial) {
            Some(again) => {
                *again += 1;
                false
            }
            None if is_full => {
                denied.unwritten += 1;
                false
            }
            None => true,
        };
        let line = is_new.then(|| {
            let Denial { host, operation, resource, name } = &denial;
            (*host, *operation, *resource, name.clone())
        });
        if is_new {
            denied.written.insert(denial, 0);
        }
        drop(state);
        before.into_iter().for_each(summarise);
        if let Some((host, operation, resource, name)) = line {
            let (principal, listener) = (origin.principal.to_string(), &origin.listener.name);
            let client_id = caller.client_id.as_str();
            let client_id = &client_id[..client_id.floor_char_boundary(NAME_BYTES_MAX)];
            tracing::info!(
                target: "audit", ?principal, %host, listener, ?client_id, ?operation, ?resource, ?name, rule = %why,
                "denied"
            );
        }
    }

    /// Of one principal: the denials that were written and how often they came again, and those that were not.
    #[cfg(test)]
    pub fn counts(&self, principal: &Principal) -> (usize, u64, u64) {
        let state = self.state.lock();
        let denied = &state.principals[&Some(principal.clone())];
        (denied.written.len(), denied.written.values().sum(), denied.unwritten)
    }

    /// Writes what was left out of the last interval, if that is over.
    pub fn expire(&self) {
        let before = self.state.lock().over();
        before.into_iter().for_each(summarise);
    }
}

impl State {
    /// What there is of the interval, if it is over; a new one begins with the next denial.
    fn over(&mut self) -> Vec<(Option<Principal>, Denied)> {
        if self.begun.is_none_or(|begun| begun.elapsed() < INTERVAL) {
            return Vec::new();
        }
        self.begun = None;
        self.principals.drain().collect()
    }
}

fn summarise((principal, denied): (Option<Principal>, Denied)) {
    let principal = principal.map_or("others".to_owned(), |principal| principal.to_string());
    for (denial, again) in denied.written.iter().filter(|(_, again)| **again > 0) {
        let Denial { host, operation, resource, name } = denial;
        tracing::info!(target: "audit", ?principal, %host, ?operation, ?resource, ?name, times = again, "denied again");
    }
    if denied.unwritten > 0 {
        let times = denied.unwritten;
        tracing::info!(target: "audit", ?principal, times, "more was denied than is written");
    }
}

/// Writes that an administrator changed something: `what` was done to `which`.
pub fn changed(origin: &Origin, what: &'static str, which: &str, details: &str) {
    let principal = origin.principal.to_string();
    let (host, listener) = (origin.host(), &origin.listener.name);
    tracing::info!(target: "audit", ?principal, %host, listener, ?which, details, "{what}");
}
