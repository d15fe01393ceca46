//! The tracing service as a state machine without I/O, clock or threads.
//!
//! [`Service`] takes inputs as method calls with ids and plain values. [`Service::poll`] returns its outputs, which are messages and file operations,
//! and [`Service::next_deadline`] the time to call [`Service::handle_timeout`]. [`Service::read_buffers`] and [`Service::read_for_file`] hand out
//! trace data. The host (`ferretto-host`) and a simulator drive it.
#![forbid(unsafe_code)]

mod boost;
mod clock;
mod clone;
pub mod compression;
mod expression;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz_input;
mod identity;
mod ids;
pub mod ledger;
pub mod limits;
mod machines;
pub mod ordered;
mod outbox;
mod output;
pub mod packet_validator;
mod producers;
#[cfg_attr(feature = "protovm", path = "protovm/mod.rs")]
#[cfg_attr(not(feature = "protovm"), path = "protovm/absent.rs")]
pub mod protovm;
mod service;
mod session;
mod split_mix;
mod timers;
pub mod trace_buffer;
#[cfg_attr(feature = "trace-filter", path = "trace_filter/mod.rs")]
#[cfg_attr(not(feature = "trace-filter"), path = "trace_filter/absent.rs")]
pub mod trace_filter;
mod triggers;
mod wanted;
mod work_budget;

pub use boost::PriorityBoost;
pub use clock::Now;
pub use clock::ProcessorClock;
pub use clone::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, CloneTrigger, Cloned, ClonedContent, Original,
};
pub use identity::{DescriptorEncoding, ExtensionDescriptor, Identity, SystemFacts};
pub use ids::{
    BufferId, ChunkId, ConsumerId, DataSourceInstanceId, FlushRequestId, MachineId, ProducerId, RelayId,
    SessionId, WriterId,
};
pub use machines::{Machine, OtherMachine};
pub use output::{FlushOutcome, LogLevel, Output, ProducerCommand};
pub use producers::{Credentials, Introduction, MemorySharing, Scraping, SmbOrigin};
pub use service::Service;
pub use service::enable::ConfigInput;
pub use service::query::{StateQuery, StateScope};
pub use session::config::OutputFile;
pub use session::readout::{ReadBatch, ReadCall};
pub use wanted::ProducerFilter;
