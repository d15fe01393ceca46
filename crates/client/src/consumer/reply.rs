//! The service's answers to a consumer: decoded, with answers in parts put together.
//!
//! Called by [`super::ConsumerEndpoint`]. Packets larger than a frame arrive in slices over several replies; the
//! service's state arrives in parts that make one message when joined.

use std::collections::HashMap;

use ferretto_ipc::client::{CallId, More};
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_proto::messages::enable_tracing_response::State;
use ferretto_proto::messages::{
    AttachResponse, CloneSessionResponse, DecodeError, EnableTracingResponse, GetTraceStatsResponse, Message,
    ObservableEvents, ObserveEventsResponse, QueryCapabilitiesResponse, QueryServiceStateResponse,
    TraceStats, TracingServiceCapabilities, TracingServiceState,
};
use ferretto_proto::opaque::decode_state;
use ferretto_proto::write::{ReadBuffersResponse, read_buffers_response::Slice};
use ferretto_wire::{Reader, Value, WireError, bulk};

use super::values::Packets;
use crate::channel::Disconnect;

/// The most that is put together from parts, in bytes: more than any trace buffer's packet or service's state.
const MAX_ASSEMBLED: usize = 512 * 1024 * 1024;

/// An answer of the service.
#[derive(Debug)]
pub enum ConsumerReply {
    /// Tracing has ended.
    TracingDisabled {
        /// The reason, if it did not end as configured.
        error: Option<String>,
    },
    /// Packets of the session's buffers.
    TraceData {
        /// Whole packets, perhaps none.
        packets: Packets,
        /// Whether others follow.
        more: More,
    },
    /// The session is ours.
    Attached {
        /// Its encoded `TraceConfig`.
        trace_config: Vec<u8>,
    },
    /// Statistics of the session.
    TraceStats(Box<TraceStats>),
    /// Events that the consumer asked for.
    Observed(Box<ObservableEvents>),
    /// No more events follow for this request.
    ObservationEnded,
    /// The state of the service.
    ServiceState {
        /// As far as our schema knows it.
        state: Box<TracingServiceState>,
        /// As it came.
        encoded: Vec<u8>,
    },
    /// The capabilities of the service.
    Capabilities(Box<TracingServiceCapabilities>),
    /// Whether the session was cloned.
    SessionCloned(Box<CloneSessionResponse>),
    /// The request was carried out: started, changed, disabling, freed, flushed, detached.
    Done,
}

/// Incomplete replies.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// The slices so far of a packet whose last slice has not come. One for all reads, as they are answered in order.
    packet: Vec<u8>,
    /// Encoded service states so far.
    states: HashMap<CallId, Vec<u8>>,
}

impl Assembly {
    /// Decodes a reply; `None` when it is a part of one.
    pub(super) fn take(
        &mut self,
        call: CallId,
        method: ConsumerMethod,
        payload: &[u8],
        more: More,
    ) -> Result<Option<ConsumerReply>, Disconnect> {
        let reply = match method {
            ConsumerMethod::EnableTracing => {
                let response: EnableTracingResponse = decode("EnableTracingResponse", payload)?;
                match response.state {
                    Some(State::Disabled(true)) => ConsumerReply::TracingDisabled {
                        error: response.error.filter(|error| !error.is_empty()),
                    },
                    _ => return Ok(None),
                }
            }
            ConsumerMethod::ReadBuffers => {
                let packets = self
                    .read_slices(payload)
                    .map_err(|error| malformed("ReadBuffersResponse", &error))?;
                if self.packet.len() > MAX_ASSEMBLED {
                    return Err(Disconnect::Nonsense("a packet of it exceeds 512 MiB"));
                }
                if packets.is_empty() && more == More::Follows {
                    return Ok(None);
                }
                if more == More::Last {
                    // An incomplete packet whose end never comes is dropped.
                    self.packet = Vec::new();
                }
                ConsumerReply::TraceData { packets, more }
            }
            ConsumerMethod::QueryServiceState => {
                let part = contents(payload, QueryServiceStateResponse::SERVICE_STATE)
                    .map_err(|error| malformed("QueryServiceStateResponse", &error))?;
                let encoded = self.states.entry(call).or_default();
                encoded.extend_from_slice(&part);
                if encoded.len() > MAX_ASSEMBLED {
                    return Err(Disconnect::Nonsense("its state exceeds 512 MiB"));
                }
                if more == More::Follows {
                    return Ok(None);
                }
                let encoded = self.states.remove(&call).unwrap_or_default();
                let state =
                    decode_state(&encoded).map_err(|error| malformed("TracingServiceState", &error))?;
                let state = Box::new(state);
                ConsumerReply::ServiceState { state, encoded }
            }
            ConsumerMethod::Attach => ConsumerReply::Attached {
                trace_config: contents(payload, AttachResponse::TRACE_CONFIG)
                    .map_err(|error| malformed("AttachResponse", &error))?,
            },
            ConsumerMethod::GetTraceStats => {
                let response: GetTraceStatsResponse = decode("GetTraceStatsResponse", payload)?;
                ConsumerReply::TraceStats(Box::new(response.trace_stats.into_option().unwrap_or_default()))
            }
            ConsumerMethod::ObserveEvents if more == More::Last => ConsumerReply::ObservationEnded,
            ConsumerMethod::ObserveEvents => {
                let response: ObserveEventsResponse = decode("ObserveEventsResponse", payload)?;
                ConsumerReply::Observed(Box::new(response.events.into_option().unwrap_or_default()))
            }
            ConsumerMethod::QueryCapabilities => {
                let response: QueryCapabilitiesResponse = decode("QueryCapabilitiesResponse", payload)?;
                ConsumerReply::Capabilities(Box::new(response.capabilities.into_option().unwrap_or_default()))
            }
            ConsumerMethod::CloneSession => {
                ConsumerReply::SessionCloned(Box::new(decode("CloneSessionResponse", payload)?))
            }
            ConsumerMethod::DisableTracing
            | ConsumerMethod::FreeBuffers
            | ConsumerMethod::Flush
            | ConsumerMethod::StartTracing
            | ConsumerMethod::ChangeTraceConfig
            | ConsumerMethod::Detach
            // Later services reject it, so nobody calls it.
            | ConsumerMethod::SaveTraceForBugreport => ConsumerReply::Done,
        };
        Ok(Some(reply))
    }

    /// Drops the parts of a call that failed.
    pub(super) fn forget(&mut self, call: CallId) {
        self.states.remove(&call);
    }

    /// Takes the slices of a `ReadBuffersResponse`; gives back the packets that are whole by then.
    fn read_slices(&mut self, payload: &[u8]) -> Result<Packets, WireError> {
        let mut packets = Packets {
            bytes: std::mem::take(&mut self.packet),
            ends: Vec::new(),
        };
        packets.bytes.reserve(payload.len());
        for field in Reader::new(payload) {
            let field = field?;
            let (ReadBuffersResponse::SLICES, Value::Bytes(slice)) = (field.number, field.value) else {
                continue;
            };
            let mut ends_packet = false;
            for field in Reader::new(slice) {
                let field = field?;
                match (field.number, field.value) {
                    (Slice::DATA, Value::Bytes(data)) => bulk::extend(&mut packets.bytes, data),
                    (Slice::LAST_SLICE_FOR_PACKET, Value::Varint(last)) => ends_packet = last != 0,
                    _ => {}
                }
            }
            if ends_packet {
                packets.ends.push(packets.bytes.len());
            }
        }
        match packets.ends.last() {
            // All of it waits for its last slice. It stays in the same allocation, which grows by doubling.
            None => self.packet = std::mem::take(&mut packets.bytes),
            Some(&whole) => self.packet = packets.bytes.split_off(whole),
        }
        Ok(packets)
    }
}

fn decode<M: Message>(message: &'static str, payload: &[u8]) -> Result<M, Disconnect> {
    M::decode_from_slice(payload).map_err(|error: DecodeError| malformed(message, &error))
}

fn malformed(message: &'static str, error: &dyn std::fmt::Display) -> Disconnect {
    Disconnect::Malformed {
        message,
        reason: error.to_string(),
    }
}

/// The contents of the fields of this number, joined if there are several (which merges messages).
fn contents(payload: &[u8], number: u32) -> Result<Vec<u8>, WireError> {
    let mut contents = Vec::new();
    for field in Reader::new(payload) {
        let field = field?;
        if let Value::Bytes(bytes) = field.value
            && field.number == number
        {
            contents.extend_from_slice(bytes);
        }
    }
    Ok(contents)
}
