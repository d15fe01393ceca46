//! The tracing service as a state machine without I/O, clock or threads.
#![forbid(unsafe_code)]

mod ids;
pub mod packet_validator;
pub mod trace_buffer;

pub use ids::{
    BufferId, ChunkId, ConsumerId, DataSourceInstanceId, FlushRequestId, MachineId, ProducerId, SessionId, WriterId,
};
