//! Data sources that an application makes with the SDK, in processes of their own, with our service and upstream's. The trace has exactly the data
//! that they wrote, whichever process starts first and whichever ends in between.

mod application;
mod processes;
mod sessions;
mod startup;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::{Program, Programs, Side, System};
use application::Application;
use ferretto_proto::messages::TestEvent;
use ferretto_wire::Reader;

/// Not a test: the tests run this as the application.
#[test]
fn application() {
    application::run();
}

/// Returns the application's events, by sequence, in the order of the trace.
pub(crate) fn events(trace: &Path) -> BTreeMap<u64, Vec<TestEvent>> {
    use ferretto_proto::messages::Message;
    let bytes = std::fs::read(trace).unwrap();
    let mut events: BTreeMap<u64, Vec<TestEvent>> = BTreeMap::new();
    for packet in Reader::new(&bytes).map(Result::unwrap) {
        let (mut sequence, mut event) = (0, None);
        for field in Reader::new(packet.value.as_bytes().unwrap()).map(Result::unwrap) {
            match field.number {
                10 => sequence = field.value.as_varint().unwrap(),
                900 => event = Some(TestEvent::decode_from_slice(field.value.as_bytes().unwrap()).unwrap()),
                _ => {}
            }
        }
        if let Some(event) = event {
            events.entry(sequence).or_default().push(event);
        }
    }
    events
}

/// Returns the numbers in a trace, each once.
pub(crate) fn numbers(trace: &Path) -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    for number in events(trace)
        .values()
        .flatten()
        .filter_map(|event| event.seq_value)
    {
        assert!(numbers.insert(number), "{number} is there twice");
    }
    numbers
}

/// Asserts that a trace has exactly these numbers; prints some that differ.
#[track_caller]
pub(crate) fn assert_numbers(trace: &Path, expected: std::ops::Range<u32>) {
    let (numbers, expected) = (numbers(trace), expected.collect::<BTreeSet<u32>>());
    let differing: Vec<&u32> = numbers.symmetric_difference(&expected).take(20).collect();
    assert!(
        numbers == expected,
        "{} of {}; among those that differ: {differing:?}",
        numbers.len(),
        expected.len()
    );
}

pub(crate) fn texts(trace: &Path) -> Vec<String> {
    let events = events(trace);
    events
        .values()
        .flatten()
        .filter_map(|event| event.str.clone())
        .collect()
}

pub(crate) const CONFIG: &str =
    r#"buffers { size_kb: 16384 } data_sources { config { name: "ferretto.test.numbers" } }"#;

pub(crate) const STALL: &str = "buffer_exhausted_policy: BUFFER_EXHAUSTED_STALL_THEN_DROP";

/// A config with more fields in that of the data source.
pub(crate) fn config_with(more: &str) -> String {
    format!(
        r#"buffers {{ size_kb: 16384 }} data_sources {{ config {{ name: "ferretto.test.numbers" {more} }} }}"#
    )
}

/// Runs a story with each service that is installed.
pub(crate) fn with_each_service(story: impl Fn(&mut System<'_>, Side)) {
    let both = Programs::of_both();
    let sides: &[Side] = match both {
        Some(_) => &[Side::Ours, Side::Upstream],
        None => &[Side::Ours],
    };
    let programs = both.unwrap_or_else(Programs::ours);
    for &side in sides {
        println!("--- {side}");
        story(&mut System::new(&programs), side);
    }
}

/// An application that has registered its data source with a running service.
pub(crate) fn registered(system: &mut System<'_>, side: Side) -> Application {
    system.start(side, Program::Traced);
    let mut application = Application::start(system);
    application.does("initialize");
    await_registration(system);
    application
}

pub(crate) fn await_registration(system: &System<'_>) {
    system.await_state(|state| {
        state
            .data_sources
            .iter()
            .any(|source| source.ds_descriptor.name.as_deref() == Some("ferretto.test.numbers"))
    });
}
