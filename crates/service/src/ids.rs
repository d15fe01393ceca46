//! The numbers by which the service and its peers name things. Each has its own type, so that a writer is never passed where a producer is
//! meant. Every module of the crate uses them. They carry no invariants beyond their width, which is the width of the field on the wire. The ids that
//! clients use as well come from `proto` and `smb`.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

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
    /// A connected producer. Given out by the service, never by the producer, hence trusted. 0 is the service. No two have the same, because data
    /// that one left in a buffer would pass for the other's. Upstream's have 16 bits and go round.
    ProducerId(u32)
}
id! {
    /// The machine a producer runs on. 0 is the one the service runs on.
    MachineId(u32)
}
id! {
    /// A relay of another machine that is connected.
    RelayId(u64)
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

/// The hasher of hash tables by id.
pub(crate) type IdHasher = BuildHasherDefault<IdMixer>;

/// Mixes the bits of ids, each with an invertible function. All but a writer's 16 bits are the service's own choice, so a
/// producer can make its own writers collide, at most 65536 of them: too few to be worth a keyed hash on every commit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdMixer(u64);

impl Hasher for IdMixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl MachineId {
    /// The machine the service runs on.
    pub const HOST: MachineId = MachineId(0);
}
