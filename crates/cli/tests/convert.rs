//! `ferretto convert` with real files: the result has the same content as upstream's trace processor reads from the original.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::trace::{Rows, TraceProcessor};
use crate::support::tracefs::Tracefs;
use crate::support::{Programs, Side, System};

const EVENTS: &str = r#"{"traceEvents":[
{"ph":"M","pid":1,"tid":1,"name":"process_name","args":{"name":"proc"}},
{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"worker"}},
{"ph":"X","pid":1,"tid":1,"ts":20.123,"dur":10,"name":"inner"},
{"ph":"X","pid":1,"tid":1,"ts":10,"dur":100.5,"name":"outer","cat":"c","args":{"a":1,"b":{"c":[1,"x",true]}}},
{"ph":"B","pid":1,"tid":2,"ts":"5","name":"begun"},{"ph":"E","pid":1,"tid":2,"ts":15},
{"ph":"i","pid":1,"tid":2,"ts":7,"name":"thread","s":"t"},
{"ph":"i","pid":1,"tid":2,"ts":8,"name":"global","s":"g"},
{"ph":"I","pid":1,"tid":2,"ts":8,"name":"process","s":"p"},
{"ph":"C","pid":1,"tid":1,"ts":1,"name":"n","args":{"v":1,"w":2.5}},
{"ph":"C","pid":1,"tid":1,"ts":11,"name":"n","args":{"v":3}},
{"ph":"b","pid":1,"tid":1,"ts":30,"name":"async","cat":"q","id":"0x1"},
{"ph":"n","pid":1,"tid":1,"ts":32,"name":"async","cat":"q","id":"0x1"},
{"ph":"e","pid":1,"tid":1,"ts":40,"name":"async","cat":"q","id":"0x1"},
{"ph":"X","pid":1,"tid":1,"ts":62,"dur":8,"name":"last"},
{"ph":"s","pid":1,"tid":1,"ts":25,"name":"flow","cat":"f","id":7},
{"ph":"f","bp":"e","pid":1,"tid":1,"ts":65,"name":"flow","cat":"f","id":7}
]}"#;

const SLICES: &str =
    "SELECT ts, dur, name, ifnull(category, ''), depth FROM slice ORDER BY ts, dur DESC, name";
const COUNTERS: &str =
    "SELECT ts, value, name FROM counter JOIN counter_track ON track_id = counter_track.id ORDER BY ts, name";
const FLOWS: &str =
    "SELECT a.name, b.name FROM flow JOIN slice a ON slice_out = a.id JOIN slice b ON slice_in = b.id";
const THREADS: &str = "SELECT tid, name FROM thread WHERE name = 'worker'";
const PROBLEMS: &str = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0";

fn convert(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferretto"));
    command
        .arg("convert")
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::null());
    command.output().unwrap()
}

/// Converts a file, which has to succeed without a word.
fn converted(folder: &Path, words: &[&str]) -> String {
    let output = convert(folder, words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{words:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_trace_without_anything_for_the_format_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.json"), EVENTS).unwrap();
    fs::write(folder.path().join("in.folded"), "main;work 3\n").unwrap();
    converted(folder.path(), &["-o", "events.pftrace", "in.json"]);
    converted(folder.path(), &["-o", "samples.pftrace", "in.folded"]);
    for (format, trace, lacking) in [
        ("json", "samples.pftrace", "has no track events"),
        ("systrace", "events.pftrace", "has no kernel events"),
        ("folded", "events.pftrace", "has no samples with call stacks"),
    ] {
        let output = convert(folder.path(), &["--to", format, "-o", "out", trace]);
        assert_eq!(output.status.code(), Some(1), "{format}");
        assert!(said(&output).contains(lacking), "{format}: {}", said(&output));
        assert!(!folder.path().join("out").exists(), "{format}");
    }
}

#[test]
fn chrome_json_has_the_same_events_as_a_trace() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("in.json"), EVENTS).unwrap();
    converted(folder.path(), &["-o", "out.pftrace", "in.json"]);
    let queries = [SLICES, COUNTERS, FLOWS, THREADS];
    let expected = processor.query(&path("in.json"), queries);
    assert_eq!(expected.each_ref().map(Vec::len), [9, 3, 1, 1]);
    assert_eq!(processor.query(&path("out.pftrace"), queries), expected);
    // The conversion back appends the name of a counter's only value to the counter's name.
    converted(folder.path(), &["-o", "back.json", "out.pftrace"]);
    let queries = [SLICES, FLOWS, THREADS];
    assert_eq!(
        processor.query(&path("back.json"), queries),
        processor.query(&path("in.json"), queries)
    );
}

#[test]
fn slices_that_overlap_are_kept_on_a_track_of_their_own() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let events = r#"[{"ph":"X","pid":1,"tid":1,"ts":10,"dur":20,"name":"a"},{"ph":"X","pid":1,"tid":1,"ts":20,"dur":20,"name":"b"}"#;
    fs::write(folder.path().join("in.json"), events).unwrap();
    converted(folder.path(), &["-o", "out.pftrace", "in.json"]);
    let trace = folder.path().join("out.pftrace");
    let [slices, problems] =
        processor.query(&trace, ["SELECT ts, dur, name FROM slice ORDER BY ts", PROBLEMS]);
    assert_eq!(slices, [["10000", "20000", "a"], ["20000", "20000", "b"]]);
    assert_eq!(problems, Rows::new());
}

/// Records a load with `perf`; `None` if that is not possible here, with a line about it.
fn perf_recording(folder: &Path, flags: &[&str]) -> Option<PathBuf> {
    let file = folder.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-F", "997", "-g", "-o"])
        .arg(&file)
        .args(flags);
    perf.args([
        "--",
        "sh",
        "-c",
        "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done",
    ]);
    match perf.output() {
        Ok(output) if output.status.success() => Some(file),
        Ok(output) => {
            println!(
                "skipped: perf does not record: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            None
        }
        Err(error) => {
            println!("skipped: no perf: {error}");
            None
        }
    }
}

#[test]
fn a_recording_of_perf_has_the_same_samples_and_stacks_as_a_trace() {
    /// Each sample with its stack, innermost frame first.
    const SAMPLES: &str = "WITH RECURSIVE chain(sample, place, callsite, parent, frame) AS (
        SELECT s.id, 0, c.id, c.parent_id, c.frame_id FROM perf_sample s JOIN stack_profile_callsite c ON s.callsite_id = c.id
        UNION ALL
        SELECT sample, place + 1, c.id, c.parent_id, c.frame_id FROM chain JOIN stack_profile_callsite c ON chain.parent = c.id)
        SELECT s.ts, t.tid, s.cpu_mode, place, f.rel_pc, m.name, m.build_id
        FROM chain JOIN perf_sample s ON s.id = sample JOIN thread t USING (utid)
        JOIN stack_profile_frame f ON f.id = frame JOIN stack_profile_mapping m ON m.id = f.mapping
        ORDER BY s.ts, s.cpu, place";
    const COUNT: &str = "SELECT count(*), count(callsite_id) FROM perf_sample";
    let folder = tempfile::tempdir().unwrap();
    let (Some(processor), Some(file)) = (TraceProcessor::find(), perf_recording(folder.path(), &[])) else {
        return;
    };
    converted(folder.path(), &["-o", "out.pftrace", "perf.data"]);
    let [samples, count] = processor.query(&file, [SAMPLES, COUNT]);
    assert!(samples.len() > 20, "{count:?}");
    let [own_samples, own_count, problems] =
        processor.query(&folder.path().join("out.pftrace"), [SAMPLES, COUNT, PROBLEMS]);
    assert_eq!(own_count, count);
    assert_eq!(problems, Rows::new());
    // The trace processor puts a slash before each part of a path, also before names that are no paths. It gives frames without a mapping a dummy
    // mapping, and we give them none. It does not find the kernel's build id, because perf lists it under another name.
    let comparable = |rows: Rows| -> Rows {
        let mut rows = rows;
        for row in &mut rows {
            let name = row[5].trim_start_matches('/').to_owned();
            if name.starts_with("[kernel") {
                row[6].clear();
            }
            row[5] = if name.contains("dummy") {
                String::new()
            } else {
                name
            };
        }
        rows
    };
    assert_eq!(comparable(own_samples), comparable(samples));
}

#[test]
fn folded_stacks_of_perf_add_up_to_its_samples() {
    let folder = tempfile::tempdir().unwrap();
    if perf_recording(folder.path(), &[]).is_none() {
        return;
    }
    let report = Command::new("perf")
        .args(["script", "-F", "comm,tid", "-i", "perf.data"])
        .current_dir(folder.path())
        .output();
    let report = report.unwrap();
    let samples = String::from_utf8_lossy(&report.stdout)
        .lines()
        .filter(|line| !line.trim().is_empty())
        .count();
    let folded = converted(folder.path(), &["--to", "folded", "perf.data"]);
    let counts = folded
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap());
    assert_eq!(counts.sum::<usize>(), samples);
    assert!(folded.lines().all(|line| line.starts_with("sh;sh;")), "{folded}");
}

#[test]
fn a_recording_of_perf_is_recognised_whatever_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = perf_recording(folder.path(), &[]) else {
        return;
    };
    let expected = converted(folder.path(), &["--to", "folded", "perf.data"]);
    for name in ["perf.data.old", "profile.json", "no ending"] {
        fs::copy(&file, folder.path().join(name)).unwrap();
        assert_eq!(
            converted(folder.path(), &["--to", "folded", name]),
            expected,
            "{name}"
        );
    }
    let packed = gzip(&fs::read(&file).unwrap());
    fs::write(folder.path().join("perf.data.gz"), packed).unwrap();
    assert_eq!(
        converted(folder.path(), &["--to", "folded", "perf.data.gz"]),
        expected
    );
    let output = convert(folder.path(), &["-o", "perf.data", "profile.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("not written"), "{}", said(&output));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    let mut encoder = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast());
    encoder.read_to_end(&mut packed).unwrap();
    packed
}

#[test]
fn files_named_gz_are_compressed_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("in.json.gz"), gzip(EVENTS.as_bytes())).unwrap();
    fs::write(path("in.json"), EVENTS).unwrap();
    fs::write(path("in.folded"), "prog;main;work 3\n").unwrap();
    for (input, output) in [
        ("in.json.gz", "out.json"),
        ("in.json.gz", "out.pftrace"),
        ("in.folded", "out.svg"),
        ("in.folded", "out.firefox.json"),
    ] {
        let packed = format!("{output}.gz");
        converted(folder.path(), &["-o", output, input]);
        converted(folder.path(), &["-o", &packed, input]);
        let mut contents = Vec::new();
        let file = fs::File::open(path(&packed)).unwrap();
        flate2::read::GzDecoder::new(file)
            .read_to_end(&mut contents)
            .unwrap();
        assert_eq!(contents, fs::read(path(output)).unwrap(), "{output}");
    }
    converted(folder.path(), &["--to", "json", "-o", "flagged.gz", "in.json"]);
    assert_eq!(fs::read(path("flagged.gz")).unwrap()[..2], [0x1f, 0x8b]);
    // A pprof file is always compressed. The ending does not compress it a second time.
    converted(folder.path(), &["-o", "out.pb.gz", "in.folded"]);
    let mut profile = Vec::new();
    let file = fs::File::open(path("out.pb.gz")).unwrap();
    flate2::read::GzDecoder::new(file)
        .read_to_end(&mut profile)
        .unwrap();
    assert_ne!(profile[..2], [0x1f, 0x8b]);
}

#[test]
fn kernel_events_are_the_lines_of_upstreams_text() {
    const CONFIG: &str = r#"
        buffers { size_kb: 8192 }
        data_sources { config { name: "linux.process_stats" process_stats_config { scan_all_processes_on_start: true record_thread_names: true } } }
        data_sources { config { name: "linux.ftrace" ftrace_config {
          ftrace_events: "sched/sched_switch" ftrace_events: "sched/sched_waking" ftrace_events: "irq/softirq_entry" ftrace_events: "irq/irq_handler_entry"
          ftrace_events: "irq/irq_handler_exit" ftrace_events: "power/cpu_idle" ftrace_events: "timer/hrtimer_start"
          compact_sched { enabled: false } } } }"#;
    let (Some(processor), Some(_tracefs)) = (TraceProcessor::find(), Tracefs::lock()) else {
        return;
    };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let recording = system.record(Side::Ours, CONFIG);
    // Each is scheduled once at least, and so is this thread, which waits for it.
    for _ in 0..100 {
        assert!(Command::new("true").status().unwrap().success());
    }
    let trace = recording.interrupt();
    let text = converted(
        trace.parent().unwrap(),
        &["--to", "systrace", trace.to_str().unwrap()],
    );
    let [theirs] = processor.query(&trace, ["SELECT to_ftrace(id) FROM ftrace_event ORDER BY ts, id"]);
    // The letters of states depend on the kernel's version, which upstream does not read from such a trace. Only the trace has the processes of
    // threads that begin during the recording.
    let comparable = |line: &str| -> String {
        let (head, rest) = line.split_once("] .... ").unwrap();
        let words = rest.split(' ').filter(|word| !word.starts_with("prev_state="));
        let cpu = head.rsplit('[').next().unwrap().to_owned();
        format!("{cpu} {}", words.collect::<Vec<_>>().join(" "))
    };
    let mut own: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(comparable)
        .collect();
    let mut theirs: Vec<String> = theirs.iter().map(|row| comparable(&row.join("\t"))).collect();
    assert!(own.len() > 100);
    own.sort();
    theirs.sort();
    assert_eq!(own, theirs);
}

#[test]
fn a_damaged_input_leaves_the_output_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("in.json"), "[{\"ph\":\"i\",\"ts\":1}\nx]").unwrap();
    let output = convert(folder.path(), &["-o", "new.pftrace", "in.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        said(&output),
        "ferretto convert: in.json: line 2, column 1: expected `,` or `]`\n"
    );
    assert!(!path("new.pftrace").exists());
    fs::write(path("old.pftrace"), "what was there").unwrap();
    assert_eq!(
        convert(folder.path(), &["-o", "old.pftrace", "in.json"])
            .status
            .code(),
        Some(1)
    );
    assert_eq!(fs::read(path("old.pftrace")).unwrap(), b"what was there");
    // A trace without samples is no profile either.
    fs::write(path("events.json"), EVENTS).unwrap();
    let output = convert(folder.path(), &["-o", "new.svg", "events.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("events.json has no samples with call stacks"),
        "{}",
        said(&output)
    );
    assert!(!path("new.svg").exists());
    let output = convert(folder.path(), &["-o", "in.json", "--to", "folded", "in.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(fs::read_to_string(path("in.json")).unwrap().ends_with("x]"));
}

#[test]
fn the_format_comes_from_the_flag_or_the_ending() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("in.folded"), "prog;main;work 3\nprog;main 1\n").unwrap();
    converted(folder.path(), &["-o", "out.pftrace", "in.folded"]);
    let mode = fs::metadata(path("out.pftrace")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let expected = "prog;prog;main 1\nprog;prog;main;work 3\n";
    assert_eq!(
        converted(folder.path(), &["--to", "folded", "out.pftrace"]),
        expected
    );
    assert_eq!(
        converted(folder.path(), &["--to", "collapsed", "-o", "-", "out.pftrace"]),
        expected
    );
    assert_eq!(
        converted(folder.path(), &["--to", "folded", "--pid", "1", "out.pftrace"]),
        expected
    );
    let output = convert(folder.path(), &["--to", "folded", "--pid", "2,3", "out.pftrace"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("leave --pid and --thread out"),
        "{}",
        said(&output)
    );
    converted(folder.path(), &["-o", "out.svg", "in.folded"]);
    assert!(
        fs::read_to_string(path("out.svg"))
            .unwrap()
            .contains("work (3 samples, 75.00%)")
    );
    for words in [
        &["in.folded"][..],
        &["-o", "what.ever", "in.folded"],
        &["--to", "json", "--pid", "1", "in.folded"],
    ] {
        assert_eq!(convert(folder.path(), words).status.code(), Some(2), "{words:?}");
    }
}
