//! The rights that the tunnel keeps: its sockets, and connecting to the other side. It has read its key by then.

use std::net::IpAddr;

use ferretto_daemons::sandbox::{Calls, Capabilities, Families, Files, Policy};
use ferretto_ipc::Address;

/// The rights of a tunnel from one of these addresses to the other.
pub(crate) fn policy(listen: &Address, to: &Address) -> Policy {
    Policy {
        capabilities: Capabilities::empty(),
        files: files(listen, to),
        calls: Calls::recorder(Families::of(to)),
    }
}

/// To look up a host, the C library reads files of its own choice, and connects as it likes.
fn files(listen: &Address, to: &Address) -> Option<Files> {
    let connect = match to {
        Address::Tcp { host, port } if host.parse::<IpAddr>().is_ok() => vec![*port],
        Address::Tcp { .. } => return None,
        Address::Unix(_) | Address::Abstract(_) | Address::Vsock { .. } => Vec::new(),
    };
    // The socket's file goes at the end.
    let socket = listen.path().and_then(|path| std::path::absolute(path).ok());
    let folder = socket.as_deref().and_then(std::path::Path::parent);
    Some(Files {
        remove: Vec::from_iter(folder.map(ToOwned::to_owned)),
        connect,
        ..Files::default()
    })
}
