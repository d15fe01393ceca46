//! Formats the summary for people: facts, tables, and losses.
//!
//! [`run`](super::run) calls it. Tables are aligned with spaces only, so they look the same on a terminal and in a pipe. Names from the trace are
//! shown without control characters, which terminals would obey.

use std::fmt::{self, Write};
use std::time::Duration;

use chrono::{DateTime, FixedOffset, Utc};
use ferretto_proto::messages::Enumeration;
use ferretto_proto::text::{Fields, TRACE_PACKET};

use super::sequences::OTHERS;
use super::summary::Summary;
use super::{Detail, Trace};
use crate::account::{Finding, Severity};
use crate::figures::{Bytes, Count, Counted, Elapsed};

#[cfg(test)]
mod tests;

/// The rows of a table that are shown, unless all are requested.
const ROWS: usize = 6;

/// The sequence of the service's own packets.
const SERVICE: u32 = 1;

/// Formats everything that is known.
pub(super) fn report(trace: &Trace<'_>, findings: &[Finding], detail: Detail) -> String {
    let mut out = String::new();
    let report = Report {
        trace,
        summary: trace.summary,
        detail,
    };
    // Writing to a string cannot fail.
    let _ = report.print(findings, &mut out);
    out
}

struct Report<'a> {
    trace: &'a Trace<'a>,
    summary: &'a Summary,
    detail: Detail,
}

impl Report<'_> {
    fn print(&self, findings: &[Finding], out: &mut String) -> fmt::Result {
        self.facts(out)?;
        self.buffers(out)?;
        self.data_sources(out)?;
        self.kinds(out)?;
        self.heaps(out)?;
        self.sequences(out)?;
        print_findings(findings, out)
    }

    fn facts(&self, out: &mut String) -> fmt::Result {
        let summary = self.summary;
        let size = format!(
            "{}{}, {}{}",
            Bytes(self.trace.end.size),
            self.container(),
            Counted(summary.all.packets, "packet"),
            self.compression()
        );
        let mut facts = vec![("trace", clean(self.trace.name)), ("size", size)];
        facts.extend(self.when().map(|when| ("recorded", when)));
        facts.extend(summary.data.map(|data| {
            let (first, last) = (data.first as f64 / 1e9, data.last as f64 / 1e9);
            let length = Length(data.length());
            (
                "data",
                format!("{length}, from {first:.3} to {last:.3} s since boot"),
            )
        }));
        facts.extend(self.machine().map(|machine| ("machine", machine)));
        facts.extend(self.recorder().map(|recorder| ("service", recorder)));
        facts.extend(self.session().map(|session| ("session", session)));
        for (label, value) in facts {
            writeln!(out, "{label:<9} {value}")?;
        }
        Ok(())
    }

    /// Describes the compression of the whole file.
    fn container(&self) -> String {
        match (self.trace.compression, self.trace.file_size) {
            (Some(compression), Some(bytes)) => {
                format!(" ({} compressed with {})", Bytes(bytes), compression.name())
            }
            (Some(compression), None) => format!(" (compressed with {})", compression.name()),
            (None, _) => String::new(),
        }
    }

    fn compression(&self) -> String {
        let known = Fields::of(TRACE_PACKET);
        let mut text = String::new();
        for (field, tally) in &self.summary.compressed {
            let name = known.and_then(|known| known.name(*field)).unwrap_or_default();
            let codec = if name.starts_with("zstd") {
                "zstd"
            } else {
                "deflate"
            };
            let _ = write!(text, "; {} compressed with {codec}", Bytes(tally.bytes));
        }
        if !text.is_empty() {
            let _ = write!(text, ", {} expanded", Bytes(self.summary.all.bytes));
        }
        text
    }

    /// Returns the wall-clock time at the place of the recording, and the duration.
    fn when(&self) -> Option<String> {
        let summary = self.summary;
        let duration = summary.duration().map(|ns| Length(ns).to_string());
        let began = summary
            .start()
            .and_then(|start| summary.timeline.wall_time(start));
        let began = began.and_then(|ns| local_time(ns, self.offset_minutes()));
        match (began, duration) {
            (Some(began), Some(duration)) => {
                let began = began.format("%Y-%m-%d %H:%M:%S %:z");
                Some(format!("{began}, for {duration}"))
            }
            (None, Some(duration)) => Some(format!("for {duration}")),
            _ => None,
        }
    }

    fn offset_minutes(&self) -> i32 {
        let system = self.summary.system.as_ref();
        system.and_then(|system| system.timezone_off_mins).unwrap_or(0)
    }

    fn machine(&self) -> Option<String> {
        let system = self.summary.system.as_ref()?;
        let name = &system.utsname;
        let mut parts: Vec<String> = Vec::new();
        let kernel = [&name.sysname, &name.release, &name.machine];
        let kernel: Vec<String> = kernel.into_iter().flatten().map(|part| clean(part)).collect();
        parts.extend((!kernel.is_empty()).then(|| kernel.join(" ")));
        parts.extend(system.android_build_fingerprint.as_deref().map(clean));
        let cpus = system.num_cpus.map(u64::from).or(match self.summary.cpus.len() {
            0 => None,
            known => Some(known as u64),
        });
        if let Some(cpus) = cpus {
            // If the kernel uses another field for the model, as on x86, the probes write this word.
            let mut models = self
                .summary
                .cpus
                .iter()
                .filter_map(|cpu| cpu.processor.as_deref());
            let model = models.find(|model| *model != "unknown");
            let model = model
                .map(|model| format!(" ({})", clean(model)))
                .unwrap_or_default();
            parts.push(format!("{}{model}", Counted(cpus, "CPU")));
        }
        parts.extend(
            system
                .system_ram_bytes
                .map(|bytes| format!("{} of memory", Bytes(bytes))),
        );
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    fn recorder(&self) -> Option<String> {
        let version = self.summary.system.as_ref()?.tracing_service_version.as_deref()?;
        Some(clean(version))
    }

    fn session(&self) -> Option<String> {
        let summary = self.summary;
        let config = summary.config.as_ref();
        let mut parts = Vec::new();
        parts.extend(
            config
                .and_then(|config| config.unique_session_name.as_deref())
                .map(|name| format!("{:?}", clean(name))),
        );
        parts.extend(summary.uuid.map(uuid));
        if let Some(duration) = config.and_then(|config| config.duration_ms).filter(|ms| *ms > 0) {
            let duration = Length(u64::from(duration) * 1_000_000);
            parts.push(format!("to last {duration}"));
        }
        if config.is_some_and(|config| config.write_into_file == Some(true)) {
            parts.push("streamed into a file".to_owned());
        }
        parts.extend(
            summary
                .cloned_by
                .as_deref()
                .map(|name| format!("cloned by trigger {}", clean(name))),
        );
        if let Some(trigger) = summary.triggers.last() {
            let all = summary.triggers.len() as u64;
            parts.push(format!("{}, last {}", Counted(all, "trigger"), clean(trigger)));
        }
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    fn buffers(&self, out: &mut String) -> fmt::Result {
        let configured = self
            .summary
            .config
            .as_ref()
            .map_or(&[][..], |config| &config.buffers);
        let counted = self
            .summary
            .stats
            .as_ref()
            .map_or(&[][..], |stats| &stats.buffer_stats);
        let rows = (0..configured.len().max(counted.len())).map(|index| {
            let (buffer, stats) = (configured.get(index), counted.get(index));
            let size = buffer
                .and_then(|buffer| buffer.size_kb)
                .map(|kb| u64::from(kb) << 10);
            let size = size.or(stats.and_then(|stats| stats.buffer_size));
            let policy = buffer.map(
                |buffer| match buffer.fill_policy.unwrap_or_default().proto_name() {
                    "UNSPECIFIED" => "RING_BUFFER",
                    name => name,
                },
            );
            let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
            vec![
                index.to_string(),
                buffer
                    .and_then(|buffer| buffer.name.as_deref())
                    .map_or("-".to_owned(), clean),
                bytes(size),
                policy.unwrap_or("-").to_owned(),
                bytes(stats.and_then(|stats| stats.bytes_written)),
                bytes(stats.and_then(|stats| stats.bytes_overwritten)),
            ]
        });
        let columns = [
            Column::right("BUFFER"),
            Column::left("NAME"),
            Column::right("SIZE"),
            Column::left("POLICY"),
            Column::right("WRITTEN"),
            Column::right("OVERWRITTEN"),
        ];
        self.table(&columns, rows.collect(), out)
    }

    fn data_sources(&self, out: &mut String) -> fmt::Result {
        let configured = self
            .summary
            .config
            .as_ref()
            .map_or(&[][..], |config| &config.data_sources);
        let rows = configured.iter().map(|source| {
            let buffer = match (&source.config.target_buffer_name, source.config.target_buffer) {
                (Some(name), _) => clean(name),
                (None, index) => index.unwrap_or(0).to_string(),
            };
            let producers = source
                .producer_name_filter
                .iter()
                .chain(&source.producer_name_regex_filter);
            let producers: Vec<String> = producers.map(|name| clean(name)).collect();
            let producers = if producers.is_empty() {
                "-".to_owned()
            } else {
                producers.join(", ")
            };
            vec![
                clean(source.config.name.as_deref().unwrap_or_default()),
                buffer,
                producers,
            ]
        });
        let columns = [
            Column::left("DATA SOURCE"),
            Column::left("BUFFER"),
            Column::left("ONLY OF PRODUCERS"),
        ];
        self.table(&columns, rows.collect(), out)
    }

    fn kinds(&self, out: &mut String) -> fmt::Result {
        let mut kinds: Vec<_> = self.summary.kinds.iter().collect();
        kinds.sort_by_key(|(field, tally)| (std::cmp::Reverse(tally.bytes), **field));
        let all = self.summary.all.bytes.max(1) as f64;
        let rows = kinds.into_iter().map(|(field, tally)| {
            vec![
                kind_name(*field),
                Count(tally.packets).to_string(),
                Bytes(tally.bytes).to_string(),
                format!("{:.1}%", 100.0 * tally.bytes as f64 / all),
            ]
        });
        let columns = [
            Column::left("PACKETS OF"),
            Column::right("COUNT"),
            Column::right("BYTES"),
            Column::right("SHARE"),
        ];
        self.table(&columns, rows.collect(), out)?;
        let mut events: Vec<_> = self.summary.kernel_events.iter().collect();
        events.sort_by_key(|(field, count)| (std::cmp::Reverse(**count), **field));
        let rows = events
            .into_iter()
            .map(|(field, count)| vec![event_name(self.summary, *field), Count(*count).to_string()]);
        let columns = [Column::left("KERNEL EVENTS OF"), Column::right("COUNT")];
        self.table(&columns, rows.collect(), out)
    }

    fn heaps(&self, out: &mut String) -> fmt::Result {
        let heaps = self.summary.heaps.largest_first();
        let rows = heaps.into_iter().map(|last| {
            let heap = &last.heap;
            let process = self.summary.process_name(heap.pid as i32);
            vec![
                heap.pid.to_string(),
                process.map_or("-".to_owned(), clean),
                clean(&heap.name),
                Bytes(heap.interval).to_string(),
                Count(heap.dumps).to_string(),
                Count(heap.samples).to_string(),
                Count(last.live_count).to_string(),
                Bytes(last.live).to_string(),
                if heap.is_at_max { "maximum" } else { "last dump" }.to_owned(),
            ]
        });
        let columns = [
            Column::right("HEAP PROFILE"),
            Column::left("PROCESS"),
            Column::left("HEAP"),
            Column::right("INTERVAL"),
            Column::right("DUMPS"),
            Column::right("SAMPLES"),
            Column::right("LIVE"),
            Column::right("LIVE BYTES"),
            Column::left("AS OF"),
        ];
        self.table(&columns, rows.collect(), out)
    }

    fn sequences(&self, out: &mut String) -> fmt::Result {
        let summary = self.summary;
        let rows = summary
            .sequences
            .largest_first()
            .into_iter()
            .map(|(id, sequence)| {
                let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
                vec![
                    if id == OTHERS {
                        "others".to_owned()
                    } else {
                        id.to_string()
                    },
                    or_dash(sequence.pid.map(|pid| pid.to_string())),
                    or_dash(match sequence.pid {
                        Some(pid) => summary.process_name(pid).map(clean),
                        // The service writes its own packets under an id that no producer has.
                        None => (id == SERVICE).then(|| "(the service)".to_owned()),
                    }),
                    or_dash(summary.producer_of.get(&id).map(ToString::to_string)),
                    or_dash(summary.buffer_of.get(&id).map(ToString::to_string)),
                    Count(sequence.packets).to_string(),
                    Bytes(sequence.bytes).to_string(),
                    Count(sequence.all_gaps()).to_string(),
                    or_dash(sequence.main_kind().map(kind_name)),
                ]
            });
        let columns = [
            Column::right("SEQUENCE"),
            Column::right("PID"),
            Column::left("PROCESS"),
            Column::right("PRODUCER"),
            Column::right("BUFFER"),
            Column::right("PACKETS"),
            Column::right("BYTES"),
            Column::right("GAPS"),
            Column::left("MOSTLY"),
        ];
        self.table(&columns, rows.collect(), out)
    }

    /// Writes a blank line, the heads and the rows, in columns as wide as necessary. Writes nothing if there are no rows.
    fn table(&self, columns: &[Column], mut rows: Vec<Vec<String>>, out: &mut String) -> fmt::Result {
        if rows.is_empty() {
            return Ok(());
        }
        // Hiding a single row would save no space.
        let shown = if self.detail == Detail::All || rows.len() == ROWS + 1 {
            rows.len()
        } else {
            ROWS
        };
        let hidden = rows.len().saturating_sub(shown);
        rows.truncate(shown);
        rows.insert(0, columns.iter().map(|column| column.head.to_owned()).collect());
        let widths: Vec<usize> = (0..columns.len())
            .map(|column| {
                rows.iter()
                    .map(|row| row[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        out.push('\n');
        for row in rows {
            let mut line = String::new();
            for ((cell, width), column) in row.iter().zip(&widths).zip(columns) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match column.side {
                    Side::Left => write!(line, "{cell:<width$}")?,
                    Side::Right => write!(line, "{cell:>width$}")?,
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        if hidden > 0 {
            writeln!(out, "and {} more (--all)", Count(hidden as u64))?;
        }
        Ok(())
    }
}

/// A duration in ns: `33.1 ms`, or from one second on like [`Elapsed`].
struct Length(u64);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000_000_000 {
            write!(f, "{:.1} ms", self.0 as f64 / 1e6)
        } else {
            write!(f, "{}", Elapsed(Duration::from_nanos(self.0)))
        }
    }
}

/// The side to which cells are aligned.
enum Side {
    Left,
    Right,
}

struct Column {
    head: &'static str,
    side: Side,
}

impl Column {
    fn left(head: &'static str) -> Column {
        Column {
            head,
            side: Side::Left,
        }
    }

    fn right(head: &'static str) -> Column {
        Column {
            head,
            side: Side::Right,
        }
    }
}

fn print_findings(findings: &[Finding], out: &mut String) -> fmt::Result {
    if findings.iter().all(|finding| finding.severity == Severity::Note) {
        writeln!(out, "\nNOTHING LOST, as far as the trace tells")?;
    }
    for (severity, title) in [
        (Severity::Loss, "LOST"),
        (Severity::Missing, "NOT RECORDED"),
        (Severity::Note, "NOTE"),
    ] {
        let mut those = findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .peekable();
        if those.peek().is_some() {
            writeln!(out, "\n{title}")?;
        }
        those.try_for_each(|finding| print_finding(finding, out))?;
    }
    Ok(())
}

fn print_finding(finding: &Finding, out: &mut String) -> fmt::Result {
    writeln!(out, "  {}", clean(&finding.sentence()))?;
    match &finding.advice {
        Some(advice) => writeln!(out, "    -> {}", clean(advice)),
        None => Ok(()),
    }
}

/// Returns the schema's name for packets with this field.
pub(super) fn kind_name(field: u32) -> String {
    name_of(ferretto_proto::text::TRACE_PACKET, field, "(nothing)")
}

/// Returns the name of kernel events with this field, from the trace or else from the schema.
pub(super) fn event_name(summary: &Summary, field: u32) -> String {
    match summary.described_event(field) {
        Some(name) => clean(name),
        None => name_of("perfetto.protos.FtraceEvent", field, "(nothing)"),
    }
}

fn name_of(message: &str, field: u32, none: &str) -> String {
    let known = Fields::of(message).and_then(|known| known.name(field));
    match known {
        _ if field == 0 => none.to_owned(),
        Some(name) => name.to_owned(),
        None => format!("field {field}"),
    }
}

/// Formats a UUID in the usual notation.
pub(super) fn uuid((high, low): (u64, u64)) -> String {
    let hex = format!("{high:016x}{low:016x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Converts ns since 1970 to the local time of a place with this offset from UTC.
pub(super) fn local_time(ns: u64, offset_minutes: i32) -> Option<DateTime<FixedOffset>> {
    let offset = FixedOffset::east_opt(offset_minutes.checked_mul(60)?)?;
    let time = DateTime::<Utc>::from_timestamp((ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as u32)?;
    Some(time.with_timezone(&offset))
}

/// Removes control characters, which a terminal would obey.
fn clean(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}
