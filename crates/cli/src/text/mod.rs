//! `ferretto text`: prints a whole trace as protobuf text, packet by packet.
//!
//! [`applet`](crate::applet) calls it. The text is that of upstream's `traceconv text`, with the differences that [`Printer`] lists; compressed
//! packets are printed expanded, inside `compressed_packets { … }`. Damage becomes a comment in its place, and a line on stderr. Exit codes: 0 when
//! everything was printed, also if the file ends inside a packet (it may still be growing) or the reader of the text closed the pipe; 1 if the file
//! is empty, damaged, no trace, or cannot be read, or the text cannot be written; 2 for a wrong command line.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use ferretto_proto::text::{Fields, Printer, TRACE_PACKET};

use crate::private_file;
use crate::stderr;
use crate::usage;
use ferretto_trace_file::{self as trace_file, Damage, End, Input, Piece, nothing_read};

#[cfg(test)]
mod tests;

const NAME: &str = "ferretto text";
/// The amount of text that is collected before it is written.
const BUFFER: usize = 256 << 10;
/// The most damaged places that are reported one by one.
const TOLD: usize = 10;

/// Prints a whole trace as protobuf text.
///
/// Prints what `traceconv text` does, packet by packet as `packet { … }`, in the order of the file. Takes files of any size
/// and little memory. Damaged places become comments, and what can be read around them is printed.
///
/// Exits with 0 when all is printed, also if the file ends inside a packet, as one that is still being written does; with 1 if
/// it is empty, damaged or no trace.
#[derive(Debug, Parser)]
#[command(name = "text", bin_name = NAME, disable_version_flag = true)]
struct Args {
    /// The trace, also compressed with gzip, zstd or xz; - is stdin
    #[arg(value_name = "TRACE")]
    trace: OsString,
    /// Write the text into this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// Runs with the arguments after the program's name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let arguments: Args = match usage::arguments(NAME, words) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let failed = |problem: TextError| {
        stderr::say(NAME, &problem);
        1
    };
    let input = match open(&arguments) {
        Ok(input) => input,
        Err(problem) => return failed(problem),
    };
    let out: Box<dyn Write> = match &arguments.out {
        None => Box::new(io::stdout().lock()),
        Some(path) => match create(path, &input) {
            Ok(file) => Box::new(file),
            Err(problem) => return failed(problem),
        },
    };
    match print(input.source, out) {
        Ok(outcome) => tell(&input.name, &outcome),
        Err(PrintError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(PrintError::Write(source)) => failed(TextError::Write {
            path: arguments.out.unwrap_or_else(|| "stdout".into()),
            source,
        }),
        Err(PrintError::Read(source)) => failed(TextError::Read {
            name: input.name,
            source,
        }),
    }
}

/// The reason why the trace was not printed completely.
#[derive(Debug, thiserror::Error)]
enum TextError {
    #[error("cannot open {}: {source}", name.display())]
    Open { name: OsString, source: io::Error },
    #[error("cannot read {name}: {source}; what comes before is printed")]
    Read { name: String, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} is the trace itself; name another file for its text", .0.display())]
    SameFile(PathBuf),
}

fn open(arguments: &Args) -> Result<Input, TextError> {
    Input::open(&arguments.trace).map_err(|source| TextError::Open {
        name: arguments.trace.clone(),
        source,
    })
}

/// Creates or empties the file for the text, unless it is the trace itself.
fn create(path: &Path, input: &Input) -> Result<File, TextError> {
    let failed = |source| TextError::Write {
        path: path.to_owned(),
        source,
    };
    let (file, _) = private_file::open(File::options().write(true), path).map_err(failed)?;
    let there = file.metadata().map_err(failed)?;
    if let Some(trace) = &input.file {
        let trace = trace.metadata().map_err(failed)?;
        if (trace.dev(), trace.ino()) == (there.dev(), there.ino()) {
            return Err(TextError::SameFile(path.to_owned()));
        }
    }
    private_file::empty(&file).map_err(failed)?;
    Ok(file)
}

/// Reports on stderr the parts that were not printed and the reasons; returns the exit code.
fn tell(name: &str, outcome: &Outcome) -> u8 {
    if let Some(cut) = outcome.end.cut {
        stderr::say(NAME, &format_args!("{name} {cut}"));
    }
    if outcome.damaged == 0 {
        if outcome.end.size == 0 {
            stderr::say(NAME, &format_args!("{name} is empty"));
            return 1;
        }
        return 0;
    }
    if let (0, Some(first)) = (outcome.packets, outcome.damages.first()) {
        stderr::say(NAME, &format_args!("{name} {}", nothing_read(first)));
        return 1;
    }
    for damage in &outcome.damages {
        stderr::say(NAME, &format_args!("{name} is {damage}"));
    }
    let untold = outcome.damaged - outcome.damages.len() as u64;
    if untold > 0 {
        stderr::say(NAME, &format_args!("{name} has {untold} more damaged places"));
    }
    1
}

/// The result of printing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) packets: u64,
    /// The number of damaged places.
    pub(crate) damaged: u64,
    pub(crate) damages: Vec<Damage>,
    pub(crate) end: End,
}

/// The reason why printing ended early.
#[derive(Debug)]
pub(crate) enum PrintError {
    Read(io::Error),
    Write(io::Error),
}

/// Prints all packets of `trace`.
pub(crate) fn print(trace: impl Read, out: impl Write) -> Result<Outcome, PrintError> {
    let mut text = TraceText {
        printer: Printer::new(TRACE_PACKET).expect("our schema has it, as every test here shows"),
        out: BufWriter::with_capacity(BUFFER, out),
        level: 0,
        packets: 0,
        damaged: 0,
        damages: Vec::new(),
    };
    let read = trace_file::read(trace, |piece| match text.piece(piece) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    });
    match read {
        Ok(ControlFlow::Continue(end)) => {
            text.out.flush().map_err(PrintError::Write)?;
            Ok(Outcome {
                packets: text.packets,
                damaged: text.damaged,
                damages: text.damages,
                end,
            })
        }
        Ok(ControlFlow::Break(error)) => Err(PrintError::Write(error)),
        Err(error) => {
            text.out.flush().map_err(PrintError::Write)?;
            Err(PrintError::Read(error))
        }
    }
}

struct TraceText<W: Write> {
    printer: Printer,
    out: BufWriter<W>,
    /// The nesting level: 1 inside a compressed packet, else 0.
    level: usize,
    packets: u64,
    damaged: u64,
    damages: Vec<Damage>,
}

impl<W: Write> TraceText<W> {
    fn piece(&mut self, piece: Piece<'_>) -> io::Result<()> {
        match piece {
            Piece::Packet(packet) => self.packet(packet),
            Piece::CompressedStart(compressed) => {
                self.level = 1;
                let name = Fields::of(TRACE_PACKET)
                    .and_then(|known| known.name(compressed.field))
                    .unwrap_or_default();
                writeln!(self.out, "{name} {{")
            }
            Piece::CompressedEnd => {
                self.level = 0;
                self.out.write_all(b"}\n")
            }
            Piece::Damage(damage) => {
                writeln!(self.out, "{:1$}# {damage}", "", 2 * self.level)?;
                self.damaged += 1;
                if self.damages.len() < TOLD {
                    self.damages.push(damage);
                }
                Ok(())
            }
        }
    }

    fn packet(&mut self, packet: &[u8]) -> io::Result<()> {
        self.packets += 1;
        let margin = if self.level == 0 { "" } else { "  " };
        writeln!(self.out, "{margin}packet {{")?;
        if packet.is_empty() {
            // Upstream prints this line break as well.
            self.out.write_all(b"\n")?;
        }
        self.printer.print(packet, self.level + 1, &mut self.out)?;
        writeln!(self.out, "{margin}}}")
    }
}
