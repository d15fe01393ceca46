//! The rows of an answer in the format that was asked for.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ferretto_sql::datafusion::arrow::array::RecordBatch;
use ferretto_sql::datafusion::arrow::csv;
use ferretto_sql::datafusion::arrow::error::ArrowError;
use ferretto_sql::datafusion::arrow::ipc::writer::StreamWriter;
use ferretto_sql::datafusion::arrow::json::writer::{JsonArray, WriterBuilder};
use ferretto_sql::datafusion::error::DataFusionError;
use ferretto_sql::datafusion::parquet::arrow::ArrowWriter;
use ferretto_sql::datafusion::parquet::errors::ParquetError;
use ferretto_sql::datafusion::physical_plan::SendableRecordBatchStream;
use futures::TryStreamExt;
use tempfile::NamedTempFile;

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

/// Where answers go.
pub(crate) enum Destination {
    Stdout(io::BufWriter<io::Stdout>),
    /// A pipe or another file that is not replaced.
    Special(File),
    /// A file that replaces another, or none, when all is written.
    File(NamedTempFile, PathBuf),
}

impl Destination {
    /// Opens a file, or stdout if there is no name.
    pub(crate) fn open(path: Option<&Path>) -> Result<Destination, String> {
        let Some(path) = path else {
            return Ok(Destination::Stdout(io::BufWriter::new(io::stdout())));
        };
        let failed = |error: io::Error| format!("{} cannot be written: {error}", path.display());
        match path.metadata() {
            Ok(known) if !known.is_file() => Ok(Destination::Special(
                File::options().write(true).open(path).map_err(failed)?,
            )),
            _ => {
                let folder = match path.parent() {
                    Some(folder) if !folder.as_os_str().is_empty() => folder,
                    _ => Path::new("."),
                };
                let file = tempfile::Builder::new()
                    .prefix(".ferretto-query")
                    .permissions(Permissions::from_mode(0o666))
                    .tempfile_in(folder)
                    .map_err(failed)?;
                Ok(Destination::File(file, path.to_owned()))
            }
        }
    }

    /// Puts a file in its place.
    pub(crate) fn finish(self) -> Result<(), String> {
        match self {
            Destination::Stdout(_) | Destination::Special(_) => Ok(()),
            Destination::File(file, path) => match file.persist(&path) {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("{} cannot be written: {}", path.display(), error.error)),
            },
        }
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Destination::Stdout(stdout) => stdout.write(bytes),
            Destination::Special(file) => file.write(bytes),
            Destination::File(file, _) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Destination::Stdout(stdout) => stdout.flush(),
            Destination::Special(file) => file.flush(),
            Destination::File(file, _) => file.flush(),
        }
    }
}

/// Why writing ended.
enum Problem {
    /// The reader has what it wants, as `head` does.
    Closed,
    Other(String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Problem::Closed,
            _ => Problem::Other(format!("the answer cannot be written: {error}")),
        }
    }
}

impl From<ArrowError> for Problem {
    fn from(error: ArrowError) -> Problem {
        match error {
            ArrowError::IoError(_, error) => error.into(),
            error => Problem::Other(format!("the answer cannot be written: {error}")),
        }
    }
}

impl From<ParquetError> for Problem {
    fn from(error: ParquetError) -> Problem {
        Problem::Other(format!("the answer cannot be written: {error}"))
    }
}

impl From<DataFusionError> for Problem {
    fn from(error: DataFusionError) -> Problem {
        Problem::Other(ferretto_sql::Error::from(error).to_string())
    }
}

/// Writes all rows of an answer.
pub(crate) async fn write(
    rows: SendableRecordBatchStream,
    format: Format,
    most: usize,
    to: &mut (dyn Write + Send),
) -> Result<(), String> {
    match write_rows(rows, format, most, to).await {
        Ok(()) | Err(Problem::Closed) => Ok(()),
        Err(Problem::Other(message)) => Err(message),
    }
}

async fn write_rows(
    mut rows: SendableRecordBatchStream,
    format: Format,
    most: usize,
    to: &mut (dyn Write + Send),
) -> Result<(), Problem> {
    let schema = rows.schema();
    match format {
        Format::Table => {
            let (mut batches, mut count, mut has_more) = (Vec::new(), 0, false);
            while let Some(batch) = rows.try_next().await? {
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
            let columns = table::columns(&names, &batches)?;
            // A file gets whole values, as does another program.
            let width = table::Width::of_stdout();
            let mut text = table::lines(&columns, width).join("\n");
            text.push('\n');
            if has_more {
                text += &format!("… more than {most} rows; --rows N shows more, --format csv writes all\n");
            }
            to.write_all(text.as_bytes())?;
        }
        Format::Csv => {
            let mut writer = csv::Writer::new(&mut *to);
            writer.write(&RecordBatch::new_empty(schema))?;
            while let Some(batch) = rows.try_next().await? {
                writer.write(&batch)?;
            }
        }
        Format::Json => {
            let mut writer = WriterBuilder::new()
                .with_explicit_nulls(true)
                .build::<_, JsonArray>(&mut *to);
            while let Some(batch) = rows.try_next().await? {
                writer.write(&batch)?;
            }
            writer.finish()?;
            drop(writer);
            to.write_all(b"\n")?;
        }
        Format::Arrow => {
            let mut writer = StreamWriter::try_new(&mut *to, &schema)?;
            while let Some(batch) = rows.try_next().await? {
                writer.write(&batch)?;
            }
            writer.finish()?;
        }
        Format::Parquet => {
            let mut writer = ArrowWriter::try_new(&mut *to, schema, None)?;
            while let Some(batch) = rows.try_next().await? {
                writer.write(&batch)?;
            }
            writer.close()?;
        }
    }
    Ok(to.flush()?)
}
