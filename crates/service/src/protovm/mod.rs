//! ProtoVM: programs of data sources that merge packets, which a ring buffer is about to overwrite, into an *incremental state*. The state is in
//! front of the trace at read-back.
//!
//! A data source that writes patches of something large (all layers on a screen, for example) adds a program to its descriptor, which applies such a
//! patch. If the config of a session asks for it (`protovm_config`), each trace buffer that the data source writes into keeps an instance
//! ([`ProtoVms`]). Packets that are overwritten before they were read go through it in the order of their sequence; packets that are still in the
//! buffer stay as they are. The first read-back writes program and state, so that a reader knows what the oldest packet in the trace is a patch of.
//!
//! ```text
//!  program (program.rs) ──►  machine (machine.rs)  ──► outcome
//!                               │           │
//!                     reads a packet     changes the state (state.rs), a tree of
//!                     as it lies there   nodes in maps (map.rs), within a budget (budget.rs)
//! ```
//!
//! The language has no loops except over the elements of repeated fields, and no jumps. Its meaning is that of upstream's interpreter, with which its
//! trace processor goes on where the service stopped.
//!
//! Program and packets come from a producer, which may be hostile. A program is bounded in size and depth when it is taken in, the state in memory
//! (`memory_limit_kb`), the work in proportion to the bytes that are overwritten ([`limits`](crate::limits)). Whatever happens to a packet, the state
//! stays a message, and no other instance is affected.
//!
//! This is the feature `protovm`: programs that record themselves seldom have a use for it, and would have to compile it all the same. Without it
//! `absent.rs` takes this module's place, and a config with a `protovm_config` is refused.

mod budget;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod instances;
mod machine;
mod map;
#[cfg(any(test, fuzzing))]
mod naive;
mod program;
mod state;

#[cfg(test)]
mod tests;

pub(crate) use instances::write_instances;
pub use instances::{Instance, ProtoVms, SetUpError};
pub use machine::{Abort, Outcome, ProtoVm};
pub use program::ProgramError;
