//! What can go wrong. Damage of a trace is no error: it is in the table of losses.

use std::fmt;
use std::io;
use std::path::PathBuf;

use arrow_schema::ArrowError;
#[cfg(feature = "parquet")]
use parquet::errors::ParquetError;

/// Why a trace has not become tables.
#[derive(Debug)]
pub enum Error {
    /// The trace cannot be read.
    Read(io::Error),
    /// The file is no trace. Contains what it is, to follow its name.
    NoTrace(String),
    /// The temporary file in which events are sorted cannot be written or read.
    Spill(io::Error),
    /// Rows do not make a batch of this table.
    Batch(&'static str, ArrowError),
    /// This folder or file cannot be written.
    Write(PathBuf, io::Error),
    /// This Parquet file cannot be written.
    #[cfg(feature = "parquet")]
    Parquet(PathBuf, ParquetError),
    /// This folder already has files of an export.
    Occupied(PathBuf),
    /// This folder has the tables of one trace, and cannot take further ones.
    Unpartitioned(PathBuf),
    /// This part of a folder of tables cannot be read.
    Folder(PathBuf, io::Error),
    /// Two traces of one run have this place, and nothing tells them apart.
    Taken(String),
    /// The sink wants no more.
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read(error) => write!(f, "cannot be read: {error}"),
            Error::NoTrace(what) => f.write_str(what),
            Error::Spill(error) => write!(
                f,
                "its events cannot be sorted in a temporary file: {error}; set TMPDIR to a folder with more room"
            ),
            Error::Batch(table, error) => write!(f, "the rows of table {table} do not fit together: {error}"),
            Error::Write(path, error) => write!(f, "{} cannot be written: {error}", path.display()),
            #[cfg(feature = "parquet")]
            Error::Parquet(path, error) => write!(f, "{} cannot be written: {error}", path.display()),
            Error::Occupied(path) => write!(
                f,
                "{} already has Parquet files; name another folder, or delete this one",
                path.display()
            ),
            Error::Unpartitioned(path) => write!(
                f,
                "{} has the tables of one trace without partitions; name another folder for many traces, and export this one into it too",
                path.display()
            ),
            Error::Folder(path, error) => write!(f, "{} cannot be read: {error}", path.display()),
            Error::Taken(place) => write!(
                f,
                "another trace of this run is {place} already, and neither has a trace_uuid that tells them apart; rename its file"
            ),
            Error::Stopped => f.write_str("was not read to its end"),
        }
    }
}

impl std::error::Error for Error {}
