//! `ferretto-upload`: copies the files that the flight recorder has sealed to object storage.
//!
//! A program of its own, so that the recorder needs neither a network nor the code for one. `ferretto recorder upload` and the unit
//! `ferretto-upload.service` start it. [`uploader`] is its loop, [`store`] the place that files go to ([`folder`] if that is one), and [`state`] what it remembers
//! in a file, which `ferretto recorder status` reads.
//!
//! Guarantees: it changes nothing in the recorder's folder. An object is there whole or not at all, and is never replaced. A file that was uploaded whole is
//! not uploaded again, whenever this program is killed. So it needs no farewell: signals just end it.
//!
//! Exit codes: 0 for success, with `--once` only; 1 for a failure; 2 for a wrong command line.
#![forbid(unsafe_code)]

mod folder;
mod pace;
mod state;
mod stderr;
mod store;
mod uploader;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ferretto_recorder::{Settings, Upload};

use crate::state::Memory;
use crate::stderr::say;
use crate::store::Store;
use crate::uploader::{Until, Uploader};

const NAME: &str = "ferretto-upload";
/// The settings of the machine's recorder.
const SETTINGS: &str = "/etc/ferretto/recorder.toml";
const USAGE: u8 = 2;
const HELP: &str = "\
Copies what the flight recorder has sealed to object storage

Usage: ferretto-upload [--settings FILE] [--once]

Options:
      --settings FILE  The settings of the recorder, whose table [upload] says where to [default: /etc/ferretto/recorder.toml]
      --once           Copies the present files, and ends: with 0 if all went well, else with 1
  -h, --help           Prints this

Credentials come from the variables that the clouds' own tools read: AWS_*, GOOGLE_*, AZURE_*.
";

/// The parsed command line.
struct Words {
    settings: PathBuf,
    until: Until,
}

fn main() -> ExitCode {
    let words = match read_words(std::env::args_os().skip(1)) {
        Ok(Some(words)) => words,
        Ok(None) => {
            let _ = write!(std::io::stdout(), "{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            say(format_args!("{NAME}: {mistake}; see {NAME} --help"));
            return ExitCode::from(USAGE);
        }
    };
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(format_args!("{NAME}: {problem}"));
            ExitCode::FAILURE
        }
    }
}

/// Reads the words of the command line; `None` if it asks for help.
fn read_words(words: impl Iterator<Item = OsString>) -> Result<Option<Words>, String> {
    let mut read = Words {
        settings: SETTINGS.into(),
        until: Until::Killed,
    };
    let mut words = words;
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--settings") => {
                let file = words.next().ok_or("--settings needs the name of a file")?;
                read.settings = file.into();
            }
            Some("--once") => read.until = Until::AllIsThere,
            Some("-h" | "--help") => return Ok(None),
            _ => return Err(format!("{} means nothing here", word.display())),
        }
    }
    Ok(Some(read))
}

fn run(words: &Words) -> Result<(), String> {
    let file = words.settings.display();
    let text = std::fs::read_to_string(&words.settings)
        .map_err(|error| format!("cannot read the settings {file}: {error}"))?;
    let settings =
        Settings::parse(&text).map_err(|error| format!("the settings {file} have a mistake: {error}"))?;
    let Some(upload) = &settings.upload else {
        return Err(format!(
            "the settings {file} do not say where to: they need a table [upload] with a url"
        ));
    };
    let machine = machine(upload)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let store = Store::open(&upload.url, &machine)?;
        let memory = Memory::open(&upload.state, &store.to_string())?;
        let uploader = Uploader::new(
            settings.folder.clone(),
            store,
            memory,
            upload.max_bytes_per_second,
        );
        uploader.run(words.until).await
    })
}

/// Returns the name of this machine, which keeps its files apart from those of others.
fn machine(upload: &Upload) -> Result<String, String> {
    let name = match &upload.machine {
        Some(machine) => machine.clone(),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(|error| {
            format!("cannot read this machine's name: {error}; give it as machine in [upload]")
        })?,
    };
    match name.trim() {
        "" => Err("this machine has no name; give it one as machine in [upload]".to_owned()),
        name => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_page_has_all_options_and_no_others() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/man/ferretto-upload.1"));
        let mut page = page.unwrap();
        for (of_roff, text) in [("\\-", "-"), ("\\fB", ""), ("\\fI", ""), ("\\fR", "")] {
            page = page.replace(of_roff, text);
        }
        let options = |text: &str| -> std::collections::BTreeSet<String> {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
            options.map(str::to_owned).collect()
        };
        assert_eq!(options(&page), options(HELP));
    }
}
