//! Code that the tests of several crates share: programs as processes, their addresses, etcd, the loop of a fuzz test, certificates.
//!
//! Only tests may depend on this crate; `crates/tidy` checks it. The crate uses no other crate of the workspace, so that
//! every crate's tests may use it. A failure here is a failure of the test: functions panic and return no errors.

#[cfg(feature = "certificates")]
pub mod certificates;
pub mod etcd;
pub mod fuzz;
pub mod ports;
pub mod process;
pub mod server;
