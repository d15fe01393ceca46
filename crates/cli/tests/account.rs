//! The command line's account of missing and lost data, with either service: messages at once, the summary, the exit code, and `ferretto info` of the
//! trace.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::peers::{Producer, chunk, commit, introduction};
use crate::support::process::Stopped;
use crate::support::service::ScriptedService;
use crate::support::wire::registration_of;
use crate::support::{
    PATIENCE, Program, Programs, Recording, Running, Side, System, await_that, inherit, is_readable,
};
use ferretto_ipc::host::Reply;
use ferretto_ipc::ports::{CONSUMER_PORT, ServiceDescriptor};
use ferretto_proto::messages::enable_tracing_response;
use ferretto_proto::messages::get_async_command_response::Cmd;
use ferretto_proto::messages::{
    CloneSessionResponse, DataSourceDescriptor, EnableTracingResponse, GetTraceStatsResponse, Message,
    TraceStats,
};
use ferretto_proto::write::{ReadBuffersResponse, TracePacket};
use ferretto_wire::{Reader, Writer};
use rustix::process::Signal;

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");
const PERFETTO: &str = env!("CARGO_BIN_EXE_perfetto");

/// The timeouts are long, because the machine may be busy.
const COUNTERS: &str = r#"
buffers { size_kb: 4096 }
flush_timeout_ms: 120000
data_source_stop_timeout_ms: 120000
data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 50 } } }
data_sources { config { name: "linux.process_stats" process_stats_config { scan_all_processes_on_start: true } } }
"#;

/// A config with these data sources.
fn asking_for(sources: &[&str]) -> String {
    let sources: String = sources
        .iter()
        .map(|name| format!("data_sources {{ config {{ name: \"{name}\" }} }}\n"))
        .collect();
    format!("buffers {{ size_kb: 4096 }}\n{sources}")
}

/// Runs a test with either service; the test also gets the service's process id.
fn services(test: impl Fn(&mut System<'_>, Side, u32)) {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for side in [Side::Ours, Side::Upstream] {
        println!("the service is {side}");
        let mut system = System::new(&programs);
        let traced = system.start(side, Program::Traced);
        test(&mut system, side, traced);
    }
}

/// Ends a recording as Ctrl-C does; returns its exit code and its messages.
fn interrupted(mut recording: Recording) -> (Option<i32>, String) {
    recording.signal(Signal::INT);
    let status = recording.wait().expect("it ends");
    (status.code(), recording.said())
}

/// Runs `ferretto info --strict` on a trace; returns its exit code and its output.
fn info(trace: &Path) -> (Option<i32>, String) {
    let output = Command::new(FERRETTO)
        .args(["info", "--strict"])
        .arg(trace)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn assert_said(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in what was said:\n{said}");
    }
}

fn assert_not_said(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(!said.contains(part), "{part:?} is in what was said:\n{said}");
    }
}

#[test]
fn a_daemon_that_dies_is_reported_at_once_and_in_the_summary() {
    services(|system, side, _| {
        let probes = system.start(Side::Ours, Program::TracedProbes);
        let (recording, started) = system.begin(Path::new(FERRETTO), &["--strict"], COUNTERS);
        assert_eq!(started, 0);
        system.end_with(probes, Signal::KILL);
        recording.await_said("traced_probes went away after ");
        recording
            .await_said("(linux.process_stats, linux.sys_stats); what it had handed over by then is kept");
        // The message comes when the producer connects again.
        let probes = system.start(Side::Ours, Program::TracedProbes);
        let trace = recording.trace().to_owned();
        let (code, said) = interrupted(recording);
        assert_eq!(code, Some(3), "{said}");
        assert_said(
            &said,
            &[
                "not complete:",
                "not recorded: linux.process_stats, linux.sys_stats after ",
            ],
        );
        assert_not_said(&said, &["nothing lost", "sudo", "as root"]);
        system.end(probes);
        // Only our service notes it in the trace.
        if side == Side::Ours {
            let (code, told) = info(&trace);
            assert_eq!(code, Some(3), "{told}");
            assert_said(
                &told,
                &[
                    "NOT RECORDED",
                    "linux.process_stats, linux.sys_stats after ",
                    "traced_probes went away",
                ],
            );
            assert_not_said(&told, &["NOTHING LOST"]);
        }
    });
}

#[test]
fn the_summary_reports_that_the_service_had_to_end_in_mid_recording() {
    let minute = format!("{COUNTERS}duration_ms: 60000\n");
    services(|system, side, traced| {
        let probes = system.start(Side::Ours, Program::TracedProbes);
        let (mut recording, started) = system.begin(Path::new(FERRETTO), &["--strict"], &minute);
        assert_eq!(started, 0);
        system.end_with(traced, Signal::TERM);
        let code = recording.wait().expect("it ends").code();
        let said = recording.said();
        assert_not_said(&said, &["nothing lost"]);
        let sentence = "the recording ended then, because the tracing service was told to end";
        if side == Side::Upstream {
            // Upstream's service drops its sessions, and notes nothing.
            assert_eq!(code, Some(1), "{said}");
            assert_said(&said, &["the recording broke off"]);
            assert_not_said(&said, &[sentence]);
        } else {
            assert_eq!(code, Some(3), "{said}");
            assert_said(
                &said,
                &["not complete:", "not recorded: everything after ", sentence],
            );
            let (code, told) = info(recording.trace());
            assert_eq!(code, Some(3), "{told}");
            assert_said(&told, &["NOT RECORDED", "everything after ", sentence]);
            assert_not_said(&told, &["NOTHING LOST"]);
            let json = Command::new(FERRETTO)
                .args(["info", "--json"])
                .arg(recording.trace())
                .output()
                .unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
            assert_eq!(json["not_recorded"][0]["cause"], "service_ended", "{json}");
        }
        system.end(probes);
    });
}

#[test]
fn a_recording_that_lacks_nothing_says_so() {
    services(|system, _, _| {
        system.start(Side::Ours, Program::TracedProbes);
        let (recording, _) = system.begin(Path::new(FERRETTO), &["--strict"], COUNTERS);
        let trace = recording.trace().to_owned();
        let (code, said) = interrupted(recording);
        assert_eq!(code, Some(0), "{said}");
        assert_said(&said, &["nothing lost"]);
        let (code, told) = info(&trace);
        assert_eq!(code, Some(0), "{told}");
        assert_said(&told, &["NOTHING LOST"]);
    });
}

#[test]
fn a_source_that_nobody_offers_is_missing() {
    services(|system, side, _| {
        let offered = "no producer offered my.own while it was recorded";
        // Upstream's program exits with 0.
        for (program, expected) in [(FERRETTO, 1), (PERFETTO, 0)] {
            let (recording, _) = system.begin(Path::new(program), &[], &asking_for(&["my.own"]));
            let trace = recording.trace().to_owned();
            let (code, said) = interrupted(recording);
            assert_eq!(code, Some(expected), "{said}");
            if side == Side::Ours {
                let (code, told) = info(&trace);
                assert_eq!(code, Some(3), "{told}");
                assert_said(&told, &["NOT RECORDED", offered]);
            }
            assert_said(&said, &["not complete:", offered]);
            assert_not_said(&said, &["nothing lost"]);
        }
        let _beside = offering(system, "beside", source("another"));
        for (flags, expected) in [(&[][..], 0), (&["--strict"], 3)] {
            let (recording, _) =
                system.begin(Path::new(FERRETTO), flags, &asking_for(&["my.own", "another"]));
            let (code, said) = interrupted(recording);
            assert_eq!(code, Some(expected), "{said}");
            assert_said(&said, &["not complete:", offered]);
        }
    });
}

/// A producer with one data source.
fn offering(system: &System<'_>, producer: &str, source: DataSourceDescriptor) -> Producer {
    let mut producer = Producer::new(system, &introduction(producer), None);
    let registration = registration_of(source);
    producer.client.call("RegisterDataSource", &registration);
    producer.sync();
    producer
}

/// A data source that needs no flush.
fn source(name: &str) -> DataSourceDescriptor {
    DataSourceDescriptor {
        name: Some(name.to_owned()),
        no_flush: Some(true),
        ..Default::default()
    }
}

/// A producer whose data source should acknowledge its start, and never does.
fn never_starting(system: &System<'_>) -> Producer {
    let never = DataSourceDescriptor {
        will_notify_on_start: Some(true),
        ..source("never")
    };
    offering(system, "slow", never)
}

#[test]
fn a_start_that_never_comes_is_no_success() {
    services(|system, side, _| {
        let _slow = never_starting(system);
        std::fs::write(system.path("never.cfg"), asking_for(&["never"])).unwrap();
        for program in [FERRETTO, PERFETTO] {
            let mut command = system.command(Path::new(program), "short.log");
            std::fs::write(
                system.path("short.cfg"),
                format!("duration_ms: 300\n{}", asking_for(&["never"])),
            )
            .unwrap();
            let (mut told, tell) = std::io::pipe().unwrap();
            let number = inherit(&mut command, &tell);
            command
                .args(["--txt", "-c"])
                .arg(system.path("short.cfg"))
                .arg("-o")
                .arg(system.path("trace"))
                .args(["--notify-fd", &number.to_string()]);
            let mut child = command.spawn().unwrap();
            drop(tell);
            assert!(is_readable(&told, PATIENCE));
            let mut byte = [0];
            told.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [2], "not started");
            let status = child.wait().unwrap();
            let said = system.log("short.log");
            assert_eq!(
                status.code(),
                Some(if program == FERRETTO { 1 } else { 0 }),
                "{said}"
            );
            assert_said(&said, &["slow never said that it had started"]);
        }
        // The rest takes half a minute, and is the same with both services.
        if side == Side::Upstream {
            return;
        }
        let mut waiting = system.command(Path::new(PERFETTO), "waiting.log");
        waiting
            .args(["--txt", "-D", "-c"])
            .arg(system.path("never.cfg"))
            .arg("-o")
            .arg(system.path("trace"))
            .stdout(Stdio::piped());
        let output = waiting.output().unwrap();
        let said = system.log("waiting.log");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_said(
            &said,
            &["have not all started within 30 s: no word of never of slow"],
        );
        let recorder: i32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(recorder).unwrap(), Signal::TERM)
            .unwrap();
    });
}

#[test]
fn signals_of_several_kinds_are_one_wish() {
    services(|system, side, traced| {
        system.start(Side::Ours, Program::TracedProbes);
        let (mut recording, _) = system.begin(Path::new(FERRETTO), &[], COUNTERS);
        let trace = recording.trace().to_owned();
        {
            let _held = Stopped::new(traced);
            recording.signal(Signal::INT);
            recording.await_said("ending the recording");
            recording.signal(Signal::TERM);
            recording.signal(Signal::HUP);
            await_no_signals(recording.pid());
        }
        let status = recording.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{side}: {}", recording.said());
        let (code, told) = info(&trace);
        assert_eq!(code, Some(0), "{told}");
    });
}

#[test]
fn signals_of_several_kinds_leave_a_snapshot_its_time() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    // This data source acknowledges no flush, and a snapshot begins with one.
    let held = DataSourceDescriptor {
        no_flush: None,
        ..source("held")
    };
    let mut producer = offering(&system, "held", held);
    let config = format!(
        "flush_timeout_ms: 2000 trigger_config {{ trigger_mode: CLONE_SNAPSHOT trigger_timeout_ms: 60000 triggers {{ name: \"now\" \
         stop_delay_ms: 1 }} }} {}",
        asking_for(&["held"])
    );
    let (mut recording, _) = system.begin(Path::new(PERFETTO), &[], &config);
    let trigger = Path::new(env!("CARGO_BIN_EXE_trigger_perfetto"));
    let activated = system
        .command(trigger, "trigger.log")
        .arg("now")
        .status()
        .unwrap();
    assert!(activated.success());
    while !matches!(producer.next_command(), (Cmd::Flush(_), _)) {}
    recording.signal(Signal::INT);
    recording.await_said("ending the recording");
    recording.signal(Signal::TERM);
    recording.signal(Signal::HUP);
    await_no_signals(recording.pid());
    let status = recording.wait().unwrap();
    let said = recording.said();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_not_said(&said, &["given up in", "is given up"]);
    let mut snapshot = recording.trace().to_owned().into_os_string();
    snapshot.push(".0");
    assert!(packets(Path::new(&snapshot)) > 0, "{said}");
}

/// Waits until a process has handled the signals that were sent to it.
fn await_no_signals(pid: u32) {
    let pending = |line: &str| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("SigPnd:" | "ShdPnd:"))
            && words.next().is_some_and(|set| set.contains(|bit| bit != '0'))
    };
    await_that("signals are taken", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        !status.lines().any(pending)
    });
}

/// Returns the number of packets in a trace, which must all be complete.
fn packets(trace: &Path) -> usize {
    let trace = std::fs::read(trace).unwrap();
    Reader::new(&trace)
        .inspect(|field| assert!(field.is_ok(), "half a packet"))
        .count()
}

#[test]
fn a_full_file_keeps_whole_packets_and_the_others_are_counted() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    // The unit of the limit is 512 or 1024 bytes.
    let limited = ["-c", "ulimit -f 64; exec \"$0\" \"$@\"", FERRETTO];
    let mut producer = offering(&system, "noise", source("noise"));
    let (mut recording, _) = system.begin(Path::new("sh"), &limited, &asking_for(&["noise"]));
    let target = loop {
        if let (Cmd::SetupDataSource(setup), _) = producer.next_command() {
            break setup.config.target_buffer.unwrap();
        }
    };
    for id in 0..400 {
        let data = chunk(id, &[7; 1000]);
        producer.client.call("CommitData", &commit(target, data));
    }
    producer.sync();
    recording.signal(Signal::INT);
    let status = recording.wait().unwrap();
    let said = recording.said();
    assert_eq!(status.code(), Some(1), "{said}");
    assert_said(
        &said,
        &[
            "cannot write ",
            "File too large",
            " of it are in ",
            " packets (",
            ") are missing",
        ],
    );
    let kept = packets(recording.trace());
    assert!((20..=80).contains(&kept), "{kept} packets");
}

#[test]
fn a_disk_that_fills_under_the_service_leaves_whole_packets() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting a small disk needs root");
        return;
    }
    services(|system, side, _| {
        system.start(Side::Ours, Program::TracedProbes);
        let (disk, kept) = (system.path("disk"), system.path("kept"));
        std::fs::create_dir(&disk).unwrap();
        let config =
            "buffers { size_kb: 4096 } write_into_file: true file_write_period_ms: 100 duration_ms: 60000
            data_sources { config { name: \"linux.sys_stats\" sys_stats_config {
                meminfo_period_ms: 10 vmstat_period_ms: 10 stat_period_ms: 10 } } }";
        std::fs::write(system.path("config"), config).unwrap();
        // In a mount namespace of its own, so that the disk disappears with the command.
        let script =
            "mount -t tmpfs -o size=64k small \"$1\" && \"$4\" --txt -c \"$3\" -o \"$1/trace\"; code=$?
            cp \"$1/trace\" \"$2\"; exit $code";
        let mut shell = system.command(Path::new("unshare"), "full.log");
        let status = shell
            .args(["--mount", "sh", "-c", script, "sh"])
            .args([&disk, &kept, &system.path("config")])
            .arg(FERRETTO)
            .status()
            .unwrap();
        let said = system.log("full.log");
        assert_eq!(status.code(), Some(1), "{side}: {said}");
        assert_not_said(&said, &["nothing lost"]);
        assert!(packets(&kept) > 10, "{side}: {said}");
    });
}

#[test]
fn counts_from_before_the_recording_are_left_out() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let service = ScriptedService::listen(&system.consumer_socket());
    let config = format!("duration_ms: 1000\n{}", asking_for(&[]));
    std::fs::write(system.path("config"), config).unwrap();
    let mut ferretto = system.command(Path::new(FERRETTO), "ferretto.log");
    ferretto
        .args(["--strict", "--txt", "-c"])
        .arg(system.path("config"))
        .arg("-o")
        .arg(system.path("trace"));
    let mut ferretto = Running(ferretto.spawn().unwrap());
    let stats = TraceStats {
        buffer_stats: vec![Default::default()],
        chunks_discarded: Some(7),
        ..Default::default()
    };
    let (mut enabled, mut read) = (None, false);
    static PORTS: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];
    // The command first checks whether a service listens at all.
    while !read {
        service.serve(&PORTS, |asked| {
            let answer = match asked.method {
                "EnableTracing" => {
                    enabled = Some(asked.to);
                    return Some(Vec::new());
                }
                "GetTraceStats" => GetTraceStatsResponse {
                    trace_stats: stats.clone().into(),
                    ..Default::default()
                }
                .encode_to_vec(),
                "ReadBuffers" => {
                    read = true;
                    let mut packet = Writer::new();
                    packet.bytes_field(TracePacket::TRACE_STATS, &stats.encode_to_vec());
                    let mut answer = Writer::new();
                    ReadBuffersResponse::new(&mut answer).slices(|slice| {
                        slice.data(packet.as_slice()).last_slice_for_packet(true);
                    });
                    answer.as_slice().to_vec()
                }
                _ => Vec::new(),
            };
            let mut answers = vec![(asked.to, Reply::last(answer))];
            // The session ends after its counters have been read once.
            if asked.method == "GetTraceStats" {
                let disabled = EnableTracingResponse {
                    state: Some(enable_tracing_response::State::Disabled(true)),
                    ..Default::default()
                };
                answers.extend(
                    enabled
                        .take()
                        .map(|to| (to, Reply::last(disabled.encode_to_vec()))),
                );
            }
            Some(answers)
        });
    }
    let status = ferretto.wait(PATIENCE).expect("it ends");
    let said = system.log("ferretto.log");
    assert_eq!(status.code(), Some(0), "{said}");
    assert_said(&said, &["nothing lost"]);
    let (code, told) = info(&system.path("trace"));
    assert_eq!(code, Some(0), "{told}");
    assert_said(
        &told,
        &[
            "NOTHING LOST",
            "7 chunks: sent by producers for buffers that are not their own since the service began",
        ],
    );
}

#[test]
fn a_file_that_is_as_large_as_it_may_be_has_lost_nothing() {
    let config = "buffers { size_kb: 4096 } write_into_file: true file_write_period_ms: 100 max_file_size_bytes: 150000
        data_sources { config { name: \"linux.sys_stats\" sys_stats_config {
            meminfo_period_ms: 10 vmstat_period_ms: 10 stat_period_ms: 10 } } }";
    services(|system, _, _| {
        system.start(Side::Ours, Program::TracedProbes);
        let (mut recording, _) = system.begin(Path::new(FERRETTO), &["--strict"], config);
        let code = recording.wait().expect("it ends by itself").code();
        let said = recording.said();
        assert_eq!(code, Some(0), "{said}");
        assert_said(&said, &["nothing lost", "what came after", "size limit"]);
        assert_not_said(&said, &["not complete", "lost: ", "broke off"]);
        let (code, told) = info(recording.trace());
        assert_eq!(code, Some(0), "{told}");
        assert_said(&told, &["NOTHING LOST", "size limit"]);
        assert_not_said(&told, &["broke off"]);
    });
}

#[test]
fn data_that_a_ring_buffer_overwrote_while_a_command_ran_are_lost() {
    let config = "buffers { size_kb: 64 } data_sources { config { name: \"my.own\" target_buffer: 0 } }";
    services(|system, _, _| {
        let mut producer = offering(system, "own", source("my.own"));
        std::fs::write(system.path("config"), config).unwrap();
        let mut ferretto = system.command(Path::new(FERRETTO), "command.log");
        ferretto
            .args(["--strict", "--txt", "-c"])
            .arg(system.path("config"))
            .arg("-o")
            .arg(system.path("trace"))
            .args(["--", "cat"])
            .stdin(Stdio::piped());
        let mut ferretto = Running(ferretto.spawn().unwrap());
        let target = loop {
            if let (Cmd::SetupDataSource(setup), _) = producer.next_command() {
                break setup.config.target_buffer.unwrap();
            }
        };
        for id in 0..40 {
            let data = commit(target, chunk(id, &[0; 4000]));
            producer.client.call("CommitData", &data);
        }
        producer.sync();
        // `cat` ends, and the recording with it.
        drop(ferretto.0.stdin.take());
        let code = ferretto.wait(PATIENCE).expect("it ends").code();
        let said = system.log("command.log");
        assert_eq!(code, Some(3), "{said}");
        assert_said(&said, &["not complete:", "lost: ", "of buffer 0: overwritten"]);
        assert_not_said(&said, &["newest data are kept"]);
    });
}

#[test]
fn a_producer_that_never_started_is_named_though_another_did() {
    services(|system, _, _| {
        let (_slow, _quick) = (never_starting(system), offering(system, "quick", source("never")));
        let config = format!("duration_ms: 300\n{}", asking_for(&["never"]));
        std::fs::write(system.path("config"), config).unwrap();
        let mut waiting = system.command(Path::new(FERRETTO), "waiting.log");
        waiting
            .args(["--txt", "-D", "-c"])
            .arg(system.path("config"))
            .arg("-o")
            .arg(system.path("trace"));
        let output = waiting.output().unwrap();
        let said = system.log("waiting.log");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_said(&said, &["the recording is over. Not started: never of slow"]);
    });
}

#[test]
fn a_clone_that_the_service_does_not_mark_has_no_end_to_miss() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let service = ScriptedService::listen(&system.consumer_socket());
    let mut ferretto = system.command(Path::new(FERRETTO), "clone.log");
    ferretto
        .args(["--strict", "--clone", "1", "-o"])
        .arg(system.path("trace"));
    let mut ferretto = Running(ferretto.spawn().unwrap());
    let stats = TraceStats {
        buffer_stats: vec![Default::default()],
        ..Default::default()
    };
    static PORTS: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];
    let mut over = false;
    while !over {
        service.serve(&PORTS, |asked| {
            let answer = match asked.method {
                "CloneSession" => CloneSessionResponse {
                    success: Some(true),
                    ..Default::default()
                }
                .encode_to_vec(),
                "GetTraceStats" => {
                    over = true;
                    GetTraceStatsResponse {
                        trace_stats: stats.clone().into(),
                        ..Default::default()
                    }
                    .encode_to_vec()
                }
                "ReadBuffers" => {
                    let mut packet = Writer::new();
                    TracePacket::new(&mut packet).timestamp(1).service_event(|event| {
                        event.tracing_started(true);
                    });
                    let mut answer = Writer::new();
                    ReadBuffersResponse::new(&mut answer).slices(|slice| {
                        slice.data(packet.as_slice()).last_slice_for_packet(true);
                    });
                    answer.as_slice().to_vec()
                }
                _ => Vec::new(),
            };
            Some(vec![(asked.to, Reply::last(answer))])
        });
    }
    let code = ferretto.wait(PATIENCE).expect("it ends").code();
    let said = system.log("clone.log");
    assert_eq!(code, Some(0), "{said}");
    assert_said(&said, &["cloned", "nothing lost"]);
}
