//! Who may do what: ACLs and super users, as Kafka's StandardAuthorizer decides, and the record of what was denied and
//! of what administrators changed.
//!
//! Without an authorizer (`authorizer.class.name` empty) everybody may do everything, and none of this is asked.
//! ACLs are kept in the metadata.

pub mod audit;
mod rules;

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meta::MetaError;
use parking_lot::RwLock;
use wire::ErrorCode;

use crate::caller::{Caller, Principal};
use crate::config::{AuthorizerClass, Config};
pub(crate) use crate::image::acl;
use crate::image::{Delta, Image, Metadata, Observer, Record, Update};
use acl::{Acl, AclFilter, CLUSTER_NAME, Permission};
pub use acl::{Operation, ResourceType};
use audit::Audit;
use rules::{Rules, Verdict};

/// The decisions, and the ACLs behind them.
#[derive(Debug)]
pub struct Authorizer {
    enabled: bool,
    /// As `super.users` names them.
    super_users: HashSet<Principal>,
    allow_if_no_acl: bool,
    metadata: Arc<Metadata>,
    /// The ACLs of the image, arranged for decisions.
    rules: RwLock<Rules>,
    /// Grows with every change of the ACLs.
    version: AtomicU64,
    audit: Audit,
}

impl Authorizer {
    /// With the ACLs of the metadata.
    pub fn new(metadata: Arc<Metadata>, config: &Config) -> Arc<Authorizer> {
        let rules = RwLock::new(Rules::new(distinct(&metadata.image()).into_iter()));
        let authorizer = Arc::new(Authorizer {
            enabled: config.authorizer == AuthorizerClass::Standard,
            super_users: config.super_users.principals().collect(),
            allow_if_no_acl: config.allow_everyone_if_no_acl,
            metadata,
            rules,
            version: AtomicU64::new(1),
            audit: Audit::default(),
        });
        let observer = Arc::downgrade(&authorizer);
        authorizer.metadata.observe(observer);
        authorizer
    }

    /// Whether anybody can be refused anything.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Grows with every change of what is allowed.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether the caller may; where not, the audit log says so: it asked for that resource.
    pub fn allows(&self, caller: &Caller, operation: Operation, resource: ResourceType, name: &str) -> bool {
        if !self.enabled {
            return true;
        }
        let (allowed, verdict) = self.decide(caller, operation, resource, name);
        if !allowed {
            self.audit.denied(caller, operation, resource, name, &verdict);
        }
        allowed
    }

    /// The same, where nothing is asked for by name: what may not be seen is left out without a word.
    pub fn shows(&self, caller: &Caller, operation: Operation, resource: ResourceType, name: &str) -> bool {
        !self.enabled || self.decide(caller, operation, resource, name).0
    }

    /// Kafka's error unless the caller may do this to the topic.
    pub fn topic(&self, caller: &Caller, operation: Operation, name: &str) -> Result<(), ErrorCode> {
        self.check(caller, operation, ResourceType::Topic, name)
    }

    /// Kafka's error unless the caller may do this to the group.
    pub fn group(&self, caller: &Caller, operation: Operation, name: &str) -> Result<(), ErrorCode> {
        self.check(caller, operation, ResourceType::Group, name)
    }

    /// Kafka's error unless the caller may do this to the transactional id.
    pub fn transactional_id(
        &self,
        caller: &Caller,
        operation: Operation,
        name: &str,
    ) -> Result<(), ErrorCode> {
        self.check(caller, operation, ResourceType::TransactionalId, name)
    }

    /// Kafka's error unless the caller may do this to the cluster.
    pub fn cluster(&self, caller: &Caller, operation: Operation) -> Result<(), ErrorCode> {
        self.check(caller, operation, ResourceType::Cluster, CLUSTER_NAME)
    }

    fn check(
        &self,
        caller: &Caller,
        operation: Operation,
        resource: ResourceType,
        name: &str,
    ) -> Result<(), ErrorCode> {
        if self.allows(caller, operation, resource, name) {
            return Ok(());
        }
        Err(match resource {
            ResourceType::Topic => ErrorCode::TopicAuthorizationFailed,
            ResourceType::Group => ErrorCode::GroupAuthorizationFailed,
            ResourceType::TransactionalId => ErrorCode::TransactionalIdAuthorizationFailed,
            ResourceType::DelegationToken => ErrorCode::DelegationTokenAuthorizationFailed,
            ResourceType::Cluster | ResourceType::User => ErrorCode::ClusterAuthorizationFailed,
        })
    }

    /// Whether the caller may do this to the cluster, without a word in the audit log: another right may do as well.
    pub fn shows_cluster(&self, caller: &Caller, operation: Operation) -> bool {
        self.shows(caller, operation, ResourceType::Cluster, CLUSTER_NAME)
    }

    /// Whether the caller may do it to any resource of the type (KIP-679).
    pub fn allows_somewhere(&self, caller: &Caller, operation: Operation, resource: ResourceType) -> bool {
        // As in Kafka, a name that nobody has shows who may do everything.
        if self.shows(caller, operation, resource, "hardcode") {
            return true;
        }
        let (principal, host) = (&caller.origin.principal, caller.origin.host());
        self.rules.read().allows_somewhere(principal, host, operation, resource)
    }

    /// What the caller may do to a resource: a bit for each operation's code (KIP-430); all bits that there are without
    /// an authorizer.
    pub fn operations(&self, caller: &Caller, resource: ResourceType, name: &str) -> i32 {
        let allowed = resource.operations().iter().filter(|of| self.shows(caller, **of, resource, name));
        allowed.fold(0, |bits, operation| bits | 1 << operation.code())
    }

    fn decide(
        &self,
        caller: &Caller,
        operation: Operation,
        resource: ResourceType,
        name: &str,
    ) -> (bool, Decision) {
        let principal = &caller.origin.principal;
        if self.super_users.contains(principal) {
            return (true, Decision::SuperUser);
        }
        let host = caller.origin.host();
        let verdict = self.rules.read().decide(principal, host, operation, resource, name);
        let allowed = match &verdict {
            Verdict::Acl(acl) => acl.permission == Permission::Allow,
            Verdict::NoAcl => self.allow_if_no_acl,
            Verdict::NotAllowed => false,
        };
        (allowed, Decision::Verdict(verdict))
    }

    /// The ACLs that `filter` means, in the order of a listing.
    pub fn list(&self, filter: &AclFilter) -> Vec<Acl> {
        let image = self.metadata.image();
        distinct(&image).into_iter().filter(|acl| filter.matches(acl)).cloned().collect()
    }

    /// Adds ACLs; nothing happens for those that are there. Durable on return; blocks.
    pub fn add(&self, new: &[Acl]) -> Result<(), MetaError> {
        self.metadata.update(|image| {
            let mut there = distinct(image);
            let added = new.iter().filter(|acl| there.insert(acl));
            Ok(Update::new(added.map(|acl| acl.put(&uuid::Uuid::new_v4().to_string())).collect(), ()))
        })
    }

    /// Removes the ACLs that each filter means, and returns them by filter. Durable on return; blocks.
    pub fn remove(&self, filters: &[AclFilter]) -> Result<Vec<Vec<Acl>>, MetaError> {
        self.metadata.update(|image| {
            let there = distinct(image);
            // As in Kafka, one that several filters mean is in the answer to each.
            let meant = |filter: &AclFilter| {
                there.iter().filter(|acl| filter.matches(acl)).map(|acl| Acl::clone(acl)).collect()
            };
            let removed = filters.iter().map(meant).collect();
            let gone = image.acls.iter().filter(|(_, acl)| filters.iter().any(|filter| filter.matches(acl)));
            Ok(Update::new(gone.map(|(name, _)| Acl::delete(name)).collect(), removed))
        })
    }

    /// The record of denials.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }
}

impl Observer for Authorizer {
    fn changed(&self, image: &Arc<Image>, delta: &Delta) {
        if !delta.acls.is_empty() {
            *self.rules.write() = Rules::new(distinct(image).into_iter());
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

/// The ACLs, in the order of a listing. Two brokers may have added the same one at once.
fn distinct(image: &Image) -> BTreeSet<&Acl> {
    image.acls.iter().map(|(_, acl)| &**acl).collect()
}

/// Why something was allowed or denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The caller is a super user.
    SuperUser,
    /// What the ACLs say.
    Verdict(Verdict),
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::SuperUser => f.write_str("a super user"),
            Decision::Verdict(Verdict::Acl(acl)) => write!(f, "{acl:?}"),
            Decision::Verdict(Verdict::NoAcl) => f.write_str("no ACL"),
            Decision::Verdict(Verdict::NotAllowed) => f.write_str("no ACL that allows it"),
        }
    }
}

#[cfg(test)]
mod tests;
