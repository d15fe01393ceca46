//! SQL on Perfetto traces: [DataFusion](https://datafusion.apache.org) with the tables of [`ferretto_tables`], the trace processor's views, and the functions
//! that tracing needs.
//!
//! A [`Database`] is made of traces, or of a folder that `ferretto export` wrote, which may be in object storage ([`ObjectFolder`]). [`register_functions`] adds the functions alone to a session of an
//! engine that is built on DataFusion.
#![forbid(unsafe_code)]

mod arguments;
mod built;
mod clock_functions;
#[cfg(feature = "cluster")]
pub mod cluster;
mod correlated;
mod database;
mod defined;
mod dialect;
mod each_trace;
mod error;
mod examples;
mod functions;
mod implied;
mod known;
mod many;
mod objects;
mod planning;
mod span_join;
mod views;

pub use database::{Database, Engine, Options, Statement};
pub use datafusion;
pub use error::Error;
pub use examples::{EXAMPLES, Example, Unit};
pub use functions::{human_bytes, human_duration, register as register_functions};
pub use many::{Traces, views_of_files};
pub use objects::ObjectFolder;
pub use views::{VIEWS, View};
