//! The rights that the tunnel keeps: its sockets, connecting to the other side, and reading the folders of its certificates again.

use std::path::PathBuf;

use ferretto_daemons::sandbox::{Calls, Capabilities, Families, Files, Policy};
use ferretto_ipc::Address;

/// The rights of a tunnel from one of these addresses to the other, whose certificates are in these folders.
pub(crate) fn policy(listen: &Address, to: &Address, certificates: Vec<PathBuf>) -> Policy {
    let files = Files::of_forwarder(to, std::slice::from_ref(listen));
    Policy {
        capabilities: Capabilities::empty(),
        files: files.map(|files| Files {
            read: certificates,
            ..files
        }),
        calls: Calls::recorder(Families::of(to)),
    }
}
