//! stderr, for messages. Recordings also draw on it, see `perfetto/console.rs`.
//!
//! `eprintln` would panic where stderr is a closed pipe or a full disk; `clippy.toml` keeps it out.

use std::fmt::Display;
use std::io::Write;

/// Prints in one write, so that no other output comes between. If stderr is closed, nobody can be told.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints a message of the program `name`, as a line.
pub(crate) fn say(name: &str, message: &(impl Display + ?Sized)) {
    tell(&format!("{name}: {message}\n"));
}
