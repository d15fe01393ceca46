//! Perfetto traces as Arrow tables, whose names, columns and values are those of the trace processor.
//!
//! [`import`] reads a trace of any size and passes record batches to a [`Sink`]: [`Memory`], a `ParquetFolder` (feature `parquet`), or another. A
//! `PartitionedFolder` takes many traces. [`TABLES`] describes all tables.
//!
//! The way of an event: the tokenizer reads packets in the order of the file, resolves what they refer to, and converts times to the clock of the trace. The
//! sorter puts events into the order of time, with a temporary file if they are many. The trackers follow processes, scheduling and tracks, and write rows.
//! The file is read once. Memory holds the events that are being sorted, what has begun and not ended, all threads and processes, and all distinct names.
#![forbid(unsafe_code)]

mod bounds;
mod clocks;
mod context;
mod error;
mod fields;
mod import;
mod output;
#[cfg(feature = "parquet")]
mod parquet_folder;
#[cfg(feature = "parquet")]
mod partitioned_folder;
mod rows;
mod schema;
mod sink;
mod sorter;
mod sql_text;
mod stat_list;
mod strings;
mod tokenizer;
mod trackers;

pub use error::Error;
pub use ferretto_trace_file::{Input, expanded};
pub use import::{Options, Report, Selection, import};
#[cfg(feature = "parquet")]
pub use parquet_folder::ParquetFolder;
#[cfg(feature = "parquet")]
pub use partitioned_folder::{Added, PARTITIONS, PartitionedFolder, Place, traces_in};
pub use schema::{Column, Kind, TABLES, Table, VERSION, documentation};
pub use sink::{Memory, Sink};
