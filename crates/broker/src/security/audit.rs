//! The audit log: denied operations, and changes by administrators. Lines of the target `audit`, at level info.
//!
//! A denied client may retry for ever, and may use a million names. The same denial is therefore written once per
//! [`INTERVAL`], with at most [`LINES_MAX`] denials per principal. The omitted denials are counted, and the count is
//! written. Names are written with escapes, because clients choose them. Every change is written.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Decision;
use super::acl::{Operation, ResourceType};
use crate::caller::{Caller, Origin, Principal};

/// The same denial is written at most once in this time.
const INTERVAL: Duration = Duration::from_secs(10);
/// Bound of the denials written per principal in that time.
const LINES_MAX: u64 = 100;
/// Bound of the principals that are counted separately. The rest shares one count.
const PRINCIPALS_MAX: usize = 1000;
/// Bound in bytes of a name as written. Topic names have at most 249.
const NAME_BYTES_MAX: usize = 256;

/// The properties, besides the principal, that make two denials the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Denial {
    host: IpAddr,
    operation: Operation,
    resource: ResourceType,
    name: String,
}

/// The denials of one principal in the current interval.
#[derive(Debug, Default)]
struct Denied {
    /// The denials that were written, each with its number of repetitions.
    written: HashMap<Denial, u64>,
    /// The number of denials that exceeded the bound and were not written.
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
    /// Writes that an operation was denied.
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

    /// The counts of one principal: denials that were written, their repetitions, and denials that were not written.
    #[cfg(test)]
    pub fn counts(&self, principal: &Principal) -> (usize, u64, u64) {
        let state = self.state.lock();
        let denied = &state.principals[&Some(principal.clone())];
        (denied.written.len(), denied.written.values().sum(), denied.unwritten)
    }

    /// Writes the counts of omitted denials of the last interval, if it is over.
    pub fn expire(&self) {
        let before = self.state.lock().over();
        before.into_iter().for_each(summarise);
    }
}

impl State {
    /// Takes the counts of the interval, if it is over. The next denial begins a new interval.
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

/// Writes that an administrator made a change: `what` was done to `which`.
pub fn changed(origin: &Origin, what: &'static str, which: &str, details: &str) {
    let principal = origin.principal.to_string();
    let (host, listener) = (origin.host(), &origin.listener.name);
    tracing::info!(target: "audit", ?principal, %host, listener, ?which, details, "{what}");
}
