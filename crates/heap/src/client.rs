//! A process that is profiled.
//!
//! The `handshake` makes it, and `thread` gives it turns until the process or the session ends. Dropping it tells the client
//! that nothing more is read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferretto_profile::interning::Edition;
use ferretto_profile::stacks::{Met, Program};
use rustix::time::{ClockId, clock_gettime};

use crate::collector::Who;
use crate::dump::Header;
use crate::feed::{Feed, Told};
use crate::memory::RingMemory;
use crate::profile::Heap;
use crate::sessions::Claim;

/// When a client has arrived, on the clock of allocations: `CLOCK_MONOTONIC_COARSE`, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived(pub u64);

impl Arrived {
    /// Now.
    pub(crate) fn now() -> Arrived {
        Arrived(coarse_now())
    }
}

fn coarse_now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Client {
    claim: Claim,
    /// Readable when the process has ended.
    process: OwnedFd,
    /// Until the collector has it.
    pub(crate) met: Option<Met>,
    /// The records that its ring has brought.
    pub feed: Feed,
    /// The statements of dumps about it.
    pub(crate) about: About,
    program: Option<Program>,
    /// Its call stacks have numbers apart from those of an earlier process with the same id.
    pub(crate) edition: Edition,
}

/// The statements of dumps about a client, besides its records.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The process.
    pub pid: i32,
    /// When it has arrived.
    pub arrived: Arrived,
    /// Whether it was profiled from its start.
    pub from_startup: bool,
    /// Why nothing more is expected.
    pub ending: Option<Ending>,
}

/// Why nothing more is expected of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process has ended. Nobody completes what it has left.
    Dead,
    /// The process runs another program.
    Replaced,
    /// The client has given up, and says why.
    GivenUp,
}

impl Client {
    /// The client of a process that was claimed.
    pub(crate) fn new(
        claim: Claim,
        process: OwnedFd,
        met: Met,
        memory: RingMemory,
        arrived: Arrived,
        from_startup: bool,
    ) -> Client {
        Client {
            program: met.program().cloned(),
            about: About {
                pid: claim.pid(),
                arrived,
                from_startup,
                ending: None,
            },
            feed: Feed::of_user(claim.user(), memory),
            claim,
            process,
            met: Some(met),
            edition: Edition::default(),
        }
    }

    /// The session's claim to it.
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The process.
    pub(crate) fn pid(&self) -> i32 {
        self.claim.pid()
    }

    /// How its stacks are found and numbered.
    pub(crate) fn who(&self) -> Who {
        Who {
            pid: self.pid(),
            edition: self.edition,
        }
    }

    /// Ends the client. The daemon still reads the records that are in the ring now.
    pub(crate) fn end(&mut self, ending: Ending) {
        self.about.ending.get_or_insert(ending);
        self.feed.end_here();
    }

    /// Whether the process runs another program by now.
    pub(crate) fn is_replaced(&self) -> bool {
        let now = Program::of(self.pid());
        now.is_some() && self.program.is_some() && now != self.program
    }
}

impl About {
    /// The header of a dump of one of its heaps. Dumps cover the time from where the last one ended.
    pub fn header(&self, told: &Told, heap: &Heap, until: u64) -> Header {
        let start = heap.told_until.unwrap_or(self.arrived.0);
        Header {
            pid: self.pid,
            from_startup: self.from_startup,
            disconnected: self.ending.is_some() || told.is_corrupt,
            buffer_corrupted: told.is_corrupt,
            hit_guardrail: false,
            timed_out: told.timed_out,
            out_of_reach: told.out_of_reach,
            heap_name: heap.name.clone(),
            interval: heap.interval,
            first_interval: heap.first_interval,
            // Clients may say any time.
            covers: start..until.min(coarse_now()).max(start),
            stats: told.stats,
            waited: told.waited,
            losses: told.losses,
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}
