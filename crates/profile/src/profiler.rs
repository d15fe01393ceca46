//! One instance's work: from the rings of all CPUs to packets, in turns.
//!
//! [`thread`](crate::thread) gives it turns. A turn reads what is in the rings. It unwinds samples where they are for the first 5 ms, copies later ones
//! into the [`Queue`], and begins with none of the queue after 10 ms. A single sample whose files have to be read can take longer.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use ferretto_client::runtime::probe::PacketSink;
use ferretto_ipc::reactor::boot_now;
use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::messages::perf_sample::producer_event::{CpuEvent, DataSourceStopReason};
use perf_event_open_sys::bindings as sys;

use crate::config::{Counted, Interval, Mode, PerfConfig, Sampling, Stacks as StacksConfig, UserFrames};
use crate::cpu::CpuEvents;
use crate::ends::{Ends, Look};
use crate::output::Output;
use crate::queue::{Item, OwnedMapped, OwnedSample, Queue};
use crate::record::{Record, Sample};
use crate::scope::{ProcessFilter, cmdline_of};
use crate::stacks::{Found, Stacks};

/// Samples are unwound where they are for so long, in each turn.
const IN_PLACE: Duration = Duration::from_millis(5);

/// A turn ends after this time.
const TURN: Duration = Duration::from_millis(10);

/// So many threads have to start before their number says anything.
const FEWEST_STARTS: u64 = 32;

/// Samples of a counted process for each thread that starts in it, at least. A thread loses half a sample, on average, before its first one.
const SAMPLES_PER_START: u64 = 32;

/// How far a turn came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// To the end of all rings.
    CaughtUp,
    /// Records wait.
    MoreToDo,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Profiler {
    cpus: Vec<CpuEvents>,
    /// CPUs that the config asks for, but whose events could not be opened.
    unavailable: BTreeSet<u32>,
    /// A CPU that came online.
    joined: Option<u32>,
    samples: Samples,
    output: Output,
    counts: Vec<u64>,
}

/// The state for samples, apart from the rings, so that a record in a ring can be handled.
#[derive(Debug)]
struct Samples {
    /// `None` if samples have no stacks.
    stacks: Option<(StacksConfig, Stacks)>,
    filter: ProcessFilter,
    verdicts: foldhash::HashMap<i32, Verdict>,
    queue: Queue,
    /// Of processes that are in scope.
    kept: u64,
    /// Whether a thread that works has samples. Those that cause no rare event have none.
    samples_all_work: bool,
    /// Threads that have started in processes that are counted, and processes if those are counted, too.
    starts: u64,
    /// `None` if everybody is counted, for then nobody goes on uncounted.
    ends: Option<Ends>,
}

/// Whether the samples of a process are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Kept,
    NotInScope,
}

impl Profiler {
    /// Reads the events of these CPUs. Those of the `unavailable` ones could not be opened.
    pub(crate) fn new(
        config: &PerfConfig,
        cpus: Vec<CpuEvents>,
        unavailable: impl IntoIterator<Item = u32>,
    ) -> Profiler {
        let sampling = match &config.mode {
            Mode::Sampling(sampling) => Some(sampling),
            Mode::Polling(_) => None,
        };
        let stacks = config.stacks().cloned();
        Profiler {
            cpus,
            unavailable: unavailable.into_iter().collect(),
            joined: None,
            samples: Samples {
                filter: ProcessFilter::new(
                    stacks
                        .as_ref()
                        .map(|stacks| stacks.scope.clone())
                        .unwrap_or_default(),
                ),
                stacks: stacks.map(|stacks| {
                    let known = Stacks::new(stacks.user);
                    (stacks, known)
                }),
                verdicts: foldhash::HashMap::default(),
                kept: 0,
                samples_all_work: sampling.is_some_and(|sampling| {
                    config.leader.is_clock() || matches!(sampling.interval, Interval::Frequency(_))
                }),
                starts: 0,
                ends: (config.counted != Counted::Everybody).then(Ends::default),
                queue: Queue::new(sampling.and_then(|sampling: &Sampling| sampling.most_queued)),
            },
            output: Output::new(config),
            counts: Vec::new(),
        }
    }

    /// The events that wake the thread when rings fill.
    pub(crate) fn cpus(&self) -> &[CpuEvents] {
        &self.cpus
    }

    /// The CPUs that the config asks for, but whose events could not be opened.
    pub(crate) fn unavailable(&self) -> &BTreeSet<u32> {
        &self.unavailable
    }

    /// Reads the files that samples are going to need, and those that take long to read.
    pub(crate) fn prepare(&mut self) {
        if let Some((config, stacks)) = &mut self.samples.stacks
            && config.kernel
        {
            stacks.read_kernel_symbols();
        }
    }

    /// Begins to count, and writes what the trace begins with.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn enable(&mut self, sink: &mut dyn PacketSink) -> io::Result<()> {
        self.output.begin(boot_now, sink);
        for cpu in &self.unavailable {
            self.output
                .cpu_event(boot_now(), *cpu, CpuEvent::CPU_UNAVAILABLE, sink);
        }
        self.cpus.iter().try_for_each(CpuEvents::enable)
    }

    /// Reads the events of a CPU that came online, which count already.
    pub(crate) fn add_cpu(&mut self, events: CpuEvents, sink: &mut dyn PacketSink) {
        self.unavailable.remove(&events.cpu);
        self.joined = Some(events.cpu);
        // Processes may have changed there unseen.
        self.samples.distrust();
        self.tell(events.cpu, CpuEvent::CPU_SAMPLED, sink);
        self.cpus.push(events);
    }

    /// Writes that a CPU is not sampled although it is online. `false` if that was known.
    pub(crate) fn leave_out_cpu(&mut self, cpu: u32, sink: &mut dyn PacketSink) -> bool {
        let is_news = self.unavailable.insert(cpu);
        if is_news {
            self.tell(cpu, CpuEvent::CPU_UNAVAILABLE, sink);
        }
        is_news
    }

    /// Returns the events of a CPU that has gone, after all that they had sampled was read.
    pub(crate) fn remove_cpu(&mut self, cpu: u32, sink: &mut dyn PacketSink) -> Option<CpuEvents> {
        self.unavailable.remove(&cpu);
        let at = self.cpus.iter().position(|events| events.cpu == cpu)?;
        // It may still count, if only the machine has slept.
        let _ = self.cpus[at].disable();
        self.read_rings(Instant::now(), sink);
        self.tell_losses(sink);
        self.tell(cpu, CpuEvent::CPU_GONE, sink);
        Some(self.cpus.remove(at))
    }

    /// Why samples are missing if only these are counted; `None` if none are.
    pub(crate) fn missing(&mut self, counted: &Counted, look: Look) -> Option<String> {
        match counted {
            Counted::Everybody => return None,
            // The kernel alone knows the processes of a family, so a CPU that comes has events for the first of them only.
            Counted::Family(_) => {
                if let Some(cpu) = self.joined {
                    return Some(format!("CPU {cpu} came online"));
                }
            }
            Counted::Processes(_) => {}
        }
        if self.misses_threads() {
            return Some("threads or processes end before they have a sample".to_owned());
        }
        let pid = self.samples.ends.as_mut()?.find_uncounted(look)?;
        Some(format!(
            "process {pid} runs a program with other rights, so the kernel no longer counts it alone"
        ))
    }

    /// Whether much is missing because threads and processes end before they have a sample.
    fn misses_threads(&self) -> bool {
        let Samples {
            kept,
            samples_all_work,
            starts,
            ..
        } = self.samples;
        samples_all_work && starts >= FEWEST_STARTS && starts.saturating_mul(SAMPLES_PER_START) > kept
    }

    /// Reads other events of the CPUs from now on, which are not enabled and have another config. Returns the ones in whose place they came, after all that
    /// they had sampled was read.
    ///
    /// # Errors
    /// If they cannot be enabled. Then all stays as it was.
    pub(crate) fn replace_events(
        &mut self,
        config: &PerfConfig,
        events: Vec<CpuEvents>,
        sink: &mut dyn PacketSink,
    ) -> io::Result<Vec<CpuEvents>> {
        self.disable();
        if let Err(error) = events.iter().try_for_each(CpuEvents::enable) {
            self.cpus.iter().try_for_each(CpuEvents::enable)?;
            return Err(error);
        }
        self.read_rings(Instant::now(), sink);
        self.tell_losses(sink);
        let before = std::mem::replace(&mut self.cpus, events);
        for events in &mut self.cpus {
            let same = before.iter().find(|before| before.cpu == events.cpu);
            events.counted = same.map_or(0, |before| before.counted);
        }
        if config.counted == Counted::Everybody {
            self.samples.ends = None;
        }
        // Processes may have changed unseen.
        self.samples.distrust();
        self.output.follow(config);
        Ok(before)
    }

    fn tell(&mut self, cpu: u32, event: CpuEvent, sink: &mut dyn PacketSink) {
        self.output.begin(boot_now, sink);
        self.output.cpu_event(boot_now(), cpu, event, sink);
    }

    /// Writes what the kernel had no room for since the last record in each ring.
    fn tell_losses(&mut self, sink: &mut dyn PacketSink) {
        for events in &mut self.cpus {
            let Some(total) = events.lost_records() else {
                continue;
            };
            let lost = events.losses.on_total(total);
            self.samples.on_losses(events.cpu, lost, &mut self.output, sink);
        }
    }

    /// Counts no more. The records in the rings can still be read.
    pub(crate) fn disable(&mut self) {
        for cpu in &self.cpus {
            // The event goes away soon, whatever the kernel says.
            let _ = cpu.disable();
        }
    }

    /// Has everything repeated that later packets refer to.
    pub(crate) fn clear_incremental_state(&mut self) {
        self.output.clear_incremental_state();
    }

    /// Forgets what is known about processes and their files.
    pub(crate) fn clear_unwind_state(&mut self) {
        if let Some((_, stacks)) = &mut self.samples.stacks {
            stacks.clear();
        }
    }

    /// Ends the work, because the daemon needs too much memory. Samples that wait, here or in the rings, are written without stacks, as skipped.
    pub(crate) fn give_up(&mut self, sink: &mut dyn PacketSink) {
        self.disable();
        while let Some(item) = self.samples.queue.pop() {
            if let Item::Sample(cpu, sample) = item {
                skip(cpu, &sample.borrowed(), &mut self.output, sink);
            }
        }
        self.samples.queue.close();
        // The time for stacks is over.
        let now = Instant::now();
        self.read_rings(now.checked_sub(IN_PLACE).unwrap_or(now), sink);
        self.tell_losses(sink);
        self.output.begin(boot_now, sink);
        self.output
            .stopped(boot_now(), DataSourceStopReason::PROFILER_STOP_GUARDRAIL, sink);
    }

    /// Writes the counters of all CPUs.
    pub(crate) fn poll(&mut self, sink: &mut dyn PacketSink) {
        for events in &self.cpus {
            self.output.begin(boot_now, sink);
            match events.read_counts(&mut self.counts) {
                Ok(()) => self.output.polled(boot_now(), events.cpu, &self.counts, sink),
                // For example because others have taken the hardware's counters.
                Err(_) => self
                    .output
                    .cpu_event(boot_now(), events.cpu, CpuEvent::CPU_UNREADABLE, sink),
            }
        }
    }

    /// A turn, as the [module](self) says.
    pub(crate) fn turn(&mut self, sink: &mut dyn PacketSink) -> Progress {
        let began = Instant::now();
        self.read_rings(began, sink);
        while began.elapsed() < TURN && self.handle_one(sink) {}
        match self.samples.queue.is_empty() {
            true => {
                if self.samples.queue.take_lost_changes() {
                    self.samples.distrust();
                }
                if let Some((_, stacks)) = &mut self.samples.stacks {
                    stacks.forget_exited();
                }
                Progress::CaughtUp
            }
            false => Progress::MoreToDo,
        }
    }

    /// Handles all that the kernel has written so far. Records that it writes meanwhile stay for later.
    pub(crate) fn catch_up(&mut self, sink: &mut dyn PacketSink) {
        let mut began = Instant::now();
        self.read_rings(began, sink);
        for _ in 0..self.samples.queue.len() {
            self.handle_one(sink);
            // The kernel needs its memory back.
            if began.elapsed() >= TURN {
                began = Instant::now();
                self.read_rings(began, sink);
            }
        }
        self.tell_losses(sink);
    }

    /// Handles the first that waits. `false` if nothing does.
    fn handle_one(&mut self, sink: &mut dyn PacketSink) -> bool {
        let Some(item) = self.samples.queue.pop() else {
            return false;
        };
        self.samples.on_item(item, &mut self.output, sink);
        true
    }

    /// Reads what is in the rings of all CPUs: handles it, or puts it into the queue.
    fn read_rings(&mut self, began: Instant, sink: &mut dyn PacketSink) {
        let Profiler {
            cpus,
            samples,
            output,
            ..
        } = self;
        if let Some(ends) = &mut samples.ends {
            ends.begin_reading();
        }
        for events in cpus {
            let cpu = events.cpu;
            let Some((ring, layout)) = &mut events.ring else {
                continue;
            };
            // The kernel writes while this reads: not more than the ring holds.
            let mut left = ring.size();
            while left > 0
                && let Some(record) = ring.next_record()
            {
                let length = record.len();
                match Record::parse(record, *layout) {
                    Some(Record::Sample(mut sample)) => {
                        sample.counts.follow(&mut events.counted);
                        samples.on_record(cpu, &Record::Sample(sample), began, output, sink);
                    }
                    Some(Record::Lost(records)) => {
                        let lost = events.losses.on_record(records);
                        samples.on_losses(cpu, lost, output, sink);
                    }
                    Some(record) => samples.on_record(cpu, &record, began, output, sink),
                    // The kernel writes no such record, but if it does, it counts.
                    None => samples.on_losses(cpu, 1, output, sink),
                }
                ring.consume(length);
                left = left.saturating_sub(length);
            }
        }
    }
}

impl Samples {
    /// Writes that so many more records of a CPU are missing.
    fn on_losses(&mut self, cpu: u32, records: u64, output: &mut Output, sink: &mut dyn PacketSink) {
        if records > 0 {
            output.begin(boot_now, sink);
            output.lost(boot_now(), cpu, records, sink);
            self.distrust();
        }
    }

    fn on_life(&mut self, pid: i32, at: u64) {
        if let Some(ends) = &mut self.ends {
            ends.on_life(pid, at);
        }
    }

    /// Handles a record, or puts it into the queue.
    fn on_record(
        &mut self,
        cpu: u32,
        record: &Record<'_>,
        began: Instant,
        output: &mut Output,
        sink: &mut dyn PacketSink,
    ) {
        if self.is_of_nobody(record) {
            return;
        }
        match record {
            Record::Sample(sample) => {
                self.on_life(sample.pid, sample.timestamp);
                let ControlFlow::Continue(()) = self.sort_out(cpu, sample, output, sink) else {
                    return;
                };
                if self.queue.is_empty() && began.elapsed() < IN_PLACE {
                    self.unwind(cpu, sample, output, sink);
                } else if self.queue.has_room_for(sample) {
                    self.queue.push(Item::Sample(cpu, OwnedSample::from(sample)));
                } else {
                    skip(cpu, sample, output, sink);
                }
            }
            Record::Exec { pid, timestamp } => {
                self.verdicts.remove(pid);
                self.on_life(*pid, *timestamp);
                let item = Item::Exec {
                    pid: *pid,
                    timestamp: *timestamp,
                };
                self.on_change(item);
            }
            Record::Fork {
                pid,
                parent,
                timestamp,
            } if pid != parent => {
                self.starts += 1;
                // A process with this id may have been met before.
                self.verdicts.remove(pid);
                self.on_life(*pid, *timestamp);
                self.on_change(Item::Fork {
                    pid: *pid,
                    parent: *parent,
                    timestamp: *timestamp,
                });
            }
            Record::Fork { .. } => self.starts += 1,
            Record::Exit { pid, tid, timestamp } if pid == tid => {
                self.verdicts.remove(pid);
                if let Some(ends) = &mut self.ends {
                    ends.on_end(*pid, *timestamp);
                }
                self.on_change(Item::Exit { pid: *pid });
            }
            Record::Mapped(mapped) if mapped.is_executable() => {
                self.on_change(Item::Mapped(OwnedMapped::from(mapped)));
            }
            Record::LostSamples(samples) => self.on_losses(cpu, *samples, output, sink),
            Record::Throttled { timestamp } => {
                output.begin(boot_now, sink);
                output.throttling(*timestamp, cpu, CpuEvent::CPU_THROTTLED, sink);
            }
            Record::Unthrottled { timestamp } => {
                output.begin(boot_now, sink);
                output.throttling(*timestamp, cpu, CpuEvent::CPU_UNTHROTTLED, sink);
            }
            Record::Mapped(_) | Record::Exit { .. } | Record::Lost(_) | Record::Other => {}
        }
    }

    /// Whether a record tells of a process that is not sampled. Programs that processes start come and go unseen if only these processes are counted.
    fn is_of_nobody(&self, record: &Record<'_>) -> bool {
        match record {
            Record::Exec { pid, .. } | Record::Fork { pid, .. } | Record::Exit { pid, .. } => {
                self.filter.rules_out(*pid)
            }
            Record::Mapped(mapped) => self.filter.rules_out(mapped.pid),
            _ => false,
        }
    }

    /// A change of a process's memory: at once, or behind the samples that wait.
    fn on_change(&mut self, item: Item) {
        match self.queue.is_empty() {
            true => self.apply(item),
            false => self.queue.push(item),
        }
    }

    fn apply(&mut self, change: Item) {
        if let Some((_, stacks)) = &mut self.stacks {
            stacks.on_change(change);
        }
    }

    /// Handles something that waited.
    fn on_item(&mut self, item: Item, output: &mut Output, sink: &mut dyn PacketSink) {
        match item {
            Item::Sample(cpu, sample) => {
                self.unwind(cpu, &sample.borrowed(), output, sink);
            }
            change => self.apply(change),
        }
    }

    /// Records are missing, so that what is known about processes may be wrong.
    fn distrust(&mut self) {
        self.verdicts.clear();
        if let Some((_, stacks)) = &mut self.stacks {
            stacks.distrust();
        }
    }

    /// Writes samples that have no stack; the others are to be unwound.
    fn sort_out(
        &mut self,
        cpu: u32,
        sample: &Sample<'_>,
        output: &mut Output,
        sink: &mut dyn PacketSink,
    ) -> ControlFlow<()> {
        let Some((config, _)) = &self.stacks else {
            output.begin(boot_now, sink);
            output.counts(cpu, sample, sink);
            return ControlFlow::Break(());
        };
        let verdict = match self.verdicts.get(&sample.pid) {
            Some(verdict) => *verdict,
            None => {
                let verdict = judge(config, &mut self.filter, sample);
                self.verdicts.insert(sample.pid, verdict);
                verdict
            }
        };
        if verdict == Verdict::NotInScope {
            output.begin(boot_now, sink);
            output.skipped(cpu, sample, SampleSkipReason::PROFILER_SKIP_NOT_IN_SCOPE, sink);
            return ControlFlow::Break(());
        }
        self.kept += 1;
        // There are no frames to be had.
        if config.user == UserFrames::Skip && u32::from(sample.cpu_mode) == sys::PERF_RECORD_MISC_USER {
            output.begin(boot_now, sink);
            output.counts(cpu, sample, sink);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Writes a sample with its stack.
    fn unwind(&mut self, cpu: u32, sample: &Sample<'_>, output: &mut Output, sink: &mut dyn PacketSink) {
        let Some((_, stacks)) = &mut self.stacks else {
            return;
        };
        if output.begin(boot_now, sink) {
            stacks.forget_numbers();
        }
        match stacks.find(sample, output.interning()) {
            Found::Stack(unwound) => output.stack(cpu, sample, unwound, sink),
            Found::Skipped(reason) => output.skipped(cpu, sample, reason, sink),
        }
    }
}

/// Writes that a sample has no stack because there is no time or no memory for it.
fn skip(cpu: u32, sample: &Sample<'_>, output: &mut Output, sink: &mut dyn PacketSink) {
    output.begin(boot_now, sink);
    output.skipped(cpu, sample, SampleSkipReason::PROFILER_SKIP_UNWIND_ENQUEUE, sink);
}

/// Whether a process that was not met before is sampled.
fn judge(config: &StacksConfig, filter: &mut ProcessFilter, sample: &Sample<'_>) -> Verdict {
    let is_kernel_thread = match config.user {
        UserFrames::Dwarf | UserFrames::FramePointers => sample.registers.is_none(),
        UserFrames::KernelFramePointers => !sample.callchain.iter().any(|address| address == CONTEXT_USER),
        UserFrames::Skip => false,
    };
    if is_kernel_thread && !config.kernel {
        return Verdict::NotInScope;
    }
    let cmdline = match is_kernel_thread || !filter.needs_cmdlines() {
        true => None,
        false => cmdline_of(sample.pid),
    };
    match filter.accepts(sample.pid, cmdline.as_deref()) {
        true => Verdict::Kept,
        false => Verdict::NotInScope,
    }
}

/// The mark in call chains before addresses of user space.
pub(crate) const CONTEXT_USER: u64 = sys::PERF_CONTEXT_USER;

#[cfg(test)]
mod tests;
