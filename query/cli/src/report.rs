//! `ferretto report`: the answer to one of the questions that people ask, with bars.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::builder::PossibleValuesParser;
use ferretto_sql::datafusion::arrow::array::{Array, AsArray};
use ferretto_sql::datafusion::arrow::compute::cast;
use ferretto_sql::datafusion::arrow::datatypes::{DataType, Float64Type};
use ferretto_sql::{Database, EXAMPLES, Example, Options, Unit, human_bytes, human_duration};

use crate::bars::bars;
use crate::export::damage;
use crate::interrupt::{self, until_interrupted};
use crate::sources::open;
use crate::stderr;
use crate::table::{self, Column, Width};

/// Answer a frequent question about a trace, or about many
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The question; `all` for each that the trace can answer
    #[arg(value_parser = PossibleValuesParser::new(EXAMPLES.iter().map(|example| example.name).chain(["all"])))]
    name: String,
    /// A trace, `-` for stdin, a folder that `ferretto export` has written, or several traces; also their URLs
    #[arg(required = true, value_name = "TRACE|DIR|URL")]
    sources: Vec<OsString>,
    #[cfg(feature = "ballista")]
    #[command(flatten)]
    scheduler: crate::cluster::Scheduler,
}

/// Returns what went wrong, as a sentence.
pub(crate) fn run(arguments: &Args) -> Result<(), String> {
    let wanted: Vec<&Example> = EXAMPLES
        .iter()
        .filter(|example| arguments.name == "all" || arguments.name == example.name)
        .collect();
    let text = interrupt::run(until_interrupted(async {
        let plain = |error: ferretto_sql::Error| error.to_string();
        let options = Options {
            #[cfg(feature = "ballista")]
            engine: arguments.scheduler.engine(),
            ..Options::default()
        };
        let (mut database, _fetched) = open(&arguments.sources, &options).await?;
        // One pass over the trace for all.
        let queries: Vec<String> = wanted
            .iter()
            .map(|example| example.of(database.traces()))
            .collect();
        database
            .build_tables_of(&queries.join(";"))
            .await
            .map_err(plain)?;
        let mut text = String::new();
        for example in &wanted {
            let lines = report(&mut database, example).await?;
            match (lines.is_empty(), wanted.len()) {
                (true, 1) => {
                    text += &format!("{}\nThe trace has nothing that answers this.\n", example.question)
                }
                (true, _) => {}
                (false, _) => {
                    let between = if text.is_empty() { "" } else { "\n" };
                    text += &format!("{between}{}\n\n{}\n", example.question, lines.join("\n"));
                }
            }
        }
        if database.losses() > 0 {
            stderr::say(&format_args!("answered{}", damage(database.losses())));
        }
        Ok(text)
    }))?;
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("the report cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}

/// Returns the lines of an answer; none if it has no rows.
async fn report(database: &mut Database, example: &Example) -> Result<Vec<String>, String> {
    let failed = |error: ferretto_sql::Error| format!("{}: {error}", example.name);
    let mut batches = Vec::new();
    let mut names = Vec::new();
    for statement in database.parse(&example.of(database.traces())).map_err(failed)? {
        let frame = database.run(statement).await.map_err(failed)?;
        names = frame
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
        batches = frame.collect().await.map_err(|error| failed(error.into()))?;
    }
    let arrow = |error| format!("{}: {error}", example.name);
    if batches.iter().all(|batch| batch.num_rows() == 0) {
        return Ok(Vec::new());
    }
    let mut columns = table::columns(&names, &batches).map_err(arrow)?;
    let mut numbers = Vec::new();
    for batch in &batches {
        let Some(last) = batch.columns().last() else {
            continue;
        };
        let last = cast(last, &DataType::Float64).map_err(arrow)?;
        let last = last.as_primitive::<Float64Type>();
        numbers.extend((0..last.len()).map(|row| match last.is_null(row) {
            true => 0.0,
            false => last.value(row),
        }));
    }
    for (place, column) in columns.iter_mut().enumerate() {
        let is_last = place + 1 == names.len();
        let is_duration = matches!(column.name.as_str(), "total" | "longest" | "dur");
        let human = match example.unit {
            Unit::Duration if is_last || is_duration => human_duration,
            Unit::Bytes if is_last => human_bytes,
            _ => continue,
        };
        for value in &mut column.values {
            if let Ok(number) = value.parse::<f64>() {
                *value = human(number);
            }
        }
    }
    columns.push(Column {
        name: String::new(),
        values: bars(&numbers),
        is_number: false,
    });
    Ok(table::lines(&columns, Width::AtMost(60)))
}
