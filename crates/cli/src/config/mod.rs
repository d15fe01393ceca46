//! `ferretto config`: prints starter configs, checks configs, and converts them between text and binary.
//!
//! [`applet`](crate::applet) calls it. Findings and converted configs go to stdout, everything else to stderr. Exit codes: 0 for success, including a
//! legal config about which there is advice; 1 for a config that would be refused and for any other failure; 2 for a wrong command line.

pub(crate) mod advice;
pub(crate) mod categories;
pub(crate) mod check;
pub(crate) mod config_source;
pub(crate) mod event_names;
pub(crate) mod length;
mod new;
pub(crate) mod refusals;
pub(crate) mod surroundings;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use ferretto_proto::text::{self, Printer, TRACE_CONFIG};

use crate::private_file;
use crate::stderr;
use crate::usage::{self, USAGE};
use config_source::{ConfigSyntax, WrittenConfig, detect, parse_config, read_config};

const NAME: &str = "ferretto config";
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

pub(crate) fn command() -> Command {
    let file = || {
        Arg::new("FILE")
            .required(true)
            .value_parser(value_parser!(OsString))
            .help("A trace config, text or encoded; - for stdin")
    };
    let out = || {
        Arg::new("out")
            .short('o')
            .long("out")
            .value_name("OUT")
            .value_parser(value_parser!(PathBuf))
            .action(ArgAction::Set)
            .help("Where the result goes [default: stdout]")
    };
    Command::new("config")
        .bin_name(NAME)
        .about("Checks trace configs before they are used, converts them, and has some to begin with")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(new::command())
        .subcommand(
            Command::new("check")
                .about("Says what is wrong with a config, and what will disappoint in the trace")
                .long_about(
                    "Says what is wrong with a trace config, each mistake with its line, and what is legal but will disappoint: data \
                     sources that nobody offers, events that this kernel does not have, buffers that are soon full. The \
                     tracing service is asked if one is running, and the kernel if tracefs may be read. Exits with 0 if a \
                     recording could begin, with 1 if the config would be refused.",
                )
                .arg(file()),
        )
        .subcommand(
            Command::new("encode")
                .about("Turns the text of a config into its binary form")
                .arg(file())
                .arg(out()),
        )
        .subcommand(
            Command::new("decode")
                .about("Turns a binary config into text")
                .arg(file())
                .arg(out()),
        )
}

/// Runs the applet with the arguments after its name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let matches = match usage::matches(NAME, command(), words) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    let done = match matches.subcommand() {
        Some(("check", matches)) => read(matches).and_then(|(name, bytes)| check::check(&name, &bytes)),
        Some(("new", matches)) => new::run(matches).map(|()| SUCCESS),
        Some(("encode", matches)) => encode(matches).map(|()| SUCCESS),
        Some(("decode", matches)) => decode(matches).map(|()| SUCCESS),
        // There are no other subcommands.
        _ => Ok(USAGE),
    };
    done.unwrap_or_else(|problem| {
        stderr::say(NAME, &problem);
        FAILURE
    })
}

/// Reads the given file; returns its name for messages, and its bytes.
fn read(matches: &ArgMatches) -> Result<(String, Vec<u8>), String> {
    let file: &OsStr = matches
        .get_one::<OsString>("FILE")
        .map_or("-".as_ref(), |file| file);
    let bytes = read_config(file).map_err(|error| error.to_string())?;
    let name = match file.to_str() {
        Some("-") => "<stdin>".to_owned(),
        _ => file.to_string_lossy().into_owned(),
    };
    Ok((name, bytes))
}

/// Parses a config, encoded or text.
fn parse(name: &str, bytes: &[u8]) -> Result<WrittenConfig, String> {
    parse_config(name, bytes, detect(bytes)).map_err(|error| error.to_string())
}

fn encode(matches: &ArgMatches) -> Result<(), String> {
    let (name, bytes) = read(matches)?;
    if detect(&bytes) == ConfigSyntax::Encoded {
        return Err(format!("{name} is encoded already"));
    }
    parse(&name, &bytes)?;
    let source = text::source(&bytes).map_err(|error| error.to_string())?;
    // Encodes the text directly instead of a parsed message, so that fields keep their order.
    let encoded = text::encode(&source, TRACE_CONFIG).map_err(|errors| errors.render(&name))?;
    let out = matches.get_one::<PathBuf>("out");
    if out.is_none() && std::io::stdout().is_terminal() {
        return Err("the encoded config is not for a terminal; write -o FILE".to_owned());
    }
    write(out, &encoded)
}

fn decode(matches: &ArgMatches) -> Result<(), String> {
    let (name, bytes) = read(matches)?;
    // An empty file is valid text and a valid encoding.
    if !bytes.is_empty() && detect(&bytes) == ConfigSyntax::Text {
        return Err(format!("{name} is text already"));
    }
    parse(&name, &bytes)?;
    let printer = Printer::new(TRACE_CONFIG).ok_or("this program has no schema of trace configs")?;
    let mut printed = Vec::new();
    printer
        .print(&bytes, 0, &mut printed)
        .map_err(|error| format!("cannot print {name}: {error}"))?;
    write(matches.get_one::<PathBuf>("out"), &printed)
}

fn write(out: Option<&PathBuf>, bytes: &[u8]) -> Result<(), String> {
    match out {
        Some(path) => {
            let written = private_file::open(File::options().write(true), path).and_then(|(mut file, _)| {
                private_file::empty(&file)?;
                file.write_all(bytes)
            });
            written.map_err(|error| format!("cannot write {}: {error}", path.display()))
        }
        None => {
            let mut stdout = std::io::stdout().lock();
            let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
            written.map_err(|error| format!("cannot write to stdout: {error}"))
        }
    }
}
