//! The rights that `traced_relay` keeps: its sockets, and connecting to the service.

use ferretto_ipc::Address;

use crate::sandbox::{Calls, Capabilities, Families, Files, Policy};

/// The rights of a relay to the service with this address, which has these sockets of its own.
pub(super) fn policy(service: &Address, own: &[Address]) -> Policy {
    Policy {
        capabilities: Capabilities::empty(),
        files: Files::of_forwarder(service, own),
        calls: Calls::recorder(Families::of(service)),
    }
}
