//! The whole service, in one thread and in simulated time. Producers and consumers are values in a [`World`](world::World);
//! their shared memory is real.

mod abandoned_files;
mod absences;
mod admission;
mod budgets;
mod clones;
mod combinations;
mod compression;
mod configs;
mod data;
mod data_source_configs;
mod data_sources;
mod documented_limits;
mod ending;
mod events;
mod files;
#[path = "../support/filter_bytecode.rs"]
mod filter_bytecode;
mod filters;
mod flushes;
mod large_packets;
mod lifecycle;
mod limits;
mod machines;
mod protovms;
mod queries;
mod random;
mod refusals;
mod scraping;
mod service_packets;
mod sessions;
mod simulation;
mod triggers;
mod world;
