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
        }
    }
}

impl std::error::Error for Error {}
