//! Addresses for servers that are started by their address, or that come back at it.
//!
//! A port that the kernel has just given for 0 is no reservation: the next socket that asks for one, a connection that goes
//! out, or a test in another process may get it before the server has started, or while the server is down.

use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net;
use std::sync::{Mutex, PoisonError};

/// Below `net.ipv4.ip_local_port_range`, from which the kernel takes ports itself.
const PORTS: std::ops::Range<u16> = 20_000..29_000;

static LOCKS: Mutex<Vec<net::UnixListener>> = Mutex::new(Vec::new());

/// An address of this machine at which nobody listens, and that no other test gets for as long as this process lives.
///
/// The lock of a port is the name of a Unix socket in the kernel's memory, as in `tests/compat/suite/ports.py`.
pub fn free_address() -> SocketAddr {
    for _ in PORTS {
        let port = fastrand::u16(PORTS);
        let name = format!("mainstem-tests-port-{port}");
        let name = net::SocketAddr::from_abstract_name(name).expect("the name is short");
        let Ok(lock) = net::UnixListener::bind_addr(&name) else { continue };
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            LOCKS.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
            return SocketAddr::from(([127, 0, 0, 1], port));
        }
    }
    panic!("no port is free from {} to {}", PORTS.start, PORTS.end);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_address_is_given_once() {
        let given: HashSet<SocketAddr> = (0..200).map(|_| free_address()).collect();
        assert_eq!(given.len(), 200);
        for address in given {
            assert!(PORTS.contains(&address.port()), "{address}");
            TcpListener::bind(address).unwrap();
        }
    }

    #[test]
    fn another_process_gets_none_of_ours() {
        let ours = free_address().port();
        let name = net::SocketAddr::from_abstract_name(format!("mainstem-tests-port-{ours}")).unwrap();
        assert!(net::UnixListener::bind_addr(&name).is_err());
    }
}
