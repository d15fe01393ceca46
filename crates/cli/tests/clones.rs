//! Clones of real recordings. In every mixture of our and upstream's `traced` and `perfetto`, a clone holds the same data as the original, according
//! to upstream's trace processor.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::{PATIENCE, Program, Programs, Side, System};
use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply};
use ferretto_ipc::address::Address;
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_ipc::reactor::{Deadline, Events, Reactor, Token};
use ferretto_proto::messages::{
    CloneSessionRequest, CloneSessionResponse, Message, ProcessTree, Trigger, clone_session_request,
};
use ferretto_proto::write::TracePacket;
use ferretto_wire::Reader;

/// A config whose data are there from the start, so that every clone has them.
const PROCESSES: &str = r#"
buffers { size_kb: 8192 fill_policy: RING_BUFFER }
data_sources { config {
  name: "linux.process_stats"
  process_stats_config { scan_all_processes_on_start: true }
} }
"#;

const SIDES: [Side; 2] = [Side::Upstream, Side::Ours];

/// Runs a `perfetto` to its end. Files without a path go into the system's folder.
fn perfetto(programs: &Programs, system: &System<'_>, side: Side, arguments: &[&str]) -> Output {
    system
        .command(&programs.path(side, Program::Perfetto), "clone.log")
        .env("TMPDIR", system.path(""))
        .args(arguments)
        .stderr(Stdio::piped())
        .output()
        .unwrap()
}

fn succeeded(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

/// Returns the contents of this field in all packets that have it.
fn fields_of_packets(trace: &Path, wanted: u32) -> Vec<Vec<u8>> {
    let trace = std::fs::read(trace).unwrap();
    let mut contents = Vec::new();
    for packet in Reader::new(&trace) {
        for field in Reader::new(packet.unwrap().value.as_bytes().unwrap()) {
            let field = field.unwrap();
            contents.extend(
                field
                    .value
                    .as_bytes()
                    .filter(|_| field.number == wanted)
                    .map(<[u8]>::to_vec),
            );
        }
    }
    contents
}

/// Returns the ids of the processes in a trace.
fn processes(trace: &Path) -> BTreeSet<i32> {
    let trees = fields_of_packets(trace, TracePacket::PROCESS_TREE);
    let trees = trees
        .iter()
        .map(|tree| ProcessTree::decode_from_slice(tree).unwrap());
    let processes: BTreeSet<i32> = trees
        .flat_map(|tree| tree.processes)
        .filter_map(|process| process.pid)
        .collect();
    assert!(processes.contains(&(std::process::id() as i32)), "{processes:?}");
    processes
}

/// Asserts that upstream's trace processor reads the trace without errors, and finds all its processes.
fn assert_true(trace_processor: &TraceProcessor, trace: &Path) {
    let known = "select count(*) from process where pid > 0";
    let [known, losses] = trace_processor.query(trace, [known, LOSSES]);
    assert_eq!(losses, Rows::new(), "{}", trace.display());
    assert_eq!(
        numbers(&known),
        [processes(trace).len() as i64],
        "{}",
        trace.display()
    );
}

/// Returns the id of the only session.
fn session(system: &System<'_>) -> u64 {
    let sessions = system.state().tracing_sessions;
    let [session] = sessions.as_slice() else {
        panic!("{sessions:?}")
    };
    session.id.unwrap()
}

#[test]
fn clones_hold_the_data_of_the_original_in_every_mixture() {
    let (Some(programs), Some(trace_processor)) = (Programs::of_both(), TraceProcessor::find()) else {
        return;
    };
    let streaming = "write_into_file: true file_write_period_ms: 500 flush_period_ms: 500";
    for (traced, cloner) in SIDES
        .into_iter()
        .flat_map(|traced| SIDES.map(|cloner| (traced, cloner)))
    {
        let system = System::with_daemons(&programs, traced, Side::Ours);
        for more in ["", streaming] {
            if traced == Side::Upstream && !more.is_empty() {
                // Its clone lacks what goes from the buffers into the file between its copy of the file and its flush.
                continue;
            }
            let config = format!("{PROCESSES} unique_session_name: \"original\" bugreport_score: 5 {more}\n");
            let recording = system.record(cloner, &config);
            let id = session(&system).to_string();
            let all_ways: [&[&str]; 3] = [
                &["--clone", &id],
                &["--clone-by-name", "original", "--clone-for-bugreport"],
                &["--save-for-bugreport"],
            ];
            let ways = if more.is_empty() {
                &all_ways[..]
            } else {
                &all_ways[..1]
            };
            let clone = system.path("clone");
            // Whoever writes the clone, nothing stays of an earlier file, which is larger.
            std::fs::write(&clone, vec![0xff; 16 << 20]).unwrap();
            let mut clones = Vec::new();
            for way in ways {
                let (out, file) = match *way {
                    ["--save-for-bugreport"] => (vec![], system.path("systrace.pftrace")),
                    _ => (vec!["-o", clone.to_str().unwrap()], clone.clone()),
                };
                succeeded(&perfetto(&programs, &system, cloner, &[*way, &out].concat()));
                clones.push(processes(&file));
            }
            if traced == Side::Ours {
                assert_true(&trace_processor, &system.path("clone"));
            }
            let original = processes(&recording.interrupt());
            for (clone, way) in clones.into_iter().zip(ways) {
                assert_eq!(
                    clone, original,
                    "traced {traced}, perfetto {cloner}, {way:?}, {more}"
                );
            }
            system.await_state(|state| state.tracing_sessions.is_empty());
        }
    }
}

#[test]
fn all_recordings_for_a_bug_report_go_into_the_same_files_on_both_sides() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for (traced, cloner) in SIDES
        .into_iter()
        .flat_map(|traced| SIDES.map(|cloner| (traced, cloner)))
    {
        let system = System::with_daemons(&programs, traced, Side::Ours);
        let none = perfetto(&programs, &system, cloner, &["--save-all-for-bugreport"]);
        assert_eq!(none.status.code(), Some(0), "nothing to do is no failure");
        let recordings = [
            "bugreport_score: 1",
            "bugreport_score: 7 bugreport_filename: \"seven.pftrace\"",
            "bugreport_score: 7 bugreport_filename: \"seven.pftrace\"",
            "",
        ]
        .map(|more| system.record(cloner, &format!("{PROCESSES} {more}\n")));
        std::fs::write(system.path("seven.pftrace"), "of an earlier one").unwrap();
        succeeded(&perfetto(
            &programs,
            &system,
            cloner,
            &["--save-all-for-bugreport"],
        ));
        let saved: BTreeSet<PathBuf> = std::fs::read_dir(system.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "pftrace"))
            .filter(|path| {
                !path
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .chars()
                    .all(char::is_numeric)
            })
            .collect();
        let expected = ["seven.pftrace", "seven_1.pftrace", "systrace.pftrace"].map(|name| system.path(name));
        assert_eq!(
            saved,
            BTreeSet::from(expected),
            "traced {traced}, perfetto {cloner}"
        );
        for file in saved {
            assert!(file.metadata().unwrap().len() > 1000, "{}", file.display());
        }
        for recording in recordings {
            recording.interrupt();
        }
    }
}

#[test]
fn a_failed_clone_leaves_no_file() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let out = system.path("clone");
    for way in [
        &["--clone", "77", "-o", out.to_str().unwrap()][..],
        &["--clone-by-name", "nobody", "-o", out.to_str().unwrap()],
        &["--save-for-bugreport", "-o", out.to_str().unwrap()],
    ] {
        let output = perfetto(&programs, &system, Side::Ours, way);
        assert_eq!(output.status.code(), Some(1), "{way:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cannot clone the session"), "{said}");
        assert!(!out.exists());
    }
}

/// A separate consumer that clones a session and keeps the clone.
struct Cloner {
    endpoint: ConsumerEndpoint,
    reactor: Reactor,
}

impl Cloner {
    fn request(system: &System<'_>, session: u64) -> Cloner {
        Cloner::request_with(system, session, None)
    }

    /// Sends a request with a descriptor, which takes the clone if the session streams into a file.
    fn request_with(system: &System<'_>, session: u64, file: Option<File>) -> Cloner {
        let socket = system.consumer_socket();
        let address: Address = socket.to_str().unwrap().parse().unwrap();
        let mut endpoint = ConsumerEndpoint::connect(&address).unwrap();
        let request = CloneSessionRequest {
            selector: Some(clone_session_request::Selector::SessionId(session)),
            ..Default::default()
        };
        endpoint.clone_session(&request, file.map(OwnedFd::from)).unwrap();
        endpoint.flush();
        let reactor = Reactor::new().unwrap();
        reactor
            .register(&endpoint, Token(0), endpoint.interest())
            .unwrap();
        Cloner { endpoint, reactor }
    }

    /// Returns the next reply to a call of this method.
    fn reply(&mut self, awaited: ConsumerMethod) -> ConsumerReply {
        let deadline = Deadline::after(PATIENCE);
        let mut events = Events::new();
        loop {
            while let Some(event) = self.endpoint.next_event() {
                match event {
                    ConsumerEvent::Reply { method, reply, .. } if method == awaited => return reply.unwrap(),
                    ConsumerEvent::Disconnected(why) => panic!("{why}"),
                    _ => {}
                }
            }
            self.endpoint.flush();
            let interest = self.endpoint.interest();
            self.reactor
                .reregister(&self.endpoint, Token(0), interest)
                .unwrap();
            self.reactor.wait(&mut events, Some(deadline)).unwrap();
            assert!(!events.ready().is_empty(), "no answer in {PATIENCE:?}");
            self.endpoint.on_readable();
        }
    }

    fn answer(&mut self) -> CloneSessionResponse {
        match self.reply(ConsumerMethod::CloneSession) {
            ConsumerReply::SessionCloned(response) => *response,
            other => panic!("{other:?}"),
        }
    }

    /// Reads the clone; returns the number of bytes.
    fn read(&mut self) -> usize {
        self.endpoint.read_buffers().unwrap();
        let mut bytes = 0;
        loop {
            match self.reply(ConsumerMethod::ReadBuffers) {
                ConsumerReply::TraceData { packets, more } => {
                    bytes += packets.iter().map(<[u8]>::len).sum::<usize>();
                    if more == ferretto_ipc::client::More::Last {
                        return bytes;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_descriptor_that_cannot_be_written_matters_only_if_the_session_streams() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let streaming = format!("{PROCESSES} write_into_file: true file_write_period_ms: 100");
    for traced in SIDES {
        let system = System::with_daemons(&programs, traced, Side::Ours);
        for (config, clonable) in [(PROCESSES, true), (&streaming, false)] {
            let recording = system.record(Side::Ours, config);
            // Upstream notices that it cannot write only if there is something to copy.
            system.await_state(|_| clonable || recording.trace().metadata().unwrap().len() > 0);
            let unwritable = File::open("/dev/null").unwrap();
            let mut cloner = Cloner::request_with(&system, session(&system), Some(unwritable));
            let answer = cloner.answer();
            assert_eq!(answer.success, Some(clonable), "traced {traced}: {answer:?}");
            if clonable {
                assert_eq!(answer.was_write_into_file, Some(false));
                assert!(cloner.read() > 1000, "it has the processes of this machine");
            }
            drop(cloner);
            recording.interrupt();
            system.await_state(|state| state.tracing_sessions.is_empty());
        }
    }
}

#[test]
fn sixty_clones_of_one_session_do_not_end_the_service() {
    let programs = Programs::ours();
    let mut system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let recording = system.record(Side::Ours, PROCESSES);
    let original = session(&system);
    let mut cloners: Vec<Cloner> = (0..60).map(|_| Cloner::request(&system, original)).collect();
    for cloner in &mut cloners {
        let answer = cloner.answer();
        assert_eq!(answer.success, Some(true), "{answer:?}");
    }
    assert_eq!(system.state().num_sessions, Some(61));
    for cloner in &mut cloners {
        assert!(cloner.read() > 1000, "it has the processes of this machine");
    }
    // Another consumer can still record.
    system.record(Side::Ours, PROCESSES).interrupt();
    drop(cloners);
    system.await_state(|state| state.num_sessions == Some(1));
    recording.interrupt();
    system.assert_running();
}

#[test]
fn triggers_have_the_session_cloned_into_numbered_files() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let config = format!(
        "{PROCESSES} trigger_config {{ trigger_mode: CLONE_SNAPSHOT trigger_timeout_ms: 60000 \
         triggers {{ name: \"snap\" stop_delay_ms: 1 }} }}"
    );
    for (traced, recorder) in SIDES
        .into_iter()
        .flat_map(|traced| SIDES.map(|recorder| (traced, recorder)))
    {
        let system = System::with_daemons(&programs, traced, Side::Ours);
        let recording = system.record(recorder, &config);
        let activation = system.path("activation.cfg");
        std::fs::write(&activation, "activate_triggers: \"snap\"").unwrap();
        let snapshot = |number: usize| {
            let mut name = recording.trace().as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        let snapshots: Vec<PathBuf> = (0..3).map(snapshot).collect();
        for file in &snapshots {
            let arguments = ["--txt", "-c", activation.to_str().unwrap()];
            succeeded(&perfetto(&programs, &system, Side::Upstream, &arguments));
            system.await_state(|_| file.exists());
        }
        let trace = recording.interrupt();
        assert_eq!(trace.metadata().unwrap().len(), 0, "only its clones are read");
        for file in snapshots {
            processes(&file);
            let triggers = fields_of_packets(&file, TracePacket::CLONE_SNAPSHOT_TRIGGER);
            let [trigger] = triggers.as_slice() else {
                panic!(
                    "traced {traced}, perfetto {recorder}: {triggers:?} in {}",
                    file.display()
                )
            };
            let trigger = Trigger::decode_from_slice(trigger).unwrap();
            assert_eq!(trigger.trigger_name.as_deref(), Some("snap"));
            assert_eq!(trigger.stop_delay_ms, Some(1));
        }
    }
}

#[test]
fn jobs_that_need_a_lasting_service_start_none() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let file = |name: &str| system.path(name).to_str().unwrap().to_owned();
    std::fs::write(
        file("config"),
        "buffers { size_kb: 64 } duration_ms: 60000 write_into_file: true",
    )
    .unwrap();
    let (config, trace) = (file("config"), file("trace"));
    let command_lines: [&[&str]; 6] = [
        &["--txt", "-c", &config, "-o", &trace, "--detach=key"],
        &["--attach=key"],
        &["--is_detached=key"],
        &["--clone-by-name", "session", "-o", &trace],
        &["--save-for-bugreport", "-o", &trace],
        &["--save-all-for-bugreport"],
    ];
    for words in command_lines {
        let ferretto = Path::new(env!("CARGO_BIN_EXE_ferretto"));
        let mut command = system.command(ferretto, "ferretto.log");
        let status = command
            .env("TMPDIR", system.path(""))
            .args(words)
            .status()
            .unwrap();
        let said = system.log("ferretto.log");
        assert_eq!(status.code(), Some(1), "{words:?}: {said}");
        assert!(
            said.contains("no tracing service listens at"),
            "{words:?}: {said}"
        );
        assert!(!system.path("trace").exists(), "{words:?}");
    }
}
