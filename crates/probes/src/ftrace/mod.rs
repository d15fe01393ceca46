//! The data source `linux.ftrace`: events of the kernel, by way of the per-CPU ring buffers of tracefs.
//!
//! Two halves meet in [`data_source`], which the producer drives.
//!
//! Controlling: a [`request`] holds the demands of one config. `control` brings the requests of all sessions together and
//! changes the files of [`tracefs`] through [`restore`], which puts them back on exit and after a crash. [`watch`] notices
//! changes that others make meanwhile. `reader` takes pages out of the buffers when the period is over, or when `watermarks`
//! says that a buffer has filled up. [`stats`] and [`kallsyms`] add the kernel's counters and symbols.
//!
//! Decoding goes outside in: [`page`] finds the records in raw pages, [`table`] has plans for encoding each event, made from the
//! kernel's [`mod@format`] files, and [`bundle`] writes the events that a [`session`] wants into packets.
//!
//! # Fields of `FtraceConfig` without effect
//!
//! - `atrace_apps`, `atrace_categories_prefer_sdk` and the userspace part of `atrace_categories`: they need Android's
//!   `atrace`. Accepted, as upstream does on Linux; kernel events of categories and `ftrace/print` are recorded.
//! - `throttle_rss_stat`: needs a synthetic event that only Android defines. `kmem/rss_stat` is recorded as it is, as
//!   upstream does where the event is missing; a warning says so.
//! - `debug_ftrace_abi`: for upstream's developers, on debuggable Android builds only.
//! - `initialize_ksyms_synchronously_for_testing`: obsolete, symbols are always read before the session counts as started.
//!
//! The data source `linux.frozen_ftrace` ([`frozen`]) shares the reader, the decoding and the statistics. It changes no setting.

pub mod bundle;
pub mod categories;
mod compact_sched;
pub(crate) mod control;
pub mod data_source;
mod decoding;
mod event;
pub mod field;
#[cfg(test)]
mod fixtures;
pub mod format;
pub mod frozen;
pub mod generic;
pub mod instances;
pub mod kallsyms;
pub(crate) mod metadata;
#[cfg(test)]
mod other_kernels;
pub mod page;
pub mod print_filter;
pub mod printk_formats;
pub(crate) mod reader;
pub mod request;
pub mod restore;
pub mod session;
pub mod stats;
pub mod syscalls;
pub mod table;
#[cfg(test)]
mod test_instance;
pub mod tracefs;
pub mod typed;
pub mod watch;
pub(crate) mod watermarks;
