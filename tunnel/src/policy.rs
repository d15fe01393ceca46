//! The rights that the tunnel keeps: its sockets, and connecting to the other side. It has read its key by then.

use ferretto_daemons::sandbox::{Calls, Capabilities, Families, Files, Policy};
use ferretto_ipc::Address;

/// The rights of a tunnel from one of these addresses to the other.
pub(crate) fn policy(listen: &Address, to: &Address) -> Policy {
    Policy {
        capabilities: Capabilities::empty(),
        files: Files::of_forwarder(to, std::slice::from_ref(listen)),
        calls: Calls::recorder(Families::of(to)),
    }
}
