//! `ferretto list`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{assert_refuses_flags, ferretto, offer, outcome, outcome_as_another_user, program, text};
use crate::support::schema::check;
use crate::support::tracefs::Tracefs;
use crate::support::{Program, Programs, Side, System};

#[test]
fn events_are_those_of_the_kernel_and_patterns_choose_among_them() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listed = |words: &[&str]| -> BTreeSet<String> {
        let output = ferretto(&system, &[&["list", "events", "--json"], words].concat());
        assert_eq!(
            output.status.code(),
            Some(0),
            "{words:?}: {}",
            text(&output.stderr)
        );
        let value = check("list-events", &output.stdout);
        let name = |event: &serde_json::Value| {
            format!(
                "{}/{}",
                event["group"].as_str().unwrap(),
                event["name"].as_str().unwrap()
            )
        };
        value["events"].as_array().unwrap().iter().map(name).collect()
    };
    let available = std::fs::read_to_string("/sys/kernel/tracing/available_events").unwrap();
    let kernels: BTreeSet<String> = available.lines().map(|line| line.replacen(':', "/", 1)).collect();
    let all = listed(&[]);
    assert_eq!(kernels.difference(&all).next(), None);
    assert!(all.contains("ftrace/print"), "it is in no list of the kernel");

    let of = |group: &str| -> BTreeSet<String> {
        let start = format!("{group}/");
        all.iter()
            .filter(|event| event.starts_with(&start))
            .cloned()
            .collect()
    };
    assert_eq!(listed(&["sched/"]), of("sched"));
    assert_eq!(listed(&["sched:*"]), of("sched"));
    assert_eq!(listed(&["task/", "sched:"]), &of("sched") | &of("task"));
    assert_eq!(
        listed(&["sched:sched_swit"]),
        BTreeSet::from(["sched/sched_switch".to_owned()])
    );
    assert!(listed(&["switch"]).contains("sched/sched_switch"));

    // For people: the name to type, and whether the trace format has a message for the event.
    let output = ferretto(&system, &["list", "events", "sched_switch", "sched_process_wait"]);
    let (printed, said, code) = outcome(&output);
    assert_eq!((said.as_str(), code), ("", Some(0)));
    let lines: Vec<Vec<&str>> = printed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["EVENT", "ENCODING"]);
    assert!(lines.contains(&vec!["sched/sched_switch", "typed"]), "{printed}");
}

#[test]
fn a_pattern_that_matches_nothing_is_reported_with_the_nearest_name() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let programs = Programs::ours();
    let system = System::new(&programs);
    for (typed, meant) in [
        ("sched:sched_swich", "did you mean sched/sched_switch?"),
        ("sched_wakign", "did you mean sched/sched_waking?"),
        ("shced/", "did you mean sched/?"),
    ] {
        let (printed, said, code) = outcome(&ferretto(&system, &["list", "events", typed]));
        assert_eq!((printed.as_str(), code), ("", Some(1)), "{typed}");
        assert_eq!(
            said,
            format!("ferretto list events: nothing fits {typed:?}; {meant}\n")
        );
    }
    // One pattern matches and another does not.
    let (printed, said, code) = outcome(&ferretto(
        &system,
        &["list", "events", "sched_waking", "gibberish"],
    ));
    assert!(printed.contains("\nsched/sched_waking "), "{printed}");
    assert_eq!(said, "ferretto list events: nothing fits \"gibberish\"\n");
    assert_eq!(code, Some(1));
}

#[test]
fn subjects_that_are_none_get_the_nearest_right_one() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let (printed, said, code) = outcome(&ferretto(&system, &["list", "sesions"]));
    assert_eq!((printed.as_str(), code), ("", Some(2)));
    assert!(said.contains("'sessions'"), "{said}");
    assert_refuses_flags(&system, &["list", "sources"]);
    // The singular is accepted as well.
    let (_, _, code) = outcome(&ferretto(&system, &["list", "source"]));
    assert_eq!(code, Some(0));
}

#[test]
fn a_user_who_may_not_read_tracefs_gets_advice() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("ferretto");
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_ferretto"))
        .arg(&copy)
        .status();
    assert!(copied.unwrap().success());
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["list", "events"])
        .stdin(Stdio::null());
    let Some((printed, said, code)) = outcome_as_another_user(&mut command) else {
        return;
    };
    assert_eq!((printed.as_str(), code), ("", Some(1)));
    assert!(
        said.starts_with("ferretto list events: this user may not use /sys/kernel/tracing")
            && said.ends_with("As root: `sudo ferretto list events`\n"),
        "{said}"
    );
    assert!(!said.contains("\\n"), "{said}");
}

#[test]
fn sources_are_those_that_producers_offer() {
    let programs = Programs::ours();
    let mut system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let _program = program(&system, "com.example.game", &[("rendering", &[], "")]);
    let value = check(
        "list-sources",
        &ferretto(&system, &["list", "sources", "--json", "linux.*", "com.example"]).stdout,
    );
    let listed: Vec<(&str, &str, u64)> = value["sources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|source| {
            (
                source["name"].as_str().unwrap(),
                source["producer"]["name"].as_str().unwrap(),
                source["track_event_categories"].as_u64().unwrap(),
            )
        })
        .collect();
    let probes = "perfetto.traced_probes";
    assert_eq!(
        listed,
        [
            ("linux.frozen_ftrace", probes, 0),
            ("linux.ftrace", probes, 0),
            ("linux.inode_file_map", probes, 0),
            ("linux.process_stats", probes, 0),
            ("linux.sys_stats", probes, 0),
            ("linux.sysfs_power", probes, 0),
            ("linux.system_info", probes, 0),
            ("linux.systemd_journald", probes, 0),
            ("track_event", "com.example.game", 1),
        ]
    );
    let (printed, said, code) = outcome(&ferretto(&system, &["list", "sources", "track"]));
    let row: Vec<&str> = printed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        row[..3],
        ["track_event", "com.example.game", &std::process::id().to_string()]
    );
    assert_eq!((said.as_str(), code), ("", Some(0)));

    // Without a service, the sources that a service of our own would have.
    system.end_all();
    let output = ferretto(&system, &["list", "sources", "--json"]);
    let value = check("list-sources", &output.stdout);
    assert_eq!(value["service"], serde_json::Value::Null);
    assert_eq!(value["sources"].as_array().unwrap().len(), 9);
    let said = text(&output.stderr);
    assert!(
        said.starts_with(&format!(
            "ferretto list sources: no tracing service listens at {};",
            system.consumer_socket().display()
        )),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn programs_with_several_data_sources_are_named_once_for_each_category() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let categories: &[(&str, &[&str], &str)] = &[("rendering", &[], "")];
    let names = ["com.example.one", "com.example.two"];
    let mut producers = names.map(|name| program(&system, name, categories));
    for producer in &mut producers {
        offer(producer, "org.example.track_event", categories);
    }
    let value = check(
        "list-categories",
        &ferretto(&system, &["list", "categories", "--json"]).stdout,
    );
    let listed = value["categories"][0]["producers"].as_array().unwrap();
    let listed: Vec<&str> = listed
        .iter()
        .map(|producer| producer["name"].as_str().unwrap())
        .collect();
    assert_eq!(listed, names);
}

#[test]
fn sessions_are_those_that_run() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let (printed, said, code) = outcome(&ferretto(&system, &["list", "sessions"]));
    assert_eq!((printed.as_str(), code), ("", Some(1)));
    assert!(said.contains("no tracing service listens at "), "{said}");

    system.start(Side::Ours, Program::Traced);
    let recording = system.record(
        Side::Ours,
        "unique_session_name: \"flight recorder\" buffers { size_kb: 64 } buffers { size_kb: 128 }",
    );
    let timed = system.record(Side::Ours, "duration_ms: 3600000 buffers { size_kb: 64 }");
    let value = check(
        "list-sessions",
        &ferretto(&system, &["list", "sessions", "--json"]).stdout,
    );
    let sessions = value["sessions"].as_array().unwrap();
    let told: Vec<_> = sessions
        .iter()
        .map(|session| {
            (
                &session["name"],
                &session["buffers"],
                &session["duration_ms"],
                &session["state"],
            )
        })
        .collect();
    let (null, started) = (serde_json::Value::Null, "STARTED".into());
    assert_eq!(
        told,
        [
            (
                &"flight recorder".into(),
                &serde_json::json!([65536, 131072]),
                &null,
                &started
            ),
            (&null, &serde_json::json!([65536]), &3_600_000.into(), &started),
        ]
    );
    assert_eq!(sessions[0]["buffers_used"].as_array().unwrap().len(), 2);
    let id = sessions[1]["id"].to_string();
    let named = check(
        "list-sessions",
        &ferretto(&system, &["list", "sessions", "--json", "FLIGHT"]).stdout,
    );
    assert_eq!(named["sessions"].as_array().unwrap().len(), 1);
    let (printed, said, code) = outcome(&ferretto(&system, &["list", "sessions", &id]));
    assert_eq!(
        (printed.lines().count(), said.as_str(), code),
        (2, "", Some(0)),
        "{printed}"
    );
    assert!(printed.contains("  started "), "{printed}");
    recording.interrupt();
    timed.interrupt();
}

#[test]
fn categories_are_those_that_programs_told_of_and_do_nothing_to_the_terminal() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let (printed, said, code) = outcome(&ferretto(&system, &["list", "categories"]));
    assert_eq!((printed.as_str(), code), ("", Some(0)));
    assert!(said.contains("of 0 connected producers none has told"), "{said}");

    let _game = program(
        &system,
        "game",
        &[
            ("rendering", &["slow", "gpu"], "Frames"),
            ("evil\x1b[2J", &[], "a\nb"),
        ],
    );
    let _other = program(
        &system,
        "other",
        &[("rendering", &["slow", "gpu"], "Frames"), ("net", &[], "")],
    );
    let value = check(
        "list-categories",
        &ferretto(&system, &["list", "categories", "--json", "slow"]).stdout,
    );
    let [rendering] = value["categories"].as_array().unwrap().as_slice() else {
        panic!("{value:#}")
    };
    assert_eq!(rendering["name"], "rendering");
    assert_eq!(rendering["tags"], serde_json::json!(["slow", "gpu"]));
    let producers = rendering["producers"].as_array().unwrap();
    assert_eq!(
        (&producers[0]["name"], &producers[1]["name"]),
        (&"game".into(), &"other".into())
    );

    let (printed, said, code) = outcome(&ferretto(&system, &["list", "categories"]));
    assert_eq!(
        (printed.lines().count(), said.as_str(), code),
        (4, "", Some(0)),
        "{printed}"
    );
    assert!(printed.contains("evil\\u{1b}[2J"), "{printed}");
    assert!(printed.contains("a\\nb"), "{printed}");
}

#[test]
fn clocks_are_read_beside_boottime() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let output = ferretto(&system, &["list", "clocks", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let value = check("list-clocks", &output.stdout);
    let clocks = value["clocks"].as_array().unwrap();
    let clock = |name: &str| clocks.iter().find(|clock| clock["name"] == name).unwrap();
    assert_eq!(clock("BOOTTIME")["id"], 6);
    assert_eq!(clock("BOOTTIME")["drift_ppm"], 0.0);
    assert_eq!(clock("MONOTONIC")["id"], 3);
    assert!(clock("MONOTONIC_RAW")["drift_ppm"].is_f64());
    assert!(clock("REALTIME")["ahead_of_boottime_ns"].is_i64());
    // Its steps are those of the timer.
    assert!(clock("REALTIME_COARSE")["drift_ppm"].is_null());
    #[cfg(target_arch = "x86_64")]
    assert!(clock("TSC")["ticks_per_second"].as_f64() > Some(1e8), "{value:#}");

    let (printed, _, code) = outcome(&ferretto(&system, &["list", "clocks", "mono*"]));
    assert_eq!(code, Some(0));
    assert!(
        printed.contains(" MONOTONIC_RAW ") && !printed.contains(" 6  BOOTTIME"),
        "{printed}"
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let output = Command::new("bash")
        .args(["-c", "set -o pipefail; exec 2>&1; \"$0\" list events | head -1"])
        .arg(Path::new(env!("CARGO_BIN_EXE_ferretto")))
        .output();
    let Ok(output) = output else {
        println!("skipped: bash is not installed");
        return;
    };
    // bash prints to stderr if the locale is not installed.
    let (printed, _, code) = outcome(&output);
    assert!(printed.starts_with("EVENT "), "{printed}");
    assert_eq!((printed.lines().count(), code), (1, Some(0)), "{printed}");
}
