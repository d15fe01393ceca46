//! Makes events of bundles of kernel events: single ones, and scheduling in the compact encoding.

use std::io;

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
            compact_sched(compact, cpu, clock, to, context)?;
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

/// Walks the numbers of a packed field. Values that are not packed are those of old traces, which nothing writes in this encoding.
#[derive(Clone, Copy, Default)]
struct Packed<'a>(&'a [u8]);

impl Iterator for Packed<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        take_varint(&mut self.0)
    }
}

/// Takes in the scheduling of a CPU: one field for each column.
fn compact_sched(
    compact: &[u8],
    cpu: u32,
    clock: ClockId,
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
    let (mut state, mut pid, mut prio, mut comm) = (
        column(CompactSched::SWITCH_PREV_STATE),
        column(CompactSched::SWITCH_NEXT_PID),
        column(CompactSched::SWITCH_NEXT_PRIO),
        column(CompactSched::SWITCH_NEXT_COMM_INDEX),
    );
    let mut times = column(CompactSched::SWITCH_TIMESTAMP);
    let mut time = 0_i64;
    let mut is_whole = true;
    if !times.0.is_empty() {
        let queue = to.queues.number(Queue::Switches(cpu));
        for delta in times.by_ref() {
            let row = (state.next(), pid.next(), prio.next(), comm.next());
            let (Some(state), Some(pid), Some(prio), Some(comm)) = row else {
                is_whole = false;
                break;
            };
            time = time.wrapping_add(delta as i64);
            let Some(comm) = names.get(comm as usize) else {
                is_whole = false;
                break;
            };
            let switch = Switch {
                prev_state: state as u16,
                next_pid: pid as u32,
                next_prio: prio as i32,
                next_comm: *comm,
            };
            let Some(ts) = context.clocks.trace_time(clock, time) else {
                context.stats.add("clock_sync_failure", None, 1);
                return Ok(());
            };
            to.sorter.push(ts, queue, |bytes| switch.encode(bytes))?;
        }
    }
    is_whole &= [times, state, pid, prio, comm]
        .iter()
        .all(|column| column.0.is_empty());
    if !is_whole {
        context.stats.add("compact_sched_has_parse_errors", None, 1);
    }

    let (mut pid, mut target, mut prio, mut comm, mut flags) = (
        column(CompactSched::WAKING_PID),
        column(CompactSched::WAKING_TARGET_CPU),
        column(CompactSched::WAKING_PRIO),
        column(CompactSched::WAKING_COMM_INDEX),
        column(CompactSched::WAKING_COMMON_FLAGS),
    );
    let mut times = column(CompactSched::WAKING_TIMESTAMP);
    let mut time = 0_i64;
    let mut is_whole = true;
    if !times.0.is_empty() {
        let queue = to.queues.number(Queue::Wakings(cpu));
        let is_whole_wanted = context.output.wants(&FTRACE_EVENT);
        for delta in times.by_ref() {
            let row = (pid.next(), target.next(), prio.next(), comm.next());
            let (Some(pid), Some(target), Some(prio), Some(comm)) = row else {
                is_whole = false;
                break;
            };
            time = time.wrapping_add(delta as i64);
            let Some(comm) = names.get(comm as usize) else {
                is_whole = false;
                break;
            };
            let (pid, common_flags) = (pid as u32, flags.next().unwrap_or(0) as u16);
            let Some(ts) = context.clocks.trace_time(clock, time) else {
                context.stats.add("clock_sync_failure", None, 1);
                return Ok(());
            };
            to.sorter.push(ts, queue, |bytes| match is_whole_wanted {
                true => Woken {
                    pid,
                    common_flags,
                    comm: *comm,
                    prio: prio as u16,
                    target_cpu: target as u16,
                }
                .encode(bytes),
                false => Waking { pid, common_flags }.encode(bytes),
            })?;
        }
    }
    is_whole &= [times, pid, target, prio, comm]
        .iter()
        .all(|column| column.0.is_empty());
    if !is_whole {
        context.stats.add("compact_sched_has_parse_errors", None, 1);
    }
    Ok(())
}
