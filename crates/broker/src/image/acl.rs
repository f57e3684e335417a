//! What one ACL says (KIP-11, KIP-290), and which ACLs a filter means.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::caller::Principal;

/// The name of the one resource of type cluster.
pub const CLUSTER_NAME: &str = "kafka-cluster";
/// In place of a resource's name or a host: any.
pub const WILDCARD: &str = "*";
/// The principal that stands for all.
pub const EVERYBODY: &str = "User:*";
/// In a filter: any. 0 is a value that the sender knew and we do not.
const ANY: i8 = 1;

/// Gives an enum the codes that requests carry, and the names that Kafka's log and tools show.
macro_rules! coded {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "the names are Kafka's")]
        pub enum $name {
            $($variant = $code),+
        }

        impl $name {
            /// The one of this code.
            pub fn of(code: i8) -> Option<$name> {
                match code {
                    $($code => Some($name::$variant),)+
                    _ => None,
                }
            }

            /// Its code.
            pub const fn code(self) -> i8 {
                self as i8
            }
        }
    };
}

coded! {
    /// What an ACL protects.
    ResourceType { Topic = 2, Group = 3, Cluster = 4, TransactionalId = 5, DelegationToken = 6, User = 7 }
}

coded! {
    /// How an ACL names what it protects.
    PatternType { Literal = 3, Prefixed = 4 }
}

/// A filter's pattern: whatever would apply to a resource of that name (KIP-290).
const MATCH: i8 = 2;

coded! {
    /// What may be done.
    Operation {
        All = 2, Read = 3, Write = 4, Create = 5, Delete = 6, Alter = 7, Describe = 8, ClusterAction = 9,
        DescribeConfigs = 10, AlterConfigs = 11, IdempotentWrite = 12, CreateTokens = 13, DescribeTokens = 14,
        TwoPhaseCommit = 15,
    }
}

coded! {
    /// Whether it may.
    Permission { Deny = 2, Allow = 3 }
}

impl ResourceType {
    /// What can be done to such a resource.
    pub const fn operations(self) -> &'static [Operation] {
        use Operation::*;
        match self {
            ResourceType::Topic => {
                &[Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs]
            }
            ResourceType::Group => &[Read, Delete, Describe, DescribeConfigs, AlterConfigs],
            ResourceType::Cluster => {
                &[Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite]
            }
            ResourceType::TransactionalId => &[Write, Describe, TwoPhaseCommit],
            ResourceType::DelegationToken => &[Describe],
            ResourceType::User => &[CreateTokens, DescribeTokens],
        }
    }
}

/// One ACL. The order is that of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Acl {
    /// The type of what is protected.
    pub resource: ResourceType,
    /// Its name, or the beginning of its name.
    pub name: String,
    /// Which of the two.
    pub pattern: PatternType,
    /// For whom: `User:name`, or `User:*`.
    pub principal: String,
    /// From where: an address, or `*`.
    pub host: String,
    /// What.
    pub operation: Operation,
    /// Whether that is allowed or denied.
    pub permission: Permission,
}

impl Acl {
    /// Whether the ACL speaks of `operation`. To allow one operation may allow another: whoever may read a topic may
    /// see it. To deny one denies no other.
    pub fn covers(&self, operation: Operation) -> bool {
        use Operation::*;
        if self.operation == All || self.operation == operation {
            return true;
        }
        self.permission == Permission::Allow
            && match operation {
                Describe => matches!(self.operation, Read | Write | Delete | Alter),
                DescribeConfigs => self.operation == AlterConfigs,
                _ => false,
            }
    }

    /// Whether the ACL speaks of this principal at this address.
    pub fn is_about(&self, principal: &Principal, host: IpAddr) -> bool {
        let named = self.principal.split_once(':');
        let whom = self.principal == EVERYBODY
            || named.is_some_and(|(kind, name)| *principal.kind == *kind && *principal.name == *name);
        // An IPv6 address can be written in several ways.
        whom && (self.host == WILDCARD || self.host.parse() == Ok(host))
    }
}

/// Which ACLs are meant; codes as requests carry them, `None` for any.
#[derive(Clone, Debug)]
pub struct AclFilter {
    /// Of this type of resource.
    pub resource: i8,
    /// Of this name.
    pub name: Option<String>,
    /// Named in this way.
    pub pattern: i8,
    /// For this principal, as written.
    pub principal: Option<String>,
    /// From this host, as written.
    pub host: Option<String>,
    /// For this operation.
    pub operation: i8,
    /// That allow or deny.
    pub permission: i8,
}

impl AclFilter {
    /// What is wrong with it, if anything, in Kafka's words.
    pub fn problem(&self) -> Option<&'static str> {
        let resource = self.resource == ANY || ResourceType::of(self.resource).is_some();
        let pattern = self.pattern == ANY || self.pattern == MATCH || PatternType::of(self.pattern).is_some();
        let operation = self.operation == ANY || Operation::of(self.operation).is_some();
        let permission = self.permission == ANY || Permission::of(self.permission).is_some();
        if !resource || !pattern {
            return Some("Unknown patternFilter.");
        }
        (!operation || !permission).then_some("Unknown entryFilter.")
    }

    /// Whether it means `acl`.
    pub fn matches(&self, acl: &Acl) -> bool {
        let same = |asked: i8, code: i8| asked == ANY || asked == code;
        let text = |asked: &Option<String>, own: &str| asked.as_ref().is_none_or(|asked| asked == own);
        same(self.resource, acl.resource.code())
            && self.names(acl)
            && text(&self.principal, &acl.principal)
            && text(&self.host, &acl.host)
            && same(self.operation, acl.operation.code())
            && same(self.permission, acl.permission.code())
    }

    fn names(&self, acl: &Acl) -> bool {
        let pattern_fits = self.pattern == ANY || self.pattern == MATCH || self.pattern == acl.pattern.code();
        let Some(name) = &self.name else { return pattern_fits };
        if self.pattern == MATCH {
            return match acl.pattern {
                PatternType::Literal => *name == acl.name || acl.name == WILDCARD,
                PatternType::Prefixed => name.starts_with(&acl.name),
            };
        }
        pattern_fits && *name == acl.name
    }
}
