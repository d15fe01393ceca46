//! A host and its clients in one thread: the producers write through an arbiter as the SDK's do, the consumers are the endpoints that
//! the command line has.
#![allow(clippy::unwrap_used)]

mod machine;
mod recorder;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_client::producer::{CommitReply, ProducerEvent};
use ferretto_ipc::client::CallError;
use ferretto_proto::messages::clone_session_request::Selector;
use ferretto_proto::messages::commit_data_request::ChunksToMove;
use ferretto_proto::messages::observable_events::Type as Observed;
use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_proto::messages::trace_config::{BufferConfig, DataSource};
use ferretto_proto::messages::{
    CloneSessionRequest, CommitDataRequest, DataSourceConfig, Message, TestEvent, Trace, TraceConfig,
    TracePacket, priority_boost_config, trace_packet,
};
use ferretto_service::MachineId;

use machine::{Machine, PATIENCE, heard};
use recorder::Recorder;

/// The texts of the recorders, in order.
fn texts(trace: &Trace) -> Vec<&str> {
    trace
        .packet
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(trace_packet::Data::ForTesting(event)) => event.str.as_deref(),
            _ => None,
        })
        .collect()
}

fn contents(file: &mut File) -> Trace {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    Trace::decode_from_slice(&bytes).unwrap()
}

fn config() -> TraceConfig {
    TraceConfig {
        buffers: vec![BufferConfig {
            size_kb: Some(1024),
            ..Default::default()
        }],
        data_sources: vec![DataSource {
            config: DataSourceConfig {
                name: Some("test.source".into()),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// Enables tracing and waits until `recorder` records.
fn start(
    machine: &mut Machine,
    consumer: &mut ConsumerEndpoint,
    recorder: &mut Recorder,
    config: &TraceConfig,
) {
    let before = recorder.writers.len();
    consumer.enable_tracing(&config.encode_to_vec(), None).unwrap();
    consumer.flush();
    machine.until("the start", || {
        recorder.turn();
        (recorder.writers.len() > before).then_some(())
    });
}

/// Waits for the end of a session whose recorder takes turns; gives the error it ended with.
fn ended(machine: &mut Machine, consumer: &mut ConsumerEndpoint, recorder: &mut Recorder) -> Option<String> {
    machine.until("the end", || {
        recorder.turn();
        while let Some(event) = heard(consumer) {
            if let ConsumerEvent::Reply {
                reply: Ok(ConsumerReply::TracingDisabled { error }),
                ..
            } = event
            {
                return Some(error);
            }
        }
        None
    })
}

#[test]
fn a_session_records_the_packets_of_a_producer() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    start(&mut machine, &mut consumer, &mut recorder, &config());
    (0..100).for_each(|number| recorder.write(&number.to_string()));
    consumer.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    let trace = machine.read(&mut consumer);
    let expected: Vec<String> = (0..100).map(|number: u32| number.to_string()).collect();
    assert_eq!(texts(&trace), expected);
    let of_recorder = trace
        .packet
        .iter()
        .find(|packet| matches!(packet.data, Some(trace_packet::Data::ForTesting(_))))
        .unwrap();
    assert_eq!(
        of_recorder.trusted_pid,
        Some(std::process::id() as i32),
        "the service vouches for this process"
    );
    // The service's own packets are there as well.
    let has = |what: fn(&trace_packet::Data) -> bool| {
        trace
            .packet
            .iter()
            .filter_map(|packet| packet.data.as_ref())
            .any(what)
    };
    /// `BuiltinClock` from real time to boot time, and the time-stamp counter.
    const CLOCKS: &[u32] = if cfg!(target_arch = "x86_64") {
        &[1, 2, 3, 4, 5, 6, 9]
    } else {
        &[1, 2, 3, 4, 5, 6]
    };
    assert!(has(|data| {
        let trace_packet::Data::ClockSnapshot(snapshot) = data else {
            return false;
        };
        let mut clocks: Vec<u32> = snapshot
            .clocks
            .iter()
            .filter_map(|clock| clock.clock_id)
            .collect();
        clocks.sort_unstable();
        clocks == CLOCKS
    }));
    assert!(has(|data| matches!(data, trace_packet::Data::SystemInfo(_))));
    assert!(has(|data| matches!(data, trace_packet::Data::TraceConfig(_))));
    assert!(has(|data| matches!(data, trace_packet::Data::TraceUuid(_))));
}

#[test]
fn a_trace_says_that_it_is_of_the_machine_that_the_program_gave_out() {
    let mut machine = Machine::with_id(MachineId(7));
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let config = TraceConfig {
        trace_all_machines: Some(true),
        ..config()
    };
    start(&mut machine, &mut consumer, &mut recorder, &config);
    recorder.write("elsewhere");
    consumer.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    let trace = machine.read(&mut consumer);
    assert_eq!(texts(&trace), ["elsewhere"]);
    // Readers find the borders of packets by these markers, so the markers are always the same.
    let is_marker =
        |packet: &&TracePacket| matches!(packet.data, Some(trace_packet::Data::SynchronizationMarker(_)));
    for packet in trace.packet.iter().filter(|packet| !is_marker(packet)) {
        assert_eq!(packet.machine_id, Some(7), "{packet:?}");
    }
}

#[test]
fn several_producers_record_for_several_sessions() {
    let mut machine = Machine::new();
    let mut first = Recorder::new(&mut machine, "first");
    let mut second = Recorder::new(&mut machine, "second");
    let mut everyone = machine.consumer();
    start(&mut machine, &mut everyone, &mut first, &config());
    second.turn();
    let mut only_second = config();
    only_second.data_sources[0].producer_name_filter = vec!["second".into()];
    let mut selective = machine.consumer();
    start(&mut machine, &mut selective, &mut second, &only_second);
    first.turn();
    first.write("of the first");
    second.write("of the second");
    for consumer in [&mut everyone, &mut selective] {
        let flush = consumer.flush_producers(0, 0).unwrap();
        let reply = machine.until("the flush", || {
            first.turn();
            second.turn();
            std::iter::from_fn(|| heard(consumer)).find_map(|event| match event {
                ConsumerEvent::Reply { request, reply, .. } if request == flush => Some(reply),
                _ => None,
            })
        });
        assert!(matches!(reply, Ok(ConsumerReply::Done)), "{reply:?}");
    }
    let trace = machine.read(&mut everyone);
    let mut both = texts(&trace);
    both.sort_unstable();
    assert_eq!(both, ["of the first", "of the second"]);
    assert_eq!(texts(&machine.read(&mut selective)), ["of the second"]);
}

#[test]
fn uncommitted_chunks_are_scraped_when_a_producer_goes() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    start(&mut machine, &mut consumer, &mut recorder, &config());
    ["one", "two", "three"]
        .into_iter()
        .for_each(|text| recorder.write(text));
    // Its writer is not dropped, so its chunk is not returned.
    let Recorder {
        producer, writers, ..
    } = recorder;
    drop(producer);
    // Its socket is closed.
    machine.until_buffered(&mut consumer);
    let trace = machine.read(&mut consumer);
    assert_eq!(texts(&trace), ["one", "two", "three"]);
    drop(writers);
}

#[test]
fn a_config_that_is_refused_ends_the_session_with_the_reason() {
    let mut machine = Machine::new();
    let mut consumer = machine.consumer();
    let mut nonsense = config();
    nonsense.data_sources[0]
        .config
        .get_or_insert_default()
        .target_buffer = Some(7);
    let call = consumer.enable_tracing(&nonsense.encode_to_vec(), None);
    let Ok(ConsumerReply::TracingDisabled { error: Some(error) }) = machine.reply(&mut consumer, call) else {
        panic!("not refused");
    };
    assert!(error.contains("buffer"), "{error}");
    let call = consumer.enable_tracing(&[0xff], None);
    let Err(CallError::Host(error)) = machine.reply(&mut consumer, call) else {
        panic!("not rejected");
    };
    assert!(error.contains("EnableTracing"), "{error}");
}

#[test]
fn a_session_writes_into_a_file_and_a_clone_of_it_into_another() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    config.write_into_file = Some(true);
    config.unique_session_name = Some("streams".into());
    config.file_write_period_ms = Some(100);
    let mut file = tempfile::tempfile().unwrap();
    let passed = file.try_clone().unwrap().into();
    consumer
        .enable_tracing(&config.encode_to_vec(), Some(passed))
        .unwrap();
    consumer.flush();
    machine.until("the start", || {
        recorder.turn();
        (!recorder.writers.is_empty()).then_some(())
    });
    recorder.write("early");

    let mut copy = tempfile::tempfile().unwrap();
    let mut cloner = machine.consumer();
    let request = CloneSessionRequest {
        selector: Some(Selector::UniqueSessionName("streams".into())),
        ..Default::default()
    };
    let clone = cloner
        .clone_session(&request, Some(copy.try_clone().unwrap().into()))
        .unwrap();
    let cloned = machine.until("the clone", || {
        recorder.turn();
        std::iter::from_fn(|| heard(&mut cloner)).find_map(|event| match event {
            ConsumerEvent::Reply { request, reply, .. } if request == clone => Some(reply),
            _ => None,
        })
    });
    let Ok(ConsumerReply::SessionCloned(cloned)) = cloned else {
        panic!("{cloned:?}");
    };
    assert_eq!(
        (cloned.success, cloned.was_write_into_file),
        (Some(true), Some(true))
    );

    recorder.write("late");
    consumer.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    assert_eq!(texts(&contents(&mut file)), ["early", "late"]);
    assert_eq!(texts(&contents(&mut copy)), ["early"]);
}

#[test]
fn a_packet_that_takes_many_turns_reaches_a_consumer_and_a_file() {
    // Flags in the header of a chunk.
    const CONTINUES_BEFORE: u16 = 1 << 10;
    const CONTINUES_AFTER: u16 = 2 << 10;
    for into_file in [false, true] {
        let mut machine = Machine::new();
        let mut recorder = Recorder::new(&mut machine, "p");
        let mut consumer = machine.consumer();
        let mut config = config();
        config.buffers[0].size_kb = Some(16 << 10);
        config.write_into_file = Some(into_file);
        let mut file = tempfile::tempfile().unwrap();
        let passed = into_file.then(|| file.try_clone().unwrap().into());
        consumer.enable_tracing(&config.encode_to_vec(), passed).unwrap();
        consumer.flush();
        machine.until("the start", || {
            recorder.turn();
            (!recorder.writers.is_empty()).then_some(())
        });
        // The memory that is shared does not hold it, so the chunks come in requests.
        let text = "0123456789".repeat(1 << 20);
        let event = TestEvent {
            str: Some(text.clone()),
            ..Default::default()
        };
        let packet = TracePacket {
            data: Some(trace_packet::Data::ForTesting(Box::new(event))),
            ..Default::default()
        }
        .encode_to_vec();
        let target = recorder.target.unwrap().0;
        let fragments: Vec<&[u8]> = packet.chunks(30_000).collect();
        for (id, fragment) in fragments.iter().enumerate() {
            let before = if id == 0 { 0 } else { CONTINUES_BEFORE };
            let after = if id + 1 == fragments.len() {
                0
            } else {
                CONTINUES_AFTER
            };
            let mut chunk = ferretto_wire::Writer::new();
            chunk.raw(&(id as u32).to_le_bytes());
            chunk.raw(&1000u16.to_le_bytes());
            chunk.raw(&(1 | before | after).to_le_bytes());
            chunk.varint(fragment.len() as u64);
            chunk.raw(fragment);
            let commit = CommitDataRequest {
                chunks_to_move: vec![ChunksToMove {
                    target_buffer: Some(target.into()),
                    data: Some(chunk.as_slice().to_vec()),
                    ..Default::default()
                }],
                ..Default::default()
            };
            recorder.producer.commit(commit, CommitReply::Unwanted).unwrap();
            recorder.producer.flush();
            machine.turn();
        }
        recorder.write("after");
        consumer.disable_tracing().unwrap();
        assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
        let trace = match into_file {
            false => machine.read(&mut consumer),
            true => contents(&mut file),
        };
        assert!(texts(&trace) == [&text, "after"], "into a file: {into_file}");
    }
}

#[test]
fn a_file_that_takes_nothing_ends_the_session_with_the_reason() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    config.write_into_file = Some(true);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    consumer
        .enable_tracing(&config.encode_to_vec(), Some(full.into()))
        .unwrap();
    consumer.flush();
    machine.until("the start", || {
        recorder.turn();
        (!recorder.writers.is_empty()).then_some(())
    });
    consumer.disable_tracing().unwrap();
    let error = ended(&mut machine, &mut consumer, &mut recorder).unwrap();
    assert!(error.contains("No space left"), "{error}");
}

#[test]
fn the_end_of_the_process_completes_files() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    config.write_into_file = Some(true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    config.output_path = Some(path.to_string_lossy().into_owned());
    start(&mut machine, &mut consumer, &mut recorder, &config);
    recorder.write("kept");
    drop(std::mem::take(&mut recorder.writers));
    recorder.commit();
    machine.until_buffered(&mut consumer);
    machine.host.end(|| PATIENCE);
    let trace = Trace::decode_from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(texts(&trace), ["kept"]);
}

#[test]
fn a_session_is_detached_and_attached_by_another_consumer() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut first = machine.consumer();
    start(&mut machine, &mut first, &mut recorder, &config());
    let call = first.detach("key");
    assert!(matches!(machine.reply(&mut first, call), Ok(ConsumerReply::Done)));
    drop(first);

    let mut second = machine.consumer();
    let call = second.attach("nothing");
    let Err(CallError::Host(error)) = machine.reply(&mut second, call) else {
        panic!("attached to nothing");
    };
    assert!(error.contains("no session"), "{error}");
    let attach = second.attach("key");
    let Ok(ConsumerReply::Attached { trace_config }) = machine.reply(&mut second, attach) else {
        panic!("not attached");
    };
    assert_eq!(trace_config, config().encode_to_vec());
    recorder.write("seen by the second");
    second.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut second, &mut recorder), None);
    assert_eq!(texts(&machine.read(&mut second)), ["seen by the second"]);
}

#[test]
fn questions_are_answered() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "asked.about");
    let mut consumer = machine.consumer();
    let call = consumer.trace_stats();
    assert!(matches!(
        machine.reply(&mut consumer, call),
        Err(CallError::Rejected)
    ));
    let observe = consumer
        .observe_events(&[Observed::TYPE_ALL_DATA_SOURCES_STARTED])
        .unwrap();
    consumer.enable_tracing(&config().encode_to_vec(), None).unwrap();
    machine.until("the news", || {
        recorder.turn();
        std::iter::from_fn(|| heard(&mut consumer)).find(|event| {
            matches!(event, ConsumerEvent::Reply { request, reply: Ok(ConsumerReply::Observed(events)), .. }
                if *request == observe && events.all_data_sources_started == Some(true))
        })
    });
    let call = consumer.trace_stats();
    let Ok(ConsumerReply::TraceStats(stats)) = machine.reply(&mut consumer, call) else {
        panic!("no statistics");
    };
    assert_eq!(
        (stats.producers_connected, stats.tracing_sessions),
        (Some(1), Some(1))
    );
    let call = consumer.query_service_state(StateScope::Everything);
    let Ok(ConsumerReply::ServiceState { state, encoded }) = machine.reply(&mut consumer, call) else {
        panic!("no state");
    };
    assert_eq!(state.producers[0].name.as_deref(), Some("asked.about"));
    assert_eq!(state.data_sources.len(), 1);
    assert_eq!(state.encode_to_vec().len(), encoded.len());
    let call = consumer.query_capabilities();
    let Ok(ConsumerReply::Capabilities(capabilities)) = machine.reply(&mut consumer, call) else {
        panic!("no capabilities");
    };
    assert_eq!(capabilities.has_clone_session, Some(true));
}

#[test]
fn sync_and_triggers_arrive() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let call = recorder.producer.sync().unwrap();
    machine.until("the answer", || {
        recorder.producer.flush();
        recorder.producer.on_readable();
        std::iter::from_fn(|| recorder.producer.next_event())
            .any(|event| matches!(event, ProducerEvent::Synced(synced) if synced == call))
            .then_some(())
    });
    let mut consumer = machine.consumer();
    let mut config = config();
    let trigger = Trigger {
        name: Some("now".into()),
        ..Default::default()
    };
    let triggers = config.trigger_config.get_or_insert_default();
    triggers.trigger_mode = Some(TriggerMode::STOP_TRACING);
    triggers.triggers = vec![trigger];
    triggers.trigger_timeout_ms = Some(60_000);
    start(&mut machine, &mut consumer, &mut recorder, &config);
    recorder.write("before the trigger");
    recorder.producer.activate_triggers(&["now"]).unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    assert_eq!(texts(&machine.read(&mut consumer)), ["before the trigger"]);
}

#[test]
fn a_priority_that_cannot_be_had_ends_the_session_with_the_reason() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut config = config();
    let boost = config.priority_boost.get_or_insert_default();
    boost.policy = Some(priority_boost_config::BoostPolicy::POLICY_SCHED_FIFO);
    boost.priority = Some(1);
    consumer.enable_tracing(&config.encode_to_vec(), None).unwrap();
    let error = ended(&mut machine, &mut consumer, &mut recorder).unwrap();
    assert!(error.contains("tests have their priority"), "{error}");
}

#[test]
fn timers_of_the_service_are_kept() {
    let mut machine = Machine::new();
    let mut recorder = Recorder::new(&mut machine, "p");
    let mut consumer = machine.consumer();
    let mut clears = config();
    clears
        .incremental_state_config
        .get_or_insert_default()
        .clear_period_ms = Some(10);
    start(&mut machine, &mut consumer, &mut recorder, &clears);
    machine.until("clears", || {
        recorder.turn();
        (recorder.cleared >= 5).then_some(())
    });
    consumer.disable_tracing().unwrap();
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);

    let mut consumer = machine.consumer();
    let mut ends = config();
    ends.duration_ms = Some(1000);
    let begun = Instant::now();
    start(&mut machine, &mut consumer, &mut recorder, &ends);
    assert_eq!(ended(&mut machine, &mut consumer, &mut recorder), None);
    assert!(begun.elapsed() >= Duration::from_millis(1000));
}
