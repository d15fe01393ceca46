//! The rights that `heapprofd` keeps: to meet programs, and to read their files.

use ferretto_ipc::Address;

use crate::sandbox::{Calls, Capabilities, Families, INT, Policy, calls, held};

/// The rights of a profiler whose service has this address.
pub(super) fn policy(service: &Address) -> Policy {
    Policy {
        capabilities: capabilities(held()),
        // It looks into other processes.
        files: None,
        calls: calls(service),
    }
}

/// The capabilities to keep, of those that the process has.
fn capabilities(held: Capabilities) -> Capabilities {
    let needed = Capabilities::SYS_PTRACE
        // The mappings of other users' processes, and the files behind them.
        | Capabilities::CHECKPOINT_RESTORE
        | Capabilities::DAC_READ_SEARCH
        // To ask programs of other users to connect.
        | Capabilities::KILL;
    match held.contains(Capabilities::CHECKPOINT_RESTORE) {
        true => needed,
        // Before Linux 5.9, and in containers that know no better.
        false => needed | Capabilities::SYS_ADMIN,
    }
}

fn calls(service: &Address) -> Calls {
    Calls::recorder(Families::of(service))
        // The processes of clients; and a signal to those that have asked for it, which does nothing to others.
        .and(calls![SYS_pidfd_open])
        .and_if(calls![SYS_pidfd_send_signal], 1, INT, &[libc::SIGURG as u64])
        // Files below the root of another process.
        .and(calls![SYS_openat2])
}
