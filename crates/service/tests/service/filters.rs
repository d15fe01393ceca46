//! Sessions with a trace filter: which packets of producers and of the service leave it, and the statistics about that.

use ferretto_proto::messages::trace_config::TraceFilter;
use ferretto_proto::messages::trace_config::trace_filter::{
    StringFilterChain, StringFilterPolicy, StringFilterRule,
};
use ferretto_proto::messages::{
    Message, SemanticType, Trace, TraceConfig, TracePacket, TraceStats, trace_config, trace_packet,
};
use std::time::Duration;

use ferretto_service::ReadCall;

use crate::filter_bytecode::{Rule, bytecode, overlay};
use crate::world::{World, config, decoded, packet, slow_clock, texts};

const PACKET: u32 = 1;
const TRUSTED_UID: u32 = 3;
const TIMESTAMP: u32 = 8;
const SEQUENCE_ID: u32 = 10;
const TRUSTED_PID: u32 = 79;
const FOR_TESTING: u32 = 900;
/// `TestEvent.str`.
const STR: u32 = 1;

/// Keeps the text of test packets.
const TEXTS: [&[Rule]; 3] = [
    &[Rule::Nested(PACKET, 1)],
    &[Rule::Nested(FOR_TESTING, 2)],
    &[Rule::Text(STR)],
];

fn filtered(sources: &[&str], filter: TraceFilter) -> TraceConfig {
    TraceConfig {
        trace_filter: filter.into(),
        ..config(sources)
    }
}

fn keeping(messages: &[&[Rule]]) -> TraceFilter {
    TraceFilter {
        bytecode_v2: Some(bytecode(messages)),
        ..Default::default()
    }
}

fn rule(
    policy: StringFilterPolicy,
    pattern: &str,
    payload: &str,
    types: &[SemanticType],
) -> StringFilterRule {
    StringFilterRule {
        policy: Some(policy),
        regex_pattern: Some(pattern.into()),
        atrace_payload_starts_with: Some(payload.into()),
        semantic_type: types.to_vec(),
        ..Default::default()
    }
}

fn with_rules(messages: &[&[Rule]], rules: Vec<StringFilterRule>) -> TraceFilter {
    TraceFilter {
        string_filter_chain: StringFilterChain {
            rules,
            ..Default::default()
        }
        .into(),
        ..keeping(messages)
    }
}

/// Returns the encoded packets that are read after a producer has written `packets` into a session with this config.
fn recorded(config: &TraceConfig, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, config);
    let target = world.target(producer);
    for packet in packets {
        world.commit(producer, 1, target, &[packet]);
    }
    world.read_encoded(consumer, 1 << 20)
}

fn stats(packets: &[TracePacket]) -> Option<&TraceStats> {
    packets.iter().rev().find_map(|packet| match &packet.data {
        Some(trace_packet::Data::TraceStats(stats)) => Some(&**stats),
        _ => None,
    })
}

#[test]
fn producers_packets_and_the_services_own_are_filtered_but_not_the_statistics() {
    let config = filtered(&["d"], keeping(&TEXTS));
    let mut with_time = packet("b");
    with_time.extend(b"\x40\x05");
    let written = [packet("a"), with_time];
    let filtered = recorded(&config, &written);
    let plain = recorded(
        &TraceConfig {
            trace_filter: Default::default(),
            ..config
        },
        &written,
    );
    assert_eq!(
        filtered.len(),
        plain.len(),
        "what is filtered away is an empty packet"
    );
    let packets = decoded(&filtered);
    assert_eq!(texts(&packets), ["a", "b"]);
    let not_empty: Vec<&Vec<u8>> = filtered.iter().filter(|packet| !packet.is_empty()).collect();
    // Fields that only the service may write pass only if the filter lists them, too.
    assert_eq!(not_empty[..2], [&packet("a"), &packet("b")]);
    assert_eq!(
        not_empty.len(),
        3,
        "clocks, config and other packets of the service are gone"
    );
    assert!(stats(&packets[packets.len() - 1..]).is_some());
    assert!(packets[packets.len() - 1].optional_trusted_uid.is_some());
}

#[test]
fn trusted_fields_stay_if_they_are_listed() {
    let listed = keeping(&[
        &[Rule::Nested(PACKET, 1)],
        &[
            Rule::Keep(TRUSTED_UID),
            Rule::Keep(TIMESTAMP),
            Rule::Keep(SEQUENCE_ID),
            Rule::Keep(TRUSTED_PID),
        ],
    ]);
    let packets = decoded(&recorded(&filtered(&["d"], listed), &[packet("a")]));
    assert!(texts(&packets).is_empty());
    let of_producer: Vec<_> = packets
        .iter()
        .filter(|packet| packet.trusted_pid.is_some())
        .collect();
    assert_eq!(of_producer.len(), 1);
    assert_eq!(
        of_producer[0].optional_trusted_uid,
        Some(trace_packet::OptionalTrustedUid::TrustedUid(1000))
    );
    let (_, others) = packets.split_last().expect("the statistics come last");
    assert!(others.iter().all(|packet| packet.data.is_none()));
}

#[test]
fn packets_that_cannot_be_filtered_are_empty_and_counted() {
    // The validator accepts this packet. One of its fields should be a message, and is not.
    let mut bad = ferretto_wire::Writer::new();
    bad.bytes_field(FOR_TESTING, b"\x0a\xff");
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &filtered(&["d"], keeping(&TEXTS)));
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("a"), bad.as_slice(), &packet("b")]);
    let packets = world.read(consumer);
    assert_eq!(texts(&packets), ["a", "b"]);
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(stats.invalid_packets, Some(0));
    assert_eq!(stats.filter_stats.errors, Some(1));
    assert_eq!(stats.filter_stats.input_packets, Some(packets.len() as u64));
}

#[test]
fn the_packet_after_one_that_cannot_be_filtered_is_marked_as_after_a_loss() {
    const PREVIOUS_PACKET_DROPPED: u32 = 42;
    let mut bad = ferretto_wire::Writer::new();
    bad.bytes_field(FOR_TESTING, b"\x0a\xff");
    let marked = [Rule::Keep(PREVIOUS_PACKET_DROPPED), Rule::Nested(FOR_TESTING, 2)];
    let (mut world, producer, consumer) = World::offering();
    let filter = keeping(&[TEXTS[0], &marked, TEXTS[2]]);
    world.enable(consumer, &filtered(&["d"], filter));
    let target = world.target(producer);
    let good = ["a", "b", "c"].map(packet);
    world.commit(
        producer,
        1,
        target,
        &[&good[0], bad.as_slice(), &good[1], &good[2]],
    );
    let packets = world.read(consumer);
    let of_producer = packets
        .iter()
        .filter(|packet| !texts(std::slice::from_ref(packet)).is_empty());
    let marks = of_producer.map(|packet| packet.previous_packet_dropped.unwrap_or_default() != 0);
    assert_eq!(marks.collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn the_statistics_count_the_work_of_the_filter() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    world.offer(producer, "e");
    let consumer = world.consumer();
    let mut config = filtered(&["d", "e"], keeping(&TEXTS));
    config.buffers = vec![config.buffers[0].clone(); 3];
    config.data_sources[1]
        .config
        .get_or_insert_default()
        .target_buffer = Some(1);
    let session = world.enable(consumer, &config);
    let targets: Vec<u16> = world
        .instances(producer)
        .iter()
        .map(|(_, config)| config.target_buffer.unwrap() as u16)
        .collect();
    world.commit(producer, 2, targets[1], &[&packet("second")]);
    let read = world.read_encoded(consumer, 1 << 20);
    let bytes: usize = read.iter().map(Vec::len).sum();
    let stats = world.service.trace_stats(consumer).unwrap().filter_stats;
    assert_eq!(stats.input_packets, Some(read.len() as u64));
    assert_eq!(stats.output_bytes, Some(bytes as u64));
    assert!(stats.input_bytes > stats.output_bytes);
    assert_eq!(stats.errors, Some(0));
    // The first and the third buffer had no packets to filter.
    let per_buffer = stats.bytes_discarded_per_buffer.clone();
    assert!(
        matches!(per_buffer[..], [0, second] if second > 0),
        "{per_buffer:?}"
    );
    assert_eq!(stats.time_taken_ns, None, "nobody has measured it");
    world.service.filtering_took(session, Duration::from_micros(3));
    let stats = world.service.trace_stats(consumer).unwrap().filter_stats;
    assert_eq!(stats.time_taken_ns, Some(3000));
}

#[test]
fn sessions_without_a_filter_have_no_statistics_of_one() {
    let mut world = World::new();
    let consumer = world.consumer();
    let session = world.enable(consumer, &config(&[]));
    world.read(consumer);
    world.service.filtering_took(session, Duration::from_micros(3));
    let stats = world.service.trace_stats(consumer).unwrap();
    assert!(!stats.filter_stats.is_set());
}

#[test]
fn a_file_holds_filtered_packets_and_statistics_that_add_up() {
    let (mut world, producer, consumer) = World::offering();
    let config = TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(200),
        ..filtered(&["d"], keeping(&TEXTS))
    };
    let session = world.enable(consumer, &config);
    let target = world.target(producer);
    let expected: Vec<String> = (0..50).map(|n| format!("{n} {}", "x".repeat(600))).collect();
    for (n, text) in expected.iter().enumerate() {
        world.commit(producer, 1, target, &[&packet(text)]);
        if n % 20 == 0 {
            world.advance(200);
        }
    }
    world.disable(consumer);
    world.acknowledge_flushes(producer);
    assert_eq!(world.closed_files, [session]);
    let packets = Trace::decode_from_slice(&world.files[&session])
        .expect("a trace")
        .packet;
    assert_eq!(texts(&packets), expected);
    let in_trace = stats(&packets).expect("statistics").filter_stats.clone();
    let after = world.service.trace_stats(consumer).unwrap().filter_stats;
    // The statistics in the trace do not count their own packet.
    assert_eq!(after.input_packets, Some(packets.len() as u64));
    assert_eq!(
        in_trace.input_packets,
        after.input_packets.map(|packets| packets - 1)
    );
    let sizes = ferretto_wire::Reader::new(&world.files[&session])
        .map(|field| field.unwrap().value.as_bytes().unwrap().len() as u64);
    assert_eq!(after.output_bytes, Some(sizes.sum()));
    assert_eq!(
        after.bytes_discarded_per_buffer,
        in_trace.bytes_discarded_per_buffer
    );
    assert_eq!((after.errors, after.time_taken_ns), (Some(0), None));
}

#[test]
fn a_filter_that_lets_nothing_pass_does_not_make_batches_endless() {
    let (mut world, producer, consumer) = World::offering();
    let nothing = keeping(&[&[Rule::Nested(PACKET, 1)], &[]]);
    world.enable(consumer, &filtered(&["d"], nothing));
    let target = world.target(producer);
    for _ in 0..10 {
        world.commit(producer, 1, target, &[&packet(&"x".repeat(1000))]);
    }
    assert_batches_end(&mut world, consumer);
}

#[test]
fn packets_that_cannot_be_filtered_do_not_make_batches_endless() {
    let (mut world, producer, consumer) = World::offering();
    let config = filtered(
        &["d"],
        keeping(&[&[Rule::Nested(PACKET, 1)], &[Rule::Nested(FOR_TESTING, 0)]]),
    );
    world.enable(consumer, &config);
    let target = world.target(producer);
    // The field has a text where the schema has a message.
    let mut damaged = ferretto_wire::Writer::new();
    damaged.bytes_field(FOR_TESTING, &[0xff; 1000]);
    for _ in 0..10 {
        world.commit(producer, 1, target, &[damaged.as_slice()]);
    }
    assert_batches_end(&mut world, consumer);
    let stats = world.service.trace_stats(consumer).unwrap().filter_stats;
    assert_eq!(stats.errors, Some(10));
    assert_eq!(
        stats.bytes_discarded_per_buffer,
        [],
        "what cannot be filtered is not discarded"
    );
}

/// Reads about ten packets of 1000 bytes, of which the filter removes everything. Each batch of 2000 bytes reads only some of them.
fn assert_batches_end(world: &mut World, consumer: ferretto_service::ConsumerId) {
    let mut batches = 0;
    loop {
        let now = world.now;
        let batch = world
            .service
            .read_buffers(consumer, &mut ReadCall::default(), 2000, &now)
            .expect("a session");
        batches += 1;
        assert!(batch.packets().count() < 15, "{batches}");
        if !batch.has_more {
            break;
        }
        assert!(batch.is_empty());
    }
    assert!(batches > 4, "{batches}");
}

#[test]
fn batches_of_any_size_are_filtered() {
    let text = "y".repeat(3000);
    let config = filtered(&["d"], keeping(&TEXTS));
    for budget in [1, 100, 10_000] {
        let (mut world, producer, consumer) = World::offering();
        world.enable(consumer, &config);
        let target = world.target(producer);
        for writer in 1..4 {
            world.commit(producer, writer, target, &[&packet(&text), &packet("z")]);
        }
        let packets = world.read_encoded(consumer, budget);
        let expected = [&text[..], "z"].repeat(3);
        assert_eq!(texts(&decoded(&packets)), expected, "budget {budget}");
    }
}

#[test]
fn text_is_hidden_by_rules_for_atrace() {
    use StringFilterPolicy::SFP_ATRACE_MATCH_REDACT_GROUPS as ATRACE_MATCH;
    let rules = vec![rule(ATRACE_MATCH, r"B\|\d+\|pay(lo)ad1(\d*)", "payload1", &[])];
    let config = filtered(&["d"], with_rules(&TEXTS, rules));
    let written: Vec<Vec<u8>> = (0..13).map(|n| packet(&format!("B|1023|payload{n}"))).collect();
    let read = texts(&decoded(&recorded(&config, &written)));
    assert_eq!(read[0], "B|1023|payload0");
    assert_eq!(read[1], "B|1023|payP6ad1");
    assert_eq!(read[2], "B|1023|payload2");
    assert_eq!(read[10..], ["B|1023|payP6ad1P"; 3]);
}

#[test]
fn rules_choose_text_by_its_semantic_type() {
    use SemanticType::{SEMANTIC_TYPE_ATRACE as ATRACE, SEMANTIC_TYPE_UNSPECIFIED as UNSPECIFIED};
    let redact = |pattern, types: &[SemanticType]| {
        rule(StringFilterPolicy::SFP_MATCH_REDACT_GROUPS, pattern, "", types)
    };
    let rules = vec![
        redact("empty:(.*)", &[]),
        redact("unspec:(.*)", &[UNSPECIFIED]),
        redact("atrace:(.*)", &[ATRACE]),
        redact("both:(.*)", &[UNSPECIFIED, ATRACE]),
    ];
    let written = ["empty:data", "unspec:data", "atrace:data", "both:data"].map(packet);
    for (text, expected) in [
        (
            Rule::Text(STR),
            ["empty:P60R", "unspec:P60R", "atrace:data", "both:P60R"],
        ),
        (
            Rule::TextOf(STR, 1),
            ["empty:data", "unspec:data", "atrace:P60R", "both:P60R"],
        ),
    ] {
        let messages = [TEXTS[0], TEXTS[1], &[text]];
        let config = filtered(&["d"], with_rules(&messages, rules.clone()));
        assert_eq!(
            texts(&decoded(&recorded(&config, &written))),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn an_overlay_gives_text_its_semantic_type() {
    use StringFilterPolicy::SFP_ATRACE_MATCH_REDACT_GROUPS as ATRACE_MATCH;
    let types = [SemanticType::SEMANTIC_TYPE_ATRACE];
    let rules = vec![rule(ATRACE_MATCH, r"B\|\d+\|pay(lo)ad(\d*)", "payload", &types)];
    let mut filter = with_rules(&TEXTS, rules);
    let read = |filter: &TraceFilter| {
        let config = filtered(&["d"], filter.clone());
        texts(&decoded(&recorded(&config, &[packet("B|1023|payload1")])))
    };
    assert_eq!(read(&filter), ["B|1023|payload1"]);
    filter.bytecode_overlay_v54 = Some(overlay(&[(2, Rule::TextOf(STR, 1))]));
    assert_eq!(read(&filter), ["B|1023|payP6adP"]);
}

#[test]
fn a_name_of_thirty_thousand_characters_is_hidden_like_any_other() {
    use StringFilterPolicy::SFP_MATCH_REDACT_GROUPS as MATCH;
    let mut config = filtered(
        &["d"],
        with_rules(&TEXTS, vec![rule(MATCH, r"((?:a|b|\w)*)", "", &[])]),
    );
    // These chunks are the largest, so that one holds the packet.
    config.producers = vec![trace_config::ProducerConfig {
        producer_name: Some("p".into()),
        page_size_kb: Some(32),
        ..Default::default()
    }];
    let read = texts(&decoded(&recorded(&config, &[packet(&"n".repeat(30_000))])));
    assert_eq!(read, ["P60REDACTED".to_owned() + &"-".repeat(30_000 - 11)]);
}

#[test]
fn text_that_takes_long_ends_a_batch_and_too_much_of_it_a_packet() {
    // The text takes so much work that the filter looks at the clock for each text.
    let dear = rule(StringFilterPolicy::SFP_MATCH_BREAK, "[ab]*a[ab]{1000}c", "", &[]);
    let text = "ab".repeat(500);
    let mut long = ferretto_wire::Writer::new();
    long.nested(FOR_TESTING, |event| {
        (0..3).for_each(|_| event.bytes_field(STR, text.as_bytes()));
    });
    let mut world = World::new();
    world.service.set_processor_clock(slow_clock);
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &filtered(&["d"], with_rules(&TEXTS, vec![dear])));
    let target = world.target(producer);
    let short = packet(&text);
    for packet in [&short, &short, long.as_slice(), &short] {
        world.commit(producer, 1, target, &[packet]);
    }
    let mut batches = Vec::new();
    let mut has_more = true;
    while has_more {
        let now = world.now;
        let read = world
            .service
            .read_buffers(consumer, &mut ReadCall::default(), usize::MAX, &now);
        let batch = read.expect("a session");
        let packets = batch.packets();
        let packets: Vec<_> = packets
            .map(|packet| packet.flatten().copied().collect())
            .collect();
        has_more = batch.has_more;
        batches.push(texts(&decoded(&packets)).len());
    }
    // The filter removes the whole third packet, and the last batch finds nothing more.
    assert_eq!(batches, [1, 1, 0, 1, 0]);
    let stats = world.service.trace_stats(consumer).unwrap().filter_stats;
    assert_eq!(stats.errors, Some(1));
}

#[test]
fn bad_filters_are_refused_and_leave_nothing_behind() {
    let refused = |filter: TraceFilter, reason: &str| {
        let mut world = World::new();
        let consumer = world.consumer();
        let error = world
            .try_enable(consumer, &filtered(&[], filter))
            .expect_err("to be refused");
        assert!(error.contains(reason), "{error}");
        assert_eq!(world.service.buffer_bytes(), 0);
        world.enable(consumer, &config(&[]));
    };
    refused(TraceFilter::default(), "trace_filter.bytecode");
    refused(
        TraceFilter {
            bytecode: Some(b"rubbish".to_vec()),
            ..Default::default()
        },
        "checksum",
    );
    refused(keeping(&[&[Rule::Keep(PACKET)]]), "perfetto.protos.Trace");
    let bad = |pattern| {
        let policy = StringFilterPolicy::SFP_MATCH_REDACT_GROUPS;
        with_rules(&TEXTS, vec![rule(policy, pattern, "", &[])])
    };
    refused(bad("("), "unclosed group");
    refused(bad("(?=a)"), "look-around");
    refused(
        with_rules(
            &TEXTS,
            vec![rule(StringFilterPolicy::SFP_UNSPECIFIED, "a", "", &[])],
        ),
        "policy",
    );
}
