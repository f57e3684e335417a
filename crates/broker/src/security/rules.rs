//! All ACLs, indexed so that the ACLs of a resource are found without a scan of the others.
//!
//! A decision costs one look-up for the name, one for the wildcard, and one for each length of a prefix.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::caller::Principal;

use super::acl::{Acl, Operation, PatternType, Permission, ResourceType, WILDCARD};

/// The reason for a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This ACL decided.
    Acl(Arc<Acl>),
    /// No ACL applies to the resource.
    NoAcl,
    /// ACLs apply to the resource, but none of them allows the operation.
    NotAllowed,
}

#[derive(Debug, Default)]
struct OfType {
    literal: HashMap<String, Vec<Arc<Acl>>>,
    prefixed: HashMap<String, Vec<Arc<Acl>>>,
    /// Lengths in bytes.
    prefix_lengths: BTreeSet<usize>,
}

/// All ACLs.
#[derive(Debug, Default)]
pub struct Rules {
    types: HashMap<ResourceType, OfType>,
}

impl Rules {
    /// Builds the index.
    pub fn new<'a>(acls: impl Iterator<Item = &'a Acl>) -> Rules {
        let mut rules = Rules::default();
        for acl in acls {
            let of_type = rules.types.entry(acl.resource).or_default();
            let map = match acl.pattern {
                PatternType::Literal => &mut of_type.literal,
                PatternType::Prefixed => {
                    of_type.prefix_lengths.insert(acl.name.len());
                    &mut of_type.prefixed
                }
            };
            map.entry(acl.name.clone()).or_default().push(Arc::new(acl.clone()));
        }
        rules
    }

    /// Decides. ACLs that deny come before ACLs that allow.
    pub fn decide(
        &self,
        principal: &Principal,
        host: IpAddr,
        operation: Operation,
        resource: ResourceType,
        name: &str,
    ) -> Verdict {
        let mut allowed = None;
        let mut any = false;
        for acl in self.on(resource, name) {
            any = true;
            if !acl.is_about(principal, host) || !acl.covers(operation) {
                continue;
            }
            match acl.permission {
                Permission::Deny => return Verdict::Acl(acl.clone()),
                Permission::Allow => allowed = allowed.or(Some(acl)),
            }
        }
        match allowed {
            Some(acl) => Verdict::Acl(acl.clone()),
            None if any => Verdict::NotAllowed,
            None => Verdict::NoAcl,
        }
    }

    /// The ACLs that apply to a resource, for any principal.
    fn on<'a>(&'a self, resource: ResourceType, name: &'a str) -> impl Iterator<Item = &'a Arc<Acl>> {
        let of_type = self.types.get(&resource).into_iter();
        of_type.flat_map(move |of_type| {
            let literal = of_type.literal.get(name);
            let wildcard = of_type.literal.get(WILDCARD).filter(|_| name != WILDCARD);
            let lengths = of_type.prefix_lengths.range(..=name.len());
            let prefixed = lengths.filter_map(|length| of_type.prefixed.get(name.get(..*length)?));
            literal.into_iter().chain(wildcard).chain(prefixed).flatten()
        })
    }

    /// Whether ACLs allow the operation on any resource of this type (KIP-679).
    pub fn allows_somewhere(
        &self,
        principal: &Principal,
        host: IpAddr,
        operation: Operation,
        resource: ResourceType,
    ) -> bool {
        let Some(of_type) = self.types.get(&resource) else { return false };
        // As in Kafka, an ACL for another operation that implies this one does not count.
        let says = |acls: Option<&Vec<Arc<Acl>>>, permission: Permission| {
            acls.is_some_and(|acls| {
                acls.iter().any(|acl| {
                    acl.permission == permission
                        && (acl.operation == operation || acl.operation == Operation::All)
                        && acl.is_about(principal, host)
                })
            })
        };
        if says(of_type.literal.get(WILDCARD), Permission::Deny) {
            return false;
        }
        if says(of_type.literal.get(WILDCARD), Permission::Allow) {
            return true;
        }
        let denied_by_prefix = |name: &str| {
            let mut lengths = of_type.prefix_lengths.range(..=name.len());
            lengths.any(|length| {
                says(name.get(..*length).and_then(|prefix| of_type.prefixed.get(prefix)), Permission::Deny)
            })
        };
        of_type.literal.iter().any(|(name, acls)| {
            says(Some(acls), Permission::Allow)
                && !says(Some(acls), Permission::Deny)
                && !denied_by_prefix(name)
        }) || of_type
            .prefixed
            .iter()
            .any(|(name, acls)| says(Some(acls), Permission::Allow) && !denied_by_prefix(name))
    }
}
