//! Trace files that sessions stream into (`write_into_file`), each with a thread that compresses and writes.
//!
//! A disk that is slow, a pipe whose reader is, or a config that wants the trace as small as can be holds up its own
//! session and nobody else's. The event loop hands over one batch at a time and gets it back, with what became of it,
//! when it is written; so a file costs the memory of one batch and what it is compressed to, however slow it is.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use ferretto_ipc::reactor::Waker;
use ferretto_service::compression::{Compressor, FileCompression, Fit};
use ferretto_service::{ReadBatch, SessionId};

use super::trace_file::{CancelWrites, PacketWriter, TraceFile};

/// What the thread of a file is to do.
enum Job {
    Write(Vec<u8>, Option<FileCompression>),
    /// Give away a second descriptor, for this clone.
    Share(SessionId),
    /// Write the first bytes of another file, so many of them.
    Copy(File, u64),
    Sync,
    /// Sync and end.
    Close,
}

/// What a thread has done.
pub(super) enum Done {
    /// A batch was written; this is its memory.
    Written(SessionId, Vec<u8>, Result<Written, String>),
    /// Another descriptor of a file for this clone, and the size of what it has to copy: all that was handed over before.
    Shared(SessionId, io::Result<(File, u64)>),
    /// What another file held was written, or could not be.
    Copied(SessionId, io::Result<()>),
    /// What was written so far reached the disk, or did not.
    Synced(io::Result<()>),
    /// The file is closed.
    Closed(SessionId, io::Result<()>),
}

/// What was written of a batch.
pub(super) struct Written {
    /// As it is in the file: maybe compressed.
    pub(super) bytes: u64,
    /// How much of the batch that is.
    pub(super) fit: Fit,
}

/// The thread that writes one file. When this is dropped it ends, after what it is doing; what may never end, because
/// nobody takes the data, it does not wait for.
pub(super) struct FileWriter {
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
                for job in received {
                    let (result, last) = match job {
                        Job::Write(batch, compression) => {
                            let written = output.write(&batch, compression);
                            (Done::Written(session, batch, written), false)
                        }
                        Job::Share(clone) => (Done::Shared(clone, output.file.share()), false),
                        Job::Copy(from, size) => {
                            (Done::Copied(session, output.file.copy(&from, size)), false)
                        }
                        Job::Sync => (Done::Synced(output.file.sync()), false),
                        Job::Close => (Done::Closed(session, output.file.sync()), true),
                    };
                    if done.send(result).is_err() || last {
                        break;
                    }
                    waker.wake();
                }
                drop(output);
                waker.wake();
            })?;
        Ok(FileWriter {
            jobs,
            batch: Vec::new(),
            _cancel: cancel,
        })
    }

    /// Hands over a batch. The one before must be back.
    pub(super) fn write(&mut self, packets: &ReadBatch<'_>) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        packets.slices().for_each(|slice| batch.extend_from_slice(slice));
        self.send(Job::Write(batch, packets.compression));
    }

    /// Takes back the memory of a batch.
    pub(super) fn take_back(&mut self, batch: Vec<u8>) {
        self.batch = batch;
    }

    /// Asks for a second descriptor of the file, for a clone: [`Done::Shared`].
    pub(super) fn share(&self, clone: SessionId) {
        self.send(Job::Share(clone));
    }

    /// Writes what another file holds: [`Done::Copied`].
    pub(super) fn copy(&self, (from, size): (File, u64)) {
        self.send(Job::Copy(from, size));
    }

    /// Has the kernel bring what was written to the disk.
    pub(super) fn sync(&self) {
        self.send(Job::Sync);
    }

    /// The same, and closes the file.
    pub(super) fn close(&self) {
        self.send(Job::Close);
    }

    fn send(&self, job: Job) {
        // The thread is there until it is told to close, which is the last that it is told.
        let _ = self.jobs.send(job);
    }
}

/// A file, and what packets go through on their way into it.
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
}

/// All files that are being written, and what their threads report.
pub(super) struct Files {
    waker: Waker,
    sender: Sender<Done>,
    done: Receiver<Done>,
}

impl Files {
    /// None yet; `waker` is woken whenever there is something for [`Files::next_done`].
    pub(super) fn new(waker: Waker) -> Files {
        let (sender, done) = channel();
        Files { waker, sender, done }
    }

    /// A thread for this file.
    pub(super) fn writer(&self, session: SessionId, file: TraceFile) -> io::Result<FileWriter> {
        FileWriter::start(session, file, self.sender.clone(), self.waker.clone())
    }

    /// What some thread has done since, if any has.
    pub(super) fn next_done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Waits for some thread to have done something.
    pub(super) fn wait(&self, at_most: Duration) -> Result<Done, RecvTimeoutError> {
        self.done.recv_timeout(at_most)
    }
}
