//! Samples as they come out of a sequence, also with losses. `tests/stack_samples.rs` records them in sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Wake};
use ferretto_proto::write::{StackSample, TracePacketDefaults, stack_sample};
use ferretto_smb::{PageLayout, PageSize};

use super::*;
use crate::callstack::Frame;
use crate::track_event::tests::packets_in;
use crate::wire::Reader;

const TIME: Counter = Counter::new("time", Unit::Nanoseconds).description("On a clock");
const LINES: Counter = Counter::new("lines", Unit::Other("lines"));

struct Silent;

impl Notify for Silent {
    fn wake(&self, _: Wake) {}
}

fn writer() -> (Arc<Arbiter>, TraceWriter) {
    let arbiter = Arbiter::emulating(PageSize::MIN, PageLayout::Div1, Silent).unwrap();
    let writer = arbiter.create_trace_writer(BufferId(1), BufferExhaustedPolicy::Drop);
    (arbiter, writer.unwrap())
}

/// The fields of a message: numbers, and contents of the others.
fn numbers(message: &[u8]) -> BTreeMap<u32, u64> {
    let fields = Reader::new(message).map(Result::unwrap);
    fields
        .filter_map(|field| Some((field.number, field.value.as_varint()?)))
        .collect()
}

fn messages(message: &[u8], number: u32) -> Vec<&[u8]> {
    let fields = Reader::new(message).map(Result::unwrap);
    fields
        .filter(|field| field.number == number)
        .map(|field| field.value.as_bytes().unwrap())
        .collect()
}

/// Whether a packet starts a sequence over.
fn clears(packet: &[u8]) -> bool {
    numbers(packet)[&TracePacket::SEQUENCE_FLAGS] == SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u64
}

/// The samples among packets: numbers of the sample itself. Each must refer to definitions since the sequence started over.
fn samples(packets: &[Vec<u8>]) -> Vec<BTreeMap<u32, u64>> {
    let defining = [
        (StackSample::CALLSTACK_IID, InternedData::CALLSTACKS),
        (
            StackSample::TASK_CONTEXT_IID,
            InternedData::STACK_SAMPLE_TASK_CONTEXTS,
        ),
        (
            StackSample::PRIMARY_DESCRIPTOR_IID,
            InternedData::STACK_SAMPLE_COUNTER_DESCRIPTORS,
        ),
    ];
    let mut known: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut samples = Vec::new();
    for packet in packets {
        if clears(packet) {
            known.clear();
        }
        for data in messages(packet, TracePacket::INTERNED_DATA) {
            for (_, field) in defining {
                let entries = messages(data, field).into_iter();
                known
                    .entry(field)
                    .or_default()
                    .extend(entries.map(|entry| numbers(entry)[&1]));
            }
        }
        for sample in messages(packet, TracePacket::STACK_SAMPLE) {
            let sample = numbers(sample);
            for (reference, field) in defining {
                if let Some(id) = sample.get(&reference) {
                    assert!(
                        known[&field].contains(id),
                        "{sample:?} refers to what is not defined"
                    );
                }
            }
            samples.push(sample);
        }
    }
    samples
}

#[test]
fn a_sample_has_its_stack_its_thread_and_its_weight() {
    let (arbiter, mut writer) = writer();
    let mut samples_of = StackSamples::default();
    let stack = [Frame::named("main")];
    for weight in [7, 8] {
        let sample = Sample::new(&stack, TIME, weight);
        samples_of.write("source", &mut writer, &sample);
    }
    let no_frames: [Frame<'_>; 0] = [];
    let other = Sample::new(&no_frames, LINES, 9).thread(3).cpu(5).timestamp(1000);
    samples_of.write("source", &mut writer, &other);
    writer.flush();
    let packets = packets_in(&arbiter);
    assert_eq!(packets.len(), 4);
    assert!(clears(&packets[0]));
    let defaults = messages(&packets[0], TracePacket::TRACE_PACKET_DEFAULTS)[0];
    let clock = u64::from(clock::chosen().id());
    assert_eq!(numbers(defaults)[&TracePacketDefaults::TIMESTAMP_CLOCK_ID], clock);
    let defaults = messages(defaults, TracePacketDefaults::STACK_SAMPLE_DEFAULTS)[0];
    assert_eq!(messages(defaults, 1), [b"source"]);

    let all = samples(&packets);
    let ids = |index: usize| {
        let fields = [
            StackSample::CALLSTACK_IID,
            StackSample::TASK_CONTEXT_IID,
            StackSample::PRIMARY_DESCRIPTOR_IID,
            StackSample::PRIMARY_WEIGHT,
        ];
        fields.map(|field| all[index].get(&field).copied().unwrap_or(0))
    };
    assert_eq!(
        (ids(0), ids(1), ids(2)),
        ([1, 1, 1, 7], [1, 1, 1, 8], [0, 2, 2, 9])
    );
    assert_eq!(numbers(&packets[3])[&TracePacket::TIMESTAMP], 1000);
    let sample = messages(&packets[3], TracePacket::STACK_SAMPLE)[0];
    let execution = messages(sample, StackSample::EXECUTION_CONTEXT)[0];
    assert_eq!(numbers(execution)[&stack_sample::ExecutionContext::CPU], 5);

    let data = messages(&packets[1], TracePacket::INTERNED_DATA)[0];
    let task = messages(data, InternedData::STACK_SAMPLE_TASK_CONTEXTS)[0];
    let of_task = [1, u64::from(system::process_id()), u64::from(system::thread_id())];
    assert_eq!(numbers(task).into_values().collect::<Vec<_>>(), of_task);
    let counter = messages(data, InternedData::STACK_SAMPLE_COUNTER_DESCRIPTORS)[0];
    assert_eq!(
        numbers(counter)[&CounterDescriptor::UNIT],
        WireUnit::UNIT_NANOSECONDS as u64
    );
    assert_eq!(messages(counter, CounterDescriptor::NAME), [b"time"]);
    assert_eq!(messages(counter, CounterDescriptor::DESCRIPTION), [b"On a clock"]);
    let data = messages(&packets[3], TracePacket::INTERNED_DATA)[0];
    let counter = messages(data, InternedData::STACK_SAMPLE_COUNTER_DESCRIPTORS)[0];
    assert_eq!(messages(counter, CounterDescriptor::UNIT_STR), [b"lines"]);
}

#[test]
fn after_a_loss_everything_is_defined_again() {
    let (arbiter, mut writer) = writer();
    let mut samples_of = StackSamples::default();
    let (mut sent, mut packets) = (0, Vec::new());
    for round in 0..3 {
        // More than the memory holds.
        for number in 0..20_000 {
            let text = format!("{round} {number:0300}");
            let stack = [Frame::named(&text)];
            samples_of.write("source", &mut writer, &Sample::new(&stack, TIME, 1));
            sent += 1;
        }
        writer.flush();
        packets.extend(packets_in(&arbiter));
        let stack = [Frame::named("after")];
        samples_of.write("source", &mut writer, &Sample::new(&stack, LINES, round));
        sent += 1;
    }
    writer.flush();
    packets.extend(packets_in(&arbiter));
    let all = samples(&packets);
    assert!(all.len() < sent && all.len() > 3, "{} of {sent}", all.len());
    let after_losses = packets.iter().filter(|packet| {
        let dropped = numbers(packet)
            .get(&TracePacket::PREVIOUS_PACKET_DROPPED)
            .copied();
        dropped.is_some_and(|reasons| reasons != 0)
    });
    let after_losses: Vec<bool> = after_losses.map(|packet| clears(packet)).collect();
    assert_eq!(after_losses, [true; 3], "what follows a loss starts over");
}

#[test]
fn a_sequence_starts_over_for_readers_of_ring_buffers() {
    let (arbiter, mut writer) = writer();
    let mut samples_of = StackSamples::default();
    let (mut packets, mut bytes) = (Vec::new(), 0);
    let stack = [Frame::named("main")];
    while bytes < 1 << 20 {
        for _ in 0..1000 {
            samples_of.write("source", &mut writer, &Sample::new(&stack, TIME, 1));
        }
        writer.flush();
        let new = packets_in(&arbiter);
        bytes += new.iter().map(Vec::len).sum::<usize>();
        packets.extend(new);
    }
    let beginnings = packets.iter().filter(|packet| clears(packet)).count();
    assert!((6..10).contains(&beginnings), "{beginnings} in {bytes} bytes");
    assert_eq!(samples(&packets).len(), packets.len() - beginnings);
}

#[test]
fn threads_and_counters_are_remembered_up_to_a_number() {
    let (arbiter, mut writer) = writer();
    let mut samples_of = StackSamples::default();
    let stack = [Frame::named("main")];
    let mut packets = Vec::new();
    for tid in 0..3 * MAX_TASKS as u32 {
        samples_of.write("source", &mut writer, &Sample::new(&stack, TIME, 1).thread(tid));
        assert!(samples_of.tasks.len() <= MAX_TASKS);
        if tid % 1000 == 0 {
            writer.flush();
            packets.extend(packets_in(&arbiter));
        }
    }
    writer.flush();
    packets.extend(packets_in(&arbiter));
    assert_eq!(samples(&packets).len(), 3 * MAX_TASKS);
}

#[test]
fn a_sequence_at_its_limits_goes_on_with_what_it_remembers() {
    const NAMES: &str = "0123456789012345678901234567890123456789012345678901234567890123456789";
    let (arbiter, mut writer) = writer();
    let mut samples_of = StackSamples::default();
    let stack = [Frame::named("main")];
    let counter = |number: usize| Counter::new(&NAMES[..number + 1], Unit::Count);
    let mut packets = Vec::new();
    let mut write = |counter: Counter, tid: u32| {
        samples_of.write(
            "source",
            &mut writer,
            &Sample::new(&stack, counter, 1).thread(tid),
        );
        if tid.is_multiple_of(500) {
            writer.flush();
            packets.extend(packets_in(&arbiter));
        }
    };
    for tid in 0..MAX_TASKS as u32 {
        write(counter(tid as usize % MAX_COUNTERS), tid);
    }
    for tid in 0..1000 {
        write(counter(tid as usize % MAX_COUNTERS), tid);
    }
    // One more counter.
    write(counter(MAX_COUNTERS), 0);
    let before = packets.iter().filter(|packet| clears(packet)).count();
    assert_eq!(before, 2, "it begins, and starts over for the counter");
    assert_eq!(samples(&packets).len(), packets.len() - 2);
}
