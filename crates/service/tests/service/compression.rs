//! Sessions that compress their packets: for consumers, and, as far as it is the task of the service, for files.

use ferretto_proto::messages::{TraceConfig, TracePacket, trace_config, trace_packet};
use ferretto_service::{ReadCall, limits};

use crate::world::{World, config, decoded, expanded, packet, packets_of, stops, texts};

/// `TracePacket.compressed_packets`.
const COMPRESSED_PACKETS: u32 = 50;

fn deflated(config: TraceConfig) -> TraceConfig {
    TraceConfig {
        compression: trace_config::CompressionConfig {
            deflate: trace_config::compression_config::Deflate::default().into(),
            ..Default::default()
        }
        .into(),
        ..config
    }
}

fn into_file(config: TraceConfig) -> TraceConfig {
    TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(200),
        ..config
    }
}

fn field_of(packet: &[u8]) -> u32 {
    let mut fields = ferretto_wire::Reader::new(packet).map(|field| field.expect("a packet").number);
    fields.next().expect("a field")
}

/// Text that codecs make much smaller.
fn text(n: usize) -> String {
    format!("{n} {}", "all work and no play ".repeat(20 + n % 10))
}

/// Commits this many packets. Each begins with its number.
fn record(world: &mut World, count: usize, config: &TraceConfig) -> ferretto_service::ConsumerId {
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, config);
    let target = world.target(producer);
    for n in 0..count {
        world.commit(producer, 1, target, &[&packet(&text(n))]);
    }
    consumer
}

fn large(sources: &[&str]) -> TraceConfig {
    let mut config = config(sources);
    config.buffers[0].size_kb = Some(1024);
    config
}

#[test]
fn a_consumer_reads_the_same_packets_compressed() {
    let read = |config: &TraceConfig| {
        let mut world = World::new();
        let consumer = record(&mut world, 500, config);
        world.read_encoded(consumer, usize::MAX)
    };
    let (plain, compressed) = (read(&large(&["d"])), read(&deflated(large(&["d"]))));
    assert!(
        compressed
            .iter()
            .all(|packet| field_of(packet) == COMPRESSED_PACKETS)
    );
    let size = |packets: &[Vec<u8>]| packets.iter().map(Vec::len).sum::<usize>();
    assert!(
        size(&compressed) * 5 < size(&plain),
        "{} of {}",
        size(&compressed),
        size(&plain)
    );
    let inside = decoded(&expanded(compressed));
    let without_config = |packets: &[TracePacket]| -> Vec<TracePacket> {
        let config = |packet: &&TracePacket| matches!(packet.data, Some(trace_packet::Data::TraceConfig(_)));
        packets.iter().filter(|packet| !config(packet)).cloned().collect()
    };
    assert_eq!(without_config(&inside), without_config(&decoded(&plain)));
}

#[test]
fn compressed_batches_for_a_consumer_are_bounded() {
    let mut world = World::new();
    let consumer = record(&mut world, 1000, &deflated(large(&["d"])));
    let now = world.now;
    let mut batches = 0;
    loop {
        let batch = world
            .service
            .read_buffers(consumer, &mut ReadCall::default(), usize::MAX, &now)
            .expect("data");
        let packets: Vec<Vec<u8>> = batch
            .packets()
            .map(|packet| packet.flatten().copied().collect())
            .collect();
        assert_eq!(packets.len(), 1);
        assert_eq!(packets.concat().len(), batch.len());
        let more = batch.has_more;
        let inside: usize = expanded(packets).iter().map(Vec::len).sum();
        assert!(inside < limits::COMPRESSED_BATCH + 2000, "{inside}");
        batches += 1;
        if !more {
            break;
        }
    }
    assert!(batches >= 1000 * 400 / limits::COMPRESSED_BATCH, "{batches}");
}

#[test]
fn a_consumer_that_wants_less_at_once_gets_less_and_nothing_when_nothing_is_left() {
    let mut world = World::new();
    let quiet = TraceConfig {
        builtin_data_sources: trace_config::BuiltinDataSource {
            disable_service_events: Some(true),
            ..Default::default()
        }
        .into(),
        ..deflated(large(&["d"]))
    };
    let consumer = record(&mut world, 20, &quiet);
    let packets = world.read_encoded(consumer, 1);
    assert!(packets.len() >= 20);
    assert_eq!(texts(&decoded(&expanded(packets))).len(), 20);
    assert!(world.read_encoded(consumer, 1).is_empty());
}

#[test]
fn a_batch_that_would_take_long_to_compress_goes_to_the_consumer_as_it_is() {
    let mut world = World::new();
    // The service writes the config into the trace.
    let mut config = deflated(config(&[]));
    config.data_sources = vec![trace_config::DataSource {
        producer_name_filter: vec!["x".repeat(limits::MAX_COMPRESSED_BATCH)],
        ..Default::default()
    }];
    let consumer = world.consumer();
    world.enable(consumer, &config);
    let packets = world.read_encoded(consumer, usize::MAX);
    assert!(
        packets
            .iter()
            .any(|packet| packet.len() > limits::MAX_COMPRESSED_BATCH)
    );
    assert_eq!(expanded(packets.clone()), packets, "none is compressed");
}

#[test]
fn a_file_gets_compressed_packets_at_every_period() {
    let mut world = World::new();
    let consumer = record(&mut world, 100, &into_file(deflated(large(&["d"]))));
    world.advance(200);
    world.disable(consumer);
    let session = world.consumers[&consumer].ended[0];
    let packets = packets_of(&world.files[&session]);
    assert!(
        packets
            .iter()
            .all(|packet| field_of(packet) == COMPRESSED_PACKETS)
    );
    let expected: Vec<String> = (0..100).map(text).collect();
    assert_eq!(texts(&decoded(&expanded(packets))), expected);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    assert!(world.files[&session].len() < expected.concat().len() / 5);
}

#[test]
fn the_limit_of_a_file_is_one_of_compressed_bytes() {
    let run = |limit: Option<u64>| {
        let mut world = World::new();
        let config = TraceConfig {
            max_file_size_bytes: limit,
            ..into_file(deflated(large(&["d"])))
        };
        let consumer = record(&mut world, 200, &config);
        let producer = *world.producers.keys().next().expect("one");
        world.advance(200);
        let stopped = world.count(producer, stops) > 0;
        world.disable(consumer);
        let session = world.consumers[&consumer].ended[0];
        assert_eq!(world.consumers[&consumer].disabled, [None], "{limit:?}");
        (world.files[&session].clone(), stopped)
    };
    let (whole, stopped) = run(None);
    assert!(!stopped);
    let expected: Vec<String> = (0..200).map(text).collect();
    for limit in [1, 40, 2000, whole.len() as u64 / 2] {
        let (file, stopped) = run(Some(limit));
        assert!(stopped, "the session ends when its file is full");
        assert!((file.len() as u64) < limit);
        let kept = texts(&decoded(&expanded(packets_of(&file))));
        assert_eq!(kept, expected[..kept.len()]);
        // Alone, such a packet takes 60 bytes.
        let used = file.len() as u64 + 600;
        assert!(limit < 2000 || used >= limit, "{} of {limit} bytes", file.len());
    }
    // The trace also contains the config, and so the limit.
    let (file, stopped) = run(Some(whole.len() as u64 + 100));
    assert!(!stopped && file.len() > whole.len() - 100);
    let kept = texts(&decoded(&expanded(packets_of(&file))));
    assert_eq!(kept, expected);
}

#[test]
fn an_unknown_compression_leaves_the_trace_as_it_is_and_is_logged() {
    let newer = TraceConfig {
        compression: trace_config::CompressionConfig::default().into(),
        ..config(&["d"])
    };
    let mut world = World::new();
    let consumer = record(&mut world, 1, &newer);
    assert!(world.log.iter().any(|line| line.contains("not compressed")));
    let packets = world.read_encoded(consumer, usize::MAX);
    assert_eq!(texts(&decoded(&packets)).len(), 1);
}

#[cfg(feature = "zstd")]
#[test]
fn zstd_goes_before_deflate() {
    /// `TracePacket.zstd_compressed_packets`.
    const ZSTD_COMPRESSED_PACKETS: u32 = 133;
    let mut both = deflated(large(&["d"]));
    both.compression_type = Some(trace_config::CompressionType::COMPRESSION_TYPE_DEFLATE);
    both.compression.get_or_insert_default().zstd = trace_config::compression_config::Zstd {
        level: Some(22),
        ..Default::default()
    }
    .into();
    let mut world = World::new();
    let consumer = record(&mut world, 300, &both);
    let packets = world.read_encoded(consumer, usize::MAX);
    assert!(
        packets
            .iter()
            .all(|packet| field_of(packet) == ZSTD_COMPRESSED_PACKETS)
    );
    assert_eq!(texts(&decoded(&expanded(packets))).len(), 300);
}
