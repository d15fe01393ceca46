//! `ferretto info`: summarises a trace, and lists lost data with the causes.
//!
//! [`applet`](crate::applet) calls it. A file passes through [`ferretto_trace_file`] → [`summary`] (with [`sequences`] and [`timeline`](crate::timeline)) → [`findings`] →
//! [`report`] or [`json`]. Exit codes: 0 when the file was read to its end, even with losses, and also if the file ends inside a packet, because it
//! may still be growing; 3 with `--strict`, if data are lost or missing; 1 if the file is damaged, no trace, or cannot be read; 2 for a wrong command
//! line.

mod findings;
mod heaps;
mod json;
mod report;
mod sequences;
mod summary;

use std::ffi::OsString;
use std::io::{self, Read};
use std::ops::ControlFlow;

use clap::{CommandFactory, Parser};

use crate::perfetto::INCOMPLETE;
use crate::stdout::print;
use crate::{stderr, usage};
use ferretto_trace_file::{self as trace_file, Compression, End, Input, nothing_read};
use summary::Summary;

const NAME: &str = "ferretto info";

/// Says what is in a trace and what is missing.
///
/// It prints when and where the trace was recorded, its config, how many packets of which kind it has and who wrote them, and
/// everything that was lost, by cause, with what to change in the config about it.
///
/// Exits with 0 whatever the trace has lost, also if the file ends inside a packet, as one that is still being written does;
/// with 1 if the file is damaged or no trace; with --strict, with 3 if anything is lost or was not recorded, or if the trace does
/// not tell.
#[derive(Debug, Parser)]
#[command(name = "info", bin_name = NAME, disable_version_flag = true)]
struct Args {
    /// The trace, also compressed with gzip, zstd or xz; - is stdin
    #[arg(value_name = "TRACE")]
    trace: OsString,
    /// Print JSON, for scripts: see docs/json.md
    #[arg(long)]
    json: bool,
    /// List all rows of each table
    #[arg(long)]
    all: bool,
    /// Exit with 3 unless all that was asked for was recorded and nothing lost
    #[arg(long)]
    strict: bool,
}

pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// The length of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// As many rows as fit a screen.
    Screen,
    All,
}

/// A trace that was read.
struct Trace<'a> {
    name: &'a str,
    /// The compression of the whole file, if any.
    compression: Option<Compression>,
    /// The size of the file in bytes, unless it is a stream.
    file_size: Option<u64>,
    summary: &'a Summary,
    end: End,
}

/// Runs with the arguments after the program's name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let arguments: Args = match usage::arguments(NAME, words) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let input = match Input::open(&arguments.trace) {
        Ok(input) => input,
        Err(error) => {
            stderr::say(
                NAME,
                &format_args!("cannot open {}: {error}", arguments.trace.display()),
            );
            return 1;
        }
    };
    let file_size = input.file_size();
    let mut summary = Summary::default();
    let (end, unread) = match gather(input.source, &mut summary) {
        Ok(end) => (end, None),
        // The part before the error is still reported.
        Err((end, error)) => (end, Some(error)),
    };
    if let Some(error) = &unread {
        stderr::say(NAME, &format_args!("cannot read {}: {error}", input.name));
    }
    if summary.all.packets == 0 && unread.is_none() {
        let explanation = match summary.damages.first() {
            Some(first) => nothing_read(first),
            None if end.size == 0 => "is empty".to_owned(),
            None => end.cut.map(|cut| cut.to_string()).unwrap_or_default(),
        };
        stderr::say(NAME, &format_args!("{} {explanation}", input.name));
        return 1;
    }
    let trace = Trace {
        name: &input.name,
        compression: input.compression,
        file_size,
        summary: &summary,
        end,
    };
    let account = findings::account(&summary, &end);
    let text = if arguments.json {
        format!("{:#}\n", json::json(&trace, &account.findings))
    } else {
        let detail = if arguments.all {
            Detail::All
        } else {
            Detail::Screen
        };
        report::report(&trace, &account.findings, detail)
    };
    match print(text.as_bytes()) {
        Err(problem) => {
            stderr::say(NAME, &problem);
            1
        }
        _ if unread.is_some() || summary.damaged > 0 => 1,
        _ if arguments.strict && !findings::is_whole(&summary, &account) => INCOMPLETE,
        _ => 0,
    }
}

/// The output about a trace in memory.
#[cfg(any(test, fuzzing))]
pub(crate) struct Description {
    pub(crate) packets: u64,
    pub(crate) damaged: u64,
    pub(crate) report: String,
    pub(crate) json: String,
}

/// Formats it in both ways.
#[cfg(any(test, fuzzing))]
#[allow(clippy::unwrap_used)]
pub(crate) fn describe(trace: &[u8]) -> Description {
    let mut summary = Summary::default();
    let end = gather(trace, &mut summary).unwrap();
    let account = findings::account(&summary, &end);
    let trace = Trace {
        name: "trace",
        compression: None,
        file_size: None,
        summary: &summary,
        end,
    };
    Description {
        packets: summary.all.packets,
        damaged: summary.damaged,
        report: report::report(&trace, &account.findings, Detail::All),
        json: json::json(&trace, &account.findings).to_string(),
    }
}

/// Reads a whole trace. On an error, also returns how far it came.
fn gather(source: impl Read, summary: &mut Summary) -> Result<End, (End, io::Error)> {
    let mut source = Counting { source, bytes: 0 };
    let read = trace_file::read(&mut source, |piece| {
        summary.piece(piece);
        ControlFlow::<std::convert::Infallible>::Continue(())
    });
    match read {
        Ok(ControlFlow::Continue(end)) => Ok(end),
        Ok(ControlFlow::Break(never)) => match never {},
        Err(error) => {
            let end = End {
                size: source.bytes,
                cut: None,
            };
            Err((end, error))
        }
    }
}

/// Counts the bytes that are read.
struct Counting<R> {
    source: R,
    bytes: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(into)?;
        self.bytes += count as u64;
        Ok(count)
    }
}
