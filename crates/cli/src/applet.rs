//! Which program this is: one binary is all of them, and knows by the name it was called by, or by its first word.
//!
//! Called by the binaries. `ferretto traced …`, and a link `traced` to the binary, are the applet `traced`; anything else is the
//! command line under the name `ferretto`. Each applet defines its flags once, in a [`clap::Command`]: parser, help, man page and
//! completions come from there.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, Command};

use crate::perfetto::{self, Program};
use crate::{
    autostart, config, doctor, info, open, text, traced, traced_probes, trigger_perfetto, websocket_bridge,
};

/// A program.
#[derive(Debug, Clone, Copy)]
pub struct Applet {
    name: &'static str,
    /// Its flags.
    command: fn() -> Command,
    /// Takes the words after the program's name and gives the exit code.
    run: fn(Vec<OsString>) -> u8,
}

/// The command line.
pub const PERFETTO: Applet = Applet {
    name: "perfetto",
    command: || perfetto::command(Program::Perfetto),
    run: run_perfetto,
};

/// The tracing service.
pub const TRACED: Applet = Applet {
    name: "traced",
    command: traced::command,
    run: traced::run,
};

/// The producer of the machine's own data sources.
pub const TRACED_PROBES: Applet = Applet {
    name: "traced_probes",
    command: traced_probes::command,
    run: traced_probes::run,
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

/// Those that can be called by name.
const APPLETS: &[Applet] = &[
    PERFETTO,
    TRACED,
    TRACED_PROBES,
    TRIGGER_PERFETTO,
    WEBSOCKET_BRIDGE,
];

/// Checks and converts trace configs.
const CONFIG: Applet = Applet {
    name: "config",
    command: config::command,
    run: config::run,
};

/// Looks at what recording depends on.
const DOCTOR: Applet = Applet {
    name: "doctor",
    command: doctor::command,
    run: doctor::run,
};

/// Shows a trace in the UI.
const OPEN: Applet = Applet {
    name: "open",
    command: open::command,
    run: open::run,
};

/// Tells what is in a trace file.
const INFO: Applet = Applet {
    name: "info",
    command: info::command,
    run: info::run,
};

/// Prints a trace file as text.
const TEXT: Applet = Applet {
    name: "text",
    command: text::command,
    run: text::run,
};

/// The bridge that starts the service that it leads to.
const WEBSOCKET_BRIDGE_OF_FERRETTO: Applet = Applet {
    name: "websocket_bridge",
    command: || websocket_bridge::command(Program::Ferretto),
    run: run_websocket_bridge_of_ferretto,
};

/// Those that are the first word of `ferretto` only, or another program there than under a name of their own.
const WORDS: &[Applet] = &[CONFIG, DOCTOR, INFO, OPEN, TEXT, WEBSOCKET_BRIDGE_OF_FERRETTO];

/// What the binary is without a name of these.
const DEFAULT: Applet = Applet {
    name: "ferretto",
    command: || perfetto::command(Program::Ferretto),
    run: run_ferretto,
};

/// The entry of the binary that is all applets.
pub fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called_as = words.next().unwrap_or_default();
    let (applet, words) = choose(&called_as, words.collect());
    ExitCode::from((applet.run)(words))
}

/// The entry of a binary that is one applet only, and has the code of no other in it.
pub fn main_of(applet: Applet) -> ExitCode {
    ExitCode::from((applet.run)(std::env::args_os().skip(1).collect()))
}

/// Every spelling of every flag of a program, dashes included; `None` if there is no such program. The table of flags is held
/// against it.
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

/// By the name of the program, then by the first word.
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
    perfetto::run(Program::Perfetto, words, &mut perfetto::running_service)
}

fn run_ferretto(words: Vec<OsString>) -> u8 {
    perfetto::run(
        Program::Ferretto,
        words,
        &mut autostart::running_or_started_service,
    )
}

fn run_websocket_bridge(words: Vec<OsString>) -> u8 {
    websocket_bridge::run(Program::Perfetto, words, &mut perfetto::running_service)
}

fn run_websocket_bridge_of_ferretto(words: Vec<OsString>) -> u8 {
    websocket_bridge::run(
        Program::Ferretto,
        words,
        &mut autostart::running_or_started_service,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let command = (applet.command)();
            assert_eq!(command.get_name(), applet.name);
            command.debug_assert();
        }
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
