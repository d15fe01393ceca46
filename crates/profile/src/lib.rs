//! CPU profiles for Linux: the data source `linux.perf`, as upstream's `traced_perf` offers it.
//!
//! The kernel counts an event on each CPU, of all processes or of those that the config names, and writes a sample whenever the config says so: who ran,
//! what was counted, and where. Each instance has a thread that reads these samples, finds their stacks and writes packets.
//!
//! | module | has |
//! |---|---|
//! | `config`, `event`, `cpus` | what a config asks for |
//! | `attributes`, `perf_event`, `cpu`, `threads` | the kernel's events and rings |
//! | `record` | what is in a ring |
//! | `scope`, `glob` | which processes are sampled |
//! | `stacks`, `names`, `left_out` | from a sample to frames |
//! | `interning`, `output` | from frames to packets |
//! | `profiler`, `queue`, `thread`, `hotplug` | when what is read |
//! | `ends` | processes that are no longer counted |
//! | `paranoia` | the kernel's demands on programs that sample |
//! | `guardrails` | what the daemon itself needs |
//! | `source`, `producer` | the data source, and the producer of the daemon |
//!
//! Guarantees that neither a program that is hard to unwind nor a slow file holds up other data sources, that memory is bounded, and that each sample
//! in a ring ends in a packet: with a stack, or with the reason why there is none. Packets also tell of samples that never come to a ring: because it is
//! full, because the kernel takes none for a while, because a CPU comes or goes, or because counters cannot be read.
//!
//! An instance that gives up drops the samples in its queue and does not count them. The trace says that it gave up if the daemon needs too much memory;
//! in other cases only the log does.
#![deny(unsafe_code)]

mod attributes;
pub mod config;
mod cpu;
mod cpus;
mod ends;
pub(crate) mod event;
mod glob;
pub mod guardrails;
mod hotplug;
pub mod interning;
pub mod left_out;
mod names;
pub(crate) mod output;
pub mod paranoia;
mod perf_event;
pub mod producer;
mod profiler;
mod queue;
pub mod record;
pub mod scope;
pub mod source;
pub mod stacks;
#[cfg(test)]
mod test_log;
mod thread;
mod threads;
