//! `ferretto-query`: traces as tables. `ferretto export` starts it.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ferretto_tables::{Error, Input, Options, ParquetFolder, import};

/// Traces as tables
#[derive(Debug, Parser)]
#[command(name = "ferretto-query", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the tables of a trace as Parquet files
    Export {
        /// The trace; `-` is stdin
        trace: OsString,
        /// The folder for the tables, each in a folder of its own
        #[arg(short, long = "out", value_name = "DIR")]
        output: PathBuf,
    },
}

fn main() -> ExitCode {
    let Command::Export { trace, output } = Arguments::parse().command;
    match export(&trace, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("ferretto-query: {message}");
            ExitCode::FAILURE
        }
    }
}

fn export(trace: &OsString, output: PathBuf) -> Result<(), String> {
    let input =
        Input::open(trace).map_err(|error| format!("{} cannot be opened: {error}", trace.display()))?;
    let name = input.name.clone();
    let failed = |error: Error| match error {
        Error::Read(_) | Error::NoTrace(_) | Error::Spill(_) => format!("{name}: {error}"),
        other => other.to_string(),
    };
    let mut folder = ParquetFolder::create(&output).map_err(failed)?;
    let report = import(input.source, &Options::default(), &mut folder).map_err(failed)?;
    folder.finish().map_err(failed)?;
    let damage = match report.losses {
        0 => String::new(),
        1 => "; one place of the file could not be read, see ferretto_loss".to_owned(),
        losses => format!("; {losses} places of the file could not be read, see ferretto_loss"),
    };
    eprintln!(
        "ferretto-query: wrote the tables of {} packets ({} bytes) into {}{damage}",
        report.packets,
        report.bytes,
        output.display()
    );
    Ok(())
}
