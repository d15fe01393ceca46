//! The scheduling policy and priority of a daemon's thread, which `priority_boost` of a config raises: that of a session the
//! service's, that of a data source the probes'.
//!
//! It takes `CAP_SYS_NICE` or resource limits (`RLIMIT_NICE`, `RLIMIT_RTPRIO`) that allow it. Daemons of root [raise the limits](keep_boosts_without_capability)
//! before they give up the capability.
//!
//! A raised priority is the thread's own: threads and processes that it starts meanwhile run at the kernel's default, which is nice 0
//! (`SCHED_RESET_ON_FORK`, sched(7)).
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;

use ferretto_proto::messages::PriorityBoostConfig;
use ferretto_service::PriorityBoost;
use rustix::process::{Resource, Rlimit, setrlimit};

/// Lets this process boost its threads without `CAP_SYS_NICE`, if it may grant itself that; returns whether it can. To be called before it gives up
/// capabilities.
pub(crate) fn keep_boosts_without_capability() -> bool {
    // All of `nice`, which counts from 20 down to 1 here, and all priorities of real-time policies.
    let raised = [(Resource::Nice, 40), (Resource::Rtprio, 99)].map(|(limit, most)| {
        let all = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(limit, all).is_ok()
    });
    raised == [true; 2]
}

/// The scheduling of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scheduling {
    /// With `SCHED_RESET_ON_FORK` if new threads do not inherit it.
    policy: i32,
    /// Priority of real-time policies, else 0.
    realtime: i32,
    /// For the other policies.
    nice: i32,
}

/// The priority of the thread that made this. It can be restored after it was raised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadPriority {
    usual: Scheduling,
}

impl ThreadPriority {
    /// Remembers the priority of this thread.
    pub(crate) fn of_this_thread() -> ThreadPriority {
        ThreadPriority { usual: current() }
    }

    /// Runs the calling thread at the boosted priority, or at the usual one.
    ///
    /// # Errors
    /// If the kernel refuses; then nothing has changed.
    pub(crate) fn set(&self, boost: Option<PriorityBoost>) -> Result<(), PriorityError> {
        let before = current();
        apply(match boost {
            None => self.usual,
            Some(PriorityBoost::Other(priority)) => Scheduling {
                policy: libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK,
                realtime: 0,
                nice: -(priority as i32),
            },
            Some(PriorityBoost::Fifo(priority)) => Scheduling {
                policy: libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
                realtime: priority as i32,
                nice: 0,
            },
        })
        .inspect_err(|_| {
            // The policy may have been changed before the rest was refused. The kernel has allowed the old setting once, so it allows it again.
            let _ = apply(before);
        })
    }
}

/// Boosts of this thread that are asked for one by one, of which the highest counts. The thread is at its usual priority again when
/// this ends.
#[derive(Debug)]
pub(crate) struct Boosts {
    thread: ThreadPriority,
    by: BTreeMap<u64, PriorityBoost>,
}

impl Boosts {
    /// None yet.
    pub(crate) fn of_this_thread() -> Boosts {
        Boosts {
            thread: ThreadPriority::of_this_thread(),
            by: BTreeMap::new(),
        }
    }

    /// Adds a boost, under a number by which it can be taken back.
    ///
    /// # Errors
    /// If there is no such priority, or the kernel refuses it: then there is no such boost.
    pub(crate) fn add(&mut self, number: u64, config: &PriorityBoostConfig) -> Result<(), String> {
        self.by.insert(number, PriorityBoost::requested(config)?);
        self.thread.set(self.highest()).map_err(|error| {
            self.by.remove(&number);
            format!("priority_boost: {error}")
        })
    }

    /// Runs the calling thread, which is another, at the boost of this number alone, or at the usual priority of the first.
    ///
    /// # Errors
    /// If the kernel refuses it; then nothing has changed.
    pub(crate) fn apply_to_this_thread(&self, number: u64) -> Result<(), PriorityError> {
        self.thread.set(self.by.get(&number).copied())
    }

    /// Takes a boost back.
    pub(crate) fn remove(&mut self, number: u64) {
        if self.by.remove(&number).is_none() {
            return;
        }
        // The kernel may refuse a request that was not needed so far because of a higher one.
        while self.thread.set(self.highest()).is_err() && !self.by.is_empty() {
            let highest = self.highest();
            self.by.retain(|_, boost| Some(*boost) != highest);
        }
    }

    fn highest(&self) -> Option<PriorityBoost> {
        self.by.values().max().copied()
    }
}

impl Drop for Boosts {
    fn drop(&mut self) {
        if !self.by.is_empty() {
            let _ = self.thread.set(None);
        }
    }
}

/// The kernel does not change the priority.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PriorityError {
    /// The kernel refused the policy. These are upstream's words.
    #[error(
        "sched_setscheduler(policy {policy}, priority {priority}): {error}; this program needs CAP_SYS_NICE"
    )]
    Policy {
        policy: i32,
        priority: i32,
        error: io::Error,
    },
    /// `setpriority` failed.
    #[error("setpriority({nice}): {error}; this program needs CAP_SYS_NICE")]
    Nice { nice: i32, error: io::Error },
}

/// The kernel's `struct sched_param`: musl's type of that name has more fields.
#[repr(C)]
struct Parameters {
    priority: i32,
}

/// The kernel's `struct sched_attr`, as it was at first (Linux 3.14). The last three are for deadlines.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

// musl's functions for these calls only fail, because POSIX means processes, and the kernel threads.

fn current() -> Scheduling {
    let mut parameters = Parameters { priority: 0 };
    // SAFETY: 0 is the calling thread, and `parameters` is valid for the one value that is written. Neither call fails for the calling thread.
    let policy = unsafe {
        libc::syscall(libc::SYS_sched_getparam, 0, &raw mut parameters);
        libc::syscall(libc::SYS_sched_getscheduler, 0)
    };
    Scheduling {
        policy: policy as i32,
        realtime: parameters.priority,
        nice: rustix::process::getpriority_process(None).unwrap_or_default(),
    }
}

/// Sets a real-time policy; returns whether the kernel allows it.
fn set_realtime(policy: i32, priority: i32) -> bool {
    let parameters = Parameters { priority };
    // SAFETY: 0 is the calling thread, and `parameters` is read only.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const parameters) };
    result == 0
}

/// Sets another policy, as `sched_setscheduler` does. Under `RestrictRealtime=` of systemd's units, that call fails for every policy with a flag.
fn set_ordinary(policy: i32) -> bool {
    const SCHED_FLAG_RESET_ON_FORK: u64 = 1;
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: (policy & !libc::SCHED_RESET_ON_FORK) as u32,
        flags: match policy & libc::SCHED_RESET_ON_FORK {
            0 => 0,
            _ => SCHED_FLAG_RESET_ON_FORK,
        },
        nice: current().nice,
        priority: 0,
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    // SAFETY: 0 is the calling thread, and `attributes` is read only.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    result == 0
}

fn apply(wanted: Scheduling) -> Result<(), PriorityError> {
    let set = |policy: i32| match wanted.realtime {
        0 => set_ordinary(policy),
        priority => set_realtime(policy, priority),
    };
    // Only CAP_SYS_NICE may take SCHED_RESET_ON_FORK away. Without it, the flag stays.
    if !set(wanted.policy) && !set(wanted.policy | libc::SCHED_RESET_ON_FORK) {
        return Err(PriorityError::Policy {
            policy: wanted.policy,
            priority: wanted.realtime,
            error: io::Error::last_os_error(),
        });
    }
    if wanted.realtime == 0 {
        rustix::process::setpriority_process(None, wanted.nice).map_err(|error| PriorityError::Nice {
            nice: wanted.nice,
            error: error.into(),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch,
    };

    use super::*;

    /// Runs a test in a thread of its own, whose priority is its own too.
    fn in_a_thread(test: fn(ThreadPriority)) {
        thread::spawn(move || test(ThreadPriority::of_this_thread()))
            .join()
            .unwrap();
    }

    #[test]
    fn a_boost_is_applied_and_taken_back() {
        in_a_thread(|priority| {
            let usual = current();
            if let Err(error) = priority.set(Some(PriorityBoost::Other(5))) {
                println!("skipped: {error}");
                assert_eq!(current(), usual, "a boost that failed changes nothing");
                return;
            }
            let nice = Scheduling {
                policy: libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK,
                realtime: 0,
                nice: -5,
            };
            assert_eq!(current(), nice);
            let in_a_new_thread = || thread::spawn(current).join().unwrap();
            assert_eq!(
                in_a_new_thread(),
                Scheduling {
                    policy: libc::SCHED_OTHER,
                    realtime: 0,
                    nice: 0
                }
            );
            match priority.set(Some(PriorityBoost::Fifo(3))) {
                Ok(()) => {
                    assert_eq!(current().policy, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK);
                    assert_eq!(current().realtime, 3);
                    assert_eq!(in_a_new_thread().policy, libc::SCHED_OTHER);
                }
                Err(error) => {
                    println!("skipped: {error}");
                    assert_eq!(current(), nice);
                }
            }
            priority.set(None).unwrap();
            let kept = current().policy & libc::SCHED_RESET_ON_FORK;
            assert_eq!(
                current(),
                Scheduling {
                    policy: usual.policy | kept,
                    ..usual
                }
            );
        });
    }

    /// As in daemons that have dropped CAP_SYS_NICE.
    #[test]
    fn a_boost_is_taken_back_without_the_capability() {
        in_a_thread(|priority| {
            let usual = current();
            if let Err(error) = priority.set(Some(PriorityBoost::Fifo(3))) {
                println!("skipped: {error}");
                return;
            }
            let none = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            // Of this thread alone.
            set_capabilities(None, none).unwrap();
            priority.set(None).unwrap();
            let without = Scheduling {
                policy: usual.policy | libc::SCHED_RESET_ON_FORK,
                ..usual
            };
            assert_eq!(current(), without);
        });
    }

    /// systemd's filter refuses policies that it does not know, and takes one with a flag for such a policy.
    #[test]
    fn a_boost_needs_no_call_that_restrict_realtime_takes_away() {
        in_a_thread(|priority| {
            let Ok(processor) = TargetArch::try_from(std::env::consts::ARCH) else {
                return println!("skipped: there are no filters for this processor");
            };
            if let Err(error) = priority.set(Some(PriorityBoost::Other(5))) {
                return println!("skipped: {error}");
            }
            priority.set(None).unwrap();
            let flag = SeccompCondition::new(
                1,
                SeccompCmpArgLen::Dword,
                SeccompCmpOp::Gt,
                libc::SCHED_IDLE as u64,
            );
            let rule = SeccompRule::new(vec![flag.unwrap()]).unwrap();
            let filter = SeccompFilter::new(
                [(libc::SYS_sched_setscheduler, vec![rule])].into(),
                SeccompAction::Allow,
                SeccompAction::Errno(libc::EPERM as u32),
                processor,
            );
            // Of this thread alone.
            let program: BpfProgram = filter.unwrap().try_into().unwrap();
            seccompiler::apply_filter(&program).unwrap();
            priority.set(Some(PriorityBoost::Other(5))).unwrap();
            let boosted = current();
            assert_eq!(boosted.policy, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK);
            assert_eq!(boosted.nice, -5);
            // It is a restriction all the same.
            priority.set(Some(PriorityBoost::Fifo(3))).unwrap_err();
            assert_eq!(current(), boosted);
        });
    }

    #[test]
    fn a_refusal_of_the_kernel_changes_nothing() {
        in_a_thread(|priority| {
            let usual = current();
            let error = priority.set(Some(PriorityBoost::Fifo(1000))).unwrap_err();
            assert!(error.to_string().contains("sched_setscheduler"), "{error}");
            assert_eq!(current(), usual);
        });
    }
}
