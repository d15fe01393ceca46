//! `perfetto`: records traces, and queries the service.
//!
//! [`applet`](crate::applet) calls it. A command line passes through `args` → `plan` → `output` and `background` → `record` (which drives a
//! `session`), `query`, `bugreport` or `triggers`. Exit codes are upstream's: 0 for success, 1 for any failure; `-D` exits with 2 when the data
//! sources did not start in time. Upstream returns 0 for some failed recordings (the service refused the config or died, the output could not be
//! written); this program returns 1.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

mod args;
mod background;
mod bugreport;
mod console;
mod contents;
mod event_words;
pub(crate) mod held;
pub(crate) mod light_config;
mod output;
mod pipe;
pub(crate) mod plan;
mod progress;
pub(crate) mod query;
mod record;
mod session;
mod signals;
mod snapshots;
mod suspension;
mod triggers;
mod warnings;
mod workload;

pub(crate) use args::command;
use background::Detached;
pub(crate) use console::Loudness;
pub(crate) use console::{Below, interject};
use console::{Console, Voice};
use ferretto_ipc::address::Address;
use ferretto_proto::messages::TraceConfig;
use output::Output;
use plan::Plan;
pub(crate) use plan::Strictness;
pub(crate) use record::Recorded;
use signals::Signals;
pub(crate) use workload::{CommandLine, find as find_program};

use crate::service::{FindService, Service, running_service};
use crate::stderr::tell;
use crate::usage;

/// Exit code of success.
pub(crate) const SUCCESS: u8 = 0;
/// Exit code of any failure.
pub(crate) const FAILURE: u8 = 1;
/// Exit code of `--strict` when something requested was not recorded, or was lost.
pub(crate) const INCOMPLETE: u8 = 3;
/// Exit code of `--attach` and `--is_detached` when there is no such session.
const NOT_ATTACHED: u8 = 2;

/// The name under which the command line runs, which decides its behaviour without a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// `perfetto`: needs a running service, as upstream's.
    Perfetto,
    /// `ferretto`: starts a service if there is none.
    Ferretto,
}

impl Program {
    /// Returns the name that people type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Program::Perfetto => "perfetto",
            Program::Ferretto => "ferretto",
        }
    }
}

/// Runs the command line with the arguments after the program's name; returns the exit code. It calls `find_service` when it needs a service: after
/// it has checked the flags, configs and the output, and in the process that records. It does not call it for detached sessions and clones, which
/// need a service that runs before and after.
pub(crate) fn run(
    program: Program,
    words: impl IntoIterator<Item = OsString>,
    find_service: FindService<'_>,
) -> u8 {
    let words: Vec<OsString> = words.into_iter().collect();
    if words.is_empty() {
        tell(&args::command(program).render_help().to_string());
        return FAILURE;
    }
    let arguments = match args::parse(program, words) {
        Ok(arguments) => arguments,
        Err(message) => return explain(program, &message),
    };
    let loudness = arguments.loudness;
    let mut console = Console::new(Voice { program, loudness });
    match plan::plan(program, arguments) {
        Ok(Plan::Notice(text)) => {
            console.say(text);
            SUCCESS
        }
        Ok(Plan::Query(format)) => query::query(format, find_service, &mut console),
        Ok(Plan::Activate(activation)) => triggers::activate(&activation, &mut console),
        Ok(Plan::SaveAllForBugreport(process)) => {
            let folder = plan::bugreport_folder();
            bugreport::save_all(process, &folder, &mut console)
        }
        Ok(Plan::Record(recording)) => record(*recording, find_service, &mut console).code,
        Err(error) => {
            console.say(error);
            FAILURE
        }
    }
}

/// Prints help, version or a usage error. Upstream's `perfetto` prints its help on stderr and fails, and scripts rely on that (`perfetto --help
/// 2>&1`). `ferretto` prints it on stdout and succeeds.
fn explain(program: Program, message: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    match (message.kind(), program) {
        (ErrorKind::DisplayVersion, _) => {
            // A closed pipe is no failure.
            let _ = writeln!(std::io::stdout(), "{}", crate::VERSION);
            SUCCESS
        }
        (ErrorKind::DisplayHelp, Program::Ferretto) => {
            let _ = message.print();
            SUCCESS
        }
        (ErrorKind::DisplayHelp, Program::Perfetto) => {
            tell(&message.render().to_string());
            FAILURE
        }
        _ => {
            tell(&usage::usage_error(program.name(), message));
            FAILURE
        }
    }
}

/// The value of `family_of` in the scope of `linux.perf` that stands for the command of the recording.
pub(crate) const OF_COMMAND: i32 = 0;

/// A recording that a subcommand wants, with a config of its own.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) config: TraceConfig,
    /// The file for the trace; `None` for a name that nothing has.
    pub(crate) out: Option<PathBuf>,
    pub(crate) loudness: Loudness,
    pub(crate) strictness: Strictness,
    /// How long to record, counted from the time at which all data sources have started; `None` if the config or the command decides.
    pub(crate) once_started: Option<Duration>,
    /// A command that runs meanwhile.
    pub(crate) command: Option<CommandLine>,
    /// The display of a terminal meanwhile.
    pub(crate) below: Option<Box<dyn Below>>,
}

/// The result of an [`Order`].
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) recorded: Recorded,
    /// The file with the trace. It may be missing or incomplete if the recording failed.
    pub(crate) trace: PathBuf,
}

/// Records as `ferretto` does, with the same messages. Returns the exit code if the recording was refused before it began.
///
/// # Errors
/// The exit code. Why is said on stderr.
pub(crate) fn fill(order: Order, find_service: FindService<'_>) -> Result<Filled, u8> {
    let program = Program::Ferretto;
    let mut console = Console::new(Voice {
        program,
        loudness: order.loudness,
    });
    console.show_below(order.below);
    let arguments = args::Arguments {
        made: Some(order.config),
        out: order.out.map(PathBuf::into_os_string),
        loudness: order.loudness,
        strictness: order.strictness,
        command: order.command,
        once_started: order.once_started,
        ..args::Arguments::default()
    };
    match plan::plan(program, arguments) {
        Ok(Plan::Record(recording)) => match recording.sink.clone() {
            plan::Sink::File(trace) => Ok(Filled {
                recorded: record(*recording, find_service, &mut console),
                trace,
            }),
            plan::Sink::Stdout | plan::Sink::OpenedByService(_) | plan::Sink::SameAsBefore => {
                console.say("the trace of this subcommand needs a file: name one with -o");
                Err(FAILURE)
            }
        },
        Ok(_) => Err(FAILURE),
        Err(error) => {
            console.say(error);
            Err(FAILURE)
        }
    }
}

fn record(mut recording: plan::Recording, find_service: FindService<'_>, console: &mut Console) -> Recorded {
    if recording.process != plan::Process::Foreground
        && let Some(written) = recording.written.take()
    {
        warnings::warn_before_fork(console.voice().program, &written, console);
        // A recording in the background has no console for its end.
        if let (Program::Ferretto, plan::Sink::File(path)) = (console.voice().program, &recording.sink) {
            console.notice(format_args!("the trace goes into {}", path.display()));
        }
    }
    if let Some(Err(error)) = recording.command.as_ref().map(CommandLine::check) {
        console.say(&error);
        return Recorded::alone(error.status);
    }
    let opened = Output::open(&recording.sink, recording.existing);
    let output = match opened {
        Ok(output) => output,
        Err(error) => {
            console.say(error);
            return Recorded::alone(FAILURE);
        }
    };
    let reports = recording
        .notify_fd
        .map(background::notify_report)
        .transpose()
        .and_then(|report| background::detach(recording.process, report));
    match reports {
        Ok(Detached::Parent(status, reason)) => {
            if let Some(reason) = reason {
                console.say(reason);
            }
            Recorded::alone(status as u8)
        }
        Ok(Detached::Recorder(reports)) => {
            let mut recorder_console = Console::new(console.voice());
            recorder_console.show_below(console.take_below());
            let find_service = match recording.job {
                plan::Job::Record => find_service,
                // A service of our own has no such session, and would end with this process.
                plan::Job::StartAndDetach(_) | plan::Job::Attach(..) | plan::Job::Clone(_) => {
                    &mut running_service
                }
            };
            let signals = Signals::Taken;
            record::record(
                recording,
                output,
                reports,
                signals,
                find_service,
                &mut recorder_console,
            )
        }
        Err(error) => {
            console.say(error);
            if let Some(output) = output {
                output.discard();
            }
            Recorded::alone(FAILURE)
        }
    }
}

/// Makes a clone over a connection of its own. Any thread may call it.
fn save_clone(recording: plan::Recording, socket: &Address, signals: Signals, console: &mut Console) -> u8 {
    let mut find_service = || {
        Ok(Service {
            consumer_socket: socket.clone(),
            started: None,
        })
    };
    match Output::open(&recording.sink, recording.existing) {
        Ok(output) => {
            let reports = Vec::new();
            record::record(recording, output, reports, signals, &mut find_service, console).code
        }
        Err(error) => {
            console.say(error);
            FAILURE
        }
    }
}
