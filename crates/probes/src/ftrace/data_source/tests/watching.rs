//! Changes that others make to an instance during a recording, on the running kernel.

use super::*;
use crate::ftrace::data_source::watching::MOST_TOLD;
use crate::ftrace::test_instance::{TestDir, all_events};
use crate::ftrace::watch::look::traceoff_trigger;
use ferretto_proto::messages::ftrace_stats::Phase;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

const SECOND_NS: u64 = 1_000_000_000;

impl Recorder {
    pub(super) fn change(&self, file: &str, value: &str) {
        let path = self.instance.tracefs.root().join(file);
        let written = OpenOptions::new()
            .write(true)
            .truncate(value.is_empty())
            .open(path)
            .and_then(|mut opened| opened.write_all(value.as_bytes()));
        written.unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// Drains so much later that the controller looks at everything.
    fn drain_later(&mut self, seconds: u64) {
        let now = boot_time() + seconds * SECOND_NS;
        self.controller.drain(now, &mut self.sinks);
    }

    fn incidents(&mut self) -> Vec<String> {
        let incidents = self.controller.take_incidents();
        incidents.into_iter().map(|incident| incident.text).collect()
    }
}

#[test]
fn what_others_change_is_noticed_and_so_is_its_end() {
    for (file, value, before, change, end) in [
        (
            "tracing_on",
            "0",
            "1",
            "tracing_on is 0, and nothing is recorded until it is 1",
            "Recording is on again",
        ),
        (
            "set_event",
            "",
            "sched:sched_switch sched:sched_waking",
            "(sched/sched_switch, sched/sched_waking): they are not recorded",
            "Events are on again",
        ),
        (
            "events/enable",
            "0",
            "",
            "(sched/sched_switch, sched/sched_waking): they are not recorded",
            "",
        ),
        (
            "events/sched/sched_waking/enable",
            "0",
            "1",
            "(sched/sched_waking)",
            "Events are on again",
        ),
        (
            "events/sched/sched_switch/filter",
            "prev_pid == 0",
            "0",
            "from `0` to `prev_pid == 0`",
            "is what it was again",
        ),
        (
            "set_event_pid",
            "1",
            "",
            "set_event_pid from `` to `1`",
            "is what it was again",
        ),
        (
            "trace_clock",
            "local",
            "boot",
            "trace_clock from `boot` to `local`",
            "is what it was again",
        ),
        (
            "buffer_size_kb",
            "100",
            "4096",
            "buffer_size_kb from `409",
            "buffer_size_kb",
        ),
        (
            "options/overwrite",
            "0",
            "1",
            "options/overwrite from `1` to `0`",
            "is what it was again",
        ),
        ("tracing_cpumask", "1", "", "tracing_cpumask from `", ""),
    ] {
        let Some(mut recorder) = Recorder::new() else {
            return;
        };
        if file == "tracing_cpumask" && recorder.instance.tracefs.read(file).unwrap().trim() == value {
            // With one CPU there is no other mask.
            continue;
        }
        let config = recorder.config(&["sched/sched_switch", "sched/sched_waking"]);
        recorder.start(FIRST, &config);
        recorder.drain_later(2);
        assert_eq!(recorder.incidents(), [""; 0], "{file}");

        recorder.change(file, value);
        recorder.drain_later(4);
        let noticed = recorder.incidents();
        assert!(
            noticed.len() == 1 && noticed[0].contains(change) && noticed[0].ends_with('.'),
            "{file}: {noticed:?}"
        );
        recorder.drain_later(6);
        assert_eq!(recorder.incidents(), [""; 0], "{file}: once is enough");
        if !before.is_empty() || file == "set_event_pid" {
            for part in before.split(' ') {
                recorder.change(file, part);
            }
            recorder.drain_later(8);
            let noticed = recorder.incidents();
            assert!(
                noticed.len() == 1 && noticed[0].contains(end),
                "{file}: {noticed:?}"
            );
        }
        let errors = recorder.flush_and_stop(FIRST);
        assert!(errors.is_empty(), "{file}: {errors:?}");
        // The statistics of a flush repeat it all, because packets in a ring buffer do not stay; once, in the phase that readers use.
        let stats = recorder.stats(FIRST);
        let (start, end) = (&stats[stats.len() - 2], &stats[stats.len() - 1]);
        assert_eq!(start.phase, Some(Phase::START_OF_TRACE));
        let told = start.atrace_errors.as_deref().unwrap_or_default();
        assert!(told.contains(change), "{file}: {told:?}");
        assert_eq!(end.atrace_errors, None, "{file}");
    }
}

#[test]
fn what_happened_since_the_last_drain_is_noticed_at_the_stop() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = recorder.config(&["sched/sched_switch"]);
    recorder.start(FIRST, &config);
    recorder.change("events/sched/sched_switch/filter", "prev_pid == 0");
    let errors = recorder.flush_and_stop(FIRST);
    assert!(errors.is_empty(), "{errors:?}");
    let noticed = recorder.incidents();
    assert!(
        noticed.len() == 1 && noticed[0].contains("sched_switch/filter"),
        "{noticed:?}"
    );
}

#[test]
fn events_that_others_take_are_counted_and_the_taker_is_named() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    recorder.drain_later(2);
    let mut marker = recorder.marker();
    for _ in 0..10 {
        marker.write_all(b"mine\n").unwrap();
    }
    let mut pipe = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(recorder.instance.tracefs.root().join("trace_pipe"))
        .unwrap();
    // The reader can be any other process that has the file open at the time; the test's own stands for one.
    let mut sleep = std::process::Command::new("sleep");
    let mut other = spawn(sleep.arg("1000").stdin(pipe.try_clone().unwrap())).unwrap();
    let mut taken = vec![0; 1 << 16];
    let length = pipe.read(&mut taken).unwrap();
    let taken = String::from_utf8_lossy(&taken[..length]).matches("mine").count();
    assert!(taken > 0);
    drop(pipe);
    marker.write_all(b"left\n").unwrap();
    recorder.drain_later(4);
    let noticed = recorder.incidents();
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(noticed.len(), 1, "{noticed:?}");
    assert!(
        noticed[0].starts_with(&format!("Somebody else read {taken} events")),
        "{noticed:?}"
    );
    let who = format!("process {} (sleep) had trace_pipe open", other.id());
    assert!(noticed[0].contains(&who), "{noticed:?}");
    recorder.stop(FIRST);
    assert_eq!(recorder.prints(FIRST).len(), 10 - taken + 1);
}

#[test]
fn buffers_that_are_emptied_are_noticed() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    let mut marker = recorder.marker();
    for _ in 0..10 {
        marker.write_all(b"mine\n").unwrap();
    }
    recorder.drain_later(2);
    marker.write_all(b"lost\n").unwrap();
    recorder.change("trace", "");
    recorder.drain_later(4);
    let noticed = recorder.incidents();
    assert!(
        noticed.len() == 1 && noticed[0].contains("emptied the kernel's buffers"),
        "{noticed:?}"
    );
    recorder.stop(FIRST);
}

#[test]
fn events_that_the_kernel_loses_are_not_said_to_be_switched_off() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let _events = all_events();
    // An event that can be taken away, as a module's: a probe of a program that nobody runs.
    let (folder, event) = (TestDir::new(), format!("ferretto_{}/gone", std::process::id()));
    let program = folder.path().join("program");
    fs::write(&program, [0; 4096]).unwrap();
    let top = recorder.instance.top.clone();
    let definition = format!("p:{event} {}:0x10\n", program.display());
    if let Err(error) = top.append("uprobe_events", &definition) {
        println!("skipped: this kernel has no user space probes: {error}");
        return;
    }
    let config = recorder.config(&[&event, "ftrace/print"]);
    recorder.start(FIRST, &config);
    recorder.marker().write_all(b"read\n").unwrap();
    recorder.drain_later(2);
    recorder.change(&format!("events/{event}/enable"), "0");
    top.append("uprobe_events", &format!("-:{event}\n")).unwrap();
    recorder.drain_later(4);
    let noticed = recorder.incidents();
    assert!(
        noticed.len() == 1
            && noticed[0].starts_with("Events are not there any more")
            && noticed[0].contains(&event),
        "and not that the buffers were emptied: {noticed:?}"
    );
    recorder.stop(FIRST);
}

#[test]
fn another_clock_is_followed() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    recorder.change("trace_clock", "global");
    recorder.marker().write_all(b"global\n").unwrap();
    recorder.drain();
    recorder.change("trace_clock", "boot");
    recorder.marker().write_all(b"boot\n").unwrap();
    recorder.drain();
    let clocks: Vec<_> = recorder
        .bundles(FIRST)
        .iter()
        .map(|bundle| bundle.ftrace_clock)
        .collect();
    assert_eq!(clocks, [Some(FtraceClock::FTRACE_CLOCK_GLOBAL), None]);
    assert_eq!(recorder.incidents().len(), 2);
    recorder.stop(FIRST);
}

#[test]
fn a_trigger_that_switches_recording_off_is_wanted() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let trigger = "events/sched/sched_process_exit/trigger";
    let path = recorder.instance.tracefs.root().join(trigger);
    if fs::write(&path, "traceoff").is_err() {
        println!("skipped: this kernel has no trigger traceoff");
        return;
    }
    assert_eq!(
        traceoff_trigger(&recorder.instance.tracefs).as_deref(),
        Some(trigger)
    );
    let config = recorder.config(&["sched/sched_switch"]);
    recorder.start(FIRST, &config);
    std::thread::spawn(|| ()).join().unwrap();
    while recorder.instance.tracefs.recording().unwrap() == Recording::On {
        std::thread::yield_now();
    }
    recorder.drain();
    let incidents = recorder.controller.take_incidents();
    assert_eq!(incidents.len(), 1, "{incidents:?}");
    assert_eq!(incidents[0].weight, Weight::Remark);
    assert!(incidents[0].text.contains("traceoff"), "{incidents:?}");
    fs::write(&path, "!traceoff").unwrap();
    recorder.change("tracing_on", "1");
    recorder.drain();
    recorder.stop(FIRST);
    assert_eq!(recorder.stats(FIRST).last().unwrap().atrace_errors, None);
}

#[test]
fn what_sessions_do_to_each_other_is_nobodys_trouble() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let first = recorder.config(&["sched/*", "raw_syscalls/*"]);
    let second = FtraceConfig {
        syscall_events: vec!["sys_read".into()],
        ..recorder.config(&["sched/sched_switch", "irq/*"])
    };
    recorder.start(FIRST, &second);
    ping_pong(200);
    recorder.drain_later(2);
    recorder.start(SECOND, &first);
    ping_pong(200);
    recorder.drain_later(4);
    recorder.flush(SECOND);
    recorder.stop(SECOND);
    ping_pong(200);
    recorder.drain_later(6);
    recorder.stop(FIRST);
}

#[test]
fn under_load_every_event_that_the_kernel_counts_as_read_was_read_here() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let small = FtraceConfig {
        buffer_size_kb: Some(64),
        ..recorder.config(&["sched/*", "raw_syscalls/*", "irq/*", "timer/*", "ftrace/print"])
    };
    recorder.start(FIRST, &small);
    let mut marker = recorder.marker();
    for round in 0..60 {
        // Overruns the small buffers now and then.
        ping_pong(if round % 5 == 0 { 5_000 } else { 100 });
        marker.write_all("long ".repeat(round * 10).as_bytes()).unwrap();
        recorder.drain_later(2 * round as u64);
    }
    assert!(
        recorder
            .bundles(FIRST)
            .iter()
            .any(|bundle| bundle.lost_events == Some(true))
    );
    recorder.stop(FIRST);
}

#[test]
fn who_plays_with_a_switch_for_hours_is_told_of_so_often_and_no_more() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = recorder.config(&["sched/sched_switch"]);
    recorder.start(FIRST, &config);
    let mut noticed = Vec::new();
    for round in 0..2 * MOST_TOLD {
        recorder.change("tracing_on", ["0", "1"][round % 2]);
        recorder.drain();
        noticed.extend(recorder.incidents());
    }
    assert_eq!(noticed.len(), MOST_TOLD);
    assert_eq!(
        noticed[MOST_TOLD - 1],
        "More happened to ftrace than is told here."
    );
    let before = recorder.stats(FIRST).len();
    recorder.stop(FIRST);
    let stats = &recorder.stats(FIRST)[before];
    let told = stats.atrace_errors.as_deref().unwrap_or_default();
    assert_eq!(told.lines().count(), MOST_TOLD);
}
