//! The shared-memory arbiter: hands chunks of the producer's shared memory buffer to its trace writers, and collects the requests with which the
//! endpoint tells the service about them.
//!
//! One per connection. Trace writers call it from any thread, when they turn over a chunk and never per packet. It wakes the endpoint, on its own
//! thread, through [`Notify`]; the endpoint then sends the requests that [`Arbiter::take_requests`] returns.
//!
//! **When it wakes the endpoint.** The first chunk returned starts a batching period, and all chunks returned until its end are committed in one
//! request. When completed chunks fill half of the buffer, or 256 KB, the arbiter wakes the endpoint at once, and for flushes too. An endpoint that
//! shares its thread with a writer is woken once more then ([`Wake::HalfFull`]), because the service should empty one half while the writer fills the
//! other.
//!
//! **Chunks get smaller when there are many writers**, see [`Partitioning`]: each writer keeps one open, and together they should not hold all of the
//! memory.
//!
//! **Chunks are taken back** when writers still keep half of the memory open, because there are more writers than chunks, or because they have large
//! chunks from a time when there were few writers. The endpoint is woken, and [`Arbiter::take_requests`] commits chunks of writers that are not
//! writing a packet, idle ones first, until there is room. These writers take new chunks when they write again. So a thread that sleeps for ever
//! keeps nothing from others. This needs a kernel with `membarrier(2)`, Linux since 4.14; on others, writers keep their chunks.
//!
//! **No patches.** Upstream's writers encode straight into chunks, so that a nested message may leave a chunk before its length is known, and a patch
//! has to follow it to the service (`CommitDataRequest.chunks_to_patch`). Our writers write finished packets, see [`crate::trace_writer`]: all
//! lengths are known before the first byte leaves. To add writers that need patches, keep their list of patches in the writer, and hand it over where
//! `Arbiter::return_chunk` adds to the request; patches for a chunk must be sent no earlier than the chunk.
//!
//! **A flush tells of all losses before it**, except those before a startup arbiter was bound. A writer that has lost packets and has no chunk leaves the report to the arbiter, which
//! needs a chunk for each. So the acknowledgement of a flush waits until the service has freed enough of them, for half a second at most.
//!
//! **Where memory cannot be shared**, over a network, [`Arbiter::emulating`] hands out chunks of private memory, and plays the service's part on it:
//! the request carries the bytes of committed chunks, and the chunks are free again. The sender of the requests should take no more of them than
//! there is room for. Then writers find the memory full, as they would with shared memory.
//!
//! **Before the service has said which buffer** packets go to, [`Arbiter::for_startup`] makes an arbiter over the same memory that keeps everything
//! back until [`Arbiter::bind`].

pub(crate) mod barrier;
mod holders;
mod partitioning;
#[cfg(test)]
mod tests;
mod untold_losses;
mod writer_ids;

use crate::room::lock_with_room;
use crate::trace_writer::{Holder, TraceWriter, mark_loss};
pub use ferretto_proto::ids::BufferId;
use ferretto_proto::messages::CommitDataRequest;
use ferretto_proto::messages::commit_data_request::ChunksToMove;
use ferretto_smb::{
    ChunkId, FirstPacket, MAX_WRITER_ID, NewChunk, PageSize, ProducerSmb, ServiceSmb, SharedMemory,
    WriteChunk, WriterId,
};
use holders::Holders;
pub use partitioning::Partitioning;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use untold_losses::UntoldLosses;
use writer_ids::WriterIds;

/// How long a writer with a waiting policy waits for a free chunk before it drops data after all. A service that takes longer is stuck; upstream ends
/// the process after about the same time. It is long because waiting loses least: the writer keeps its data, while dropping would only make room for
/// more data that the stuck service does not take either. A caller with a reason not to wait (the connection broke, the process ends) calls
/// [`Arbiter::close`].
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Chunks of this many bytes are committed at once, even if the buffer has room for more: chunks that the service frees soon are still in the
/// processor's caches when they are written again.
const MAX_BATCH_BYTES: usize = 256 * 1024;

/// Chunks are taken back when one part in this many of the memory is open. The rest is for chunks that the service has yet to read, and for chunks
/// that writers take meanwhile.
const MAX_OPEN_PART: usize = 2;

/// Then chunks are taken back until the open part is smaller than that by one part in this many.
const TAKEN_BACK_PART: usize = 8;

/// The longest that a waiting writer sleeps before it looks again.
const MAX_STALL_SLEEP: Duration = Duration::from_millis(100);

/// Bytes of memory where it is emulated; upstream's number. All of it may be committed at once.
pub const EMULATED_SMB_SIZE: usize = 1024 * 1024;

/// An id of no buffer: the service frees its chunks without reading them.
const NO_BUFFER: BufferId = BufferId(0);

/// The number of targets with a teller at a time: no data source has more instances.
const MAX_TELLERS: usize = 8;

/// The longest that the acknowledgement of a flush waits for losses to be reported. Services wait for flushes a few seconds; one that frees no chunk for
/// this long is stuck, or other arbiters' writers hold all of the memory.
const HOLD_LIMIT: Duration = Duration::from_millis(500);

/// While an acknowledgement waits, the endpoint looks for free chunks again after this time: the service frees them without notice.
const HOLD_RETRY: Duration = Duration::from_millis(1);

/// The behaviour of a trace writer when all chunks are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferExhaustedPolicy {
    /// Drops packets until a chunk is free.
    Drop,
    /// Waits for a free chunk, up to 30 s each time; then drops as above, where upstream would end the process.
    Stall,
    /// Waits as above. Once any writer has waited in vain, it does not wait again until a chunk was free. So a stuck service costs the producer this
    /// time once, and not again for each of its writers and packets.
    StallThenDrop,
}

/// When the endpoint is to take the arbiter's requests and send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Within this time. An earlier wake-up may make it unnecessary.
    Within(Duration),
    /// As soon as possible.
    Now,
    /// As soon as possible, because half of the buffer, or as many bytes as should wait, waits for the service. If this is the endpoint's own thread,
    /// and does not return to its loop soon, it should send before it returns.
    HalfFull,
    /// As soon as possible, because a writer waits for chunks to be freed. If this is the endpoint's own thread, it must send before it returns: no
    /// other thread will.
    Stalled,
}

/// How the arbiter reaches its endpoint. Called without locks held, on the thread of the trace writer that caused the call.
pub trait Notify: Send + Sync {
    /// Has the endpoint call [`Arbiter::take_requests`] and send the result.
    fn wake(&self, wake: Wake);
}

/// A request that the endpoint sends to the service.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Assigns the chunks of this writer to that buffer, including scraped chunks.
    RegisterTraceWriter(WriterId, BufferId),
    /// Complete chunks, and acknowledgements of flushes.
    CommitData(CommitDataRequest),
    /// Ends this writer.
    UnregisterTraceWriter(WriterId),
}

/// Why there is no trace writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateWriterError {
    /// All ids are in use.
    TooManyWriters,
    /// [`Arbiter::close`] was called.
    Closed,
}

impl fmt::Display for CreateWriterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreateWriterError::TooManyWriters => write!(
                f,
                "cannot create a trace writer: the producer has {MAX_WRITER_ID} already; drop some that are not in use"
            ),
            CreateWriterError::Closed => {
                f.write_str("cannot create a trace writer: the connection to the service is closed")
            }
        }
    }
}

impl std::error::Error for CreateWriterError {}

/// See the [module's documentation](self).
pub struct Arbiter {
    smb: Arc<ProducerSmb>,
    /// The other end of the memory, where the memory is this process's own.
    service_end: Option<Arc<ServiceSmb>>,
    partitioning: Partitioning,
    notify: Arc<dyn Notify>,
    /// Shared by all arbiters of the connection.
    writer_ids: Arc<WriterIds>,
    /// Set by [`Arbiter::close`]: no more chunks are handed out.
    closed: AtomicBool,
    /// A writer has waited for a chunk until its time was up, and none has been free since.
    waited_in_vain: AtomicBool,
    stall_limit: Duration,
    holders: Mutex<Holders>,
    /// Chunks are taken back when this many bytes are open.
    open_limit: AtomicUsize,
    pending: Mutex<Pending>,
}

/// The requests that the endpoint has not taken yet.
struct Pending {
    destination: Destination,
    registered: Vec<(WriterId, BufferId)>,
    unregistered: Vec<WriterId>,
    returned: Vec<ChunksToMove>,
    /// Bytes of the chunks in `returned`.
    returned_bytes: usize,
    untold_losses: UntoldLosses,
    tellers: Vec<Teller>,
    flushed: Option<Flushed>,
    batch: Duration,
    woken: Woken,
}

/// The acknowledgement of a flush.
struct Flushed {
    id: u64,
    /// When it goes, even if losses before it have not been reported.
    at_latest: Instant,
}

/// A writer that reports losses for writers without a chunk.
struct Teller {
    target: BufferId,
    writer: WriterId,
    next_chunk: ChunkId,
}

/// Where chunks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    /// Each to the buffer of its writer.
    PerWriter,
    /// Not known yet: nothing is sent.
    Unbound,
    /// All to this buffer.
    Bound(BufferId),
}

/// Whether a writer has ever had chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HadChunks {
    None,
    Some,
}

/// Whether the endpoint was already woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Woken {
    No,
    AtEndOfBatch,
    Now,
    HalfFull,
}

impl fmt::Debug for Arbiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arbiter")
            .field("smb", &self.smb)
            .field("partitioning", &self.partitioning)
            .finish_non_exhaustive()
    }
}

impl Arbiter {
    /// Hands out the chunks of `smb`, whose pages it cuts as `partitioning` says (upstream always makes one chunk of each). Commits at once until
    /// [`Arbiter::set_batch_duration`] says otherwise. Also prepares the process for taking chunks back, which takes some ten milliseconds once if it
    /// has several threads.
    pub fn new(
        smb: ProducerSmb,
        partitioning: impl Into<Partitioning>,
        notify: impl Notify + 'static,
    ) -> Arc<Self> {
        Self::with_stall_limit(smb, partitioning, notify, STALL_LIMIT)
    }

    /// As [`Arbiter::new`], for a service that memory cannot be shared with: chunks of [`EMULATED_SMB_SIZE`] bytes in pages of the size that the
    /// service chose, whose bytes the requests carry.
    ///
    /// # Errors
    /// If there is no memory, or the size of the pages is invalid.
    pub fn emulating(
        page_size: PageSize,
        partitioning: impl Into<Partitioning>,
        notify: impl Notify + 'static,
    ) -> Result<Arc<Self>, Box<dyn std::error::Error + Send + Sync>> {
        let memory = Arc::new(SharedMemory::create(EMULATED_SMB_SIZE)?);
        let smb = ProducerSmb::new(memory.clone(), page_size)?;
        let service_end = ServiceSmb::new(memory, page_size)?;
        let service_end = Some(Arc::new(service_end));
        Ok(Self::over(
            smb,
            service_end,
            partitioning.into(),
            notify,
            STALL_LIMIT,
        ))
    }

    /// As [`Arbiter::new`], with another limit than 30 s.
    pub(crate) fn with_stall_limit(
        smb: ProducerSmb,
        partitioning: impl Into<Partitioning>,
        notify: impl Notify + 'static,
        stall_limit: Duration,
    ) -> Arc<Self> {
        Self::over(smb, None, partitioning.into(), notify, stall_limit)
    }

    fn over(
        smb: ProducerSmb,
        service_end: Option<Arc<ServiceSmb>>,
        partitioning: Partitioning,
        notify: impl Notify + 'static,
        stall_limit: Duration,
    ) -> Arc<Self> {
        // Now, because there is no time for it when it is needed, while threads multiply.
        barrier::prepare();
        let open_limit = AtomicUsize::new(smb.memory().size() / MAX_OPEN_PART);
        Arc::new(Self {
            smb: Arc::new(smb),
            service_end,
            partitioning,
            notify: Arc::new(notify),
            writer_ids: Arc::default(),
            closed: AtomicBool::new(false),
            waited_in_vain: AtomicBool::new(false),
            stall_limit,
            holders: Mutex::default(),
            open_limit,
            pending: Mutex::new(Pending::new(Destination::PerWriter)),
        })
    }

    /// Makes an arbiter over the same memory, whose writers record before the service has said which buffer their packets are for. Whatever target
    /// its writers are created with, [`Arbiter::take_requests`] returns nothing until [`Arbiter::bind`]; then everything goes to the bound buffer.
    /// Until then chunks are not freed, so writers should not wait for any.
    ///
    /// The endpoint takes its requests besides those of `self`, and before them if `self` acknowledges a flush of both.
    pub fn for_startup(&self) -> Arc<Self> {
        Arc::new(Self {
            smb: self.smb.clone(),
            service_end: self.service_end.clone(),
            partitioning: self.partitioning,
            notify: self.notify.clone(),
            writer_ids: self.writer_ids.clone(),
            closed: AtomicBool::new(self.closed.load(Ordering::Relaxed)),
            waited_in_vain: AtomicBool::new(false),
            stall_limit: self.stall_limit,
            holders: Mutex::default(),
            open_limit: AtomicUsize::new(self.smb.memory().size() / MAX_OPEN_PART),
            pending: Mutex::new(Pending {
                batch: self.pending().batch,
                ..Pending::new(Destination::Unbound)
            }),
        })
    }

    /// Sets the buffer for all packets of an arbiter [for startup](Arbiter::for_startup), past and future, and has the packets that were kept back
    /// sent. Without effect on any other.
    pub fn bind(&self, target: BufferId) {
        {
            let mut pending = self.pending();
            if pending.destination != Destination::Unbound {
                return;
            }
            pending.destination = Destination::Bound(target);
            // An endpoint that was woken before has found nothing to take.
            pending.woken = Woken::No;
        }
        self.wake_now();
    }

    /// As [`Arbiter::bind`], when no session wants the packets: hands the chunks to the service, which frees chunks for no buffer, and has writers
    /// drop all further packets.
    pub fn discard(&self) {
        self.close();
        self.bind(NO_BUFFER);
    }

    /// Sets how long chunks are collected before the endpoint is woken to commit them (`batch_commits_duration_ms` of the producer's setup).
    pub fn set_batch_duration(&self, batch: Duration) {
        self.pending().batch = batch;
    }

    /// Creates a writer whose packets end up in `target`, as a sequence of their own.
    ///
    /// The service learns of the writer from the next requests, for which the endpoint is woken at once. If the process is gone before they are sent,
    /// the service finds chunks of an unknown writer in the shared memory. Ours keeps them if they can only be for one buffer, and counts them as
    /// discarded otherwise; upstream's leaves them.
    ///
    /// # Errors
    /// If all ids of writers are taken, or the connection is over.
    pub fn create_trace_writer(
        self: &Arc<Self>,
        target: BufferId,
        policy: BufferExhaustedPolicy,
    ) -> Result<TraceWriter, CreateWriterError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(CreateWriterError::Closed);
        }
        let writer = self
            .writer_ids
            .allocate()
            .ok_or(CreateWriterError::TooManyWriters)?;
        self.pending().registered.push((writer, target));
        self.wake_now();
        Ok(TraceWriter::new(self.clone(), writer, target, policy))
    }

    /// Takes the requests for the service, in the order in which they have to be sent. Requests taken by different calls must be sent in the order of
    /// the calls, so all calls are the endpoint's.
    pub fn take_requests(&self) -> Vec<Request> {
        // Chunks that are not sent would free nothing.
        if self.pending().destination != Destination::Unbound {
            self.take_back_chunks();
        }
        let mut pending = self.pending();
        let bound = match pending.destination {
            Destination::PerWriter => None,
            // `woken` stays as it is, so that writers do not wake the endpoint again in vain.
            Destination::Unbound => return Vec::new(),
            Destination::Bound(target) => Some(target),
        };
        self.tell_losses(&mut pending);
        pending.woken = Woken::No;
        if std::mem::take(&mut pending.returned_bytes) > 0 {
            self.smb.rewind();
        }
        if let Some(target) = bound {
            for chunk in &mut pending.returned {
                chunk.target_buffer = Some(target.0.into());
            }
        }
        // Chunks go after the registration of their writer, and before its end.
        let mut requests: Vec<Request> = pending
            .registered
            .drain(..)
            .map(|(writer, target)| Request::RegisterTraceWriter(writer, bound.unwrap_or(target)))
            .collect();
        let flushed = pending.take_flushed();
        if !pending.returned.is_empty() || flushed.is_some() {
            requests.push(Request::CommitData(CommitDataRequest {
                chunks_to_move: std::mem::take(&mut pending.returned),
                flush_request_id: flushed,
                ..Default::default()
            }));
        }
        let unregistered = std::mem::take(&mut pending.unregistered);
        let is_held = pending.flushed.is_some();
        drop(pending);
        if is_held {
            self.notify.wake(Wake::Within(HOLD_RETRY));
        }
        for writer in unregistered {
            // Only now can the id be used again without being mistaken for this writer's.
            self.writer_ids.release(writer);
            requests.push(Request::UnregisterTraceWriter(writer));
        }
        if let Some(service_end) = &self.service_end {
            for request in &mut requests {
                if let Request::CommitData(commit) = request {
                    take_along(service_end, &mut commit.chunks_to_move);
                }
            }
        }
        requests
    }

    /// Takes chunks back from writers if they hold too many.
    fn take_back_chunks(&self) {
        let size = self.smb.memory().size();
        let open = self.smb.open_bytes();
        let limit = size / MAX_OPEN_PART;
        if open > limit {
            let chosen = self.holders().choose(open - (limit - size / TAKEN_BACK_PART));
            Holder::take_back(&chosen, |chunk, target| {
                let (returned, bytes) = (to_move(&chunk, target), chunk.size());
                chunk.complete();
                self.pending().add(returned, bytes);
            });
        }
        // If this did not free enough, trying again for each chunk would be useless.
        let next = limit.max(self.smb.open_bytes() + size / TAKEN_BACK_PART);
        self.open_limit
            .store(if open > limit { next } else { limit }, Ordering::Relaxed);
    }

    /// Adds a writer, whose chunk may be taken back.
    pub(crate) fn add_holder(&self, writer: WriterId, holder: Arc<Holder>) {
        self.holders().add(writer, holder);
    }

    /// Acknowledges the service's flush request `id`, and with it all earlier ones. To be called when the data sources
    /// concerned have flushed their writers.
    ///
    /// The acknowledgement goes when all losses before it have been reported, 500 ms later at the latest.
    pub fn acknowledge_flush(&self, id: u64) {
        {
            let mut pending = self.pending();
            pending.untold_losses.precede_flush();
            match &mut pending.flushed {
                Some(flushed) => flushed.id = flushed.id.max(id),
                None => {
                    let at_latest = Instant::now() + HOLD_LIMIT;
                    pending.flushed = Some(Flushed { id, at_latest });
                }
            }
        }
        self.wake_now();
    }

    /// Stops handing out chunks, because the service is gone or the process ends: writers drop their packets, and waiting writers give up. May be
    /// called by [`Notify::wake`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// The most bytes of one packet that fit the whole buffer.
    pub(crate) fn capacity(&self) -> usize {
        self.partitioning
            .capacity(self.smb.page_count(), self.smb.page_size())
    }

    fn win_chunk(&self, new: NewChunk) -> Option<WriteChunk> {
        let layout = self
            .partitioning
            .layout(self.writer_ids.count(), self.smb.page_count());
        self.smb.take_chunk(layout, new)
    }

    /// Wins a chunk that is free.
    pub(crate) fn take_free_chunk(&self, new: NewChunk) -> Option<WriteChunk> {
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let chunk = self.win_chunk(new)?;
        if self.waited_in_vain.load(Ordering::Relaxed) {
            self.waited_in_vain.store(false, Ordering::Relaxed);
        }
        if self.smb.open_bytes() > self.open_limit.load(Ordering::Relaxed) {
            self.wake(self.pending(), Woken::HalfFull);
        }
        Some(chunk)
    }

    /// Waits for a chunk, if `policy` says so, when none was free.
    pub(crate) fn await_chunk(&self, new: NewChunk, policy: BufferExhaustedPolicy) -> Option<WriteChunk> {
        match policy {
            BufferExhaustedPolicy::Drop => None,
            BufferExhaustedPolicy::StallThenDrop if self.waited_in_vain.load(Ordering::Relaxed) => None,
            BufferExhaustedPolicy::Stall | BufferExhaustedPolicy::StallThenDrop => self.wait_for_chunk(new),
        }
    }

    #[cold]
    fn wait_for_chunk(&self, new: NewChunk) -> Option<WriteChunk> {
        let start = Instant::now();
        let mut sleep = Duration::from_micros(8);
        while start.elapsed() < self.stall_limit && !self.closed.load(Ordering::Relaxed) {
            // Other writers may fill chunks as fast as the service frees them: these chunks have to be committed too.
            self.notify.wake(Wake::Stalled);
            // The service frees chunks without notice, so the writer can only look again.
            std::thread::sleep(sleep);
            sleep = (sleep * 8).min(MAX_STALL_SLEEP);
            if let Some(chunk) = self.win_chunk(new) {
                return Some(chunk);
            }
        }
        self.waited_in_vain.store(true, Ordering::Relaxed);
        None
    }

    /// Completes a chunk and has it committed to `target`.
    pub(crate) fn return_chunk(&self, chunk: WriteChunk, target: BufferId) {
        let (returned, bytes) = (to_move(&chunk, target), chunk.size());
        // Before it is listed, because the endpoint may commit it at once.
        chunk.complete();
        let mut pending = lock_with_room(|| self.pending(), |pending| &mut pending.returned, 1);
        pending.add(returned, bytes);
        let size = self.smb.memory().size();
        let room = size.saturating_sub(self.smb.open_bytes());
        let half_full = pending.returned_bytes >= MAX_BATCH_BYTES.min(room / 2);
        let woken = if half_full {
            Woken::HalfFull
        } else if pending.batch.is_zero() {
            Woken::Now
        } else {
            Woken::AtEndOfBatch
        };
        self.wake(pending, woken);
    }

    /// Has the endpoint woken, unless it is on its way already.
    fn wake(&self, mut pending: MutexGuard<'_, Pending>, woken: Woken) {
        let wake = match woken {
            Woken::No => return,
            Woken::AtEndOfBatch => Wake::Within(pending.batch),
            Woken::Now => Wake::Now,
            Woken::HalfFull => Wake::HalfFull,
        };
        let sooner = woken > pending.woken;
        pending.woken = pending.woken.max(woken);
        drop(pending);
        if sooner {
            self.notify.wake(wake);
        }
    }

    /// Notes that a writer has begun to lose packets for `target`, and has no chunk to report it in. It may not get one before it or its session
    /// ends.
    pub(crate) fn note_untold_loss(&self, target: BufferId) {
        lock_with_room(|| self.pending(), |pending| pending.untold_losses.room(), 1)
            .untold_losses
            .note(target);
    }

    /// Reports such losses as far as there are chunks, through a writer for each target that does nothing else.
    fn tell_losses(&self, pending: &mut Pending) {
        while let Some(target) = pending.untold_losses.next() {
            let Some(teller) = self.teller(pending, target) else {
                return;
            };
            let new = NewChunk {
                writer: teller.writer,
                chunk: teller.next_chunk,
                first: FirstPacket::Whole,
            };
            let Some(chunk) = self.win_chunk(new) else { return };
            teller.next_chunk = new.chunk.next();
            pending.untold_losses.told(target);
            pending.returned.push(to_move(&chunk, target));
            mark_loss(chunk).complete();
        }
    }

    /// Returns the writer that reports losses for `target`. All writers for a target share one, because there are few ids.
    fn teller<'p>(&self, pending: &'p mut Pending, target: BufferId) -> Option<&'p mut Teller> {
        let known = pending.tellers.iter().position(|teller| teller.target == target);
        let at = match known {
            Some(at) => at,
            None => {
                if pending.tellers.len() == MAX_TELLERS {
                    let oldest = pending.tellers.remove(0);
                    pending.unregistered.push(oldest.writer);
                }
                let writer = self.writer_ids.allocate()?;
                pending.registered.push((writer, target));
                pending.tellers.push(Teller {
                    target,
                    writer,
                    next_chunk: ChunkId(0),
                });
                pending.tellers.len() - 1
            }
        };
        pending.tellers.get_mut(at)
    }

    /// Has pending requests sent at once.
    pub(crate) fn wake_now(&self) {
        self.wake(self.pending(), Woken::Now);
    }

    /// Ends a writer that has returned all its chunks.
    pub(crate) fn end_writer(&self, writer: WriterId, chunks: HadChunks) {
        self.holders().remove(writer);
        let mut pending = self.pending();
        if chunks == HadChunks::None
            && let Some(at) = pending.registered.iter().rposition(|(id, _)| *id == writer)
        {
            // The service does not know it, and need not: while the endpoint is stuck, threads may come and go.
            pending.registered.remove(at);
            drop(pending);
            return self.writer_ids.release(writer);
        }
        pending.unregistered.push(writer);
        drop(pending);
        self.wake_now();
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        // Nothing panics while it holds the lock.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        // Nothing panics while it holds the lock.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Adds a chunk to commit.
    fn add(&mut self, chunk: ChunksToMove, bytes: usize) {
        self.returned.push(chunk);
        self.returned_bytes += bytes;
    }

    /// Returns the flush to acknowledge now.
    fn take_flushed(&mut self) -> Option<u64> {
        let untold = &self.untold_losses;
        let flushed = self
            .flushed
            .take_if(|flushed| untold.is_flushed() || flushed.at_latest <= Instant::now())?;
        Some(flushed.id)
    }

    fn new(destination: Destination) -> Self {
        Self {
            destination,
            registered: Vec::new(),
            unregistered: Vec::new(),
            returned: Vec::new(),
            returned_bytes: 0,
            untold_losses: UntoldLosses::default(),
            tellers: Vec::new(),
            flushed: None,
            batch: Duration::ZERO,
            woken: Woken::No,
        }
    }
}

/// The description of a chunk in a commit.
fn to_move(chunk: &WriteChunk, target: BufferId) -> ChunksToMove {
    ChunksToMove {
        page: Some(chunk.page() as u32),
        chunk: Some(chunk.index() as u32),
        target_buffer: Some(u32::from(target.0)),
        ..Default::default()
    }
}

/// Does the service's work on a commit of these chunks: copies their bytes, and frees them.
fn take_along(service_end: &ServiceSmb, chunks: &mut [ChunksToMove]) {
    let mut payload = Vec::new();
    for chunk in chunks {
        let (page, index) = (
            chunk.page.unwrap_or_default() as usize,
            chunk.chunk.unwrap_or_default() as usize,
        );
        // The chunks are complete, and no other thread writes this memory.
        if let Ok(header) = service_end.copy_chunk(page, index, &mut payload) {
            chunk.data = Some(header.join(&payload));
            // The page has no meaning where the bytes come along. But services up to v56 drop chunks of pages that their own memory, which is
            // smaller, does not have.
            chunk.page = Some(0);
        }
    }
}
