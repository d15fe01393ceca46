//! Trace files that sessions stream into (`write_into_file`), each with a thread that compresses and writes.
//!
//! A slow disk, a pipe with a slow reader, or a config that asks for strong compression holds up its own session and no other. The event loop
//! hands over one batch at a time, and gets it back with the result once it is written. So a file costs the memory of one batch and of its
//! compressed form, however slow the file is, and nothing when no data is due.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ferretto_ipc::channel::{Nothing, Receiver, Sender, channel};
use ferretto_ipc::reactor::Waker;
use ferretto_service::compression::{Compressor, FileCompression, Fit};
use ferretto_service::{ReadBatch, SessionId, limits};
use ferretto_wire::bulk;

use super::trace_file::{CancelWrites, PacketWriter, TraceFile};

/// A job for the thread of a file.
enum Job {
    Write(Vec<u8>, Option<FileCompression>, Next),
    /// Give away a second descriptor, for this clone.
    Share(SessionId),
    /// Write this many bytes from the start of another file.
    Copy(File, u64),
    Sync,
    /// Sync, for the last time.
    Close,
}

/// When the next batch comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// As soon as the current one is written.
    Soon,
    /// Some time, or never.
    Later,
}

/// The report of a finished job.
pub(crate) enum Done {
    /// A batch was written; this is its memory if another one follows soon.
    Written(SessionId, Option<Vec<u8>>, Result<Written, String>),
    /// Another descriptor of a file for this clone, and the number of bytes to copy: all that were handed over before.
    Shared(SessionId, io::Result<(File, u64)>),
    /// The contents of another file were copied, or could not be.
    Copied(SessionId, io::Result<()>),
    /// All earlier data reached the disk, or did not.
    Synced(SessionId, io::Result<()>),
    /// The file is complete: its [`FileWriter`] can be dropped, which closes it.
    Closed(SessionId, io::Result<()>),
}

/// The result of writing a batch.
pub(crate) struct Written {
    /// The bytes in the file, which may be compressed.
    pub(crate) bytes: u64,
    /// Whether the whole batch was written.
    pub(crate) fit: Fit,
}

/// The thread that writes one file. When this is dropped the thread ends, after its current write. A write that may never end, because no reader
/// takes the data, is cancelled.
pub(crate) struct FileWriter {
    jobs: Sender<Job>,
    /// The memory of the last batch, for the next.
    batch: Vec<u8>,
    _cancel: CancelWrites,
}

impl FileWriter {
    fn start(
        session: SessionId,
        file: TraceFile,
        done: Sender<Done>,
        waker: Waker,
        counted: Arc<()>,
    ) -> io::Result<FileWriter> {
        let (jobs, received) = channel();
        let (file, cancel) = file.into_writer()?;
        let mut output = Output {
            file,
            compressor: None,
            compressed: Vec::new(),
        };
        std::thread::Builder::new()
            .name("trace-file".into())
            .spawn(move || {
                let _counted = counted;
                while let Some(job) = received.receive() {
                    let result = match job {
                        Job::Write(batch, compression, next) => {
                            let written = output.write(&batch, compression);
                            if next == Next::Later {
                                output.forget_memory();
                            }
                            let kept = (next == Next::Soon).then_some(batch);
                            Done::Written(session, kept, written)
                        }
                        Job::Share(clone) => Done::Shared(clone, output.file.share()),
                        Job::Copy(from, size) => Done::Copied(session, output.file.copy(&from, size)),
                        Job::Sync => Done::Synced(session, output.file.sync()),
                        Job::Close => Done::Closed(session, output.file.sync()),
                    };
                    if done.send(result).is_err() {
                        break;
                    }
                    waker.wake();
                }
            })?;
        Ok(FileWriter {
            jobs,
            batch: Vec::new(),
            _cancel: cancel,
        })
    }

    /// Hands over a batch. The previous one must be back.
    pub(crate) fn write(&mut self, mut packets: ReadBatch<'_>) {
        let batch = packets.take_large().unwrap_or_else(|| {
            let mut batch = std::mem::take(&mut self.batch);
            batch.clear();
            packets.slices().for_each(|slice| bulk::extend(&mut batch, slice));
            batch
        });
        let next = if packets.has_more { Next::Soon } else { Next::Later };
        self.send(Job::Write(batch, packets.compression, next));
    }

    /// Takes back the memory of a batch, unless that was one large packet.
    pub(crate) fn take_back(&mut self, batch: Vec<u8>) {
        if batch.capacity() <= 4 * limits::LARGE_PACKET {
            self.batch = batch;
        }
    }

    /// Asks for a second descriptor of the file, for a clone: [`Done::Shared`].
    pub(crate) fn share(&self, clone: SessionId) {
        self.send(Job::Share(clone));
    }

    /// Copies the contents of another file: [`Done::Copied`].
    pub(crate) fn copy(&self, (from, size): (File, u64)) {
        self.send(Job::Copy(from, size));
    }

    /// Has the kernel bring all written data to the disk.
    pub(crate) fn sync(&self) {
        self.send(Job::Sync);
    }

    /// The same, for the last time: [`Done::Closed`]. Until this is then dropped, the thread still answers requests for clones.
    pub(crate) fn close(&self) {
        self.send(Job::Close);
    }

    fn send(&self, job: Job) {
        // The thread lives as long as `self`.
        let _ = self.jobs.send(job);
    }
}

/// A file, and the compressor for packets on their way into it.
struct Output {
    file: PacketWriter,
    compressor: Option<Compressor>,
    compressed: Vec<u8>,
}

impl Output {
    fn write(&mut self, batch: &[u8], compression: Option<FileCompression>) -> Result<Written, String> {
        let (packets, fit) = match compression {
            None => (batch, Fit::Whole),
            Some(FileCompression { codec, room }) => {
                let compressor = match &mut self.compressor {
                    Some(compressor) => compressor,
                    none => none.insert(Compressor::new(codec).map_err(|error| error.to_string())?),
                };
                self.compressed.clear();
                let fit = compressor
                    .compress_into(&mut self.compressed, batch, room)
                    .map_err(|error| error.to_string())?;
                (&*self.compressed, fit)
            }
        };
        self.file.write(packets).map_err(|error| error.to_string())?;
        let bytes = packets.len() as u64;
        Ok(Written { bytes, fit })
    }

    /// Frees the memory that is only kept for the next batch.
    fn forget_memory(&mut self) {
        self.compressor = None;
        self.compressed = Vec::new();
    }
}

/// All files that are being written, and the reports of their threads.
pub(crate) struct Files {
    waker: Waker,
    /// Has one reference for each thread, besides this one.
    threads: Arc<()>,
    sender: Sender<Done>,
    done: Receiver<Done>,
}

impl Files {
    /// No files yet. `waker` is woken whenever [`Files::next_done`] has a report.
    pub(crate) fn new(waker: Waker) -> Files {
        let (sender, done) = channel();
        Files {
            waker,
            threads: Arc::new(()),
            sender,
            done,
        }
    }

    /// Starts a thread for this file.
    ///
    /// # Errors
    /// If there are too many already. Threads outlive their sessions where the kernel does not return from a write, as when the server of a network
    /// file system is away, and still count.
    pub(crate) fn writer(&self, session: SessionId, file: TraceFile) -> io::Result<FileWriter> {
        if Arc::strong_count(&self.threads) > limits::MAX_FILE_THREADS {
            return Err(io::Error::other(format!(
                "{} trace files are still being written, and there may be no more at once",
                limits::MAX_FILE_THREADS
            )));
        }
        let (done, waker) = (self.sender.clone(), self.waker.clone());
        FileWriter::start(session, file, done, waker, self.threads.clone())
    }

    /// The next report of any thread, if there is one.
    pub(crate) fn next_done(&self) -> Option<Done> {
        self.done.try_receive().ok()
    }

    /// Waits for the report of any thread.
    pub(crate) fn wait(&self, at_most: Duration) -> Result<Done, Nothing> {
        self.done.receive_within(at_most)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use ferretto_ipc::Reactor;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn file() -> TraceFile {
        TraceFile::passed(OwnedFd::from(tempfile::tempfile().unwrap()).into()).unwrap()
    }

    #[test]
    fn threads_are_limited_and_there_is_room_again_when_some_end() {
        let reactor = Reactor::new().unwrap();
        let files = Files::new(reactor.waker());
        let mut writers: Vec<_> = (0..limits::MAX_FILE_THREADS)
            .map(|number| files.writer(SessionId(number as u64), file()).unwrap())
            .collect();
        let error = files.writer(SessionId(0), file()).err().unwrap();
        assert!(error.to_string().contains("no more at once"), "{error}");
        writers.pop();
        let until = Instant::now() + PATIENCE;
        while files.writer(SessionId(0), file()).is_err() {
            assert!(Instant::now() < until, "the thread does not end");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_clone_that_comes_while_the_file_is_closed_is_answered() {
        let reactor = Reactor::new().unwrap();
        let files = Files::new(reactor.waker());
        let writer = files.writer(SessionId(1), file()).unwrap();
        writer.close();
        assert!(matches!(
            files.wait(PATIENCE),
            Ok(Done::Closed(SessionId(1), Ok(())))
        ));
        // The host has not seen that it is closed.
        writer.share(SessionId(2));
        assert!(matches!(
            files.wait(PATIENCE),
            Ok(Done::Shared(SessionId(2), Ok((_, 0))))
        ));
    }
}
