//! stderr, for messages. It may be a closed pipe or a full disk, where `eprintln` would panic; the uploader goes on.

use std::fmt::Display;
use std::io::Write;

/// Prints a line in one write.
pub(crate) fn say(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
