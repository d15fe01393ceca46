//! `ferretto list`: lists kernel events, data sources, sessions, categories of track events, or clocks.
//!
//! [`applet`](crate::applet) calls it. One module for each subject gathers a [`Listing`], which is printed as a table or, with `--json`, as one
//! object with the names in `docs/json.md`. It starts and changes nothing. Exit codes: 0 for success; 1 if the subject cannot be listed, or a pattern
//! matches nothing; 2 for a wrong command line.

mod categories;
mod clocks;
mod events;
mod pattern;
mod sessions;
mod sources;

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use crate::stderr;
use crate::stdout::{Screen, Table, json_flag, print, print_json};
use crate::usage::{self, USAGE};
pub(crate) use pattern::Patterns;
pub(crate) use sessions::sessions_of;

/// The name in its messages.
const NAME: &str = "ferretto list";
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

/// The list of a subject.
pub(crate) struct Listing {
    pub(crate) table: Table,
    /// Text below the table.
    below: Option<String>,
    /// The list for scripts, with more details.
    pub(crate) json: Value,
    /// Notes for stderr.
    pub(crate) notes: Vec<String>,
}

/// A subject that can be listed.
struct Subject {
    word: &'static str,
    /// Another spelling that users may type.
    alias: &'static str,
    about: &'static str,
    details: &'static str,
    /// # Errors
    /// If it cannot be listed.
    list: fn(&Patterns) -> Result<Listing, String>,
}

const SUBJECTS: &[Subject] = &[
    Subject {
        word: "events",
        alias: "event",
        about: "Kernel events that can be recorded, from tracefs",
        details: "Kernel events that can be recorded, from tracefs: what to type after `ferretto`, or as ftrace_events in a config. Events \
                  that are typed have a message of their own in the trace format; others are generic: the trace describes \
                  them along with the data, and the UI shows their fields as they are.\n\n\
                  PATTERN is a part of GROUP/NAME; or GROUP/ (or GROUP:), all events of a group; or GROUP/PART. With * or ? it \
                  has to fit the whole name or group.",
        list: events::list,
    },
    Subject {
        word: "sources",
        alias: "source",
        about: "Data sources that producers offer",
        details: "Data sources that the service's producers offer; if no service runs, those of the one that `ferretto` starts for a \
                  recording.\n\nPATTERN is a part of the name of a source or of a producer; with * or ? it has to fit the whole name.",
        list: sources::list,
    },
    Subject {
        word: "sessions",
        alias: "session",
        about: "Tracing sessions that run",
        details: "Tracing sessions that the service runs: one's own, or everybody's for root.\n\n\
                  PATTERN is the id of a session or a part of its name; with * or ? it has to fit the whole name.",
        list: sessions::list,
    },
    Subject {
        word: "categories",
        alias: "category",
        about: "Categories of track events that connected programs have",
        details: "Categories of track events that connected programs have told the service of: what to type as \
                  enabled_categories in a config.\n\n\
                  PATTERN is a part of a category, a tag or the name of a producer; with * or ? it has to fit the whole of it.",
        list: categories::list,
    },
    Subject {
        word: "clocks",
        alias: "clock",
        about: "Clocks of this machine that traces use",
        details: "Clocks of this machine that traces use, with their ids in the trace format: what they show now, how fine they are, and \
                  how they go beside BOOTTIME, the clock of traces: how far ahead, and how much faster in parts per million, \
                  measured for a fifth of a second. Then the clocks that ftrace can be set to.\n\n\
                  PATTERN is a part of a clock's name; with * or ? it has to fit the whole name.",
        list: clocks::list,
    },
];

pub(crate) fn command() -> Command {
    let command = Command::new("list")
        .bin_name(NAME)
        .about("Lists what can be recorded: events, sources, categories; sessions; clocks")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .after_help(
            "Examples:\n  ferretto list events sched\n  ferretto list events 'block:*rq*'\n  ferretto list sessions --json\n\n\
             Exit status:\n  0  it was listed\n  1  it could not be asked, or a pattern fits nothing\n  2  a flag or a \
             subject makes no sense",
        );
    SUBJECTS.iter().fold(command, |command, subject| {
        command.subcommand(
            Command::new(subject.word)
                .alias(subject.alias)
                .about(subject.about)
                .long_about(subject.details)
                .arg(
                    Arg::new("PATTERN")
                        .action(ArgAction::Append)
                        .help("List only entries that match one of these"),
                )
                .arg(json_flag()),
        )
    })
}

/// Runs the applet with the arguments after its name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let matches = match usage::matches(NAME, command(), words) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    let Some((word, matches)) = matches.subcommand() else {
        return USAGE;
    };
    let Some(subject) = SUBJECTS.iter().find(|subject| subject.word == word) else {
        return USAGE;
    };
    let name = format!("{NAME} {word}");
    answer(subject, &name, matches).unwrap_or_else(|problem| {
        stderr::say(&name, &problem);
        FAILURE
    })
}

fn answer(subject: &Subject, name: &str, matches: &ArgMatches) -> Result<u8, String> {
    let typed = matches.get_many::<String>("PATTERN");
    let patterns = Patterns::new(typed.into_iter().flatten());
    let listing = (subject.list)(&patterns)?;
    match matches.get_flag("json") {
        true => print_json(&listing.json)?,
        false => {
            let mut text = listing.table.print(Screen::look());
            if let Some(below) = listing.below {
                text.push_str(&format!("\n{below}\n"));
            }
            print(text.as_bytes())?;
        }
    }
    for note in listing.notes {
        stderr::say(name, &note);
    }
    let mut code = SUCCESS;
    for unfit in patterns.unfit() {
        stderr::say(name, &unfit);
        code = FAILURE;
    }
    Ok(code)
}
