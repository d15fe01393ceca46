//! Gives programs the handling of signals that a shell gives them, whatever started the tests.
//!
//! Everything that starts programs calls it. Under `nohup`, in the background of a script, or in containers, signals may be ignored. Programs that
//! are started inherit that, and would rightly not end when a test asks them to.

use std::sync::Arc;
use std::sync::LazyLock;

use signal_hook::consts::FORBIDDEN;

/// From now on, this process starts programs that ignore no signal.
pub(crate) fn as_usual() {
    static DONE: LazyLock<()> = LazyLock::new(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
        let standard = (1..32).filter(|signal| ignored & 1 << (signal - 1) != 0);
        // A signal with a handler here has its default action in started programs. The handler itself has no effect.
        for signal in standard.filter(|signal| !FORBIDDEN.contains(signal)) {
            signal_hook::flag::register(signal, Arc::default()).unwrap();
        }
    });
    LazyLock::force(&DONE);
}
