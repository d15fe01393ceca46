//! Frames waiting to be sent: bounded, written with as few system calls as possible.
//!
//! Called by [`crate::host`] and [`crate::client`], which fill it, and [`crate::transport::Stream::flush`],
//! which drains it. Guarantees that a frame is sent whole and in order, that a descriptor goes out with the
//! first byte of its frame and with no byte of a later one (the receiver tells by this which frame it belongs
//! to), and that no more than the limit is ever queued.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};

use crate::frame::OutgoingFrame;

/// The frames whose place an empty queue keeps.
const KEPT_FRAMES: usize = 64;

/// Slices in one write; two a frame.
const MAX_SLICES: usize = 32;

/// There is no room for a frame; it was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutgoingFull {
    /// Bytes of memory that the queue takes.
    pub queued: usize,
    /// Those of the refused frame.
    pub frame: usize,
    /// The most that the queue may take.
    pub limit: usize,
}

impl fmt::Display for OutgoingFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queued, frame, limit } = self;
        write!(
            f,
            "the peer does not read: {queued} bytes wait to be sent and {frame} more would exceed the limit of {limit}; \
     wait until it catches up, or disconnect it"
        )
    }
}

impl std::error::Error for OutgoingFull {}

/// A bounded queue of encoded frames.
#[derive(Debug)]
pub struct OutgoingQueue {
    frames: VecDeque<OutgoingFrame>,
    /// Bytes of the first frame that were sent already.
    front_sent: usize,
    /// Bytes to send.
    queued: usize,
    /// Bytes of memory that the frames take.
    held: usize,
    limit: usize,
}

/// The arguments of one `sendmsg`.
#[derive(Debug)]
pub struct Transmit<'a> {
    /// The bytes, never empty.
    pub slices: Vec<IoSlice<'a>>,
    /// A descriptor that goes with them.
    pub fd: Option<BorrowedFd<'a>>,
}

impl OutgoingQueue {
    /// An empty queue that takes at most `limit` bytes of memory.
    pub fn new(limit: usize) -> Self {
        OutgoingQueue {
            frames: VecDeque::new(),
            front_sent: 0,
            queued: 0,
            held: 0,
            limit,
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes of memory that the waiting frames take.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Bytes of memory that further frames may take.
    pub fn room(&self) -> usize {
        self.limit - self.held
    }

    pub(crate) fn push(&mut self, frame: OutgoingFrame) -> Result<(), OutgoingFull> {
        if frame.cost() > self.room() {
            return Err(OutgoingFull {
                queued: self.held,
                frame: frame.cost(),
                limit: self.limit,
            });
        }
        self.queued += frame.len();
        self.held += frame.cost();
        self.frames.push_back(frame);
        Ok(())
    }

    /// The next bytes to send, or `None` when nothing waits. Report with [`sent`](Self::sent) how many went.
    pub fn next_transmit(&self) -> Option<Transmit<'_>> {
        let first = self.frames.front()?;
        let fd = first.fd().filter(|_| self.front_sent == 0).map(AsFd::as_fd);
        let mut slices = Vec::with_capacity(MAX_SLICES.min(self.frames.len() * 2));
        let mut skip = self.front_sent;
        for (position, frame) in self.frames.iter().enumerate() {
            let starts_new_write = position > 0 && (fd.is_some() || frame.fd().is_some());
            if starts_new_write || slices.len() + 2 > MAX_SLICES {
                break;
            }
            for part in frame.parts() {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    slices.push(IoSlice::new(&part[skipped..]));
                }
            }
        }
        Some(Transmit { slices, fd })
    }

    /// Records that the first `bytes` of the queue were sent.
    ///
    /// # Panics
    /// When more are reported than are queued.
    pub fn sent(&mut self, bytes: usize) {
        assert!(
            bytes <= self.queued,
            "{bytes} bytes reported as sent, {} were queued",
            self.queued
        );
        self.queued -= bytes;
        self.front_sent += bytes;
        while let Some(front) = self.frames.front_mut() {
            if self.front_sent < front.len() {
                if self.front_sent > 0 {
                    // The descriptor left with the first byte: the kernel holds its own reference by now.
                    front.close_fd();
                }
                return;
            }
            self.front_sent -= front.len();
            self.held -= front.cost();
            self.frames.pop_front();
        }
        // A peer may have left many short frames unread.
        if self.frames.is_empty() {
            self.frames.shrink_to(KEPT_FRAMES);
        }
    }

    /// Drops everything that waits; the queue takes frames again.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.front_sent = 0;
        self.queued = 0;
        self.held = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::frame::WAITING_COST;

    fn frame(payload: &[u8]) -> OutgoingFrame {
        OutgoingFrame::for_tests(payload.to_vec(), None)
    }

    fn bytes_of(transmit: &Transmit<'_>) -> Vec<u8> {
        transmit
            .slices
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect()
    }

    #[test]
    fn all_bytes_leave_in_order_for_any_sizes_of_writes() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut queue = OutgoingQueue::new(100_000);
        let mut expected = Vec::new();
        for size in 0..100 {
            let frame = frame(&vec![size as u8; random(60)]);
            for part in frame.parts() {
                expected.extend_from_slice(part);
            }
            queue.push(frame).unwrap();
        }
        assert_eq!(queue.queued, expected.len());
        let mut written = Vec::new();
        while let Some(transmit) = queue.next_transmit() {
            let bytes = bytes_of(&transmit);
            assert!(!bytes.is_empty());
            let count = 1 + random(bytes.len());
            written.extend_from_slice(&bytes[..count]);
            queue.sent(count);
        }
        assert_eq!(written, expected);
        assert_eq!((queue.queued, queue.room()), (0, 100_000));
    }

    #[test]
    fn a_frame_with_a_descriptor_is_written_alone_and_sends_it_once() {
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut queue = OutgoingQueue::new(1000);
        queue.push(frame(b"before")).unwrap();
        queue
            .push(OutgoingFrame::for_tests(b"with".to_vec(), Some(file())))
            .unwrap();
        queue.push(frame(b"after")).unwrap();

        let first = queue.next_transmit().unwrap();
        assert!(first.fd.is_none());
        let count = bytes_of(&first).len();
        assert_eq!(count, 4 + b"before".len());
        queue.sent(count);

        let second = queue.next_transmit().unwrap();
        assert!(second.fd.is_some());
        assert_eq!(bytes_of(&second).len(), 4 + b"with".len());
        queue.sent(1);

        let rest = queue.next_transmit().unwrap();
        assert!(rest.fd.is_none(), "the descriptor went with the first byte");
        assert!(bytes_of(&rest).ends_with(b"after"), "the rest need not go alone");
    }

    #[test]
    fn a_full_queue_refuses_frames_and_keeps_its_own() {
        const EACH: usize = WAITING_COST + 10;
        let mut queue = OutgoingQueue::new(2 * EACH - 1);
        queue.push(frame(&[1; 10])).unwrap();
        let refused = queue.push(frame(&[2; 10])).unwrap_err();
        assert_eq!(
            refused,
            OutgoingFull {
                queued: EACH,
                frame: EACH,
                limit: 2 * EACH - 1
            }
        );
        assert_eq!(queue.held(), EACH);
        queue.sent(14);
        queue.push(frame(&[2; 10])).unwrap();
    }
}
