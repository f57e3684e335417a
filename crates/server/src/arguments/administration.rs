//! The arguments of the commands that change what a server allows, limits and holds: ACLs, quotas, transactions, brokers.

use clap::{Args, Subcommand, ValueEnum};

use super::key_value;

/// The type of a resource, by Kafka's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(i8)]
pub enum ResourceChoice {
    Topic = 2,
    Group = 3,
    Cluster = 4,
    TransactionalId = 5,
    DelegationToken = 6,
    User = 7,
}

/// How the name of an ACL's resource is meant, by Kafka's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(i8)]
pub enum PatternChoice {
    Any = 1,
    /// Every ACL that counts for the name.
    Match = 2,
    Literal = 3,
    Prefixed = 4,
}

/// What an ACL is about, by Kafka's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(i8)]
pub enum OperationChoice {
    All = 2,
    Read = 3,
    Write = 4,
    Create = 5,
    Delete = 6,
    Alter = 7,
    Describe = 8,
    ClusterAction = 9,
    DescribeConfigs = 10,
    AlterConfigs = 11,
    IdempotentWrite = 12,
    CreateTokens = 13,
    DescribeTokens = 14,
    TwoPhaseCommit = 15,
}

/// Whether an ACL allows or denies, by Kafka's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(i8)]
pub enum PermissionChoice {
    Deny = 2,
    Allow = 3,
}

#[derive(Debug, Subcommand)]
pub enum AclVerb {
    /// List ACLs, all or those that the options name.
    List(AclFilter),
    /// Add ACLs: one for each principal, resource and operation.
    Add(AclAddition),
    /// Delete the ACLs that the options name.
    Delete {
        #[command(flatten)]
        filter: AclFilter,
        /// Delete every ACL, where no option names any.
        #[arg(long)]
        all: bool,
        /// Only print what would be deleted.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Which ACLs are meant; an option that is not given takes them all.
#[derive(Args, Clone, Debug)]
pub struct AclFilter {
    /// The type of the resource.
    #[arg(long, value_enum)]
    pub resource_type: Option<ResourceChoice>,
    /// The name of the resource.
    #[arg(long)]
    pub name: Option<String>,
    /// How the name is meant.
    #[arg(long, value_enum, default_value = "any")]
    pub pattern: PatternChoice,
    /// Whom it is about, such as User:alice.
    #[arg(long)]
    pub principal: Option<String>,
    /// From which address.
    #[arg(long)]
    pub host: Option<String>,
    #[arg(long, value_enum)]
    pub operation: Option<OperationChoice>,
    #[arg(long, value_enum)]
    pub permission: Option<PermissionChoice>,
}

impl AclFilter {
    /// Whether it takes every ACL.
    pub fn is_all(&self) -> bool {
        self.resource_type.is_none()
            && self.name.is_none()
            && self.principal.is_none()
            && self.host.is_none()
            && self.operation.is_none()
            && self.permission.is_none()
            && self.pattern == PatternChoice::Any
    }
}

#[derive(Args, Debug)]
pub struct AclAddition {
    /// Whom it is about, such as User:alice; may be repeated.
    #[arg(long = "principal", required = true)]
    pub principals: Vec<String>,
    /// What it is about; may be repeated.
    #[arg(long = "operation", value_enum, required_unless_present_any = ["producer", "consumer"])]
    pub operations: Vec<OperationChoice>,
    /// A topic, * for all; may be repeated, as the other resources may.
    #[arg(long = "topic")]
    pub topics: Vec<String>,
    /// A consumer group.
    #[arg(long = "group")]
    pub groups: Vec<String>,
    /// A transactional id.
    #[arg(long = "transactional-id")]
    pub transactional_ids: Vec<String>,
    /// A user, for delegation tokens.
    #[arg(long = "user")]
    pub users: Vec<String>,
    /// A delegation token.
    #[arg(long = "delegation-token")]
    pub delegation_tokens: Vec<String>,
    /// The cluster itself.
    #[arg(long)]
    pub cluster: bool,
    /// The names are beginnings of names.
    #[arg(long)]
    pub prefixed: bool,
    /// From which address.
    #[arg(long, default_value = "*")]
    pub host: String,
    /// Deny in place of allow.
    #[arg(long)]
    pub deny: bool,
    /// What a producer needs: write, describe and create on the topics, describe and write on the transactional ids.
    #[arg(long, requires = "topics", conflicts_with_all = ["operations", "deny"])]
    pub producer: bool,
    /// What a consumer needs: read and describe on the topics, read on the groups.
    #[arg(long, requires_all = ["topics", "groups"], conflicts_with_all = ["operations", "deny"])]
    pub consumer: bool,
}

/// Whom a quota is for. Several of these together are for clients that all of them fit.
#[derive(Args, Clone, Debug, Default)]
pub struct QuotaEntity {
    /// A user.
    #[arg(long)]
    pub user: Option<String>,
    /// Every user without a quota of its own.
    #[arg(long, conflicts_with = "user")]
    pub default_user: bool,
    /// A client id.
    #[arg(long)]
    pub client_id: Option<String>,
    /// Every client id without a quota of its own.
    #[arg(long, conflicts_with = "client_id")]
    pub default_client_id: bool,
    /// An address.
    #[arg(long)]
    pub ip: Option<String>,
    /// Every address without a quota of its own.
    #[arg(long, conflicts_with = "ip")]
    pub default_ip: bool,
}

#[derive(Debug, Subcommand)]
pub enum QuotaVerb {
    /// List quotas, all or those of an entity.
    List(QuotaEntity),
    /// Set quotas of an entity; an empty value removes one.
    Alter {
        #[command(flatten)]
        entity: QuotaEntity,
        /// producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate or connection_creation_rate; may be
        /// repeated.
        #[arg(long = "quota", value_name = "NAME=VALUE", value_parser = key_value, required = true)]
        quotas: Vec<(String, String)>,
    },
    /// Remove all quotas of an entity.
    Delete(QuotaEntity),
}

#[derive(Debug, Subcommand)]
pub enum TransactionVerb {
    /// List transactional ids.
    List {
        /// Only in this state, such as Ongoing; may be repeated.
        #[arg(long = "state")]
        states: Vec<String>,
        /// Only of this producer; may be repeated.
        #[arg(long = "producer-id")]
        producer_ids: Vec<i64>,
        /// Only transactions that have been open for so many seconds.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32))]
        open_for: Option<u32>,
        /// Only ids that this regular expression fits.
        #[arg(long, value_name = "PATTERN")]
        ids: Option<String>,
    },
    /// Show a transactional id: its state, its producer and its partitions.
    Describe { id: String },
    /// Show the producers of a partition.
    Producers {
        #[arg(long)]
        topic: String,
        #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
        partition: i32,
    },
    /// Find transactions in partitions that no coordinator knows.
    FindHanging {
        /// Only in this topic.
        #[arg(long)]
        topic: Option<String>,
        /// Only those that have written nothing for so many seconds; by default 900, which is the default of transaction.max.timeout.ms.
        #[arg(long, value_name = "SECONDS", default_value_t = 900)]
        open_for: u32,
    },
    /// Abort the transaction of a transactional id, whose producer is fenced; or a hanging one by where it begins.
    Abort {
        #[arg(required_unless_present = "topic")]
        id: Option<String>,
        /// The topic of a hanging transaction.
        #[arg(long, conflicts_with = "id", requires = "partition")]
        topic: Option<String>,
        /// Its partition.
        #[arg(long, requires = "start_offset", value_parser = clap::value_parser!(i32).range(0..))]
        partition: Option<i32>,
        /// Its first offset there, as find-hanging and producers print it.
        #[arg(long, requires = "topic")]
        start_offset: Option<i64>,
    },
}

#[derive(Debug, Subcommand)]
pub enum BrokerVerb {
    /// List the brokers.
    List,
    /// Show the settings of a broker, and where each comes from.
    Config {
        /// Which broker; without it, what is set for all of them.
        #[arg(value_parser = clap::value_parser!(i32).range(0..))]
        id: Option<i32>,
        /// Also settings that are as by default.
        #[arg(long, requires = "id")]
        all: bool,
    },
    /// Change settings that can be changed while a broker runs; an empty value returns one to what it was.
    Alter {
        /// Which broker; without it, all of them.
        #[arg(value_parser = clap::value_parser!(i32).range(0..))]
        id: Option<i32>,
        /// A setting; may be repeated.
        #[arg(long = "config", value_name = "KEY=VALUE", value_parser = key_value, required = true)]
        configs: Vec<(String, String)>,
    },
}

/// Which log directories are shown.
#[derive(Args, Debug)]
pub struct LogDirsArguments {
    /// Only of this broker; may be repeated.
    #[arg(long = "broker", value_parser = clap::value_parser!(i32).range(0..))]
    pub brokers: Vec<i32>,
    /// The partitions of this topic and their sizes; may be repeated.
    #[arg(long = "topic")]
    pub topics: Vec<String>,
}
