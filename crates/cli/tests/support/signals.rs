//! Signals as programs find them when a shell starts them, whatever started the tests.
//!
//! Called wherever tests start programs. Under `nohup`, in a pipeline of a script's background, or in containers, signals are ignored,
//! and what is ignored stays so in the programs that are started: one that is told to end, rightly does not.

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
        // One that is handled here has its default action in programs started from here. The handler does nothing that counts.
        for signal in standard.filter(|signal| !FORBIDDEN.contains(signal)) {
            signal_hook::flag::register(signal, Arc::default()).unwrap();
        }
    });
    LazyLock::force(&DONE);
}
