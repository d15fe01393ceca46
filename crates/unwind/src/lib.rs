//! Call stacks of other processes, from samples of their registers and copies of their stacks.
//!
//! `perf_event_open` delivers such samples (`PERF_SAMPLE_REGS_USER`, `PERF_SAMPLE_STACK_USER`). The CPU profiler and the heap profiler call this crate
//! to turn them into frames, with the unwind tables in the files that the process has mapped, and with frame pointers where there are no tables.
//!
//! - [`Process`] has a process's [`Maps`] and the [`Module`]s in them.
//! - [`ModuleCache`] has the modules of all processes, under a limit of memory.
//! - [`Unwinder`] makes [`Frame`]s of [`Registers`] and a [`StackCopy`], within a [`WorkBudget`].
//!
//! All input is hostile: processes choose the names, files and tables that they map. Everything is bounded, and nothing that they map makes
//! unwinding loop or panic. The crate has no clock and no threads, and unwinding itself does no I/O: where it needs a module or newer mappings, it ends
//! with that as its [`End`], and the caller decides when to get them.
#![deny(unsafe_code)]

mod cache;
mod dynamic;
mod elf;
mod expand;
mod file_system;
mod mapping_file;
mod maps;
mod module;
mod perf_map;
mod plt;
mod process;
mod program;
mod registers;
mod rule;
mod stack;
mod symbol_table;
#[cfg(feature = "symbols")]
pub mod symbols;
mod tables;
mod unwinder;
mod work;

pub use cache::ModuleCache;
pub use dynamic::DynamicLinking;
pub use elf::{Image, Unusable};
pub use mapping_file::LoadRequest;
pub use maps::{MOST_BYTES, Mapping, MappingKind, Maps};
pub use module::Module;
pub use perf_map::{PerfMap, PerfMapError};
pub use process::{Process, Refreshed};
pub use program::Program;
pub use registers::{Arch, Registers};
pub use stack::{StackCopy, StackPage};
pub use symbol_table::SymbolTable;
pub use unwinder::{End, Frame, FrameKind, Unwinder};
pub use work::WorkBudget;
