//! The rows of an answer in the format that was asked for.

use std::io::{self, Write};

use clap::ValueEnum;
use ferretto_sql::datafusion::arrow::array::RecordBatch;
use ferretto_sql::datafusion::arrow::csv;
use ferretto_sql::datafusion::arrow::error::ArrowError;
use ferretto_sql::datafusion::arrow::ipc::writer::StreamWriter;
use ferretto_sql::datafusion::arrow::json::writer::{JsonArray, WriterBuilder};
use ferretto_sql::datafusion::parquet::arrow::ArrowWriter;
use ferretto_sql::datafusion::parquet::errors::ParquetError;
use ferretto_sql::datafusion::physical_plan::SendableRecordBatchStream;
use futures::TryStreamExt;

use crate::table;

/// How answers are written
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people; at most --rows of them
    Table,
    /// Comma-separated values, with the names in the first line
    Csv,
    /// One array of objects
    Json,
    /// A stream of Arrow's IPC format
    Arrow,
    /// A Parquet file
    Parquet,
}

/// Writes all rows of an answer.
pub(crate) async fn write(
    mut rows: SendableRecordBatchStream,
    format: Format,
    most: usize,
    to: &mut (dyn Write + Send),
) -> Result<(), String> {
    let failed = |error: ArrowError| match error {
        ArrowError::IoError(_, error) if error.kind() == io::ErrorKind::BrokenPipe => String::new(),
        error => format!("the answer cannot be written: {error}"),
    };
    let schema = rows.schema();
    let mut next = async || {
        rows.try_next()
            .await
            .map_err(|error| ferretto_sql::Error::from(error).to_string())
    };
    match format {
        Format::Table => {
            let (mut batches, mut count, mut has_more) = (Vec::new(), 0, false);
            while let Some(batch) = next().await? {
                let room = most - count;
                has_more = batch.num_rows() > room;
                let batch = batch.slice(0, batch.num_rows().min(room));
                count += batch.num_rows();
                batches.push(batch);
                if has_more {
                    break;
                }
            }
            let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
            let columns = table::columns(&names, &batches).map_err(failed)?;
            // A file gets whole values, as does another program.
            let width = table::Width::of_stdout();
            let mut text = table::lines(&columns, width).join("\n");
            text.push('\n');
            if has_more {
                text += &format!("… more than {most} rows; --rows N shows more, --format csv writes all\n");
            }
            to.write_all(text.as_bytes())
                .map_err(|error| failed(error.into()))?;
        }
        Format::Csv => {
            let mut writer = csv::Writer::new(&mut *to);
            writer.write(&RecordBatch::new_empty(schema)).map_err(failed)?;
            while let Some(batch) = next().await? {
                writer.write(&batch).map_err(failed)?;
            }
        }
        Format::Json => {
            let mut writer = WriterBuilder::new()
                .with_explicit_nulls(true)
                .build::<_, JsonArray>(&mut *to);
            while let Some(batch) = next().await? {
                writer.write(&batch).map_err(failed)?;
            }
            writer.finish().map_err(failed)?;
            drop(writer);
            to.write_all(b"\n").map_err(|error| failed(error.into()))?;
        }
        Format::Arrow => {
            let mut writer = StreamWriter::try_new(&mut *to, &schema).map_err(failed)?;
            while let Some(batch) = next().await? {
                writer.write(&batch).map_err(failed)?;
            }
            writer.finish().map_err(failed)?;
        }
        Format::Parquet => {
            let failed = |error: ParquetError| format!("the answer cannot be written: {error}");
            let mut writer = ArrowWriter::try_new(&mut *to, schema, None).map_err(failed)?;
            while let Some(batch) = next().await? {
                writer.write(&batch).map_err(failed)?;
            }
            writer.close().map_err(failed)?;
        }
    }
    to.flush().map_err(|error| failed(error.into()))
}
