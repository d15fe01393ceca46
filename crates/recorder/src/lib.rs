//! The decisions of the flight recorder, `ferretto recorder`: which sessions run, which of them is sealed when, which files are deleted. No I/O.
//!
//! The command line drives a [`Recorder`]: it reports what happened, with the time, and carries out the [`Action`]s that [`Recorder::poll`] returns.
//! A *session* is a recording without an end, which the tracing service keeps in ring buffers in memory. To *seal* is to write the present
//! content of these buffers into a file, while the session goes on.
//!
//! **Guarantees**
//!
//! - The sealed files and those being written never exceed the quota, at any moment: [`Shelf`] reserves the room of a file before it is written.
//! - Each request to seal ends in one [`Outcome`]: a file, or the reason why there is none. [`Counters`] count both, for each session and reason.
//! - A storm of requests costs a bounded number of files: `Limiter`.
//! - The names of files sort by the time of their requests: [`FileName`].
#![forbid(unsafe_code)]

mod conditions;
mod counters;
mod glob;
mod limiter;
mod lines;
mod name;
mod proc_files;
mod recorder;
mod settings;
mod shelf;
mod supervisor;

pub use conditions::{Conditions, Observed};
pub use counters::{Counters, Tally};
pub use glob::{glob, is_glob};
pub use lines::{Entry, Lines, Pattern};
pub use name::{FileName, NameError, Reason, SessionName};
pub use proc_files::{available_memory, load_average, stalled};
pub use recorder::{Action, Asker, Now, Order, Outcome, Recorder, Refusal, SealId, Written};
pub use settings::{Condition, Kind, Settings, SettingsError, Upload};
pub use shelf::Shelf;
pub use supervisor::Supervisor;
