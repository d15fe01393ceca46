//! The rights that `traced_perf` keeps: to sample all processors, and to read the programs that were running.

use ferretto_ipc::Address;

use crate::sandbox::{Calls, Capabilities, Families, Policy, calls, held};

/// The rights of a profiler whose service has this address.
pub(super) fn policy(service: &Address) -> Policy {
    Policy {
        capabilities: capabilities(held()),
        // It looks into other processes.
        files: None,
        calls: calls(service),
    }
}

/// Those kept, of the ones that the process has.
fn capabilities(held: Capabilities) -> Capabilities {
    let needed = Capabilities::PERFMON
        // The mappings of other users' processes, and the files behind them.
        | Capabilities::SYS_PTRACE
        | Capabilities::CHECKPOINT_RESTORE
        | Capabilities::DAC_READ_SEARCH
        // Rings of any size.
        | Capabilities::IPC_LOCK
        // Names of the kernel's functions. No address leaves the daemon.
        | Capabilities::SYSLOG;
    match held.contains(Capabilities::PERFMON | Capabilities::CHECKPOINT_RESTORE) {
        true => needed,
        // Before Linux 5.9, and in containers that know no better, this stands for both.
        false => needed | Capabilities::SYS_ADMIN,
    }
}

fn calls(service: &Address) -> Calls {
    const PERF_IOCTL: u64 = b'$' as u64;
    Calls::recorder(Families::of(service))
        .and(calls![SYS_perf_event_open])
        // Every operation on the kernel's events.
        .and_if(calls![SYS_ioctl], 1, 0xff00, &[PERF_IOCTL << 8])
        // Files below the root of another process.
        .and(calls![SYS_openat2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_for_everything_is_kept_only_where_the_kernel_has_no_smaller_ones() {
        assert!(!capabilities(Capabilities::all()).contains(Capabilities::SYS_ADMIN));
        let old = Capabilities::all() - Capabilities::PERFMON - Capabilities::CHECKPOINT_RESTORE;
        assert!(capabilities(old).contains(Capabilities::SYS_ADMIN));
    }
}
