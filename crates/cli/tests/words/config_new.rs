//! `ferretto config new`: each config is good, is recorded without a loss, and yields the promised data.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{ferretto, outcome, program};
use crate::support::example::example;
use crate::support::trace::{LOSSES, Rows, TraceProcessor};
use crate::support::tracefs::Tracefs;
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};

/// The configs, with queries of their traces; each part of a promise is a number above 0.
const PROMISES: &[(&str, &[&str])] = &[
    (
        "sched",
        &[
            "select count(*) from sched",
            "select count(*) from thread_state where waker_utid is not null",
            "select count(*) from process where name = 'sh'",
        ],
    ),
    (
        "syscalls",
        &[
            "select count(*) from slice where name = 'sys_write' and dur > 0",
            "select count(*) from sched",
        ],
    ),
    (
        "io",
        &[
            "select count(*) from counter join counter_track t on t.id = track_id where t.name = 'Dirty'",
            "select count(*) from sched",
        ],
    ),
    (
        "memory",
        &[
            "select count(*) from counter join process_counter_track t on t.id = track_id where t.name = 'mem.rss'",
            "select count(*) from counter join counter_track t on t.id = track_id where t.name = 'MemAvailable'",
            "select count(*) from ftrace_event where name = 'rss_stat'",
        ],
    ),
    (
        "network",
        &[
            "select count(*) from ftrace_event where name = 'inet_sock_set_state'",
            "select count(*) from ftrace_event where name = 'net_dev_xmit'",
            "select count(*) from ftrace_event where name = 'softirq_entry'",
        ],
    ),
    (
        "irq",
        &[
            "select count(*) from slice join track t on t.id = track_id where t.name like '%softirq%' or t.type = 'cpu_softirq'",
            "select count(*) from sched",
        ],
    ),
    (
        "power",
        &[
            "select count(*) from counter join counter_track t on t.id = track_id where t.name like 'cpu.times%'",
            "select count(*) from sched",
        ],
    ),
    ("sdk", &["select count(*) from slice where name = 'Draw'"]),
    (
        "flight-recorder",
        &[
            "select count(*) from sched",
            "select count(*) from process where name = 'sh'",
        ],
    ),
    (
        "long",
        &[
            "select count(*) from sched",
            "select count(*) from counter join counter_track t on t.id = track_id where t.name = 'MemFree'",
        ],
    ),
];

/// Returns the text of a config.
fn new(system: &System<'_>, name: &str) -> String {
    let (printed, said, code) = outcome(&ferretto(system, &["config", "new", name]));
    assert_eq!((said.as_str(), code), ("", Some(0)), "{name}");
    printed
}

#[test]
fn without_a_name_there_is_a_list_with_a_line_for_each() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let (printed, said, code) = outcome(&ferretto(&system, &["config", "new"]));
    assert_eq!((said.as_str(), code), ("", Some(0)));
    let listed: Vec<&str> = printed
        .lines()
        .skip(1)
        .map_while(|line| line.split_once("  ").map(|(name, _)| name))
        .collect();
    let promised: Vec<&str> = PROMISES.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, promised, "each is recorded by a test");

    let (printed, said, code) = outcome(&ferretto(&system, &["config", "new", "shced"]));
    assert_eq!((printed.as_str(), code), ("", Some(2)));
    assert!(said.contains("tip: a similar value exists: 'sched'"), "{said}");
}

#[test]
fn a_file_is_written_once_and_names_itself() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let path = system.path("my config.cfg");
    let words = ["config", "new", "sched", "-o", path.to_str().unwrap()];
    assert_eq!(
        outcome(&ferretto(&system, &words)),
        (String::new(), String::new(), Some(0))
    );
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written.contains(&format!("--txt -c '{}' -o", path.display())),
        "{written}"
    );
    std::fs::write(&path, "mine").unwrap();
    let (printed, said, code) = outcome(&ferretto(&system, &words));
    assert_eq!((printed.as_str(), code), ("", Some(1)));
    assert!(said.contains("exists and is not overwritten"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn each_is_good() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let _program = program(&system, "com.example.game", &[("rendering", &[], "")]);
    for (name, _) in PROMISES {
        let path = system.path(&format!("{name}.cfg"));
        std::fs::write(&path, new(&system, name)).unwrap();
        let (printed, said, code) = outcome(&ferretto(&system, &["config", "check", path.to_str().unwrap()]));
        assert_eq!((said.as_str(), code), ("", Some(0)), "{name}");
        // Kernels differ in their events.
        let faults: Vec<&str> = printed
            .lines()
            .filter(|line| line.contains("warning:") && !line.contains("this kernel has no"))
            .collect();
        assert!(faults.is_empty(), "{printed}");
    }
}

/// A folder for files, on a disk if there is one.
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// Does something of everything that the configs record.
fn work() {
    for _ in 0..10 {
        let status = Command::new("sh")
            .args(["-c", "echo; exit 3"])
            .stdout(Stdio::null())
            .status();
        assert_eq!(status.unwrap().code(), Some(3));
    }
    let mut file = tempfile::tempfile_in(FOLDER).unwrap();
    file.write_all(&vec![1; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(&[1; 1000]).unwrap();
    server.read_exact(&mut [0; 1000]).unwrap();
}

/// Records a config while there is something to record; returns the trace.
fn recorded(system: &System<'_>, name: &str) -> Option<PathBuf> {
    let until_interrupted: String = new(system, name)
        .lines()
        .filter(|line| !line.starts_with("duration_ms:"))
        // Unoptimized probes cannot record all system calls of a busy machine; the config describes how to select some.
        .map(|line| {
            line.replace(
                "#   syscall_events: \"sys_openat\"",
                "syscall_events: \"sys_write\"",
            )
        })
        .map(|line| format!("{line}\n"))
        // The timeouts are long, because the machine may be busy.
        .chain(["flush_timeout_ms: 120000\ndata_source_stop_timeout_ms: 120000\n".to_owned()])
        .collect();
    let instrumented = match name {
        "sdk" => {
            let mut command = system.command(&example("track_events")?, "program.log");
            let running = Running(command.arg("2").spawn().unwrap());
            system.await_state(|state| {
                let mut sources = state.data_sources.iter();
                sources.any(|source| source.ds_descriptor.name.as_deref() == Some("track_event"))
            });
            Some(running)
        }
        _ => None,
    };
    let recording = system.record(Side::Ours, &until_interrupted);
    work();
    if let Some(mut instrumented) = instrumented {
        assert!(instrumented.wait(PATIENCE).is_some_and(|status| status.success()));
    }
    if name != "flight-recorder" {
        return Some(recording.interrupt());
    }
    let saved = system.path("saved.pftrace");
    let perfetto = system.program(Side::Ours, Program::Perfetto);
    let mut clone = system.command(&perfetto, "clone.log");
    clone.args(["--clone-by-name", name, "-o"]).arg(&saved);
    assert!(clone.status().unwrap().success(), "{}", system.log("clone.log"));
    recording.interrupt();
    Some(saved)
}

#[test]
fn each_config_records_the_promised_data_without_a_loss() {
    let (Some(processor), Some(_tracefs)) = (TraceProcessor::find(), Tracefs::lock()) else {
        return;
    };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    for (name, promises) in PROMISES {
        let Some(trace) = recorded(&system, name) else {
            continue;
        };
        let all: Vec<String> = promises.iter().map(|promise| format!("({promise})")).collect();
        let [mut losses, counts] = processor.query(&trace, [LOSSES, &format!("select {}", all.join(", "))]);
        // Trace processors up to v56 miss flush_period_ms, which services since v54 do not need.
        losses.retain(|row| row[0] != "config_write_into_file_no_flush");
        assert_eq!(losses, Rows::new(), "{name}");
        for (promise, count) in promises.iter().zip(&counts[0]) {
            assert_ne!(
                count,
                "0",
                "{name}: {promise}\n{}",
                system.log("traced_probes.log")
            );
        }
    }
}

#[test]
fn one_that_cannot_be_written_whole_is_not_left_behind() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let output = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 1; exec \"$0\" config new sched -o sched.cfg",
        ])
        .arg(env!("CARGO_BIN_EXE_ferretto"))
        .current_dir(system.path(""))
        .output()
        .unwrap();
    let (printed, said, code) = outcome(&output);
    assert_eq!((printed.as_str(), code), ("", Some(1)), "{said}");
    assert!(said.contains("cannot write sched.cfg: "), "{said}");
    assert!(!system.path("sched.cfg").exists());
}

#[test]
fn requests_to_disks_are_seen_where_files_are_on_one() {
    let (Some(processor), Some(_tracefs)) = (TraceProcessor::find(), Tracefs::lock()) else {
        return;
    };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let device = rustix::fs::stat(FOLDER).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    if !Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists() {
        println!("skipped: this kernel has no disk below {FOLDER}");
        return;
    }
    let trace = recorded(&system, "io").unwrap();
    let [requests] = processor.query(
        &trace,
        ["select count(*) from ftrace_event where name = 'block_rq_complete'"],
    );
    assert_ne!(requests, [["0"]]);
}
