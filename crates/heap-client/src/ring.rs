//! The ring in shared memory: many writers in the client, one reader in the daemon.
//!
//! A writer takes space by advancing `WRITE`, marks it, fills it, and marks it complete. Writers never wait for each other. The order in which they
//! took space is the order of records: a client that takes space for an allocation after it has the memory, and for a free before it gives the
//! memory back, never reports two owners of one address at a time.
//!
//! The reader takes one record after the other and stops at the first that is not complete. It believes nothing: [`Reader::next`] ends in a record
//! within bounds, or says that the ring is corrupt. A writer that was killed leaves a record that stays incomplete; once the process is dead,
//! [`Reader::skip_incomplete`] passes over it.
//!
//! A writer keeps an eighth of the ring free of allocations, so that frees still find space: a lost allocation is a sample less, a lost free is a
//! leak that is none.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::layout::{
    COMPLETE, HEADER_WORDS, Kind, MAGIC, MAX_RING_WORDS, MIN_RING_WORDS, MOST_RECORD_WORDS, TAKEN, header,
};
use crate::sync::Word;

/// The shared memory: the header, and after it the ring.
#[derive(Debug)]
pub struct Ring<'a, W = AtomicU64> {
    header: &'a [W],
    words: &'a [W],
}

impl<W> Clone for Ring<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Ring<'_, W> {}

impl<'a, W: Word> Ring<'a, W> {
    /// The ring in this memory, if its size is possible: the header, and a power of two of words within the bounds.
    pub fn new(memory: &'a [W]) -> Option<Ring<'a, W>> {
        let (header, words) = memory.split_at_checked(HEADER_WORDS)?;
        let is_possible =
            words.len().is_power_of_two() && (MIN_RING_WORDS..=MAX_RING_WORDS).contains(&words.len());
        is_possible.then_some(Ring { header, words })
    }

    /// Writes the header of fresh memory, which is all zeroes.
    pub fn initialize(self) {
        self.header[header::RING_WORDS].store(self.words.len() as u64, Relaxed);
        self.header[header::MAGIC].store(MAGIC, Release);
    }

    /// Whether the header is one of this layout and this size.
    pub fn is_initialized(self) -> bool {
        self.header[header::MAGIC].load(Acquire) == MAGIC
            && self.header[header::RING_WORDS].load(Relaxed) == self.words.len() as u64
    }

    /// A word of the header, by its place in [`header`].
    pub fn header(self, place: usize) -> &'a W {
        &self.header[place]
    }

    /// Bytes of the ring that hold records now.
    pub fn used_bytes(self) -> u64 {
        let used = self.header[header::WRITE]
            .load(Relaxed)
            .wrapping_sub(self.header[header::READ].load(Relaxed));
        // More than all: the reader has passed what was read of `WRITE` first.
        if used > self.capacity() { 0 } else { used * 8 }
    }

    /// Bytes of the ring.
    pub fn bytes(self) -> u64 {
        self.capacity() * 8
    }

    fn capacity(self) -> u64 {
        self.words.len() as u64
    }

    fn word(self, position: u64) -> &'a W {
        // The length is a power of two.
        &self.words[(position & (self.capacity() - 1)) as usize]
    }

    /// The padding before a record of so many words at this position. `None` if there is no space for both.
    fn padding(self, write: u64, used: u64, kind: Kind, words: u64) -> Option<u64> {
        let reserve = match kind {
            Kind::Allocation => self.capacity() / 8,
            Kind::Padding | Kind::Free | Kind::Heap => 0,
        };
        let to_end = self.capacity() - (write & (self.capacity() - 1));
        let padding = if words <= to_end { 0 } else { to_end };
        (used + padding + words + reserve <= self.capacity()).then_some(padding)
    }

    /// Whether [`take`](Self::take) would find space now, as far as can be seen.
    pub(crate) fn has_space(self, kind: Kind, payload: usize) -> bool {
        let write = self.header[header::WRITE].load(Relaxed);
        let used = write.wrapping_sub(self.header[header::READ].load(Acquire));
        // More than all: see `take`.
        used > self.capacity() || self.padding(write, used, kind, payload as u64 + 1).is_some()
    }

    /// Takes space for a record with a payload of so many words. `None` if there is not enough, or if the header makes no sense.
    pub fn take(self, kind: Kind, payload: usize) -> Option<Space<'a, W>> {
        let words = payload as u64 + 1;
        let mut write = self.header[header::WRITE].load(Relaxed);
        loop {
            let used = write.wrapping_sub(self.header[header::READ].load(Acquire));
            if used > self.capacity() {
                // The reader has passed what this thread believes to be the end: others wrote meanwhile, or the header makes no sense. Having seen
                // where the reader is, this thread sees the end that the reader saw.
                let now = self.header[header::WRITE].load(Acquire);
                if now == write {
                    return None;
                }
                write = now;
                continue;
            }
            let padding = self.padding(write, used, kind, words)?;
            let after = write.wrapping_add(padding + words);
            match self.header[header::WRITE].compare_exchange_weak(write, after, AcqRel, Relaxed) {
                Err(now) => write = now,
                Ok(_) => {
                    if padding != 0 {
                        self.word(write)
                            .store(COMPLETE | head(Kind::Padding, padding), Release);
                    }
                    let start = write.wrapping_add(padding);
                    // Release, so that a reader which passes over it sees that it is within bounds.
                    self.word(start).store(TAKEN | head(kind, words), Release);
                    return Some(Space {
                        ring: self,
                        start,
                        kind,
                        words,
                    });
                }
            }
        }
    }
}

fn head(kind: Kind, words: u64) -> u64 {
    (u64::from(kind as u8) << 32) | words
}

/// Space for a record. The reader waits until it is [complete](Self::complete).
#[derive(Debug)]
#[must_use]
pub struct Space<'a, W = AtomicU64> {
    ring: Ring<'a, W>,
    start: u64,
    kind: Kind,
    words: u64,
}

impl<W: Word> Space<'_, W> {
    /// Writes a word of the payload. Words beyond it are left out.
    pub fn write(&self, index: usize, value: u64) {
        if (index as u64) < self.words - 1 {
            self.ring
                .word(self.start + 1 + index as u64)
                .store(value, Relaxed);
        }
    }

    /// The words of the payload from this one on.
    pub fn words(&self, from: usize) -> &[W] {
        // Records are in one piece, and within the ring.
        let start = (self.start & (self.ring.capacity() - 1)) as usize + 1;
        let payload = self.ring.words.get(start..start + self.words as usize - 1);
        payload.and_then(|words| words.get(from..)).unwrap_or(&[])
    }

    /// Hands the record to the reader.
    pub fn complete(self) {
        self.ring
            .word(self.start)
            .store(COMPLETE | head(self.kind, self.words), Release);
    }
}

/// The reader's finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A record of this kind. Its payload is where the caller wanted it.
    Record(Kind),
    /// All is read.
    Empty,
    /// The next record is not complete yet.
    Incomplete,
    /// The client's writing makes no sense. There is nothing more to read.
    Corrupt,
}

/// A reader's interpretation of a word.
pub trait PayloadWord {
    /// The word.
    fn of(word: u64) -> Self;
}

impl PayloadWord for u64 {
    fn of(word: u64) -> u64 {
        word
    }
}

/// Its bytes, in the order of the machine.
impl PayloadWord for [u8; 8] {
    fn of(word: u64) -> [u8; 8] {
        word.to_ne_bytes()
    }
}

/// The daemon's end. Its position is its own: what clients write over `READ` changes nothing.
#[derive(Debug)]
pub struct Reader {
    read: u64,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

impl Reader {
    /// The reader of a fresh ring.
    pub fn new() -> Reader {
        Reader { read: 0 }
    }

    /// The position after the last record that was read.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Reads the next record into `payload`, and gives its space back. Padding is passed over.
    pub fn next<W: Word>(&mut self, ring: Ring<'_, W>, payload: &mut Vec<u64>) -> Next {
        self.next_as(ring, payload)
    }

    /// The same, for readers that want other words.
    pub fn next_as<W: Word, P: PayloadWord>(&mut self, ring: Ring<'_, W>, payload: &mut Vec<P>) -> Next {
        let mut has_padding = false;
        loop {
            let write = ring.header[header::WRITE].load(Acquire);
            let there = write.wrapping_sub(self.read);
            if there == 0 {
                return Next::Empty;
            }
            if there > ring.capacity() {
                return Next::Corrupt;
            }
            let head = ring.word(self.read).load(Acquire);
            if head & COMPLETE == 0 {
                return Next::Incomplete;
            }
            let Some((kind, words)) = self.check(ring, head, there) else {
                return Next::Corrupt;
            };
            if kind == Kind::Padding {
                // Writers take the space of a padding and of a record behind it at once, so two in a row make no sense, and many would never end.
                if has_padding {
                    return Next::Corrupt;
                }
                has_padding = true;
                self.give_back(ring, words);
                continue;
            }
            payload.clear();
            payload.extend((1..words).map(|index| P::of(ring.word(self.read + index).load(Relaxed))));
            self.give_back(ring, words);
            return Next::Record(kind);
        }
    }

    /// Passes over a record whose writer is dead. `false` if it cannot be told where the next one begins: then there is nothing more to be read.
    pub fn skip_incomplete<W: Word>(&mut self, ring: Ring<'_, W>) -> bool {
        let there = ring.header[header::WRITE].load(Acquire).wrapping_sub(self.read);
        let head = ring.word(self.read).load(Acquire);
        match self.check(ring, head, there) {
            Some((_, words)) if there <= ring.capacity() => {
                self.give_back(ring, words);
                true
            }
            _ => false,
        }
    }

    fn check<W: Word>(&self, ring: Ring<'_, W>, head: u64, there: u64) -> Option<(Kind, u64)> {
        let kind = Kind::from_number((head >> 32) as u8)?;
        let words = head & u64::from(u32::MAX);
        let to_end = ring.capacity() - (self.read & (ring.capacity() - 1));
        // A padding is shorter than the record behind it.
        let most = to_end.min(MOST_RECORD_WORDS as u64).min(there);
        (head & (TAKEN | COMPLETE) != 0 && (1..=most).contains(&words)).then_some((kind, words))
    }

    fn give_back<W: Word>(&mut self, ring: Ring<'_, W>, words: u64) {
        for index in 0..words {
            ring.word(self.read + index).store(0, Relaxed);
        }
        self.read = self.read.wrapping_add(words);
        ring.header[header::READ].store(self.read, Release);
    }
}

#[cfg(test)]
mod tests;
