//! The machine that a producer runs on.

use crate::ids::MachineId;

/// The machine that a producer runs on, as far as its connection shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// This one: the kernel vouches for it.
    #[default]
    Host,
    /// It came over a network, and no relay declared its machine: it may be this one. Traces treat it like this machine.
    Undeclared,
    /// Another one, says a relay.
    Other(Box<OtherMachine>),
}

/// A machine that a relay speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherMachine {
    /// Distinguishes it from others. Not [`MachineId::HOST`].
    pub id: MachineId,
    /// The name by which people know it, which need not be unique. May be empty.
    pub name: String,
}

impl Machine {
    /// The number under which traces know it.
    pub fn id(&self) -> MachineId {
        match self {
            Machine::Host | Machine::Undeclared => MachineId::HOST,
            Machine::Other(machine) => machine.id,
        }
    }
}

impl MachineId {
    /// The id of another machine, of which these bytes are characteristic. Upstream computes the same: the lower half of their
    /// FNV-1a hash.
    pub fn from_hint(hint: &[u8]) -> MachineId {
        const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let hash = hint.iter().fold(OFFSET_BASIS, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
        });
        match MachineId(hash as u32) {
            MachineId::HOST => MachineId(1),
            id => id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_machines_are_the_lower_halves_of_fnv_1a_hashes_and_never_the_hosts() {
        // Test vectors of the hash's authors.
        assert_eq!(MachineId::from_hint(b"a"), MachineId(0x8601_ec8c));
        assert_eq!(MachineId::from_hint(b"foobar"), MachineId(0xf739_67e8));
        // Found by trying: the hash is 0x5732_855f_0000_0000.
        assert_eq!(MachineId::from_hint(b"5cb7f729"), MachineId(1));
    }
}
