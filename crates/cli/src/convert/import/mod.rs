//! Other formats than Perfetto's, turned into the packets of a trace.
//!
//! [`source`](super::source) calls it. Each importer reads a whole file and passes on encoded packets. Damage of the file is reported with
//! its place, and then the packets so far count for nothing.

mod chrome_events;
pub(super) mod folded;
pub(super) mod json;
pub(super) mod perf;
mod sample_writer;

use std::io;

/// Takes an encoded packet.
pub(super) type Write<'a> = dyn FnMut(&[u8]) -> Result<(), ImportError> + 'a;

/// Sentences about the losses of a trace.
pub(super) type Notes = Vec<String>;

/// The reason why a file was not imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    #[error("line {line}: {reason}")]
    Line { line: u64, reason: String },
    #[error("damaged at byte {offset}: {reason}")]
    Offset { offset: u64, reason: String },
    #[error("line {line}, column {column}: {reason}")]
    Json {
        line: usize,
        column: usize,
        reason: String,
    },
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error(
        "cannot keep the trace in a temporary file: {0}; there is more room if TMPDIR names another folder"
    )]
    Draft(io::Error),
}
