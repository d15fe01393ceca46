//! Seals a session: clones it and writes the clone into a file.
//!
//! [`run`](super::run) has a thread for each seal, so that no disk holds up the recorder. The service copies the buffers when it gets the request, so
//! the file has no data from after that moment, however long the disk takes.

use std::io::{BufWriter, Write};
use std::time::Duration;

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply};
use ferretto_ipc::Address;
use ferretto_ipc::client::More;
use ferretto_proto::messages::CloneSessionRequest;
use ferretto_recorder::Written;

use super::folder::Draft;
use crate::ask::{Conversation, Silence};
use crate::service::unreachable;
use ferretto_trace_file::{MAX_PREAMBLE, packet_preamble};

/// The longest silence of the service.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes collected before a write.
const BUFFER: usize = 256 << 10;

/// Clones a session into a file of at most `most` bytes.
///
/// # Errors
/// If the service does not clone it, or the disk does not take it. There is no file then.
pub(super) fn seal(
    socket: &Address,
    request: &CloneSessionRequest,
    draft: Draft,
    most: u64,
) -> Result<Written, String> {
    let endpoint = ConsumerEndpoint::connect(socket).map_err(|error| unreachable(socket, &error))?;
    let mut conversation = Conversation::over(endpoint).map_err(|error| error.to_string())?;
    let silent = |silence: Silence| silence.to_string();
    conversation
        .endpoint
        .clone_session(request, None)
        .map_err(|error| format!("cannot ask for a clone: {error}"))?;
    loop {
        match conversation.next_event(PATIENCE).map_err(silent)? {
            ConsumerEvent::Reply {
                reply: Ok(ConsumerReply::SessionCloned(response)),
                ..
            } if response.success == Some(true) => break,
            ConsumerEvent::Reply {
                reply: Ok(ConsumerReply::SessionCloned(response)),
                ..
            } => {
                let reason = response.error.unwrap_or_default();
                return Err(format!("the service does not clone it: {reason}"));
            }
            ConsumerEvent::Reply {
                reply: Err(error), ..
            } => {
                return Err(format!("the service does not clone it: {error}"));
            }
            ConsumerEvent::Disconnected(reason) => return Err(format!("no clone: {reason}")),
            ConsumerEvent::Connected | ConsumerEvent::Reply { .. } => {}
        }
    }
    conversation
        .endpoint
        .read_buffers()
        .map_err(|error| format!("cannot ask for the data: {error}"))?;
    let cannot_write = |error: std::io::Error| format!("cannot write the file: {error}");
    let mut out = BufWriter::with_capacity(BUFFER, &draft.file);
    let mut written = Written {
        bytes: 0,
        is_cut: false,
    };
    loop {
        match conversation.next_event(PATIENCE).map_err(silent)? {
            ConsumerEvent::Reply {
                reply: Ok(ConsumerReply::TraceData { packets, more }),
                ..
            } => {
                for packet in packets.iter() {
                    let mut buffer = [0; MAX_PREAMBLE];
                    let preamble = packet_preamble(packet.len() as u64, &mut buffer);
                    let bytes = (preamble.len() + packet.len()) as u64;
                    if written.bytes + bytes > most {
                        written.is_cut = true;
                        break;
                    }
                    let put = out.write_all(preamble).and_then(|()| out.write_all(packet));
                    put.map_err(cannot_write)?;
                    written.bytes += bytes;
                }
                if more == More::Last || written.is_cut {
                    break;
                }
            }
            ConsumerEvent::Reply {
                reply: Err(error), ..
            } => {
                return Err(format!("the data cannot be read to their end: {error}"));
            }
            ConsumerEvent::Disconnected(reason) => {
                return Err(format!("the data cannot be read to their end: {reason}"));
            }
            ConsumerEvent::Connected | ConsumerEvent::Reply { .. } => {}
        }
    }
    out.flush().map_err(cannot_write)?;
    drop(out);
    draft.keep().map_err(cannot_write)?;
    Ok(written)
}
