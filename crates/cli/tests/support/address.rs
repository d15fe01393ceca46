//! Addresses of this machine that a program which is still to be started can listen on.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// An address of this machine that nobody listens on, nor will: this process and this call have the whole host to themselves. A port of
/// 127.0.0.1 that was free a moment ago may by now be that of anybody's connection.
pub(crate) fn free_address() -> String {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, CALLS.fetch_add(1, Ordering::Relaxed), high, low);
    let listener = TcpListener::bind(SocketAddrV4::new(host, 0)).unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Makes a socket as those leave it who are killed. Nobody has ever listened on it: a process that another test starts at this moment
/// would do so for a while, too.
pub(crate) fn abandoned_socket(path: &Path) {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    );
    rustix::net::bind(socket.unwrap(), &SocketAddrUnix::new(path).unwrap()).unwrap();
}
