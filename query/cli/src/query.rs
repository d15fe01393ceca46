//! `ferretto query`: SQL on traces or on a folder of tables, once or in a shell.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use ferretto_sql::{Database, EXAMPLES, Options, Statement, Traces, VIEWS};

use crate::export::damage;
use crate::interrupt::{self, until_interrupted};
use crate::output::{self, Destination, Format};
use crate::shell;
use crate::sources;
use crate::stderr;

/// Ask traces, or a folder of tables, in SQL
///
/// Tables, columns and views are the trace processor's. Without SQL, a terminal becomes a shell; otherwise the statements come from stdin. Of several words,
/// the last one is the SQL unless it is the name of a file or a URL. With several traces, tables also have the columns date, machine and trace.
///
/// URLs are those of a trace on the web, and of a trace or a folder in object storage: s3://BUCKET/PATH, gs://, az://. A trace is fetched into a temporary
/// file. Of a folder only the columns are read that a statement needs. Server and credentials are those in the variables AWS_*, GOOGLE_* or AZURE_*.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A trace, `-` for stdin, a folder that `ferretto export` has written, or several traces, also their URLs; then the statements, with `;` between them
    #[arg(required_unless_present_any = ["examples", "views"], value_name = "TRACE|DIR|URL|SQL")]
    words: Vec<OsString>,
    /// Read the statements from this file
    #[arg(short, long, value_name = "FILE")]
    query_file: Option<PathBuf>,
    /// How answers are written
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    format: Format,
    /// Write the answer to this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The most rows that a table shows
    #[arg(long, value_name = "N", default_value_t = 1000)]
    rows: usize,
    /// The memory for tables, sorts and joins, in MB. Larger ones use temporary files
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    memory: usize,
    /// Print frequent questions with their SQL, to many traces after the name of a folder that has them
    #[arg(long)]
    examples: bool,
    /// Print the views as statements, for other engines; after the name of a folder of many traces, also those that make tables of its files
    #[arg(long)]
    views: bool,
    #[cfg(feature = "ballista")]
    #[command(flatten)]
    scheduler: crate::cluster::Scheduler,
}

/// The tables that a folder of many traces has.
type Tables = BTreeSet<&'static str>;

/// Returns what went wrong, as a sentence.
pub(crate) fn run(arguments: &Args) -> Result<(), String> {
    let texts = [
        (arguments.examples, examples as fn(&Option<Tables>) -> String),
        (arguments.views, views),
    ];
    if let Some((_, text)) = texts.iter().find(|(is_wanted, _)| *is_wanted) {
        let of_many = match arguments.words.first() {
            Some(folder) => interrupt::run(until_interrupted(sources::tables_of_many(folder)))?,
            None => None,
        };
        return match io::stdout().write_all(text(&of_many).as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
            _ => Ok(()),
        };
    }
    let (sources, sql) = sources_and_sql(arguments)?;
    let options = Options {
        memory: arguments.memory.saturating_mul(1 << 20),
        #[cfg(feature = "ballista")]
        engine: arguments.scheduler.engine(),
        #[cfg(not(feature = "ballista"))]
        engine: None,
    };
    interrupt::run(async {
        let (mut database, _fetched) = until_interrupted(sources::open(sources, &options)).await?;
        let sql = match (sql, &arguments.query_file) {
            (Some(sql), _) => sql.to_owned(),
            (None, Some(path)) => std::fs::read_to_string(path)
                .map_err(|error| format!("{} cannot be read: {error}", path.display()))?,
            (None, None) if io::stdin().is_terminal() => {
                return shell::run(&mut database, arguments.rows).await;
            }
            (None, None) if sources.iter().any(|source| source == "-") => {
                return Err("stdin is the trace; name the SQL after it, or with --query-file".to_owned());
            }
            (None, None) => {
                let mut sql = String::new();
                io::stdin()
                    .read_to_string(&mut sql)
                    .map_err(|error| format!("the SQL cannot be read from stdin: {error}"))?;
                sql
            }
        };
        let statements = database.parse(&sql).map_err(|error| error.to_string())?;
        if statements.is_empty() {
            return Err("there is no SQL; see ferretto query --examples".to_owned());
        }
        if arguments.out.is_none() && arguments.format == Format::Parquet && io::stdout().is_terminal() {
            return Err("a Parquet file is not for a terminal; name it with --out".to_owned());
        }
        let mut to = Destination::open(arguments.out.as_deref())?;
        let last = statements.len() - 1;
        let single = matches!(arguments.format, Format::Json | Format::Arrow | Format::Parquet);
        for (place, statement) in statements.into_iter().enumerate() {
            // A file of these formats has one answer: the last one.
            let to: &mut (dyn Write + Send) = match single && place < last {
                true => &mut io::sink(),
                false => &mut to,
            };
            until_interrupted(answer(
                &mut database,
                statement,
                arguments.format,
                arguments.rows,
                to,
            ))
            .await?;
        }
        to.finish()?;
        if database.losses() > 0 {
            stderr::say(&format_args!("answered{}", damage(database.losses())));
        }
        Ok(())
    })
}

/// Takes the words of the command apart. A word behind others that is neither a file nor a URL is the SQL.
fn sources_and_sql(arguments: &Args) -> Result<(&[OsString], Option<&str>), String> {
    let words = arguments.words.as_slice();
    match words.split_last() {
        None => Err("name a trace or a folder".to_owned()),
        Some((last, sources)) if !sources.is_empty() && !is_source(last) => {
            if arguments.query_file.is_some() {
                return Err(format!(
                    "{} is no file, and with --query-file the SQL is not on the command line",
                    last.display()
                ));
            }
            match last.to_str() {
                Some(sql) => Ok((sources, Some(sql))),
                None => Err(format!("{} is neither a file nor SQL", last.display())),
            }
        }
        Some(_) => Ok((words, None)),
    }
}

fn is_source(word: &OsStr) -> bool {
    word == "-" || Path::new(word).exists() || sources::is_url(word)
}

/// Runs a statement and writes its rows. Statements that define something have none.
pub(crate) async fn answer(
    database: &mut Database,
    statement: Statement,
    format: Format,
    rows: usize,
    to: &mut (dyn Write + Send),
) -> Result<(), String> {
    let plain = |error: ferretto_sql::Error| error.to_string();
    let frame = database.run(statement).await.map_err(plain)?;
    let stream = frame
        .execute_stream()
        .await
        .map_err(|error| plain(error.into()))?;
    match stream.schema().fields().is_empty() {
        true => Ok(()),
        false => output::write(stream, format, rows, to).await,
    }
}

/// All examples as a text that `ferretto query` reads.
fn examples(of_many: &Option<Tables>) -> String {
    let one = |example: &ferretto_sql::Example| {
        format!(
            "-- {} (ferretto report {})\n{};\n",
            example.question,
            example.name,
            example.of(traces(of_many))
        )
    };
    EXAMPLES.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// What is asked of a folder of many traces, or of one trace.
fn traces(of_many: &Option<Tables>) -> Traces {
    match of_many {
        Some(_) => Traces::Many,
        None => Traces::One,
    }
}

/// All views as a text of statements, those that others use first. With many traces, tables are views of their files.
fn views(of_many: &Option<Tables>) -> String {
    let mut text = Vec::new();
    if let Some(tables) = of_many {
        for (name, sql) in ferretto_sql::views_of_files(|table| tables.contains(table)) {
            text.push(format!("create or replace view {name} as {sql};\n"));
        }
    }
    for view in VIEWS {
        let sql = view.sql(traces(of_many));
        text.push(format!(
            "-- {}\ncreate or replace view {} as {sql};\n",
            view.about, view.name
        ));
    }
    text.join("\n")
}
