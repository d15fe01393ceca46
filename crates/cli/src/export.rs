//! `ferretto export`: the tables of a trace, as Parquet files.
//!
//! [`applet`](crate::applet) calls it. The work is that of `ferretto-query`, a program of its own, so that this one has no library of tables inside. It is
//! looked for beside this program, then in `PATH`, and takes this process over.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::{CommandFactory, Parser};

use crate::usage;

const NAME: &str = "ferretto export";
const QUERY: &str = "ferretto-query";

/// Makes tables of a trace, as Parquet files.
///
/// Each table is a folder in DIR with one file: DIR/sched_slice/part-0.parquet. Names and columns are those of upstream's trace processor. The program
/// `ferretto-query` does the work: it is looked for beside this program, then in PATH.
///
/// Exits with 0 when all that could be read is written; what could not is in DIR/ferretto_loss. Exits with 1 if there are no tables.
#[derive(Debug, Parser)]
#[command(name = "export", bin_name = NAME, disable_version_flag = true)]
struct Args {
    /// The trace, also compressed with gzip, zstd or xz; - is stdin
    #[arg(value_name = "TRACE")]
    trace: OsString,
    /// The folder for the tables
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// Runs with the arguments after the program's name; returns the exit code, if another program does not take over.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let arguments = match Args::try_parse_from(std::iter::once(NAME.into()).chain(words)) {
        Ok(arguments) => arguments,
        Err(message) => {
            usage::print(NAME, &message);
            return message.exit_code() as u8;
        }
    };
    let problem = exec(&arguments);
    let advice = match problem.kind() {
        io::ErrorKind::NotFound => {
            "it is neither beside this program nor in PATH; `cargo install --path query/cli` in Ferretto's sources builds it"
        }
        _ => "make it executable, or remove it from where this program is",
    };
    eprintln!("{NAME}: {QUERY} cannot be started ({problem}): {advice}");
    1
}

/// Becomes the other program. Returns why that failed.
fn exec(arguments: &Args) -> io::Error {
    let beside = std::env::current_exe()
        .ok()
        .map(|program| program.with_file_name(QUERY));
    let program = beside
        .filter(|program| program.exists())
        .unwrap_or_else(|| QUERY.into());
    Command::new(program)
        .arg("export")
        .arg("--out")
        .arg(&arguments.out)
        .arg("--")
        .arg(&arguments.trace)
        .exec()
}
