//! Finds the process that listens on a TCP port.
//!
//! `/proc/net/tcp` and `tcp6` list sockets as `sl local_address rem_address st … uid timeout inode`, with addresses in hexadecimal
//! (`Documentation/networking/proc_net_tcp.rst`).

use super::Machine;
use super::processes::{Holder, with_socket};

/// `TCP_LISTEN` in `net/tcp_states.h`.
const LISTENING: &str = "0A";

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listening {
    pub(crate) uid: u32,
    pub(crate) inode: u64,
}

/// Returns the socket that listens on this port of 127.0.0.1, or of all addresses.
pub(crate) fn listening(machine: &dyn Machine, port: u16) -> Option<Listening> {
    const LOOPBACK: [&str; 2] = ["0100007F", "7F000001"];
    let serves_loopback = |address: &str| {
        // 127.0.0.1 in either byte order, also as an IPv6 address, or any address.
        address.bytes().all(|digit| digit == b'0')
            || LOOPBACK.iter().any(|loopback| {
                address == *loopback
                    || address.len() == 32 && address.ends_with(loopback) && address.contains("FFFF")
            })
    };
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let table = machine.read(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (address, at) = fields.get(1)?.split_once(':')?;
            let here = u16::from_str_radix(at, 16).ok()? == port && serves_loopback(address);
            (here && *fields.get(3)? == LISTENING).then_some(())?;
            Some(Listening {
                uid: fields.get(7)?.parse().ok()?,
                inode: fields.get(9)?.parse().ok()?,
            })
        })
    })
}

/// Returns the process that has this port of 127.0.0.1, if this user may see it.
pub(crate) fn holder_of(machine: &dyn Machine, port: u16) -> Option<Holder> {
    with_socket(machine, listening(machine, port)?.inode)
}
