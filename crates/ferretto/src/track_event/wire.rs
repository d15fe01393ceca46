//! The first bytes of packets of track events.
//!
//! Variable fields come last: `sequence_flags`, `track_event`, `timestamp`. To readers all orders are the same.

use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::messages::track_event::Type;
use ferretto_proto::write::{DebugAnnotation, TracePacket, TrackEvent};
use ferretto_wire::{WireType, Writer, tag};

/// `sequence_flags` of packets that refer to others.
pub(super) const NEEDS_INCREMENTAL_STATE: u64 = SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u64;
/// `sequence_flags` of packets that clear all earlier state.
pub(super) const INCREMENTAL_STATE_CLEARED: u64 = SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u64;

/// The kinds of events.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// A slice with a handle, which knows which instances have recorded the beginning.
    SliceBegin,
    SliceEnd,
    /// A slice without a handle.
    LooseBegin,
    LooseEnd,
    Instant,
    Counter,
    State,
}

impl EventType {
    pub(super) fn to_wire(self) -> Type {
        match self {
            EventType::SliceBegin | EventType::LooseBegin => Type::TYPE_SLICE_BEGIN,
            EventType::SliceEnd | EventType::LooseEnd => Type::TYPE_SLICE_END,
            EventType::Instant => Type::TYPE_INSTANT,
            EventType::Counter => Type::TYPE_COUNTER,
            EventType::State => Type::TYPE_STATE,
        }
    }

    /// Whether the order of events of this kind on one track matters to the nanosecond: slices must nest. For counters and instants it does not
    /// matter.
    #[inline(always)]
    pub(super) fn is_ordered(self) -> bool {
        !matches!(self, EventType::Instant | EventType::Counter)
    }

    /// Whether the event belongs to a slice without a handle.
    #[inline(always)]
    pub(super) fn is_loose(self) -> bool {
        matches!(self, EventType::LooseBegin | EventType::LooseEnd)
    }

    /// Whether the event ends a slice.
    pub(super) fn is_end(self) -> bool {
        matches!(self, EventType::SliceEnd | EventType::LooseEnd)
    }

    /// Whether events of this kind contain their category: the ends of slices and samples of counters do not.
    pub(super) fn tells_category(self) -> bool {
        !self.is_end() && self != EventType::Counter
    }
}

/// A packet with an event that has no more than a type, categories and a name, up to the tag of its timestamp.
pub(super) fn front(event: EventType, categories: &[u32], name: u32) -> Vec<u8> {
    let mut packet = Writer::new();
    TracePacket::new(&mut packet)
        .sequence_flags(NEEDS_INCREMENTAL_STATE as u32)
        .track_event(|track_event| {
            head(track_event, event, categories, name);
        });
    packet.varint(tag(TracePacket::TIMESTAMP, WireType::Varint).into());
    packet.as_slice().to_vec()
}

/// Bytes of [`ShortFront`].
const FRONT_CAPACITY: usize = 24;

/// The first bytes of short packets with an event: `sequence_flags`, `track_event` with the byte for its length, type, categories and
/// name. The event's other fields follow, then the packet's timestamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortFront {
    pub(super) bytes: [u8; FRONT_CAPACITY],
    /// The number of valid bytes.
    pub(super) len: usize,
}

impl ShortFront {
    /// The place of the event's length.
    pub(super) const LENGTH_AT: usize = 3;

    /// Returns `None` if there are too many categories.
    pub(super) fn new(event: EventType, categories: &[u32], name: u32) -> Option<Self> {
        let mut front = front(event, categories, name);
        // The tag of the timestamp.
        front.pop();
        let mut bytes = [0; FRONT_CAPACITY];
        bytes.get_mut(..front.len())?.copy_from_slice(&front);
        Some(Self {
            bytes,
            len: front.len(),
        })
    }
}

/// The first bytes of an argument of a short packet: the field `debug_annotations` with the byte for its length, and the id of its name.
/// The value follows.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct AnnotationFront {
    pub(crate) bytes: [u8; Self::CAPACITY],
    /// The number of valid bytes.
    len: u8,
}

impl AnnotationFront {
    /// The place of the argument's length.
    pub(crate) const LENGTH_AT: usize = 1;
    /// Two tags and a length of a byte each, and the longest id.
    const CAPACITY: usize = 8;

    pub(super) fn new(name: u32) -> Self {
        let mut front = Writer::new();
        front.nested(TrackEvent::DEBUG_ANNOTATIONS, |annotation| {
            annotation.varint_field(DebugAnnotation::NAME_IID, u64::from(name));
        });
        let mut bytes = [0; Self::CAPACITY];
        bytes[..front.len()].copy_from_slice(front.as_slice());
        Self {
            bytes,
            len: front.len() as u8,
        }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }
}

/// Writes the fields that all events begin with.
#[inline(always)]
pub(super) fn head(track_event: &mut TrackEvent<'_>, event: EventType, categories: &[u32], name: u32) {
    track_event.r#type(event.to_wire());
    if event.tells_category() {
        for &category in categories {
            track_event.category_iids(u64::from(category));
        }
    }
    if name != 0 {
        track_event.name_iid(u64::from(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_client::trace_writer::PreparedPacket;
    use ferretto_proto::messages::Message;

    #[test]
    fn a_prepared_event_is_one_with_its_type_category_and_name() {
        let mut packet = front(EventType::SliceBegin, &[300], 20_000);
        assert!(PreparedPacket::new(&packet).is_some(), "{} bytes", packet.len());
        packet.push(42);
        let packet = ferretto_proto::messages::TracePacket::decode_from_slice(&packet).unwrap();
        assert_eq!(packet.timestamp, Some(42));
        assert_eq!(packet.sequence_flags, Some(NEEDS_INCREMENTAL_STATE as u32));
        let Some(ferretto_proto::messages::trace_packet::Data::TrackEvent(event)) = packet.data else {
            panic!("{packet:?}")
        };
        assert_eq!(event.r#type, Some(Type::TYPE_SLICE_BEGIN));
        assert_eq!(event.category_iids, [300]);
    }
}
