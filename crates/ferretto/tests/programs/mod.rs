//! The common part of the tests of events in unusual places: programs of their own, and the checks of their traces.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto_proto::messages::{Message, TracePacket, trace_packet, track_event};
use ferretto_wire::Reader;

/// Says that this process is the program of a test.
const PROGRAM: &str = "FERRETTO_TEST_PROGRAM";

/// A program that has not ended after this hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Calls `program` in a process of its own. `test` is the name of the calling test, which that process runs again.
pub(crate) fn in_own_process(test: &str, program: impl FnOnce()) {
    if std::env::var_os(PROGRAM).is_some() {
        return program();
    }
    run(test, &[(PROGRAM, OsStr::new(test))]);
}

/// Runs `test` in a process of its own with these variables in its environment. It has to end by itself and well.
pub(crate) fn run(test: &str, environment: &[(&str, &OsStr)]) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .envs(environment.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        stderr.read_to_end(&mut said).unwrap();
        String::from_utf8_lossy(&said).into_owned()
    });
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() >= until {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let said = said.join().unwrap();
    let status = status.unwrap_or_else(|| panic!("the program of {test} hangs; it has said:\n{said}"));
    assert!(
        status.success(),
        "the program of {test} ended with {:?}, signal {:?}; it has said:\n{said}",
        status.code(),
        status.signal()
    );
}

/// A session in this process that records all track events.
pub(crate) fn session() -> Session {
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(32 << 10)
        .data_source(DataSource::track_event())
        // Then only sequences of events outside of handlers begin anew.
        .clear_incremental_state(Duration::from_secs(3600));
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    session
}

/// Stops a session and takes its trace.
pub(crate) fn finish(session: Session) -> Trace {
    session.stop_blocking().unwrap();
    Trace::new(&session.read_to_end().unwrap())
}

/// The contents of a trace.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Instants, and beginnings of slices, by name.
    names: BTreeMap<String, usize>,
    pub(crate) counters: usize,
    /// Slices that ended without having begun, and slices that never ended, on the tracks of threads: except for those of the allocator, which may be
    /// at work when a session stops.
    pub(crate) unmatched: (usize, usize),
}

impl Trace {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut trace = Self::default();
        let mut interned = BTreeMap::new();
        let mut open: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for field in Reader::new(bytes) {
            let packet = TracePacket::decode_from_slice(field.unwrap().value.as_bytes().unwrap()).unwrap();
            let sequence = match packet.optional_trusted_packet_sequence_id {
                Some(trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(id)) => id,
                None => 0,
            };
            if let Some(data) = packet.interned_data.as_option() {
                for name in &data.event_names {
                    interned.insert((sequence, name.iid.unwrap()), name.name.clone().unwrap());
                }
            }
            let Some(trace_packet::Data::TrackEvent(event)) = packet.data else {
                continue;
            };
            let name = match &event.name_field {
                Some(track_event::NameField::Name(name)) => Some(name),
                Some(track_event::NameField::NameIid(id)) => {
                    Some(interned.get(&(sequence, *id)).expect("the name was told before"))
                }
                None => None,
            };
            if let Some(name) = name {
                *trace.names.entry(name.clone()).or_default() += 1;
            }
            let open = open.entry(sequence).or_default();
            match event.r#type {
                Some(track_event::Type::TYPE_COUNTER) => trace.counters += 1,
                Some(track_event::Type::TYPE_SLICE_BEGIN) if event.track_uuid.is_none() => {
                    open.push(name.cloned().unwrap_or_default());
                }
                Some(track_event::Type::TYPE_SLICE_END) if event.track_uuid.is_none() => {
                    trace.unmatched.0 += usize::from(open.pop().is_none());
                }
                _ => {}
            }
        }
        let left = open.values().flatten();
        trace.unmatched.1 = left.filter(|name| !name.ends_with("alloc")).count();
        trace
    }

    /// How many events have this name.
    pub(crate) fn named(&self, name: &str) -> usize {
        self.names.get(name).copied().unwrap_or_default()
    }
}
