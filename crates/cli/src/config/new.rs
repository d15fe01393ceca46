//! `ferretto config new`: prints starter configs, whose comments explain each part and its cost.
//!
//! [`run`](super::run) calls it. The configs are files in this folder, in the style that users should adopt. Tests check them, record with them and
//! look for the promised data.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgMatches, Command, value_parser};

use crate::figures::Word;
use crate::private_file;
use crate::stdout::{Column, Screen, Table, print};

/// The placeholder for the config's own file name.
const THIS_FILE: &str = "THIS_FILE";

/// A starter config.
struct Beginning {
    name: &'static str,
    text: &'static str,
}

macro_rules! beginnings {
    ($($name:literal),+ $(,)?) => {
        &[$(Beginning { name: $name, text: include_str!(concat!("new/", $name, ".cfg")) }),+]
    };
}

/// In the order of the list.
const BEGINNINGS: &[Beginning] = beginnings![
    "sched",
    "syscalls",
    "io",
    "memory",
    "network",
    "irq",
    "power",
    "sdk",
    "flight-recorder",
    "long",
];

impl Beginning {
    /// Returns its description: its first line, without the name.
    fn about(&self) -> &'static str {
        let line = self.text.lines().next().unwrap_or_default();
        let about = line.split_once(": ").map_or(line, |(_, about)| about);
        about.trim_end_matches('.')
    }
}

/// Returns the definition of the flags.
pub(super) fn command() -> Command {
    let names = BEGINNINGS
        .iter()
        .map(|beginning| PossibleValue::new(beginning.name).help(beginning.about()));
    Command::new("new")
        .about("Prints a commented starter config, or lists them")
        .long_about(
            "Prints a config to begin with, in text form, with comments that say what each part is for, what it costs and what to \
             change. Without a name: what there is.",
        )
        .after_help("Example:\n  ferretto config new sched -o sched.cfg\n  sudo ferretto --txt -c sched.cfg -o trace.pftrace")
        .arg(
            Arg::new("NAME")
                .value_parser(PossibleValuesParser::new(names))
                .help("What to record"),
        )
        .arg(
            Arg::new("out")
                .short('o')
                .long("out")
                .value_name("OUT")
                .value_parser(value_parser!(PathBuf))
                .requires("NAME")
                .help("Write it into this file, which must not exist [default: stdout]"),
        )
}

/// Prints one of the configs, or the list.
///
/// # Errors
/// If it cannot be written.
pub(super) fn run(matches: &ArgMatches) -> Result<(), String> {
    let name = matches.get_one::<String>("NAME");
    let Some(beginning) = BEGINNINGS
        .iter()
        .find(|one| name.is_some_and(|name| name == one.name))
    else {
        return print(list().as_bytes());
    };
    let Some(path) = matches.get_one::<PathBuf>("out") else {
        return print(beginning.text.as_bytes());
    };
    let shown = path.display();
    let text = beginning
        .text
        .replace(THIS_FILE, &Word(&path.to_string_lossy()).to_string());
    let mut file = match private_file::create_new(File::options().write(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(format!(
                "{shown} exists and is not overwritten; name another file, or remove it"
            ));
        }
        Err(error) => return Err(format!("cannot write {shown}: {error}")),
    };
    file.write_all(text.as_bytes()).map_err(|error| {
        // A partial file would keep the next attempt from writing there.
        let _ = std::fs::remove_file(path);
        format!("cannot write {shown}: {error}")
    })
}

fn list() -> String {
    let mut table = Table::new([Column::text("CONFIG"), Column::text("RECORDS")]);
    for beginning in BEGINNINGS {
        table.row([beginning.name, beginning.about()]);
    }
    format!(
        "{}\nTo have one: ferretto config new {1} -o {1}.cfg\n",
        table.print(Screen::look()),
        BEGINNINGS[0].name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_begins_with_its_name_and_fits_a_screen() {
        for beginning in BEGINNINGS {
            let start = format!("# {}: ", beginning.name);
            assert!(beginning.text.starts_with(&start), "{}", beginning.name);
            for line in beginning.text.lines() {
                assert!(line.chars().count() <= 104, "{}: {line}", beginning.name);
            }
            assert!(beginning.about().len() <= 90, "{}", beginning.about());
        }
    }
}
