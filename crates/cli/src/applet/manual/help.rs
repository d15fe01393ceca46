//! `ferretto help [SUBCOMMAND]`: the overview, or all flags of a subcommand.
//!
//! [`applet`](crate::applet) calls it. Help that the user asks for goes to stdout and is no failure, even for programs whose own `--help` behaves as
//! upstream's.

use std::ffi::OsString;
use std::io::Write;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command};

use super::{overview, tree};
use crate::applet::subcommands;

/// Returns the definition of all flags.
pub(crate) fn command() -> Command {
    // A list of names, because the whole tree would contain this command and recurse.
    let names = subcommands().map(|applet| applet.name());
    Command::new("help")
        .about("Explains a subcommand and its flags")
        .bin_name("ferretto help")
        .arg(
            Arg::new("subcommand")
                .value_name("SUBCOMMAND")
                .value_parser(PossibleValuesParser::new(names))
                .hide_possible_values(true)
                .help("Which one; the overview, if none"),
        )
        .arg(
            Arg::new("words")
                .value_name("WORD")
                .action(ArgAction::Append)
                .help("Subcommands of that one"),
        )
}

/// Runs with the arguments after the applet's name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let matches = match command().try_get_matches_from(std::iter::once("help".into()).chain(words)) {
        Ok(matches) => matches,
        Err(message) => {
            crate::usage::print("ferretto help", &message);
            return u8::from(message.use_stderr());
        }
    };
    let path = ["subcommand", "words"]
        .into_iter()
        .flat_map(|id| matches.get_many::<String>(id).into_iter().flatten());
    let text = match page(path) {
        Ok(text) => text,
        Err(unknown) => {
            let _ = writeln!(
                std::io::stderr(),
                "ferretto: there is no such subcommand: {unknown}; `ferretto help` lists them"
            );
            return 1;
        }
    };
    // A reader that closes the pipe early (`| head`) is no failure.
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    0
}

/// Returns the help of the subcommand at the end of `path`, or the first word of `path` that is no subcommand.
pub(super) fn page<'a>(path: impl Iterator<Item = &'a String>) -> Result<String, String> {
    let mut path = path.peekable();
    if path.peek().is_none() {
        return Ok(overview());
    }
    let mut command = tree();
    command.build();
    let mut command = &mut command;
    for word in path {
        command = command.find_subcommand_mut(word).ok_or_else(|| word.clone())?;
    }
    Ok(format!("{}\n", command.render_long_help().to_string().trim_end()))
}
