//! Which tracks a sequence has described.
//!
//! Asked for each event on a track, so it is a flat hash table that is probed in place; and bounded, for programs that make a
//! track for each request and never forget one.

/// Of tracks that are remembered.
pub(super) const MAX_TRACKS: usize = 1 << 16;
/// Of tracks in the first table that is allocated; a power of two.
const MIN_CAPACITY: usize = 32;

/// A set of uuids.
///
/// When it is full it forgets all: descriptors may be repeated, but are never missing.
#[derive(Debug, Default)]
pub(crate) struct SeenTracks {
    /// A power of two of places, at most half of them taken; 0 is a free one. Empty until there is a uuid.
    places: Box<[u64]>,
    len: usize,
    /// Whether uuid 0, the root's, is in the set.
    root: bool,
}

impl SeenTracks {
    /// Adds `uuid`; tells whether it was not there.
    #[inline]
    pub(crate) fn insert(&mut self, uuid: u64) -> bool {
        if uuid == 0 {
            return !std::mem::replace(&mut self.root, true);
        }
        !self.contains_nonzero(uuid) && self.insert_new(uuid)
    }

    /// Whether `uuid` is there.
    #[inline]
    pub(crate) fn contains(&self, uuid: u64) -> bool {
        if uuid == 0 {
            self.root
        } else {
            self.contains_nonzero(uuid)
        }
    }

    /// Room in memory.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Forgets all; keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.places.fill(0);
        self.len = 0;
        self.root = false;
    }

    #[inline]
    fn contains_nonzero(&self, uuid: u64) -> bool {
        let Some(mask) = self.places.len().checked_sub(1) else {
            return false;
        };
        let mut place = start(uuid);
        loop {
            match self.places[place & mask] {
                0 => return false,
                found if found == uuid => return true,
                _ => place += 1,
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
            for uuid in std::mem::replace(&mut self.places, vec![0; capacity].into()) {
                if uuid != 0 {
                    self.place(uuid);
                }
            }
        }
        self.place(uuid);
        self.len += 1;
        true
    }

    /// Puts `uuid`, which is not there, in the first free place.
    fn place(&mut self, uuid: u64) {
        let mask = self.places.len() - 1;
        let mut place = start(uuid);
        while self.places[place & mask] != 0 {
            place += 1;
        }
        self.places[place & mask] = uuid;
    }
}

/// Where to look first. Uuids differ from each other as the users' numbers do: often in a few bits that may be any, as
/// in addresses; so all bits are brought to bear (Fibonacci hashing).
#[inline]
const fn start(uuid: u64) -> usize {
    (uuid.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}
