//! The handlers: one file for each API or family of APIs. [`crate::connection::table`] maps the APIs to their handlers.

pub mod acls;
pub mod admin_cluster;
pub mod admin_configs;
pub mod admin_groups;
pub mod admin_replicas;
pub mod admin_topics;
pub mod alter_configs;
pub mod api_versions;
pub mod client_quotas;
pub mod client_telemetry;
pub mod consumer_groups;
pub mod delete_records;
pub mod fetch;
pub mod group_membership;
pub mod init_producer_id;
pub mod list_offsets;
pub mod metadata;
pub mod offsets;
pub mod produce;
pub mod produce_records;
pub mod produce_transactions;
pub mod reads;
pub mod sasl;
pub mod transaction_markers;
pub mod transactions;
pub mod user_credentials;
