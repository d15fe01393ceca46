//! The data source on folders that look like tracefs, with recorded pages, and on instances of this machine's tracefs that have stopped.

use std::fs;
use std::io::Write as _;

use ferretto_proto::messages::ftrace_event::Event;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    FrozenFtraceConfig, FtraceEventBundle, FtraceStats as Stats, Message, MessageField, TracePacket,
};

use super::*;
use crate::ftrace::fixtures::{FORMATS, HEADER_PAGE, MIXED, PAGE_SIZE, SCHED};
use crate::ftrace::test_instance::TestInstance;
use crate::test_files::TempDir;

const LAST_BOOT: &str = "ffffffff81000000\t[kernel]\n";

/// A folder that looks like tracefs, with one instance.
struct Folder(TempDir);

impl Folder {
    /// Makes one with these pages in the buffer of CPU 0.
    fn new(pages: &[u8]) -> Self {
        let dir = TempDir::new("frozen");
        dir.write("tracing_on", "1\n");
        let folder = Self(dir);
        for (file, content) in [
            ("tracing_on", "0\n"),
            ("events/header_page", HEADER_PAGE),
            ("printk_formats", include_str!("../testdata/printk_formats")),
            ("buffer_size_kb", "1408\n"),
            ("per_cpu/cpu0/buffer_size_kb", "1408\n"),
            ("per_cpu/cpu0/stats", "entries: 7\nread events: 5\n"),
            ("trace", "what is left"),
            ("last_boot_info", LAST_BOOT),
        ] {
            folder.write(file, content);
        }
        for (group, name, format) in FORMATS {
            folder.write(&format!("events/{group}/{name}/format"), format);
        }
        folder.write("per_cpu/cpu0/trace_pipe_raw", pages);
        folder
    }

    fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        self.0.write(&format!("instances/boot/{file}"), content);
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join("instances/boot").join(file)).unwrap()
    }

    fn tracefs(&self) -> Tracefs {
        Tracefs::at(self.0.path()).unwrap()
    }

    fn source(&self) -> Source {
        Source::new(&self.tracefs(), "boot").unwrap()
    }
}

struct Source {
    frozen: FrozenFtrace,
    sink: Vec<Vec<u8>>,
}

impl Source {
    fn new(top: &Tracefs, name: &str) -> Result<Self, FrozenError> {
        let config = DataSourceConfig {
            frozen_ftrace_config: MessageField::some(FrozenFtraceConfig {
                instance_name: Some(name.to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let frozen = FrozenFtrace::from_config(&config, top)?;
        Ok(Self {
            frozen,
            sink: Vec::new(),
        })
    }

    fn start(&mut self) {
        self.frozen.start(1, &mut self.sink);
    }

    /// Gives it turns until it wants none; returns their number.
    fn run(&mut self) -> usize {
        let mut turns = 0;
        while let Some(due) = self.frozen.next_deadline() {
            self.frozen.on_deadline(due, &mut self.sink);
            turns += 1;
            assert!(turns < 100_000, "no end of turns");
        }
        turns
    }

    fn stop(&mut self) {
        self.frozen.stop(2, &mut self.sink);
    }

    fn packets(&self) -> Vec<TracePacket> {
        self.sink
            .iter()
            .map(|packet| TracePacket::decode_from_slice(packet).unwrap())
            .collect()
    }

    fn bundles(&self) -> Vec<FtraceEventBundle> {
        let data = self.packets().into_iter().filter_map(|packet| packet.data);
        data.filter_map(|data| match data {
            Data::FtraceEvents(bundle) => Some(*bundle),
            _ => None,
        })
        .collect()
    }

    fn stats(&self) -> Vec<Stats> {
        let data = self.packets().into_iter().filter_map(|packet| packet.data);
        data.filter_map(|data| match data {
            Data::FtraceStats(stats) => Some(*stats),
            _ => None,
        })
        .collect()
    }

    #[track_caller]
    fn tells(&mut self, words: &[&str]) {
        let notices = self.frozen.take_notices();
        assert_eq!(notices.len(), 1, "{notices:?}");
        for word in words {
            assert!(notices[0].contains(word), "{word:?} in {notices:?}");
        }
    }
}

#[test]
fn every_event_of_the_pages_is_written_with_all_its_fields() {
    for recording in [SCHED, MIXED] {
        let folder = Folder::new(recording.pages);
        let mut source = folder.source();
        source.start();
        source.run();
        assert_eq!(source.frozen.take_notices(), Vec::<String>::new());
        let bundles = source.bundles();
        assert!(bundles.iter().all(|bundle| bundle.cpu == Some(0)));
        assert!(bundles.iter().all(|bundle| !bundle.compact_sched.is_set()));
        let events: Vec<_> = bundles.iter().flat_map(|bundle| &bundle.event).collect();
        let lines = recording.lines();
        assert_eq!(events.len(), lines.len());
        for (event, line) in events.iter().zip(&lines) {
            assert_eq!(event.pid, Some(line.tid as u32));
            if line.event == "sched_switch" {
                let Some(Event::SchedSwitch(switch)) = &event.event else {
                    panic!("{event:?}")
                };
                assert_eq!(switch.next_pid.unwrap().to_string(), line.value("next_pid"));
            }
        }
    }
}

#[test]
fn statistics_frame_the_events_as_upstream_does() {
    let folder = Folder::new(SCHED.pages);
    let mut source = folder.source();
    source.start();
    source.run();
    let stats = source.stats();
    assert_eq!(stats.len(), 2);
    assert_eq!(stats[0].phase, Some(Phase::START_OF_TRACE));
    assert_eq!(stats[0].preserve_ftrace_buffer, Some(true));
    assert_eq!(stats[1].phase, Some(Phase::END_OF_TRACE));
    assert_eq!(stats[1].cpu_stats.len(), 1);
    assert_eq!(stats[1].cpu_stats[0].read_events, Some(5));
    assert_eq!(
        stats[1].cpu_buffer_size_pages,
        Some(1408 * 1024 / PAGE_SIZE as u32)
    );
    assert_eq!(stats[1].ftrace_parse_errors, []);
    let first = source.packets().into_iter().next().unwrap();
    assert!(matches!(first.data, Some(Data::FtraceStats(_))));
    let last = source.packets().into_iter().next_back().unwrap();
    assert!(matches!(last.data, Some(Data::FtraceStats(_))));
}

#[test]
fn reading_is_split_into_turns() {
    let pages = SCHED
        .pages
        .repeat(1 + 4 * PAGES_PER_TURN * PAGE_SIZE / SCHED.pages.len());
    let folder = Folder::new(&pages);
    folder.write("per_cpu/cpu0/buffer_size_kb", (pages.len() / 1024).to_string());
    let mut source = folder.source();
    source.start();
    assert!(source.run() > 4);
    let copies = pages.len() / SCHED.pages.len();
    let events: usize = source.bundles().iter().map(|bundle| bundle.event.len()).sum();
    assert_eq!(events, copies * SCHED.lines().len());
}

#[test]
fn a_page_that_is_mostly_empty_does_not_end_the_reading() {
    // A page header with a time, and no events.
    let mut empty = vec![0; PAGE_SIZE];
    empty[..8].copy_from_slice(&1u64.to_le_bytes());
    let pages = [&empty[..], SCHED.pages, &empty[..], SCHED.pages].concat();
    let folder = Folder::new(&pages);
    let mut source = folder.source();
    source.start();
    source.run();
    let events: usize = source.bundles().iter().map(|bundle| bundle.event.len()).sum();
    assert_eq!(events, 2 * SCHED.lines().len());
}

#[test]
fn a_buffer_that_breaks_off_is_read_as_far_as_it_goes_and_the_trace_says_so() {
    let folder = Folder::new(&[SCHED.pages, &[0; 100]].concat());
    let mut source = folder.source();
    source.start();
    source.run();
    let stats = source.stats();
    assert_eq!(stats[1].ftrace_parse_errors.len(), 1, "{stats:?}");
    let events: usize = source.bundles().iter().map(|bundle| bundle.event.len()).sum();
    assert_eq!(events, SCHED.lines().len());
    source.stop();
    assert_eq!(folder.read("trace"), "what is left");
    source.tells(&["could not be read to the end for 1 CPUs", "still there"]);
}

#[test]
fn the_buffer_is_emptied_when_the_session_ends_and_not_before() {
    let folder = Folder::new(SCHED.pages);
    let mut source = folder.source();
    source.start();
    source.run();
    assert_eq!(folder.read("trace"), "what is left");
    source.stop();
    assert_eq!(folder.read("trace"), "");
    assert_eq!(folder.read("tracing_on"), "0\n", "nothing else is changed");
    assert_eq!(source.frozen.take_notices(), Vec::<String>::new());
}

#[test]
fn a_buffer_that_records_again_is_not_emptied() {
    let folder = Folder::new(SCHED.pages);
    let mut source = folder.source();
    source.start();
    source.run();
    folder.write("tracing_on", "1\n");
    source.stop();
    assert_eq!(folder.read("trace"), "what is left");
    source.tells(&["records again", "not emptied"]);
}

#[test]
fn a_session_that_ends_too_early_leaves_the_rest_and_says_so() {
    let folder = Folder::new(SCHED.pages);
    let mut source = folder.source();
    source.start();
    source.stop();
    assert_eq!(folder.read("trace"), "what is left");
    source.tells(&["not read to its end", "record longer"]);
    let troubles: Vec<_> = source
        .stats()
        .into_iter()
        .filter_map(|stats| stats.atrace_errors)
        .collect();
    assert_eq!(troubles.len(), 1);
    assert!(troubles[0].contains("not read to its end"));
}

#[test]
fn the_log_is_told_whose_events_these_are() {
    for (last_boot_info, on, words) in [
        (Some(LAST_BOOT), "0", None),
        (Some("# Current\n"), "0", Some("since the machine booted")),
        (None, "0", Some("reserve_mem")),
        (Some(LAST_BOOT), "1", Some("^traceoff")),
    ] {
        let folder = Folder::new(SCHED.pages);
        match last_boot_info {
            Some(text) => folder.write("last_boot_info", text),
            None => folder.0.remove("instances/boot/last_boot_info"),
        }
        folder.write("tracing_on", on);
        let mut source = folder.source();
        source.start();
        match words {
            Some(words) => source.tells(&[words]),
            None => assert_eq!(source.frozen.take_notices(), Vec::<String>::new()),
        }
        source.run();
        source.stop();
        // A program that still records has events there that it has not read.
        assert_eq!(folder.read("trace").is_empty(), on == "0");
    }
}

#[test]
fn an_empty_buffer_is_told() {
    let folder = Folder::new(&[]);
    let mut source = folder.source();
    source.start();
    source.run();
    source.tells(&["is empty", "did not survive"]);
    assert_eq!(source.stats().len(), 2);
}

#[test]
fn buffers_that_cannot_be_opened_are_left_alone() {
    let folder = Folder::new(SCHED.pages);
    let mut source = folder.source();
    folder.0.remove("instances/boot/per_cpu/cpu0/trace_pipe_raw");
    source.start();
    source.run();
    source.tells(&["cannot be read", "trace_pipe_raw"]);
    source.stop();
    assert_eq!(folder.read("trace"), "what is left");
}

#[test]
fn a_buffer_that_is_not_there_cannot_be_set_up_and_the_reason_has_advice() {
    let folder = Folder::new(SCHED.pages);
    let top = folder.tracefs();
    let error = |name: &str| match Source::new(&top, name) {
        Ok(_) => panic!("{name:?} is no instance"),
        Err(error) => error.to_string(),
    };
    assert!(error("").contains("instance_name"));
    assert!(error("boot2").contains("trace_instance=boot2@trace"));
    for name in ["../boot", "..", "boot/events"] {
        assert!(error(name).contains("no name of a tracefs instance"), "{name}");
    }
}

#[test]
fn formats_and_pages_of_any_kind_do_no_harm() {
    use crate::test_files::Mutator;

    for seed in 0..40 {
        let mut mutator = Mutator::new(seed);
        let folder = Folder::new(&mutator.damage(SCHED.pages));
        for (group, name, format) in FORMATS {
            folder.write(
                &format!("events/{group}/{name}/format"),
                mutator.damage(format.as_bytes()),
            );
        }
        for file in [
            "per_cpu/cpu0/buffer_size_kb",
            "per_cpu/cpu0/stats",
            "buffer_size_kb",
        ] {
            let text = folder.read(file);
            folder.write(file, mutator.damage(text.as_bytes()));
        }
        let mut source = folder.source();
        source.start();
        source.run();
        source.stop();
        // Names are written as they are, be they UTF-8 or not, so not every packet can be decoded here.
        assert!(source.sink.len() >= 2, "seed {seed}");
    }
}

#[test]
fn an_instance_of_this_kernel_that_has_stopped_is_read_and_emptied() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let root = instance.tracefs.root();
    let mut marker = fs::OpenOptions::new()
        .write(true)
        .open(root.join("trace_marker"))
        .unwrap();
    let texts: Vec<String> = (0..3000)
        .map(|number| format!("before the crash {number}\n"))
        .collect();
    for text in &texts {
        marker.write_all(text.as_bytes()).unwrap();
    }
    instance.tracefs.write("tracing_on", "0").unwrap();

    let mut source = Source::new(&instance.top, &instance.name).unwrap();
    source.start();
    source.run();
    source.tells(&["is not in memory that survives a reboot"]);
    let mut printed: Vec<String> = source
        .bundles()
        .into_iter()
        .flat_map(|bundle| bundle.event)
        .filter_map(|event| match event.event {
            Some(Event::Print(print)) => print.buf,
            _ => None,
        })
        .collect();
    printed.sort_unstable();
    let mut texts = texts;
    texts.sort_unstable();
    assert_eq!(printed, texts);
    let stats = source.stats();
    let read: u64 = stats[1].cpu_stats.iter().filter_map(|cpu| cpu.read_events).sum();
    assert_eq!(read, 3000);
    source.stop();
    assert_eq!(source.frozen.take_notices(), Vec::<String>::new());
    assert_eq!(instance.tracefs.get(&Setting::TracingOn).unwrap(), "0");

    let mut again = Source::new(&instance.top, &instance.name).unwrap();
    again.start();
    again.frozen.take_notices();
    again.run();
    again.tells(&["is empty"]);
}
