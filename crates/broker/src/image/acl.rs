//! One ACL (KIP-11, KIP-290), and the filters that select ACLs.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::caller::Principal;

/// The name of the one resource of type cluster.
pub const CLUSTER_NAME: &str = "kafka-cluster";
/// Stands for any name of a resource, or any host.
pub const WILDCARD: &str = "*";
/// The principal that stands for all.
pub const EVERYBODY: &str = "User:*";
/// In a filter, stands for any value. 0 is a value that the sender knew and this server does not.
const ANY: i8 = 1;

/// Defines an enum with the codes in requests and the names in Kafka's log and tools.
macro_rules! coded {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "the names are Kafka's")]
        pub enum $name {
            $($variant = $code),+
        }

        impl $name {
            /// The value with this code.
            pub fn of(code: i8) -> Option<$name> {
                match code {
                    $($code => Some($name::$variant),)+
                    _ => None,
                }
            }

            /// The value's code.
            pub const fn code(self) -> i8 {
                self as i8
            }
        }
    };
}

coded! {
    /// The type of resource that an ACL protects.
    ResourceType { Topic = 2, Group = 3, Cluster = 4, TransactionalId = 5, DelegationToken = 6, User = 7 }
}

coded! {
    /// How an ACL names its resource.
    PatternType { Literal = 3, Prefixed = 4 }
}

/// The pattern type of a filter for all ACLs that apply to a resource of the given name (KIP-290).
const MATCH: i8 = 2;

coded! {
    /// An operation on a resource.
    Operation {
        All = 2, Read = 3, Write = 4, Create = 5, Delete = 6, Alter = 7, Describe = 8, ClusterAction = 9,
        DescribeConfigs = 10, AlterConfigs = 11, IdempotentWrite = 12, CreateTokens = 13, DescribeTokens = 14,
        TwoPhaseCommit = 15,
    }
}

coded! {
    /// Whether an ACL denies or allows.
    Permission { Deny = 2, Allow = 3 }
}

impl ResourceType {
    /// The operations that exist for this type of resource.
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

/// One ACL. The order of ACLs is the order in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Acl {
    /// The type of the protected resource.
    pub resource: ResourceType,
    /// The resource's name, or a prefix of it.
    pub name: String,
    /// Whether `name` is a full name or a prefix.
    pub pattern: PatternType,
    /// The principal: `User:name`, or `User:*` for all.
    pub principal: String,
    /// The client's address, or `*` for all.
    pub host: String,
    /// The operation.
    pub operation: Operation,
    /// Whether the operation is allowed or denied.
    pub permission: Permission,
}

impl Acl {
    /// Whether the ACL applies to `operation`. An ACL that allows one operation may allow another: a principal that may
    /// read a topic may also describe it. An ACL that denies an operation denies only that one.
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

    /// Whether the ACL applies to this principal at this address.
    pub fn is_about(&self, principal: &Principal, host: IpAddr) -> bool {
        let named = self.principal.split_once(':');
        let whom = self.principal == EVERYBODY
            || named.is_some_and(|(kind, name)| *principal.kind == *kind && *principal.name == *name);
        // An IPv6 address has several spellings, so the parsed addresses are compared.
        whom && (self.host == WILDCARD || self.host.parse() == Ok(host))
    }
}

/// Selects ACLs. Numbers are codes as in requests. `None` matches any value.
#[derive(Clone, Debug)]
pub struct AclFilter {
    /// The type of resource.
    pub resource: i8,
    /// The name of the resource.
    pub name: Option<String>,
    /// The type of the pattern.
    pub pattern: i8,
    /// The principal, as the ACL spells it.
    pub principal: Option<String>,
    /// The host, as the ACL spells it.
    pub host: Option<String>,
    /// The operation.
    pub operation: i8,
    /// The permission.
    pub permission: i8,
}

impl AclFilter {
    /// The problem with the filter, if any, in Kafka's words.
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

    /// Whether the filter selects `acl`.
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
