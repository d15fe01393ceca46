//! `trigger_perfetto`: activates triggers, and so starts, stops or snapshots the recordings that wait for them.
//!
//! [`applet`](crate::applet) calls it; `perfetto` calls [`sender`] for configs with `activate_triggers`. Exit codes are upstream's: 0 when the
//! service has the triggers, whether or not a session waits for them; 1 otherwise, and for `--help`.

pub(crate) mod sender;

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};
use ferretto_ipc::socket_names::PRODUCER_SOCK_NAME;

use crate::stderr::tell;

const NAME: &str = "trigger_perfetto";

/// Returns the definition of all flags, none of which has a value. [`parse`] reads them in its own way.
pub(crate) fn command() -> Command {
    Command::new(NAME)
        .about("Activates triggers, and so starts, stops or snapshots the recordings that wait for them")
        .override_usage(format!("{NAME} TRIGGER..."))
        .disable_help_flag(true)
        .arg(
            Arg::new("help")
                .short('h')
                .long("help")
                .action(ArgAction::SetTrue)
                .help("Print help, and fail as upstream does"),
        )
        .arg(
            Arg::new("trigger")
                .value_name("TRIGGER")
                .action(ArgAction::Append)
                .required(true)
                .help("Name of a trigger, as in a recording's trigger_config"),
        )
        .after_help(format!(
            "Flags that are not known are ignored: apps call this program on systems older than they are.\n\n\
             Environment:\n  {PRODUCER_SOCK_NAME}\n          Where the service listens: /a/path, @abstract-name, host:port or vsock://cid:port"
        ))
}

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    /// The ids of the flags.
    flags: Vec<String>,
    /// Whether there are options that this version does not know.
    unknown_options: bool,
    triggers: Vec<String>,
}

impl Arguments {
    fn asks_for_help(&self) -> bool {
        self.flags.iter().any(|flag| flag == "help")
    }

    fn take(&mut self, option: Option<&Arg>) {
        match option {
            Some(option) => self.flags.push(option.get_id().to_string()),
            None => self.unknown_options = true,
        }
    }
}

/// Runs with the arguments after the program's name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let arguments = parse(words);
    if arguments.asks_for_help() {
        tell(&command().render_help().to_string());
        return 1;
    }
    if arguments.unknown_options {
        tell(&format!(
            "{NAME}: Ignoring unknown arguments. See --help for usage.\n"
        ));
    }
    if arguments.triggers.is_empty() {
        let help = command().render_help();
        tell(&format!(
            "{NAME}: At least one trigger must be specified.\n{help}"
        ));
        return 1;
    }
    match sender::send(&arguments.triggers) {
        Ok(()) => 0,
        Err(error) => {
            tell(&format!("{NAME}: {error}\n"));
            1
        }
    }
}

/// Parses the command line as `getopt_long` does. It ignores unknown options, because apps call this program on systems older than they are, and may
/// use newer options. clap's parser cannot do that, so only the names of the options come from clap.
fn parse(words: Vec<OsString>) -> Arguments {
    let command = command();
    let mut arguments = Arguments::default();
    let mut options_end = false;
    for word in words {
        // Names are sent as text, so other bytes can match no trigger.
        let word = word.to_string_lossy().into_owned();
        match word.strip_prefix('-') {
            None | Some("") => arguments.triggers.push(word),
            Some(_) if options_end => arguments.triggers.push(word),
            Some("-") => options_end = true,
            Some(option) => match option.strip_prefix('-') {
                Some(long) => arguments.take(long_option(&command, long)),
                None => option
                    .chars()
                    .for_each(|letter| arguments.take(short_option(&command, letter))),
            },
        }
    }
    arguments
}

fn short_option(command: &Command, letter: char) -> Option<&Arg> {
    command
        .get_arguments()
        .find(|option| option.get_short() == Some(letter))
}

/// Returns the option of this name, or the only one that begins with it.
fn long_option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let long = |option: &&Arg| option.get_long().is_some_and(|long| long.starts_with(name));
    let exact = command
        .get_arguments()
        .find(|option| option.get_long() == Some(name));
    let mut begin_so = command.get_arguments().filter(long);
    exact.or_else(|| begin_so.next().filter(|_| begin_so.next().is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Arguments {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    fn triggers(names: &[&str]) -> Arguments {
        Arguments {
            triggers: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Arguments::default()
        }
    }

    #[test]
    fn words_are_triggers() {
        assert_eq!(parsed("a b.c a"), triggers(&["a", "b.c", "a"]));
        assert_eq!(parsed(""), triggers(&[]));
        assert_eq!(parsed("-"), triggers(&["-"]));
    }

    #[test]
    fn options_may_stand_anywhere_and_end_with_two_dashes() {
        for line in ["-h", "a -h", "--help a", "a --he", "-xh"] {
            assert!(parsed(line).asks_for_help(), "{line}");
        }
        assert_eq!(
            parsed("a -- -h --help --"),
            triggers(&["a", "-h", "--help", "--"])
        );
    }

    #[test]
    fn unknown_options_are_noted_and_skipped() {
        for line in [
            "--future a",
            "a -x",
            "--help=yes a",
            "--future=b a",
            "--helpful a",
        ] {
            let arguments = parsed(line);
            assert!(arguments.unknown_options && !arguments.asks_for_help(), "{line}");
            assert_eq!(arguments.triggers, ["a"], "{line}");
        }
    }
}
