//! Whether process ids in `/proc` are those of the kernel's events.
//!
//! ftrace gives threads the ids that they have in the machine's own pid namespace. In a container with a namespace of its own, the same ids in
//! `/proc` belong to other threads. The data source `linux.ftrace` asks before it has threads described, and `ferretto doctor` explains it.

/// The machine's own namespace, as the link `/proc/self/ns/pid` names it: `PROC_PID_INIT_INO` in `linux/proc_ns.h`.
pub const INITIAL: &str = "pid:[4026531836]";

/// Whether this process lives in the machine's own pid namespace. True where `/proc` does not tell.
#[must_use]
pub(crate) fn is_initial() -> bool {
    std::fs::read_link("/proc/self/ns/pid").map_or(true, |namespace| namespace.as_os_str() == INITIAL)
}
