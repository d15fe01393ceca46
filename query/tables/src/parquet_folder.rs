//! Writes each table as a zstd Parquet file in a folder of its own: `DIR/sched_slice/part-0.parquet`.
//!
//! A thread of its own encodes and compresses, while the import goes on. `ferretto-query export` uses it. Engines read such a folder as one table. Every table
//! has a file, also one without rows, so that a query does not depend on what a trace happens to contain. A [`PartitionedFolder`] has one of these for each
//! trace while the trace is read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::take::take_record_batch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::error::Error;
use crate::import::Selection;
use crate::partitioned_folder::PartitionedFolder;
use crate::schema::{Kind, TABLES, Table, VERSION};
use crate::sink::Sink;

/// The rows that a file has in one group. The encoded group stays in memory until it is complete.
const ROW_GROUP: usize = 1 << 18;
/// The batches that wait for the thread. A batch is mostly 1 or 2 MB.
const WAITING: usize = 8;
/// The name of the one file of a table.
pub(crate) const FILE: &str = "part-0.parquet";

/// The tables that have a file even without rows. `ftrace_event` is not among them, so that nobody takes an export without it for a trace without events.
pub(crate) fn usual() -> impl Iterator<Item = &'static Table> {
    let tables = TABLES.iter().copied();
    tables.filter(|table| Selection::Usual.has(table))
}

/// A folder that gets one Parquet file for each table.
pub struct ParquetFolder {
    /// `None` tells the thread to complete all files. Without that they stay incomplete, which readers notice.
    batches: SyncSender<Option<(&'static Table, RecordBatch)>>,
    /// `None` after it has failed.
    writer: Option<JoinHandle<Result<(), Error>>>,
}

impl ParquetFolder {
    /// Makes the folder, if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made, or has files of tables already.
    pub fn create(folder: &Path) -> Result<ParquetFolder, Error> {
        fs::create_dir_all(folder).map_err(|error| Error::Write(folder.to_owned(), error))?;
        if TABLES
            .iter()
            .any(|table| folder.join(table.name).join(FILE).exists())
            || PartitionedFolder::is_one(folder)
        {
            return Err(Error::Occupied(folder.to_owned()));
        }
        ParquetFolder::start(folder, usual().collect())
    }

    /// Starts in a folder that exists and is empty. These tables get a file even if they have no rows.
    pub(crate) fn start(folder: &Path, always: Vec<&'static Table>) -> Result<ParquetFolder, Error> {
        let files = Files {
            folder: folder.to_owned(),
            files: BTreeMap::new(),
            always,
        };
        let (batches, incoming) = sync_channel(WAITING);
        let writer = thread::Builder::new()
            .name("parquet".to_owned())
            .spawn(move || files.write_all(&incoming))
            .map_err(|error| Error::Write(folder.to_owned(), error))?;
        Ok(ParquetFolder {
            batches,
            writer: Some(writer),
        })
    }

    /// Completes all files.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn finish(mut self) -> Result<(), Error> {
        // If the thread is gone, it has failed, and says why.
        let _ = self.batches.send(None);
        self.end()
    }

    /// Leaves the files incomplete, and waits until nothing writes them any more.
    pub(crate) fn abandon(self) {
        drop(self.batches);
        if let Some(writer) = self.writer {
            // Why it failed, if it did, is not why this is called.
            let _ = writer.join();
        }
    }

    /// Waits for the thread.
    fn end(&mut self) -> Result<(), Error> {
        match self.writer.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

impl Sink for ParquetFolder {
    fn write(&mut self, table: &'static Table, batch: RecordBatch) -> Result<(), Error> {
        match self.batches.send(Some((table, batch))) {
            Ok(()) => Ok(()),
            Err(_) => self.end(),
        }
    }
}

/// The files, which the thread has.
struct Files {
    folder: PathBuf,
    files: BTreeMap<&'static str, (PathBuf, ArrowWriter<File>)>,
    /// The tables that have a file even without rows.
    always: Vec<&'static Table>,
}

impl Files {
    fn write_all(mut self, batches: &Receiver<Option<(&'static Table, RecordBatch)>>) -> Result<(), Error> {
        while let Ok(batch) = batches.recv() {
            let Some((table, batch)) = batch else {
                return self.finish();
            };
            let (path, writer) = self.file(table)?;
            in_order(batch)
                .map_err(ParquetError::from)
                .and_then(|batch| writer.write(&batch))
                .map_err(|error| Error::Parquet(path.clone(), error))?;
        }
        Ok(())
    }

    fn file(&mut self, table: &'static Table) -> Result<&mut (PathBuf, ArrowWriter<File>), Error> {
        use std::collections::btree_map::Entry;
        match self.files.entry(table.name) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let folder = self.folder.join(table.name);
                fs::create_dir_all(&folder).map_err(|error| Error::Write(folder.clone(), error))?;
                let path = folder.join(FILE);
                let file = File::create(&path).map_err(|error| Error::Write(path.clone(), error))?;
                let writer = properties(table)
                    .and_then(|properties| {
                        // The types of Parquet say all: what Arrow adds would be most of a small file.
                        let options = ArrowWriterOptions::new()
                            .with_properties(properties)
                            .with_skip_arrow_metadata(true);
                        ArrowWriter::try_new_with_options(file, table.arrow_schema(), options)
                    })
                    .map_err(|error| Error::Parquet(path.clone(), error))?;
                Ok(entry.insert((path, writer)))
            }
        }
    }

    fn finish(mut self) -> Result<(), Error> {
        for table in std::mem::take(&mut self.always) {
            self.file(table)?;
        }
        for (path, writer) in self.files.into_values() {
            writer.close().map_err(|error| Error::Parquet(path, error))?;
        }
        Ok(())
    }
}

/// Puts rows into the order of their first column, if that is their number. They come in the order in which they were complete; in this order the
/// differences between neighbours are small, in all columns of times and numbers.
fn in_order(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let Some(numbers) = batch.column(0).as_primitive_opt::<Int64Type>() else {
        return Ok(batch);
    };
    if numbers.values().is_sorted() {
        return Ok(batch);
    }
    let numbers = numbers.values();
    let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
    order.sort_by_key(|row| numbers[*row as usize]);
    take_record_batch(&batch, &UInt32Array::from(order))
}

/// Columns with few distinct values, which take less room in a dictionary.
const FEW_VALUES: [&str; 14] = [
    "cpu",
    "ucpu",
    "utid",
    "upid",
    "waker_utid",
    "priority",
    "prio",
    "io_wait",
    "irq_context",
    "depth",
    "track_id",
    "stack_id",
    "parent_stack_id",
    "machine_id",
];

/// Columns whose values differ from their neighbours' by orders of magnitude. Compression alone takes a sixth less room than differences do.
const FAR_APART: [&str; 2] = ["dur", "thread_dur"];

/// Other numbers (times, ids) are close to their neighbours: differences take less room and time than dictionaries. So they are also what a column goes on
/// with whose dictionary becomes too large.
fn properties(table: &Table) -> Result<WriterProperties, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_created_by(format!("ferretto-tables, schema {VERSION}"));
    for column in table.columns.iter().filter(|column| column.kind == Kind::Int) {
        let path = ColumnPath::from(column.name);
        let encoding = match FAR_APART.contains(&column.name) {
            true => Encoding::PLAIN,
            false => Encoding::DELTA_BINARY_PACKED,
        };
        properties = properties
            .set_column_dictionary_enabled(path.clone(), FEW_VALUES.contains(&column.name))
            .set_column_encoding(path, encoding);
    }
    Ok(properties.build())
}
