//! The trace's statistics about the recording itself: the kernel's counters for each CPU's buffer, setup errors, other
//! programs' changes to ftrace, and parse errors. [`super::data_source`] collects them when a session starts and at each
//! flush, and writes them as an `FtraceStats` packet. Each trouble also has a packet of its own, which the producer writes at
//! once.

use std::collections::BTreeSet;

use ferretto_proto::messages::ftrace_stats::Phase;
use ferretto_proto::write;
use ferretto_wire::Writer;

use super::page::ParseStatus;
use super::tracefs::{Tracefs, TracefsError};
use ferretto_client::runtime::probe::BootTime;

/// Counters of one CPU's buffer, from `per_cpu/cpuN/stats`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuStats {
    /// The CPU.
    pub cpu: u32,
    /// Events in the buffer now.
    pub entries: u64,
    /// Events overwritten before anybody read them.
    pub overrun: u64,
    /// Commits that failed because the buffer wrapped around an event that was not finished.
    pub commit_overrun: u64,
    /// Bytes in the buffer now.
    pub bytes: u64,
    /// Time of the oldest event in the buffer, in seconds of the ftrace clock (in ticks for counting clocks).
    pub oldest_event_ts: f64,
    /// The ftrace clock now, in seconds.
    pub now_ts: f64,
    /// Events not written because the buffer was full and may not overwrite.
    pub dropped_events: u64,
    /// Events read so far.
    pub read_events: u64,
}

impl CpuStats {
    /// Reads the counters of `cpu`.
    ///
    /// # Errors
    /// If the file with the statistics cannot be read.
    pub(crate) fn read(tracefs: &Tracefs, cpu: u32) -> Result<CpuStats, TracefsError> {
        Ok(CpuStats::parse(cpu, &tracefs.cpu_stats(cpu)?))
    }

    /// Parses the text of a `stats` file. Unknown lines are skipped, and missing counters stay zero.
    pub fn parse(cpu: u32, text: &str) -> CpuStats {
        let mut stats = CpuStats {
            cpu,
            ..CpuStats::default()
        };
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            let count = || value.parse::<u64>().unwrap_or(0);
            let seconds = || value.parse::<f64>().unwrap_or(0.0);
            match name.trim() {
                "entries" => stats.entries = count(),
                "overrun" => stats.overrun = count(),
                "commit overrun" => stats.commit_overrun = count(),
                "bytes" => stats.bytes = count(),
                "oldest event ts" => stats.oldest_event_ts = seconds(),
                "now ts" => stats.now_ts = seconds(),
                "dropped events" => stats.dropped_events = count(),
                "read events" => stats.read_events = count(),
                _ => {}
            }
        }
        stats
    }

    /// The ftrace clock now, in nanoseconds as far as the kernel tells them (to the microsecond).
    pub(crate) fn now_nanoseconds(&self) -> i64 {
        (self.now_ts * 1e9) as i64
    }
}

/// Parts of a session's config that could not be set up. Reported, never fatal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetupErrors {
    /// Events asked for that this kernel does not have.
    pub unknown_events: Vec<String>,
    /// Events that exist but could not be switched on, and features that are not available.
    pub failed_events: Vec<String>,
}

/// How often the probes of `kprobe_events` were hit, and how often they missed because too many were under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KprobeStats {
    /// Events recorded.
    pub hits: u64,
    /// Events lost.
    pub misses: u64,
}

impl KprobeStats {
    /// Sums the lines of `kprobe_profile`: name, hits, misses.
    pub fn parse(text: &str) -> KprobeStats {
        let mut sum = KprobeStats::default();
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let mut count = || {
                fields
                    .next()
                    .and_then(|field| field.parse::<u64>().ok())
                    .unwrap_or(0)
            };
            sum.hits = sum.hits.saturating_add(count());
            sum.misses = sum.misses.saturating_add(count());
        }
        sum
    }
}

/// Size of the table that turns kernel addresses into names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymbolStats {
    /// Symbols in the table.
    pub parsed: u32,
    /// Its size in KiB.
    pub memory_kib: u32,
}

/// One reading of everything that the trace says about its recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FtraceStats {
    /// One entry for each CPU that could be read.
    pub cpus: Vec<CpuStats>,
    /// Errors found at setup.
    pub(crate) setup_errors: SetupErrors,
    /// Sentences that say why events are missing although they were set up.
    pub troubles: Vec<String>,
    /// Present once symbols have been asked for.
    pub symbols: SymbolStats,
    /// Present if the session has probes.
    pub kprobes: KprobeStats,
    /// Size of each CPU's buffer in pages, as the kernel has it; 0 where the CPUs differ.
    pub buffer_pages: u32,
    /// Size of each CPU's buffer in pages, as it was asked for.
    pub requested_buffer_pages: u32,
}

impl FtraceStats {
    /// Reads the counters of `cpus`. A CPU whose counters cannot be read is missing from the packet, as in upstream's.
    pub(crate) fn read_cpus(&mut self, tracefs: &Tracefs, cpus: &[u32]) {
        let counters = cpus.iter().map(|&cpu| CpuStats::read(tracefs, cpu));
        self.cpus = counters.filter_map(Result::ok).collect();
    }

    /// The whole `TracePacket`. Parse errors are written at the end only.
    pub(crate) fn encode(&self, phase: Phase, parse_errors: &BTreeSet<ParseStatus>, writer: &mut Writer) {
        write::TracePacket::new(writer).ftrace_stats(|stats| {
            stats.phase(phase);
            for cpu in &self.cpus {
                stats.cpu_stats(|out| {
                    out.cpu(u64::from(cpu.cpu))
                        .entries(cpu.entries)
                        .overrun(cpu.overrun)
                        .commit_overrun(cpu.commit_overrun)
                        .bytes_read(cpu.bytes)
                        .oldest_event_ts(cpu.oldest_event_ts)
                        .now_ts(cpu.now_ts)
                        .dropped_events(cpu.dropped_events)
                        .read_events(cpu.read_events);
                });
            }
            stats
                .kernel_symbols_parsed(self.symbols.parsed)
                .kernel_symbols_mem_kb(self.symbols.memory_kib);
            for event in &self.setup_errors.unknown_events {
                stats.unknown_ftrace_events(event);
            }
            for event in &self.setup_errors.failed_events {
                stats.failed_ftrace_events(event);
            }
            if !self.troubles.is_empty() {
                stats.atrace_errors(self.troubles.join("\n"));
            }
            if self.kprobes != KprobeStats::default() {
                stats.kprobe_stats(|out| {
                    out.hits(self.kprobes.hits as i64)
                        .misses(self.kprobes.misses as i64);
                });
            }
            stats.cpu_buffer_size_pages(self.buffer_pages);
            stats.cached_cpu_buffer_size_pages(self.requested_buffer_pages);
            if phase == Phase::END_OF_TRACE {
                for &error in parse_errors {
                    stats
                        .writer()
                        .varint_field(write::FtraceStats::FTRACE_PARSE_ERRORS, error as u64);
                }
            }
        });
    }
}

/// The packet that tells readers to keep events from before the start of the trace.
pub(crate) fn encode_preserved_buffer(writer: &mut Writer) {
    write::TracePacket::new(writer).ftrace_stats(|stats| {
        stats.phase(Phase::START_OF_TRACE).preserve_ftrace_buffer(true);
    });
}

/// The packet that reports one trouble at once. The field for `atrace`'s errors is the only one of upstream's that takes a
/// sentence, and upstream's readers heed it only in packets of the first phase.
pub(crate) fn encode_trouble(noticed: BootTime, trouble: &str, writer: &mut Writer) {
    let mut packet = write::TracePacket::new(writer);
    packet.timestamp(noticed).ftrace_stats(|stats| {
        stats
            .phase(Phase::START_OF_TRACE)
            .atrace_errors(one_line(trouble));
    });
}

/// `text` in one line, because line ends separate the troubles of a packet.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests;
