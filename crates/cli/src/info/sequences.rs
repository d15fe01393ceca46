//! The sequences of a trace: the writer of each, its size, and its gaps.
//!
//! [`summary`](super::summary) calls it. A sequence consists of the packets of one writer of one producer. They build on one another (interned
//! strings, defaults), so after a loss readers skip packets that need lost state, until the writer clears its state.

use std::collections::HashMap;

use ferretto_proto::messages::trace_packet::{DataLossReason, SequenceFlags};

/// The most sequences that are tracked one by one. All further ones count as one, under [`OTHERS`].
const MAX_SEQUENCES: usize = 1 << 16;
/// An id that no sequence has.
pub(super) const OTHERS: u32 = u32::MAX;
/// The most kinds of packets that are counted in one sequence.
const MAX_KINDS: usize = 32;

const STATE_CLEARED: u64 = SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u64;
const NEEDS_STATE: u64 = SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u64;

/// The reasons for a loss in the bits of `previous_packet_dropped`. The lowest bit is set for every loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GapReason {
    /// Only the lowest bit: from services before v58, and from producers.
    Unknown,
    ReadGap,
    CorruptedChunk,
    Fragments,
    Overwritten,
    GivenUp,
    SharedMemoryFull,
}

impl GapReason {
    const BITS: [(DataLossReason, GapReason); 8] = [
        (DataLossReason::DATA_LOSS_READ_GAP, GapReason::ReadGap),
        (
            DataLossReason::DATA_LOSS_CHUNK_CORRUPTED,
            GapReason::CorruptedChunk,
        ),
        (
            DataLossReason::DATA_LOSS_ORPHAN_CONTINUATION,
            GapReason::Fragments,
        ),
        (DataLossReason::DATA_LOSS_REASSEMBLY_GAP, GapReason::Fragments),
        (
            DataLossReason::DATA_LOSS_REASSEMBLY_BROKEN_CHAIN,
            GapReason::Fragments,
        ),
        (DataLossReason::DATA_LOSS_OVERWRITE, GapReason::Overwritten),
        (DataLossReason::DATA_LOSS_WRITER_ABORT, GapReason::GivenUp),
        (DataLossReason::DATA_LOSS_SMB_FULL, GapReason::SharedMemoryFull),
    ];

    /// Returns the most specific reason. A gap often has several bits, and higher bits are more specific.
    fn of(bits: u64) -> GapReason {
        let found = Self::BITS.iter().rev().find(|(bit, _)| bits & *bit as u64 != 0);
        found.map_or(GapReason::Unknown, |(_, reason)| *reason)
    }
}

/// The fields of a packet that concern its sequence.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Header {
    pub(super) sequence: u32,
    pub(super) pid: Option<i32>,
    pub(super) uid: Option<i32>,
    pub(super) machine: u32,
    /// `sequence_flags`, in which `incremental_state_cleared` is included as the corresponding flag.
    pub(super) flags: u64,
    /// `previous_packet_dropped`.
    pub(super) dropped: u64,
    /// The field that gives the packet its kind.
    pub(super) kind: u32,
    pub(super) bytes: u64,
}

impl Header {
    /// Handles `incremental_state_cleared`, the older way to say that the state is cleared.
    pub(super) fn clear_state(&mut self) {
        self.flags |= STATE_CLEARED;
    }
}

/// The sequence of one writer.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) pid: Option<i32>,
    pub(super) uid: Option<i32>,
    pub(super) machine: u32,
    /// Losses by reason.
    pub(super) gaps: Vec<(GapReason, u64)>,
    /// Packets that readers skip because the state they need was lost.
    pub(super) useless: u64,
    /// The part of them before the writer first cleared its state.
    pub(super) useless_at_first: u64,
    /// Whether the writer has cleared its state.
    pub(super) was_cleared: bool,
    /// The clock of timestamps without a clock id, from `trace_packet_defaults`.
    pub(super) default_clock: Option<u32>,
    has_state: bool,
    kinds: Vec<(u32, u64)>,
}

/// Whether a reader can use a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Whole,
    /// It needs state that was lost.
    Useless,
}

impl Sequence {
    fn take(&mut self, header: &Header) -> Use {
        let is_first = self.packets == 0;
        self.packets += 1;
        self.bytes += header.bytes;
        self.pid = self.pid.or(header.pid);
        self.uid = self.uid.or(header.uid);
        self.machine = header.machine;
        let is_room = self.kinds.len() < MAX_KINDS;
        match self.kinds.iter_mut().find(|(kind, _)| *kind == header.kind) {
            Some((_, count)) => *count += 1,
            None if is_room => self.kinds.push((header.kind, 1)),
            None => {}
        }
        if header.dropped != 0 {
            self.has_state = false;
            let reason = GapReason::of(header.dropped);
            // Older services set the lowest bit on the first packet of every sequence.
            if !is_first || reason != GapReason::Unknown {
                match self.gaps.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, count)) => *count += 1,
                    None => self.gaps.push((reason, 1)),
                }
            }
        }
        if header.flags & STATE_CLEARED != 0 {
            self.has_state = true;
            self.was_cleared = true;
            self.default_clock = None;
        }
        if header.flags & NEEDS_STATE != 0 && !self.has_state {
            self.useless += 1;
            self.useless_at_first += u64::from(!self.was_cleared);
            return Use::Useless;
        }
        Use::Whole
    }

    /// Returns the most frequent kind of packets.
    pub(super) fn main_kind(&self) -> Option<u32> {
        let most = self.kinds.iter().max_by_key(|(_, count)| *count);
        most.map(|(kind, _)| *kind)
    }

    /// Returns the number of losses for all reasons.
    pub(super) fn all_gaps(&self) -> u64 {
        self.gaps.iter().map(|(_, count)| count).sum()
    }
}

/// All sequences.
#[derive(Debug, Default)]
pub(super) struct Sequences(HashMap<u32, Sequence>);

impl Sequences {
    /// Counts a packet.
    pub(super) fn take(&mut self, header: &Header) -> (&mut Sequence, Use) {
        let known = self.0.len() < MAX_SEQUENCES || self.0.contains_key(&header.sequence);
        let id = if known { header.sequence } else { OTHERS };
        let sequence = self.0.entry(id).or_default();
        let usable = sequence.take(header);
        (sequence, usable)
    }

    /// Returns all sequences, the one with the most bytes first.
    pub(super) fn largest_first(&self) -> Vec<(u32, &Sequence)> {
        let mut all: Vec<_> = self.0.iter().map(|(id, sequence)| (*id, sequence)).collect();
        all.sort_by_key(|(id, sequence)| (std::cmp::Reverse(sequence.bytes), *id));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u64, dropped: u64) -> Header {
        Header {
            sequence: 3,
            flags,
            dropped,
            bytes: 10,
            ..Header::default()
        }
    }

    #[test]
    fn after_a_loss_packets_are_useless_until_the_writer_starts_over() {
        let mut sequences = Sequences::default();
        let uses: Vec<Use> = [
            header(NEEDS_STATE, 1),
            header(STATE_CLEARED | NEEDS_STATE, 0),
            header(NEEDS_STATE, 0),
            header(0, 1),
            header(NEEDS_STATE, 0),
            header(0, 0),
            header(STATE_CLEARED, 0),
            header(NEEDS_STATE, 0),
        ]
        .iter()
        .map(|header| sequences.take(header).1)
        .collect();
        let useless: Vec<usize> = (0..uses.len()).filter(|at| uses[*at] == Use::Useless).collect();
        assert_eq!(useless, [0, 4]);
        let (_, sequence) = sequences.largest_first()[0];
        assert_eq!((sequence.packets, sequence.bytes, sequence.useless), (8, 80, 2));
        assert!(sequence.was_cleared && sequence.useless_at_first == 1);
        assert_eq!(
            sequence.gaps,
            [(GapReason::Unknown, 1)],
            "the first packet's mark says nothing"
        );
    }

    #[test]
    fn the_most_telling_reason_of_a_gap_counts() {
        let cases = [
            (1, GapReason::Unknown),
            (1 | 2, GapReason::ReadGap),
            (1 | 2 | 64, GapReason::Overwritten),
            (1 | 2 | 256, GapReason::SharedMemoryFull),
            (1 | 8, GapReason::Fragments),
            (1 | 4, GapReason::CorruptedChunk),
            (1 | 16 | 128, GapReason::GivenUp),
            (1 | 1 << 40, GapReason::Unknown),
        ];
        for (bits, reason) in cases {
            assert_eq!(GapReason::of(bits), reason, "{bits}");
        }
    }

    #[test]
    fn no_file_makes_them_take_all_memory() {
        let mut sequences = Sequences::default();
        for sequence in 0..2 * MAX_SEQUENCES as u32 {
            let kind = sequence;
            sequences.take(&Header {
                sequence,
                kind,
                bytes: 1,
                ..Header::default()
            });
        }
        assert_eq!(sequences.0.len(), MAX_SEQUENCES + 1);
        assert_eq!(sequences.0[&OTHERS].packets, MAX_SEQUENCES as u64);
        assert_eq!(sequences.0[&OTHERS].kinds.len(), MAX_KINDS);
    }
}
