//! `ferretto symbolize`: writes the names of functions into a trace that has only addresses.
//!
//! [`applet`](crate::applet) calls it, for traces that were recorded elsewhere or before debug information was installed. `ferretto profile` does the
//! same with each trace that it records ([`append`]). The names are `ModuleSymbols` packets at the end of the trace ([`modules`]), where the UI and
//! upstream's trace processor find them. Exit codes: 0 if any address has a name in the end, 1 if none has or the trace cannot be read or written, 2
//! for a wrong command line.

mod modules;

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use ferretto_wire::push_varint;

use crate::convert::{self, ConvertError};
use crate::figures::{Count, Counted};
use crate::samples::{Keep, Profile, Recorder};
use crate::usage;
use ferretto_trace_file::PACKET_TAG;
pub(crate) use modules::{Found, debug_files, name};

const NAME: &str = "ferretto symbolize";
/// Modules without names that are reported one by one.
const TOLD: usize = 10;

/// Writes the names of functions into a trace of samples, or of events with call stacks.
///
/// It finds the files of programs and libraries by build id: at the paths where they were mapped, in /usr/lib/debug, and in the
/// cache of debuginfod. It appends names and lines to the trace, where the UI finds them. `ferretto profile` does all this itself.
///
/// Exits with 0 if any address of the trace has a name in the end, else with 1.
#[derive(Debug, Parser)]
#[command(name = "symbolize", bin_name = NAME, disable_version_flag = true)]
struct Args {
    /// Write names into this trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Write trace and names into this file, and leave TRACE as it is
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Look here first, in the layout of /usr/lib/debug; may be repeated
    #[arg(long, value_name = "FOLDER")]
    debug_folder: Vec<PathBuf>,
}

pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// The reason why a trace has no names.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SymbolizeError {
    #[error(transparent)]
    Trace(#[from] ConvertError),
    #[error("cannot append to {path}: {source}; name another file with -o")]
    Append { path: PathBuf, source: io::Error },
    #[error("{0} is compressed or damaged, so nothing can be appended to it; name another file with -o")]
    NotAppendable(PathBuf),
    #[error("{0} has no samples and no events with call stacks, so there is nothing to name")]
    NoSamples(PathBuf),
}

/// Runs with the arguments after the program's name; returns the exit code.
pub(crate) fn run(words: Vec<std::ffi::OsString>) -> u8 {
    let arguments: Args = match usage::arguments(NAME, words) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match run_with(&arguments) {
        Ok(found) => {
            for line in lines(&found) {
                eprintln!("{NAME}: {line}");
            }
            u8::from(found.named == 0 && found.addresses > 0)
        }
        Err(error) => {
            eprintln!("{NAME}: {error}");
            1
        }
    }
}

fn run_with(arguments: &Args) -> Result<Found, SymbolizeError> {
    let mut recorder = Recorder::new(Keep::Totals, |_| true);
    let is_whole = convert::each_packet_of(&arguments.trace, |packet| recorder.packet(packet))?;
    let recording = recorder.finish();
    if recording.totals.is_empty() && recording.profile.stacks_of_events == 0 {
        return Err(SymbolizeError::NoSamples(arguments.trace.clone()));
    }
    let mut profile = recording.profile;
    let mut files = debug_files();
    files
        .debug_folders
        .splice(0..0, arguments.debug_folder.iter().cloned());
    match &arguments.out {
        None if !is_whole => Err(SymbolizeError::NotAppendable(arguments.trace.clone())),
        None => append_from(&mut profile, &arguments.trace, &files),
        Some(out) => {
            let mut symbols = Vec::new();
            let found = modules::symbolize(&mut profile, &files, |packet| {
                push_packet(&mut symbols, packet);
                Ok::<(), SymbolizeError>(())
            })?;
            convert::copy_with(&arguments.trace, &symbols, out)?;
            Ok(found)
        }
    }
}

/// Appends the names of a profile's addresses to the trace that it was read from, and adds them to the profile.
///
/// # Errors
/// If the trace cannot be written.
pub(crate) fn append(profile: &mut Profile, trace: &Path) -> Result<Found, SymbolizeError> {
    append_from(profile, trace, &debug_files())
}

fn append_from(
    profile: &mut Profile,
    trace: &Path,
    files: &ferretto_unwind::symbols::DebugFiles,
) -> Result<Found, SymbolizeError> {
    let failed = |source| SymbolizeError::Append {
        path: trace.to_owned(),
        source,
    };
    let file = OpenOptions::new().append(true).open(trace).map_err(failed)?;
    let mut out = BufWriter::new(file);
    let mut framed = Vec::new();
    let found = modules::symbolize(profile, files, |packet| {
        framed.clear();
        push_packet(&mut framed, packet);
        out.write_all(&framed)
    });
    let found = found.map_err(failed)?;
    out.flush().map_err(failed)?;
    Ok(found)
}

/// Appends a packet as a field of `Trace`.
fn push_packet(out: &mut Vec<u8>, packet: &[u8]) {
    out.push(PACKET_TAG);
    push_varint(out, packet.len() as u64);
    out.extend_from_slice(packet);
}

/// Says what was found, and which modules have no names.
pub(crate) fn lines(found: &Found) -> Vec<String> {
    if found.addresses == 0 {
        return vec!["all addresses already have names".to_owned()];
    }
    let mut lines = vec![format!(
        "named {} of {}",
        Count(found.named),
        Counted(found.addresses, "address")
    )];
    for missing in found.missing.iter().take(TOLD) {
        let build_id = match missing.build_id.as_str() {
            "" => String::new(),
            digits => format!(", build id {digits}"),
        };
        lines.push(format!(
            "no names for {} in {}{build_id}: {}",
            Counted(missing.addresses, "address"),
            missing.path,
            missing.reason
        ));
    }
    if let Some(more @ 1..) = found.missing.len().checked_sub(TOLD) {
        lines.push(format!(
            "no names for addresses in {}",
            Counted(more as u64, "more module")
        ));
    }
    lines
}
