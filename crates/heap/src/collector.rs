//! One instance's work on records: from the rings of clients to books, and from books to dumps.
//!
//! `thread` gives it turns. It unwinds each allocation at once, while the process has the mappings that its stack is of. Work is bounded:
//! that of a sample by [`Stacks`], that of a turn by its caller. Memory is bounded for each client, each user (`shares`) and all together: live allocations, call stacks and
//! what these refer to. It counts samples and stacks without room.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use ferretto_client::runtime::probe::PacketSink;
use ferretto_heap_client::LIBRARY_FILE;
use ferretto_profile::config::UserFrames;
use ferretto_profile::interning::{CallstackId, Edition, Growth, Interning, Limits, Mapping};
use ferretto_profile::left_out::LeftOut;
use ferretto_profile::stacks::{Found, Met, Stacks};

use crate::config::{HeapConfig, Recorded};
use crate::dump::{Dump, Header, Output, Step};
use crate::feed::{Feed, Fetched, Told};
use crate::profile::{Heap, Profile};
use crate::records::{Allocation, Record};
use crate::room::Users;
use crate::shares::{Share, Shares};

/// Live allocations of one client: some 100 MB.
const MOST_LIVE_OF_CLIENT: usize = 1 << 21;

/// Live allocations of all clients of an instance.
const MOST_LIVE: usize = 1 << 23;

/// Bytes of interned data that one client may cause.
const MOST_INTERNED_OF_CLIENT: usize = 96 << 20;

/// The name of the call stack that all without room count as.
pub(crate) const TOO_MANY: &str = "too many call stacks";

/// The name of the call stack of allocations that came too late to be unwound.
const NOT_UNWOUND: &str = "not unwound: the recording ended";

/// The name of the call stack of allocations of a process that was gone, as upstream names errors.
const GONE: &str = "ERROR SYSTEM_CALL: the process has ended";

/// Files whose frames do not lead a stack: the client's library.
const OWN_FILES: &[&str] = &[LIBRARY_FILE];

/// Symbols that do not lead a stack: the client in a program, and the functions through which programs in Rust reach their allocator.
const OWN_SYMBOLS: &[&str] = &[
    "ferretto_heap_client",
    "__rust_alloc",
    "__rust_realloc",
    "__rust_dealloc",
    "__rg_alloc",
    "__rg_realloc",
    "__rg_dealloc",
];

/// Forgotten call stacks are worth looking for unless there are fewer.
const WORTH_FORGETTING: usize = 1 << 14;

/// See the [module](self).
#[derive(Debug)]
pub struct Collector {
    recorded: Recorded,
    stacks: Stacks,
    interning: Interning,
    output: Output,
    unwinding: Unwinding,
    /// Live allocations of all clients.
    live: usize,
    shares: Shares,
    /// Call stacks of clients that have ended. Some of them are also those of others.
    forgettable: usize,
    /// Bytes of interned data that one client may cause.
    most_interned_of_client: usize,
}

/// Whether there is time to unwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwinding {
    /// There is.
    InTime,
    /// Allocations count as one call stack.
    TooLate,
}

/// Whose samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// The process.
    pub pid: i32,
    /// See [`Interning::set_edition`].
    pub edition: Edition,
}

/// The result of a try to enter a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It is in the books.
    Record,
    /// There is none for now.
    Nothing,
    /// The next one is not complete yet.
    Incomplete,
    /// There will be no more.
    End,
}

impl Collector {
    /// Nothing has come so far.
    pub fn new(config: &HeapConfig) -> Collector {
        let left_out = LeftOut {
            leading_files: OWN_FILES,
            leading_symbols: OWN_SYMBOLS,
            nameless: config.nameless.clone(),
        };
        Collector {
            recorded: config.recorded,
            stacks: Stacks::without(UserFrames::Dwarf, left_out),
            interning: Interning::with_overflow(Limits::HEAP_PROFILE, TOO_MANY),
            output: Output::new(config.recorded),
            unwinding: Unwinding::InTime,
            live: 0,
            shares: Shares::new(
                Users::of_this_daemon(),
                Share {
                    live: MOST_LIVE,
                    interned: Limits::HEAP_PROFILE,
                },
            ),
            forgettable: 0,
            most_interned_of_client: MOST_INTERNED_OF_CLIENT,
        }
    }

    /// Whether allocations are unwound.
    pub(crate) fn unwinding(&self) -> Unwinding {
        self.unwinding
    }

    /// Whether later allocations are unwound.
    pub(crate) fn set_unwinding(&mut self, unwinding: Unwinding) {
        self.unwinding = unwinding;
    }

    /// Processes may have changed their mappings unnoticed.
    pub(crate) fn distrust_mappings(&mut self) {
        self.stacks.distrust();
    }

    /// Has everything that later packets refer to repeated.
    pub(crate) fn clear_incremental_state(&mut self) {
        self.output.clear_incremental_state();
    }

    /// A client has arrived: stacks of this process are looked up in it, whatever has its id by then.
    pub(crate) fn meet(&mut self, pid: i32, met: Met) {
        self.stacks.meet(pid, met);
    }

    /// Reads one record and enters it.
    pub fn enter(&mut self, who: Who, feed: &mut Feed, sink: &mut dyn PacketSink) -> Entered {
        let kind = match feed.fetch() {
            Fetched::Record(kind) => kind,
            Fetched::Empty => return Entered::Nothing,
            Fetched::Incomplete => return Entered::Incomplete,
            Fetched::End => return Entered::End,
        };
        let mut profile = std::mem::take(&mut feed.profile);
        let before = profile.live();
        let is_sound = match Record::parse(kind, feed.payload()) {
            Some(record) => {
                let (bytes, known) = (self.interning.memory_bytes(), self.interning.known());
                self.enter_record(who, &record, &mut profile, feed, sink);
                feed.interned_bytes += self.interning.memory_bytes() - bytes;
                let caused = self.interning.known().with(known, usize::saturating_sub);
                self.shares.charge(feed.user, caused, before, profile.live());
                true
            }
            None => false,
        };
        self.live = self.live + profile.live() - before;
        feed.profile = profile;
        match is_sound {
            true => Entered::Record,
            false => {
                feed.give_up();
                Entered::End
            }
        }
    }

    /// Whether a client may cause more interned data.
    fn growth_of(&self, feed: &Feed) -> Growth {
        match feed.interned_bytes < self.most_interned_of_client && self.shares.may_grow(feed.user) {
            true => Growth::Allowed,
            false => Growth::Refused,
        }
    }

    /// Enters a record of a client with this profile, which is not in its feed meanwhile.
    fn enter_record(
        &mut self,
        who: Who,
        record: &Record<'_>,
        profile: &mut Profile,
        feed: &Feed,
        sink: &mut dyn PacketSink,
    ) {
        match record {
            Record::Heap { heap, interval, name } => profile.announce(*heap, *interval, name),
            Record::Free { address, heap } if self.recorded == Recorded::Stream => {
                self.output.stream_free(*heap, *address, sink);
            }
            Record::Free { address, heap } => profile.free(*heap, *address),
            Record::Allocation(allocation) if self.recorded == Recorded::Stream => {
                profile.stats.samples += 1;
                self.output.stream_allocation(allocation, sink);
            }
            Record::Allocation(allocation) => {
                self.interning.set_growth(self.growth_of(feed));
                self.interning.set_edition(who.edition);
                let stack = self.stack_of(who.pid, allocation, profile);
                if self.interning.overflow() == Some(stack) {
                    profile.losses.merged += 1;
                }
                let room = MOST_LIVE.saturating_sub(self.live);
                let room = room.min(self.shares.room_for_live(feed.user));
                let most_live = profile.live().saturating_add(room).min(MOST_LIVE_OF_CLIENT);
                profile.allocate(allocation, stack, most_live);
            }
        }
    }

    fn stack_of(&mut self, pid: i32, allocation: &Allocation<'_>, profile: &mut Profile) -> CallstackId {
        if self.unwinding == Unwinding::TooLate {
            profile.losses.not_unwound += 1;
            return self.named(NOT_UNWOUND);
        }
        let (began, refreshes) = (Instant::now(), self.stacks.refreshes());
        let found = self.stacks.find(&allocation.sample(pid), &mut self.interning);
        profile.stats.map_reparses += self.stacks.refreshes() - refreshes;
        profile.stats.add(began.elapsed());
        match found {
            Found::Stack(unwound) => {
                profile.stats.unwinding_errors += u64::from(unwound.error.is_some());
                unwound.callstack
            }
            Found::Skipped(_) => {
                profile.stats.unwinding_errors += 1;
                self.named(GONE)
            }
        }
    }

    /// The call stack of one function with this name.
    fn named(&mut self, name: &str) -> CallstackId {
        let nowhere = self.interning.mapping(&Mapping::default());
        let frame = self.interning.frame(nowhere, name.as_bytes(), 0);
        self.interning.callstack(&[frame])
    }

    /// The present holdings of a client's heaps. `header` makes the rest of each dump, with the end of the time that the dump covers.
    pub fn dumps(&self, feed: &mut Feed, header: impl Fn(&Told, &Heap, u64) -> Header) -> Vec<Dump> {
        if self.recorded == Recorded::Stream {
            return Vec::new();
        }
        let told = feed.told();
        let heaps = feed.profile.heaps().values_mut();
        let dumps = heaps.map(|heap| {
            let until = match self.recorded {
                Recorded::Maximum => heap.books.most_held_time(),
                Recorded::Totals | Recorded::Stream => heap.books.last_time(),
            };
            let header = header(&told, heap, until);
            heap.told_until = Some(header.covers.end);
            Dump::new(header, heap.books.tell(self.recorded))
        });
        dumps.collect()
    }

    /// The accounts of these clients may have been lost on the way to readers: the next dumps tell all of it again.
    pub(crate) fn tell_again<'a>(&self, feeds: impl Iterator<Item = &'a mut Feed>) {
        for feed in feeds {
            feed.profile
                .heaps()
                .values_mut()
                .for_each(|heap| heap.books.tell_again());
        }
    }

    /// Writes one packet more of a dump.
    pub fn write(&mut self, dump: &mut Dump, sink: &mut dyn PacketSink) -> Step {
        self.output.step(dump, &mut self.interning, sink)
    }

    /// Tells that these processes are profiled by another session.
    pub(crate) fn write_rejected(&mut self, pids: impl IntoIterator<Item = i32>, sink: &mut dyn PacketSink) {
        self.output.rejected(pids, &mut self.interning, sink);
    }

    /// A client has ended. If its process has too, or runs another program, later samples with its id are of another one.
    pub(crate) fn forget(&mut self, pid: i32, feed: &Feed) {
        self.live -= feed.profile.live();
        self.shares
            .charge(feed.user, Limits::default(), feed.profile.live(), 0);
        self.forgettable += feed.profile.stacks().count();
        self.stacks.forget_process(pid);
    }

    /// Whether call stacks should be forgotten that nobody needs any more.
    pub(crate) fn should_forget_stacks(&self) -> bool {
        self.forgettable > WORTH_FORGETTING.max(self.interning.callstacks() / 2)
    }

    /// Forgets call stacks if the limit of all is reached, so that new ones get no number, or if a client comes near to its share.
    pub(crate) fn make_room<'a>(
        &mut self,
        feeds: impl Iterator<Item = &'a mut Feed>,
        dumps: impl Iterator<Item = &'a Dump>,
    ) {
        let mut feeds: Vec<&mut Feed> = feeds.collect();
        // Clients of a user without room for more may have ended.
        let is_worth_it = self.forgettable > WORTH_FORGETTING && self.shares.is_any_full();
        if self.interning.is_full() || is_worth_it || feeds.iter_mut().any(|feed| self.is_crowded(feed)) {
            self.forget_stacks(feeds.into_iter(), dumps);
        }
    }

    /// Whether a client has used up three quarters of its share, and an eighth of its call stacks can be forgotten. So looking at all of them is paid for by
    /// as many new ones.
    fn is_crowded(&self, feed: &mut Feed) -> bool {
        self.is_near_its_share(feed)
            && is_an_eighth(feed, |heap| {
                heap.books.stacks().len() - heap.books.unsettled().count()
            })
    }

    /// Whether a client is to be dumped before its time: it has used up three quarters of its share, and once readers are told, an eighth of its call stacks can
    /// be forgotten. Without that, new ones would soon count as one. Readers of totals add up whatever dumps there are; those of maxima do not all.
    pub(crate) fn wants_dump(&self, feed: &mut Feed) -> bool {
        self.recorded == Recorded::Totals
            && self.is_near_its_share(feed)
            && is_an_eighth(feed, |heap| heap.books.empty_untold())
    }

    fn is_near_its_share(&self, feed: &Feed) -> bool {
        feed.interned_bytes >= self.most_interned_of_client / 4 * 3 || !self.shares.may_grow(feed.user)
    }

    /// Forgets call stacks that are neither in the books of a client nor in a dump that is yet to be written.
    pub(crate) fn forget_stacks<'a>(
        &mut self,
        feeds: impl Iterator<Item = &'a mut Feed>,
        dumps: impl Iterator<Item = &'a Dump>,
    ) {
        let mut feeds: Vec<&mut Feed> = feeds.collect();
        let mut in_use: HashSet<CallstackId> = HashSet::new();
        let in_dumps = dumps.flat_map(|dump| &dump.accounts);
        in_use.extend(in_dumps.map(|account| account.stack));
        for feed in &mut feeds {
            let heaps = feed.profile.heaps().values();
            in_use.extend(heaps.flat_map(|heap| heap.books.unsettled()));
        }
        for feed in &mut feeds {
            for heap in feed.profile.heaps().values_mut() {
                heap.books.forget_settled(&in_use);
            }
        }
        self.interning.retain(|stack| in_use.contains(&stack));
        self.stacks.forget_numbers();
        self.forgettable = 0;
        // Each client is charged for its share of the stacks that are kept, and never for more than it has caused.
        let kept = self.interning.memory_bytes() as u128;
        let stacks = feeds
            .iter()
            .map(|feed| feed.profile.stacks().count())
            .sum::<usize>();
        for feed in &mut feeds {
            let share = kept * feed.profile.stacks().count() as u128 / stacks.max(1) as u128;
            feed.interned_bytes = feed.interned_bytes.min(share as usize);
        }
        let mut stacks_of_users = HashMap::new();
        for feed in &feeds {
            *stacks_of_users.entry(feed.user).or_default() += feed.profile.stacks().count();
        }
        self.shares.keep(self.interning.known(), &stacks_of_users);
    }
}

/// Whether there are so many of a client's call stacks.
fn is_an_eighth(feed: &mut Feed, count: impl Fn(&Heap) -> usize) -> bool {
    let heaps = feed.profile.heaps().values();
    let (all, counted) = heaps.fold((0, 0), |(all, counted), heap| {
        (all + heap.books.stacks().len(), counted + count(heap))
    });
    counted > all / 8
}

#[cfg(test)]
mod tests;
