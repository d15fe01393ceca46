//! Addresses of this machine for programs that a test will start.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Returns an address of this machine on which nobody listens or will listen, because the host belongs to this process and call alone. Nothing is bound
/// to find it: a process that another test starts at that moment would inherit the socket, and the address would be in use for a while.
pub(crate) fn free_address() -> String {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, CALLS.fetch_add(1, Ordering::Relaxed), high, low);
    format!("{host}:20001")
}

/// Makes a socket file like that of a killed process. Nobody has ever listened on it, because a process that another test starts at this moment would
/// inherit the listening socket for a while.
pub(crate) fn abandoned_socket(path: &Path) {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    );
    rustix::net::bind(socket.unwrap(), &SocketAddrUnix::new(path).unwrap()).unwrap();
}
