//! `ferretto export`: the tables of a trace as Parquet files.

use std::ffi::OsString;
use std::path::PathBuf;

use ferretto_tables::{Error, Input, Options, ParquetFolder, import};

/// Write the tables of a trace as Parquet files
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The trace; `-` is stdin
    trace: OsString,
    /// The folder for the tables, each in a folder of its own
    #[arg(short, long = "out", value_name = "DIR")]
    output: PathBuf,
}

/// Returns what went wrong, as a sentence.
pub(crate) fn run(arguments: &Args) -> Result<(), String> {
    let input = Input::open(&arguments.trace)
        .map_err(|error| format!("{} cannot be opened: {error}", arguments.trace.display()))?;
    let name = input.name.clone();
    let failed = |error: Error| match error {
        Error::Read(_) | Error::NoTrace(_) | Error::Spill(_) => format!("{name}: {error}"),
        other => other.to_string(),
    };
    let is_new = !arguments.output.exists();
    let mut folder = ParquetFolder::create(&arguments.output).map_err(failed)?;
    let report = match import(input.source, &Options::default(), &mut folder) {
        Ok(report) => report,
        Err(error) => {
            // What has tables stays, as far as they go.
            drop(folder);
            if is_new {
                let _ = std::fs::remove_dir(&arguments.output);
            }
            return Err(failed(error));
        }
    };
    folder.finish().map_err(failed)?;
    eprintln!(
        "ferretto-query: wrote the tables of {} packets ({} bytes) into {}{}",
        report.packets,
        report.bytes,
        arguments.output.display(),
        damage(report.losses)
    );
    Ok(())
}

/// Says how much of the file could not be read; nothing if all could.
pub(crate) fn damage(losses: u64) -> String {
    match losses {
        0 => String::new(),
        1 => "; one place of the file could not be read, see ferretto_loss".to_owned(),
        losses => format!("; {losses} places of the file could not be read, see ferretto_loss"),
    }
}
