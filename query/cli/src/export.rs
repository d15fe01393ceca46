//! `ferretto export`: the tables of a trace, or of many, as Parquet files.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use ferretto_tables::{
    Added, Error, Input, Options, ParquetFolder, PartitionedFolder, Selection, import, traces_in,
};

use crate::stderr;

/// The most traces that failed which one message names.
const MOST_NAMED: usize = 20;

/// Write the tables of traces as Parquet files
///
/// One trace has the files DIR/TABLE/part-0.parquet. Several traces, a folder of traces, and whatever goes into a folder that has several already, have
/// partitions: DIR/TABLE/date=2026-11-27/machine=NAME/trace=FILE/part-0.parquet.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The traces, or folders of traces; `-` is stdin
    #[arg(required = true, value_name = "TRACE|DIR")]
    traces: Vec<OsString>,
    /// The folder for the tables, each in a folder of its own
    #[arg(short, long = "out", value_name = "DIR")]
    output: PathBuf,
    /// Also the table ftrace_event: each kernel event with all its fields, several times as much as the other tables
    #[arg(long)]
    ftrace_events: bool,
    /// Give also a single trace a partition, so that others can follow
    #[arg(long)]
    partition: bool,
    /// The machine that recorded the traces, for their partition. By default its kernel and architecture
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
}

impl Args {
    fn options(&self) -> Options {
        Options {
            tables: match self.ftrace_events {
                true => Selection::All,
                false => Selection::Usual,
            },
            ..Options::default()
        }
    }
}

/// Returns what went wrong, as a sentence.
pub(crate) fn run(arguments: &Args) -> Result<(), String> {
    let has_folder = arguments
        .traces
        .iter()
        .any(|trace| trace != "-" && Path::new(trace).is_dir());
    match arguments.traces.as_slice() {
        [trace]
            if !(has_folder
                || arguments.partition
                || arguments.machine.is_some()
                || PartitionedFolder::is_one(&arguments.output)) =>
        {
            one(trace, &arguments.output, &arguments.options())
        }
        _ => many(arguments),
    }
}

fn open(trace: &OsStr) -> Result<Input, String> {
    Input::open(trace).map_err(|error| format!("{} cannot be opened: {error}", trace.display()))
}

fn one(trace: &OsStr, output: &Path, options: &Options) -> Result<(), String> {
    let input = open(trace)?;
    let name = input.name.clone();
    let failed = |error: Error| match error {
        Error::Read(_) | Error::NoTrace(_) | Error::Spill(_) => format!("{name}: {error}"),
        other => other.to_string(),
    };
    let is_new = !output.exists();
    let mut folder = ParquetFolder::create(output).map_err(failed)?;
    let report = match import(input.source, options, &mut folder) {
        Ok(report) => report,
        Err(error) => {
            // What has tables stays, as far as they go.
            drop(folder);
            if is_new {
                let _ = std::fs::remove_dir(output);
            }
            return Err(failed(error));
        }
    };
    folder.finish().map_err(failed)?;
    stderr::say(&format_args!(
        "wrote the tables of {} packets ({} bytes) into {}{}",
        report.packets,
        report.bytes,
        output.display(),
        damage(report.losses)
    ));
    Ok(())
}

/// Exports one trace after the other. One that fails does not stop the others.
fn many(arguments: &Args) -> Result<(), String> {
    let mut traces = Vec::new();
    for source in &arguments.traces {
        match source != "-" && Path::new(source).is_dir() {
            true => {
                let found = traces_in(Path::new(source))
                    .map_err(|error| format!("{} cannot be read: {error}", source.display()))?;
                if found.is_empty() {
                    return Err(format!("{} has no traces", source.display()));
                }
                traces.extend(found.into_iter().map(OsString::from));
            }
            false => traces.push(source.clone()),
        }
    }
    let mut folder = PartitionedFolder::open(&arguments.output).map_err(|error| error.to_string())?;
    let (mut packets, mut bytes, mut replaced) = (0, 0, 0);
    let (mut damaged, mut failed) = (Vec::new(), Vec::new());
    for (before, trace) in traces.iter().enumerate() {
        match add(&mut folder, trace, arguments) {
            Ok(added) => {
                packets += added.report.packets;
                bytes += added.report.bytes;
                replaced += usize::from(added.has_replaced);
                if added.report.losses > 0 {
                    damaged.push(added.place.trace);
                }
            }
            Err(Failure::OfTrace(message)) => failed.push(message),
            // The next trace would fail too.
            Err(Failure::OfFolder(message)) => {
                failed.push(message);
                return Err(format!(
                    "ended at {} after {before} of {} traces:\n  {}",
                    trace.display(),
                    traces.len(),
                    failed.join("\n  ")
                ));
            }
        }
    }
    let written = traces.len() - failed.len();
    if written > 0 {
        let again = match replaced {
            0 => String::new(),
            again => format!("; {again} were there before and are replaced"),
        };
        let damaged = match damaged.as_slice() {
            [] => String::new(),
            [trace] => format!("; {trace} is damaged, see ferretto_loss"),
            [trace, ..] => format!(
                "; {} of them are damaged, such as {trace}, see ferretto_loss",
                damaged.len()
            ),
        };
        stderr::say(&format_args!(
            "wrote the tables of {written} trace{} ({packets} packets, {bytes} bytes) into {}{again}{damaged}",
            if written == 1 { "" } else { "s" },
            arguments.output.display(),
        ));
    }
    match failed.len() {
        0 => Ok(()),
        count => {
            let more = match count.saturating_sub(MOST_NAMED) {
                0 => String::new(),
                more => format!("\n  and {more} more"),
            };
            failed.truncate(MOST_NAMED);
            let others = if written > 0 { "; the others do" } else { "" };
            Err(format!(
                "{count} of {} traces have no tables{others}:\n  {}{more}",
                traces.len(),
                failed.join("\n  ")
            ))
        }
    }
}

/// What an export of one trace among many fails of.
enum Failure {
    OfTrace(String),
    OfFolder(String),
}

fn add(folder: &mut PartitionedFolder, trace: &OsStr, arguments: &Args) -> Result<Added, Failure> {
    let input = open(trace).map_err(Failure::OfTrace)?;
    let name = match trace == "-" {
        true => "stdin".into(),
        false => Path::new(trace).file_name().unwrap_or(trace).to_string_lossy(),
    };
    folder
        .add(
            input.source,
            &name,
            arguments.machine.as_deref(),
            &arguments.options(),
        )
        .map_err(|error| match error {
            Error::Read(_) | Error::NoTrace(_) | Error::Taken(_) | Error::Batch(..) => {
                Failure::OfTrace(format!("{}: {error}", input.name))
            }
            Error::Spill(_) => Failure::OfFolder(format!("{}: {error}", input.name)),
            other => Failure::OfFolder(other.to_string()),
        })
}

/// Says how much of the file could not be read; nothing if all could.
pub(crate) fn damage(losses: u64) -> String {
    match losses {
        0 => String::new(),
        1 => "; one place of the file could not be read, see ferretto_loss".to_owned(),
        losses => format!("; {losses} places of the file could not be read, see ferretto_loss"),
    }
}
