//! Ends of sessions: by the clock, by the size of the file, by the consumer; and the content of the file after each.

use std::fs::File;
use std::os::fd::OwnedFd;

use ferretto_client::producer::CommitReply;
use ferretto_proto::messages::trace_config::WriteFlushMode;
use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
use ferretto_proto::messages::{DataSourceDescriptor, Message, Trace, TraceConfig};

use crate::conformance::data::{buffer, chunk, seen};
use crate::conformance::parties::{
    Consumer, NO_PERIOD_MS, Producer, Service, alike, config, is_ours_alone, plain, skeleton,
    without_later_clocks,
};

/// A session that streams into a file. The period is so long that the file is written only at the end.
fn streaming() -> TraceConfig {
    TraceConfig {
        buffers: vec![buffer(64, FillPolicy::RING_BUFFER)],
        write_into_file: Some(true),
        file_write_period_ms: Some(NO_PERIOD_MS),
        write_flush_mode: Some(WriteFlushMode::WRITE_FLUSH_DISABLED),
        ..config("d")
    }
}

/// A producer, and a consumer with a session that streams into the file.
fn record(service: &Service<'_>, config: &TraceConfig, file: &File) -> (Producer, Consumer) {
    let mut producer = service.producer("p");
    producer.register(plain("d"));
    let mut consumer = service.consumer();
    let fd: OwnedFd = file.try_clone().unwrap().into();
    consumer
        .endpoint
        .enable_tracing(&config.encode_to_vec(), Some(fd))
        .unwrap();
    consumer.state();
    producer.settle();
    (producer, consumer)
}

/// Commits packets of these sizes, each in a chunk of its own.
fn commit(producer: &mut Producer, sizes: impl IntoIterator<Item = usize>) {
    for (id, size) in sizes.into_iter().enumerate() {
        let request = chunk(1, id as u32).large(size).request(producer.target);
        producer.endpoint.commit(request, CommitReply::Unwanted).unwrap();
    }
    producer.settle();
}

/// Returns the packets in the file: those of producers as a reader sees them, those of the service by their fields.
fn written(file: &File) -> Vec<String> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Trace::decode_from_slice(&bytes).expect("whole packets");
    let packets = ferretto_wire::Reader::new(&bytes).flatten();
    let told = packets
        .filter_map(|field| field.value.as_bytes())
        .filter(|packet| !is_ours_alone(packet))
        .map(|packet| seen(packet).unwrap_or_else(|| skeleton(packet)));
    without_later_clocks(told.collect())
}

#[test]
fn a_file_holds_the_same_when_its_session_is_stopped() {
    let story = |service: &Service<'_>| {
        let file = tempfile::tempfile().unwrap();
        let (mut producer, mut consumer) = record(service, &streaming(), &file);
        commit(&mut producer, [10, 20, 30]);
        consumer.endpoint.disable_tracing().unwrap();
        consumer.until_told("disabled");
        let mut told = written(&file);
        told.push(format!("{} packets to be read besides", consumer.read().len()));
        told
    };
    alike(story, &[]);
}

#[test]
fn a_file_holds_the_same_when_its_consumer_leaves_or_frees() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        for leaves in [true, false] {
            let file = tempfile::tempfile().unwrap();
            let (mut producer, mut consumer) = record(service, &streaming(), &file);
            commit(&mut producer, [10, 20]);
            if !leaves {
                consumer.endpoint.free_buffers().unwrap();
                consumer.until_told("disabled");
            }
            drop((producer, consumer));
            service.await_quiet();
            told.extend(written(&file));
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn a_file_is_filled_to_the_same_packet() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        // The service's own packets take a part of the limit, which differs between the services. These limits leave room for either.
        for limit in [4_000, 9_000, 20_000] {
            let file = tempfile::tempfile().unwrap();
            let limited = TraceConfig {
                max_file_size_bytes: Some(limit),
                ..streaming()
            };
            let (mut producer, mut consumer) = record(service, &limited, &file);
            commit(&mut producer, [2000; 20]);
            consumer.endpoint.disable_tracing().unwrap();
            consumer.until_told("disabled");
            let packets = written(&file);
            told.extend(packets.into_iter().filter(|packet| packet.starts_with("2000")));
            told.push(format!("limit {limit}"));
            drop((producer, consumer));
            service.await_quiet();
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn a_session_with_a_duration_ends_alike_whether_or_not_producers_acknowledge() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        for (acknowledges, will_notify_on_stop) in [(true, false), (false, false), (true, true)] {
            let mut producer = service.producer("p");
            producer.register(DataSourceDescriptor {
                will_notify_on_stop: Some(will_notify_on_stop),
                ..plain("d")
            });
            let mut consumer = service.consumer();
            consumer.enable(&TraceConfig {
                duration_ms: Some(1),
                flush_timeout_ms: Some(if acknowledges { 60_000 } else { 1 }),
                data_source_stop_timeout_ms: Some(1),
                ..config("d")
            });
            if acknowledges {
                producer.until_told("flush");
                producer.endpoint.acknowledge_flush(producer.flushes[0]).unwrap();
                producer.settle();
            }
            consumer.until_told("disabled");
            producer.settle();
            told.push(producer.log.join(", "));
            told.push(consumer.log.join(", "));
            told.push(format!("{:?}", consumer.stats().final_flush_outcome));
            let packets = consumer.read();
            let kinds = packets.iter().map(|packet| skeleton(packet)).collect();
            told.extend(without_later_clocks(kinds));
            let state = consumer.state().tracing_sessions[0].state.clone();
            told.push(format!("{state:?}"));
            drop((producer, consumer));
            service.await_quiet();
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn a_detached_session_with_a_duration_is_gone_after_it() {
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        for stopped_before in [false, true] {
            let mut consumer = service.consumer();
            consumer.enable(&TraceConfig {
                duration_ms: Some(1000),
                ..config("d")
            });
            if stopped_before {
                consumer.endpoint.disable_tracing().unwrap();
                consumer.until_told("disabled");
            }
            let call = consumer.endpoint.detach("key").unwrap();
            consumer.answer(call).unwrap();
            told.push(format!("{} session", consumer.state().tracing_sessions.len()));
            drop(consumer);
            service.await_quiet();
            let mut late = service.consumer();
            let call = late.endpoint.attach("key").unwrap();
            told.push(format!("to be attached: {}", late.answer(call).is_ok()));
        }
        told
    };
    alike(story, &[]);
}
