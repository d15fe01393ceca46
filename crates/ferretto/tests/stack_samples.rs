//! Call stacks of events and samples of a session in this process, as upstream's trace processor reads them.
//!
//! A trace processor of before version 58 knows no `stack_sample` packets, and one of before 53 no stacks of events. All know the interned data that both
//! refer to, and `perf_sample` packets that refer to the same. So the tests put those in the place of the new ones, and say so where they do.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

mod trace_processor;

use ferretto::callstack::{Callstack, Frame};
use ferretto::data_source::{DataSource, DataSourceHandle, SetUp};
use ferretto::session::{DataSource as Source, Session, TraceConfig};
use ferretto::stack_sample::{Counter, Sample, StackSamples, Unit};
use ferretto::wire::{Reader, Value, Writer};
use ferretto::{Options, trace_event, trace_event_instant};
use ferretto_proto::write::{
    PerfSample, StackSample, Trace, TracePacket, TrackEvent, stack_sample::TaskContext,
};

/// A profiler that takes a sample when the test says so.
struct OnDemand;

impl DataSource for OnDemand {
    const NAME: &'static str = "ferretto.test.on_demand";
    type Incremental = StackSamples;
    type Thread = ();

    fn set_up(_: &SetUp<'_>) -> Self {
        OnDemand
    }
}

static SAMPLES: DataSourceHandle<OnDemand> = DataSourceHandle::new();
const WORK: Counter = Counter::new("work", Unit::Count);

/// A thread's number and the addresses of its stack, the innermost first.
struct Taken {
    tid: u32,
    stack: Vec<usize>,
}

#[inline(never)]
fn work() -> Taken {
    let stack = Callstack::capture();
    for weight in 1..=10 {
        SAMPLES.trace(|ctx| ctx.stack_sample(&Sample::new(&stack, WORK, weight)));
        trace_event_instant!("test", "Captured", callstack = &stack);
    }
    Taken {
        tid: ferretto::stack_sample::thread_id(),
        stack: stack.addresses().to_vec(),
    }
}

/// A trace of two threads that work, and their numbers and stacks.
fn record() -> (Vec<u8>, [Taken; 2]) {
    ferretto::initialize(Options::in_process());
    SAMPLES.register();
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(4096)
        .data_source(Source::track_event())
        .data_source(Source::new(OnDemand::NAME));
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    assert!(SAMPLES.is_active());
    let on_a_thread = || {
        let thread = std::thread::spawn(|| {
            trace_event!(
                "test",
                "Work",
                callstack = [Frame::named("named").source("file.rs", 3)]
            );
            work()
        });
        thread.join().unwrap()
    };
    let taken = [on_a_thread(), on_a_thread()];
    session.stop_blocking().unwrap();
    (session.read_to_end().unwrap(), taken)
}

fn bytes_of(message: &[u8], number: u32) -> Option<&[u8]> {
    let fields = Reader::new(message).map(Result::unwrap);
    fields
        .filter(|field| field.number == number)
        .last()?
        .value
        .as_bytes()
}

fn number_of(message: &[u8], number: u32) -> Option<u64> {
    let fields = Reader::new(message).map(Result::unwrap);
    fields
        .filter(|field| field.number == number)
        .last()?
        .value
        .as_varint()
}

/// The trace, with a `perf_sample` in the place of each `stack_sample` and of each event with a stack.
fn with_perf_samples(trace: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    // Threads by the ids that sequences give them.
    let mut tasks = std::collections::HashMap::new();
    for packet in Reader::new(trace) {
        let packet = packet.unwrap().value.as_bytes().unwrap();
        let sequence = number_of(packet, TracePacket::TRUSTED_PACKET_SEQUENCE_ID);
        if let Some(data) = bytes_of(packet, TracePacket::INTERNED_DATA)
            && let Some(task) = bytes_of(
                data,
                ferretto_proto::write::InternedData::STACK_SAMPLE_TASK_CONTEXTS,
            )
        {
            let tid = number_of(task, TaskContext::TID).unwrap();
            tasks.insert((sequence, number_of(task, TaskContext::IID).unwrap()), tid);
        }
        let sample = bytes_of(packet, TracePacket::STACK_SAMPLE);
        let event = bytes_of(packet, TracePacket::TRACK_EVENT);
        let of_sample = sample.map(|sample| {
            let task = number_of(sample, StackSample::TASK_CONTEXT_IID).unwrap();
            (
                number_of(sample, StackSample::CALLSTACK_IID).unwrap(),
                tasks[&(sequence, task)],
            )
        });
        let of_event = event.and_then(|event| Some((number_of(event, TrackEvent::CALLSTACK_IID)?, 0)));
        writer.nested(Trace::PACKET, |out| {
            for field in Reader::new(packet) {
                let field = field.unwrap();
                match (field.number, field.value) {
                    (TracePacket::STACK_SAMPLE, _) => {}
                    (TracePacket::TRACK_EVENT, _) if of_event.is_some() => {}
                    (number, Value::Varint(value)) => out.varint_field(number, value),
                    (number, Value::Bytes(bytes)) => out.bytes_field(number, bytes),
                    (number, value) => panic!("no packet here has such a field: {number} {value:?}"),
                }
            }
            if let Some((stack, tid)) = of_sample.or(of_event) {
                out.nested(TracePacket::PERF_SAMPLE, |out| {
                    out.varint_field(PerfSample::CPU, 0);
                    out.varint_field(PerfSample::PID, std::process::id().into());
                    out.varint_field(PerfSample::TID, tid);
                    out.varint_field(PerfSample::CALLSTACK_IID, stack);
                });
            }
        });
    }
    writer.as_slice().to_vec()
}

const PROBLEMS: &str = "select name, value from stats where severity in ('error', 'data_loss') and value > 0";

#[test]
fn upstreams_trace_processor_resolves_the_stacks() {
    let (trace, taken) = record();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");

    // As it is. A version before 53 counts the stacks of events as fields that it does not know, and sees everything else.
    std::fs::write(&path, &trace).unwrap();
    let Some(problems) = trace_processor::ask(&path, PROBLEMS) else {
        return;
    };
    assert!(
        problems.is_empty() || problems == [["unknown_extension_fields", "22"]],
        "{problems:?}"
    );
    let events = trace_processor::ask(
        &path,
        "select name, count(*) from slice group by name order by name",
    )
    .unwrap();
    assert_eq!(events, [["Captured", "20"], ["Work", "2"]]);

    std::fs::write(&path, with_perf_samples(&trace)).unwrap();
    for Taken { tid, stack } in &taken {
        // Each sample of the thread has the stack with the addresses that were captured, the outermost frame first.
        let query = format!(
            "with recursive frames(sample, callsite) as (
                select p.id, p.callsite_id from perf_sample p join thread using (utid) where tid = {tid}
                union all
                select sample, parent_id from frames join stack_profile_callsite c on c.id = callsite where parent_id is not null
             ),
             named as (
                select sample, c.depth, m.name, m.build_id != '' as has_id, f.rel_pc - m.load_bias - m.exact_offset + m.start as address
                from frames join stack_profile_callsite c on c.id = callsite
                join stack_profile_frame f on f.id = c.frame_id join stack_profile_mapping m on m.id = f.mapping
             )
             select group_concat(depth || ' ' || address || ' ' || has_id || ' ' || name, ';')
             from (select * from named order by sample, depth) group by sample"
        );
        let rows = trace_processor::ask(&path, &query).unwrap();
        assert_eq!(rows.len(), 10, "{rows:?}");
        let program = std::env::current_exe().unwrap();
        for row in rows {
            let frames: Vec<Vec<&str>> = row[0]
                .split(';')
                .map(|frame| frame.splitn(4, ' ').collect())
                .collect();
            let addresses: Vec<usize> = frames
                .iter()
                .rev()
                .map(|frame| frame[1].parse().unwrap())
                .collect();
            assert_eq!(&addresses, stack);
            assert!(
                frames
                    .iter()
                    .enumerate()
                    .all(|(depth, frame)| frame[0] == depth.to_string())
            );
            // The innermost is in this program, and has the program's build id.
            let innermost = frames.last().unwrap();
            assert_eq!(innermost[3], program.to_str().unwrap());
            assert_eq!(innermost[2], if has_build_id() { "1" } else { "0" });
        }
    }
    let of_events =
        "select count(*), count(callsite_id) from perf_sample join thread using (utid) where tid = 0";
    let of_events = trace_processor::ask(&path, of_events).unwrap();
    // A version before 53 does not resolve the two stacks that have only names.
    assert_eq!(of_events[0][0], "22");
    assert!(["20", "22"].contains(&of_events[0][1].as_str()), "{of_events:?}");
}

/// Whether the linker has given this program a build id, by the text of the note's owner right before it.
fn has_build_id() -> bool {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let head = [
        4u32.to_le_bytes(),
        20u32.to_le_bytes(),
        3u32.to_le_bytes(),
        *b"GNU\0",
    ]
    .concat();
    program.windows(head.len()).any(|window| window == head)
}
