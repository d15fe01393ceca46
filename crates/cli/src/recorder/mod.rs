//! `ferretto recorder`: the flight recorder. It keeps sessions running, from trace configs in a folder, and writes what their buffers hold into files
//! when something happens.
//!
//! [`applet`](crate::applet) calls it. The crate `ferretto-recorder` decides; this module carries out. [`run`] is the loop of the daemon. It connects
//! [`live`] sessions to the tracing service, [`seal`]s them on threads of their own, and looks at the machine ([`sensors`]), at the folder of configs
//! ([`configs`]) and at its socket ([`control`]), and has a [`listener`] to systemd's journal. A crash-safe session has a [`journal`], which writes its
//! data into a [`ring`] on the disk all the time. [`metrics`] serves figures, if that is asked for; [`upload`] starts another program, which uploads.
//! [`folder`] is the folder of sealed files, with the state file, which [`report`] reads.
//!
//! Guarantees: a file has its final name only when it is complete. A recorder that is killed leaves at most drafts, which the next one deletes, and rings,
//! which it seals. Recording waits for no disk and no client.
//!
//! Exit codes: 0 for success, 1 for a failure or a session that could not be sealed, 2 for a wrong command line, 3 if `status` or `seal` finds no
//! recorder.

mod configs;
mod control;
mod folder;
mod journal;
mod listener;
mod live;
mod metrics;
mod report;
mod ring;
mod run;
mod seal;
mod sensors;
mod upload;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use ferretto_recorder::{Reason, SessionName, Settings};

use crate::stderr;
use crate::usage::{self, USAGE};

/// The name in its messages.
const NAME: &str = "ferretto recorder";
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;
const NOT_RUNNING: u8 = 3;
/// The settings of the machine's recorder.
const SETTINGS: &str = "/etc/ferretto/recorder.toml";

pub(crate) fn command() -> Command {
    let settings = Arg::new("settings")
        .long("settings")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .global(true)
        .help(format!("The settings [default: {SETTINGS}]"));
    let seal = Command::new("seal")
        .about("Writes the recordings of the sessions until now into files")
        .arg(Arg::new("NAME").help("The session [default: all]"))
        .arg(
            Arg::new("reason")
                .long("reason")
                .value_name("WORD")
                .default_value("command")
                .help("The reason in the names of the files"),
        );
    let upload = Command::new("upload")
        .about("Copies sealed files to object storage, by the program ferretto-upload")
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Copies the present files, and ends"),
        );
    Command::new("recorder")
        .bin_name(NAME)
        .about("Records all the time, and keeps the last minutes when something happens")
        .long_about(
            "Records all the time, and keeps the last minutes when something happens. Each trace config NAME.conf in the folder of \
             sessions is a recording without an end, in ring buffers of the tracing service. A trigger, a state of the machine \
             that the settings name, or `ferretto recorder seal` has the buffers written into a file.",
        )
        .after_help(
            "Exit status:\n  0  it was done\n  1  it failed, or a session could not be sealed\n  2  a flag makes no sense\n  3  no \
             recorder runs (status, seal)",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .arg(settings)
        .subcommand(Command::new("run").about("Records, until SIGTERM or Ctrl-C; SIGHUP has it read its files again"))
        .subcommand(Command::new("status").about("Shows the running sessions, and the outcomes of the requests to seal"))
        .subcommand(seal)
        .subcommand(Command::new("list").about("Lists the sealed files, the oldest first"))
        .subcommand(upload)
}

/// Runs the applet with the arguments after its name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let matches = match usage::matches(NAME, command(), words) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    let done = match matches.subcommand() {
        Some(("run", matches)) => Ok(run::run(settings_file(matches))),
        Some(("status", matches)) => read_settings(settings_file(matches)).and_then(|it| report::status(&it)),
        Some(("seal", matches)) => seal_now(matches),
        Some(("list", matches)) => read_settings(settings_file(matches)).and_then(|it| report::list(&it)),
        Some(("upload", matches)) => {
            let once = matches.get_flag("once").then_some("--once");
            Err(upload::become_uploader(settings_file(matches), once))
        }
        // There are no other subcommands.
        _ => Ok(USAGE),
    };
    done.unwrap_or_else(|problem| {
        stderr::say(NAME, &problem);
        FAILURE
    })
}

fn seal_now(matches: &ArgMatches) -> Result<u8, String> {
    let name = matches.get_one::<String>("NAME");
    let name = name.map(|name| SessionName::new(name)).transpose();
    let name = name.map_err(|error| error.to_string())?;
    let reason = matches
        .get_one::<String>("reason")
        .map_or("command", String::as_str);
    let settings = read_settings(settings_file(matches))?;
    control::ask(&settings.socket, name.as_ref(), &Reason::new(reason))
}

fn settings_file(matches: &ArgMatches) -> &Path {
    matches
        .get_one::<PathBuf>("settings")
        .map_or(SETTINGS.as_ref(), PathBuf::as_path)
}

/// Reads the settings. Without the usual file, all have their usual values.
fn read_settings(file: &Path) -> Result<Settings, String> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && file == Path::new(SETTINGS) => {
            String::new()
        }
        Err(error) => return Err(format!("cannot read the settings {}: {error}", file.display())),
    };
    Settings::parse(&text).map_err(|error| format!("the settings {} have a mistake: {error}", file.display()))
}
