//! A producer with upstream's C++ client library (`interop/cxx-producer`) writes 100,000 track events and packets of 1 MiB. With either service and
//! either command line, no packet is missing, doubled or damaged.
//!
//! The producer is a program of its own workspace, named by `$FERRETTO_CXX_PRODUCER`: `cargo build --release --manifest-path
//! interop/cxx-producer/Cargo.toml`.

use std::path::{Path, PathBuf};

use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};

const EVENTS: i64 = 100_000;
const PACKETS: i64 = 20;

const SOURCES: &str = r#"
data_sources { config {
  name: "track_event"
  track_event_config { disabled_categories: "*" enabled_categories: "interop" }
} }
data_sources { config { name: "ferretto.interop.large" } }
"#;

/// The way of the trace into its file.
enum Output {
    /// Through the command line, in the end.
    ReadBack,
    /// By the service, while packets are still incomplete in its buffer.
    WrittenByTheService,
}

impl Output {
    fn config(&self) -> String {
        let more = match self {
            // The buffer holds everything, and would refuse data rather than overwrite them.
            Output::ReadBack => "buffers { size_kb: 131072 fill_policy: DISCARD }",
            // A ring buffer, because data that are read out make room. It holds everything nevertheless, because the producer writes it all within a
            // period.
            Output::WrittenByTheService => {
                "buffers { size_kb: 131072 fill_policy: RING_BUFFER }
                write_into_file: true file_write_period_ms: 100 flush_period_ms: 500"
            }
        };
        format!("{SOURCES} {more}")
    }
}

/// The programs and the producer, unless the test is skipped.
struct Setting {
    programs: Programs,
    processor: TraceProcessor,
    producer: PathBuf,
}

impl Setting {
    fn find(programs: Option<Programs>) -> Option<Setting> {
        let (programs, processor) = (programs?, TraceProcessor::find()?);
        let producer = std::env::var_os("FERRETTO_CXX_PRODUCER").map(PathBuf::from);
        if producer.is_none() {
            println!("skipped: name the program of interop/cxx-producer in FERRETTO_CXX_PRODUCER");
        }
        Some(Setting {
            programs,
            processor,
            producer: producer?,
        })
    }

    fn check(&self, traced: Side, perfetto: Side, output: Output, shared_memory_kb: u32) {
        let mut system = System::new(&self.programs);
        system.start(traced, Program::Traced);
        let mut producer = system.command(&self.producer, "producer.log");
        producer.args(["--events", &EVENTS.to_string(), "--packets", &PACKETS.to_string()]);
        producer.args(["--shmem-kb", &shared_memory_kb.to_string()]);
        let mut producer = Running(producer.spawn().unwrap());
        // The data sources are registered before the session begins, so "started" means "started in the producer".
        system.await_state(|state| state.data_sources.len() >= 2);
        let recording = system.record(perfetto, &output.config());
        let status = producer.wait(PATIENCE * 4);
        assert!(
            status.is_some_and(|status| status.success()),
            "the producer: {status:?}\n{}",
            system.log("producer.log")
        );
        // Upstream's service waits in vain for a flush of a producer that disconnects meanwhile.
        system.await_state(|state| state.data_sources.is_empty());
        let trace = recording.interrupt();
        system.assert_running();
        self.assert_all_there(&trace);
    }

    fn assert_all_there(&self, trace: &Path) {
        let [losses, events, large] = self.processor.query(
            trace,
            [
                LOSSES,
                "select count(*), count(distinct number), min(number), max(number),
                    sum((number % 2 = 0) != (name = 'instant')), sum(dur < 0)
                from (select name, dur, extract_arg(arg_set_id, 'debug.number') number from slice
                    where name in ('instant', 'slice'))",
                "select count(*), count(distinct number), min(number), max(number),
                    sum(length(payload) != 1048576 or replace(payload, word, '') != '')
                from (select number, payload, printf('%08x%08x', number, (number * 2654435761) & 4294967295) word
                    from (select extract_arg(arg_set_id, 'debug.number') number,
                            extract_arg(arg_set_id, 'debug.payload') payload
                        from slice where name = 'large'))",
            ],
        );
        assert_eq!(losses, Rows::new());
        assert_eq!(
            numbers(&events),
            [EVENTS, EVENTS, 0, EVENTS - 1, 0, 0],
            "track events"
        );
        assert_eq!(
            numbers(&large),
            [PACKETS, PACKETS, 0, PACKETS - 1, 0],
            "large packets"
        );
    }
}

/// The control: if this test fails, the others say nothing about our programs.
#[test]
fn upstreams_service_recorded_by_upstreams_command_line() {
    let Some(setting) = Setting::find(Programs::of_both()) else {
        return;
    };
    setting.check(Side::Upstream, Side::Upstream, Output::ReadBack, 1024);
}

#[test]
fn our_service_recorded_by_upstreams_command_line() {
    let Some(setting) = Setting::find(Programs::of_both()) else {
        return;
    };
    setting.check(Side::Ours, Side::Upstream, Output::ReadBack, 1024);
}

#[test]
fn our_service_recorded_by_our_command_line() {
    let Some(setting) = Setting::find(Some(Programs::ours())) else {
        return;
    };
    setting.check(Side::Ours, Side::Ours, Output::ReadBack, 1024);
}

#[test]
fn our_service_writing_the_file_while_packets_are_incomplete() {
    let Some(setting) = Setting::find(Some(Programs::ours())) else {
        return;
    };
    setting.check(Side::Ours, Side::Ours, Output::WrittenByTheService, 1024);
}

/// Packets of twice the size of the shared memory. The producer can finish them only while the service returns chunks.
#[test]
fn packets_larger_than_the_shared_memory() {
    let Some(setting) = Setting::find(Some(Programs::ours())) else {
        return;
    };
    setting.check(Side::Ours, Side::Ours, Output::ReadBack, 512);
}
