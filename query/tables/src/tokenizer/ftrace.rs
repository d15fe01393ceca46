//! Makes events of bundles of kernel events: single ones, and scheduling in the compact encoding.

use std::io;
use std::ops::ControlFlow;

use ferretto_proto::write::ftrace_event_bundle::CompactSched;
use ferretto_proto::write::{FtraceEvent, FtraceEventBundle, FtraceStats, InternedData};
use ferretto_wire::{Value, take_varint};

use super::event::{Queue, Queues, Switch, Waking, Woken};
use super::sequence::Sequence;
use super::{ClockId, service_stats};
use crate::clocks::{self, BOOTTIME, MONOTONIC_RAW, Reading, clock_of};
use crate::context::{Context, Known, MOST_CPUS};
use crate::fields::{fields, number_of};
use crate::schema::FTRACE_EVENT;
use crate::sorter::Sorter;
use crate::strings::StringId;
use crate::trackers::kernel::{CALLER, NO_SYMBOL, SCHED_BLOCKED_REASON, kernel_function};

/// The clock that stands for the kernel's own clocks, by sequence.
const KERNEL_CLOCK: u32 = 64;
/// The values of `ftrace_clock`.
const UNSPECIFIED: u64 = 0;
const GLOBAL: u64 = 2;
const LOCAL: u64 = 3;
const MONO_RAW: u64 = 4;

/// Where events go.
pub(crate) struct To<'a> {
    pub(crate) sorter: &'a mut Sorter,
    pub(crate) queues: &'a mut Queues,
}

/// What is kept from bundle to bundle.
#[derive(Debug, Default)]
pub(crate) struct Ftrace {
    /// The CPUs of which a bundle has been seen.
    seen: Vec<bool>,
    latest_snapshot: u64,
    batch: Batch,
}

impl Ftrace {
    /// Takes in a bundle.
    pub(crate) fn bundle(
        &mut self,
        bundle: &[u8],
        sequence_number: u32,
        sequence: &Sequence,
        to: &mut To<'_>,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let mut head = Head::default();
        let mut compact = None;
        for field in fields(bundle) {
            match (field.number, field.value) {
                // Most fields are events.
                (FtraceEventBundle::EVENT, _) => {}
                (FtraceEventBundle::COMPACT_SCHED, Value::Bytes(bytes)) => compact = Some(bytes),
                (FtraceEventBundle::GENERIC_EVENT_DESCRIPTORS, Value::Bytes(descriptor))
                    if !context.descriptions.add(descriptor, &mut context.strings) =>
                {
                    context.stats.add("ftrace_generic_descriptor_errors", None, 1);
                }
                (number, Value::Varint(value)) => head.set(number, value),
                _ => {}
            }
        }
        let Some(cpu) = head.cpu else {
            context.stats.add("ftrace_bundle_tokenizer_errors", None, 1);
            return Ok(());
        };
        if cpu >= u64::from(MOST_CPUS) {
            context.stats.add("ftrace_bundle_tokenizer_errors", None, 1);
            return Ok(());
        }
        let cpu = cpu as u32;
        if head.lost_events {
            context.stats.set("ftrace_cpu_has_data_loss", Some(cpu.into()), 1);
        }
        let Some(clock) = self.clock(&head, sequence_number, context) else {
            context.stats.add("ftrace_bundle_tokenizer_errors", None, 1);
            return Ok(());
        };
        if let Some(compact) = compact {
            compact_sched(compact, cpu, clock, &mut self.batch, to, context)?;
        }
        for field in fields(bundle) {
            if let (FtraceEventBundle::EVENT, Value::Bytes(event)) = (field.number, field.value) {
                single(event, cpu, clock, sequence, to, context)?;
            }
        }
        self.first(cpu, clock, &head, context);
        Ok(())
    }

    /// Returns the clock of a bundle. `None` if it is none that is known.
    fn clock(&mut self, head: &Head, sequence: u32, context: &mut Context<'_>) -> Option<ClockId> {
        let clock = match head.clock {
            None => return Some(BOOTTIME),
            Some(UNSPECIFIED) => BOOTTIME,
            Some(MONO_RAW) => MONOTONIC_RAW,
            Some(GLOBAL | LOCAL) => clock_of(sequence, KERNEL_CLOCK)?,
            Some(_) => return None,
        };
        if let (Some(ftrace), Some(boot)) = (head.ftrace_timestamp, head.boot_timestamp)
            && self.latest_snapshot != ftrace
        {
            let reading = |clock, value: u64| Reading {
                clock,
                value: value as i64,
                step: 1,
                is_incremental: false,
            };
            if context
                .clocks
                .snapshot(&[reading(clock, ftrace), reading(BOOTTIME, boot)])
                .is_err()
            {
                context.stats.add("invalid_clock_snapshots", None, 1);
            }
            self.latest_snapshot = ftrace;
        }
        Some(clock)
    }

    /// The first bundle of a CPU says from when on its events are all there.
    fn first(&mut self, cpu: u32, clock: clocks::ClockId, head: &Head, context: &mut Context<'_>) {
        const KEY: &str = "ftrace_latest_data_start_ns";
        let at = cpu as usize;
        if at >= self.seen.len() {
            self.seen.resize(at + 1, false);
        }
        if std::mem::replace(&mut self.seen[at], true) {
            return;
        }
        let Some(begin) = head.previous_end.or(head.last_read) else {
            return;
        };
        let Some(ts) = context.clocks.trace_time(clock, begin as i64) else {
            return;
        };
        if context.metadata.number(KEY).is_none_or(|latest| ts > latest) {
            context.metadata.set(KEY, Known::Int(ts));
        }
    }

    /// Takes in the kernel's counters of its buffers.
    pub(crate) fn stats(&mut self, stats: &[u8], context: &mut Context<'_>) {
        let is_end = number_of(stats, FtraceStats::PHASE) == Some(2);
        service_stats::ftrace_stats(stats, is_end, context);
    }
}

/// The numbers of a bundle.
#[derive(Debug, Default)]
struct Head {
    cpu: Option<u64>,
    lost_events: bool,
    clock: Option<u64>,
    ftrace_timestamp: Option<u64>,
    boot_timestamp: Option<u64>,
    last_read: Option<u64>,
    previous_end: Option<u64>,
}

impl Head {
    fn set(&mut self, number: u32, value: u64) {
        match number {
            FtraceEventBundle::CPU => self.cpu = Some(value & 0xffff_ffff),
            FtraceEventBundle::LOST_EVENTS => self.lost_events = value != 0,
            FtraceEventBundle::FTRACE_CLOCK => self.clock = Some(value),
            FtraceEventBundle::FTRACE_TIMESTAMP => self.ftrace_timestamp = Some(value),
            FtraceEventBundle::BOOT_TIMESTAMP => self.boot_timestamp = Some(value),
            FtraceEventBundle::LAST_READ_EVENT_TIMESTAMP => self.last_read = Some(value),
            FtraceEventBundle::PREVIOUS_BUNDLE_END_TIMESTAMP => self.previous_end = Some(value),
            _ => {}
        }
    }
}

/// Takes in one event.
fn single(
    event: &[u8],
    cpu: u32,
    clock: ClockId,
    sequence: &Sequence,
    to: &mut To<'_>,
    context: &mut Context<'_>,
) -> io::Result<()> {
    // The time comes first, and the message after a few numbers: nothing behind is looked at.
    let (mut time, mut kind) = (None, None);
    for field in fields(event) {
        match field.value {
            Value::Varint(value) if field.number == FtraceEvent::TIMESTAMP => time = time.or(Some(value)),
            Value::Bytes(message) if kind.is_none() => kind = Some((field.number, message)),
            _ => {}
        }
        if time.is_some() && kind.is_some() {
            break;
        }
    }
    let Some(time) = time else {
        context.stats.add("ftrace_bundle_tokenizer_errors", None, 1);
        return Ok(());
    };
    let Some((kind, message)) = kind else {
        context.stats.add("ftrace_missing_event_id", None, 1);
        return Ok(());
    };
    let Some(ts) = context.clocks.trace_time(clock, time as i64) else {
        context.stats.add("clock_sync_failure", None, 1);
        return Ok(());
    };
    let symbol = match kind {
        SCHED_BLOCKED_REASON => number_of(message, CALLER)
            .and_then(|caller| sequence.name(InternedData::KERNEL_SYMBOLS, caller & 0xffff_ffff, context))
            .map_or(NO_SYMBOL, |name| name.0),
        _ => kernel_function(kind)
            .and_then(|field| number_of(message, field))
            .and_then(|function| sequence.known_name(InternedData::KERNEL_SYMBOLS, function))
            .map_or(NO_SYMBOL, |name| name.0),
    };
    let queue = to.queues.number(Queue::Ftrace(cpu));
    to.sorter.push(ts, queue, |bytes| {
        bytes.extend_from_slice(&symbol.to_le_bytes());
        bytes.extend_from_slice(event);
    })
}

/// The numbers of a packed field that are decoded at once. Divisible by 8.
const BATCH: usize = 64;

/// The numbers of a packed field. Values that are not packed are those of old traces, which nothing writes in this encoding.
#[derive(Clone, Copy, Default)]
struct Packed<'a>(&'a [u8]);

impl Packed<'_> {
    /// Decodes as many numbers as there are, up to a batch. Returns how many.
    fn take(&mut self, numbers: &mut [u64; BATCH]) -> usize {
        const FOLLOWED: u64 = 0x8080_8080_8080_8080;
        let mut rest = *self;
        let mut count = 0;
        while let Some(places) = numbers[count..].first_chunk_mut::<8>() {
            let Some((bytes, behind)) = rest.0.split_first_chunk::<8>() else {
                break;
            };
            let mut word = u64::from_le_bytes(*bytes);
            if word & FOLLOWED == 0 {
                // Most numbers have one byte, so eight of them often follow each other.
                *places = bytes.map(u64::from);
                rest.0 = behind;
                count += 8;
                continue;
            }
            // Those of one or two bytes that the word has before it has others. Which of both a number is follows no order, so it decides no branch.
            let mut left = 8;
            let before = count;
            for place in places {
                let len = 1 + (word >> 7 & 1);
                if word & 0x8080 == 0x8080 || left < len {
                    break;
                }
                *place = word & 0x7f | word >> 1 & 0x3f80 & (len - 1).wrapping_neg();
                word >>= 8 * len;
                left -= len;
                count += 1;
            }
            rest.0 = &rest.0[8 - left as usize..];
            if count == before {
                let Some(number) = rest.next() else { break };
                numbers[count] = number;
                count += 1;
            }
        }
        // The last of them, or of the batch.
        while let Some(place) = numbers.get_mut(count)
            && let Some(number) = rest.next()
        {
            *place = number;
            count += 1;
        }
        *self = rest;
        count
    }
}

impl Iterator for Packed<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        take_varint(&mut self.0)
    }
}

/// The columns of [`Columns`].
const COLUMNS: usize = 5;

/// Numbers of packed fields, column by column. Kept from bundle to bundle, as most are small.
#[derive(Debug)]
struct Batch([[u64; BATCH]; COLUMNS]);

impl Default for Batch {
    fn default() -> Batch {
        Batch([[0; BATCH]; COLUMNS])
    }
}

/// Columns of packed numbers, a batch of rows at a time: times first, then names.
struct Columns<'a> {
    packed: [Packed<'a>; COLUMNS],
    batch: &'a mut Batch,
    /// Whether all rows so far have had all numbers.
    is_whole: bool,
}

impl<'a> Columns<'a> {
    fn new(packed: [Packed<'a>; COLUMNS], batch: &'a mut Batch) -> Columns<'a> {
        Columns {
            packed,
            batch,
            is_whole: true,
        }
    }

    fn has_rows(&self) -> bool {
        !self.packed[0].0.is_empty()
    }

    /// Decodes the next rows, and returns how many have all numbers; `None` at the end, and behind rows that lack some.
    fn next(&mut self) -> Option<usize> {
        if !self.is_whole {
            return None;
        }
        let mut counts = [0; COLUMNS];
        for ((count, packed), numbers) in counts.iter_mut().zip(&mut self.packed).zip(&mut self.batch.0) {
            *count = packed.take(numbers);
        }
        self.is_whole = counts.iter().all(|count| *count == counts[0]);
        counts.into_iter().min().filter(|rows| *rows > 0)
    }

    #[inline]
    fn row(&self, row: usize) -> [u64; COLUMNS] {
        self.batch.0.each_ref().map(|column| column[row])
    }

    /// Whether the rows were all that there is.
    fn is_whole(&self) -> bool {
        self.is_whole && self.packed.iter().all(|packed| packed.0.is_empty())
    }
}

/// Takes in the scheduling of a CPU: one field for each column.
fn compact_sched(
    compact: &[u8],
    cpu: u32,
    clock: ClockId,
    batch: &mut Batch,
    to: &mut To<'_>,
    context: &mut Context<'_>,
) -> io::Result<()> {
    let mut names = Vec::new();
    let mut columns = [Packed::default(); CompactSched::WAKING_COMMON_FLAGS as usize + 1];
    for field in fields(compact) {
        match (field.number, field.value) {
            (CompactSched::INTERN_TABLE, Value::Bytes(name)) => {
                names.push(context.strings.intern_bytes(name))
            }
            (number, Value::Bytes(bytes)) => {
                if let Some(column) = columns.get_mut(number as usize) {
                    *column = Packed(bytes);
                }
            }
            _ => {}
        }
    }
    let column = |number: u32| columns[number as usize];
    let switches = [
        column(CompactSched::SWITCH_TIMESTAMP),
        column(CompactSched::SWITCH_NEXT_COMM_INDEX),
        column(CompactSched::SWITCH_PREV_STATE),
        column(CompactSched::SWITCH_NEXT_PID),
        column(CompactSched::SWITCH_NEXT_PRIO),
    ];
    let switches = Columns::new(switches, batch);
    let queue = Queue::Switches(cpu);
    let visited = each_row(switches, &names, queue, clock, to, context, |next_comm, row| {
        let [state, pid, prio] = row;
        let switch = Switch {
            prev_state: state as u16,
            next_pid: pid as u32,
            next_prio: prio as i32,
            next_comm,
        };
        switch.encode()
    });
    if visited?.is_break() {
        return Ok(());
    }
    let wakings = [
        column(CompactSched::WAKING_TIMESTAMP),
        column(CompactSched::WAKING_COMM_INDEX),
        column(CompactSched::WAKING_PID),
        column(CompactSched::WAKING_TARGET_CPU),
        column(CompactSched::WAKING_PRIO),
    ];
    let mut flags = column(CompactSched::WAKING_COMMON_FLAGS);
    let wakings = Columns::new(wakings, batch);
    let queue = Queue::Wakings(cpu);
    let mut waking = |[pid, ..]: [u64; 3]| Waking {
        pid: pid as u32,
        common_flags: flags.next().unwrap_or(0) as u16,
    };
    let visited = match context.output.wants(&FTRACE_EVENT) {
        true => each_row(wakings, &names, queue, clock, to, context, |comm, row| {
            let Waking { pid, common_flags } = waking(row);
            let [_, target, prio] = row;
            let woken = Woken {
                pid,
                common_flags,
                comm,
                prio: prio as u16,
                target_cpu: target as u16,
            };
            woken.encode()
        }),
        false => each_row(wakings, &names, queue, clock, to, context, |_, row| {
            waking(row).encode()
        }),
    };
    visited.map(drop)
}

/// Pushes an event for each row, which `event` makes of its name and its other numbers. Breaks off where a time cannot be converted.
fn each_row<const N: usize>(
    mut columns: Columns<'_>,
    names: &[StringId],
    queue: Queue,
    clock: ClockId,
    to: &mut To<'_>,
    context: &mut Context<'_>,
    mut event: impl FnMut(StringId, [u64; 3]) -> [u8; N],
) -> io::Result<ControlFlow<()>> {
    let mut time = 0_i64;
    if columns.has_rows() {
        let queue = to.queues.number(queue);
        while let Some(rows) = columns.next() {
            for row in 0..rows {
                let [delta, name, numbers @ ..] = columns.row(row);
                time = time.wrapping_add(delta as i64);
                let Some(name) = names.get(name as usize) else {
                    columns.is_whole = false;
                    break;
                };
                let event = event(*name, numbers);
                let Some(ts) = context.clocks.trace_time(clock, time) else {
                    context.stats.add("clock_sync_failure", None, 1);
                    return Ok(ControlFlow::Break(()));
                };
                to.sorter.push_short(ts, queue, event)?;
            }
        }
    }
    if !columns.is_whole() {
        context.stats.add("compact_sched_has_parse_errors", None, 1);
    }
    Ok(ControlFlow::Continue(()))
}
