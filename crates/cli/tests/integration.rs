//! Tests of the programs, with real processes. They are one program, because linking the command line takes seconds, and every further program would
//! take them again.
//!
//! Each module is a subject, except `support` and the two modules borrowed from other crates. `cargo test -p ferretto-cli --test integration
//! SUBJECT::` runs the tests of one subject. Tests that change their process are separate programs: `sdk_sessions` and `sdk_stress` initialize the
//! SDK, which a process can do only once, and `floods` raises the limit of descriptors.
#![allow(clippy::unwrap_used)] // Helpers outside of test functions fail their test as the tests themselves do.

mod support;

#[path = "../../service/tests/support/filter_bytecode.rs"]
mod filter_bytecode;
#[path = "../../proto/tests/support/traceconv.rs"]
mod traceconv;

mod account;
mod architecture;
mod autostart;
mod clones;
mod command;
mod compression;
mod config_check;
mod configs;
mod conformance;
mod convert;
mod crowds;
mod cxx_producer;
mod daemons;
mod dialects;
mod event_words;
mod failed_sources;
mod filter;
mod flags;
mod frozen_ftrace;
mod ftrace;
mod heap;
mod heap_files;
mod heap_programs;
mod heapprofd;
mod hostile;
mod hostile_memory;
mod inode_files;
mod journald;
mod json;
mod kernel_events;
mod large_replies;
mod load_average;
mod memory;
mod mixtures;
mod network;
mod newcomer;
mod open_doctor;
mod other_services;
mod output;
mod perf;
mod perfetto;
mod private_files;
mod probes;
mod profile;
mod recorder;
mod rescued;
#[cfg(target_arch = "x86_64")]
mod sandbox;
mod sdk_data_sources;
mod sdk_examples;
mod sdk_interop;
mod security;
mod shares;
mod silent_service;
mod sysfs_power;
mod terminal;
mod trace_files;
mod traced;
mod triggers;
mod upstream_heap;
mod vandal;
mod websocket_bridge;
mod words;
