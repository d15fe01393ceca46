//! The common part of the fuzz targets: ways to cut their input, and readers too simple to be wrong in the same way as those
//! that they are compared with.

use std::io::IoSlice;

use ferretto_ipc::frame::{FrameDecoder, HEADER, MAX_FRAME};
use ferretto_ipc::outgoing::OutgoingQueue;
use ferretto_wire::Reader;

pub use ferretto_service::fuzz_input::Input;

/// A stream of bytes and how it arrives: a count of sizes (three bits), the sizes less one, then the stream. The sizes
/// are used in turn; without any it arrives in one piece.
pub fn stream_in_pieces(data: &[u8]) -> (&[u8], impl Iterator<Item = &[u8]>) {
    let mut input = Input(data);
    let count = input.byte() & 7;
    let sizes = input.bytes(count.into());
    let stream = input.0;
    let mut rest = stream;
    let mut sizes = sizes.iter().cycle().map(|size| usize::from(*size) + 1);
    let pieces = std::iter::from_fn(move || {
        let size = sizes.next().unwrap_or(MAX_FRAME).min(rest.len());
        let piece = rest.split_off(..size)?;
        (!piece.is_empty()).then_some(piece)
    });
    (stream, pieces)
}

/// The frames of a stream, read naively: the bodies of those that are whole, and whether one was too large.
pub fn naive_frames(mut stream: &[u8]) -> (Vec<&[u8]>, bool) {
    let mut bodies = Vec::new();
    while let Some((header, rest)) = stream.split_first_chunk::<HEADER>() {
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_FRAME - HEADER {
            return (bodies, true);
        }
        let Some((body, rest)) = rest.split_at_checked(length) else {
            break;
        };
        if !body.is_empty() {
            bodies.push(body);
        }
        stream = rest;
    }
    (bodies, false)
}

/// Takes what waits to be sent, a part at a time, and asserts that it is a row of whole frames.
pub fn take_outgoing(queue: &mut OutgoingQueue) {
    let mut decoder = FrameDecoder::new();
    while let Some(transmit) = queue.next_transmit() {
        let bytes = transmit
            .slices
            .iter()
            .flat_map(|slice: &IoSlice<'_>| slice.iter().copied());
        let bytes: Vec<u8> = bytes.take(1000).collect();
        assert!(!bytes.is_empty(), "nothing to send although something waits");
        queue.sent(bytes.len());
        decoder.push(&bytes, None);
        while let Some(frame) = decoder.next_frame().expect("our own frames keep to the limit") {
            assert_message(decoder.body(&frame));
        }
    }
    assert_eq!(decoder.pending(), 0, "what is sent ends with a frame");
}

/// Asserts that `bytes` are whole fields.
pub fn assert_message(bytes: &[u8]) {
    for field in Reader::new(bytes) {
        if let Err(error) = field {
            panic!("no protobuf message: {error}: {bytes:02x?}");
        }
    }
}

/// How much of a tag a protobuf decoder keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagWidth {
    /// All 64 bits of the varint.
    Bits64,
    /// The lower half, which is all that a tag can use.
    Bits32,
}

/// A field as a naive reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NaiveField {
    /// Its number; anything is possible.
    pub number: u64,
    /// The number of a varint, the length of a field that has one, 0 for others.
    pub value: u64,
    /// The varint of its tag has bits beyond the 64 that `number` was made of.
    pub tag_is_cut: bool,
}

/// The fields of a message, as a decoder reads them that tolerates whatever any decoder does: `None` if the bytes are
/// not whole fields.
pub fn naive_fields(mut message: &[u8], width: TagWidth) -> Option<Vec<NaiveField>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        // Nine bytes have 63 bits, and the tenth can have one more.
        let tag_is_cut = message.iter().take(9).all(|byte| byte & 0x80 != 0)
            && message.get(9).is_some_and(|byte| *byte > 1);
        let mut tag = naive_varint(&mut message)?;
        if width == TagWidth::Bits32 {
            tag &= u64::from(u32::MAX);
        }
        let (value, skip) = match tag & 7 {
            0 => (naive_varint(&mut message)?, 0),
            1 => (0, 8),
            2 => {
                let length = naive_varint(&mut message)?;
                (length, length)
            }
            5 => (0, 4),
            _ => return None,
        };
        message = message.get(usize::try_from(skip).ok()?..)?;
        fields.push(NaiveField {
            number: tag >> 3,
            value,
            tag_is_cut,
        });
    }
    Some(fields)
}

/// The low 64 bits of the varint of at most ten bytes that `bytes` begin with.
fn naive_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u128;
    for index in 0..10 {
        let byte = *bytes.split_off_first()?;
        value |= u128::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some(value as u64);
        }
    }
    None
}

/// Fields of `TracePacket` that no producer may set, for its reader takes them for the service's word. Written down
/// once more, not taken from the service.
pub const RESERVED_FIELDS: [u64; 12] = [3, 10, 33, 35, 36, 50, 69, 79, 98, 124, 125, 133];
