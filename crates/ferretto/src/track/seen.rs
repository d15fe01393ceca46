//! The tracks that a sequence has described.
//!
//! Asked for each event on a track. So it is a flat hash table that is probed in place, and that holds, as bytes, the field by which events name
//! their track. It is bounded, for programs that make a track for each request and never forget one.

use ferretto_proto::write::TrackEvent;
use ferretto_wire::{MAX_VARINT_LEN, WireType, Writer, tag};

/// The most tracks that are remembered.
pub(super) const MAX_TRACKS: usize = 1 << 16;
/// The places of the first table that is allocated; a power of two.
const MIN_CAPACITY: usize = 32;

/// A set of uuids.
///
/// When it is full it forgets all: descriptors may be repeated, but are never missing.
#[derive(Debug, Default)]
pub(crate) struct SeenTracks {
    /// A power of two of places, at most half of them taken. Empty until there is a uuid.
    places: Box<[Place]>,
    len: usize,
    /// Whether uuid 0, the root's, is in the set.
    root: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// 0 if the place is free.
    uuid: u64,
    field: TrackField,
}

/// The field `track_uuid` of an event, encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrackField {
    pub(crate) bytes: [u8; Self::CAPACITY],
    /// The number of valid bytes.
    len: u8,
}

impl TrackField {
    const CAPACITY: usize = 15;
    const ROOT: Self = {
        assert!(MAX_VARINT_LEN < Self::CAPACITY);
        let mut bytes = [0; Self::CAPACITY];
        bytes[0] = Self::TAG;
        Self { bytes, len: 2 }
    };
    const TAG: u8 = {
        assert!(TrackEvent::TRACK_UUID < 16);
        tag(TrackEvent::TRACK_UUID, WireType::Varint) as u8
    };

    fn new(uuid: u64) -> Self {
        let mut field = Writer::new();
        field.varint_field(TrackEvent::TRACK_UUID, uuid);
        let mut bytes = [0; Self::CAPACITY];
        bytes[..field.len()].copy_from_slice(field.as_slice());
        let len = field.len() as u8;
        Self { bytes, len }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }
}

impl Place {
    const FREE: Self = Self {
        uuid: 0,
        field: TrackField::ROOT,
    };
}

impl SeenTracks {
    /// Adds `uuid`; tells whether it was not there.
    #[inline]
    pub(crate) fn insert(&mut self, uuid: u64) -> bool {
        if uuid == 0 {
            return !std::mem::replace(&mut self.root, true);
        }
        self.find_nonzero(uuid).is_none() && self.insert_new(uuid)
    }

    /// Whether `uuid` is there.
    #[inline]
    pub(crate) fn contains(&self, uuid: u64) -> bool {
        self.field(uuid).is_some()
    }

    /// The encoded field by which events name this track, if the track is there.
    #[inline(always)]
    pub(crate) fn field(&self, uuid: u64) -> Option<&TrackField> {
        if uuid == 0 {
            return self.root.then_some(&TrackField::ROOT);
        }
        self.find_nonzero(uuid)
    }

    /// The number of places.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Forgets all; keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.places.fill(Place::FREE);
        self.len = 0;
        self.root = false;
    }

    #[inline(always)]
    fn find_nonzero(&self, uuid: u64) -> Option<&TrackField> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = start(uuid);
        loop {
            match &self.places[at & mask] {
                Place { uuid: 0, .. } => return None,
                place if place.uuid == uuid => return Some(&place.field),
                _ => at += 1,
            }
        }
    }

    /// Always true.
    #[cold]
    fn insert_new(&mut self, uuid: u64) -> bool {
        if self.len == MAX_TRACKS {
            self.clear();
        }
        if self.len * 2 >= self.places.len() {
            let capacity = (self.places.len() * 2).max(MIN_CAPACITY);
            for place in std::mem::replace(&mut self.places, vec![Place::FREE; capacity].into()) {
                if place.uuid != 0 {
                    self.place(place);
                }
            }
        }
        self.place(Place {
            uuid,
            field: TrackField::new(uuid),
        });
        self.len += 1;
        true
    }

    /// Puts a uuid that is not there in the first free place.
    fn place(&mut self, place: Place) {
        let mask = self.places.len() - 1;
        let mut at = start(place.uuid);
        while self.places[at & mask].uuid != 0 {
            at += 1;
        }
        self.places[at & mask] = place;
    }
}

/// The first place to look at. Uuids differ as the users' numbers do: often in a few bits, which may be any, as in addresses. So all bits count
/// (Fibonacci hashing).
#[inline]
const fn start(uuid: u64) -> usize {
    (uuid.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}
