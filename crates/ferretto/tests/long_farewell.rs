//! A data source that writes more in one call than memory holds. The call is on the SDK's thread, which also runs the service.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ferretto::Options;
use ferretto::data_source::{DataSource, DataSourceHandle, PolicySource, SetUp, Start, Stop};
use ferretto::session::{DataSource as Source, ExhaustedPolicy, Session, TraceConfig};
use ferretto_proto::messages::{DataSourceConfig, Message, Trace, trace_packet};

/// Packets of 1 KB each: some sixteen times the size of the shared memory.
const PACKETS: u32 = 4096;

struct Talkative;

static TALKATIVE: DataSourceHandle<Talkative> = DataSourceHandle::new();

impl DataSource for Talkative {
    const NAME: &'static str = "ferretto.test.talkative";
    const POLICY_SOURCE: PolicySource = PolicySource::Config;
    type Incremental = ();
    type Thread = ();

    fn set_up(_: &SetUp<'_>) -> Self {
        Talkative
    }

    fn start(&self, start: Start) {
        if TALKS_AT_ONCE.load(Ordering::Relaxed) {
            talk();
        }
        drop(start);
    }

    fn stop(&self, stop: Stop<Self>) {
        if !TALKS_AT_ONCE.load(Ordering::Relaxed) {
            talk();
        }
        drop(stop);
    }
}

/// Whether the data source writes when it starts instead of when it stops.
static TALKS_AT_ONCE: AtomicBool = AtomicBool::new(false);

fn talk() {
    let text = "x".repeat(1000);
    for number in 0..PACKETS {
        TALKATIVE.trace(|ctx| {
            ctx.packet(|packet| {
                packet.for_testing(|event| {
                    event.str(&text).seq_value(number);
                });
            });
        });
    }
}

/// Returns the numbers in a trace.
fn numbers(session: &Session) -> Vec<u32> {
    let trace = Trace::decode_from_slice(&session.read_to_end().unwrap()).unwrap();
    let numbers = trace.packet.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::ForTesting(event)) => event.seq_value,
        _ => None,
    });
    numbers.collect()
}

#[test]
fn the_service_takes_packets_of_its_own_thread_with_every_policy() {
    ferretto::initialize(Options::in_process().shared_memory_size(256 * 1024));
    TALKATIVE.register();
    for policy in [
        ExhaustedPolicy::Drop,
        ExhaustedPolicy::Stall,
        ExhaustedPolicy::StallThenDrop,
    ] {
        let source = Source::new(Talkative::NAME).when_exhausted(policy);
        let session = Session::in_process();
        session
            .setup(&TraceConfig::new().buffer_kb(16 * 1024).data_source(source))
            .unwrap();
        session.start_blocking().unwrap();
        session.stop_blocking().unwrap();
        let numbers = numbers(&session);
        assert!(
            numbers.iter().copied().eq(0..PACKETS),
            "{policy:?}: {} of {PACKETS}",
            numbers.len()
        );
    }

    // Five sessions begin in one turn of the thread. The service then has more messages for the process than may wait, and takes no requests from a
    // client that does not read.
    TALKS_AT_ONCE.store(true, Ordering::Relaxed);
    let wordy = DataSourceConfig {
        legacy_config: Some("x".repeat(125_000)),
        ..Default::default()
    };
    let sessions: Vec<Session> = (0..5)
        .map(|_| {
            let source = Source::new(Talkative::NAME)
                .encoded_config(&wordy.encode_to_vec())
                .when_exhausted(ExhaustedPolicy::Stall);
            let session = Session::in_process();
            session
                .setup(&TraceConfig::new().buffer_kb(32 * 1024).data_source(source))
                .unwrap();
            session
        })
        .collect();
    let busy = Session::in_process();
    busy.trace_stats_with(|_| thread::sleep(Duration::from_millis(200)));
    sessions.iter().for_each(Session::start);
    for session in &sessions {
        session.start_blocking().unwrap();
    }
    for session in sessions {
        session.stop_blocking().unwrap();
        assert!(numbers(&session).ends_with(&[PACKETS - 1]));
    }
}
