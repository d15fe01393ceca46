//! Lines for whoever watches the daemons: on stderr, with the time since boot, as upstream's daemons write them.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::LazyLock;

/// The variable that says how loud a line must be to be written: `info` (the default) or `warning`.
pub(crate) const LEVEL: &str = "FERRETTO_LOG";

static WARNINGS_ONLY: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os(LEVEL).is_some_and(|level| level == "warning"));

/// Something happened that is in order.
pub(crate) fn info(line: Arguments<'_>) {
    if !*WARNINGS_ONLY {
        write('I', line);
    }
}

/// Somebody will miss something.
pub(crate) fn warning(line: Arguments<'_>) {
    write('W', line);
}

fn write(level: char, line: Arguments<'_>) {
    let now = ferretto_ipc::reactor::boot_now();
    let line = format!(
        "[{:05}.{:03}] {level} {line}\n",
        now / 1_000_000_000 % 100_000,
        now / 1_000_000 % 1000
    );
    // In one write, so that lines of several processes do not mix. If nobody takes it, there is nobody to tell.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
