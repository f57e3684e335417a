//! `mainstem-bench`: the OpenMessaging Benchmark's experiments against any server that speaks Kafka's protocol.

mod result;

fn main() {}
