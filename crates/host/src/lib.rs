//! The host of Perfetto's tracing service: connections, ports, trace files and turns around one
//! [`Service`](ferretto_service::Service).
//!
//! The service is a state machine that knows no kernel. A [`Host`] is the service with everything around it: it reads the requests of clients from
//! their sockets, turns calls into inputs of the service and its outputs into replies, and writes the trace files of sessions. The daemon `traced`
//! and the SDK's service inside of an application are both this host. [`Program`] has their differences.
//!
//! Nothing here waits for a peer or for a disk. No client gets more than its share of the time, the memory and the connections.
#![cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
// Only `machine` allows it.
#![deny(unsafe_code)]

mod admission;
mod bounds;
mod clocks;
mod connection;
mod consumer_port;
mod files;
mod host;
mod machine;
mod payloads;
mod producer_port;
mod program;
mod random;
mod relay_port;
mod repair;
mod trace_file;
mod turns;

pub use admission::{Admission, Holding, TurnedAway};
pub use clocks::now;
pub use connection::PacketFlow;
pub use ferretto_wire::OutOfLine;
pub use host::{Awaited, Host, Port};
pub use machine::identity;
pub use program::Program;
