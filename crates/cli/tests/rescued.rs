//! A daemon ends in mid-recording, and its data are kept: a killed `traced_probes` had written packets without committing them, or `traced` is told
//! to end while a session records.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::support::{Program, Programs, Recording, Side, System, await_that};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{Message, Trace, TracePacket};
use rustix::process::Signal;

/// A small packet now and then. It takes many packets to fill a chunk, and an incomplete chunk is not committed.
const CONFIG: &str = r#"
buffers { size_kb: 1024 }
data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 20 meminfo_counters: MEMINFO_MEM_TOTAL } } }
data_sources { config { name: "nobody.offers.this" } }
"#;

/// More bytes than the headers of a page and a chunk and a few packets of `CONFIG` take.
const SEVERAL_PACKETS: usize = 150;

/// Returns the amount that a producer has written: the non-zero bytes in its shared memory. `None` while it has no shared memory.
fn bytes_written(pid: u32) -> Option<usize> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(target) = std::fs::read_link(&path) else {
            continue;
        };
        if is_shared_memory(&target) {
            let mut bytes = Vec::new();
            File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            return Some(bytes.iter().filter(|byte| **byte != 0).count());
        }
    }
    None
}

fn is_shared_memory(target: &Path) -> bool {
    target
        .to_str()
        .is_some_and(|target| target.starts_with("/memfd:"))
}

fn has_sys_stats(packet: &TracePacket) -> bool {
    matches!(packet.data, Some(Data::SysStats(_)))
}

/// Returns the service events of the session.
fn events(packets: &[TracePacket]) -> impl Iterator<Item = &EventType> {
    packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::ServiceEvent(event)) => event.event_type.as_ref(),
        _ => None,
    })
}

/// Returns the names of data sources that nobody offered, according to the trace.
fn not_offered(packets: &[TracePacket]) -> Vec<String> {
    let sources = events(packets).filter_map(|event| match event {
        EventType::DataSourcesNotOffered(sources) => Some(&sources.data_source),
        _ => None,
    });
    sources
        .flatten()
        .map(|source| source.data_source_name.clone().unwrap())
        .collect()
}

/// Returns producer and name of each data source that disconnected, according to the trace.
fn gone(packets: &[TracePacket]) -> Vec<(String, String)> {
    let sources = events(packets).filter_map(|event| match event {
        EventType::DataSourcesGone(sources) => Some(&sources.data_source),
        _ => None,
    });
    let named = sources.flatten().map(|source| {
        let name = |name: &Option<String>| name.clone().unwrap();
        (name(&source.producer_name), name(&source.data_source_name))
    });
    named.collect()
}

/// Our service, probes, and a recording for which the probes have written a few packets.
struct Scene<'a> {
    system: System<'a>,
    recording: Recording,
    traced: u32,
    probes: u32,
}

impl<'a> Scene<'a> {
    fn new(programs: &'a Programs, probes: Side, perfetto: Side) -> Scene<'a> {
        Scene::of(programs, probes, perfetto, CONFIG)
    }

    fn of(programs: &'a Programs, probes: Side, perfetto: Side, config: &str) -> Scene<'a> {
        let mut system = System::new(programs);
        let traced = system.start(Side::Ours, Program::Traced);
        let probes = system.start(probes, Program::TracedProbes);
        let recording = system.record(perfetto, config);
        await_that("the probes have written", || {
            bytes_written(probes).is_some_and(|bytes| bytes >= SEVERAL_PACKETS)
        });
        Scene {
            system,
            recording,
            traced,
            probes,
        }
    }
}

fn packets(trace: PathBuf) -> Vec<TracePacket> {
    Trace::decode_from_slice(&std::fs::read(trace).unwrap())
        .unwrap()
        .packet
}

fn assert_has_sys_stats(packets: &[TracePacket], whose: &str) {
    let count = packets.iter().filter(|packet| has_sys_stats(packet)).count();
    assert!(count > 1, "{whose}: {count} packets are left");
}

fn check_killed_probes(programs: &Programs, probes: Side) {
    let mut scene = Scene::new(programs, probes, Side::Ours);
    scene.system.end_with(scene.probes, Signal::KILL);
    scene.system.await_state(|state| state.producers.is_empty());
    let packets = packets(scene.recording.interrupt());
    assert_has_sys_stats(&packets, &format!("{probes} probes"));
    assert_eq!(
        gone(&packets),
        [("perfetto.traced_probes".to_owned(), "linux.sys_stats".to_owned())]
    );
    assert_eq!(not_offered(&packets), ["nobody.offers.this"]);
}

#[test]
fn data_of_our_killed_probes_are_in_the_trace() {
    check_killed_probes(&Programs::ours(), Side::Ours);
}

#[test]
fn data_of_upstreams_killed_probes_are_in_the_trace() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    check_killed_probes(&programs, Side::Upstream);
}

/// Whether the trace notes the stop of the session, which is its last event.
fn is_complete(packets: &[TracePacket]) -> bool {
    events(packets).any(|event| *event == EventType::TracingDisabled(true))
}

#[test]
fn a_service_that_is_told_to_end_has_its_sessions_flushed_and_read() {
    let programs = Programs::of_both().unwrap_or_else(Programs::ours);
    for perfetto in [Side::Ours, Side::Upstream] {
        if perfetto == Side::Upstream && !programs.has_upstreams() {
            continue;
        }
        for signal in [Signal::TERM, Signal::INT] {
            let mut scene = Scene::new(&programs, Side::Ours, perfetto);
            let status = scene.system.end_with(scene.traced, signal).expect("it ends");
            assert_eq!(status.code(), Some(0), "{}", scene.system.log("traced.log"));
            let packets = packets(scene.recording.finish());
            assert_has_sys_stats(&packets, &format!("{perfetto} perfetto"));
            assert!(is_complete(&packets), "{perfetto} perfetto");
            assert_eq!(gone(&packets), [], "{perfetto} perfetto");
        }
    }
}

#[test]
fn a_service_that_is_told_to_end_has_its_sessions_read_though_a_producer_hangs() {
    let programs = Programs::of_both().unwrap_or_else(Programs::ours);
    // The consumer can begin to read only after the service has given up waiting for the producer.
    let config = format!("{CONFIG} flush_timeout_ms: 100 data_source_stop_timeout_ms: 5000");
    for perfetto in [Side::Ours, Side::Upstream] {
        if perfetto == Side::Upstream && !programs.has_upstreams() {
            continue;
        }
        let mut scene = Scene::of(&programs, Side::Ours, perfetto, &config);
        scene.system.signal(scene.probes, Signal::STOP);
        let status = scene
            .system
            .end_with(scene.traced, Signal::TERM)
            .expect("it ends");
        scene.system.signal(scene.probes, Signal::CONT);
        assert_eq!(status.code(), Some(0), "{}", scene.system.log("traced.log"));
        let packets = packets(scene.recording.finish());
        assert_has_sys_stats(&packets, &format!("{perfetto} perfetto"));
        assert!(is_complete(&packets), "{perfetto} perfetto");
    }
}

#[test]
fn a_service_ends_in_time_without_readers_and_at_once_on_a_second_signal() {
    let programs = Programs::ours();
    for twice in [false, true] {
        let mut scene = Scene::new(&programs, Side::Ours, Side::Ours);
        scene.recording.signal(Signal::STOP);
        let socket = scene.system.consumer_socket();
        scene.system.signal(scene.traced, Signal::TERM);
        await_that("it lets nobody in", || !socket.exists());
        if twice {
            scene.system.signal(scene.traced, Signal::TERM);
        }
        let status = scene.system.await_end(scene.traced).expect("it ends");
        let log = scene.system.log("traced.log");
        assert_eq!(status.code(), Some(0), "{log}");
        assert_eq!(
            log.contains("a second signal ends traced at once"),
            twice,
            "{log}"
        );
        scene.recording.signal(Signal::CONT);
        scene.recording.wait();
    }
}
