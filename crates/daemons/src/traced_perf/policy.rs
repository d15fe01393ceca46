//! The rights that `traced_perf` keeps: to sample all processors, and to read the programs that were running.

use ferretto_ipc::Address;
use ferretto_profile::paranoia::Paranoia;

use crate::sandbox::{Calls, Capabilities, Families, Policy, calls, held};

/// The rights of a profiler whose service has this address.
pub(super) fn policy(service: &Address) -> Policy {
    Policy {
        capabilities: capabilities(held(), Paranoia::of_this_kernel()),
        // It looks into other processes.
        files: None,
        calls: calls(service),
    }
}

/// The capabilities to keep, of those that the process has.
fn capabilities(held: Capabilities, paranoia: Option<Paranoia>) -> Capabilities {
    let needed = Capabilities::PERFMON
        // The mappings of other users' processes, and the files behind them.
        | Capabilities::SYS_PTRACE
        | Capabilities::CHECKPOINT_RESTORE
        | Capabilities::DAC_READ_SEARCH
        // Rings of any size.
        | Capabilities::IPC_LOCK
        // Names of the kernel's functions. No address leaves the daemon.
        | Capabilities::SYSLOG;
    // Before Linux 5.9, and in containers that know no better, CAP_SYS_ADMIN stands for both.
    let has_both = held.contains(Capabilities::PERFMON | Capabilities::CHECKPOINT_RESTORE);
    // Whether a kernel of a distribution wants it beside them cannot be tried: it would have to be given up first.
    match has_both && !paranoia.is_some_and(Paranoia::may_want_an_administrator) {
        true => needed,
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
    fn the_capability_for_everything_is_kept_only_where_the_kernel_has_no_smaller_ones_or_wants_it() {
        let administers = |held, paranoia| {
            let kept = capabilities(held, Paranoia::parse(paranoia));
            kept.contains(Capabilities::SYS_ADMIN)
        };
        assert!(!administers(Capabilities::all(), "2"));
        assert!(!administers(Capabilities::all(), ""));
        let old = Capabilities::all() - Capabilities::PERFMON - Capabilities::CHECKPOINT_RESTORE;
        assert!(administers(old, "2"));
        // Debian's.
        assert!(administers(Capabilities::all(), "3"));
    }
}
