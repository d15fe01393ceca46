//! Whether the config's `trace_filter` lets anything of its data sources pass.
//!
//! Called by [`advise`](super::advise). The filter is asked itself, with a packet of each kind: it is the code that the service runs. A filter
//! that is not valid is refused by the service, and nothing is said of it here.

use std::sync::Arc;

use ferretto_probes::{process_stats, sys_stats, system_info};
use ferretto_proto::write::TracePacket;
use ferretto_service::trace_filter::{PacketFilter, TraceFilter};
use ferretto_wire::{Reader, Writer};

use super::known_sources::{FTRACE, TRACK_EVENT};
use super::{Adviser, name_of};

/// What data sources write: fields of `TracePacket`, with their names. One of them is enough.
const WRITTEN: &[(&str, &[(u32, &str)])] = &[
    (FTRACE, &[(TracePacket::FTRACE_EVENTS, "ftrace_events")]),
    (
        process_stats::NAME,
        &[
            (TracePacket::PROCESS_TREE, "process_tree"),
            (TracePacket::PROCESS_STATS, "process_stats"),
        ],
    ),
    (sys_stats::NAME, &[(TracePacket::SYS_STATS, "sys_stats")]),
    (system_info::NAME, &[(TracePacket::CPU_INFO, "cpu_info")]),
    (TRACK_EVENT, &[(TracePacket::TRACK_EVENT, "track_event")]),
];

pub(super) fn advise(adviser: &mut Adviser<'_>) {
    let given = &adviser.config.trace_filter;
    if !given.is_set() {
        return;
    }
    let Ok(filter) = TraceFilter::new(given) else {
        return;
    };
    let mut packets = PacketFilter::new(Arc::new(filter));
    let mut passes = |field: u32| {
        let mut packet = Writer::new();
        packet.bytes_field(field, &[]);
        let left = packets.filter([packet.as_slice()]);
        left.is_ok_and(|left| Reader::new(left).flatten().any(|left| left.number == field))
    };
    let mut dropped = Vec::new();
    for (name, fields) in WRITTEN {
        let asked_for = adviser
            .config
            .data_sources
            .iter()
            .any(|source| name_of(source) == *name);
        if asked_for && !fields.iter().any(|(field, _)| passes(*field)) {
            dropped.push((name, fields));
        }
    }
    for (name, fields) in dropped {
        let fields: Vec<String> = fields
            .iter()
            .map(|(number, name)| format!("{name} ({number})"))
            .collect();
        adviser.warn(
            "trace_filter",
            format!("trace_filter drops every packet of \"{name}\": nothing of it will be in the trace"),
            format!("have its bytecode allow {} in TracePacket", fields.join(" or ")),
        );
    }
}
