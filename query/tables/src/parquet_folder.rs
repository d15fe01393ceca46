//! Writes each table as a zstd Parquet file in a folder of its own: `DIR/sched_slice/part-0.parquet`.
//!
//! `ferretto-query export` uses it. Engines read such a folder as one table. Every table has a file, also one without rows, so that a query does not depend on
//! what a trace happens to contain.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::error::Error;
use crate::schema::{Kind, TABLES, Table, VERSION};
use crate::sink::Sink;

/// The rows that a file has in one group. The encoded group stays in memory until it is complete.
const ROW_GROUP: usize = 1 << 18;
/// The name of the one file of a table.
const FILE: &str = "part-0.parquet";

/// A folder that gets one Parquet file for each table.
pub struct ParquetFolder {
    folder: PathBuf,
    files: BTreeMap<&'static str, (PathBuf, ArrowWriter<File>)>,
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
        {
            return Err(Error::Occupied(folder.to_owned()));
        }
        Ok(ParquetFolder {
            folder: folder.to_owned(),
            files: BTreeMap::new(),
        })
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
                    .and_then(|properties| ArrowWriter::try_new(file, table.arrow_schema(), Some(properties)))
                    .map_err(|error| Error::Parquet(path.clone(), error))?;
                Ok(entry.insert((path, writer)))
            }
        }
    }

    /// Completes all files.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn finish(mut self) -> Result<(), Error> {
        for table in TABLES {
            self.file(table)?;
        }
        for (path, writer) in self.files.into_values() {
            writer.close().map_err(|error| Error::Parquet(path, error))?;
        }
        Ok(())
    }
}

impl Sink for ParquetFolder {
    fn write(&mut self, table: &'static Table, batch: RecordBatch) -> Result<(), Error> {
        let (path, writer) = self.file(table)?;
        writer
            .write(&batch)
            .map_err(|error| Error::Parquet(path.clone(), error))
    }
}

/// Times, ids and durations are close to their neighbours: differences take less room and time than dictionaries.
fn properties(table: &Table) -> Result<WriterProperties, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_created_by(format!("ferretto-tables, schema {VERSION}"));
    for column in table.columns.iter().filter(|column| column.kind == Kind::Int) {
        let path = ColumnPath::from(column.name);
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    Ok(properties.build())
}
