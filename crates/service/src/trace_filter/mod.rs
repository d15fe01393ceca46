//! The trace filter: the fields that leave the service, and the parts of strings that are hidden.
//!
//! A config has bytecode, which lists for each message the fields that may stay, and rules for strings. The filter is made when the session begins
//! ([`TraceFilter::new`]) and applied at read-back to every packet, including the service's own except for the statistics. It never changes and can be
//! shared, for example by a clone of the session.
//!
//! A packet of which nothing may stay becomes an empty packet. So does a packet that cannot be filtered because its bytes are no message; it is
//! also counted as an error. It is better that nothing leaves than too much.

mod bytecode;
mod config;
mod effort;
mod message;
mod pattern;
mod strings;

use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::{trace_config, trace_stats};

pub use bytecode::BytecodeError;
pub use config::{FilterError, RuleError};
pub use message::Unfilterable;
pub use pattern::PatternError;

use crate::clock::ProcessorClock;
use bytecode::FieldTable;
use effort::Effort;
use message::{Outer, filter_in_place};
use strings::{Groups, StringFilter};

/// The config's rules about data that may stay in a trace.
#[derive(Debug)]
pub struct TraceFilter {
    table: FieldTable,
    strings: StringFilter,
    /// The message that a packet is.
    packet: u32,
}

impl TraceFilter {
    /// Makes the filter of a config.
    ///
    /// # Errors
    /// The error in the config, and its place.
    pub fn new(config: &trace_config::TraceFilter) -> Result<TraceFilter, FilterError> {
        let strings = config::string_filter(config)?;
        let (table, packet) = config::field_table(config)?;
        Ok(TraceFilter {
            table,
            strings,
            packet,
        })
    }
}

/// A filter with memory to work in, which is kept from packet to packet.
#[derive(Debug)]
pub struct PacketFilter {
    filter: Arc<TraceFilter>,
    packet: Vec<u8>,
    stack: Vec<Outer>,
    groups: Groups,
}

impl PacketFilter {
    /// Memory that is kept from packet to packet; the excess of a larger packet is given back with the next one.
    const KEPT_MEMORY: usize = 1 << 20;

    /// Applies `filter` to packets.
    pub fn new(filter: Arc<TraceFilter>) -> PacketFilter {
        PacketFilter {
            packet: Vec::new(),
            stack: Vec::new(),
            groups: filter.strings.groups(),
            filter,
        }
    }

    /// The filter that is applied, to be shared with a clone of the session for example.
    pub fn shared(&self) -> Arc<TraceFilter> {
        self.filter.clone()
    }

    /// Returns the filtered packet, whose bytes are in `pieces`, cut anywhere.
    ///
    /// # Errors
    /// Why nothing of it may stay.
    pub fn filter<'p>(&mut self, pieces: impl IntoIterator<Item = &'p [u8]>) -> Result<&[u8], Unfilterable> {
        self.packet.clear();
        self.packet.shrink_to(Self::KEPT_MEMORY);
        for piece in pieces {
            self.packet.extend_from_slice(piece);
        }
        let TraceFilter {
            table,
            strings,
            packet,
        } = &*self.filter;
        self.groups.begin_packet();
        let size = filter_in_place(
            table,
            strings,
            *packet,
            &mut self.packet,
            &mut self.stack,
            &mut self.groups,
        )?;
        Ok(&self.packet[..size])
    }
}

/// The filter of a session and its statistics.
#[derive(Debug)]
pub(crate) struct SessionFilter {
    packets: PacketFilter,
    input_packets: u64,
    input_bytes: u64,
    output_bytes: u64,
    errors: u64,
    time_taken: Option<Duration>,
    discarded_per_buffer: Vec<u64>,
}

/// The origin of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The service itself.
    Service,
    /// The buffer of this index in the config.
    Buffer(usize),
}

impl SessionFilter {
    /// The filter of a session with this config.
    ///
    /// # Errors
    /// As of [`TraceFilter::new`].
    pub(crate) fn of(config: &trace_config::TraceFilter) -> Result<Box<SessionFilter>, FilterError> {
        let filter = TraceFilter::new(config)?;
        Ok(Box::new(SessionFilter::new(Arc::new(filter))))
    }

    /// A session's filter, which has done nothing yet.
    pub(crate) fn new(filter: Arc<TraceFilter>) -> SessionFilter {
        SessionFilter {
            packets: PacketFilter::new(filter),
            input_packets: 0,
            input_bytes: 0,
            output_bytes: 0,
            errors: 0,
            time_taken: None,
            discarded_per_buffer: Vec::new(),
        }
    }

    /// The same filter for a clone of the session, with all counts at zero.
    pub(crate) fn afresh(&self) -> SessionFilter {
        SessionFilter::new(self.packets.shared())
    }

    /// A batch of packets begins.
    pub(crate) fn begin_batch(&mut self, clock: Option<ProcessorClock>) {
        self.packets.groups.begin_batch(Effort::new(clock));
    }

    /// The time that searching the strings of a batch has taken so far.
    pub(crate) fn batch_took(&self) -> Duration {
        self.packets.groups.batch_took()
    }

    /// Filters a packet of `size` bytes; `None` if it cannot be filtered, so that nothing of it stays.
    pub(crate) fn filter<'p>(
        &mut self,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        size: usize,
        origin: Origin,
    ) -> Option<&[u8]> {
        self.input_packets += 1;
        self.input_bytes += size as u64;
        let Ok(kept) = self.packets.filter(pieces) else {
            self.errors += 1;
            return None;
        };
        self.output_bytes += kept.len() as u64;
        if let Origin::Buffer(index) = origin {
            if self.discarded_per_buffer.len() <= index {
                self.discarded_per_buffer.resize(index + 1, 0);
            }
            self.discarded_per_buffer[index] += (size - kept.len()) as u64;
        }
        Some(kept)
    }

    /// A packet of `size` bytes was written without being filtered.
    pub(crate) fn passed_by(&mut self, size: usize) {
        self.input_packets += 1;
        self.input_bytes += size as u64;
        self.output_bytes += size as u64;
    }

    /// Making a batch of filtered packets took this long.
    pub(crate) fn took(&mut self, time: Duration) {
        *self.time_taken.get_or_insert_default() += time;
    }

    /// Returns its counters, for the statistics of the session.
    pub(crate) fn stats(&self) -> trace_stats::FilterStats {
        trace_stats::FilterStats {
            input_packets: Some(self.input_packets),
            input_bytes: Some(self.input_bytes),
            output_bytes: Some(self.output_bytes),
            errors: Some(self.errors),
            time_taken_ns: self.time_taken.map(|time| time.as_nanos() as u64),
            bytes_discarded_per_buffer: self.discarded_per_buffer.clone(),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests;
