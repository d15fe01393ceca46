//! `ferretto info` and `ferretto text` with real traces: their output for people and scripts, and their behaviour with files that are very large or
//! damaged.

mod compressed;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::peers::{self, Producer, chunk, commit, introduction};
use crate::support::schema;
use crate::support::tracefs::Tracefs;
use crate::support::{Program, Programs, Side, System};
use crate::traceconv::{Traceconv, compare};
use ferretto_proto::messages::Message;
use ferretto_proto::messages::trace_config::BufferConfig;
use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
use ferretto_proto::text;
use ferretto_service::compression::expand;
use ferretto_wire::{Reader, Writer};
use serde_json::Value;

const RECORDING: &str = r#"
buffers { size_kb: 4096 name: "main" }
data_sources { config {
  name: "linux.process_stats"
  process_stats_config { scan_all_processes_on_start: true proc_stats_poll_ms: 100 }
} }
data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 20 vmstat_period_ms: 20 stat_period_ms: 20 } } }
data_sources { config { name: "linux.system_info" } }
unique_session_name: "trace-files"
duration_ms: 2000
"#;

const KERNEL_EVENTS: &str = r#"
data_sources { config { name: "linux.ftrace" ftrace_config {
  ftrace_events: "sched/sched_switch"
  ftrace_events: "sched/sched_waking"
  ftrace_events: "power/cpu_idle"
  ftrace_events: "irq/*"
  ftrace_events: "task/*"
  compact_sched { enabled: true }
} } }
"#;

/// Makes a `ferretto` with these arguments.
fn ferretto(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferretto"));
    command.args(words).stdin(Stdio::null());
    command
}

fn run(subcommand: &str, trace: &Path, flags: &[&str]) -> Output {
    ferretto(&[subcommand]).args(flags).arg(trace).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn text_of(trace: &Path) -> String {
    let output = run("text", trace, &[]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    stdout(&output).to_owned()
}

fn info_of(trace: &Path) -> Value {
    let output = run("info", trace, &["--json"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    schema::check("info", &output.stdout)
}

/// Records this config with our programs.
fn recorded<'a>(programs: &'a Programs, config: &str) -> (System<'a>, PathBuf) {
    let system = System::with_daemons(programs, Side::Ours, Side::Ours);
    let trace = system.record(Side::Ours, config).finish();
    (system, trace)
}

fn packets(trace: &[u8]) -> Vec<&[u8]> {
    Reader::new(trace)
        .map(|field| field.unwrap().value.as_bytes().unwrap())
        .collect()
}

/// Returns the causes under this name in the output of `info --json`.
fn causes(info: &Value, under: &str) -> Vec<String> {
    let findings = info[under].as_array().unwrap().iter();
    findings
        .map(|finding| finding["cause"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_text_of_a_recorded_trace_is_the_trace() {
    let programs = Programs::ours();
    let tracefs = Tracefs::lock();
    let kernel_events = if tracefs.is_some() { KERNEL_EVENTS } else { "" };
    let (_system, trace) = recorded(&programs, &format!("{RECORDING}{kernel_events}"));
    drop(tracefs);
    let ours = text_of(&trace);
    let original = std::fs::read(&trace).unwrap();
    // Our parser of configs, which knows the whole schema, parses the text back into the printed packets. Generic kernel events are printed with
    // numbers instead of names, which no parser accepts.
    let named: String = ours
        .lines()
        .filter(|line| {
            !line
                .trim_start()
                .starts_with(|first: char| first.is_ascii_digit())
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let again = text::encode(&named, "perfetto.protos.Trace").unwrap();
    let (again, original) = (packets(&again), packets(&original));
    assert_eq!(again.len(), original.len());
    let decoded = |packet| ferretto_proto::messages::TracePacket::decode_from_slice(packet).unwrap();
    let same = again
        .iter()
        .zip(&original)
        .filter(|(again, original)| decoded(again) == decoded(original));
    assert!(
        same.count() >= original.len() / 2,
        "most packets have no field that the schema lacks"
    );
    let Some(traceconv) = Traceconv::find() else {
        return;
    };
    let found = compare(&traceconv.text(&trace), &ours);
    println!("{found:?}");
    assert!(
        found.same > 1000 && found.newer + found.unknown < found.same / 5,
        "{found:?}"
    );
}

#[test]
fn info_describes_the_recording() {
    let programs = Programs::ours();
    let (_system, trace) = recorded(&programs, RECORDING);
    let info = info_of(&trace);
    let bytes = std::fs::read(&trace).unwrap();
    assert_eq!(info["size"], bytes.len());
    assert_eq!(info["packets"], packets(&bytes).len());
    assert_eq!(info["is_cut"], false);
    assert_eq!(info["session"]["name"], "trace-files");
    assert_eq!(info["buffers"][0]["name"], "main");
    assert_eq!(info["buffers"][0]["size_kb"], 4096);
    assert!(info["service"].as_str().unwrap().contains("Ferretto"), "{info:#}");
    assert!(info["machine"]["cpus"].as_u64().unwrap() >= 1);
    assert_eq!(info["uuid"].as_str().unwrap().len(), 36);
    let duration = info["duration_ns"].as_u64().unwrap();
    assert!((400_000_000..5_000_000_000).contains(&duration), "{duration}");
    let data = &info["data"];
    assert!(data["last_ns"].as_u64().unwrap() > data["first_ns"].as_u64().unwrap());
    let began = chrono::DateTime::parse_from_rfc3339(info["started_at"].as_str().unwrap()).unwrap();
    let age = chrono::Utc::now().signed_duration_since(began);
    assert!(
        (0..60).contains(&age.num_seconds()),
        "began {began}, which is {age} ago"
    );
    let kinds: Vec<&str> = info["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| kind["kind"].as_str().unwrap())
        .collect();
    for kind in [
        "process_tree",
        "process_stats",
        "sys_stats",
        "cpu_info",
        "trace_config",
        "clock_snapshot",
    ] {
        assert!(kinds.contains(&kind), "{kind} is not among {kinds:?}");
    }
    let sum = |under: &str, what: &str| -> u64 {
        let rows = info[under].as_array().unwrap().iter();
        rows.map(|row| row[what].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("kinds", "packets"), info["packets"].as_u64().unwrap());
    assert_eq!(sum("sequences", "packets"), info["packets"].as_u64().unwrap());
    assert_eq!(sum("sequences", "bytes"), info["packet_bytes"].as_u64().unwrap());
    let writers = info["sequences"].as_array().unwrap().iter();
    let probes = writers
        .filter(|sequence| sequence["process"] == "traced_probes")
        .count();
    assert!(probes >= 1, "{info:#}");
    assert_eq!(
        (causes(&info, "losses"), causes(&info, "notes")),
        (vec![], vec![])
    );
    // The same information for people.
    let output = run("info", &trace, &[]);
    let screen = stdout(&output);
    for line in ["session   \"trace-files\"", "linux.process_stats", "NOTHING LOST"] {
        assert!(screen.contains(line), "{line}: {screen}");
    }
    assert!(
        screen.lines().count() < 50 && !screen.contains('\x1b'),
        "{screen}"
    );
}

#[test]
fn compressed_traces_are_expanded() {
    let programs = Programs::ours();
    for (compression, kind) in [
        ("compression { deflate {} }", "compressed_packets"),
        ("compression { zstd {} }", "zstd_compressed_packets"),
    ] {
        let (system, trace) = recorded(&programs, &format!("{RECORDING}{compression}"));
        let mut plain = Vec::new();
        for packet in packets(&std::fs::read(&trace).unwrap()) {
            plain.extend(expand(packet, 1 << 30).unwrap().expect("compressed"));
        }
        let plain_file = system.path("plain");
        std::fs::write(&plain_file, &plain).unwrap();
        let info = info_of(&trace);
        assert_eq!(info["packets"], packets(&plain).len());
        assert_eq!(info["compressed"][0]["kind"], kind);
        assert_eq!(info["kinds"], info_of(&plain_file)["kinds"]);
        // The text has the packets inside, one level deeper.
        let text = text_of(&trace);
        let inner: String = text
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert!(inner == text_of(&plain_file), "{kind}");
        assert!(text.starts_with(&format!("{kind} {{\n  packet {{\n")));
    }
}

#[test]
fn traceconv_prints_a_deflated_trace_alike() {
    let Some(traceconv) = Traceconv::find() else {
        return;
    };
    let programs = Programs::ours();
    let (_system, trace) = recorded(&programs, &format!("{RECORDING}compression {{ deflate {{}} }}"));
    let found = compare(&traceconv.text(&trace), &text_of(&trace));
    assert!(found.same > 1000 && found.newer < found.same / 5, "{found:?}");
}

/// Records a producer of ours, which writes `chunks` times 1 KB into a buffer of 64 KB.
fn overfilled(system: &mut System<'_>, fill_policy: FillPolicy, chunks: u32) -> PathBuf {
    system.start(Side::Ours, Program::Traced);
    let mut config = peers::config("a.source");
    config.buffers = vec![BufferConfig {
        size_kb: Some(64),
        name: Some("main".to_owned()),
        fill_policy: Some(fill_policy),
        ..Default::default()
    }];
    let (file, trace) = (system.path("config"), system.path("trace"));
    std::fs::write(&file, config.encode_to_vec()).unwrap();
    let mut recording = system.command(&system.program(Side::Ours, Program::Perfetto), "perfetto.log");
    recording.arg("-c").arg(file).arg("-o").arg(&trace);
    let mut recording = crate::support::Running(recording.spawn().unwrap());
    let mut producer = Producer::new(system, &introduction("a.producer"), None);
    let (_memory, target) = producer.join("a.source");
    for id in 0..chunks {
        producer
            .client
            .call("CommitData", &commit(target, chunk(id, &[7; 1000])));
        producer.sync();
    }
    recording.signal(rustix::process::Signal::INT);
    let status = recording.wait(crate::support::PATIENCE);
    assert!(
        status.is_some_and(|status| status.success()),
        "{}",
        system.log("perfetto.log")
    );
    trace
}

#[test]
fn info_reports_the_loss_of_a_full_buffer_and_a_sufficient_size() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let trace = overfilled(&mut system, FillPolicy::RING_BUFFER, 150);
    let info = info_of(&trace);
    // The recording has no length of its own, so it was meant to keep the newest data.
    assert_eq!(causes(&info, "losses"), ["flush_failed"], "nobody answers here");
    let notes = info["notes"].as_array().unwrap();
    let overwritten = notes
        .iter()
        .find(|loss| loss["cause"] == "buffer_overwritten")
        .expect("it is told");
    let what = overwritten["what"].as_str().unwrap();
    assert!(
        what.contains("chunks (") && what.ends_with("of buffer 0 \"main\""),
        "{what}"
    );
    let advice = overwritten["advice"].as_str().unwrap();
    assert!(
        advice.contains("raise buffers[0].size_kb from 64 to 192"),
        "{advice}"
    );
    // The advice helps: 150 chunks of 1 KB fit into 192 KB. On the screen it is below the loss.
    let output = run("info", &trace, &[]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "losses are no failure of this program"
    );
    assert!(stdout(&output).contains("    -> to reach further back raise buffers[0]"));
}

#[test]
fn info_reports_data_lost_after_a_buffer_was_full() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let trace = overfilled(&mut system, FillPolicy::DISCARD, 150);
    let info = info_of(&trace);
    let losses = info["losses"].as_array().unwrap();
    let full = losses
        .iter()
        .find(|loss| loss["cause"] == "buffer_full")
        .expect("it is told");
    assert!(
        full["advice"]
            .as_str()
            .unwrap()
            .contains("fill_policy: RING_BUFFER"),
        "{full}"
    );
}

/// A trace of so many packets, as a service writes it.
fn made(count: u64) -> Vec<u8> {
    let mut trace = Writer::new();
    for index in 0..count {
        trace.nested(1, |packet| {
            packet.varint_field(8, 1000 + index);
            packet.nested(900, |event| event.bytes_field(1, b"payload"));
            packet.varint_field(3, 0);
            packet.varint_field(10, 2);
        });
    }
    trace.into_vec()
}

#[test]
fn a_file_that_ends_too_early_is_read_up_to_there_and_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("growing.pftrace");
    let whole = made(10);
    std::fs::write(&file, &whole[..whole.len() - 3]).unwrap();
    let text = run("text", &file, &[]);
    assert_eq!(text.status.code(), Some(0));
    assert_eq!(stdout(&text).matches("packet {").count(), 9);
    let size = whole.len() / 10;
    let said = format!("ends inside the packet at byte {}", 9 * size);
    assert!(stderr(&text).contains(&said), "{}", stderr(&text));
    let info = info_of(&file);
    assert_eq!((&info["packets"], &info["is_cut"]), (&9.into(), &true.into()));
    assert_eq!(causes(&info, "losses"), ["file_cut"]);
    assert!(info["losses"][0]["why"].as_str().unwrap().contains(&said));
}

#[test]
fn damage_in_the_middle_is_a_failure_and_the_rest_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("damaged.pftrace");
    let mut bytes = made(10);
    let size = bytes.len() / 10;
    bytes[4 * size] = 0x77;
    std::fs::write(&file, &bytes).unwrap();
    let text = run("text", &file, &[]);
    assert_eq!(text.status.code(), Some(1));
    assert_eq!(stdout(&text).matches("packet {").count(), 9);
    let said = format!("damaged at byte {}", 4 * size);
    assert!(
        stderr(&text).contains(&said) && stdout(&text).contains(&said),
        "{}",
        stderr(&text)
    );
    let info = run("info", &file, &["--json"]);
    assert_eq!(info.status.code(), Some(1));
    let info = schema::check("info", &info.stdout);
    assert_eq!(info["packets"], 9);
    assert_eq!(causes(&info, "losses"), ["file_damaged"]);
}

#[test]
fn other_files_are_distinguished_from_damaged_traces() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content, said) in [
        ("empty", &b""[..], "is empty"),
        (
            "bzip2",
            b"BZh91AY&SY",
            "is compressed with bzip2; expand it first: `bzip2 -dc",
        ),
        (
            "lz4",
            b"\x04\x22\x4d\x18\x64",
            "is compressed with lz4; expand it first",
        ),
        (
            "zip",
            b"PK\x03\x04\x14\0",
            "is a zip archive; unpack it first, or show it with `ferretto open",
        ),
        (
            "json",
            b"  {\"traceEvents\": []}",
            "is JSON, Chrome's older trace format perhaps; show it with",
        ),
        ("html", b"<!DOCTYPE html>", "is HTML, from systrace perhaps"),
        (
            "perf",
            b"PERFILE2h\0\0\0",
            "is a recording of perf; make it a trace with `ferretto convert",
        ),
        ("ctf", b"\xc1\x1f\xfc\xc1\0\0", "is a stream of a CTF trace"),
        (
            "trace.dat",
            b"\x17\x08\x44tracing6\0",
            "is a recording of trace-cmd",
        ),
        (
            "config",
            b"buffers { size_kb: 1024 }",
            "is a trace config; record with it",
        ),
        ("noise", b"\xff\xfe\xfd\xfc", "is no Perfetto trace"),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        let info = run("info", &file, &[]);
        assert_eq!((info.status.code(), stdout(&info)), (Some(1), ""), "{name}");
        assert!(stderr(&info).contains(said), "{name}: {}", stderr(&info));
        let text = run("text", &file, &[]);
        assert_eq!(text.status.code(), Some(1), "{name}");
        assert!(stderr(&text).contains(said), "{name}: {}", stderr(&text));
    }
    let empty = folder.path().join("empty");
    for words in [
        &["info"][..],
        &["text"],
        &["symbolize"],
        &["convert", "--to", "text"],
        &["convert", "--to", "pprof"],
    ] {
        let output = run(words[0], &empty, &words[1..]);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(
            stderr(&output).contains("empty is empty"),
            "{words:?}: {}",
            stderr(&output)
        );
    }
    for subcommand in ["info", "text"] {
        let missing = run(subcommand, &folder.path().join("missing"), &[]);
        assert_eq!(missing.status.code(), Some(1));
        assert!(
            stderr(&missing).starts_with(&format!("ferretto {subcommand}: cannot open ")),
            "{}",
            stderr(&missing)
        );
        let directory = run(subcommand, folder.path(), &[]);
        assert_eq!(directory.status.code(), Some(1));
        assert!(stderr(&directory).contains("directory"), "{}", stderr(&directory));
        let nothing = ferretto(&[subcommand]).output().unwrap();
        assert_eq!(nothing.status.code(), Some(2));
        assert!(
            stderr(&nothing).contains(&format!("Usage: ferretto {subcommand} ")),
            "{}",
            stderr(&nothing)
        );
        let help = ferretto(&[subcommand, "--help"]).output().unwrap();
        assert_eq!((help.status.code(), stderr(&help)), (Some(0), ""));
        assert!(stdout(&help).contains("TRACE"));
    }
}

#[test]
fn text_goes_into_a_file_but_never_into_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, out) = (folder.path().join("t.pftrace"), folder.path().join("t.txt"));
    std::fs::write(&trace, made(10)).unwrap();
    std::fs::write(&out, "something longer that was there before".repeat(1000)).unwrap();
    let written = run("text", &trace, &["-o", out.to_str().unwrap()]);
    assert_eq!(
        (written.status.code(), stdout(&written), stderr(&written)),
        (Some(0), "", "")
    );
    assert_eq!(std::fs::read_to_string(&out).unwrap(), text_of(&trace));
    let refused = run("text", &trace, &["-o", trace.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("is the trace itself"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(std::fs::read(&trace).unwrap(), made(10), "it is as it was");
    let full = run("text", &trace, &["-o", "/dev/full"]);
    assert_eq!(full.status.code(), Some(1));
    assert!(
        stderr(&full).contains("cannot write /dev/full"),
        "{}",
        stderr(&full)
    );
}

#[test]
fn a_reader_that_goes_away_ends_it_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.pftrace");
    std::fs::write(&trace, made(50_000)).unwrap();
    for subcommand in ["text", "info"] {
        let mut command = ferretto(&[subcommand]);
        command.arg(&trace).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), ""),
            "{subcommand}"
        );
    }
}

/// Runs with so many KB of memory of its own, on stdin from `feed`. The program's code does not count.
fn with_little_memory(words: &str, kb: u64, feed: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Output {
    let ferretto = env!("CARGO_BIN_EXE_ferretto");
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -d {kb} && exec {ferretto} {words}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        let output = scope.spawn(|| child.wait_with_output().unwrap());
        // It fails if the program has ended, which the exit code shows.
        let _ = feed(&mut stdin);
        drop(stdin);
        output.join().unwrap()
    })
}

#[test]
fn traces_larger_than_memory_are_read_from_a_pipe() {
    const KB: u64 = 16 << 10;
    let part = made(20_000);
    let times = 2 * (KB << 10) / part.len() as u64;
    let output = with_little_memory("info --json -", KB, |stdin| {
        (0..times).try_for_each(|_| stdin.write_all(&part))
    });
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    let info = schema::check("info", &output.stdout);
    assert_eq!(info["packets"], times * 20_000);
    assert_eq!(info["file"], "stdin");
    let output = with_little_memory("text -o /dev/null -", KB, |stdin| {
        (0..4).try_for_each(|_| stdin.write_all(&part))
    });
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    // A packet that claims 60 MB and has none of them takes no memory for them.
    let liar = |stdin: &mut dyn Write| stdin.write_all(&[0x0a, 0x80, 0x80, 0x80, 0x1c, 0x08]);
    let output = with_little_memory("text -", KB, liar);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("ends inside the packet at byte 0"),
        "{}",
        stderr(&output)
    );
}
