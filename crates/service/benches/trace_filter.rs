//! Speed of the trace filter, on packets like those of a trace: a bundle of kernel events, and a track event with a name.
//!
//! Run with `cargo bench -p ferretto-service --bench trace_filter`; the throughput counts bytes of packets.

#[path = "../tests/support/filter_bytecode.rs"]
mod filter_bytecode;

use std::sync::Arc;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use ferretto_proto::messages::trace_config;
use ferretto_proto::messages::trace_config::trace_filter::{
    StringFilterChain, StringFilterPolicy, StringFilterRule,
};
use ferretto_service::trace_filter::{PacketFilter, TraceFilter};
use ferretto_wire::Writer;
use filter_bytecode::{Rule, bytecode};

fn main() {
    divan::main();
}

const FTRACE_EVENTS: u32 = 1;
const TRACK_EVENT: u32 = 11;

/// A bundle with 200 `sched_switch` and as many other events.
fn bundle() -> Vec<u8> {
    let mut packet = Writer::new();
    packet.nested(FTRACE_EVENTS, |bundle| {
        bundle.varint_field(1, 3);
        for index in 0..200u64 {
            bundle.nested(2, |event| {
                event.varint_field(1, 123_456_789_000 + index * 1000);
                event.varint_field(2, 4000 + index % 7);
                event.nested(4, |switch| {
                    switch.bytes_field(1, b"a_thread_name");
                    switch.varint_field(2, 4000 + index % 7);
                    switch.varint_field(3, 120);
                    switch.varint_field(4, 1);
                    switch.bytes_field(5, b"swapper/3");
                    switch.varint_field(6, 0);
                    switch.varint_field(7, 120);
                });
            });
            bundle.nested(2, |event| {
                event.varint_field(1, 123_456_789_500 + index * 1000);
                event.nested(327, |other| other.bytes_field(1, b"some kernel event"));
            });
        }
    });
    packet.as_slice().to_vec()
}

fn track_event() -> Vec<u8> {
    let mut packet = Writer::new();
    packet.varint_field(8, 123_456_789_000);
    packet.nested(TRACK_EVENT, |event| {
        event.varint_field(9, 1);
        event.varint_field(11, 0x1234_5678_9abc_def0);
        event.bytes_field(23, b"B|4711|a slice with a name of some length");
    });
    packet.as_slice().to_vec()
}

fn filter(switches: &[Rule], others: Rule, name: Rule, patterns: &[&str]) -> PacketFilter {
    let rules = patterns.iter().map(|pattern| StringFilterRule {
        policy: Some(StringFilterPolicy::SFP_MATCH_REDACT_GROUPS),
        regex_pattern: Some((*pattern).into()),
        ..Default::default()
    });
    let messages: [&[Rule]; 6] = [
        &[Rule::Nested(1, 1)],
        &[
            Rule::Nested(FTRACE_EVENTS, 2),
            Rule::Keep(8),
            Rule::Nested(TRACK_EVENT, 5),
        ],
        &[Rule::Keep(1), Rule::Nested(2, 3)],
        &[Rule::KeepRange(1, 2), Rule::Nested(4, 4), others],
        switches,
        &[Rule::Keep(9), Rule::Keep(11), name],
    ];
    let config = trace_config::TraceFilter {
        bytecode_v2: Some(bytecode(&messages)),
        string_filter_chain: StringFilterChain {
            rules: rules.collect(),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    PacketFilter::new(Arc::new(TraceFilter::new(&config).expect("a good filter")))
}

const EVERYTHING: Rule = Rule::KeepRange(1, 7);

fn measure(bencher: Bencher<'_, '_>, packet: &[u8], mut filter: PacketFilter) {
    bencher
        .counter(BytesCount::new(packet.len()))
        .bench_local(|| filter.filter([black_box(packet)]).expect("a message").len());
}

#[divan::bench]
fn bundle_that_stays(bencher: Bencher<'_, '_>) {
    let filter = filter(&[EVERYTHING], Rule::Keep(327), Rule::Keep(23), &[]);
    measure(bencher, &bundle(), filter);
}

#[divan::bench]
fn bundle_without_names_and_other_events(bencher: Bencher<'_, '_>) {
    let filter = filter(
        &[Rule::KeepRange(2, 3), Rule::KeepRange(6, 2)],
        Rule::Keep(900),
        Rule::Keep(23),
        &[],
    );
    measure(bencher, &bundle(), filter);
}

#[divan::bench]
fn track_event_that_stays(bencher: Bencher<'_, '_>) {
    measure(
        bencher,
        &track_event(),
        filter(&[EVERYTHING], Rule::Keep(327), Rule::Keep(23), &[]),
    );
}

#[divan::bench]
fn track_event_with_ten_rules_for_its_name(bencher: Bencher<'_, '_>) {
    let patterns: Vec<String> = (0..10).map(|n| format!(r"B\|\d+\|rule {n} (.*)")).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let filter = filter(&[EVERYTHING], Rule::Keep(327), Rule::Text(23), &patterns);
    measure(bencher, &track_event(), filter);
}
