//! Formats the summary for scripts, as one JSON object.
//!
//! [`run`](super::run) calls it for `--json`. `docs/json.md` promises names and units, and tests compare the output with `docs/schema/info.json`, so
//! a new field must be added there. Information that the trace lacks is `null` or an empty list. Nothing is abridged.

use ferretto_proto::messages::{Enumeration, TraceConfig};
use serde_json::{Value, json};

use super::Trace;
use super::report::{event_name, kind_name, local_time, uuid};
use super::sequences::OTHERS;
use super::summary::Summary;
use crate::account::{Finding, Severity};
use ferretto_trace_file::Compression;

/// Returns everything that is known.
pub(super) fn json(trace: &Trace<'_>, findings: &[Finding]) -> Value {
    let summary = trace.summary;
    let wall = |boot: Option<u64>| {
        let time = local_time(summary.timeline.wall_time(boot?)?, timezone(summary))?;
        Some(time.to_rfc3339())
    };
    let start = summary.start();
    let end = start
        .zip(summary.duration())
        .map(|(start, length)| start.saturating_add(length));
    json!({
        "file": trace.name,
        "file_size": trace.file_size,
        "compression": trace.compression.map(Compression::name),
        "size": trace.end.size,
        "is_cut": trace.end.cut.is_some(),
        "packets": summary.all.packets,
        "packet_bytes": summary.all.bytes,
        "compressed": summary.compressed.iter().map(|(field, tally)| json!({
            "kind": kind_name(*field), "packets": tally.packets, "bytes": tally.bytes,
        })).collect::<Vec<_>>(),
        "started_at": wall(start),
        "ended_at": wall(end),
        "duration_ns": summary.duration(),
        "data": summary.data.map(|data| json!({"first_ns": data.first, "last_ns": data.last})),
        "uuid": summary.uuid.map(uuid),
        "machine": machine(summary),
        "service": summary.system.as_ref().and_then(|system| system.tracing_service_version.as_deref()),
        "session": summary.config.as_ref().map(session),
        "triggers": summary.triggers,
        "cloned_by": summary.cloned_by,
        "buffers": buffers(summary),
        "data_sources": summary.config.as_ref().map(data_sources).unwrap_or_default(),
        "kinds": summary.kinds.iter().map(|(field, tally)| json!({
            "kind": kind_name(*field), "field": field, "packets": tally.packets, "bytes": tally.bytes,
        })).collect::<Vec<_>>(),
        "kernel_events": summary.kernel_events.iter().map(|(field, count)| json!({
            "event": event_name(summary, *field), "field": field, "count": count,
        })).collect::<Vec<_>>(),
        "heap_profiles": heaps(summary),
        "sequences": sequences(summary),
        "damaged_places": summary.damaged,
        "damages": summary.damages.iter().map(|damage| json!({
            "offset": damage.offset, "skipped": damage.skipped, "reason": damage.reason.to_string(),
        })).collect::<Vec<_>>(),
        "losses": listed(findings, Severity::Loss),
        "not_recorded": listed(findings, Severity::Missing),
        "notes": listed(findings, Severity::Note),
    })
}

fn timezone(summary: &Summary) -> i32 {
    let system = summary.system.as_ref();
    system.and_then(|system| system.timezone_off_mins).unwrap_or(0)
}

fn machine(summary: &Summary) -> Value {
    let Some(system) = &summary.system else {
        return Value::Null;
    };
    json!({
        "system": system.utsname.sysname,
        "release": system.utsname.release,
        "version": system.utsname.version,
        "architecture": system.utsname.machine,
        "cpus": system.num_cpus,
        "memory": system.system_ram_bytes,
        "page_size": system.page_size,
        "android_build": system.android_build_fingerprint,
        "timezone_minutes": system.timezone_off_mins,
    })
}

fn session(config: &TraceConfig) -> Value {
    json!({
        "name": config.unique_session_name,
        "duration_ms": config.duration_ms,
        "write_into_file": config.write_into_file.unwrap_or(false),
        "max_file_size": config.max_file_size_bytes,
    })
}

fn buffers(summary: &Summary) -> Vec<Value> {
    let configured = summary.config.as_ref().map_or(&[][..], |config| &config.buffers);
    let counted = summary
        .stats
        .as_ref()
        .map_or(&[][..], |stats| &stats.buffer_stats);
    (0..configured.len().max(counted.len()))
        .map(|index| {
            let (buffer, stats) = (configured.get(index), counted.get(index));
            json!({
                "name": buffer.and_then(|buffer| buffer.name.as_deref()),
                "size_kb": buffer.and_then(|buffer| buffer.size_kb),
                "fill_policy": buffer.map(|buffer| buffer.fill_policy.unwrap_or_default().proto_name()),
                "size": stats.and_then(|stats| stats.buffer_size),
                "bytes_written": stats.and_then(|stats| stats.bytes_written),
                "bytes_overwritten": stats.and_then(|stats| stats.bytes_overwritten),
                "chunks_overwritten": stats.and_then(|stats| stats.chunks_overwritten),
                "chunks_discarded": stats.and_then(|stats| stats.chunks_discarded),
            })
        })
        .collect()
}

fn data_sources(config: &TraceConfig) -> Vec<Value> {
    let sources = config.data_sources.iter().map(|source| {
        json!({
            "name": source.config.name,
            "target_buffer": source.config.target_buffer.unwrap_or(0),
            "target_buffer_name": source.config.target_buffer_name,
            "producer_name_filter": source.producer_name_filter,
            "producer_name_regex_filter": source.producer_name_regex_filter,
        })
    });
    sources.collect()
}

fn heaps(summary: &Summary) -> Vec<Value> {
    let heaps = summary.heaps.largest_first().into_iter().map(|last| {
        let heap = &last.heap;
        json!({
            "pid": heap.pid,
            "process": summary.process_name(heap.pid as i32),
            "heap": heap.name,
            "sampling_interval": heap.interval,
            "dumps": heap.dumps,
            "samples": heap.samples,
            "live_count": last.live_count,
            "live_bytes": last.live,
            "at_max": heap.is_at_max,
        })
    });
    heaps.collect()
}

fn sequences(summary: &Summary) -> Vec<Value> {
    let sequences = summary
        .sequences
        .largest_first()
        .into_iter()
        .map(|(id, sequence)| {
            json!({
                "id": (id != OTHERS).then_some(id),
                "pid": sequence.pid,
                "uid": sequence.uid,
                "machine": sequence.machine,
                "process": sequence.pid.and_then(|pid| summary.process_name(pid)),
                "producer": summary.producer_of.get(&id),
                "buffer": summary.buffer_of.get(&id),
                "packets": sequence.packets,
                "bytes": sequence.bytes,
                "gaps": sequence.all_gaps(),
                "useless_packets": sequence.useless,
                "mostly": sequence.main_kind().map(kind_name),
            })
        });
    sequences.collect()
}

fn listed(findings: &[Finding], severity: Severity) -> Vec<Value> {
    let wanted = findings.iter().filter(|finding| finding.severity == severity);
    let objects = wanted.map(|finding| {
        json!({
            "cause": finding.cause, "what": finding.what, "why": finding.why, "advice": finding.advice,
        })
    });
    objects.collect()
}
