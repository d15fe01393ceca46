//! Capabilities: what a daemon of root may do that other users may not.
//!
//! The process keeps those of its policy that it has, and can get no others: not by running a program (no new privileges), and not from root's files
//! (the bounding set).

use rustix::io::Errno;
pub use rustix::thread::CapabilitySet as Capabilities;
use rustix::thread::{
    CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// The capabilities that this process may use now.
pub(crate) fn held() -> Capabilities {
    capabilities(None).map_or(Capabilities::empty(), |sets| sets.permitted)
}

/// Keeps these, of those that the process has.
pub(super) fn keep(kept: Capabilities) -> Result<(), Errno> {
    set_no_new_privs(true)?;
    // Kernels before 4.3 have no such set.
    let _ = clear_ambient_capability_set();
    for number in 0..64 {
        let capability = Capabilities::from_bits_retain(1 << number);
        // It takes CAP_SETPCAP. A process without that may keep a larger bounding set, out of which nothing comes without new privileges.
        if !kept.contains(capability) && remove_capability_from_bounding_set(capability) == Err(Errno::INVAL)
        {
            // The kernel has no more.
            break;
        }
    }
    let remaining = held() & kept;
    set_capabilities(
        None,
        CapabilitySets {
            effective: remaining,
            permitted: remaining,
            inheritable: Capabilities::empty(),
        },
    )
}
