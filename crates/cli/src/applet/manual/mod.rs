//! The manual: the screen that `ferretto --help` shows, `ferretto help SUBCOMMAND`, and completions for shells.
//!
//! [`applet`](crate::applet) calls it. Everything is generated from the flags that the applets define. [`tree`] combines them into one command, which
//! is never used for parsing. The completion scripts and the man pages in `docs/man` are made from it. The man pages are checked in, and a test
//! proves that they are up to date. To write them again:
//!
//! ```text
//! FERRETTO_WRITE_MANUAL=1 cargo test -p ferretto-cli manual
//! ```

pub(crate) mod completions;
pub(crate) mod help;
mod overview;
mod spelling;

#[cfg(test)]
mod pages;
#[cfg(test)]
mod tests;

use clap::{Arg, Command, ValueHint};

pub(crate) use overview::overview;
pub(crate) use spelling::misspelling;

use crate::applet::{DEFAULT, subcommands};

/// Returns `ferretto` with its flags, and every applet as a subcommand.
pub(crate) fn tree() -> Command {
    let recording = DEFAULT.command();
    // Events are left to `record`, because shells cannot complete subcommands and any number of other words at one place.
    let flags: Vec<Arg> = recording
        .get_arguments()
        .filter(|arg| !arg.is_positional())
        .cloned()
        .collect();
    let subcommands = subcommands().map(|applet| {
        let called = format!("{} {}", DEFAULT.name(), applet.name());
        with_value_hints(called_as(applet.command(), called))
    });
    let tree = Command::new(DEFAULT.name())
        .about("Records what a Linux machine does, for the Perfetto UI (https://ui.perfetto.dev).")
        .version(crate::VERSION)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .override_usage(format!(
            "{}\n       {} SUBCOMMAND [ARGUMENTS]",
            usage_of_recordings(),
            DEFAULT.name()
        ))
        .args(flags)
        .subcommands(subcommands);
    with_value_hints(tree)
}

/// The ways to record.
fn usage_of_recordings() -> String {
    format!(
        "{0} [OPTIONS] [-o FILE] EVENT...\n       {0} [OPTIONS] [-o FILE] --txt -c CONFIG\n       {0} [OPTIONS] [-o FILE] \
         [EVENT...] -- COMMAND [ARGUMENT...]",
        DEFAULT.name()
    )
}

/// Renames a command and its subcommands. `clap_complete` finds them by these names.
fn called_as(command: Command, name: String) -> Command {
    command
        .mut_subcommands(|subcommand| {
            let name = format!("{name} {}", subcommand.get_name());
            called_as(subcommand, name)
        })
        .bin_name(name)
}

/// Lets shells complete names of files for values that are files, and only for these. The names of values show their kind.
fn with_value_hints(command: Command) -> Command {
    const FILES: [&str; 3] = ["FILE", "TRACE", "CONFIG"];
    command.mut_args(|arg| {
        let is_file = arg
            .get_value_names()
            .is_some_and(|names| names.iter().any(|name| FILES.contains(&name.as_str())));
        let takes_values = arg.get_action().takes_values();
        match takes_values {
            true if is_file => arg.value_hint(ValueHint::FilePath),
            true if arg.get_possible_values().is_empty() => arg.value_hint(ValueHint::Other),
            _ => arg,
        }
    })
}
