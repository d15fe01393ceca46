//! stderr, for messages.
//!
//! `eprintln` would panic where stderr is a closed pipe or a full disk; `clippy.toml` keeps it out.

use std::fmt::Display;
use std::io::Write;

/// Prints a line in one write, so that no other output comes between. If stderr is closed, nobody can be told.
pub(crate) fn tell(line: &(impl Display + ?Sized)) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints a message of this program.
pub(crate) fn say(message: &(impl Display + ?Sized)) {
    tell(&format_args!("ferretto-query: {message}"));
}
