//! Call stacks of events.

use super::*;
use crate::callstack::{Callstack, Frame, Frames};

/// The names of the frames of each event's stack, the outermost first, as readers resolve them; `None` for an event without a stack.
fn stacks(packets: &[TracePacket]) -> Vec<Option<Vec<String>>> {
    let mut known = ferretto_proto::messages::InternedData::default();
    let mut stacks = Vec::new();
    for packet in packets {
        if packet.sequence_flags.unwrap_or(0) & 1 != 0 {
            known = Default::default();
        }
        if let Some(data) = packet.interned_data.as_option() {
            known.callstacks.extend_from_slice(&data.callstacks);
            known.frames.extend_from_slice(&data.frames);
            known.function_names.extend_from_slice(&data.function_names);
        }
        let Some(trace_packet::Data::TrackEvent(event)) = &packet.data else {
            continue;
        };
        if name(event).is_empty() && event.name_field.is_none() {
            continue;
        }
        let Some(track_event::CallstackField::CallstackIid(id)) = event.callstack_field else {
            stacks.push(None);
            continue;
        };
        let stack = known
            .callstacks
            .iter()
            .find(|stack| stack.iid == Some(id))
            .unwrap();
        let names = stack.frame_ids.iter().map(|id| {
            let frame = known.frames.iter().find(|frame| frame.iid == Some(*id)).unwrap();
            let Some(function) = frame.function_name_id else {
                return String::new();
            };
            let mut names = known.function_names.iter();
            let entry = names.find(|entry| entry.iid == Some(function)).unwrap();
            String::from_utf8(entry.str.clone().unwrap()).unwrap()
        });
        stacks.push(Some(names.collect()));
    }
    stacks
}

fn definitions(packets: &[TracePacket]) -> usize {
    packets
        .iter()
        .map(|packet| packet.interned_data.callstacks.len())
        .sum()
}

#[test]
fn the_stack_of_an_event_is_described_once() {
    let main = Frame::named("main").source("main.rs", 3);
    let packets = Recording::of(TrackEventConfig::default(), move || {
        for _ in 0..10 {
            trace_event_instant!("c", "Event", "n" => 1, callstack = [Frame::named("inner"), main]);
            trace_event!("c", "Slice", callstack = &[main][..]);
        }
        trace_event_instant!("c", "No frames", callstack = Vec::new());
        trace_event_instant!("c", "No stack");
        trace_event_instant!("c", "By hand", |event| {
            event.callstack(&[main]).callstack_weight(4.5);
        });
    });
    let stacks = stacks(&packets);
    let (event, slice) = (
        ["main", "inner"].map(str::to_owned).to_vec(),
        vec!["main".to_owned()],
    );
    assert_eq!(
        stacks[..20],
        vec![[Some(event), Some(slice.clone())]; 10].concat()[..]
    );
    assert_eq!(stacks[20..], [None, None, Some(slice)]);
    assert_eq!(definitions(&packets), 2);
    let weights = packets.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::TrackEvent(event)) => event.callstack_weight,
        _ => None,
    });
    assert_eq!(weights.collect::<Vec<_>>(), [4.5]);
}

#[test]
fn stacks_are_described_again_when_a_sequence_starts_over() {
    let recording = Recording::start(TrackEventConfig::default());
    on_a_thread(|| {
        for _ in 0..3 {
            for _ in 0..2 {
                trace_event_instant!("c", "Event", callstack = [Frame::named("main")]);
            }
            registry::clear_incremental_state(recording.slot);
        }
    });
    let packets = recording.finish();
    assert_eq!(stacks(&packets), vec![Some(vec!["main".to_owned()]); 6]);
    assert_eq!(definitions(&packets), 3);
}

#[test]
fn after_a_loss_stacks_are_described_again() {
    let recording = Recording::start(TrackEventConfig::default());
    let (mut sent, mut packets) = (0, Vec::new());
    on_a_thread(|| {
        for round in 0..3 {
            // These events take more than the memory holds.
            for _ in 0..60_000 {
                trace_event_instant!("c", "Filler", "text" => "0123456789012345678901234567890123456789",
                    callstack = [Frame::named("main")]);
                sent += 1;
            }
            packets.extend(recording.take());
            let names = ["first", "second", "third"];
            trace_event_instant!("c", "Round", callstack = [Frame::named(names[round])]);
            sent += 1;
        }
    });
    packets.extend(recording.finish());
    let stacks = stacks(&packets);
    assert!(stacks.len() < sent, "something is lost");
    for round in ["main", "first", "second", "third"] {
        assert!(stacks.contains(&Some(vec![round.to_owned()])), "{round}");
    }
    assert!(stacks.iter().all(Option::is_some));
}

#[test]
fn a_stack_whose_frames_panic_leaves_the_next_event_readable() {
    struct Panics;
    impl Frames for Panics {
        fn for_each(&self, each: &mut dyn FnMut(Frame<'_>)) {
            each(Frame::named("before"));
            panic!("in the middle of a stack");
        }
    }
    let packets = Recording::of(TrackEventConfig::default(), || {
        for _ in 0..2 {
            let panicked = std::panic::catch_unwind(|| {
                trace_event_instant!("c", "Panics", callstack = Panics);
            });
            assert!(panicked.is_err());
            trace_event_instant!("c", "Next", callstack = [Frame::named("main")]);
        }
    });
    let next = stacks(&packets)
        .into_iter()
        .filter(|stack| stack.as_ref().is_some_and(|names| names == &["main"]));
    assert_eq!(next.count(), 2);
}

#[test]
fn a_captured_stack_is_written_in_a_few_bytes_once_it_is_known() {
    let packets = Recording::of(TrackEventConfig::default(), || {
        for _ in 0..100 {
            trace_event_instant!("category", "Event", callstack = Callstack::capture());
        }
    });
    assert_eq!(definitions(&packets), 1);
    let events = packets.iter().filter(|packet| !packet.interned_data.is_set());
    let events = events.filter(|packet| matches!(packet.data, Some(trace_packet::Data::TrackEvent(_))));
    let sizes: Vec<usize> = events.map(|packet| 1 + packet.encoded_len()).collect();
    assert_eq!(sizes.len(), 99);
    // The same event without a stack takes 3 bytes less.
    assert!(sizes.iter().all(|size| *size <= 20), "{sizes:?}");
}
