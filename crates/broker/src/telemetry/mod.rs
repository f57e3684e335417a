//! Metrics that clients push to the server (KIP-714).

pub mod subscription;
