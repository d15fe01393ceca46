//! `ferretto convert`: turns traces into other formats, and other formats into traces.
//!
//! [`applet`](crate::applet) calls it, and `ferretto profile` calls [`write`] for its recording. The input is a Perfetto trace, Chrome's
//! JSON, a recording of `perf` or folded stacks, recognised by its first bytes ([`source`]). The last three become a trace first ([`import`]), in a file
//! without a name, so that each format that is written ([`formats`]) is made from a trace and from nothing else.
//!
//! A file that is written appears whole or not at all: it is filled only when everything has been converted. Exit codes: 0 when everything was
//! converted, also if a trace ends inside a packet; 1 if the input is damaged (what can be read is converted) or cannot be read, or has nothing for
//! that format, or the output cannot be written; 2 for a wrong command line.

mod annotations;
mod chrome_json;
mod destination;
mod firefox;
mod flame_graph;
mod folded;
mod formats;
mod import;
mod losses;
mod of;
mod pprof;
mod recorded;
mod sorted_spool;
mod source;
#[cfg(any(test, fuzzing))]
mod survive;
mod systrace;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::{CommandFactory, Parser};

pub(crate) use formats::{Format, Packing, SampleFormat, is_named_as_perf_recording};
pub(crate) use losses::losses;
pub(crate) use of::{Of, events};
pub(crate) use recorded::{copy_with, each_packet_of, write_file};
#[cfg(any(test, fuzzing))]
pub(crate) use survive::convert as survive;

use formats::write;

use crate::figures::Count;
use crate::samples::{Recorder, Thread};
use crate::{stderr, text, usage};
use destination::Destination;
use ferretto_trace_file::{self as trace_file, Damage, End, PACKET_TAG, Piece, nothing_read};
use ferretto_wire::push_varint;
use source::{Kind, Source};

const NAME: &str = "ferretto convert";
/// The most damaged places that are reported one by one.
const TOLD: usize = 10;

/// Converts traces to other formats, and other formats to traces.
///
/// It reads Perfetto traces, Chrome's JSON, recordings of perf (perf.data) and folded stacks, compressed or not.
///
/// It writes traces, pprof profiles, folded stacks, flame graphs, profiles for the Firefox profiler, Chrome's JSON, and text.
/// A FILE whose name ends with .gz is compressed.
///
/// Examples:
///
///   ferretto convert -o profile.pb.gz trace.pftrace
///
///   ferretto convert --to folded trace.pftrace | grep main
///
///   ferretto convert -o trace.pftrace perf.data
///
/// Exits with 0 if everything was converted, and with 1 if the input is damaged or has nothing for that format.
#[derive(Debug, Parser)]
#[command(name = "convert", bin_name = NAME, disable_version_flag = true, verbatim_doc_comment)]
struct Args {
    /// Convert this file, plain or compressed with gzip, zstd or xz; - is stdin
    #[arg(value_name = "INPUT")]
    input: OsString,
    /// Write this format [default: by the ending of --out]
    #[arg(long, value_name = "FORMAT", value_enum)]
    to: Option<Format>,
    /// Read this format [default: by the first bytes of INPUT]
    #[arg(long, value_name = "FORMAT", value_enum)]
    from: Option<Kind>,
    /// Write into this file; - is stdout, and the default
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Convert this of a trace with samples or heap profiles [default: cpu if it has any, else live]
    #[arg(long, value_name = "WHAT", value_enum)]
    of: Option<Of>,
    /// Convert only the samples of this process; may be repeated
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Convert only the samples of this thread; may be repeated
    #[arg(long, visible_alias = "tid", value_name = "TID", value_delimiter = ',')]
    thread: Vec<u32>,
}

pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// The reason why nothing was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConvertError {
    #[error("name the format with --to, or a file with a known ending with --out")]
    NoFormat,
    #[error("the ending of {0} stands for no format; name one with --to")]
    UnknownEnding(String),
    #[error(
        "{0}: recordings of perf are read here, not written; name a trace with --out, as in trace.pftrace"
    )]
    PerfData(String),
    #[error("cannot open {name}: {source}")]
    Open { name: String, source: io::Error },
    #[error("cannot read {name}: {source}")]
    Read { name: String, source: io::Error },
    #[error("{name}: {problem}")]
    Import {
        name: String,
        problem: import::ImportError,
    },
    #[error("cannot write {name}: {source}")]
    Write { name: String, source: io::Error },
    #[error("{0} is the input itself; name another file for the output")]
    SameFile(String),
    #[error("{name} {explanation}")]
    NothingRead { name: String, explanation: String },
    #[error(
        "{name} has no samples with call stacks: record some with `ferretto profile` or `ferretto heap`, or with the data sources linux.perf or android.heapprofd"
    )]
    NoSamples { name: String },
    #[error(
        "{name} has no samples with call stacks of these processes and threads; leave --pid and --thread out to convert all"
    )]
    NoneChosen { name: String },
    #[error(
        "--pid, --thread and --of choose samples, but this format has none; --to pprof, folded, flamegraph and firefox have them"
    )]
    NoSampleFormat,
    #[error("{name} has no {of}; leave --of out to convert what it has")]
    NotOf { name: String, of: Of },
    #[error("{name} has no {lacking}")]
    NoEvents { name: String, lacking: &'static str },
    #[error(
        "{name}: a heap profile has sums and no samples with times, which the Firefox profiler needs; use --to pprof, folded or flamegraph"
    )]
    HeapForFirefox { name: String },
}

/// Runs with the arguments after the program's name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let arguments: Args = match usage::arguments(NAME, words) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match convert(&arguments) {
        Ok(code) => code,
        Err(ConvertError::Write { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(problem) => {
            stderr::say(NAME, &problem);
            match problem {
                ConvertError::NoFormat
                | ConvertError::UnknownEnding(_)
                | ConvertError::PerfData(_)
                | ConvertError::NoSampleFormat => usage::USAGE,
                _ => 1,
            }
        }
    }
}

fn convert(arguments: &Args) -> Result<u8, ConvertError> {
    let format = format(arguments)?;
    let sample_format = format.of_samples();
    let chooses = arguments.of.is_some() || !(arguments.pid.is_empty() && arguments.thread.is_empty());
    if sample_format.is_none() && chooses {
        return Err(ConvertError::NoSampleFormat);
    }
    let source = Source::open(&arguments.input, arguments.from)?;
    let destination = Destination::new(arguments.out.as_deref(), format, source.file.as_ref())?;
    let name = source.name.clone();
    let outcome = match sample_format {
        Some(sample_format) => samples(arguments, source, sample_format, destination)?,
        None => packets(source, format, destination)?,
    };
    tell(&name, &outcome)
}

/// Returns the format to write.
fn format(arguments: &Args) -> Result<Format, ConvertError> {
    match (arguments.to, &arguments.out) {
        (Some(format), _) => Ok(format),
        (None, Some(path)) => Format::of_file(path).ok_or_else(|| {
            let name = path.display().to_string();
            match is_named_as_perf_recording(path) {
                true => ConvertError::PerfData(name),
                false => ConvertError::UnknownEnding(name),
            }
        }),
        (None, None) => Err(ConvertError::NoFormat),
    }
}

/// The result of reading a trace.
#[derive(Debug)]
struct Outcome {
    packets: u64,
    damaged: u64,
    damages: Vec<Damage>,
    end: End,
}

impl Outcome {
    /// Whether there are packets, and all of them could be read.
    fn is_whole(&self) -> bool {
        self.packets > 0 && self.damaged == 0
    }
}

/// The reason why a conversion ended early.
#[derive(Debug)]
enum Failure {
    /// The input cannot be read to its end.
    Read(io::Error),
    Write(io::Error),
    /// The trace is whole and has nothing for the format. The words say what it lacks, and what helps.
    Nothing(&'static str),
}

impl Failure {
    /// Returns the failure with the names of the input and of the output.
    fn of(self, input: &str, output: &str) -> ConvertError {
        match self {
            Failure::Read(source) => ConvertError::Read {
                name: input.to_owned(),
                source,
            },
            Failure::Write(source) => ConvertError::Write {
                name: output.to_owned(),
                source,
            },
            Failure::Nothing(lacking) => ConvertError::NoEvents {
                name: input.to_owned(),
                lacking,
            },
        }
    }
}

/// Passes all packets of a trace to `visit`. Breaks off if it fails.
fn each_packet(
    source: impl Read,
    mut visit: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<Outcome, Failure> {
    let (mut packets, mut damaged, mut damages) = (0, 0, Vec::new());
    let read = trace_file::read(source, |piece| {
        match piece {
            Piece::Packet(packet) => {
                packets += 1;
                if let Err(error) = visit(packet) {
                    return ControlFlow::Break(error);
                }
            }
            Piece::Damage(damage) => {
                damaged += 1;
                if damages.len() < TOLD {
                    damages.push(damage);
                }
            }
            Piece::CompressedStart(_) | Piece::CompressedEnd => {}
        }
        ControlFlow::Continue(())
    });
    match read {
        Ok(ControlFlow::Continue(end)) => Ok(Outcome {
            packets,
            damaged,
            damages,
            end,
        }),
        Ok(ControlFlow::Break(error)) => Err(Failure::Write(error)),
        Err(error) => Err(Failure::Read(error)),
    }
}

impl From<text::Outcome> for Outcome {
    fn from(printed: text::Outcome) -> Outcome {
        Outcome {
            packets: printed.packets,
            damaged: printed.damaged,
            damages: printed.damages,
            end: printed.end,
        }
    }
}

impl From<text::PrintError> for Failure {
    fn from(error: text::PrintError) -> Failure {
        match error {
            text::PrintError::Read(error) => Failure::Read(error),
            text::PrintError::Write(error) => Failure::Write(error),
        }
    }
}

/// Converts to a format of samples.
fn samples(
    arguments: &Args,
    source: Source,
    format: SampleFormat,
    destination: Destination,
) -> Result<Outcome, ConvertError> {
    let chosen = |thread: Thread| {
        (arguments.pid.is_empty() || arguments.pid.contains(&thread.pid))
            && (arguments.thread.is_empty() || arguments.thread.contains(&thread.tid))
    };
    let name = source.name;
    let mut recorder = Recorder::new(format.keep(), chosen);
    let read = each_packet(source.trace, |packet| {
        recorder.packet(packet);
        Ok(())
    });
    let outcome = match read {
        Ok(outcome) => outcome,
        Err(failure) => {
            destination.abandon();
            return Err(failure.of(&name, &name));
        }
    };
    if outcome.packets == 0 {
        destination.abandon();
        return Ok(outcome);
    }
    let recording = recorder.finish();
    for loss in losses(&recording.profile) {
        stderr::say(NAME, &format_args!("{name}: {loss}"));
    }
    if recording.totals.is_empty() {
        destination.abandon();
        return Err(match arguments.pid.is_empty() && arguments.thread.is_empty() {
            true => ConvertError::NoSamples { name },
            false => ConvertError::NoneChosen { name },
        });
    }
    let events = match events(&recording, arguments.of) {
        Ok(events) => events,
        Err(of) => {
            destination.abandon();
            return Err(ConvertError::NotOf { name, of });
        }
    };
    let is_heap = of::is_heap(&recording, &events);
    if is_heap && format == SampleFormat::Firefox {
        destination.abandon();
        return Err(ConvertError::HeapForFirefox { name });
    }
    if let (true, Some(others)) = (format.is_of_one_event(), of::others(&recording, &events)) {
        stderr::say(NAME, &format_args!("{name}: {others}"));
    }
    if arguments.of.is_none() && !is_heap && !recording.profile.heaps.is_empty() {
        stderr::say(
            NAME,
            &format_args!("{name}: it has heap profiles too; --of live converts what was not freed"),
        );
    }
    destination.fill(&name, |out| {
        write(&recording, format, &events, out).map_err(Failure::Write)
    })?;
    Ok(outcome)
}

/// Converts to a format that is written while packets are read.
fn packets(source: Source, format: Format, destination: Destination) -> Result<Outcome, ConvertError> {
    let (name, trace) = (source.name, source.trace);
    destination.fill(&name, |out| match format {
        Format::Text => text::print(trace, out).map(Outcome::from).map_err(Failure::from),
        Format::Json => chrome_json(&name, trace, out),
        Format::Systrace => systrace(&name, trace, out),
        _ => copy(trace, out),
    })
}

/// Writes track events as Chrome's JSON.
fn chrome_json(name: &str, trace: impl Read, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let mut json = chrome_json::ChromeJson::new().map_err(Failure::Write)?;
    let outcome = each_packet(trace, |packet| json.packet(packet))?;
    for (reason, count) in &json.skipped {
        stderr::say(
            NAME,
            &format_args!("{name}: {} {reason}; they are left out", Count(*count)),
        );
    }
    if json.is_empty() && outcome.is_whole() {
        return Err(Failure::Nothing(
            "track events; --to systrace has kernel events, and --to pprof and others have samples",
        ));
    }
    json.finish(out).map_err(Failure::Write)?;
    Ok(outcome)
}

/// Writes kernel events as text.
fn systrace(name: &str, trace: impl Read, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let mut text = systrace::Systrace::new().map_err(Failure::Write)?;
    let outcome = each_packet(trace, |packet| text.packet(packet))?;
    if text.timeless > 0 {
        let count = Count(text.timeless);
        stderr::say(
            NAME,
            &format_args!("{name}: {count} events have a time on an unknown clock; they are left out"),
        );
    }
    if text.is_empty() && outcome.is_whole() {
        return Err(Failure::Nothing(
            "kernel events: record some, for example with `ferretto sched/sched_switch`, or with the data source linux.ftrace",
        ));
    }
    text.finish(out).map_err(Failure::Write)?;
    Ok(outcome)
}

/// Writes the packets as they are, out of all compression.
fn copy(trace: impl Read, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let mut head = Vec::new();
    each_packet(trace, |packet| {
        head.clear();
        head.push(PACKET_TAG);
        push_varint(&mut head, packet.len() as u64);
        out.write_all(&head)?;
        out.write_all(packet)
    })
}

/// Reports on stderr the parts that were not converted; returns the exit code.
fn tell(name: &str, outcome: &Outcome) -> Result<u8, ConvertError> {
    check_not_empty(name, outcome)?;
    if let Some(cut) = outcome.end.cut {
        stderr::say(NAME, &format_args!("{name} {cut}"));
    }
    for damage in &outcome.damages {
        stderr::say(NAME, &format_args!("{name} is {damage}"));
    }
    let untold = outcome.damaged - outcome.damages.len() as u64;
    if untold > 0 {
        stderr::say(
            NAME,
            &format_args!("{name} has {} more damaged places", Count(untold)),
        );
    }
    Ok(u8::from(outcome.damaged > 0))
}

/// Says what a file without packets is.
fn check_not_empty(name: &str, outcome: &Outcome) -> Result<(), ConvertError> {
    if outcome.packets == 0 {
        let explanation = match (outcome.damages.first(), outcome.end.cut) {
            (Some(first), _) => nothing_read(first),
            (None, Some(cut)) => cut.to_string(),
            (None, None) => "is empty".to_owned(),
        };
        return Err(ConvertError::NothingRead {
            name: name.to_owned(),
            explanation,
        });
    }
    Ok(())
}
