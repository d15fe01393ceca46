//! Chooses the program to run. One binary contains all programs; its own name or its first argument selects one.
//!
//! The binaries call it. `ferretto traced …`, and a link `traced` to the binary, run the applet `traced`; anything else runs the command line
//! `ferretto`. Each applet defines its flags once, in a [`clap::Command`], from which parser, help, man page and completions are made.

mod manual;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Arg, Command};

use ferretto_daemons::{heapprofd, traced, traced_perf, traced_probes, traced_relay};

use crate::perfetto::{self, Program, held};
use crate::stderr;
use crate::usage::FERRETTO;
use crate::{
    autostart, config, convert, doctor, heap, info, list, open, profile, recorder, service, status,
    symbolize, tables, text, tracebox, trigger_perfetto, websocket_bridge,
};

/// A program, or a subcommand of `ferretto`.
#[derive(Debug, Clone, Copy)]
pub struct Applet {
    name: &'static str,
    /// Returns the definition of its flags.
    command: fn() -> Command,
    /// Runs it with the arguments; returns the exit code.
    run: fn(Vec<OsString>) -> u8,
}

impl Applet {
    /// Returns the program's name, which is also its subcommand of `ferretto`.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it exists as a program too, and not only as a subcommand of `ferretto`.
    pub(crate) fn is_program(&self) -> bool {
        APPLETS.iter().any(|applet| applet.name == self.name)
    }

    pub(crate) fn command(&self) -> Command {
        (self.command)()
    }
}

/// Records traces, as `ferretto` without a subcommand does.
const RECORD: Applet = Applet {
    name: "record",
    command: || perfetto::command(Program::Ferretto).name("record"),
    run: run_record,
};

/// Explains the subcommands.
const HELP: Applet = Applet {
    name: "help",
    command: manual::help::command,
    run: manual::help::run,
};

/// Prints completion scripts for shells.
const COMPLETIONS: Applet = Applet {
    name: "completions",
    command: manual::completions::command,
    run: manual::completions::run,
};

/// Records traces, as upstream's command line does.
pub const PERFETTO: Applet = Applet {
    name: "perfetto",
    command: || perfetto::command(Program::Perfetto),
    run: run_perfetto,
};

/// The tracing service.
pub(crate) const TRACED: Applet = Applet {
    name: "traced",
    command: traced::command,
    run: traced::run,
};

/// The producer of the machine's data sources.
pub(crate) const TRACED_PROBES: Applet = Applet {
    name: "traced_probes",
    command: traced_probes::command,
    run: traced_probes::run,
};

/// The producer of CPU profiles.
pub(crate) const TRACED_PERF: Applet = Applet {
    name: "traced_perf",
    command: traced_perf::command,
    run: traced_perf::run,
};

/// The producer of heap profiles.
pub(crate) const HEAPPROFD: Applet = Applet {
    name: "heapprofd",
    command: heapprofd::command,
    run: heapprofd::run,
};

/// The relay for the producers of a machine.
pub(crate) const TRACED_RELAY: Applet = Applet {
    name: "traced_relay",
    command: traced_relay::command,
    run: traced_relay::run,
};

/// Activates triggers.
pub const TRIGGER_PERFETTO: Applet = Applet {
    name: "trigger_perfetto",
    command: trigger_perfetto::command,
    run: trigger_perfetto::run,
};

/// Lets the UI in a browser record.
pub const WEBSOCKET_BRIDGE: Applet = Applet {
    name: "websocket_bridge",
    command: || websocket_bridge::command(Program::Perfetto),
    run: run_websocket_bridge,
};

/// All of upstream's programs in one, with a service of its own.
pub(crate) const TRACEBOX: Applet = Applet {
    name: "tracebox",
    command: tracebox::command,
    run: run_tracebox,
};

/// Upstream's programs. They can be called by name.
pub(crate) const APPLETS: &[Applet] = &[
    PERFETTO,
    TRACED,
    TRACED_PROBES,
    TRACED_PERF,
    HEAPPROFD,
    TRACED_RELAY,
    TRIGGER_PERFETTO,
    WEBSOCKET_BRIDGE,
    TRACEBOX,
];

/// Checks and converts trace configs.
const CONFIG: Applet = Applet {
    name: "config",
    command: config::command,
    run: config::run,
};

/// Checks everything that recording depends on.
const DOCTOR: Applet = Applet {
    name: "doctor",
    command: doctor::command,
    run: doctor::run,
};

/// Lists kernel events, data sources, sessions, categories and clocks.
const LIST: Applet = Applet {
    name: "list",
    command: list::command,
    run: list::run,
};

/// Reports the state of the running service.
const STATUS: Applet = Applet {
    name: "status",
    command: status::command,
    run: status::run,
};

/// Shows a trace in the UI.
const OPEN: Applet = Applet {
    name: "open",
    command: open::command,
    run: open::run,
};

/// Summarises a trace file.
const INFO: Applet = Applet {
    name: "info",
    command: info::command,
    run: info::run,
};

/// Shows where the time goes.
const PROFILE: Applet = Applet {
    name: "profile",
    command: profile::command,
    run: run_profile,
};

/// Shows where the memory goes.
const HEAP: Applet = Applet {
    name: "heap",
    command: heap::command,
    run: run_heap,
};

/// Records all the time.
const RECORDER: Applet = Applet {
    name: "recorder",
    command: recorder::command,
    run: recorder::run,
};

/// Writes the names of functions into a trace.
const SYMBOLIZE: Applet = Applet {
    name: "symbolize",
    command: symbolize::command,
    run: symbolize::run,
};

/// Prints a trace file as text.
const TEXT: Applet = Applet {
    name: "text",
    command: text::command,
    run: text::run,
};

/// Converts traces to other formats and back.
const CONVERT: Applet = Applet {
    name: "convert",
    command: convert::command,
    run: convert::run,
};

/// Makes tables of traces.
const EXPORT: Applet = Applet {
    name: "export",
    command: tables::export,
    run: tables::run_export,
};

/// Answers questions to traces in SQL.
const QUERY: Applet = Applet {
    name: "query",
    command: tables::query,
    run: tables::run_query,
};

/// Answers frequent questions to traces.
const REPORT: Applet = Applet {
    name: "report",
    command: tables::report,
    run: tables::run_report,
};

/// The bridge that starts a service of its own.
const WEBSOCKET_BRIDGE_OF_FERRETTO: Applet = Applet {
    name: "websocket_bridge",
    command: || websocket_bridge::command(Program::Ferretto),
    run: run_websocket_bridge_of_ferretto,
};

/// Applets that exist only as subcommands of `ferretto`, or that as subcommands differ from the program of the same name. In the order of the help.
const WORDS: &[Applet] = &[
    RECORD,
    PROFILE,
    HEAP,
    RECORDER,
    OPEN,
    INFO,
    TEXT,
    CONVERT,
    EXPORT,
    QUERY,
    REPORT,
    SYMBOLIZE,
    LIST,
    STATUS,
    CONFIG,
    DOCTOR,
    COMPLETIONS,
    HELP,
    WEBSOCKET_BRIDGE_OF_FERRETTO,
];

/// Returns the subcommands of `ferretto`: first its own, then upstream's programs.
pub(crate) fn subcommands() -> impl Iterator<Item = &'static Applet> {
    let own = WORDS.iter().filter(|applet| !applet.is_program());
    own.chain(
        APPLETS
            .iter()
            .filter_map(|applet| find_word(applet.name.as_ref())),
    )
}

/// The program to run if neither name nor first argument selects another.
pub(crate) const DEFAULT: Applet = Applet {
    name: FERRETTO,
    command: || perfetto::command(Program::Ferretto),
    run: run_ferretto,
};

/// Runs the binary that contains all applets.
pub fn main() -> ExitCode {
    if let Some(code) = held::run_if_held(std::env::args_os()) {
        return ExitCode::from(code);
    }
    let mut words = std::env::args_os();
    let called_as = words.next().unwrap_or_default();
    let words: Vec<OsString> = words.collect();
    let (applet, words) = choose(&called_as, words);
    ExitCode::from((applet.run)(words))
}

/// Runs the binary `tracebox`, which contains all of upstream's programs.
pub fn main_of_tracebox() -> ExitCode {
    if let Some(code) = held::run_if_held(std::env::args_os()) {
        return ExitCode::from(code);
    }
    let mut words = std::env::args_os();
    let called_as = words.next().unwrap_or_default();
    let by_name = Path::new(&called_as).file_name().and_then(find);
    ExitCode::from((by_name.unwrap_or(&TRACEBOX).run)(words.collect()))
}

/// Runs a binary that contains a single applet.
pub fn main_of(applet: Applet) -> ExitCode {
    if let Some(code) = held::run_if_held(std::env::args_os()) {
        return ExitCode::from(code);
    }
    ExitCode::from((applet.run)(std::env::args_os().skip(1).collect()))
}

/// Returns every spelling of every flag of a program, dashes included; `None` if there is no such program. A test compares the table of flags with
/// it.
pub fn flags_of(program: &str) -> Option<Vec<String>> {
    let applet = APPLETS
        .iter()
        .chain([&DEFAULT])
        .find(|applet| applet.name == program)?;
    let mut command = (applet.command)();
    // Adds what clap defines by itself.
    command.build();
    let spellings = |flag: &Arg| {
        let long = flag.get_long_and_visible_aliases().unwrap_or_default();
        let short = flag.get_short_and_visible_aliases().unwrap_or_default();
        let long = long.into_iter().map(|name| format!("--{name}"));
        long.chain(short.into_iter().map(|letter| format!("-{letter}")))
            .collect::<Vec<_>>()
    };
    Some(command.get_arguments().flat_map(spellings).collect())
}

fn find(name: &OsStr) -> Option<&'static Applet> {
    APPLETS.iter().find(|applet| name == applet.name)
}

fn find_word(word: &OsStr) -> Option<&'static Applet> {
    let of_ferretto = WORDS.iter().find(|applet| word == applet.name);
    of_ferretto.or_else(|| find(word))
}

/// Chooses the applet by the name of the program, then by the first argument.
fn choose(called_as: &OsStr, mut words: Vec<OsString>) -> (&'static Applet, Vec<OsString>) {
    if let Some(applet) = Path::new(called_as).file_name().and_then(find) {
        return (applet, words);
    }
    match words.first().and_then(|word| find_word(word)) {
        Some(applet) => {
            words.remove(0);
            (applet, words)
        }
        None => (&DEFAULT, words),
    }
}

fn run_perfetto(words: Vec<OsString>) -> u8 {
    perfetto::run(Program::Perfetto, words, &mut service::running_service)
}

fn run_tracebox(words: Vec<OsString>) -> u8 {
    tracebox::run(words, |word| Some(find(word)?.run))
}

fn run_record(words: Vec<OsString>) -> u8 {
    perfetto::run(
        Program::Ferretto,
        words,
        &mut autostart::running_or_started_service,
    )
}

fn run_profile(words: Vec<OsString>) -> u8 {
    profile::run(words, &mut autostart::running_or_started_service)
}

fn run_heap(words: Vec<OsString>) -> u8 {
    heap::run(
        words,
        &mut autostart::running_or_started_service,
        &mut autostart::running_or_started_service_for_running_programs,
    )
}

fn run_websocket_bridge(words: Vec<OsString>) -> u8 {
    websocket_bridge::run(Program::Perfetto, words, &mut service::running_service)
}

fn run_websocket_bridge_of_ferretto(words: Vec<OsString>) -> u8 {
    websocket_bridge::run(
        Program::Ferretto,
        words,
        &mut autostart::running_or_started_service,
    )
}

fn run_ferretto(words: Vec<OsString>) -> u8 {
    if let Some(mistake) = words.first().and_then(|word| manual::misspelling(word)) {
        stderr::say(DEFAULT.name, &mistake);
        1
    } else if words.is_empty() {
        stderr::tell(&manual::overview());
        1
    } else if asks_for_help(&words) {
        let _ = write!(std::io::stdout(), "{}", manual::overview());
        0
    } else {
        run_record(words)
    }
}

/// Whether the arguments, parsed as a recording, ask for help.
fn asks_for_help(words: &[OsString]) -> bool {
    let name = OsString::from(DEFAULT.name);
    let parsed = DEFAULT
        .command()
        .try_get_matches_from(std::iter::once(&name).chain(words));
    parsed.is_err_and(|message| message.kind() == ErrorKind::DisplayHelp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::{PROGRAMS, SUBCOMMANDS};

    fn chosen(line: &str) -> (&'static str, Vec<String>) {
        let mut words = line.split_whitespace().map(OsString::from);
        let called_as = words.next().unwrap();
        let (applet, words) = choose(&called_as, words.collect());
        (
            applet.name,
            words
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect(),
        )
    }

    #[test]
    fn flags_are_defined_under_the_name_of_the_applet() {
        for applet in APPLETS.iter().chain(WORDS).chain([&DEFAULT]) {
            let command = applet.command();
            assert_eq!(command.get_name(), applet.name);
            command.debug_assert();
        }
    }

    #[test]
    fn the_lists_of_names_have_all_programs_and_subcommands() {
        let names: Vec<&str> = APPLETS.iter().map(|applet| applet.name).collect();
        assert_eq!(names, PROGRAMS);
        let words: Vec<&str> = subcommands().map(|applet| applet.name).collect();
        assert_eq!(words, SUBCOMMANDS);
    }

    #[test]
    fn the_name_of_the_program_counts_before_the_first_word() {
        assert_eq!(
            chosen("/usr/bin/perfetto --query"),
            ("perfetto", vec!["--query".to_owned()])
        );
        assert_eq!(
            chosen("perfetto perfetto"),
            ("perfetto", vec!["perfetto".to_owned()])
        );
        assert_eq!(
            chosen("./ferretto perfetto --query"),
            ("perfetto", vec!["--query".to_owned()])
        );
        assert_eq!(chosen("ferretto"), ("ferretto", vec![]));
        assert_eq!(
            chosen("renamed sched perfetto"),
            ("ferretto", vec!["sched".to_owned(), "perfetto".to_owned()])
        );
    }
}
