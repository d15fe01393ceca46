//! Kernel events as text: the lines of the kernel's own trace file, as `traceconv systrace` writes them.
//!
//! A line is `comm-tid (tgid) [cpu] .... seconds.microseconds: event: arguments`. Names of threads are those that the trace ends with. Arguments are
//! `name=value` in the order of the packet, apart from the events that upstream formats as the kernel does ([`arguments`]).

use std::collections::HashMap;
use std::io::{self, Write};

use ferretto_proto::kernel_names::SOFTIRQS;
use ferretto_proto::messages::{ClockSnapshot, Message};
use ferretto_proto::text::Printer;
use ferretto_proto::write::ftrace_event_bundle::{CompactSched, GenericEventDescriptor};
use ferretto_proto::write::{
    DescriptorProto, FieldDescriptorProto, FtraceEvent, FtraceEventBundle, ProcessTree, TracePacket,
    process_tree,
};
use ferretto_wire::{Reader, Value, Writer, take_varint};

use super::sorted_spool::SortedSpool;
use crate::packet::{Packet, bytes, varint};
use crate::samples::{Names, Thread};
use crate::timeline::Timeline;

const FTRACE_EVENT: &str = "perfetto.protos.FtraceEvent";
/// The lines before the events, as the kernel has them.
const HEADER: &str = "\
# tracer: nop
#
#                                      _-----=> irqs-off
#                                     / _----=> need-resched
#                                    | / _---=> hardirq/softirq
#                                    || / _--=> preempt-depth
#                                    ||| /     delay
#           TASK-PID    TGID   CPU#  ||||    TIMESTAMP  FUNCTION
#              | |        |      |   ||||       |         |
";
/// The width of a thread's name.
const NAME_WIDTH: usize = 16;
/// Nanoseconds in a second, and in a microsecond.
const SECOND: u64 = 1_000_000_000;
const MICROSECOND: u64 = 1000;

/// Fields of a record between the two passes.
mod field {
    pub(super) const CPU: u32 = 1;
    pub(super) const TID: u32 = 2;
    pub(super) const TEXT: u32 = 3;
}

/// Takes in packets and writes lines.
pub(super) struct Systrace {
    printer: Printer,
    timeline: Timeline,
    names: Names,
    /// The processes of threads.
    processes: HashMap<u32, u32>,
    /// Events that the trace itself describes, by their field.
    described: HashMap<u32, Described>,
    /// The running thread of each CPU, as the last compact `sched_switch` left it.
    running: HashMap<u32, Running>,
    spool: SortedSpool,
    /// The number of events whose time cannot be told.
    pub(super) timeless: u64,
}

/// A kernel event that only the trace knows.
#[derive(Debug, Default)]
struct Described {
    name: String,
    fields: HashMap<u32, String>,
}

/// The thread that a switch has left running.
#[derive(Debug, Clone, Default)]
struct Running {
    pid: i64,
    priority: i64,
    comm: String,
}

/// Events in columns. Times are distances from the last one.
struct Columns {
    times: Vec<u64>,
    pids: Vec<u64>,
    priorities: Vec<u64>,
    /// The state that a thread left the processor in, or the processor on which one is woken.
    others: Vec<u64>,
    comms: Vec<u64>,
}

/// One of these events.
struct Row {
    time: u64,
    pid: i64,
    priority: i64,
    other: i64,
    comm: u64,
}

impl Columns {
    fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        let mut time = 0_u64;
        self.times.iter().enumerate().map(move |(place, distance)| {
            time = time.wrapping_add(*distance);
            let number = |column: &[u64]| column.get(place).copied().unwrap_or(0);
            Row {
                time,
                pid: number(&self.pids) as i64,
                priority: number(&self.priorities) as i64,
                other: number(&self.others) as i64,
                comm: number(&self.comms),
            }
        })
    }
}

/// The clock of a bundle's times: boot time, or another one and what both showed at one moment.
#[derive(Debug, Clone, Copy)]
struct Clock {
    kernel: u64,
    boot: u64,
}

impl Systrace {
    /// # Errors
    /// If there can be no temporary file.
    pub(super) fn new() -> io::Result<Systrace> {
        let printer = Printer::new(FTRACE_EVENT);
        Ok(Systrace {
            printer: printer.ok_or(io::ErrorKind::NotFound)?,
            timeline: Timeline::default(),
            names: Names::default(),
            processes: HashMap::new(),
            described: HashMap::new(),
            running: HashMap::new(),
            spool: SortedSpool::new()?,
            timeless: 0,
        })
    }

    /// Whether no event has come so far.
    pub(super) fn is_empty(&self) -> bool {
        self.spool.is_empty()
    }

    /// Takes in a packet.
    ///
    /// # Errors
    /// If the temporary file cannot be written.
    pub(super) fn packet(&mut self, encoded: &[u8]) -> io::Result<()> {
        let packet = Packet::new(encoded);
        let Some((kind, content)) = packet.content else {
            return Ok(());
        };
        match kind {
            TracePacket::FTRACE_EVENTS => return self.bundle(content),
            TracePacket::PROCESS_TREE => {
                self.names.process_tree(content);
                self.process_tree(content);
            }
            TracePacket::TRACK_DESCRIPTOR => self.names.track_descriptor(content),
            TracePacket::CLOCK_SNAPSHOT => {
                if let Ok(snapshot) = ClockSnapshot::decode_from_slice(content) {
                    self.timeline.snapshot(packet.sequence, &snapshot);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn process_tree(&mut self, content: &[u8]) {
        for field in Reader::new(content).map_while(Result::ok) {
            match (field.number, field.value) {
                (ProcessTree::PROCESSES, Value::Bytes(process)) => {
                    if let Some(pid) = varint(process, process_tree::Process::PID) {
                        self.processes.insert(pid as u32, pid as u32);
                    }
                }
                (ProcessTree::THREADS, Value::Bytes(thread)) => {
                    let tid = varint(thread, process_tree::Thread::TID);
                    let tgid = varint(thread, process_tree::Thread::TGID);
                    if let (Some(tid), Some(tgid)) = (tid, tgid) {
                        self.processes.insert(tid as u32, tgid as u32);
                    }
                }
                _ => {}
            }
        }
    }

    fn bundle(&mut self, content: &[u8]) -> io::Result<()> {
        self.names.kernel_events(content);
        let cpu = varint(content, FtraceEventBundle::CPU).unwrap_or(0) as u32;
        let clock = match varint(content, FtraceEventBundle::FTRACE_CLOCK).unwrap_or(0) {
            0 => Some(Clock { kernel: 0, boot: 0 }),
            _ => {
                let kernel = varint(content, FtraceEventBundle::FTRACE_TIMESTAMP);
                let boot = varint(content, FtraceEventBundle::BOOT_TIMESTAMP);
                kernel.zip(boot).map(|(kernel, boot)| Clock { kernel, boot })
            }
        };
        for field in Reader::new(content).map_while(Result::ok) {
            if let (FtraceEventBundle::GENERIC_EVENT_DESCRIPTORS, Value::Bytes(described)) =
                (field.number, field.value)
            {
                self.describe(described);
            }
        }
        for field in Reader::new(content).map_while(Result::ok) {
            match (field.number, field.value) {
                (FtraceEventBundle::EVENT, Value::Bytes(event)) => self.event(cpu, event, clock)?,
                (FtraceEventBundle::COMPACT_SCHED, Value::Bytes(compact)) => {
                    self.compact(cpu, compact, clock)?
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes in a `GenericEventDescriptor`.
    fn describe(&mut self, encoded: &[u8]) {
        let number = varint(encoded, GenericEventDescriptor::FIELD_ID).unwrap_or(0) as u32;
        let Some(descriptor) = bytes(encoded, GenericEventDescriptor::EVENT_DESCRIPTOR) else {
            return;
        };
        let text = |message, number| {
            let text = bytes(message, number).unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        let described = self.described.entry(number).or_default();
        described.name = text(descriptor, DescriptorProto::NAME);
        for field in Reader::new(descriptor).map_while(Result::ok) {
            if let (DescriptorProto::FIELD, Value::Bytes(field)) = (field.number, field.value) {
                let number = varint(field, FieldDescriptorProto::NUMBER).unwrap_or(0) as u32;
                described
                    .fields
                    .insert(number, text(field, FieldDescriptorProto::NAME));
            }
        }
    }

    fn line(&mut self, cpu: u32, tid: u32, time: u64, clock: Option<Clock>, text: &str) -> io::Result<()> {
        let Some(clock) = clock else {
            self.timeless += 1;
            return Ok(());
        };
        let time = time.wrapping_sub(clock.kernel).wrapping_add(clock.boot);
        let mut record = Writer::new();
        record.varint_field(field::CPU, cpu.into());
        record.varint_field(field::TID, tid.into());
        record.bytes_field(field::TEXT, text.as_bytes());
        self.spool.push(time, record.as_slice())
    }

    fn event(&mut self, cpu: u32, event: &[u8], clock: Option<Clock>) -> io::Result<()> {
        let time = varint(event, FtraceEvent::TIMESTAMP).unwrap_or(0);
        let tid = varint(event, FtraceEvent::PID).unwrap_or(0) as u32;
        let mut text = Vec::new();
        self.printer.print(event, 0, &mut text)?;
        let mut own = Reader::new(event).map_while(Result::ok);
        let described =
            own.find_map(|field| Some((self.described.get(&field.number)?, field.value.as_bytes()?)));
        let (name, fields) = match described {
            Some((described, content)) => (described.name.clone(), described_fields(described, content)),
            None => parse(&String::from_utf8_lossy(&text)),
        };
        if name.is_empty() {
            return Ok(());
        }
        if name == "task_newtask" {
            self.new_task(tid, &fields);
        }
        let line = rendered(&name, &fields);
        self.line(cpu, tid, time, clock, &line)
    }

    /// Takes in that a thread has made another one, in its own process or as a process.
    fn new_task(&mut self, parent: u32, fields: &Fields) {
        const CLONE_THREAD: u64 = 0x10000;
        let number = |key: &str| {
            let mut fields = fields.iter();
            fields
                .find(|(name, _)| name == key)
                .and_then(|(_, value)| value.parse::<u64>().ok())
        };
        let Some(child) = number("pid") else { return };
        let child = child as u32;
        match number("clone_flags").unwrap_or(0) & CLONE_THREAD {
            0 => self.processes.insert(child, child),
            _ => self
                .processes
                .get(&parent)
                .copied()
                .and_then(|process| self.processes.insert(child, process)),
        };
    }

    /// Takes in `sched_switch` and `sched_waking` events in columns.
    fn compact(&mut self, cpu: u32, compact: &[u8], clock: Option<Clock>) -> io::Result<()> {
        let table: Vec<String> = Reader::new(compact)
            .map_while(Result::ok)
            .filter(|field| field.number == CompactSched::INTERN_TABLE)
            .filter_map(|field| Some(String::from_utf8_lossy(field.value.as_bytes()?).into_owned()))
            .collect();
        let column = |number| -> Vec<u64> {
            let mut packed = bytes(compact, number).unwrap_or_default();
            std::iter::from_fn(|| take_varint(&mut packed)).collect()
        };
        let switches = Columns {
            times: column(CompactSched::SWITCH_TIMESTAMP),
            pids: column(CompactSched::SWITCH_NEXT_PID),
            priorities: column(CompactSched::SWITCH_NEXT_PRIO),
            others: column(CompactSched::SWITCH_PREV_STATE),
            comms: column(CompactSched::SWITCH_NEXT_COMM_INDEX),
        };
        let wakings = Columns {
            times: column(CompactSched::WAKING_TIMESTAMP),
            pids: column(CompactSched::WAKING_PID),
            priorities: column(CompactSched::WAKING_PRIO),
            others: column(CompactSched::WAKING_TARGET_CPU),
            comms: column(CompactSched::WAKING_COMM_INDEX),
        };
        let (mut switches, mut wakings) = (switches.rows().peekable(), wakings.rows().peekable());
        loop {
            // The thread that wakes another is the one that runs, so both have to be taken in together.
            let is_switch = match (switches.peek(), wakings.peek()) {
                (Some(switch), Some(waking)) => switch.time <= waking.time,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => return Ok(()),
            };
            let row = if is_switch {
                switches.next()
            } else {
                wakings.next()
            };
            let Some(row) = row else { return Ok(()) };
            let comm = usize::try_from(row.comm).ok().and_then(|index| table.get(index));
            let comm = comm.cloned().unwrap_or_default();
            if is_switch {
                self.compact_switch(cpu, &row, comm, clock)?;
            } else if let Some(waker) = self.running.get(&cpu) {
                let text = format!(
                    "sched_waking: comm={comm} pid={} prio={} target_cpu={}",
                    row.pid, row.priority, row.other
                );
                self.line(cpu, waker.pid as u32, row.time, clock, &text)?;
            }
        }
    }

    fn compact_switch(&mut self, cpu: u32, row: &Row, comm: String, clock: Option<Clock>) -> io::Result<()> {
        self.names.name_by_kernel(row.pid as u32, comm.as_bytes());
        let next = Running {
            pid: row.pid,
            priority: row.priority,
            comm,
        };
        // Before the first switch it is not known who ran.
        let Some(previous) = self.running.insert(cpu, next.clone()) else {
            return Ok(());
        };
        let text = format!(
            "sched_switch: prev_comm={} prev_pid={} prev_prio={} prev_state={} ==> next_comm={} next_pid={} next_prio={}",
            previous.comm,
            previous.pid,
            previous.priority,
            task_state(row.other),
            next.comm,
            next.pid,
            next.priority,
        );
        self.line(cpu, previous.pid as u32, row.time, clock, &text)
    }

    /// Writes everything.
    ///
    /// # Errors
    /// The errors of `out`, or if the temporary file cannot be read.
    pub(super) fn finish(self, out: &mut dyn Write) -> io::Result<()> {
        let (names, processes) = (&self.names, &self.processes);
        out.write_all(HEADER.as_bytes())?;
        self.spool.each(|time, record| {
            let cpu = varint(record, field::CPU).unwrap_or(0);
            let tid = varint(record, field::TID).unwrap_or(0) as u32;
            let text = bytes(record, field::TEXT).unwrap_or_default();
            let process = processes.get(&tid).copied().unwrap_or(0);
            let name = match tid {
                0 => "<idle>",
                tid => names.thread(Thread { pid: process, tid }).unwrap_or("<unknown>"),
            };
            // A hyphen ends the name.
            let name = name.replace('-', "_");
            write!(out, "{name:>NAME_WIDTH$}-{tid:<5} (")?;
            match process {
                0 => out.write_all(b"-----")?,
                process => write!(out, "{process:>5}")?,
            }
            let (seconds, fraction) = (time / SECOND, time % SECOND / MICROSECOND);
            write!(out, ") [{cpu:03}] .... {seconds}.{fraction:06}: ")?;
            out.write_all(text)?;
            out.write_all(b"\n")
        })
    }
}

/// Names and values of an event's fields.
type Fields = Vec<(String, String)>;

/// Takes the event out of a printed `FtraceEvent`: its name, and its fields without quotes.
fn parse(text: &str) -> (String, Fields) {
    let mut name = String::new();
    let mut fields = Fields::new();
    for line in text.lines() {
        let line = line.trim_start();
        if let Some(opened) = line.strip_suffix(" {") {
            if name.is_empty() {
                opened.clone_into(&mut name);
            }
        } else if let (false, Some((key, value))) = (name.is_empty(), line.split_once(": ")) {
            fields.push((key.to_owned(), unquoted(value)));
        }
    }
    (name, fields)
}

/// Returns a printed value without its quotes and escapes.
fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) else {
        return value.to_owned();
    };
    let (mut plain, mut rest) = (Vec::new(), inner.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            plain.push(*first);
            continue;
        }
        match rest.first() {
            Some(b'0'..=b'7') => {
                let digits = rest.get(..3).unwrap_or(rest);
                plain.push(digits.iter().fold(0_u8, |byte, digit| byte << 3 | (digit & 7)));
                rest = rest.get(digits.len()..).unwrap_or_default();
            }
            Some(letter) => {
                plain.push(match letter {
                    b'a' => 0x07,
                    b'b' => 0x08,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    b'r' => b'\r',
                    other => *other,
                });
                rest = rest.get(1..).unwrap_or_default();
            }
            None => {}
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Returns the fields of an event that the trace describes.
fn described_fields(described: &Described, content: &[u8]) -> Fields {
    let mut fields = Fields::new();
    for field in Reader::new(content).map_while(Result::ok) {
        let value = match field.value {
            Value::Varint(value) => (value as i64).to_string(),
            Value::Fixed32(value) => value.to_string(),
            Value::Fixed64(value) => value.to_string(),
            Value::Bytes(text) => String::from_utf8_lossy(text).into_owned(),
        };
        if let Some(name) = described.fields.get(&field.number) {
            fields.push((name.clone(), value));
        }
    }
    fields
}

/// Returns the line of an event behind its time.
fn rendered(name: &str, fields: &Fields) -> String {
    let shown = match name {
        "print" => "tracing_mark_write",
        "generic" | "kprobe_event" => fields.first().map_or(name, |(_, value)| value),
        name => name,
    };
    format!("{shown}:{}", arguments(name, fields))
}

/// Returns the arguments, for some events in the words of the kernel.
fn arguments(name: &str, fields: &Fields) -> String {
    let get = |key: &str| {
        let mut fields = fields.iter();
        fields
            .find(|(name, _)| name == key)
            .map_or("", |(_, value)| value.as_str())
    };
    let number = |key: &str| get(key).parse::<i64>().unwrap_or(0);
    match name {
        "sched_switch" => format!(
            " prev_comm={} prev_pid={} prev_prio={} prev_state={} ==> next_comm={} next_pid={} next_prio={}",
            get("prev_comm"),
            get("prev_pid"),
            get("prev_prio"),
            task_state(number("prev_state")),
            get("next_comm"),
            get("next_pid"),
            get("next_prio"),
        ),
        "sched_wakeup" => format!(
            " comm={} pid={} prio={} target_cpu={:03}",
            get("comm"),
            get("pid"),
            get("prio"),
            number("target_cpu"),
        ),
        "print" => format!(" {}", get("buf").strip_suffix('\n').unwrap_or(get("buf"))),
        "irq_handler_exit" => {
            let result = if number("ret") == 0 {
                "unhandled"
            } else {
                "handled"
            };
            format!(" irq={} ret={result}", get("irq"))
        }
        "workqueue_queue_work" => format!(
            " work struct={:x} function={:x} workqueue={} req_cpu={} cpu={}",
            number("work"),
            number("function"),
            get("workqueue"),
            get("req_cpu"),
            get("cpu"),
        ),
        "workqueue_activate_work" | "workqueue_execute_end" => format!(" work struct {:x}", number("work")),
        "workqueue_execute_start" => {
            format!(
                " work struct {:x}: function {:x}",
                number("work"),
                number("function")
            )
        }
        "softirq_entry" | "softirq_exit" => {
            let vector = usize::try_from(number("vec")).ok();
            let action = vector.and_then(|vector| SOFTIRQS.get(vector)).copied();
            format!(" vec={} [action={}]", get("vec"), action.unwrap_or(get("vec")))
        }
        _ => fields
            .iter()
            .map(|(name, value)| format!(" {name}={value}"))
            .collect(),
    }
}

/// Returns the state of a thread that left the processor, in the kernel's letters (since 4.14): `R` if it could go on, with `+` if it had to stop.
fn task_state(state: i64) -> String {
    const LETTERS: [char; 8] = ['S', 'D', 'T', 't', 'X', 'Z', 'P', 'I'];
    const PREEMPTED: i64 = 0x100;
    let letters: Vec<String> = (0..8)
        .filter(|bit| state >> bit & 1 == 1)
        .map(|bit| LETTERS[bit as usize].to_string())
        .collect();
    let mut text = match letters.is_empty() {
        true => "R".to_owned(),
        false => letters.join("|"),
    };
    if state & PREEMPTED != 0 {
        text.push('+');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_events_are_taken_apart() {
        let text = "timestamp: 1\npid: 2\nprint {\n  ip: 3\n  buf: \"a\\\"\\303\\244\\n\"\n}\n";
        let (name, fields) = parse(text);
        assert_eq!(name, "print");
        assert_eq!(rendered(&name, &fields), "tracing_mark_write: a\"ä");
    }

    #[test]
    fn states_have_the_letters_of_the_kernel() {
        assert_eq!(task_state(0), "R");
        assert_eq!(task_state(0x100), "R+");
        assert_eq!(task_state(1), "S");
        assert_eq!(task_state(2), "D");
    }
}
