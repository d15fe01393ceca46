//! `ferretto completions SHELL [PROGRAM]`: prints the script with which a shell completes arguments.
//!
//! [`applet`](crate::applet) calls it. The script is generated on request, so it always fits the program.

use std::ffi::OsString;
use std::io::Write;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::aot::{Bash, Fish, Zsh, generate};

use super::{tree, with_value_hints};
use crate::applet::{APPLETS, DEFAULT};

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

const INSTALL: &str = "\
To have completion in every new shell, add a line to a file that it reads:
  ~/.bashrc                   source <(ferretto completions bash)
  ~/.zshrc, after compinit    source <(ferretto completions zsh)
  ~/.config/fish/config.fish  ferretto completions fish | source";

/// Returns the definition of all flags.
pub(crate) fn command() -> Command {
    let names = [DEFAULT.name()]
        .into_iter()
        .chain(APPLETS.iter().map(|applet| applet.name()));
    Command::new("completions")
        .about("Prints the script by which bash, zsh or fish complete words")
        .bin_name("ferretto completions")
        .after_help(INSTALL)
        .arg(
            Arg::new("shell")
                .value_name("SHELL")
                .required(true)
                .value_parser(PossibleValuesParser::new(SHELLS))
                .help("For which shell"),
        )
        .arg(
            Arg::new("program")
                .value_name("PROGRAM")
                .default_value(DEFAULT.name())
                .value_parser(PossibleValuesParser::new(names))
                .help("For which program"),
        )
}

/// Runs with the arguments after the applet's name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let matches = match command().try_get_matches_from(std::iter::once("completions".into()).chain(words)) {
        Ok(matches) => matches,
        Err(message) => {
            crate::usage::print("ferretto completions", &message);
            return u8::from(message.use_stderr());
        }
    };
    let word = |id: &str| matches.get_one::<String>(id).map_or("", String::as_str);
    let mut stdout = std::io::stdout();
    // A closed pipe is no failure.
    let _ = stdout
        .write_all(&script(word("shell"), word("program")))
        .and_then(|()| stdout.flush());
    0
}

/// Returns the script for one of [`SHELLS`] and one of the programs.
pub(super) fn script(shell: &str, program: &str) -> Vec<u8> {
    let mut command = APPLETS
        .iter()
        .find(|applet| applet.name() == program)
        .map_or_else(tree, |applet| with_value_hints(applet.command()));
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    match shell {
        "zsh" => generate(Zsh, &mut command, name, &mut script),
        "fish" => generate(Fish, &mut command, name, &mut script),
        _ => generate(Bash, &mut command, name, &mut script),
    }
    script
}
