//! What is said of flags that cannot be followed.
//!
//! Called by the applets with what the parser of their flags found. It begins with the words of `getopt_long`, which scripts and upstream's
//! tests look for, and goes on with what to type instead.

use std::io::Write;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The command line under which all words are.
pub(crate) const FERRETTO: &str = "ferretto";

/// Upstream's programs, by the names under which they can be called.
pub(crate) const PROGRAMS: [&str; 6] = [
    "perfetto",
    "traced",
    "traced_probes",
    "trigger_perfetto",
    "websocket_bridge",
    "tracebox",
];

/// What can be the first word of `ferretto`.
pub(crate) const SUBCOMMANDS: [&str; 16] = [
    "record",
    "open",
    "info",
    "text",
    "list",
    "status",
    "config",
    "doctor",
    "completions",
    "help",
    "perfetto",
    "traced",
    "traced_probes",
    "trigger_perfetto",
    "websocket_bridge",
    "tracebox",
];

/// Prints what came of the words after `name`: help where it was asked for, or the mistake. Nobody is left to tell of a stream that is closed.
pub(crate) fn print(name: &str, message: &clap::Error) {
    if message.use_stderr() {
        let _ = std::io::stderr().write_all(usage_error(name, message).as_bytes());
    } else {
        let _ = message.print();
    }
}

/// One sentence about a mistake in the words after `name`; what the parser itself says of other kinds.
pub(crate) fn usage_error(name: &str, message: &clap::Error) -> String {
    let text = |kind| match message.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        // The most alike comes last.
        Some(ContextValue::Strings(texts)) => texts.last().map(String::as_str),
        _ => None,
    };
    // The help of the name alone is an overview.
    let help = match name == FERRETTO {
        true => format!("`{name} help record` lists all"),
        false => format!("`{name} --help` lists all"),
    };
    match (message.kind(), text(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(unknown)) if unknown.starts_with('-') => {
            // What follows an equals sign is a value, which may be long.
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

/// The subcommand whose name is most like `word`, if any is much like it.
pub(crate) fn nearest_subcommand(word: &str) -> Option<String> {
    // The parser of flags has a measure for that, and tells its result in an error.
    let known = Command::new(FERRETTO)
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .subcommands(SUBCOMMANDS.map(Command::new));
    let error = known.try_get_matches_from([FERRETTO, word]).err()?;
    match error.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::String(name) => Some(name.clone()),
        // The most alike comes last.
        ContextValue::Strings(names) => names.last().cloned(),
        _ => None,
    }
}
