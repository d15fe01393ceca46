//! Moves events from the kernel's buffers into each session's sink, in turns.
//!
//! A turn takes about `TURN`, however many CPUs there are. It reads one buffer after the other, and the next turn continues where it ended.
//! A flush takes as many turns as it needs to read each buffer as far as it was filled when the flush began. After `LONGEST_FLUSH` it ends
//! unfinished.

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::ftrace_stats::Phase;

use super::{FtraceController, Instance, Session, SessionSinks, SymbolsWanted, Weight};
use crate::ftrace::bundle::{BundleWriter, ClockSnapshot, CpuRead, SymbolSource};
use crate::ftrace::control::FtraceSessionId;
use crate::ftrace::kallsyms::KernelSymbols;
use crate::ftrace::reader::{ASSUMED_PAGES, BATCH_PAGES, Batch, BatchEnd};
use crate::ftrace::stats::FtraceStats;
use crate::ftrace::table::Table;
use crate::ftrace::watch::Depth;
use crate::metatrace::{Counter, Event, count, span};
use ferretto_client::runtime::probe::BootTime;
use ferretto_ipc::reactor::boot_now;
use rustix::io::Errno;

/// How long a turn may take: the producer's socket waits meanwhile.
pub(super) const TURN: BootTime = 20_000_000;
/// How long a flush may take. Services wait for five seconds, unless a config says otherwise, and have other producers to hear from.
const LONGEST_FLUSH: BootTime = 3_000_000_000;
/// Most pages taken from one CPU in a turn: 1 MiB, some 2 ms of work.
const MOST_PAGES_PER_TURN: usize = 256;

/// Identifies a flush of one session. No two flushes have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlushId(u64);

/// Whether the kernel has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    CaughtUp,
    MoreToRead,
}

/// The part of one CPU's buffer that a flush still has to read.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// Pages that are left to read, at most: when the flush began, there was no more than one buffer's worth.
    pages: usize,
    looked_again: bool,
}

impl Rest {
    /// Whether the flush has read all of the buffer after `batch`.
    fn ends_with(&mut self, batch: &Batch<'_>) -> bool {
        self.pages = self.pages.saturating_sub(batch.count);
        match batch.end {
            BatchEnd::Limit => self.pages == 0,
            // A mostly empty page may have a successor: the kernel ends a page early when an event does not fit, and that event fills most
            // of the next page. If the second look again gives one mostly empty page, the kernel is writing there now. Reading on would
            // then record little but this reading itself, if system calls are recorded.
            BatchEnd::CaughtUp if batch.count > usize::from(self.looked_again) => {
                self.looked_again = true;
                self.pages == 0
            }
            _ => true,
        }
    }
}

/// A flush that has begun.
#[derive(Debug)]
pub(super) struct Flush {
    id: FlushId,
    session: FtraceSessionId,
    depth: Depth,
    until: BootTime,
    /// By CPU, without the CPUs of which the flush has read all.
    rests: BTreeMap<u32, Rest>,
}

/// Why a turn stopped reading one CPU's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CpuEnd {
    CaughtUp,
    /// The buffer had its share of the turn.
    Limit,
    /// The turn is over.
    OutOfTime,
}

/// The parts of the controller that are needed to give a batch to all sessions.
struct Decoder<'a> {
    sessions: &'a mut BTreeMap<FtraceSessionId, Session>,
    bundles: &'a mut BundleWriter,
    symbols: Option<&'a KernelSymbols>,
    sinks: &'a mut dyn SessionSinks,
}

impl FtraceController {
    /// Takes a bounded amount of the kernel's events and writes it to each session's sink. Continues flushes that have begun.
    pub(crate) fn drain(&mut self, now: BootTime, sinks: &mut dyn SessionSinks) {
        let _span = span(Event::FtraceReadTick);
        let names = self.started_instances();
        let mut progress = Progress::CaughtUp;
        for name in &names {
            if self.drain_watched(name, names.len(), now, sinks) == Progress::MoreToRead {
                progress = Progress::MoreToRead;
            }
            if let (Some(watermarks), Some(instance)) = (&self.watermarks, self.instances.get_mut(name)) {
                instance.watch_reported_again(watermarks);
            }
        }
        self.plan_next_drain(now, progress);
    }

    /// As [`FtraceController::drain`], but only for instances with a buffer that has filled up. To be called when [`Watermarks`] are
    /// readable; by now the buffer may have been drained.
    ///
    /// [`Watermarks`]: crate::ftrace::watermarks::Watermarks
    pub(crate) fn drain_past_watermark(&mut self, now: BootTime, sinks: &mut dyn SessionSinks) {
        let Some(watermarks) = &self.watermarks else {
            return;
        };
        let _span = span(Event::FtraceCpuBufferWatermark);
        let mut full = Vec::new();
        watermarks.take_full(&mut full);
        let mut names = Vec::new();
        for (name, instance) in &mut self.instances {
            let of_it = full.iter().filter(|buffer| buffer.instance == instance.serial);
            let before = instance.reported.len();
            instance.reported.extend(of_it.map(|buffer| buffer.cpu));
            if instance.reported.len() > before {
                names.push(name.clone());
            }
        }
        for name in &names {
            if self.drain_watched(name, names.len(), now, sinks) == Progress::MoreToRead {
                self.plan_next_drain(now, Progress::MoreToRead);
            }
        }
    }

    /// Begins to write out the statistics and everything that was recorded for the session until now, including partly filled pages. Other
    /// sessions of the same instance get their events from the same reads. [`FtraceController::take_flushed`] tells when the flush is over.
    /// Until then each [`FtraceController::drain`] continues it, and after three seconds it ends in any case.
    pub(crate) fn flush(
        &mut self,
        id: FtraceSessionId,
        now: BootTime,
        sinks: &mut dyn SessionSinks,
    ) -> FlushId {
        self.begin_flush(id, Depth::Regular, now, sinks)
    }

    /// The last flush of a session, before [`FtraceController::stop_session`].
    pub(crate) fn flush_last(
        &mut self,
        id: FtraceSessionId,
        now: BootTime,
        sinks: &mut dyn SessionSinks,
    ) -> FlushId {
        self.begin_flush(id, Depth::Whole, now, sinks)
    }

    fn begin_flush(
        &mut self,
        session: FtraceSessionId,
        depth: Depth,
        now: BootTime,
        sinks: &mut dyn SessionSinks,
    ) -> FlushId {
        let _span = span(Event::FtraceCpuFlush);
        self.last_flush += 1;
        let id = FlushId(self.last_flush);
        let name = self
            .sessions
            .get(&session)
            .map(|session| session.instance.clone());
        let Some(name) = name.filter(|name| self.has_started(name, session)) else {
            // The session has recorded nothing.
            self.flushed.push(id);
            return id;
        };
        self.look_at_settings(&name, depth, now);
        if let Some(instance) = self.instances.get_mut(&name) {
            let pages = match instance.control.buffer_pages() {
                0 => ASSUMED_PAGES,
                pages => pages as usize,
            };
            let rest = Rest {
                pages,
                looked_again: false,
            };
            instance.flushes.push(Flush {
                id,
                session,
                depth,
                until: now + LONGEST_FLUSH,
                rests: instance
                    .buffers
                    .iter()
                    .map(|buffer| (buffer.cpu(), rest))
                    .collect(),
            });
        }
        if self.drain_instance(&name, 1, now, sinks) == Progress::MoreToRead {
            self.plan_next_drain(now, Progress::MoreToRead);
        }
        id
    }

    /// The flushes that have ended since the last call.
    pub(crate) fn take_flushed(&mut self) -> Vec<FlushId> {
        std::mem::take(&mut self.flushed)
    }

    fn has_started(&self, instance: &str, session: FtraceSessionId) -> bool {
        self.instances
            .get(instance)
            .is_some_and(|instance| instance.started.contains(&session))
    }

    fn started_instances(&self) -> Vec<String> {
        let started = self
            .instances
            .iter()
            .filter(|(_, instance)| !instance.started.is_empty());
        started.map(|(name, _)| name.clone()).collect()
    }

    fn drain_watched(
        &mut self,
        name: &str,
        instances: usize,
        now: BootTime,
        sinks: &mut dyn SessionSinks,
    ) -> Progress {
        let Some(instance) = self.instances.get_mut(name) else {
            return Progress::CaughtUp;
        };
        let depth = instance.depth_of_drain(now);
        if let (Some(watermarks), true) = (&self.watermarks, depth != Depth::Quick) {
            instance.watch_buffers(watermarks);
        }
        // A drain that goes on has looked when it began, at most a regular look's time ago.
        if depth != Depth::Quick || instance.progress == Progress::CaughtUp {
            self.look_at_settings(name, depth, now);
        }
        let progress = self.drain_instance(name, instances, now, sinks);
        self.look_at_buffers(name, depth, now);
        progress
    }

    /// Drains one instance. `instances` is the number of instances that share the turn.
    fn drain_instance(
        &mut self,
        name: &str,
        instances: usize,
        now: BootTime,
        sinks: &mut dyn SessionSinks,
    ) -> Progress {
        let Some(instance) = self.instances.get_mut(name) else {
            return Progress::CaughtUp;
        };
        let until = boot_now() + self.turn / instances.max(1) as BootTime;
        let mut decoder = Decoder {
            sessions: &mut self.sessions,
            bundles: &mut self.bundles,
            symbols: self.symbols.as_ref(),
            sinks,
        };
        let mut failed = Vec::new();
        let mut progress = instance.take_turn(until, &mut decoder, &mut failed);
        instance.progress = progress;
        decoder.collect_threads(instance);
        if let Some(watermarks) = &self.watermarks {
            instance.watch_emptied_again(watermarks);
        }
        for (cpu, errno) in failed {
            let text = format!(
                "The kernel's buffer of CPU {cpu} cannot be read ({errno}): its events are missing from the trace."
            );
            self.tell_sessions(name, now, Weight::Trouble, &text);
        }
        if self.end_flushes(name, now, sinks) > 0 {
            progress = Progress::MoreToRead;
        }
        progress
    }

    /// Ends the instance's flushes that have read everything or whose time is over. Returns the number of flushes that continue.
    fn end_flushes(&mut self, name: &str, now: BootTime, sinks: &mut dyn SessionSinks) -> usize {
        let Some(instance) = self.instances.get_mut(name) else {
            return 0;
        };
        let time = now.max(boot_now());
        let is_over = |flush: &Flush| flush.rests.is_empty() || flush.until <= time;
        let flushes = std::mem::take(&mut instance.flushes);
        let (over, going_on): (Vec<Flush>, Vec<Flush>) = flushes.into_iter().partition(is_over);
        let left = going_on.len();
        instance.flushes = going_on;
        for flush in over {
            if !flush.rests.is_empty() {
                let consequence = match flush.depth {
                    Depth::Whole => "their last events are missing from the trace",
                    _ => "their contents come later",
                };
                let text = format!(
                    "A flush of ftrace took too long and ended before the buffers of {} CPUs were empty: {consequence}.",
                    flush.rests.len()
                );
                self.tell_sessions(name, now, Weight::Trouble, &text);
            }
            self.look_at_buffers(name, flush.depth, now);
            self.write_stats(flush.session, sinks);
            self.flushed.push(flush.id);
        }
        left
    }

    fn write_stats(&mut self, id: FtraceSessionId, sinks: &mut dyn SessionSinks) {
        let stats_now = self.read_stats(id);
        let (Some(session), Some(sink)) = (self.sessions.get(&id), sinks.sink(id)) else {
            return;
        };
        // Readers heed troubles in the first phase only.
        let stats_at_start = FtraceStats {
            troubles: session.troubles.clone(),
            ..session.stats_at_start.clone()
        };
        let phases = [
            (Phase::START_OF_TRACE, &stats_at_start),
            (Phase::END_OF_TRACE, &stats_now),
        ];
        for (phase, stats) in phases {
            self.packet.clear();
            stats.encode(phase, session.decoding.parse_errors(), &mut self.packet);
            sink.write_packet(self.packet.as_slice());
        }
    }

    /// Ends the flushes of a session that has ended.
    pub(super) fn give_up_flushes(&mut self, session: FtraceSessionId) {
        for instance in self.instances.values_mut() {
            instance.flushes.retain(|flush| {
                let goes_on = flush.session != session;
                if !goes_on {
                    self.flushed.push(flush.id);
                }
                goes_on
            });
        }
    }
}

impl Instance {
    /// Reads one buffer after the other until each has had its share or the time is over; reads at least one batch. Adds CPUs that cannot
    /// be read to `failed`, each only the first time.
    fn take_turn(
        &mut self,
        until: BootTime,
        decoder: &mut Decoder<'_>,
        failed: &mut Vec<(u32, Errno)>,
    ) -> Progress {
        let clock = self.clock_snapshot();
        let count = self.buffers.len();
        for index in (0..count)
            .cycle()
            .skip(self.next_buffer % count.max(1))
            .take(count)
        {
            let cpu = self.buffers[index].cpu();
            // A flush must not wait for events that were recorded after it began.
            let is_wanted = |flush: &Flush| flush.rests.contains_key(&cpu);
            if !self.flushes.is_empty() && !self.flushes.iter().any(is_wanted) {
                continue;
            }
            self.next_buffer = index + 1;
            match self.read_buffer(index, clock, until, decoder, failed) {
                CpuEnd::CaughtUp => self.caught_up += 1,
                CpuEnd::Limit => self.caught_up = 0,
                CpuEnd::OutOfTime => {
                    self.caught_up = 0;
                    break;
                }
            }
            if self.caught_up >= count {
                break;
            }
            if boot_now() >= until {
                break;
            }
        }
        if self.caught_up < count {
            return Progress::MoreToRead;
        }
        self.caught_up = 0;
        Progress::CaughtUp
    }

    fn read_buffer(
        &mut self,
        index: usize,
        clock: Option<ClockSnapshot>,
        until: BootTime,
        decoder: &mut Decoder<'_>,
        failed: &mut Vec<(u32, Errno)>,
    ) -> CpuEnd {
        let _span = span(Event::FtraceCpuReadCycle);
        let buffer = &self.buffers[index];
        let cpu = buffer.cpu();
        let page_size = self.table.layout().page_size();
        let rests = |flushes: &[Flush]| -> Option<usize> {
            let rests = flushes.iter().filter_map(|flush| flush.rests.get(&cpu));
            rests.map(|rest| rest.pages).max()
        };
        let mut share = match rests(&self.flushes) {
            Some(_) => 0,
            None => MOST_PAGES_PER_TURN,
        };
        loop {
            let wanted = rests(&self.flushes).unwrap_or(share);
            let _span = span(Event::FtraceCpuReadBatch);
            let batch = buffer.read(&mut self.pool, wanted.min(BATCH_PAGES));
            count(Counter::FtracePagesDrained, batch.count);
            let read = CpuRead {
                cpu,
                pages: batch.pages,
                page_size,
                clock,
            };
            let records = decoder.decode(&self.table, &self.started, &read, &batch);
            if let Some(watch) = &mut self.watch {
                watch.read_here(cpu, records);
            }
            match batch.end {
                BatchEnd::Failed(errno) if self.unreadable.insert(cpu) => failed.push((cpu, errno)),
                BatchEnd::Failed(_) => {}
                _ if batch.count > 0 => {
                    self.unreadable.remove(&cpu);
                    self.emptied.extend(self.reported.take(&cpu));
                }
                _ => {}
            }
            let mut is_flushing = false;
            for flush in &mut self.flushes {
                if let Some(rest) = flush.rests.get_mut(&cpu) {
                    match rest.ends_with(&batch) {
                        true => {
                            flush.rests.remove(&cpu);
                        }
                        false => is_flushing = true,
                    }
                }
            }
            share = match batch.end {
                BatchEnd::Limit => share.saturating_sub(batch.count),
                _ => 0,
            };
            if share == 0 && !is_flushing {
                return match batch.end {
                    BatchEnd::Limit => CpuEnd::Limit,
                    _ => CpuEnd::CaughtUp,
                };
            }
            if boot_now() >= until {
                return CpuEnd::OutOfTime;
            }
        }
    }
}

impl Decoder<'_> {
    /// Gives the pages of a batch to all sessions that have `started`. Returns the number of events in the pages, if that is known.
    fn decode(
        &mut self,
        table: &Table,
        started: &BTreeSet<FtraceSessionId>,
        read: &CpuRead<'_>,
        batch: &Batch<'_>,
    ) -> Option<u64> {
        let read_error = batch.end.parse_error();
        // All sessions see the same number of events. It is unknown if no session has a sink any more.
        let mut records = (batch.count == 0).then_some(0);
        for id in started {
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            if let Some(status) = read_error {
                session.decoding.add_parse_error(status);
            }
            let symbols = match session.symbols {
                SymbolsWanted::No => None,
                _ => self.symbols.map(|symbols| symbols as &dyn SymbolSource),
            };
            if batch.count > 0
                && let Some(sink) = self.sinks.sink(*id)
            {
                let decoding = &mut session.decoding;
                records = self.bundles.encode(table, decoding, read, symbols, sink);
            }
        }
        // The kernel also counts pages as read that it could not hand over.
        records.filter(|_| read_error.is_none())
    }

    /// Keeps the threads and files that the sessions of `instance` have seen in this turn.
    fn collect_threads(&mut self, instance: &Instance) {
        for id in &instance.started {
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let metadata = session.decoding.metadata_mut();
            session.threads.seen.extend(metadata.threads());
            session.threads.renamed.extend(metadata.renamed_threads());
            session.threads.opened_files.extend(metadata.opened_fds());
            session.threads.files.extend(metadata.files());
            metadata.clear();
        }
    }
}
