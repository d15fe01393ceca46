//! Whether the config's `trace_filter` lets anything of its data sources pass.
//!
//! [`advise`](super::advise) calls it. It runs the service's own filter on a packet of each kind. The service refuses an invalid filter, so there is
//! no advice about it here.

use std::sync::Arc;

use ferretto_proto::text::{Fields, TRACE_PACKET};
use ferretto_service::trace_filter::{PacketFilter, TraceFilter};
use ferretto_wire::{Reader, Writer};

use super::known_sources::{WRITTEN, Written};
use super::{Adviser, name_of};

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
    for written in &WRITTEN {
        let mut sources = adviser.config.data_sources.iter();
        let asked_for = sources.any(|source| name_of(source) == written.source);
        if asked_for && !written.content.iter().any(|field| passes(*field)) {
            dropped.push(written);
        }
    }
    let known = Fields::of(TRACE_PACKET);
    for Written { source, content, .. } in dropped {
        let fields: Vec<String> = content
            .iter()
            .map(|field| {
                let name = known.and_then(|known| known.name(*field));
                format!("{} ({field})", name.unwrap_or_default())
            })
            .collect();
        adviser.warn(
            "trace_filter",
            format!("trace_filter drops every packet of \"{source}\": nothing of it will be in the trace"),
            format!("have its bytecode allow {} in TracePacket", fields.join(" or ")),
        );
    }
}
