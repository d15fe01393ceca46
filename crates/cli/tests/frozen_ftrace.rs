//! `linux.frozen_ftrace` with our probes and with upstream's, on an instance of tracefs that has stopped. A reader cannot tell it from an instance that
//! survived a reboot.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use ferretto_proto::messages::ftrace_event::Event;
use ferretto_proto::messages::ftrace_stats::Phase;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{FtraceStats, Message, Trace};

use crate::support::trace::{LOSSES, TraceProcessor};
use crate::support::tracefs::Instance;
use crate::support::{Programs, Side, System};

const MESSAGES: usize = 5000;

/// Records messages into an instance, and stops it.
fn fill(instance: &Instance) {
    instance.write("tracing_on", "1");
    let marker = instance.file("trace_marker");
    let mut marker = fs::File::options().write(true).open(marker).unwrap();
    for number in 0..MESSAGES {
        marker.write_all(message(number).as_bytes()).unwrap();
    }
    instance.write("tracing_on", "0");
}

/// Events of an instance that nobody has read.
fn entries(instance: &Instance) -> u64 {
    let cpus = fs::read_dir(instance.file("per_cpu")).unwrap();
    cpus.map(|cpu| {
        let stats = fs::read_to_string(cpu.unwrap().path().join("stats")).unwrap();
        let entries = stats.lines().find_map(|line| line.strip_prefix("entries: "));
        entries.unwrap().trim().parse::<u64>().unwrap()
    })
    .sum()
}

/// A counter in the format of `atrace`: the trace processor counts any other text as an error.
fn message(number: usize) -> String {
    format!("C|1|before the reboot|{number}\n")
}

/// The trace's data about the instance.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    /// The number of times that each message was printed.
    printed: BTreeMap<String, usize>,
    /// For each statistics packet: the phase, whether events from before the trace count, and the numbers of events that were read and that are left.
    stats: Vec<(Option<Phase>, bool, u64, u64)>,
}

impl Reading {
    fn of(trace: &Path) -> Reading {
        let mut reading = Reading {
            printed: BTreeMap::new(),
            stats: Vec::new(),
        };
        let trace = Trace::decode_from_slice(&fs::read(trace).unwrap()).unwrap();
        for packet in trace.packet {
            match packet.data {
                Some(Data::FtraceEvents(bundle)) => {
                    for event in bundle.event {
                        if let Some(Event::Print(print)) = event.event {
                            *reading.printed.entry(print.buf.unwrap()).or_default() += 1;
                        }
                    }
                }
                Some(Data::FtraceStats(stats)) => reading.stats.push(summary(&stats)),
                _ => {}
            }
        }
        reading
    }
}

fn summary(stats: &FtraceStats) -> (Option<Phase>, bool, u64, u64) {
    let sum = |count: fn(&ferretto_proto::messages::FtraceCpuStats) -> Option<u64>| {
        stats.cpu_stats.iter().filter_map(count).sum::<u64>()
    };
    (
        stats.phase,
        stats.preserve_ftrace_buffer.unwrap_or(false),
        sum(|cpu| cpu.read_events),
        sum(|cpu| cpu.entries),
    )
}

#[test]
fn either_probes_read_the_same_out_of_a_buffer_that_has_stopped() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(instance) = Instance::new() else { return };
    let config = format!(
        "duration_ms: 3000 buffers {{ size_kb: 32768 }} data_sources {{ config {{ name: \"linux.frozen_ftrace\" frozen_ftrace_config {{
            instance_name: \"{}\" }} }} }}",
        instance.name()
    );
    let expected: BTreeMap<String, usize> = (0..MESSAGES).map(|number| (message(number), 1)).collect();
    let processor = TraceProcessor::find();
    let mut readings = Vec::new();
    for probes in [Side::Upstream, Side::Ours] {
        fill(&instance);
        let system = System::with_daemons(&programs, Side::Ours, probes);
        let trace = system.record(Side::Ours, &config).finish();
        let reading = Reading::of(&trace);
        assert_eq!(reading.printed, expected, "{probes}");
        assert_eq!(entries(&instance), 0, "{probes}");
        let on = instance.read("tracing_on");
        assert_eq!(on.trim(), "0", "{probes}");
        if let Some(processor) = &processor {
            let count = "select count(*) from ftrace_event where name = 'print'";
            let [losses, prints] = processor.query(&trace, [LOSSES, count]);
            assert_eq!(losses, Vec::<Vec<String>>::new(), "{probes}");
            assert_eq!(prints, [[MESSAGES.to_string()]], "{probes}");
        }
        readings.push(reading);
    }
    // The kernel still counts events that were read.
    let phases = |reading: &Reading| -> Vec<_> {
        let stats = reading.stats.iter();
        stats
            .map(|(phase, preserved, _, left)| (*phase, *preserved, *left))
            .collect()
    };
    assert_eq!(phases(&readings[0]), phases(&readings[1]));
}

#[test]
fn a_buffer_that_is_not_there_is_told_with_advice() {
    let programs = Programs::ours();
    let Some(instance) = Instance::new() else { return };
    let name = instance.name().to_owned();
    drop(instance);
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let config = format!(
        "duration_ms: 100 buffers {{ size_kb: 64 }} data_sources {{ config {{ name: \"linux.frozen_ftrace\" frozen_ftrace_config {{
            instance_name: \"{name}\" }} }} }}"
    );
    let path = system.path("config");
    fs::write(&path, config).unwrap();
    let mut perfetto = system.command(
        &system.program(Side::Ours, crate::support::Program::Perfetto),
        "perfetto.log",
    );
    perfetto
        .arg("--txt")
        .arg("-c")
        .arg(path)
        .arg("-o")
        .arg(system.path("trace"));
    perfetto.output().unwrap();
    let log = system.log("traced_probes.log");
    let reason = format!(
        "linux.frozen_ftrace could not be set up: there is no tracefs instance `{name}`, so nothing survived the last boot"
    );
    assert!(log.contains(&reason) && log.contains("reserve_mem="), "{log}");
}
