//! The numbers by which the service and its peers name things, each its own type so that a writer is
//! never passed where a producer is meant. Used by every module of the crate; they carry no invariants
//! beyond their width, which is the width of the field on the wire. Those that clients name too are `proto`'s and `smb`'s.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A connected producer. Given out by the service, never by the producer, hence trusted. 0 is the service.
    ProducerId(u16)
}
id! {
    /// The machine a producer runs on. 0 is the one the service runs on.
    MachineId(u32)
}
id! {
    /// A tracing session of this service.
    SessionId(u64)
}
id! {
    /// A connected consumer.
    ConsumerId(u64)
}

pub use ferretto_proto::ids::{BufferId, DataSourceInstanceId, FlushRequestId};
pub use ferretto_smb::{ChunkId, WriterId};

impl MachineId {
    /// The machine the service runs on.
    pub const HOST: MachineId = MachineId(0);
}
