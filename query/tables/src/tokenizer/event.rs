//! Events between the tokenizer and the trackers: which queue of the sorter means what, and how compact events are encoded.

use crate::strings::StringId;

/// The queue of packets.
pub(crate) const PACKETS: u32 = 0;
/// The queue of track events.
pub(crate) const TRACK_EVENTS: u32 = 1;
/// Queues of CPUs come behind, in the order in which they are first used.
const FIRST_OF_CPU: u32 = 2;

/// What a queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    /// The field of a `TracePacket` in 4 bytes, and the message in it.
    Packets,
    /// [`track::Event`](super::track_event)s.
    TrackEvents,
    /// The symbol that an event refers to in 4 bytes, and an encoded `FtraceEvent` of this CPU.
    Ftrace(u32),
    /// [`Switch`]es of this CPU.
    Switches(u32),
    /// [`Waking`]s of this CPU.
    Wakings(u32),
}

/// All queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    of_cpus: Vec<Queue>,
    /// The number of each queue of a CPU, by kind and CPU.
    numbers: [Vec<u32>; 3],
}

impl Queues {
    /// Returns the number of a queue of a CPU. The first queue of a kind for a CPU comes with those of all lower CPUs, as in the trace processor, because
    /// the order of events of one time depends on it.
    #[inline]
    pub(crate) fn number(&mut self, queue: Queue) -> u32 {
        let (cpu, kind, make): (u32, usize, fn(u32) -> Queue) = match queue {
            Queue::Packets => return PACKETS,
            Queue::TrackEvents => return TRACK_EVENTS,
            Queue::Ftrace(cpu) => (cpu, 0, Queue::Ftrace),
            Queue::Switches(cpu) => (cpu, 1, Queue::Switches),
            Queue::Wakings(cpu) => (cpu, 2, Queue::Wakings),
        };
        let numbers = &mut self.numbers[kind];
        while numbers.len() <= cpu as usize {
            self.of_cpus.push(make(numbers.len() as u32));
            numbers.push(FIRST_OF_CPU + self.of_cpus.len() as u32 - 1);
        }
        numbers[cpu as usize]
    }

    /// Returns what a queue has.
    #[inline]
    pub(crate) fn queue(&self, number: u32) -> Queue {
        match number {
            PACKETS => Queue::Packets,
            TRACK_EVENTS => Queue::TrackEvents,
            other => self.of_cpus[(other - FIRST_OF_CPU) as usize],
        }
    }
}

/// A switch in the compact encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Switch {
    /// The bits that a kernel has for states.
    pub(crate) prev_state: u16,
    pub(crate) next_pid: u32,
    pub(crate) next_prio: i32,
    pub(crate) next_comm: StringId,
}

/// A wake-up in the compact encoding: what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waking {
    pub(crate) pid: u32,
    pub(crate) common_flags: u16,
}

/// A wake-up in the compact encoding with all that it says, for which there is room only where somebody reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Woken {
    pub(crate) pid: u32,
    pub(crate) common_flags: u16,
    pub(crate) comm: StringId,
    pub(crate) prio: u16,
    pub(crate) target_cpu: u16,
}

impl Switch {
    #[inline]
    pub(crate) fn encode(self) -> [u8; 14] {
        let mut bytes = [0; 14];
        bytes[..2].copy_from_slice(&self.prev_state.to_le_bytes());
        bytes[2..6].copy_from_slice(&self.next_pid.to_le_bytes());
        bytes[6..10].copy_from_slice(&self.next_prio.to_le_bytes());
        bytes[10..].copy_from_slice(&self.next_comm.0.to_le_bytes());
        bytes
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Switch> {
        let (state, rest) = bytes.split_first_chunk::<2>()?;
        let (pid, rest) = rest.split_first_chunk::<4>()?;
        let (prio, rest) = rest.split_first_chunk::<4>()?;
        let (comm, _) = rest.split_first_chunk::<4>()?;
        Some(Switch {
            prev_state: u16::from_le_bytes(*state),
            next_pid: u32::from_le_bytes(*pid),
            next_prio: i32::from_le_bytes(*prio),
            next_comm: StringId(u32::from_le_bytes(*comm)),
        })
    }
}

impl Waking {
    #[inline]
    pub(crate) fn encode(self) -> [u8; 6] {
        let mut bytes = [0; 6];
        bytes[..4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[4..].copy_from_slice(&self.common_flags.to_le_bytes());
        bytes
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Waking> {
        let (pid, rest) = bytes.split_first_chunk::<4>()?;
        let (flags, _) = rest.split_first_chunk::<2>()?;
        Some(Waking {
            pid: u32::from_le_bytes(*pid),
            common_flags: u16::from_le_bytes(*flags),
        })
    }
}

impl Woken {
    /// Encodes it as a [`Waking`] with more behind it.
    #[inline]
    pub(crate) fn encode(self) -> [u8; 14] {
        let Woken {
            pid, common_flags, ..
        } = self;
        let mut bytes = [0; 14];
        bytes[..6].copy_from_slice(&Waking { pid, common_flags }.encode());
        bytes[6..10].copy_from_slice(&self.comm.0.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.prio.to_le_bytes());
        bytes[12..].copy_from_slice(&self.target_cpu.to_le_bytes());
        bytes
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Woken> {
        let Waking { pid, common_flags } = Waking::decode(bytes)?;
        let (comm, rest) = bytes.get(6..)?.split_first_chunk::<4>()?;
        let (prio, rest) = rest.split_first_chunk::<2>()?;
        let (target_cpu, _) = rest.split_first_chunk::<2>()?;
        Some(Woken {
            pid,
            common_flags,
            comm: StringId(u32::from_le_bytes(*comm)),
            prio: u16::from_le_bytes(*prio),
            target_cpu: u16::from_le_bytes(*target_cpu),
        })
    }
}

/// Splits four bytes off.
#[inline]
pub(crate) fn prefix(event: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = event.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number), rest))
}
