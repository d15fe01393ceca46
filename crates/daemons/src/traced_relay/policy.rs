//! The rights that `traced_relay` keeps: its sockets, and connecting to the service.

use ferretto_ipc::Address;

use crate::sandbox::{Calls, Capabilities, Families, Policy};

/// The rights of a relay to the service with this address.
pub(super) fn policy(service: &Address) -> Policy {
    Policy {
        capabilities: Capabilities::empty(),
        // To look up a host, the C library reads files of its own choice.
        files: None,
        calls: Calls::recorder(Families::of(service)),
    }
}
