//! The parts of a trace packet that every reader of a trace's contents needs, and the state that a sequence keeps between packets.
//!
//! [`samples`](crate::samples) and [`convert`](crate::convert) call it. A packet may refer to what its sequence said before. After a loss that is
//! unknown until the sequence clears its state, and packets that need it are not understood, as for upstream's trace processor.

use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::write::{TracePacket, TracePacketDefaults};
use ferretto_wire::{Reader, Value};

const CLEARED: u64 = SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u64;
const NEEDS_STATE: u64 = SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u64;

/// A packet whose own fields have been read.
#[derive(Debug, Default)]
pub(crate) struct Packet<'a> {
    pub(crate) sequence: u32,
    flags: u64,
    dropped: u64,
    pub(crate) timestamp: Option<u64>,
    pub(crate) clock: Option<u32>,
    /// Encoded `InternedData`.
    pub(crate) interned: Vec<&'a [u8]>,
    /// Encoded `TracePacketDefaults`.
    pub(crate) defaults: Option<&'a [u8]>,
    /// The field of its data, and the message in it.
    pub(crate) content: Option<(u32, &'a [u8])>,
}

impl<'a> Packet<'a> {
    pub(crate) fn new(encoded: &'a [u8]) -> Packet<'a> {
        let mut packet = Packet::default();
        // Readers also stop at damage within a packet, so the fields before it count.
        for field in Reader::new(encoded).map_while(Result::ok) {
            match (field.number, field.value) {
                (TracePacket::TIMESTAMP, Value::Varint(value)) => packet.timestamp = Some(value),
                (TracePacket::TIMESTAMP_CLOCK_ID, Value::Varint(value)) => packet.clock = Some(value as u32),
                (TracePacket::TRUSTED_PACKET_SEQUENCE_ID, Value::Varint(value)) => {
                    packet.sequence = value as u32;
                }
                (TracePacket::SEQUENCE_FLAGS, Value::Varint(value)) => packet.flags |= value,
                (TracePacket::INCREMENTAL_STATE_CLEARED, Value::Varint(1..)) => packet.flags |= CLEARED,
                (TracePacket::PREVIOUS_PACKET_DROPPED, Value::Varint(value)) => packet.dropped = value,
                (TracePacket::INTERNED_DATA, Value::Bytes(value)) => packet.interned.push(value),
                (TracePacket::TRACE_PACKET_DEFAULTS, Value::Bytes(value)) => packet.defaults = Some(value),
                (number, Value::Bytes(value)) => packet.content = Some((number, value)),
                _ => {}
            }
        }
        packet
    }

    /// Whether its sequence starts over with it.
    pub(crate) fn clears_state(&self) -> bool {
        self.flags & CLEARED != 0
    }
}

/// The state of a sequence: statements of earlier packets that still hold.
#[derive(Debug, Default)]
pub(crate) struct SequenceState<S> {
    /// Whether all of the state that packets need is known.
    is_whole: bool,
    /// The clock of packets that name none.
    clock: Option<u32>,
    pub(crate) state: S,
}

impl<S: Default> SequenceState<S> {
    /// Takes in the flags and defaults of a packet. Returns whether the packet can be understood.
    pub(crate) fn take(&mut self, packet: &Packet<'_>) -> bool {
        if packet.clears_state() {
            *self = SequenceState {
                is_whole: true,
                ..SequenceState::default()
            };
        } else if packet.dropped != 0 {
            self.is_whole = false;
        }
        let is_understood = packet.flags & NEEDS_STATE == 0 || self.is_whole;
        if let (true, Some(defaults)) = (is_understood, packet.defaults) {
            self.clock = varint(defaults, TracePacketDefaults::TIMESTAMP_CLOCK_ID).map(|clock| clock as u32);
        }
        is_understood
    }

    /// Returns the clock of a packet; `None` for the default of the trace.
    pub(crate) fn clock_of(&self, packet: &Packet<'_>) -> Option<u32> {
        packet.clock.or(self.clock)
    }
}

/// Returns the first varint field of this number.
pub(crate) fn varint(message: &[u8], number: u32) -> Option<u64> {
    let mut fields = Reader::new(message).map_while(Result::ok);
    fields.find(|field| field.number == number)?.value.as_varint()
}

/// Returns the first length-delimited field of this number.
pub(crate) fn bytes(message: &[u8], number: u32) -> Option<&[u8]> {
    let mut fields = Reader::new(message).map_while(Result::ok);
    fields.find(|field| field.number == number)?.value.as_bytes()
}
