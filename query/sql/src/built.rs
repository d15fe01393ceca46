//! Tables made of a trace for queries: in memory, and in temporary Parquet files once they are too many.
//!
//! [`Database`](crate::Database) builds the tables that a statement names, in one pass over the trace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::arrow::array::RecordBatch;
use ferretto_tables::{
    Error, Input, ParquetFolder, PartitionedFolder, Place, Report, Selection, Sink, Table,
};
use tempfile::TempDir;

/// Whether a pass over the trace is still wanted. A pass runs on a thread of its own, which does not end with the query that waits for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    is_over: Arc<AtomicBool>,
}

/// Ends a pass when it is dropped.
#[derive(Debug)]
pub(crate) struct Waits(Wanted);

impl Wanted {
    /// Returns the value that the query keeps while it waits.
    pub(crate) fn waits(&self) -> Waits {
        Waits(self.clone())
    }

    fn check(&self) -> Result<(), Error> {
        match self.is_over.load(Ordering::Relaxed) {
            true => Err(Error::Stopped),
            false => Ok(()),
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

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

/// What traces are called in messages, by their paths, if that is not the path.
pub(crate) type Names = BTreeMap<OsString, String>;

/// Reads the trace once and makes these tables.
pub(crate) fn build(
    trace: &OsStr,
    names: &Names,
    tables: &BTreeSet<&'static str>,
    memory: usize,
    wanted: Wanted,
) -> Result<Built, String> {
    let (input, failed) = open(trace, names)?;
    let mut store = Store {
        wanted,
        memory,
        bytes: 0,
        batches: BTreeMap::new(),
        files: None,
    };
    let report =
        ferretto_tables::import(input.source, &selected(tables.clone()), &mut store).map_err(&failed)?;
    let tables = match store.files {
        None => Stored::Memory(store.batches),
        Some((files, folder)) => {
            files.finish().map_err(failed)?;
            Stored::Folder(folder)
        }
    };
    Ok(Built { report, tables })
}

/// What a pass over several traces has made.
pub(crate) struct BuiltOfMany {
    pub(crate) folder: TempDir,
    /// The traces, in the order in which they were named.
    pub(crate) places: Vec<Place>,
    pub(crate) losses: u64,
}

/// Reads each trace once and makes these tables.
pub(crate) fn build_many(
    traces: &[OsString],
    names: &Names,
    tables: &BTreeSet<&'static str>,
    wanted: &Wanted,
) -> Result<BuiltOfMany, String> {
    // What tells where a trace belongs.
    let of_places = ["metadata", "clock_snapshot", "machine"];
    let options = selected(tables.iter().copied().chain(of_places).collect());
    let folder = temporary().map_err(|error| error.to_string())?;
    let mut files = PartitionedFolder::open(folder.path()).map_err(|error| error.to_string())?;
    let (mut places, mut losses) = (Vec::new(), 0);
    for trace in traces {
        let (input, failed) = open(trace, names)?;
        wanted.check().map_err(&failed)?;
        let name = Path::new(trace).file_name().unwrap_or(trace).to_string_lossy();
        let added = files.add(input.source, &name, None, &options).map_err(failed)?;
        losses += added.report.losses;
        places.push(added.place);
    }
    Ok(BuiltOfMany {
        folder,
        places,
        losses,
    })
}

/// Opens a trace, and says how failures to read it are told.
fn open(trace: &OsStr, names: &Names) -> Result<(Input, impl Fn(Error) -> String + use<>), String> {
    let input =
        Input::open(trace).map_err(|error| format!("{} cannot be opened: {error}", trace.display()))?;
    let name = names.get(trace).unwrap_or(&input.name).clone();
    let failed = move |error: Error| match error {
        Error::Read(_) | Error::NoTrace(_) | Error::Spill(_) | Error::Taken(_) | Error::Stopped => {
            format!("{name}: {error}")
        }
        other => other.to_string(),
    };
    Ok((input, failed))
}

fn selected(tables: BTreeSet<&'static str>) -> ferretto_tables::Options {
    ferretto_tables::Options {
        tables: Selection::Named(tables),
        ..ferretto_tables::Options::default()
    }
}

fn temporary() -> Result<TempDir, Error> {
    tempfile::Builder::new()
        .prefix("ferretto-query")
        .tempdir()
        .map_err(|error| Error::Write(std::env::temp_dir(), error))
}

struct Store {
    wanted: Wanted,
    /// The bytes of batches above which all go into files.
    memory: usize,
    bytes: usize,
    batches: BTreeMap<&'static str, Vec<RecordBatch>>,
    files: Option<(ParquetFolder, TempDir)>,
}

impl Sink for Store {
    fn write(&mut self, table: &'static Table, batch: RecordBatch) -> Result<(), Error> {
        self.wanted.check()?;
        if let Some((files, _)) = &mut self.files {
            return files.write(table, batch);
        }
        self.bytes += batch.get_array_memory_size();
        self.batches.entry(table.name).or_default().push(batch);
        if self.bytes > self.memory {
            let folder = temporary()?;
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
