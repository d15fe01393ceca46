//! Kernel events in the order of time, handed to the trackers that they concern.

use ferretto_proto::write::{
    FtraceEvent, SchedSwitchFtraceEvent, SchedWakingFtraceEvent, TaskRenameFtraceEvent,
};
use ferretto_wire::Value;

use super::Trackers;
use super::ftrace_events::Previous;
use super::kernel_slices::At;
use super::processes::Worth;
use super::sched::Last;
use super::thread_state::{To, Waking};
use crate::context::Context;
use crate::fields::{fields, number, number_of};
use crate::strings::StringId;
use crate::tokenizer::event;

/// In place of a symbol that an event does not refer to.
pub(crate) const NO_SYMBOL: u32 = u32::MAX;
/// Fields of `FtraceEvent` for which there is no writer.
pub(crate) const SCHED_BLOCKED_REASON: u32 = 18;
/// The field of `SchedBlockedReasonFtraceEvent` with the number of a symbol.
pub(crate) const CALLER: u32 = 2;
const CPU_FREQUENCY: u32 = 11;
const CPU_IDLE: u32 = 13;
const GPU_FREQUENCY: u32 = 332;
const TASK_NEWTASK: u32 = 235;
const SCHED_PROCESS_FREE: u32 = 240;
/// A new thread rather than a new process.
const CLONE_THREAD: u64 = 0x1_0000;

/// Returns the field of an event that has the number of a symbol, a function of the kernel.
#[inline]
pub(crate) fn kernel_function(kind: u32) -> Option<u32> {
    Some(match kind {
        SCHED_BLOCKED_REASON => CALLER,
        // Of `workqueue_*`, in all of which it has one number, and of `funcgraph_entry`.
        56..=59 | 437 => 2,
        // Of `funcgraph_exit` and `hrtimer_expire_entry`.
        438 | 553 => 3,
        // Of `mm_shrink_slab_start`.
        443 => 8,
        _ => return None,
    })
}

/// Kernel events before these times are left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    /// Before the recording began.
    drop: i64,
    /// Before all CPUs had events: what began on one CPU might seem never to end.
    only_names: i64,
}

impl Begin {
    /// Returns what the facts about the trace say. Called at the first kernel event.
    pub(crate) fn of(context: &Context<'_>) -> Begin {
        const NOT_CUT: &str = "session_with_lightweight_battery_tracing";
        let drop = match context.keeps_old_events {
            true => 0,
            false => context.metadata.number("tracing_started_ns").unwrap_or(0),
        };
        let complete = match context.metadata.text("unique_session_name") {
            Some(NOT_CUT) => 0,
            _ => context
                .metadata
                .number("ftrace_latest_data_start_ns")
                .unwrap_or(0),
        };
        Begin {
            drop,
            only_names: complete.max(drop),
        }
    }
}

impl Trackers {
    #[inline(always)]
    fn begin(&mut self, context: &Context<'_>) -> Begin {
        match self.begin {
            Some(begin) => begin,
            None => self.find_begin(context),
        }
    }

    #[cold]
    fn find_begin(&mut self, context: &Context<'_>) -> Begin {
        *self.begin.insert(Begin::of(context))
    }

    /// A switch in the compact encoding.
    #[inline]
    pub(crate) fn compact_switch(
        &mut self,
        cpu: u32,
        ts: i64,
        switch: event::Switch,
        context: &mut Context<'_>,
    ) {
        let begin = self.begin(context);
        if ts < begin.drop {
            context.stats.add("ftrace_packet_before_tracing_start", None, 1);
            return;
        }
        let next = i64::from(switch.next_pid);
        let utid = self.processes.thread(next);
        self.processes.name_thread(utid, switch.next_comm, Worth::Ftrace);
        let now = Last {
            pid: next,
            utid,
            priority: switch.next_prio.into(),
        };
        let Some(last) = self.sched.replace_last(cpu, now) else {
            // Without the thread before, this is no switch yet.
            context.stats.add("compact_sched_switch_skipped", None, 1);
            return;
        };
        let state = context.state(switch.prev_state.into());
        self.sched
            .end(cpu, ts, state, &context.strings, &mut context.output);
        context.cpus.mention(cpu);
        context.output.time(ts, 0);
        if self.ftrace_events.is_wanted() {
            let previous = Previous {
                comm: self.processes.name_of(last.utid).unwrap_or(switch.next_comm),
                last,
                state: switch.prev_state.into(),
            };
            self.ftrace_events.switch(ts, cpu, previous, switch, context);
        }
        if ts < begin.only_names {
            return;
        }
        self.sched
            .begin(cpu, ts, utid, now.priority, &context.strings, &mut context.output);
        let mut out = To {
            strings: &context.strings,
            output: &mut context.output,
        };
        self.states.switch(ts, cpu, last.utid, state, utid, &mut out);
    }

    /// A wake-up in the compact encoding.
    #[inline]
    pub(crate) fn compact_waking(
        &mut self,
        cpu: u32,
        ts: i64,
        waking: event::Waking,
        whole: Option<event::Woken>,
        context: &mut Context<'_>,
    ) {
        let begin = self.begin(context);
        if ts < begin.drop {
            context.stats.add("ftrace_packet_before_tracing_start", None, 1);
            return;
        }
        let Some(last) = self.sched.last(cpu) else {
            context.stats.add("compact_sched_waking_skipped", None, 1);
            return;
        };
        context.cpus.mention(cpu);
        context.output.time(ts, 0);
        if let Some(woken) = whole {
            self.ftrace_events.waking(ts, cpu, last.utid, woken, context);
        }
        if ts < begin.only_names {
            return;
        }
        let utid = self.processes.thread(waking.pid.into());
        let mut out = To {
            strings: &context.strings,
            output: &mut context.output,
        };
        let waking = Waking {
            waker: last.utid,
            common_flags: Some(waking.common_flags.into()),
        };
        self.states.waking(ts, utid, waking, &mut out);
    }

    /// A single event.
    pub(crate) fn kernel_event(
        &mut self,
        cpu: u32,
        ts: i64,
        symbol: u32,
        event: &[u8],
        context: &mut Context<'_>,
    ) {
        let begin = self.begin(context);
        if ts < begin.drop {
            context.stats.add("ftrace_packet_before_tracing_start", None, 1);
            return;
        }
        let Some(pid) = fields(event).find(|field| field.number == FtraceEvent::PID) else {
            return;
        };
        let pid = i64::from(number(pid.value).unwrap_or(0) as u32);
        for field in fields(event) {
            let Value::Bytes(message) = field.value else {
                continue;
            };
            if field.number != FtraceEvent::SCHED_SWITCH {
                // Whoever does something exists.
                self.processes.thread(pid);
                context.cpus.mention(cpu);
                context.output.time(ts, 0);
                if self.ftrace_events.wants(field.number) {
                    self.ftrace_event(field.number, At { ts, cpu, pid }, symbol, message, context);
                }
            }
            if ts < begin.only_names {
                return;
            }
            match field.number {
                FtraceEvent::SCHED_SWITCH => self.switch(cpu, ts, message, context),
                FtraceEvent::SCHED_WAKING => self.waking(ts, pid, message, context),
                FtraceEvent::TASK_RENAME => self.rename(message, context),
                TASK_NEWTASK => self.new_task(ts, pid, message, context),
                SCHED_PROCESS_FREE => {
                    let pid = number_of(message, 2).unwrap_or(0) as u32;
                    self.processes.end_thread(ts, pid.into());
                }
                SCHED_BLOCKED_REASON => {
                    let utid = self
                        .processes
                        .thread(i64::from(number_of(message, 1).unwrap_or(0) as u32));
                    let io_wait = number_of(message, 3).unwrap_or(0) != 0;
                    let function = (symbol != NO_SYMBOL).then_some(StringId(symbol));
                    self.states.blocked_reason(utid, io_wait, function);
                }
                GPU_FREQUENCY => {
                    let get = |field| number_of(message, field).unwrap_or(0) as u32;
                    self.gpu_frequency(ts, get(1), get(2).into(), context);
                }
                CPU_FREQUENCY | CPU_IDLE => {
                    let get = |field| number_of(message, field).unwrap_or(0) as u32;
                    let (state, cpu) = (f64::from(get(1)), get(2));
                    match field.number {
                        CPU_FREQUENCY => self.cpu_frequency(ts, cpu, state, context),
                        _ => self.cpu_idle(ts, cpu, state, context),
                    }
                }
                kind => self.kernel_slice(kind, At { ts, cpu, pid }, symbol, message, context),
            }
        }
    }

    fn switch(&mut self, cpu: u32, ts: i64, message: &[u8], context: &mut Context<'_>) {
        use SchedSwitchFtraceEvent as Switch;
        let (mut prev_comm, mut next_comm) = (&[][..], &[][..]);
        let (mut prev_pid, mut prev_prio, mut next_pid, mut state, mut priority) = (0, 0, 0, 0, 0);
        for field in fields(message) {
            match (field.number, field.value) {
                (Switch::PREV_COMM, Value::Bytes(comm)) => prev_comm = comm,
                (Switch::NEXT_COMM, Value::Bytes(comm)) => next_comm = comm,
                (Switch::PREV_PID, Value::Varint(value)) => prev_pid = i64::from(value as u32),
                (Switch::PREV_PRIO, Value::Varint(value)) => prev_prio = i64::from(value as i32),
                (Switch::NEXT_PID, Value::Varint(value)) => next_pid = i64::from(value as u32),
                (Switch::PREV_STATE, Value::Varint(value)) => state = value as i64,
                (Switch::NEXT_PRIO, Value::Varint(value)) => priority = value as i32,
                _ => {}
            }
        }
        let next_comm = context.strings.intern_bytes(next_comm);
        let next = self.processes.thread(next_pid);
        self.processes.name_thread(next, next_comm, Worth::Ftrace);
        let prev_state = state;
        let state = context.state(state);
        if self.sched.is_open(cpu) {
            match self.sched.last(cpu).is_some_and(|last| last.pid == prev_pid) {
                true => self
                    .sched
                    .end(cpu, ts, state, &context.strings, &mut context.output),
                false => context.stats.add("mismatched_sched_switch_tids", None, 1),
            }
        }
        let prev_comm = context.strings.intern_bytes(prev_comm);
        let prev = self.processes.thread(prev_pid);
        self.processes.name_thread(prev, prev_comm, Worth::Ftrace);
        context.cpus.mention(cpu);
        context.output.time(ts, 0);
        if self.ftrace_events.is_wanted() {
            let previous = Previous {
                comm: prev_comm,
                last: Last {
                    pid: prev_pid,
                    utid: prev,
                    priority: prev_prio,
                },
                state: prev_state,
            };
            let next = event::Switch {
                prev_state: prev_state as u16,
                next_pid: next_pid as u32,
                next_prio: priority,
                next_comm,
            };
            self.ftrace_events.switch(ts, cpu, previous, next, context);
        }
        let priority = i64::from(priority);
        self.sched
            .begin(cpu, ts, next, priority, &context.strings, &mut context.output);
        let last = Last {
            pid: next_pid,
            utid: next,
            priority,
        };
        self.sched.replace_last(cpu, last);
        let mut out = To {
            strings: &context.strings,
            output: &mut context.output,
        };
        self.states.switch(ts, cpu, prev, state, next, &mut out);
    }

    fn waking(&mut self, ts: i64, pid: i64, message: &[u8], context: &mut Context<'_>) {
        let (mut comm, mut wakee) = (&[][..], 0);
        for field in fields(message) {
            match (field.number, field.value) {
                (SchedWakingFtraceEvent::COMM, Value::Bytes(bytes)) => comm = bytes,
                (SchedWakingFtraceEvent::PID, Value::Varint(value)) => wakee = i64::from(value as u32),
                _ => {}
            }
        }
        let comm = context.strings.intern_bytes(comm);
        let utid = self.processes.thread(wakee);
        self.processes.name_thread(utid, comm, Worth::Ftrace);
        let waking = Waking {
            waker: self.processes.thread(pid),
            common_flags: None,
        };
        let mut out = To {
            strings: &context.strings,
            output: &mut context.output,
        };
        self.states.waking(ts, utid, waking, &mut out);
    }

    fn rename(&mut self, message: &[u8], context: &mut Context<'_>) {
        let comm = fields(message).filter(|field| field.number == TaskRenameFtraceEvent::NEWCOMM);
        let comm = comm
            .filter_map(|field| field.value.as_bytes())
            .last()
            .unwrap_or(&[]);
        let comm = context.strings.intern_bytes(comm);
        let tid = number_of(message, TaskRenameFtraceEvent::PID).unwrap_or(0) as u32;
        let utid = self.processes.thread(tid.into());
        self.processes.name_thread_and_process(utid, comm, Worth::Ftrace);
    }

    fn new_task(&mut self, ts: i64, by: i64, message: &[u8], context: &mut Context<'_>) {
        let (mut comm, mut tid, mut flags) = (&[][..], 0, 0);
        for field in fields(message) {
            match (field.number, field.value) {
                (1, Value::Varint(value)) => tid = i64::from(value as u32),
                (2, Value::Bytes(bytes)) => comm = bytes,
                (3, Value::Varint(value)) => flags = value,
                _ => {}
            }
        }
        if tid == 0 {
            // The idle thread of a CPU, when the kernel starts.
            return;
        }
        let comm = context.strings.intern_bytes(comm);
        let (source, new) = if flags & CLONE_THREAD == 0 {
            let upid = self
                .processes
                .start_process(Some(ts), None, tid, Some(comm), Worth::Ftrace);
            let source = self.processes.thread(by);
            let new = self.processes.thread(tid);
            self.processes.set_begun_by(upid, source);
            (source, new)
        } else {
            let source = self.processes.thread(by);
            let new = self.processes.start_thread(Some(ts), tid);
            self.processes.name_thread(new, comm, Worth::Ftrace);
            self.processes.associate(source, new);
            (source, new)
        };
        let mut out = To {
            strings: &context.strings,
            output: &mut context.output,
        };
        self.states.new_task(ts, new, source, &mut out);
    }
}
