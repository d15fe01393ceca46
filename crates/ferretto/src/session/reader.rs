//! Trace data on its way from the SDK's thread to the application.
//!
//! A pipe of a few megabytes: when the application reads more slowly than the service sends, the service waits. The session on the SDK's thread owns
//! the writing end and never waits; the reading end is a [`TraceReader`].

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::iter::FusedIterator;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll};
use std::time::Duration;

use ferretto_client::consumer::Packets;
use ferretto_proto::write::Trace;
use ferretto_wire::{Reader, Writer};

use super::error::SessionError;
use crate::muxer::Waker;

/// Bytes that wait to be read, about.
const CAPACITY: usize = 4 * 1024 * 1024;

/// Packets of a trace, in the format of a trace file. Consecutive chunks can be joined.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct TraceChunk {
    bytes: Vec<u8>,
}

impl TraceChunk {
    /// Makes a chunk of a service's packets.
    pub(super) fn new(packets: &Packets) -> TraceChunk {
        // Tag and length take up to six bytes.
        let mut bytes = Vec::with_capacity(packets.size() + 6 * packets.len());
        let mut head = Writer::new();
        for packet in packets.iter() {
            head.clear();
            head.bytes_field_head(Trace::PACKET, packet.len());
            bytes.extend_from_slice(head.as_slice());
            bytes.extend_from_slice(packet);
        }
        TraceChunk { bytes }
    }

    /// The bytes, for a trace file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, for a trace file.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Each packet, an encoded `TracePacket`.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        Reader::new(&self.bytes)
            .map_while(Result::ok)
            .filter_map(|field| field.value.as_bytes())
    }
}

impl fmt::Debug for TraceChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceChunk")
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

#[derive(Default)]
struct State {
    chunks: VecDeque<TraceChunk>,
    /// The bytes of all chunks.
    bytes: usize,
    end: Option<Result<(), SessionError>>,
    reader_is_gone: bool,
    /// The task that waits for the next chunk.
    task: Option<task::Waker>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the reader after a change.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let task = state.task.take();
        drop(state);
        self.changed.notify_one();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// The writing end. Dropping it early tells the reader that the connection is over.
pub(super) struct PipeWriter(Arc<Shared>);

/// Makes a pipe. `waker` is woken when a full pipe has room again. The reader waits for each chunk no longer than `patience`.
pub(super) fn pipe(waker: Option<Waker>, patience: Duration) -> (TraceReader, PipeWriter) {
    let shared = Arc::new(Shared::default());
    let reader = TraceReader {
        shared: shared.clone(),
        waker,
        patience,
        current: TraceChunk::default(),
        position: 0,
    };
    (reader, PipeWriter(shared))
}

impl PipeWriter {
    /// Adds a chunk, full or not.
    pub(super) fn push(&self, chunk: TraceChunk) {
        let mut state = self.0.lock();
        if !state.reader_is_gone {
            state.bytes += chunk.bytes.len();
            state.chunks.push_back(chunk);
            self.0.tell(state);
        }
    }

    /// Whether enough waits to be read.
    pub(super) fn is_full(&self) -> bool {
        self.0.lock().bytes >= CAPACITY
    }

    /// Ends the data, with the error if it is incomplete.
    pub(super) fn end(self, result: Result<(), SessionError>) {
        // Dropping this wakes the reader.
        self.0.lock().end = Some(result);
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        let over = || {
            Err(SessionError::Disconnected(
                "it was ended while it was read".into(),
            ))
        };
        let mut state = self.0.lock();
        state.end.get_or_insert_with(over);
        self.0.tell(state);
    }
}

/// Reads a trace: an iterator of [`TraceChunk`]s, and a [`Read`] of the bytes of a trace file.
///
/// Waits for the service. When the reader is slower than the service, the service waits. Reading removes the data from the session's buffers: if the
/// reader is dropped before the end, the rest of this read is lost.
pub struct TraceReader {
    shared: Arc<Shared>,
    /// `None` where nothing is ever written.
    waker: Option<Waker>,
    patience: Duration,
    /// The chunk that is being read as bytes.
    current: TraceChunk,
    position: usize,
}

impl TraceReader {
    /// Returns the next chunk; `None` from the end on.
    ///
    /// # Errors
    /// If the connection ends before, or the service sends nothing for too long.
    pub fn next_chunk(&mut self) -> Result<Option<TraceChunk>, SessionError> {
        let mut state = self.shared.lock();
        loop {
            if let Some(next) = self.take_next(&mut state) {
                return next;
            }
            let waited = self
                .shared
                .changed
                .wait_timeout_while(state, self.patience, |state| {
                    state.chunks.is_empty() && state.end.is_none()
                })
                .unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() {
                return Err(SessionError::TimedOut {
                    request: "read the trace",
                    after: self.patience,
                });
            }
        }
    }

    /// As [`TraceReader::next_chunk`], for asynchronous code, and without a time limit. Not on the SDK's thread. Dropping the future loses no data.
    ///
    /// # Errors
    /// If the connection ends before.
    pub async fn next_chunk_async(&mut self) -> Result<Option<TraceChunk>, SessionError> {
        std::future::poll_fn(|context| self.poll_chunk(context)).await
    }

    /// As [`TraceReader::next_chunk_async`], for implementations of `Stream`: wakes the task when it is worth polling again.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn poll_chunk(
        &mut self,
        context: &mut task::Context<'_>,
    ) -> Poll<Result<Option<TraceChunk>, SessionError>> {
        let mut state = self.shared.lock();
        match self.take_next(&mut state) {
            Some(next) => Poll::Ready(next),
            None => {
                state.task = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Takes the next chunk or the end, if it is there.
    fn take_next(&self, state: &mut State) -> Option<Result<Option<TraceChunk>, SessionError>> {
        if let Some(chunk) = state.chunks.pop_front() {
            let was_full = state.bytes >= CAPACITY;
            state.bytes -= chunk.bytes.len();
            if was_full && state.bytes < CAPACITY {
                self.wake_writer();
            }
            return Some(Ok(Some(chunk)));
        }
        state.end.clone().map(|end| end.map(|()| None))
    }

    fn wake_writer(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Bytes that wait to be read.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.shared.lock().bytes
    }

    /// All packets, each an encoded `TracePacket`.
    pub fn packets(self) -> impl Iterator<Item = Result<Vec<u8>, SessionError>> {
        self.flat_map(|chunk| {
            let packets: Vec<_> = match chunk {
                Ok(chunk) => chunk.packets().map(|packet| Ok(packet.to_vec())).collect(),
                Err(error) => vec![Err(error)],
            };
            packets
        })
    }

    /// Writes everything into `output`; returns the number of bytes.
    ///
    /// # Errors
    /// As [`TraceReader::next_chunk`], and errors of the output.
    pub fn write_to(mut self, output: &mut (impl Write + ?Sized)) -> Result<u64, SessionError> {
        let failed = |error| SessionError::Output(Arc::new(error));
        let mut bytes = 0;
        while let Some(chunk) = self.next_chunk()? {
            output.write_all(chunk.as_bytes()).map_err(failed)?;
            bytes += chunk.bytes.len() as u64;
        }
        output.flush().map_err(failed)?;
        Ok(bytes)
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceChunk, SessionError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_chunk().transpose();
        if matches!(next, Some(Err(_))) {
            // The error once, then the end.
            self.shared.lock().end = Some(Ok(()));
        }
        next
    }
}

impl FusedIterator for TraceReader {}

impl Read for TraceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.position == self.current.bytes.len() {
            self.position = 0;
            self.current = match self.next_chunk() {
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    self.current = TraceChunk::default();
                    return Ok(0);
                }
                Err(error) => return Err(io::Error::other(error)),
            };
        }
        let count = (&self.current.bytes[self.position..]).read(buffer)?;
        self.position += count;
        Ok(count)
    }
}

impl Drop for TraceReader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.reader_is_gone = true;
        state.chunks = VecDeque::new();
        state.bytes = 0;
        // The thread that writes chunks may wait for room.
        self.wake_writer();
    }
}

impl fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceReader")
    }
}
