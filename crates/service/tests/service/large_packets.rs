//! Packets that are too large to be read in one turn.

use ferretto_proto::messages::{Message, Trace, TraceConfig, TracePacket, trace_packet};
use ferretto_service::{ConsumerId, ProducerId, ReadCall, limits};

use crate::world::{World, config, decoded, packet, texts};

/// A packet of a bit more than this many parts, with a text that has no period.
pub(crate) fn large(parts: usize) -> Vec<u8> {
    let numbers = (0u64..).map(|n| format!("{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let mut text = String::new();
    for number in numbers {
        if text.len() > parts * limits::LARGE_PACKET {
            break;
        }
        text.push_str(&number);
    }
    packet(&text)
}

/// A world with one producer that writes into a buffer of this size.
fn world_of(size_kb: u32, change: impl FnOnce(&mut TraceConfig)) -> (World, ProducerId, ConsumerId, u16) {
    let (mut world, producer, consumer) = World::offering();
    let mut config = config(&["d"]);
    config.buffers[0].size_kb = Some(size_kb);
    change(&mut config);
    world.enable(consumer, &config);
    let target = world.target(producer);
    (world, producer, consumer, target)
}

fn is_trusted(packet: &TracePacket) -> bool {
    packet.trusted_pid == Some(77)
        && packet.optional_trusted_uid == Some(trace_packet::OptionalTrustedUid::TrustedUid(1000))
}

#[test]
fn a_large_packet_is_read_in_parts_and_goes_out_whole() {
    const PARTS: usize = 5;
    let large = large(PARTS);
    let (mut world, producer, consumer, target) = world_of(8 << 10, |_| {});
    world.commit(producer, 1, target, &[&packet("before")]);
    world.commit_in_fragments(producer, 2, target, &large, 30_000);
    world.commit(producer, 1, target, &[&packet("after")]);
    let (mut parts, mut writer) = (0, 10);
    let read = world.read_while(consumer, usize::MAX, |world, packets| {
        parts += usize::from(packets.is_empty());
        // Others overwrite the rest of the packet in the buffer.
        for _ in 0..100 {
            world.commit_in_fragments(producer, writer, target, &packet(&"x".repeat(29_000)), 30_000);
            writer += 1;
        }
    });
    let read = decoded(&read);
    assert!(
        (PARTS - 1..=PARTS).contains(&parts),
        "{parts} turns brought nothing yet"
    );
    let found = texts(&read);
    let expected = texts(&[TracePacket::decode_from_slice(&large).unwrap()]);
    assert_eq!(found[0], "before");
    assert!(found[1] == expected[0], "it has changed");
    let whole = read.iter().find(|packet| texts(&[(*packet).clone()]) == expected);
    assert!(is_trusted(whole.unwrap()));
}

#[test]
fn a_file_gets_a_large_packet_whole_or_not_at_all() {
    for (limit, fits) in [(None, true), (Some(5 << 20), true), (Some(3 << 20), false)] {
        let large = large(4);
        let (mut world, producer, consumer, target) = world_of(8 << 10, |config| {
            config.write_into_file = Some(true);
            config.file_write_period_ms = Some(200);
            config.max_file_size_bytes = limit;
        });
        let session = *world.files.keys().next().unwrap();
        world.commit(producer, 1, target, &[&packet("before")]);
        world.commit_in_fragments(producer, 2, target, &large, 30_000);
        world.commit(producer, 1, target, &[&packet("after")]);
        world.advance(200);
        let file = Trace::decode_from_slice(&world.files[&session])
            .expect("whole packets")
            .packet;
        let expected = texts(&[TracePacket::decode_from_slice(&large).unwrap()]);
        let all = ["before", &expected[0], "after"];
        assert!(texts(&file) == all[..if fits { 3 } else { 1 }], "limit {limit:?}");
        assert_eq!(world.consumers[&consumer].disabled.is_empty(), fits);
    }
}

#[test]
fn a_field_that_only_the_service_may_write_at_the_end_of_a_large_packet_voids_it() {
    let mut forged = large(3);
    // `trusted_uid: 0`.
    forged.extend([0x18, 0]);
    let mut torn = large(3);
    torn.pop();
    let (mut world, producer, consumer, target) = world_of(16 << 10, |_| {});
    world.commit_in_fragments(producer, 2, target, &forged, 30_000);
    world.commit_in_fragments(producer, 3, target, &torn, 30_000);
    world.commit(producer, 1, target, &[&packet("after")]);
    assert_eq!(texts(&world.read_in_batches(consumer, 1)), ["after"]);
    for writer in [1, 2, 3] {
        world.commit(producer, writer, target, &[&packet("next")]);
        let read = world.read(consumer);
        let next = read.iter().find(|packet| packet.trusted_pid.is_some()).unwrap();
        let mark = next.previous_packet_dropped.unwrap_or_default();
        assert_eq!(mark != 0, writer != 1, "of writer {writer}: {mark}");
    }
    let invalid = world.service.trace_stats(consumer).unwrap().invalid_packets;
    assert_eq!(invalid, Some(2));
}

#[test]
fn a_consumer_that_reads_again_gets_the_large_packet_that_its_last_request_left() {
    let large = large(4);
    let (mut world, producer, consumer, target) = world_of(8 << 10, |_| {});
    world.commit_in_fragments(producer, 2, target, &large, 30_000);
    let now = world.now;
    for _ in 0..3 {
        let batch = world
            .service
            .read_buffers(consumer, &mut ReadCall::default(), usize::MAX, &now);
        assert!(batch.unwrap().has_more);
    }
    let read = world.read(consumer);
    let whole = texts(&[TracePacket::decode_from_slice(&large).unwrap()]);
    assert!(texts(&read) == whole);
}
