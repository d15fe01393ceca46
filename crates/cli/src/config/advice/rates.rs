//! How much data a second kernel events come to: a guess that is right within a factor of a few, for warnings only.
//!
//! Measured with `linux.ftrace` into a trace buffer that discarded nothing, 4 s at a time, on a virtual machine with two processors that
//! were idle, or busy with a Rust build: the bytes in the buffer for each switch between threads (`ctxt` of `/proc/stat`). How often
//! threads switch is what a machine's busyness shows in, and a machine says how often they did since it was started. Events that
//! are rare, or whose rate depends on something else, count as nothing.

use ferretto_proto::messages::FtraceConfig;

use crate::config::surroundings::Machine;

/// Switches between threads in a second, for each processor, that a machine is expected to come to however idle it was.
const LEAST_SWITCHES: u64 = 1000;

/// What an event comes to.
struct Rate {
    group: &'static str,
    /// Empty for all others of the group together.
    name: &'static str,
    /// Bytes for each switch between threads.
    bytes: u64,
}

const fn rate(group: &'static str, name: &'static str, bytes: u64) -> Rate {
    Rate { group, name, bytes }
}

const RATES: &[Rate] = &[
    // 10 to 15 for the two of them; all of the group 85 to 105.
    rate("sched", "sched_switch", 8),
    rate("sched", "sched_waking", 5),
    rate("sched", "sched_wakeup", 20),
    rate("sched", "sched_stat_runtime", 40),
    rate("sched", "", 15),
    // 330 to 830 for both.
    rate("raw_syscalls", "sys_enter", 200),
    rate("raw_syscalls", "sys_exit", 200),
    // 20 to 130 for all, the more the busier network and disks are.
    rate("irq", "softirq_raise", 12),
    rate("irq", "softirq_entry", 12),
    rate("irq", "softirq_exit", 12),
    rate("irq", "", 4),
    // 3000 and more, but of few switches.
    rate("kmem", "", 1000),
];

/// Bytes a second that the events of a config come to on this machine.
pub(super) fn ftrace(config: &FtraceConfig, machine: &Machine) -> u64 {
    let switches = machine.context_switches.max(LEAST_SWITCHES * machine.cpus);
    // Of some system calls nobody knows how often they are made.
    let syscalls = config.syscall_events.is_empty();
    let mut per_switch = 0;
    for rate in RATES {
        let wanted = config
            .ftrace_events
            .iter()
            .any(|event| match event.split_once('/') {
                Some((group, "*")) => group == rate.group,
                Some((group, name)) => group == rate.group && name == rate.name,
                None => event == rate.name,
            });
        if wanted && (rate.group != "raw_syscalls" || syscalls) {
            per_switch += rate.bytes;
        }
    }
    switches * per_switch
}
