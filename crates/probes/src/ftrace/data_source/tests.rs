//! Tests of the controller on the running kernel; skipped where tracefs cannot be used.

mod faults;
mod turns;
mod watching;

use super::*;
use crate::ftrace::test_instance::TestInstance;
use crate::ftrace::tracefs::{Recording, Setting};
use crate::test_processes::{nobody_starts, spawn};
use ferretto_proto::messages::ftrace_config::print_filter::rule::Match;
use ferretto_proto::messages::ftrace_config::{PrintFilter, print_filter::Rule};
use ferretto_proto::messages::ftrace_event::Event;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{FtraceClock, FtraceEventBundle, FtraceStats, Message, TracePacket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::mpsc::sync_channel;

const FIRST: FtraceSessionId = FtraceSessionId(1);
const SECOND: FtraceSessionId = FtraceSessionId(2);

type Sinks = BTreeMap<FtraceSessionId, Vec<Vec<u8>>>;

fn boot_time() -> BootTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A controller with an instance of its own, for one session after the other.
struct Recorder {
    controller: FtraceController,
    sinks: Sinks,
    instance: TestInstance,
}

impl Recorder {
    fn new() -> Option<Recorder> {
        let instance = TestInstance::new()?;
        Some(Recorder::on(instance))
    }

    fn on(instance: TestInstance) -> Recorder {
        let top = instance.top.clone();
        Recorder::through(top, instance)
    }

    /// Records from the instance by way of another directory.
    fn through(top: Tracefs, instance: TestInstance) -> Recorder {
        let watermarks = Watermarks::new().unwrap();
        let mut controller = FtraceController::new(top, None, watermarks.map(Arc::new));
        // On a busy machine a turn may be over before each CPU's buffer was read. Tests that are not about turns read all of them.
        controller.turn = 60_000_000_000;
        Recorder {
            controller,
            sinks: Sinks::new(),
            instance,
        }
    }

    fn config(&self, events: &[&str]) -> FtraceConfig {
        FtraceConfig {
            ftrace_events: events.iter().map(|name| name.to_string()).collect(),
            instance_name: Some(self.instance.name.clone()),
            buffer_size_kb: Some(4096),
            ..FtraceConfig::default()
        }
    }

    fn start(&mut self, id: FtraceSessionId, config: &FtraceConfig) -> Vec<String> {
        let warnings = self.controller.setup_session(id, config, boot_time()).unwrap();
        let sink = self.sinks.entry(id).or_default();
        self.controller.start_session(id, boot_time(), sink).unwrap();
        warnings
    }

    fn setup_errors(&self, id: FtraceSessionId) -> &SetupErrors {
        &self.controller.sessions[&id].setup_errors
    }

    fn drain(&mut self) {
        self.controller.drain(boot_time(), &mut self.sinks);
    }

    /// Drains in as many turns as necessary.
    fn flush(&mut self, id: FtraceSessionId) {
        let flush = self.controller.flush(id, boot_time(), &mut self.sinks);
        self.finish(flush);
    }

    fn finish(&mut self, flush: FlushId) {
        let began = boot_time();
        while !self.controller.take_flushed().contains(&flush) {
            assert!(boot_time() < began + 60_000_000_000, "it does not end");
            assert!(self.controller.next_deadline() <= Some(boot_time()), "it goes on");
            self.drain();
        }
    }

    fn flush_and_stop(&mut self, id: FtraceSessionId) -> Vec<TracefsError> {
        let flush = self.controller.flush_last(id, boot_time(), &mut self.sinks);
        self.finish(flush);
        self.controller.stop_session(id, boot_time())
    }

    fn stop(&mut self, id: FtraceSessionId) {
        let errors = self.flush_and_stop(id);
        assert!(errors.is_empty(), "{errors:?}");
        let incidents = self.controller.take_incidents();
        assert_eq!(
            incidents,
            [],
            "a test has no instance alone, or an alarm is false"
        );
    }

    fn packets(&self, id: FtraceSessionId) -> Vec<TracePacket> {
        self.sinks[&id]
            .iter()
            .map(|packet| TracePacket::decode_from_slice(packet).unwrap())
            .collect()
    }

    fn bundles(&self, id: FtraceSessionId) -> Vec<FtraceEventBundle> {
        let data = self.packets(id).into_iter().filter_map(|packet| packet.data);
        data.filter_map(|data| match data {
            Data::FtraceEvents(bundle) => Some(*bundle),
            _ => None,
        })
        .collect()
    }

    fn stats(&self, id: FtraceSessionId) -> Vec<FtraceStats> {
        let data = self.packets(id).into_iter().filter_map(|packet| packet.data);
        data.filter_map(|data| match data {
            Data::FtraceStats(stats) => Some(*stats),
            _ => None,
        })
        .collect()
    }

    fn prints(&self, id: FtraceSessionId) -> Vec<String> {
        let events = self.bundles(id).into_iter().flat_map(|bundle| bundle.event);
        events
            .filter_map(|event| match event.event {
                Some(Event::Print(print)) => print.buf,
                _ => None,
            })
            .collect()
    }

    fn marker(&self) -> File {
        let path = self.instance.tracefs.root().join("trace_marker");
        std::fs::OpenOptions::new().write(true).open(path).unwrap()
    }
}

/// Makes two threads wait for each other so often; returns their ids.
fn ping_pong(rounds: usize) -> [i32; 2] {
    let tid = || rustix::thread::gettid().as_raw_pid();
    let (to_other, from_me) = sync_channel(0);
    let (to_me, from_other) = sync_channel(0);
    let other = std::thread::spawn(move || {
        for _ in 0..rounds {
            from_me.recv().unwrap();
            to_me.send(()).unwrap();
        }
        tid()
    });
    for _ in 0..rounds {
        to_other.send(()).unwrap();
        from_other.recv().unwrap();
    }
    [tid(), other.join().unwrap()]
}

/// Times of all switches in the bundle, in the order in which they were written.
fn switch_times(bundle: &FtraceEventBundle) -> Vec<u64> {
    let mut time = 0;
    let deltas = bundle.compact_sched.switch_timestamp.iter();
    deltas
        .map(|delta| {
            time += delta;
            time
        })
        .collect()
}

#[test]
fn the_scheduling_of_this_kernel_is_recorded() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    const ROUNDS: usize = 5_000;
    // Other tests' threads may switch as often as the kernel can, and nothing may be lost.
    const PAGES: u32 = 8192;
    let config = FtraceConfig {
        buffer_size_kb: Some(PAGES * 4),
        ..recorder.config(&["sched/sched_switch", "sched/sched_waking"])
    };
    let started = boot_time();
    recorder.start(FIRST, &config);
    assert_eq!(recorder.setup_errors(FIRST), &SetupErrors::default());
    assert!(
        recorder
            .controller
            .next_deadline()
            .is_some_and(|next| next > started)
    );
    let mut threads = BTreeSet::new();
    for _ in 0..4 {
        threads.extend(ping_pong(ROUNDS / 4));
        recorder.drain();
    }
    recorder.flush(FIRST);
    let seen = recorder.controller.take_threads(FIRST).seen;
    recorder.stop(FIRST);
    let stopped = boot_time();

    assert!(threads.is_subset(&seen), "{threads:?} are not in {seen:?}");
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    let mut switches_to_us = 0;
    let mut wakings = 0;
    for bundle in recorder.bundles(FIRST) {
        let cpu = bundle.cpu.unwrap();
        assert!(bundle.error.is_empty(), "{:?}", bundle.error);
        assert_eq!(bundle.lost_events, None);
        assert_eq!(bundle.ftrace_clock, None);
        assert!(bundle.event.is_empty(), "all of it is compact");
        assert!(bundle.previous_bundle_end_timestamp >= last.get(&cpu).copied());
        for time in switch_times(&bundle) {
            let last = last.entry(cpu).or_insert(started);
            assert!(
                (*last..=stopped).contains(&time),
                "cpu {cpu}: {time} follows {last}"
            );
            *last = time;
        }
        let next_pids = &bundle.compact_sched.switch_next_pid;
        switches_to_us += next_pids.iter().filter(|pid| threads.contains(pid)).count();
        wakings += bundle.compact_sched.waking_pid.len();
    }
    assert!(
        switches_to_us > ROUNDS / 2,
        "{switches_to_us} switches to {threads:?}"
    );
    assert!(wakings > ROUNDS / 2, "{wakings} wakings");

    let stats = recorder.stats(FIRST);
    assert_eq!(stats.len(), 4, "two for each flush");
    let last = stats.last().unwrap();
    assert!(last.ftrace_parse_errors.is_empty());
    assert_eq!(
        last.cpu_stats.len(),
        recorder.instance.tracefs.cpus().unwrap().len()
    );
    assert!(last.cpu_stats.iter().all(|cpu| cpu.overrun == Some(0)));
    assert!(
        last.cpu_stats
            .iter()
            .filter_map(|cpu| cpu.read_events)
            .sum::<u64>()
            > ROUNDS as u64
    );
    assert_eq!(last.cached_cpu_buffer_size_pages, Some(PAGES));
    assert!(last.cpu_buffer_size_pages >= Some(PAGES));
    assert_eq!(recorder.controller.next_deadline(), None);
}

#[test]
fn a_drain_is_bounded_and_the_rest_is_due_at_once() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    const MESSAGES: usize = 4_000;
    let mut marker = recorder.marker();
    for number in 0..MESSAGES {
        // One write is one event.
        marker.write_all(format!("{number:0500}\n").as_bytes()).unwrap();
    }
    recorder.drain();
    let first_turn = recorder.prints(FIRST).len();
    assert!(
        (1000..MESSAGES).contains(&first_turn),
        "{first_turn} in the first turn"
    );
    assert!(
        recorder.controller.next_deadline() <= Some(boot_time()),
        "there is more"
    );
    while recorder.controller.next_deadline() <= Some(boot_time()) {
        recorder.drain();
    }
    recorder.stop(FIRST);
    let mut prints = recorder.prints(FIRST);
    // One thread, but it may have moved from one CPU to another.
    prints.sort();
    let expected: Vec<String> = (0..MESSAGES).map(|number| format!("{number:0500}\n")).collect();
    assert!(prints == expected, "{} of {MESSAGES} messages", prints.len());
}

#[test]
fn a_flush_does_not_chase_the_events_of_its_own_reading() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    // Each read of a buffer is itself a system call, and so two events more to read. Those of other threads do not count.
    recorder.change("set_event_pid", &rustix::thread::gettid().to_string());
    let config = recorder.config(&["raw_syscalls/*"]);
    recorder.start(FIRST, &config);
    recorder.drain();
    let before = recorder.bundles(FIRST).len();
    recorder.flush(FIRST);
    let reads = recorder.bundles(FIRST).len() - before;
    recorder.stop(FIRST);
    let cpus = recorder.instance.tracefs.cpus().unwrap().len();
    // 1024 pages for each CPU is what the buffer would allow.
    assert!(reads < 40 * cpus, "{reads} bundles in a flush of {cpus} CPUs");
}

#[test]
fn a_flush_reads_on_behind_pages_that_ended_early() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    // A small event and one that does not fit the rest of its page, again and again.
    let messages: Vec<String> = (0..40)
        .map(|number| {
            format!(
                "{number:0width$}\n",
                width = if number % 2 == 0 { 500 } else { 3_800 }
            )
        })
        .collect();
    let mut marker = recorder.marker();
    for message in &messages {
        let written = marker.write(message.as_bytes()).unwrap();
        if written < message.len() {
            println!("skipped: this kernel's markers end after {written} bytes");
            return recorder.stop(FIRST);
        }
    }
    recorder.flush(FIRST);
    let mut prints = recorder.prints(FIRST);
    recorder.stop(FIRST);
    // One thread, but it may have moved from one CPU to another.
    prints.sort_by_key(|print| print.trim().parse::<u32>().ok());
    assert!(
        prints == messages,
        "{} of {} messages",
        prints.len(),
        messages.len()
    );
}

#[test]
fn files_that_system_calls_open_are_passed_on() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    // Those of other threads might fill the buffer.
    recorder.change("set_event_pid", &rustix::thread::gettid().to_string());
    let config = recorder.config(&["raw_syscalls/sys_exit"]);
    recorder.start(FIRST, &config);
    let file = File::open("/proc/self/stat").unwrap();
    recorder.flush(FIRST);
    let opened = recorder.controller.take_threads(FIRST).opened_files;
    recorder.stop(FIRST);
    let expected = (rustix::thread::gettid().as_raw_pid(), file.as_raw_fd() as u64);
    assert!(opened.contains(&expected), "{expected:?} is not in {opened:?}");
}

#[test]
fn larger_sub_buffers_are_read_whole() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    if recorder
        .instance
        .tracefs
        .write("buffer_subbuf_size_kb", "16")
        .is_err()
    {
        println!("skipped: this kernel has sub-buffers of one size (before Linux 6.8)");
        return;
    }
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    const MESSAGES: usize = 200;
    let mut marker = recorder.marker();
    for number in 0..MESSAGES {
        marker.write_all(format!("{number:0500}\n").as_bytes()).unwrap();
    }
    recorder.stop(FIRST);
    assert_eq!(recorder.prints(FIRST).len(), MESSAGES);
    assert!(
        recorder
            .bundles(FIRST)
            .iter()
            .all(|bundle| bundle.error.is_empty())
    );
}

#[test]
fn each_session_gets_what_it_asked_for() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let switches = recorder.config(&["sched_switch"]);
    let rule = |prefix: &str, allow| Rule {
        allow: Some(allow),
        r#match: Some(Match::Prefix(prefix.into())),
        ..Rule::default()
    };
    let prints = FtraceConfig {
        print_filter: PrintFilter {
            rules: vec![rule("quiet", false)],
            ..PrintFilter::default()
        }
        .into(),
        ..recorder.config(&["print"])
    };
    recorder.start(FIRST, &switches);
    recorder.start(SECOND, &prints);
    recorder.marker().write_all(b"loud\n").unwrap();
    recorder.marker().write_all(b"quiet\n").unwrap();
    ping_pong(10);
    recorder.stop(SECOND);
    ping_pong(10);
    recorder.stop(FIRST);

    assert_eq!(recorder.prints(SECOND), ["loud\n"]);
    assert!(
        recorder
            .bundles(SECOND)
            .iter()
            .all(|bundle| !bundle.compact_sched.is_set())
    );
    assert_eq!(recorder.prints(FIRST), Vec::<String>::new());
    let switches: usize = recorder
        .bundles(FIRST)
        .iter()
        .map(|bundle| switch_times(bundle).len())
        .sum();
    assert!(switches > 10);
}

#[test]
fn events_without_a_message_of_their_own_describe_themselves() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = recorder.config(&["syscalls/sys_enter_kill"]);
    recorder.start(FIRST, &config);
    if !recorder.setup_errors(FIRST).unknown_events.is_empty() {
        println!("skipped: this kernel has no syscalls/sys_enter_kill");
        return;
    }
    let mut shell = spawn(std::process::Command::new("sh").args(["-c", "kill -CONT $$"])).unwrap();
    assert!(shell.wait().unwrap().success());
    recorder.stop(FIRST);
    let bundles = recorder.bundles(FIRST);
    assert!(
        bundles
            .iter()
            .any(|bundle| !bundle.generic_event_descriptors.is_empty())
    );
}

#[test]
fn another_clock_is_related_to_the_boot_clock() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let config = FtraceConfig {
        use_monotonic_raw_clock: Some(true),
        ..recorder.config(&["sched/sched_switch"])
    };
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    // The kernel's own readings of the clock may differ a little.
    const TOLERANCE: u64 = 1_000_000;
    let began = now() - TOLERANCE;
    recorder.start(FIRST, &config);
    ping_pong(100);
    recorder.stop(FIRST);
    let recorded = began..=now() + TOLERANCE;
    let bundles = recorder.bundles(FIRST);
    assert!(!bundles.is_empty());
    for bundle in bundles {
        assert_eq!(bundle.ftrace_clock, Some(FtraceClock::FTRACE_CLOCK_MONO_RAW));
        assert!(bundle.boot_timestamp > Some(0));
        let snapshot = bundle.ftrace_timestamp.unwrap() as u64;
        assert!(recorded.contains(&snapshot), "{snapshot} {recorded:?}");
        let times = switch_times(&bundle);
        assert!(
            times.iter().all(|time| recorded.contains(time)),
            "{times:?} {recorded:?}"
        );
    }
}

#[test]
fn full_buffers_are_drained_before_the_deadline() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let Some(watermarks) = recorder.controller.watermarks.clone() else {
        println!("skipped: this kernel does not report watermarks");
        return;
    };
    let config = FtraceConfig {
        drain_buffer_percent: Some(50),
        buffer_size_kb: Some(64),
        ..recorder.config(&["ftrace/print"])
    };
    recorder.start(FIRST, &config);
    let cpus = recorder.instance.tracefs.cpus().unwrap().len();
    assert!(!is_readable(&watermarks));
    let period = recorder.controller.period_ms();
    assert_eq!(period, WATERMARK_PERIOD_MS);

    recorder
        .controller
        .drain_past_watermark(boot_time(), &mut recorder.sinks);
    assert_eq!(recorder.prints(FIRST).len(), 0, "nothing is full");
    let mut marker = recorder.marker();
    for _ in 0..80 * cpus {
        marker.write_all(&[b'x'; 500]).unwrap();
    }
    assert!(is_readable(&watermarks));
    recorder
        .controller
        .drain_past_watermark(boot_time(), &mut recorder.sinks);
    assert!(recorder.prints(FIRST).len() > 40);
    assert!(!is_readable(&watermarks), "all is read");
    for _ in 0..80 * cpus {
        marker.write_all(&[b'x'; 500]).unwrap();
    }
    assert!(is_readable(&watermarks), "it is full for a second time");
    recorder.stop(FIRST);
    assert!(!is_readable(&watermarks), "nothing is watched any more");
}

fn is_readable(watermarks: &Watermarks) -> bool {
    let mut polled = [PollFd::new(watermarks, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).unwrap();
    polled[0].revents().contains(PollFlags::IN)
}

#[test]
fn the_shortest_sensible_period_counts() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let period = |recorder: &Recorder, ms| FtraceConfig {
        drain_period_ms: Some(ms),
        ..recorder.config(&["ftrace/print"])
    };
    let config = recorder.config(&["ftrace/print"]);
    recorder.start(FIRST, &config);
    assert_eq!(recorder.controller.period_ms(), 100);
    let slow = period(&recorder, 700);
    recorder.start(SECOND, &slow);
    assert_eq!(recorder.controller.period_ms(), 700);
    assert_eq!(recorder.controller.tick_after(1_500_000_000), 2_100_000_000);
    let fast = period(&recorder, 20);
    recorder.start(FtraceSessionId(3), &fast);
    assert_eq!(recorder.controller.period_ms(), 20);
    let odd = period(&recorder, 0);
    let warnings = recorder.start(FtraceSessionId(4), &odd);
    assert!(
        warnings.iter().any(|warning| warning.contains("drain_period_ms")),
        "{warnings:?}"
    );
    assert_eq!(recorder.controller.period_ms(), 100);
}

#[test]
fn the_end_of_the_controller_puts_tracefs_back() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    recorder
        .instance
        .tracefs
        .set(&Setting::BufferSizeKb, "100")
        .unwrap();
    let before = recorder.instance.snapshot();
    let config = recorder.config(&["sched/*"]);
    // Another process that has the buffers open would be somebody else who records, and whose settings stay.
    let alone = nobody_starts();
    recorder.start(FIRST, &config);
    recorder.start(SECOND, &config);
    assert_ne!(recorder.instance.snapshot(), before);
    let Recorder {
        controller, instance, ..
    } = recorder;
    drop(controller);
    drop(alone);
    assert_eq!(instance.snapshot(), before);
    assert_eq!(instance.tracefs.recording().unwrap(), Recording::On);
}

#[test]
fn a_session_that_cannot_be_says_why() {
    let Some(mut recorder) = Recorder::new() else {
        return;
    };
    let missing = FtraceConfig {
        instance_name: Some("no-such-instance".into()),
        ..FtraceConfig::default()
    };
    let error = recorder
        .controller
        .setup_session(FIRST, &missing, boot_time())
        .unwrap_err();
    assert!(error.to_string().contains("mkdir"), "{error}");
    let bad = FtraceConfig {
        function_filters: vec!["schedule:traceoff".into()],
        ..recorder.config(&[])
    };
    assert!(
        recorder
            .controller
            .setup_session(FIRST, &bad, boot_time())
            .is_err()
    );
    assert!(recorder.controller.instances.is_empty(), "nothing is left of it");
    assert!(
        recorder
            .controller
            .start_session(FIRST, 0, &mut Vec::new())
            .is_err()
    );
    assert!(recorder.controller.stop_session(FIRST, 0).is_empty());
}

#[test]
fn the_descriptor_is_upstreams() {
    let descriptor = descriptor();
    assert_eq!(descriptor.name.as_deref(), Some("linux.ftrace"));
    assert_eq!(
        (descriptor.will_notify_on_start, descriptor.will_notify_on_stop),
        (Some(true), Some(true))
    );
    assert_eq!(descriptor.handles_incremental_state_clear, None);
    assert!(descriptor.ftrace_descriptor.is_set());
}
