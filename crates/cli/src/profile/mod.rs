//! `ferretto profile`: from nothing to a picture of where the time goes.
//!
//! [`applet`](crate::applet) calls it. The flags ([`args`]) become a trace config ([`config`]), which [`perfetto`](crate::perfetto) records like any
//! other: with the same messages, Ctrl-C, exit codes, and with a COMMAND, whose exit status is passed on. The trace is then read twice: for what the
//! scheduler did ([`Schedule`]), and for the samples. With that it is converted, if another format is wanted, and the functions with the most samples
//! are listed ([`top`](crate::profiling::top)).
//!
//! With a COMMAND it and all that it starts is sampled. Where the kernel cannot count these alone the whole machine is, and the trace has all of it; the
//! list and other formats have only the processes of the command. Where threads wait is sampled when they leave a CPU, and weighted by the time until they have one again ([`off_cpu`]).

mod args;
mod config;
mod event;
mod live;
mod off_cpu;
mod other_profilers;
mod targets;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;

use crate::convert::{self, SampleFormat, losses};
use crate::figures::Counted;
use crate::perfetto::{self, Below, CommandLine, FAILURE, Filled, Strictness};
use crate::profiling::{Goal, Schedule, Take, Wish, arguments, top};
use crate::samples::{EventId, Keep, Recorder, Recording, Thread};
use crate::service::FindService;
use crate::stderr::{self, tell};
use crate::stdout::Screen;
use crate::symbolize;
use crate::usage::USAGE;
use args::{Args, ArgsError, NAME};
use live::LiveTop;
use targets::Targets;

pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// The reason why a trace was not made a profile.
#[derive(Debug, thiserror::Error)]
enum ProfileError {
    #[error(transparent)]
    Convert(#[from] convert::ConvertError),
    #[error(transparent)]
    Symbolize(#[from] symbolize::SymbolizeError),
    #[error("no samples{0}: either nothing ran there, or the lines above say what was not recorded")]
    NoSamples(&'static str),
}

/// Runs with the arguments after the program's name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>, find_service: FindService<'_>) -> u8 {
    let arguments: Args = match arguments(NAME, words, &other_profilers::ADVICE) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let planned = arguments.goal().and_then(|goal| {
        let targets = arguments.targets()?;
        let config = config::config(&arguments, &targets)?;
        Ok((goal, targets, config, arguments.duration()?))
    });
    let (goal, targets, config, duration) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            say(&error);
            return match error {
                // The flags are right, but this machine lacks what they name.
                ArgsError::Target(_) | ArgsError::TooOften { .. } => FAILURE,
                _ => USAGE,
            };
        }
    };
    let wish = Wish {
        name: NAME,
        goal: &goal,
        config,
        is_quiet: arguments.quiet,
        strictness: match arguments.strict {
            true => Strictness::Strict,
            false => Strictness::Lenient,
        },
        // The profiler may take long to start, and nothing would be sampled in that time.
        once_started: duration,
        command: CommandLine::of(arguments.command.iter().cloned()),
        below: live_top(&arguments, &targets),
    };
    wish.record(find_service, |filled| finish(&arguments, &targets, &goal, filled))
}

/// Returns the list of functions that a terminal shows meanwhile, if it is wanted.
fn live_top(arguments: &Args, targets: &Targets) -> Option<Box<dyn Below>> {
    if !arguments.top {
        return None;
    }
    if Screen::of_stderr() == Screen::Pipe {
        say("--top: stderr is no terminal, so the functions are listed at the end only");
        return None;
    }
    Some(Box::new(LiveTop::new(targets.clone())))
}

/// Makes a profile of a trace, and shows it.
fn finish(arguments: &Args, targets: &Targets, goal: &Goal, filled: &Filled) -> Result<(), ProfileError> {
    let root = filled
        .recorded
        .command
        .filter(|_| targets.processes.is_empty() && !arguments.all);
    let format = goal.format.format().of_samples();
    let (recording, family) = read(arguments, targets, format, &filled.trace, root)?;
    if recording.totals.is_empty() {
        losses(&recording.profile).iter().for_each(say);
        return Err(ProfileError::NoSamples(match &family {
            Some(_) => " of the command",
            None => targets.described(),
        }));
    }
    let events = shown_events(&recording);
    let file = match (format, events.first()) {
        (Some(format), Some(first)) => {
            let file = goal.file_beside(perfetto::plan::unused_name());
            // Firefox's format has room for weights of two seconds in ns, so waiting goes there only if there is nothing else, and counts.
            let event = match format {
                SampleFormat::Firefox => events
                    .iter()
                    .find(|event| !recording.is_waiting(**event))
                    .unwrap_or(first),
                SampleFormat::Pprof | SampleFormat::Folded | SampleFormat::FlameGraph => first,
            };
            if events.len() > 1 && format != SampleFormat::Pprof {
                let name = recording
                    .profile
                    .events
                    .get(event.0 as usize)
                    .map_or("", |event| &event.name);
                say(&format_args!(
                    "{} holds the samples of {name} only; a .pb.gz file holds those of all events",
                    file.display()
                ));
            }
            let others = events.iter().filter(|other| *other != event);
            let events: Vec<EventId> = std::iter::once(event).chain(others).copied().collect();
            convert::write_file(&recording, format, &events, &file)?;
            file
        }
        _ => filled.trace.clone(),
    };
    if !arguments.quiet {
        tell(&summary(&recording, family.as_ref(), goal, &file));
        return Ok(());
    }
    losses(&recording.profile).iter().for_each(say);
    if goal.file.is_none() {
        // Nobody else knows the name. stdout is the command's.
        say(&format_args!("wrote {}", file.display()));
    }
    Ok(())
}

/// Reads the samples of a trace: of the family of `root`, if there is one, and with waiting weighted by its time.
fn read(
    arguments: &Args,
    targets: &Targets,
    format: Option<SampleFormat>,
    trace: &Path,
    root: Option<u32>,
) -> Result<(Recording, Option<HashSet<u32>>), ProfileError> {
    let mut schedule = Schedule::default();
    let take = match arguments.off_cpu {
        true => Take::ParentsAndSwitches,
        false => Take::Parents,
    };
    if root.is_some() || arguments.off_cpu {
        convert::each_packet_of(trace, |packet| schedule.packet(take, packet))?;
        schedule.sort();
    }
    let family = root.map(|root| schedule.family(root));
    // Without kernel events nobody knows all that the command started. But then the kernel has counted nobody else.
    let is_alone = root.is_some_and(|root| schedule.has_samples_of_family_only(root));
    let wants = |thread: Thread| match &family {
        None => targets.has(thread),
        Some(_) if is_alone => true,
        Some(family) => family.contains(&thread.pid) || family.contains(&thread.tid),
    };
    let keep = match (arguments.off_cpu, format) {
        (true, _) => Keep::Samples,
        (false, Some(format)) => format.keep(),
        (false, None) => Keep::Totals,
    };
    let mut recorder = Recorder::new(keep, wants);
    let is_whole = convert::each_packet_of(trace, |packet| recorder.packet(packet))?;
    let mut recording = recorder.finish();
    if is_whole {
        symbolize::append(&mut recording.profile, trace)?;
    }
    if arguments.off_cpu {
        let without_length = off_cpu::weigh(&mut recording, &schedule);
        if without_length > 0 {
            say(&format_args!(
                "left out: {} of waiting whose end is not in the trace",
                Counted(without_length, "sample")
            ));
        }
        if schedule.has_other_clocks() {
            say("the scheduler's events and the samples have different clocks, so some waits have no length");
        }
    }
    Ok((recording, family))
}

/// Returns the events with samples. The one that a format with room for one gets is first: waiting, if it was asked for.
fn shown_events(recording: &Recording) -> Vec<EventId> {
    let mut events = recording.events_with_stacks();
    events.sort_by_key(|event| !recording.is_waiting(*event));
    events
}

/// Returns the lines for the terminal.
fn summary(recording: &Recording, family: Option<&HashSet<u32>>, goal: &Goal, file: &Path) -> String {
    let screen = Screen::of_stderr();
    let mut text = String::new();
    let of = match family {
        Some(_) => " in the processes of the command",
        None => "",
    };
    // The first event is printed last: people look at the end.
    for event in shown_events(recording).into_iter().rev() {
        text += &format!("\n{}{of}:\n", top::amount(recording, event));
        text += &top::table(recording, event, screen);
    }
    text.push('\n');
    for loss in losses(&recording.profile) {
        text += &format!("{NAME}: {loss}\n");
    }
    text += &format!("{NAME}: {}\n", goal.shown_by(file));
    text
}

fn say(message: &(impl std::fmt::Display + ?Sized)) {
    stderr::say(NAME, message);
}
