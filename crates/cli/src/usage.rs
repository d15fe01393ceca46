//! Parses command lines, and has the error messages about wrong flags.
//!
//! The applets call it, some with the errors of parsers of their own. A message begins with the words of `getopt_long`, which scripts and upstream's tests look
//! for, and continues with advice.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, Parser};

use crate::stderr::tell;

/// The exit code for a wrong command line, of the programs that are not upstream's.
pub(crate) const USAGE: u8 = 2;

/// The command of which the others are subcommands.
pub(crate) const FERRETTO: &str = "ferretto";

/// Upstream's programs, by the names under which they can be called.
pub(crate) const PROGRAMS: [&str; 9] = [
    "perfetto",
    "traced",
    "traced_probes",
    "traced_perf",
    "heapprofd",
    "traced_relay",
    "trigger_perfetto",
    "websocket_bridge",
    "tracebox",
];

/// The subcommands of `ferretto`.
pub(crate) const SUBCOMMANDS: [&str; 27] = [
    "record",
    "profile",
    "heap",
    "recorder",
    "open",
    "info",
    "text",
    "convert",
    "export",
    "query",
    "report",
    "symbolize",
    "list",
    "status",
    "config",
    "doctor",
    "completions",
    "help",
    "perfetto",
    "traced",
    "traced_probes",
    "traced_perf",
    "heapprofd",
    "traced_relay",
    "trigger_perfetto",
    "websocket_bridge",
    "tracebox",
];

/// Parses the words after the program's name by `command`. If there is nothing more to do, it has printed why and returns the exit code.
pub(crate) fn matches(name: &'static str, command: Command, words: Vec<OsString>) -> Result<ArgMatches, u8> {
    let words = std::iter::once(name.into()).chain(words);
    command
        .try_get_matches_from(words)
        .map_err(|message| printed(name, &message))
}

/// As [`matches`], for a program whose arguments are a type.
pub(crate) fn arguments<A: Parser>(name: &'static str, words: Vec<OsString>) -> Result<A, u8> {
    let words = std::iter::once(name.into()).chain(words);
    A::try_parse_from(words).map_err(|message| printed(name, &message))
}

fn printed(name: &str, message: &clap::Error) -> u8 {
    print(name, message);
    message.exit_code() as u8
}

/// Prints help if it was requested, or else a message about the mistake. If the stream is closed, nobody can be told.
pub(crate) fn print(name: &str, message: &clap::Error) {
    if message.use_stderr() {
        tell(&usage_error(name, message));
    } else {
        let _ = message.print();
    }
}

/// Returns one sentence about a mistake in the arguments of `name`. For other kinds of errors, returns the parser's own message.
pub(crate) fn usage_error(name: &str, message: &clap::Error) -> String {
    let text = |kind| match message.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        // The most similar one is last.
        Some(ContextValue::Strings(texts)) => texts.last().map(String::as_str),
        _ => None,
    };
    // The help of `ferretto` itself is only an overview.
    let help = match name == FERRETTO {
        true => format!("`{name} help record` lists all"),
        false => format!("`{name} --help` lists all"),
    };
    match (message.kind(), text(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(unknown)) if unknown.starts_with('-') => {
            // The part after an equals sign is a value, which may be long.
            let flag = unknown.split('=').next().unwrap_or(unknown);
            match text(ContextKind::SuggestedArg) {
                Some(meant) => {
                    format!("{name}: unrecognized option '{flag}': did you mean '{meant}'? {help}\n")
                }
                None => format!("{name}: unrecognized option '{flag}': {help}\n"),
            }
        }
        (ErrorKind::InvalidValue, Some(flag)) if text(ContextKind::InvalidValue) == Some("") => {
            let option = flag.split([' ', '=']).next().unwrap_or(flag);
            format!("{name}: option '{option}' requires an argument: write {flag}\n")
        }
        _ => message.render().to_string(),
    }
}

/// Returns the subcommand that is most similar to `word`, if any is close.
pub(crate) fn nearest_subcommand(word: &str) -> Option<String> {
    // The parser of flags can measure similarity, and returns the result in an error.
    let known = Command::new(FERRETTO)
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .subcommands(SUBCOMMANDS.map(Command::new));
    let error = known.try_get_matches_from([FERRETTO, word]).err()?;
    match error.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::String(name) => Some(name.clone()),
        // The most similar one is last.
        ContextValue::Strings(names) => names.last().cloned(),
        _ => None,
    }
}
