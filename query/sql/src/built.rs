//! Tables made of a trace for queries: in memory, and in temporary Parquet files once they are too many.
//!
//! [`Database`](crate::Database) builds the tables that a statement names, in one pass over the trace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use datafusion::arrow::array::RecordBatch;
use ferretto_tables::{Error, Input, ParquetFolder, Report, Selection, Sink, Table};
use tempfile::TempDir;

/// What a pass over the trace has made.
pub(crate) struct Built {
    pub(crate) report: Report,
    pub(crate) tables: Stored,
}

/// Where the tables are.
pub(crate) enum Stored {
    Memory(BTreeMap<&'static str, Vec<RecordBatch>>),
    Folder(TempDir),
}

/// Reads the trace once and makes these tables.
pub(crate) fn build(trace: &OsStr, tables: &BTreeSet<&'static str>, memory: usize) -> Result<Built, String> {
    let input =
        Input::open(trace).map_err(|error| format!("{} cannot be opened: {error}", trace.display()))?;
    let name = input.name.clone();
    let failed = |error: Error| match error {
        Error::Read(_) | Error::NoTrace(_) | Error::Spill(_) => format!("{name}: {error}"),
        other => other.to_string(),
    };
    let mut store = Store {
        memory,
        bytes: 0,
        batches: BTreeMap::new(),
        files: None,
    };
    let options = ferretto_tables::Options {
        tables: Selection::Named(tables.clone()),
        ..ferretto_tables::Options::default()
    };
    let report = ferretto_tables::import(input.source, &options, &mut store).map_err(failed)?;
    let tables = match store.files {
        None => Stored::Memory(store.batches),
        Some((files, folder)) => {
            files.finish().map_err(failed)?;
            Stored::Folder(folder)
        }
    };
    Ok(Built { report, tables })
}

struct Store {
    /// The bytes of batches above which all go into files.
    memory: usize,
    bytes: usize,
    batches: BTreeMap<&'static str, Vec<RecordBatch>>,
    files: Option<(ParquetFolder, TempDir)>,
}

impl Sink for Store {
    fn write(&mut self, table: &'static Table, batch: RecordBatch) -> Result<(), Error> {
        if let Some((files, _)) = &mut self.files {
            return files.write(table, batch);
        }
        self.bytes += batch.get_array_memory_size();
        self.batches.entry(table.name).or_default().push(batch);
        if self.bytes > self.memory {
            let folder = tempfile::Builder::new()
                .prefix("ferretto-query")
                .tempdir()
                .map_err(|error| Error::Write(std::env::temp_dir(), error))?;
            let mut files = ParquetFolder::create(folder.path())?;
            for table in ferretto_tables::TABLES {
                for batch in self.batches.remove(table.name).unwrap_or_default() {
                    files.write(table, batch)?;
                }
            }
            self.files = Some((files, folder));
        }
        Ok(())
    }
}
