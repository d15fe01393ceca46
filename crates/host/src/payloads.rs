//! Trace data on its way to a consumer: a batch of packets, as payloads of `ReadBuffersResponse`. The consumer port sends them as there is room.

use std::collections::VecDeque;

use ferretto_ipc::frame::MAX_PAYLOAD;
use ferretto_proto::write::{ReadBuffersResponse, read_buffers_response::Slice};
use ferretto_service::ReadBatch;
use ferretto_wire::Writer;

/// Tags and lengths around a slice, at most.
const OVERHEAD: usize = 16;

/// The rest of a batch, which has not been handed out yet. A batch is larger than its limit only if it has one larger packet.
#[derive(Debug, Default)]
pub(crate) struct Payloads {
    ready: VecDeque<Vec<u8>>,
    /// A large packet, of which payloads are made as they are sent.
    large: Vec<u8>,
    /// The bytes of it that were sent.
    sent: usize,
}

impl Payloads {
    pub(crate) fn new(mut batch: ReadBatch<'_>) -> Payloads {
        match batch.take_large() {
            Some(large) => Payloads {
                large,
                ..Payloads::default()
            },
            None => Payloads {
                ready: payloads(&batch),
                ..Payloads::default()
            },
        }
    }

    /// The memory that it takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.ready.iter().map(Vec::len).sum::<usize>() + self.large.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.sent == self.large.len()
    }

    /// Takes the next payload.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        if let Some(payload) = self.ready.pop_front() {
            return Some(payload);
        }
        let left = self.large.get(self.sent..).filter(|left| !left.is_empty())?;
        let data = &left[..left.len().min(MAX_PAYLOAD - OVERHEAD)];
        let mut payload = Writer::with_capacity(data.len() + OVERHEAD);
        write_slice(&mut payload, data, data.len() == left.len());
        self.sent += data.len();
        Some(payload.as_slice().to_vec())
    }
}

fn write_slice(payload: &mut Writer, data: &[u8], is_last: bool) {
    payload.nested(ReadBuffersResponse::SLICES, |message| {
        message.bytes_field(Slice::DATA, data);
        message.varint_field(Slice::LAST_SLICE_FOR_PACKET, is_last.into());
    });
}

/// Packets are cut where a frame is full; the last slice of each is marked.
fn payloads(batch: &ReadBatch<'_>) -> VecDeque<Vec<u8>> {
    let mut payloads = VecDeque::new();
    let mut payload = Writer::new();
    for packet in batch.packets() {
        let mut slices = packet.peekable();
        while let Some(mut slice) = slices.next() {
            loop {
                let room = MAX_PAYLOAD.saturating_sub(payload.len() + OVERHEAD);
                if room == 0 || (slice.len() > room && payload.len() > MAX_PAYLOAD / 2) {
                    payloads.push_back(payload.as_slice().to_vec());
                    payload.clear();
                    continue;
                }
                let (now, later) = slice.split_at(slice.len().min(room));
                write_slice(&mut payload, now, later.is_empty() && slices.peek().is_none());
                slice = later;
                if slice.is_empty() {
                    break;
                }
            }
        }
    }
    if !payload.is_empty() {
        payloads.push_back(payload.as_slice().to_vec());
    }
    payloads
}
