//! System calls, with seccomp (Linux 3.17), on x86-64, aarch64 and riscv64.
//!
//! A call that is neither in the daemon's list nor in [`REFUSED`] kills the process, because the daemon never makes it: another's code does. A call of
//! [`REFUSED`] fails with ENOSYS, as on an older kernel: C libraries try these, and go on without them. So a new C library cannot have a daemon killed
//! with a call that is newer than this list.

mod common;

use std::collections::BTreeMap;

use ferretto_ipc::Address;
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

use crate::log;

/// Numbers of system calls. Empty on processors for which there is no filter, where the names differ.
macro_rules! calls {
    ($($name:ident),* $(,)?) => {{
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
        { const CALLS: &[libc::c_long] = &[$(libc::$name),*]; CALLS }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
        { const CALLS: &[libc::c_long] = &[]; CALLS }
    }};
}

/// The same for calls that have a successor, which is all that later processors have.
macro_rules! old_calls {
    ($($name:ident),* $(,)?) => {{
        #[cfg(target_arch = "x86_64")]
        { const CALLS: &[libc::c_long] = &[$(libc::$name),*]; CALLS }
        #[cfg(not(target_arch = "x86_64"))]
        { const CALLS: &[libc::c_long] = &[]; CALLS }
    }};
}

pub(crate) use {calls, old_calls};

/// The first number that no kernel used when this list was made. From 424 on, a number means the same call on all processors.
const FIRST_UNKNOWN: c_long = 472;
/// Numbers up to here are for calls to come. On x86-64, those of another interface (x32) begin at 512.
const LAST_UNKNOWN: c_long = 511;

/// All bits of an `int`.
pub(crate) const INT: u64 = u32::MAX as u64;
/// All bits of a pointer.
pub(crate) const POINTER: u64 = u64::MAX;

/// The families of sockets that a daemon may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// Unix sockets, for a service on this machine.
    Unix,
    /// Also sockets of networks and virtual machines, and the kernel's for the names of hosts.
    Network,
}

impl Families {
    /// The families for connecting to a service at this address.
    pub fn of(service: &Address) -> Families {
        match service.is_unix() {
            true => Families::Unix,
            false => Families::Network,
        }
    }
}

/// The calls that a daemon makes, some with certain arguments only.
#[derive(Debug, Default)]
pub struct Calls {
    /// No rules: whatever the arguments are.
    allowed: BTreeMap<c_long, Vec<SeccompRule>>,
}

impl Calls {
    /// These calls, too.
    pub(crate) fn and(mut self, calls: &[c_long]) -> Calls {
        self.allowed.extend(calls.iter().map(|call| (*call, Vec::new())));
        self
    }

    /// These calls, too, if an argument has one of these values, out of the bits of `mask`.
    pub(crate) fn and_if(mut self, calls: &[c_long], argument: u8, mask: u64, values: &[u64]) -> Calls {
        // Upper halves of registers are no part of an `int`.
        let length = match u32::try_from(mask) {
            Ok(_) => SeccompCmpArgLen::Dword,
            Err(_) => SeccompCmpArgLen::Qword,
        };
        for call in calls {
            let rules = self.allowed.entry(*call).or_default();
            for value in values {
                let operator = SeccompCmpOp::MaskedEq(mask);
                let condition = SeccompCondition::new(argument, length.clone(), operator, *value);
                let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
                // A call without rules would be allowed.
                rules.push(rule.expect("a call has arguments 0 to 5"));
            }
        }
        self
    }

    /// Opening sockets.
    #[allow(
        clippy::unnecessary_cast,
        reason = "musl's numbers of ioctls have another type"
    )]
    pub(crate) fn and_sockets(self, families: Families) -> Calls {
        let unix = [libc::AF_UNIX as u64];
        let network =
            [libc::AF_INET, libc::AF_INET6, libc::AF_VSOCK, libc::AF_NETLINK].map(|family| family as u64);
        let calls = self
            .and_if(calls![SYS_socket], 0, INT, &unix)
            .and(calls![SYS_connect]);
        match families {
            Families::Unix => calls,
            // To look up a host, the C library may bind a socket and send to an address. It asks how long an answer is, and for the numbers and names of
            // network interfaces.
            Families::Network => calls
                .and_if(calls![SYS_socket], 0, INT, &network)
                .and(calls![SYS_bind, SYS_sendmmsg])
                .and_if(
                    calls![SYS_ioctl],
                    1,
                    INT,
                    &[
                        libc::FIONREAD as u64,
                        libc::SIOCGIFINDEX as u64,
                        libc::SIOCGIFNAME as u64,
                    ],
                ),
        }
    }

    pub(super) fn enforce(self) {
        let Some(processor) = processor() else {
            return log::info(format_args!(
                "sandbox: system calls are not restricted, because there is no list for this processor"
            ));
        };
        // The more severe answer of two filters counts. Once the second is in force, there can be no third.
        let result = refuse(processor)
            .and_then(|filter| apply_filter_all_threads(&filter))
            .and_then(|()| self.compile(processor))
            .and_then(|filter| apply_filter_all_threads(&filter));
        if let Err(error) = result {
            log::warning(format_args!("sandbox: system calls are not restricted: {error}"));
        }
    }

    fn compile(mut self, processor: TargetArch) -> Result<BpfProgram, seccompiler::Error> {
        // The other filter refuses these.
        for call in refused() {
            self.allowed.entry(call).or_default();
        }
        let filter = SeccompFilter::new(
            self.allowed,
            SeccompAction::KillProcess,
            SeccompAction::Allow,
            processor,
        )?;
        Ok(filter.try_into()?)
    }
}

fn refuse(processor: TargetArch) -> Result<BpfProgram, seccompiler::Error> {
    let filter = SeccompFilter::new(
        refused().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        processor,
    )?;
    Ok(filter.try_into()?)
}

/// Calls that fail with ENOSYS.
fn refused() -> impl Iterator<Item = c_long> {
    let known = common::REFUSED.iter().chain(common::REFUSED_BY_NUMBER);
    known.copied().chain(FIRST_UNKNOWN..=LAST_UNKNOWN)
}

fn processor() -> Option<TargetArch> {
    TargetArch::try_from(std::env::consts::ARCH).ok()
}
