//! `ferretto heap`: from nothing to a picture of where the memory goes.
//!
//! [`applet`](crate::applet) calls it. The flags ([`args`]) become a trace config ([`config`]), which is recorded like any other
//! ([`profiling`](crate::profiling)). A COMMAND is started with a library that samples what it allocates ([`library`]), if the system will load it
//! ([`suitability`]); running processes have to carry the client already ([`targets`]). Then the trace is read, names of functions are appended, it is
//! converted if another format is wanted, and the functions that hold most are listed ([`summary`]).
//!
//! If `ferretto` starts a service of its own, only the COMMAND finds the profiler of that. With another service, other programs may be profiled as well;
//! the list and other formats then have only the processes of the command.

mod args;
mod config;
mod library;
mod other_profilers;
mod suitability;
mod summary;
mod targets;

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::CommandFactory;
use ferretto_proto::messages::{Message, TraceConfig};
use ferretto_proto::text::{Printer, TRACE_CONFIG};

use crate::account::listed;
use crate::convert::{self, losses};
use crate::perfetto::{CommandLine, FAILURE, Filled, SUCCESS, Strictness};
use crate::profiling::{Goal, Schedule, Take, Wish, arguments};
use crate::samples::{Keep, Recorder, Recording, Thread};
use crate::service::FindService;
use crate::stderr::tell;
use crate::symbolize;
use crate::usage::USAGE;
use args::{Args, ArgsError, NAME};
use config::KernelEvents;
use summary::say;

pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// The reason why nothing was recorded, or a trace was not made a profile.
#[derive(Debug, thiserror::Error)]
enum HeapError {
    #[error(transparent)]
    Args(#[from] ArgsError),
    #[error(transparent)]
    Target(#[from] targets::TargetError),
    #[error(transparent)]
    Library(#[from] library::LibraryError),
    #[error("cannot print the config: {0}")]
    Print(String),
    #[error(transparent)]
    Convert(#[from] convert::ConvertError),
    #[error(transparent)]
    Symbolize(#[from] symbolize::SymbolizeError),
    #[error(
        "no process was profiled: no program that ran carries the client, or none had a descriptor left to connect (`ulimit -n`), or the lines above \
         say what was not recorded"
    )]
    NoProcess,
    #[error(
        "no allocation was sampled: little was allocated, or the programs had too few descriptors to connect (`ulimit -n`), or the lines above say \
         what was not recorded"
    )]
    NoSamples,
}

/// Runs with the arguments after the program's name; returns the exit code. A command takes the first of the two ways to find a service. Programs that
/// run already need the second: if it starts a service, they find its heap profiler.
pub(crate) fn run(words: Vec<OsString>, for_command: FindService<'_>, for_running: FindService<'_>) -> u8 {
    let arguments: Args = match arguments(NAME, words, &other_profilers::ADVICE) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if let Some(advice) = other_profilers::advice_about_words(&arguments.command) {
        say(advice);
        return USAGE;
    }
    match prepared(&arguments) {
        Ok(Some((wish, goal))) => match arguments.command.is_empty() {
            true => record(&arguments, wish, &goal, for_running),
            false => record(&arguments, wish, &goal, for_command),
        },
        Ok(None) => SUCCESS,
        Err(error) => {
            say(&error);
            match error {
                HeapError::Args(_) => USAGE,
                _ => FAILURE,
            }
        }
    }
}

/// The subject of the recording, without the goal.
struct Prepared {
    config: TraceConfig,
    duration: Option<std::time::Duration>,
    command: Option<CommandLine>,
}

/// Checks everything before something is recorded. `None` if only the config was wanted.
fn prepared(arguments: &Args) -> Result<Option<(Prepared, Goal)>, HeapError> {
    arguments.check_target()?;
    let goal = arguments.goal()?;
    let config = config::config(arguments, KernelEvents::of_user())?;
    let duration = arguments.duration()?;
    if arguments.print_config {
        print_config(&config)?;
        return Ok(None);
    }
    targets::check(&arguments.pid)?;
    let command = match CommandLine::of(arguments.command.iter().cloned()) {
        None => None,
        Some(command) => {
            let library = library::find(arguments.library.as_deref())?;
            if let Some((program, reason)) = suitability::unsuitable(command.program(), &library) {
                say(&reason.explained(&program));
            }
            Some(library::preloaded(command, &library))
        }
    };
    let prepared = Prepared {
        config,
        duration,
        command,
    };
    Ok(Some((prepared, goal)))
}

fn print_config(config: &TraceConfig) -> Result<(), HeapError> {
    let failed = |error: &dyn std::fmt::Display| HeapError::Print(error.to_string());
    let printer = Printer::new(TRACE_CONFIG);
    let printer = printer.ok_or_else(|| failed(&"this program has no schema of trace configs"))?;
    let mut text = Vec::new();
    printer
        .print(&config.encode_to_vec(), 0, &mut text)
        .map_err(|error| failed(&error))?;
    match std::io::Write::write_all(&mut std::io::stdout(), &text) {
        // A closed pipe is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(failed(&error)),
        _ => Ok(()),
    }
}

fn record(arguments: &Args, prepared: Prepared, goal: &Goal, find_service: FindService<'_>) -> u8 {
    let wish = Wish {
        name: NAME,
        goal,
        config: prepared.config,
        is_quiet: arguments.quiet,
        strictness: match arguments.strict {
            true => Strictness::Strict,
            false => Strictness::Lenient,
        },
        once_started: prepared.duration,
        command: prepared.command,
        below: None,
    };
    let profiler = RefCell::new(Profiler::OfOthersToo);
    let mut find_service = || {
        let service = find_service()?;
        if let Some(started) = &service.started {
            profiler.replace(Profiler::Own {
                socket: started.heap_socket.clone(),
            });
        }
        Ok(service)
    };
    wish.record(&mut find_service, |filled| {
        finish(arguments, goal, filled, &profiler.borrow())
    })
}

/// The heap profiler of the recording.
#[derive(Debug)]
enum Profiler {
    /// That of a service that is our own: no programs but the command's find it, at this socket.
    Own { socket: Option<OsString> },
    /// It may have profiled other programs, too.
    OfOthersToo,
}

/// Makes a profile of a trace, and shows it.
fn finish(arguments: &Args, goal: &Goal, filled: &Filled, profiler: &Profiler) -> Result<(), HeapError> {
    let root = filled.recorded.command;
    let recording = read(
        &filled.trace,
        root.filter(|_| matches!(profiler, Profiler::OfOthersToo)),
    )?;
    let profiled = recording.profile.heaps.iter().map(|heap| heap.pid).collect();
    let shown = show(arguments, goal, filled, recording);
    if root.is_some() {
        tell_of_survivors(&profiled, profiler);
    }
    shown
}

/// Tells which processes the command has left behind.
fn tell_of_survivors(profiled: &HashSet<u32>, profiler: &Profiler) {
    let socket = match profiler {
        Profiler::Own { socket } => socket.as_deref(),
        Profiler::OfOthersToo => None,
    };
    let survivors = targets::survivors(profiled, socket);
    let name = |survivor: &targets::Survivor| format!("{} ({})", survivor.pid, survivor.name);
    let Some(names) = listed(&survivors, name) else {
        return;
    };
    let how = match socket {
        Some(_) => {
            "to have all of it, keep the program in the foreground; or start `ferretto traced` and `ferretto heapprofd` before the program, \
             for `ferretto heap -p PID`"
        }
        None => "`ferretto heap -p PID` records it from now on",
    };
    say(&format_args!(
        "still running, and not recorded any more, because the recording has ended: {names}; {how}"
    ));
}

/// Shows a profile, and writes it if another format than that of the trace is wanted.
fn show(arguments: &Args, goal: &Goal, filled: &Filled, mut recording: Recording) -> Result<(), HeapError> {
    let root = filled.recorded.command;
    if let (Some(pid), Some(program)) = (root, arguments.command.first()) {
        let name = Path::new(program).file_name().unwrap_or(OsStr::new(""));
        recording
            .profile
            .names
            .suggest_process(pid, &name.to_string_lossy());
    }
    if recording.totals.is_empty() {
        losses(&recording.profile).iter().for_each(say);
        return Err(match recording.profile.heaps.is_empty() {
            true => HeapError::NoProcess,
            false => HeapError::NoSamples,
        });
    }
    let file = match goal.format.format().of_samples() {
        Some(format) => {
            let file = goal.file_beside(crate::perfetto::plan::unused_name());
            // Without a choice there are always some.
            let events = convert::events(&recording, None).unwrap_or_default();
            convert::write_file(&recording, format, &events, &file)?;
            file
        }
        None => filled.trace.clone(),
    };
    if !arguments.quiet {
        tell(&summary::summary(&recording, goal, &file));
        return Ok(());
    }
    losses(&recording.profile).iter().for_each(say);
    if goal.file.is_none() {
        // Nobody else knows the name. stdout is the command's.
        say(&format_args!("wrote {}", file.display()));
    }
    Ok(())
}

/// Reads the heap profiles of a trace: of the family of `root`, if there is one. Appends names of functions to the trace.
fn read(trace: &Path, root: Option<u32>) -> Result<Recording, HeapError> {
    let mut schedule = Schedule::default();
    if root.is_some() {
        convert::each_packet_of(trace, |packet| schedule.packet(Take::Parents, packet))?;
    }
    let family: Option<HashSet<u32>> = root.map(|root| schedule.family(root));
    let wants = |thread: Thread| family.as_ref().is_none_or(|family| family.contains(&thread.pid));
    let mut recorder = Recorder::new(Keep::Totals, wants);
    let is_whole = convert::each_packet_of(trace, |packet| recorder.packet(packet))?;
    let mut recording = recorder.finish();
    if is_whole && !recording.totals.is_empty() {
        symbolize::append(&mut recording.profile, trace)?;
    }
    Ok(recording)
}
