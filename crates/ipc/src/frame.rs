//! Bytes to frames and frames to bytes, with the descriptors that travel beside them.
//!
//! Called by [`crate::host`] and [`crate::client`] (and fuzzers). A frame on the wire is a 4-byte
//! little-endian length and that many bytes of an `IPCFrame` message; the two together never exceed
//! [`MAX_FRAME`] (upstream's `kIPCBufferSize`, at which it hangs up). The decoder's memory grows with bytes
//! received, never with a length announced.
//!
//! Which frame a descriptor belongs to: on a Unix stream the kernel ends a read behind the bytes that a
//! descriptor was sent with, so the descriptor belongs to the frame of the last byte of that read. Senders, ours
//! and upstream's, start a new write for a frame with a descriptor, which makes this exact.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;

use ferretto_wire::{MAX_VARINT_LEN, WireError, WireType, bulk, encode_varint, tag};

use crate::passed_fd::PassedFd;

#[cfg(test)]
mod tests;

/// The length before each frame, in bytes.
pub const HEADER: usize = 4;

/// The most bytes a frame takes on the wire, its header included.
pub const MAX_FRAME: usize = 128 * 1024;

/// The most bytes a frame takes beside the arguments or the reply that it carries.
pub(crate) const MAX_OVERHEAD: usize = 48;

/// The bytes that a frame takes beside its arguments or reply while it waits to be sent. Short frames take far more memory than the wire.
pub(crate) const WAITING_COST: usize = size_of::<OutgoingFrame>();

/// The most bytes of arguments or reply that surely fit into one frame.
pub const MAX_PAYLOAD: usize = MAX_FRAME - MAX_OVERHEAD;

/// The most bytes of each text in a declared identity (upstream: none). It is kept for as long as the connection lasts.
pub const MAX_IDENTITY_TEXT: usize = 1024;

/// Descriptors that may wait for their frames to be taken out; reading pauses there. Few, for many peers that each have as
/// many wait would use up this process's own.
const MAX_WAITING_FDS: usize = 2;

/// Memory that an idle connection may keep.
const KEPT_CAPACITY: usize = 16 * 1024;

/// The peer broke the protocol: the connection is beyond repair and must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// The announced length exceeds the limit.
    FrameTooLarge {
        /// The length in the header.
        announced: u32,
    },
    /// A frame's bytes are not a protobuf message.
    Malformed(WireError),
    /// A text in a declared identity exceeds the limit.
    IdentityTooLong {
        /// Bytes of the text.
        length: usize,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::FrameTooLarge { announced } => write!(
                f,
                "frame too large: its header announces {announced} bytes, the limit is {}",
                MAX_FRAME - HEADER
            ),
            Violation::Malformed(reason) => write!(f, "malformed frame: {reason}"),
            Violation::IdentityTooLong { length } => write!(
                f,
                "a name of a machine has {length} bytes, the limit is {MAX_IDENTITY_TEXT}"
            ),
        }
    }
}

impl std::error::Error for Violation {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Violation::Malformed(reason) => Some(reason),
            _ => None,
        }
    }
}

impl From<WireError> for Violation {
    fn from(reason: WireError) -> Self {
        Violation::Malformed(reason)
    }
}

/// One frame, still encoded.
#[derive(Debug)]
pub struct Frame {
    /// Where the bytes of the `IPCFrame` are; see [`FrameDecoder::body`].
    body: Range<usize>,
    /// A descriptor that came with it.
    pub fd: Option<PassedFd>,
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that belong to frames already taken out.
    consumed: usize,
    /// Stream position of `buffer[0]`.
    origin: u64,
    /// Descriptors and the stream position of the last byte each came with; ascending.
    fds: VecDeque<(u64, PassedFd)>,
}

impl FrameDecoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the result of one read: some bytes and perhaps a descriptor.
    ///
    /// Memory is bounded when callers read only while [`wants_input`](Self::wants_input), and no more than
    /// [`MAX_FRAME`] bytes at a time.
    pub fn push(&mut self, bytes: &[u8], fd: Option<PassedFd>) {
        self.reclaim();
        self.grow(bytes.len());
        bulk::extend(&mut self.buffer, bytes);
        if let Some(fd) = fd {
            let last_byte = self.origin + (self.buffer.len() as u64).saturating_sub(1);
            self.fds.push_back((last_byte, fd));
        }
    }

    /// Makes room for this many bytes: twice the previous size, so that a frame in small pieces is not copied often, but no more than the current
    /// frame takes. Many connections may each hold half a frame.
    fn grow(&mut self, more: usize) {
        let needed = self.buffer.len() + more;
        if needed <= self.buffer.capacity() {
            return;
        }
        let header = self.buffer.first_chunk::<HEADER>();
        let frame = header.map_or(0, |header| {
            HEADER.saturating_add(u32::from_le_bytes(*header) as usize)
        });
        let room = frame.min(2 * self.buffer.capacity()).max(needed);
        self.buffer.reserve_exact(room - self.buffer.len());
    }

    /// Whether to read more: `false` while a whole frame's worth of bytes or many descriptors wait for
    /// [`next_frame`](Self::next_frame).
    pub fn wants_input(&self) -> bool {
        self.pending() < MAX_FRAME && self.fds.len() < MAX_WAITING_FDS
    }

    /// Bytes received of frames that were not taken out yet.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.consumed
    }

    /// The next complete frame. Empty ones, which upstream ignores, are skipped. After an error the decoder
    /// has lost its place and the connection must be closed.
    ///
    /// # Errors
    /// If a frame announces more bytes than one may have.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Violation> {
        loop {
            let waiting = &self.buffer[self.consumed..];
            let Some((header, rest)) = waiting.split_first_chunk::<HEADER>() else {
                self.rest();
                return Ok(None);
            };
            let announced = u32::from_le_bytes(*header);
            let length = announced as usize;
            if length > MAX_FRAME - HEADER {
                return Err(Violation::FrameTooLarge { announced });
            }
            if rest.len() < length {
                self.rest();
                return Ok(None);
            }
            let start = self.consumed + HEADER;
            let body = start..start + length;
            self.consumed = body.end;
            let fd = self.take_fd_before(body.end);
            if length > 0 {
                return Ok(Some(Frame { body, fd }));
            }
        }
    }

    /// The encoded `IPCFrame` of a frame taken out since the last [`push`](Self::push), and until
    /// [`next_frame`](Self::next_frame) found no other.
    pub fn body(&self, frame: &Frame) -> &[u8] {
        &self.buffer[frame.body.clone()]
    }

    /// No whole frame is left: frees all memory that the next read will not need.
    fn rest(&mut self) {
        // All waiting descriptors came with the incomplete frame, which gets the first.
        self.fds.truncate(1);
        self.reclaim();
    }

    /// The first descriptor that came with the frame that ends at `end`; a second one is closed.
    fn take_fd_before(&mut self, end: usize) -> Option<PassedFd> {
        let end = self.origin + end as u64;
        let mut taken = None;
        while self.fds.front().is_some_and(|(position, _)| *position < end) {
            let fd = self.fds.pop_front().map(|(_, fd)| fd);
            taken = taken.or(fd);
        }
        taken
    }

    /// Drops the bytes of frames taken out, and memory that only a rare large frame needed.
    fn reclaim(&mut self) {
        if self.consumed == 0 {
            return;
        }
        self.origin += self.consumed as u64;
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        if self.buffer.capacity() > KEPT_CAPACITY && self.buffer.len() < KEPT_CAPACITY {
            self.buffer.shrink_to(KEPT_CAPACITY);
        }
    }
}

/// A message that does not fit into a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadTooLarge {
    /// Its size in bytes.
    pub size: usize,
}

impl fmt::Display for PayloadTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size } = self;
        write!(
            f,
            "a message of {size} bytes does not fit into an IPC frame, which holds {MAX_PAYLOAD}; split it"
        )
    }
}

impl std::error::Error for PayloadTooLarge {}

/// An encoded frame: header and first fields, then arguments or reply, which are not copied.
#[derive(Debug)]
pub(crate) struct OutgoingFrame {
    head: Head,
    payload: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl OutgoingFrame {
    /// A frame of the fields in `fields` and, as the last field, the bytes of `payload`.
    pub(crate) fn new(
        fields: Head,
        payload: Vec<u8>,
        fd: Option<OwnedFd>,
    ) -> Result<OutgoingFrame, PayloadTooLarge> {
        let body = fields.len() - HEADER + payload.len();
        if body > MAX_FRAME - HEADER {
            return Err(PayloadTooLarge { size: payload.len() });
        }
        let mut head = fields;
        head.bytes[..HEADER].copy_from_slice(&(body as u32).to_le_bytes());
        Ok(OutgoingFrame { head, payload, fd })
    }

    #[cfg(test)]
    pub(crate) fn for_tests(payload: Vec<u8>, fd: Option<OwnedFd>) -> OutgoingFrame {
        OutgoingFrame::new(Head::new(), payload, fd).unwrap()
    }

    /// Bytes on the wire.
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Bytes of memory.
    pub(crate) fn cost(&self) -> usize {
        WAITING_COST + self.payload.len()
    }

    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        [self.head.as_slice(), &self.payload]
    }

    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    pub(crate) fn close_fd(&mut self) {
        self.fd = None;
    }
}

/// The start of a frame: room for the header, then a few protobuf fields, without a heap allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    bytes: [u8; MAX_OVERHEAD],
    len: usize,
}

impl Head {
    pub(crate) fn new() -> Head {
        Head {
            bytes: [0; MAX_OVERHEAD],
            len: HEADER,
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends the fields of another head.
    pub(crate) fn append(&mut self, other: &Head) {
        self.push(&other.bytes[HEADER..other.len]);
    }

    /// Bytes of fields, without the header.
    pub(crate) fn fields_len(&self) -> usize {
        self.len - HEADER
    }

    /// A field of an integer type.
    pub(crate) fn varint_field(&mut self, number: u32, value: u64) {
        self.varint(tag(number, WireType::Varint).into());
        self.varint(value);
    }

    /// Tag and length of a field whose `length` bytes follow.
    pub(crate) fn length_delimited(&mut self, number: u32, length: usize) {
        self.varint(tag(number, WireType::Bytes).into());
        self.varint(length as u64);
    }

    fn varint(&mut self, value: u64) {
        self.push(encode_varint(value, &mut [0; MAX_VARINT_LEN]));
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}
