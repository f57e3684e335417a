//! Authorization by ACLs and super users, with the decisions of Kafka's StandardAuthorizer, and the audit log of
//! denials and of changes by administrators.
//!
//! Without an authorizer (`authorizer.class.name` empty), every operation is allowed and no rule is evaluated. The
//! metadata stores the ACLs.

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

/// The authorizer and its ACLs.
#[derive(Debug)]
pub struct Authorizer {
    enabled: bool,
    /// The principals in `super.users`.
    super_users: HashSet<Principal>,
    allow_if_no_acl: bool,
    metadata: Arc<Metadata>,
    /// The ACLs of the image, indexed for decisions.
    rules: RwLock<Rules>,
    /// Grows with every change of the ACLs.
    version: AtomicU64,
    audit: Audit,
}

impl Authorizer {
    /// Creates the authorizer with the ACLs of the metadata.
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

    /// Whether an authorizer is set, so that operations may be denied.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// A number that grows with every change of the ACLs.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether the caller may do the operation. A denial is written to the audit log, because the caller named the
    /// resource.
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

    /// As [`Authorizer::allows`], for a resource that the caller did not name. A hidden resource is left out without an
    /// entry in the audit log.
    pub fn shows(&self, caller: &Caller, operation: Operation, resource: ResourceType, name: &str) -> bool {
        !self.enabled || self.decide(caller, operation, resource, name).0
    }

    /// Returns Kafka's error unless the caller may do the operation on the topic.
    pub fn topic(&self, caller: &Caller, operation: Operation, name: &str) -> Result<(), ErrorCode> {
        self.check(caller, operation, ResourceType::Topic, name)
    }

    /// Returns Kafka's error unless the caller may do the operation on the group.
    pub fn group(&self, caller: &Caller, operation: Operation, name: &str) -> Result<(), ErrorCode> {
        self.check(caller, operation, ResourceType::Group, name)
    }

    /// Returns Kafka's error unless the caller may do the operation on the transactional id.
    pub fn transactional_id(
        &self,
        caller: &Caller,
        operation: Operation,
        name: &str,
    ) -> Result<(), ErrorCode> {
        self.check(caller, operation, ResourceType::TransactionalId, name)
    }

    /// Returns Kafka's error unless the caller may do the operation on the cluster.
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

    /// Whether the caller may do the operation on the cluster. Writes no entry in the audit log, because another right
    /// may be enough.
    pub fn shows_cluster(&self, caller: &Caller, operation: Operation) -> bool {
        self.shows(caller, operation, ResourceType::Cluster, CLUSTER_NAME)
    }

    /// Whether the caller may do the operation on any resource of the type (KIP-679).
    pub fn allows_somewhere(&self, caller: &Caller, operation: Operation, resource: ResourceType) -> bool {
        // As in Kafka, a name that no resource has finds callers that may do the operation on every resource.
        if self.shows(caller, operation, resource, "hardcode") {
            return true;
        }
        let (principal, host) = (&caller.origin.principal, caller.origin.host());
        self.rules.read().allows_somewhere(principal, host, operation, resource)
    }

    /// The operations that the caller may do on a resource: a bit for each operation's code (KIP-430). Without an
    /// authorizer, all bits that exist for the type.
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

    /// The ACLs that `filter` selects, in the order of a listing.
    pub fn list(&self, filter: &AclFilter) -> Vec<Acl> {
        let image = self.metadata.image();
        distinct(&image).into_iter().filter(|acl| filter.matches(acl)).cloned().collect()
    }

    /// Adds ACLs. Existing ones are skipped. Durable on return. Blocks.
    pub fn add(&self, new: &[Acl]) -> Result<(), MetaError> {
        self.metadata.update_in_parts(|image| {
            let mut there = distinct(image);
            let mut added: Vec<&Acl> = new.iter().filter(|acl| there.insert(acl)).collect();
            // They may be made in parts: nobody may do what one of them denies.
            added.sort_by_key(|acl| acl.permission != Permission::Deny);
            let added = added.into_iter();
            Ok(Update::new(added.map(|acl| acl.put(&uuid::Uuid::new_v4().to_string())).collect(), ()))
        })
    }

    /// Removes the ACLs that the filters select. Returns them by filter. Durable on return. Blocks.
    pub fn remove(&self, filters: &[AclFilter]) -> Result<Vec<Vec<Acl>>, MetaError> {
        self.metadata.update_in_parts(|image| {
            let there = distinct(image);
            // As in Kafka, an ACL that several filters select is in the result of each.
            let meant = |filter: &AclFilter| {
                there.iter().filter(|acl| filter.matches(acl)).map(|acl| Acl::clone(acl)).collect()
            };
            let removed = filters.iter().map(meant).collect();
            let gone = image.acls.iter().filter(|(_, acl)| filters.iter().any(|filter| filter.matches(acl)));
            let mut gone: Vec<_> = gone.collect();
            gone.sort_by_key(|(_, acl)| acl.permission == Permission::Deny);
            let gone = gone.into_iter();
            Ok(Update::new(gone.map(|(name, _)| Acl::delete(name)).collect(), removed))
        })
    }

    /// The audit log.
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

/// The ACLs without duplicates, in the order of a listing. Two brokers may have added the same ACL at once.
fn distinct(image: &Image) -> BTreeSet<&Acl> {
    image.acls.iter().map(|(_, acl)| &**acl).collect()
}

/// The reason why an operation was allowed or denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The caller is a super user.
    SuperUser,
    /// The ACLs decided.
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
