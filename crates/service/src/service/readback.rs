//! Read-back: from trace buffers to the consumer or the file.
//!
//! The driver pulls a bounded batch at a time, as its socket or file can take it. A batch consists of stretches of the trace buffers, which are
//! not copied, and stretches of the service's own bytes (framing, its own packets, the fields it adds). The driver hands them to one
//! vectored write. If the session is compressed, a consumer gets a batch as one packet. For a file, the driver compresses the batch on the thread
//! that writes.

use std::time::Duration;

use super::Service;
use crate::clock::Now;
use crate::compression::FileCompression;
use crate::ids::{ConsumerId, SessionId};
use crate::limits;
use crate::session::readout::{Budget, Framing, ReadBatch, ReadCall, Readout, batch, compress_batch};
use crate::session::{Session, Surroundings};

impl Service {
    /// The consumer reads its session: about `budget` bytes, less of them or none where packets are invalid or filtered.
    /// `None` if it has no session to be read. If the session is compressed a batch is smaller than that. All batches of one request share a `call`,
    /// and the last one does not wait until writers pause: the request ends once it has read as much as there was when it began.
    pub fn read_buffers(
        &mut self,
        consumer: ConsumerId,
        call: &mut ReadCall,
        budget: usize,
        now: &Now,
    ) -> Option<ReadBatch<'_>> {
        let id = self.session_of(consumer)?;
        let (session, readout, mut around) = self.reading(id, now)?;
        if session.file.is_some() {
            around
                .common
                .outbox
                .warn("a consumer asked to read a session that streams into a file");
            return None;
        }
        let budget = Budget {
            batch: session
                .codec
                .map_or(budget, |_| budget.min(limits::COMPRESSED_BATCH)),
            file: u64::MAX,
        };
        let end = session.read(Framing::Bare, &budget, Some(call), &mut around, readout);
        if let Err(error) = compress_batch(session, readout, end) {
            around
                .common
                .outbox
                .warn(format!("{error}; they go out as they are"));
        }
        Some(batch(session, readout, end, None))
    }

    /// Returns the next bytes for the file of a session, about `budget` of them; `None` if nothing is due. The driver writes them, however long that
    /// takes, compressed if the batch says so, and then reports with [`Service::file_written`] or [`Service::file_full`]. Until then this returns no
    /// further bytes.
    pub fn read_for_file(&mut self, id: SessionId, budget: usize, now: &Now) -> Option<ReadBatch<'_>> {
        let (session, readout, mut around) = self.reading(id, now)?;
        let room = session.file.as_ref()?.room()?;
        let compression = session.codec.map(|codec| FileCompression { codec, room });
        let budget = Budget {
            batch: budget,
            // The size before compression that would fit is unknown.
            file: if compression.is_some() { u64::MAX } else { room },
        };
        let end = session.read(Framing::Trace, &budget, None, &mut around, readout);
        session.file.as_mut()?.hand_out(end);
        Some(batch(session, readout, end, compression))
    }

    /// Returns a session that is to be read, with the memory and the state for reading.
    fn reading(
        &mut self,
        id: SessionId,
        now: &Now,
    ) -> Option<(&mut Session, &mut Readout, Surroundings<'_>)> {
        let census = self.sessions.census();
        let around = Surroundings {
            common: &mut self.common,
            machines: &self.machines,
            census,
            now: *now,
        };
        Some((self.sessions.get_mut(id)?, &mut self.readout, around))
    }

    /// There was room for a part of the batch of [`Service::read_for_file`]: this many bytes were written, and no further packet would fit.
    pub fn file_full(&mut self, id: SessionId, bytes: u64, now: &Now) {
        let session = self.sessions.get_mut(id);
        if let Some(file) = session.and_then(|session| session.file.as_mut()) {
            file.fill();
        }
        self.file_written(id, Ok(bytes), now);
    }

    /// The batch of [`Service::read_for_file`] was written: this many bytes, or the write failed for this reason.
    pub fn file_written(&mut self, id: SessionId, result: Result<u64, String>, now: &Now) {
        self.on_session(id, now, |session, common| {
            session.file_written(result, common, now)
        });
    }

    /// The driver closed the file ([`CloseFile`](crate::Output::CloseFile)), or failed to for this reason. Everything that waited for the file
    /// continues.
    pub fn file_closed(&mut self, id: SessionId, result: Result<(), String>, now: &Now) {
        self.on_session(id, now, |session, common| session.file_closed(result, common));
    }

    /// A [`SyncFile`](crate::Output::SyncFile) failed for this reason. The session goes on, and its consumer is told when it ends: the kernel reports
    /// data that did not reach the disk only once, so closing the file may succeed.
    pub fn file_sync_failed(&mut self, id: SessionId, error: &str) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.file_sync_failed(error, &mut self.common);
        }
    }

    /// Reports how long the driver took for a batch of [`filtered`](ReadBatch::filtered) packets: reading, filtering and framing them. The service
    /// has no clock for this. The time goes into the statistics of the session.
    pub fn filtering_took(&mut self, id: SessionId, time: Duration) {
        let session = self.sessions.get_mut(id);
        if let Some(filter) = session.and_then(|session| session.filter.as_mut()) {
            filter.took(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::{TraceConfig, trace_config::CompressionType};

    use super::*;

    #[test]
    fn the_memory_of_a_compressor_is_given_back_once_all_is_read() {
        let mut service = Service::new(crate::Identity::default());
        let now = Now::default();
        let consumer = service.connect_consumer(1);
        let config = TraceConfig {
            compression_type: Some(CompressionType::COMPRESSION_TYPE_DEFLATE),
            ..Default::default()
        };
        let bytes = Vec::new().into();
        let input = crate::ConfigInput { config, bytes };
        let file = crate::OutputFile::None;
        let session = service.enable_tracing(consumer, input, &file, 1, &now).unwrap();
        assert_eq!(
            service
                .read_buffers(consumer, &mut ReadCall::default(), 1, &now)
                .unwrap()
                .packets()
                .count(),
            1
        );
        assert!(service.sessions.get(session).unwrap().compressor.is_none());
    }
}
