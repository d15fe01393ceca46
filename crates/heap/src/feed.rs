//! The data from a client: its ring, and the profile that is made of it.
//!
//! [`Collector`](crate::collector::Collector) takes one record after the other. Everything in the ring is the client's word: each record is copied into
//! private memory first, and judged there. A ring that makes no sense is read no further.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ferretto_heap_client::layout::{Kind, MOST_RECORD_WORDS, header};
use ferretto_heap_client::ring::{Next, Reader, Ring};

use crate::memory::{self, RingMemory};
use crate::profile::{Losses, Profile, Stats};
use crate::records::Word;
use crate::waking::Waking;

/// A record that is not completed in this time, while the ring fills behind it, is passed over: its thread has left it, out of a signal handler for example.
const STUCK: Duration = Duration::from_secs(5);

/// See the [module](self).
#[derive(Debug)]
pub struct Feed {
    memory: RingMemory,
    reader: Reader,
    payload: Vec<Word>,
    /// The result of the records.
    pub profile: Profile,
    /// Nothing is read from here on.
    end: Option<u64>,
    is_corrupt: bool,
    /// Where the next record was incomplete, and since when.
    stuck: Option<(u64, Instant)>,
    waking: Waking,
    /// Bytes of interned data that exist because of this client.
    pub(crate) interned_bytes: usize,
    /// The client's user, who is charged for it.
    pub(crate) user: u32,
}

/// How much a ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Came {
    Nothing,
    Little,
    /// More than one part in [`MUCH`] of the ring, or somebody waits: the next look must not be long in coming.
    Much,
}

/// See [`Came`]. After a look that found less, the ring would have to fill so many times as fast before it is full at the next one.
const MUCH: u64 = 32;

/// How it went so far.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub(crate) stats: Stats,
    /// The losses that the client reports, and the losses here.
    pub losses: Losses,
    /// How long the client says that it has waited for space.
    pub(crate) waited: Duration,
    /// The client has given up waiting.
    pub(crate) timed_out: bool,
    /// The client has given up because it cannot reach the daemon any more.
    pub(crate) out_of_reach: bool,
    /// The ring was corrupt.
    pub is_corrupt: bool,
}

/// The kind of the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// A record, whose payload is in [`Feed::payload`].
    Record(Kind),
    /// There is none for now.
    Empty,
    /// It is not complete yet.
    Incomplete,
    /// There will be no more: the ring is corrupt, or its [end](Feed::end_here) is reached.
    End,
}

impl Feed {
    /// Nothing has come so far.
    pub fn new(memory: RingMemory) -> Feed {
        Feed::of_user(0, memory)
    }

    /// The same, of a client of this user.
    pub(crate) fn of_user(user: u32, memory: RingMemory) -> Feed {
        Feed {
            memory,
            reader: Reader::new(),
            payload: Vec::new(),
            profile: Profile::default(),
            end: None,
            is_corrupt: false,
            stuck: None,
            waking: Waking::default(),
            interned_bytes: 0,
            user,
        }
    }

    fn ring(&self) -> Option<Ring<'_>> {
        self.memory.ring()
    }

    /// The payload of the record that was fetched last.
    pub(crate) fn payload(&self) -> &[Word] {
        &self.payload
    }

    /// A record made no sense: nothing more is read.
    pub(crate) fn give_up(&mut self) {
        self.is_corrupt = true;
    }

    /// Records that are written later than now are not read any more. If what there is would not fit into the ring, nothing more is read.
    pub(crate) fn end_here(&mut self) {
        if self.end.is_none()
            && let Some(ring) = self.memory.ring()
        {
            let end = ring.header(header::WRITE).load(Relaxed);
            // The client can change it, and so would decide when it is reached.
            self.is_corrupt |= end.wrapping_sub(self.reader.position()) > ring.bytes() / 8;
            self.end = Some(end);
        }
    }

    /// Leaves what has not been read by now. It counts as the fewest samples that are as long.
    pub(crate) fn leave_rest(&mut self) {
        self.end_here();
        let position = self.reader.position();
        if let Some(end) = self.end.replace(position)
            && !self.is_corrupt
        {
            let words = end.saturating_sub(position);
            self.profile.losses.samples += words.div_ceil(MOST_RECORD_WORDS as u64);
        }
    }

    /// How much there is to be read.
    pub(crate) fn came(&self) -> Came {
        let Some(ring) = self.ring() else {
            return Came::Nothing;
        };
        match ring.used_bytes() {
            0 => Came::Nothing,
            used if used > ring.bytes() / MUCH || ring.header(header::WAITING).load(Relaxed) != 0 => {
                Came::Much
            }
            _ => Came::Little,
        }
    }

    /// Reads the next record.
    pub(crate) fn fetch(&mut self) -> Fetched {
        let Some(ring) = self.memory.ring() else {
            return Fetched::End;
        };
        // Positions never wrap.
        let is_over = self.end.is_some_and(|end| self.reader.position() >= end);
        if self.is_corrupt || is_over {
            return Fetched::End;
        }
        match self.reader.next_as(ring, &mut self.payload) {
            Next::Record(kind) => {
                self.waking.add();
                Fetched::Record(kind)
            }
            Next::Empty => Fetched::Empty,
            Next::Incomplete => self.wait_or_pass_over(Instant::now()),
            Next::Corrupt => {
                self.is_corrupt = true;
                Fetched::End
            }
        }
    }

    /// The next record is incomplete. Passes over it if it has been for too long.
    fn wait_or_pass_over(&mut self, now: Instant) -> Fetched {
        let position = self.reader.position();
        match self.stuck {
            Some((at, since)) if at == position => {
                let is_filling = self
                    .ring()
                    .is_some_and(|ring| ring.used_bytes() > ring.bytes() / 2);
                if now - since < STUCK || !is_filling {
                    return Fetched::Incomplete;
                }
                self.pass_over();
                Fetched::Incomplete
            }
            _ => {
                self.stuck = Some((position, now));
                Fetched::Incomplete
            }
        }
    }

    /// Passes over a record that nobody completes. If it cannot be told where the next one begins, nothing more is read.
    pub fn pass_over(&mut self) {
        let Some(ring) = self.memory.ring() else { return };
        match self.reader.skip_incomplete(ring) {
            true => self.profile.losses.samples += 1,
            false => self.is_corrupt = true,
        }
    }

    /// Wakes threads of the client that wait, if the ring has space for them.
    pub(crate) fn wake_waiting(&mut self) {
        if let Some(ring) = self.memory.ring()
            && let Some(count) = self.waking.due(ring)
        {
            memory::wake(ring, count);
        }
    }

    /// Tells the client that nothing more is read.
    pub(crate) fn tell_end(&self) {
        if let Some(ring) = self.ring() {
            ring.header(header::ENDED)
                .store(1, std::sync::atomic::Ordering::Release);
            memory::wake(ring, u32::MAX);
        }
    }

    fn word(&self, place: usize) -> u64 {
        self.ring().map_or(0, |ring| ring.header(place).load(Relaxed))
    }

    /// Whether the client has given up.
    pub(crate) fn has_given_up(&self) -> bool {
        (self.word(header::TIMED_OUT) | self.word(header::OUT_OF_REACH)) != 0
    }

    /// How it went so far.
    pub fn told(&self) -> Told {
        let here = self.profile.losses;
        let with = |here: u64, place: usize| here.saturating_add(self.word(place));
        Told {
            stats: self.profile.stats,
            losses: Losses {
                samples: with(here.samples, header::LOST_SAMPLES),
                bytes: with(here.bytes, header::LOST_BYTES),
                frees: with(here.frees, header::LOST_FREES),
                untracked: with(here.untracked, header::UNTRACKED),
                ..here
            },
            waited: Duration::from_micros(self.word(header::WAITED_US)),
            timed_out: self.word(header::TIMED_OUT) != 0,
            out_of_reach: self.word(header::OUT_OF_REACH) != 0,
            is_corrupt: self.is_corrupt,
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.tell_end();
    }
}

#[cfg(test)]
mod tests {
    use ferretto_heap_client::layout::{MIN_RING_WORDS, free};

    use super::*;

    #[test]
    fn much_has_come_if_the_ring_fills_or_somebody_waits() {
        const WORDS: usize = 64 * MIN_RING_WORDS;
        let (memory, file) = RingMemory::new(WORDS).expect("memory");
        let client = RingMemory::of(&file, WORDS).expect("memory");
        let ring = client.ring().expect("a ring");
        let write = || {
            let space = ring.take(Kind::Free, free::WORDS).expect("there is space");
            space.complete();
        };
        let mut feed = Feed::new(memory);
        assert_eq!(feed.came(), Came::Nothing);
        write();
        assert_eq!(feed.came(), Came::Little);
        ring.header(header::WAITING).store(1, Relaxed);
        assert_eq!(feed.came(), Came::Much);
        ring.header(header::WAITING).store(0, Relaxed);
        while ring.used_bytes() <= ring.bytes() / MUCH {
            assert_eq!(feed.came(), Came::Little);
            write();
        }
        assert_eq!(feed.came(), Came::Much);
        while feed.fetch() != Fetched::Empty {}
        assert_eq!(feed.came(), Came::Nothing);
    }

    #[test]
    fn an_end_that_is_farther_away_than_the_ring_is_long_is_corrupt() {
        let (memory, file) = RingMemory::new(MIN_RING_WORDS).expect("memory");
        let client = RingMemory::of(&file, MIN_RING_WORDS).expect("memory");
        let ring = client.ring().expect("a ring");
        let mut feed = Feed::new(memory);
        let write = ring.header(header::WRITE);
        write.store(u64::MAX / 2, Relaxed);
        feed.end_here();
        // From here on the client could be honest, and be read for ever.
        write.store(0, Relaxed);
        let space = ring.take(Kind::Free, free::WORDS).expect("there is space");
        space.complete();
        assert_eq!(feed.fetch(), Fetched::End);
        assert!(feed.told().is_corrupt);
        // An end before the position of the reader is corrupt, too.
        let (memory, file) = RingMemory::new(MIN_RING_WORDS).expect("memory");
        let client = RingMemory::of(&file, MIN_RING_WORDS).expect("memory");
        let ring = client.ring().expect("a ring");
        let mut feed = Feed::new(memory);
        let space = ring.take(Kind::Free, free::WORDS).expect("there is space");
        space.complete();
        assert_eq!(feed.fetch(), Fetched::Record(Kind::Free));
        ring.header(header::WRITE).store(0, Relaxed);
        feed.end_here();
        assert_eq!(feed.fetch(), Fetched::End);
        assert!(feed.told().is_corrupt);
    }
}
