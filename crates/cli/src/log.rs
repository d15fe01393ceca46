//! Lines for whoever watches the daemons: on stderr, with the time since boot, as upstream's daemons write them.

use std::fmt::Arguments;
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
    eprintln!(
        "[{:05}.{:03}] {level} {line}",
        now / 1_000_000_000 % 100_000,
        now / 1_000_000 % 1000
    );
}
