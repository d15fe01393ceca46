//! `ferretto export`, `ferretto query` and `ferretto report`: traces as tables.
//!
//! [`applet`](crate::applet) calls it. The work is that of `ferretto-query`, a program of its own, so that this one has no library of tables inside. It is
//! looked for beside this program, then in `PATH`, and takes this process over. It reads the arguments itself, so they are passed on as they are.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::{CommandFactory, Parser};

use crate::stderr;

const QUERY: &str = "ferretto-query";

/// Makes tables of traces, as Parquet files.
///
/// Each table is a folder in DIR. One trace has one file there: DIR/sched_slice/part-0.parquet. Several traces, a folder of traces, and whatever goes into a
/// DIR that has several already, have partitions: DIR/sched_slice/date=2026-11-27/machine=NAME/trace=FILE/part-0.parquet. A trace that was there before is
/// replaced. Names and columns are those of upstream's trace processor. The program `ferretto-query` does the work: it is looked for beside this program,
/// then in PATH.
///
/// Exits with 0 when all that could be read is written; what could not is in DIR/ferretto_loss. Exits with 1 if a trace has no tables; the others of many do.
#[derive(Debug, Parser)]
#[command(name = "export", bin_name = "ferretto export", disable_version_flag = true)]
struct Export {
    /// The traces, also compressed with gzip, zstd or xz; - is stdin. Of a folder, all files in it
    #[arg(value_name = "TRACE|DIR", required = true)]
    _traces: Vec<OsString>,
    /// The folder for the tables
    #[arg(short, long = "out", value_name = "DIR")]
    _out: OsString,
    /// Also writes the table ftrace_event: each kernel event with all its fields, several times as much as the other tables
    #[arg(long = "ftrace-events")]
    _ftrace_events: bool,
    /// Gives also a single trace a partition, so that others can follow
    #[arg(long = "partition")]
    _partition: bool,
    /// The machine that recorded the traces, for their partition [default: its kernel and architecture]
    #[arg(long = "machine", value_name = "NAME")]
    _machine: Option<OsString>,
}

/// Answers questions to traces, in SQL.
///
/// Tables, columns and views are those of upstream's trace processor, so its SQL carries over; docs/tables.md describes them, and the functions for spans and
/// times. Of several words, the last one is the SQL, unless it is the name of a file or a URL. Without SQL, a terminal becomes a shell with history and
/// completion; otherwise the statements come from stdin. With several traces, tables also have the columns date, machine and trace. The program
/// `ferretto-query` does the work: it is looked for beside this program, then in PATH.
///
/// A URL is that of a trace on the web, or of a trace or a folder of tables in object storage: s3://BUCKET/PATH, gs://, az://. A trace is fetched into a
/// temporary file. Of a folder, only the columns are read that a statement needs. AWS_*, GOOGLE_* and AZURE_* have server and credentials.
///
/// Exits with 0 if all statements were answered, also if a part of a trace could not be read, which a line on stderr says. Exits with 1 otherwise.
#[derive(Debug, Parser)]
#[command(name = "query", bin_name = "ferretto query", disable_version_flag = true)]
struct Query {
    /// The trace, - for stdin, a folder that `ferretto export` has written, or several traces, also their URLs; then the statements, with ; between them
    #[arg(value_name = "TRACE|DIR|URL|SQL", required = true)]
    _words: Vec<OsString>,
    /// Reads the statements from this file
    #[arg(short, long = "query-file", value_name = "FILE")]
    _query_file: Option<OsString>,
    /// How answers are written: table, csv, json, arrow or parquet [default: table]
    #[arg(short, long = "format", value_name = "FORMAT")]
    _format: Option<OsString>,
    /// Writes the answer to this file instead of stdout
    #[arg(short, long = "out", value_name = "FILE")]
    _out: Option<OsString>,
    /// The most rows that a table shows [default: 1000]
    #[arg(long = "rows", value_name = "N")]
    _rows: Option<OsString>,
    /// The memory for tables, sorts and joins, in MB; larger ones use temporary files [default: 1024]
    #[arg(long = "memory", value_name = "MB")]
    _memory: Option<OsString>,
    /// Prints frequent questions with their SQL; after the name of a folder of many traces, the SQL for these
    #[arg(long = "examples")]
    _examples: bool,
    /// Prints the views as statements, for other engines; after the name of a folder of many traces, also those that make tables of its files
    #[arg(long = "views")]
    _views: bool,
}

/// Answers a frequent question to traces, with bars.
///
/// `ferretto query --examples` lists the questions and their SQL. `all` answers each that the traces can answer. The program `ferretto-query` does the work:
/// it is looked for beside this program, then in PATH.
#[derive(Debug, Parser)]
#[command(name = "report", bin_name = "ferretto report", disable_version_flag = true)]
struct Report {
    /// The question, such as cpu, sched-latency, io, slices or memory
    #[arg(value_name = "QUESTION")]
    _name: OsString,
    /// The trace, - for stdin, a folder that `ferretto export` has written, or several traces, also their URLs as with `ferretto query`
    #[arg(value_name = "TRACE|DIR|URL", required = true)]
    _sources: Vec<OsString>,
}

pub(crate) fn export() -> clap::Command {
    Export::command()
}

pub(crate) fn query() -> clap::Command {
    Query::command()
}

pub(crate) fn report() -> clap::Command {
    Report::command()
}

/// Runs `export` with the arguments after its name; returns the exit code, if the other program does not take over.
pub(crate) fn run_export(words: Vec<OsString>) -> u8 {
    run("export", &export(), words)
}

/// The same for `query`.
pub(crate) fn run_query(words: Vec<OsString>) -> u8 {
    run("query", &query(), words)
}

/// The same for `report`.
pub(crate) fn run_report(words: Vec<OsString>) -> u8 {
    run("report", &report(), words)
}

fn run(name: &str, command: &clap::Command, words: Vec<OsString>) -> u8 {
    // Help needs no other program.
    let help = words
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--help" || word == "-h");
    if help {
        let _ = command.clone().print_long_help();
        return 0;
    }
    let problem = exec(name.as_ref(), &words);
    let advice = match problem.kind() {
        io::ErrorKind::NotFound => {
            "it is neither beside this program nor in PATH; `cargo install --path query/cli` in Ferretto's sources builds it"
        }
        _ => "make it executable, or remove it from where this program is",
    };
    stderr::say(
        &format!("ferretto {name}"),
        &format_args!("{QUERY} cannot be started ({problem}): {advice}"),
    );
    1
}

/// Becomes the other program. Returns why that failed.
fn exec(name: &OsStr, words: &[OsString]) -> io::Error {
    let beside = std::env::current_exe()
        .ok()
        .map(|program| program.with_file_name(QUERY));
    let program = beside
        .filter(|program| program.exists())
        .unwrap_or_else(|| QUERY.into());
    Command::new(program).arg(name).args(words).exec()
}
