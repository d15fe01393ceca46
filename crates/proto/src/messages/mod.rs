//! Owned structs of the messages that are decoded or built away from the hot paths.
//!
//! Used by the IPC layer, both endpoints, the service and the data sources (for their configs), and by tests to read
//! traces. Optional fields are `Option`s, repeated ones `Vec`s, messages [`MessageField`]s that read as their default
//! when absent. Messages and enums nested in another are in the module named after it.
//!
//! ```
//! use ferretto_proto::messages::{Message, TraceConfig, trace_config};
//!
//! let mut config = TraceConfig { duration_ms: Some(5_000), ..Default::default() };
//! config.buffers.push(trace_config::BufferConfig { size_kb: Some(4096), ..Default::default() });
//! config.builtin_data_sources.get_or_insert_default().disable_system_info = Some(true);
//!
//! let read = TraceConfig::decode_from_slice(&config.encode_to_vec())?;
//! assert_eq!(read, config);
//! assert_eq!(read.builtin_data_sources.disable_system_info, Some(true));
//! assert_eq!(read.trigger_config.trigger_timeout_ms, None);
//! # Ok::<(), ferretto_proto::messages::DecodeError>(())
//! ```
//!
//! Fields and enum values that this version does not know are kept and encoded again behind the known ones. The same holds
//! for the configs of other projects' data sources, which have no struct here. Decoding is safe against hostile bytes:
//! nesting and the memory that elements take are bounded ([`MAX_DEPTH`], [`MAX_ELEMENT_MEMORY`]), and text that is not UTF-8
//! is an error.
//!
//! Messages that are also read or written field by field have the fields' numbers as constants (`TraceConfig::DURATION_MS`).
//! If a message has a [writer](mod@crate::write), the writer has the constants instead.

mod codec;
#[rustfmt::skip]
#[allow(missing_docs, non_camel_case_types, unreachable_pub, clippy::all, clippy::pedantic)]
mod generated;

pub use codec::{
    DecodeError, Decoder, Enumeration, Fields, MAX_DEPTH, MAX_ELEMENT_MEMORY, Message, MessageField,
    Messages, UnknownFields, Visitor,
};
pub use generated::*;
