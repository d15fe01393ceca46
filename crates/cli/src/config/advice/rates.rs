//! Estimates the data rate of kernel events, within a factor of a few. The estimate is for warnings only.
//!
//! [`buffers`](super::buffers) calls it. There are two kinds of events. Scheduler events follow the switches between threads, and a machine reports
//! how often these happened since it started. System calls and allocations follow the load: an idle machine makes few, and one busy program makes
//! megabytes, so for these the estimate is the least that one busy program makes.
//!
//! Measured on a virtual machine with two processors, 4 s at a time, with the size of the trace divided by the events in it and
//! multiplied by the events that the kernel counted; idle, beside `git status` in a loop, beside `tar c TREE | cat`, beside
//! `dd if=/dev/zero of=/dev/null bs=1`, and beside a program that talks to itself over TCP:
//!
//! | events                           | idle     | `git status` | `tar`     | `dd`    | TCP      |
//! |----------------------------------|----------|--------------|-----------|---------|----------|
//! | `raw_syscalls/*`                 | 0.7 MB/s | 11.5 MB/s    | 19.8 MB/s | 68 MB/s |          |
//! | `kmem/*`                         | 4 MB/s   | 23.7 MB/s    | 22.7 MB/s |         |          |
//! | `sched_switch` + `sched_waking`  | 15 B     | 14 B         | 11 B      | 15 B    | 11 B     |
//! | `sched/*`                        | 101 B    |              | 52 B      |         |          |
//! | `irq/*`                          | 15 B     | 10 B         | 1 B       | 26 B    | 52 B     |
//!
//! Bytes are for each switch between threads. The estimate is near the minimum of a busy machine, because a warning should not be wrong. Events that
//! are rare, or whose rate depends on something else, count as nothing.

use ferretto_proto::messages::FtraceConfig;

use crate::config::surroundings::RecordedMachine;

/// The least number of switches between threads in a second, for each processor, that is assumed of any machine.
const LEAST_SWITCHES: u64 = 1000;

/// The data rate of an event.
struct Rate {
    group: &'static str,
    /// The event's name; empty for all other events of the group together.
    name: &'static str,
    /// Bytes for each switch between threads.
    per_switch: u64,
    /// Bytes per second from one busy program, however few switches there are.
    busy_program: u64,
}

const fn switching(group: &'static str, name: &'static str, per_switch: u64) -> Rate {
    Rate {
        group,
        name,
        per_switch,
        busy_program: 0,
    }
}

const RATES: &[Rate] = &[
    switching("sched", "sched_switch", 8),
    switching("sched", "sched_waking", 4),
    switching("sched", "sched_wakeup", 10),
    switching("sched", "sched_stat_runtime", 20),
    switching("sched", "", 10),
    switching("irq", "softirq_raise", 3),
    switching("irq", "softirq_entry", 3),
    switching("irq", "softirq_exit", 3),
    Rate {
        group: "raw_syscalls",
        name: "sys_enter",
        per_switch: 200,
        busy_program: 5_000_000,
    },
    Rate {
        group: "raw_syscalls",
        name: "sys_exit",
        per_switch: 200,
        busy_program: 5_000_000,
    },
    Rate {
        group: "kmem",
        name: "",
        per_switch: 400,
        busy_program: 10_000_000,
    },
];

/// An estimated data rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Volume {
    /// Bytes per second.
    pub(super) rate: u64,
    /// Whether this is the rate of one busy program. An idle machine makes less.
    pub(super) when_busy: bool,
}

impl std::ops::Add for Volume {
    type Output = Volume;

    fn add(self, other: Volume) -> Volume {
        Volume {
            rate: self.rate + other.rate,
            when_busy: self.when_busy || other.when_busy,
        }
    }
}

impl std::iter::Sum for Volume {
    fn sum<I: Iterator<Item = Volume>>(all: I) -> Volume {
        all.fold(Volume::default(), std::ops::Add::add)
    }
}

/// Estimates the rate of a config's events on this machine.
pub(super) fn ftrace(config: &FtraceConfig, machine: &RecordedMachine) -> Volume {
    let switches = machine.context_switches.max(LEAST_SWITCHES * machine.cpus);
    // The rate of individual system calls is unknown.
    let syscalls = config.syscall_events.is_empty();
    let wanted = |rate: &&Rate| {
        let named = config
            .ftrace_events
            .iter()
            .any(|event| match event.split_once('/') {
                Some((group, "*")) => group == rate.group,
                Some((group, name)) => group == rate.group && name == rate.name,
                None => event == rate.name,
            });
        named && (rate.group != "raw_syscalls" || syscalls)
    };
    let of = |rate: &Rate| {
        let switching = switches * rate.per_switch;
        Volume {
            rate: switching.max(rate.busy_program),
            when_busy: rate.busy_program > switching,
        }
    };
    RATES.iter().filter(wanted).map(of).sum()
}
