//! The audit log: what was denied, and what administrators changed. Lines of the target `audit`, at level info.
//!
//! A client that is denied asks again and again: the same denial is written at once, and then not before
//! [`REPEAT_INTERVAL`] is over, with the number of times. Names are written with escapes: they are the client's.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Decision;
use super::acl::{Operation, ResourceType};
use crate::caller::{Caller, Origin, Principal};

/// The same denial is written once in so long.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Denials that are remembered to tell repetitions; past this, all are written.
const REMEMBERED_MAX: usize = 10_000;

/// What makes two denials the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Denial {
    principal: Principal,
    host: std::net::IpAddr,
    operation: Operation,
    resource: ResourceType,
    name: String,
}

/// The last time that a denial was written, and how often it came since.
#[derive(Debug)]
struct Told {
    at: Instant,
    unsaid: u64,
}

/// The record of denials.
#[derive(Debug, Default)]
pub struct Audit {
    told: Mutex<HashMap<Denial, Told>>,
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
        let (principal, host) = (caller.origin.principal.clone(), caller.origin.host());
        let denial = Denial { principal, host, operation, resource, name: name.to_owned() };
        let mut told = self.told.lock();
        let now = Instant::now();
        let mut times = 1;
        if let Some(told) = told.get_mut(&denial) {
            if now.duration_since(told.at) < REPEAT_INTERVAL {
                told.unsaid += 1;
                return;
            }
            times += told.unsaid;
        }
        write(&denial, times, Some((caller, why)));
        if told.len() < REMEMBERED_MAX || told.contains_key(&denial) {
            told.insert(denial, Told { at: now, unsaid: 0 });
        }
    }

    /// Writes how often what was denied long ago was repeated, and forgets it.
    pub fn expire(&self) {
        let now = Instant::now();
        self.told.lock().retain(|denial, told| {
            let keep = now.duration_since(told.at) < REPEAT_INTERVAL;
            if !keep && told.unsaid > 0 {
                write(denial, told.unsaid, None);
            }
            keep
        });
    }
}

fn write(denial: &Denial, times: u64, more: Option<(&Caller, &Decision)>) {
    let Denial { principal, host, operation, resource, name } = denial;
    let principal = format!("{principal}");
    let (listener, client_id, rule) = match more {
        Some((caller, why)) => {
            (caller.origin.listener.name.as_str(), caller.client_id.as_str(), format!("{why:?}"))
        }
        None => ("", "", String::new()),
    };
    tracing::info!(
        target: "audit", ?principal, %host, listener, ?client_id, ?operation, ?resource, ?name, times, rule, "denied"
    );
}

/// Writes that an administrator changed something: `what` was done to `which`.
pub fn changed(origin: &Arc<Origin>, what: &'static str, which: &str, details: &str) {
    let principal = origin.principal.to_string();
    let (host, listener) = (origin.host(), &origin.listener.name);
    tracing::info!(target: "audit", ?principal, %host, listener, ?which, details, "{what}");
}
