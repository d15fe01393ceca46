//! The data that a session lost, in types of our own: the schema's statistics follow no semver.

use ferretto_proto::messages::TraceStats;
use ferretto_proto::messages::trace_stats::BufferStats;

use super::asynchronous::Reply;
use super::command::{Answer, Command};
use super::{Session, SessionError};

/// The data that a session has lost since its start: see [`Session::losses`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// What each buffer lost, in the order of the config.
    pub buffers: Vec<BufferLosses>,
    /// Chunks that came into no buffer, because their producer may not write there or broke the protocol.
    pub chunks_discarded: u64,
    /// Packets that are no valid packets, and were left out of the trace.
    pub invalid_packets: u64,
    /// Flushes that data sources did not finish in time. What these had recorded may come later, or not at all.
    pub flushes_failed: u64,
}

/// The data that a buffer lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferLosses {
    /// How often a thread dropped packets because its shared memory was full; how many each time is not known. More
    /// [shared memory](crate::Options::shared_memory_size) helps, or threads that [wait](super::DataSource::when_exhausted).
    pub packet_gaps: u64,
    /// Bytes that were overwritten before they were read. A full ring buffer overwrites its oldest data.
    pub bytes_overwritten: u64,
    /// The chunks that these bytes were in: up to 4 KB of one thread's packets each, usually.
    pub chunks_overwritten: u64,
    /// Chunks that came when a buffer that [keeps the first packets](super::Buffer::keep_first) was full.
    pub chunks_discarded: u64,
    /// Late parts of packets that came when their chunk was gone already.
    pub patches_failed: u64,
    /// Packets that were too large to be put together.
    pub oversized_packets_dropped: u64,
    /// How often a producer wrote something into shared memory that makes no sense.
    pub abi_violations: u64,
}

impl Losses {
    pub(super) fn of(stats: &TraceStats) -> Losses {
        Losses {
            buffers: stats.buffer_stats.iter().map(BufferLosses::of).collect(),
            chunks_discarded: stats.chunks_discarded.unwrap_or_default(),
            invalid_packets: stats.invalid_packets.unwrap_or_default(),
            flushes_failed: stats.flushes_failed.unwrap_or_default(),
        }
    }
}

impl BufferLosses {
    fn of(stats: &BufferStats) -> BufferLosses {
        BufferLosses {
            packet_gaps: stats.trace_writer_packet_loss.unwrap_or_default(),
            bytes_overwritten: stats.bytes_overwritten.unwrap_or_default(),
            chunks_overwritten: stats.chunks_overwritten.unwrap_or_default(),
            chunks_discarded: stats.chunks_discarded.unwrap_or_default(),
            patches_failed: stats.patches_failed.unwrap_or_default(),
            oversized_packets_dropped: stats.oversized_packets_dropped.unwrap_or_default(),
            abi_violations: stats.abi_violations.unwrap_or_default(),
        }
    }
}

/// A request for the losses.
fn command(answer: Answer<Losses>) -> Command {
    Command::Stats(Answer::new(move |stats: Result<Box<TraceStats>, _>| {
        answer.give(stats.map(|stats| Losses::of(&stats)));
    }))
}

/// What is lost.
impl Session {
    /// The data that this session has lost since its start. Also after its end, until it is set up again.
    ///
    /// ```no_run
    /// # use ferretto::session::Session;
    /// # let session = Session::system();
    /// for (number, buffer) in session.losses()?.buffers.iter().enumerate() {
    ///     if buffer.packet_gaps > 0 {
    ///         println!("buffer {number} lacks packets, in {} places", buffer.packet_gaps);
    ///     }
    /// }
    /// # Ok::<(), ferretto::session::SessionError>(())
    /// ```
    ///
    /// # Errors
    /// If there is no session.
    pub fn losses(&self) -> Result<Losses, SessionError> {
        self.wait("get the session's statistics", command)
    }

    /// As [`Session::losses`], without waiting: `done` is called on the SDK's thread.
    pub fn losses_with(&self, done: impl FnOnce(Result<Losses, SessionError>) + Send + 'static) {
        self.send(command(Answer::to_application(done)));
    }

    /// As [`Session::losses`], for asynchronous code.
    pub fn losses_async(&self) -> Reply<Losses> {
        self.ask(command)
    }
}
