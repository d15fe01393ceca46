//! Trace files that sessions of the service in this process stream into (`write_into_file`), each with a thread that
//! compresses and writes.
//!
//! Called by [`super`] on the SDK's thread, which must not wait for a disk, nor for the application to read a pipe: its
//! data sources would lose what does not fit into shared memory meanwhile. It hands over one batch at a time; so a file costs the
//! memory of one batch, however slow it is. A thread that the kernel does not let come back from a write, because nobody
//! reads the pipe, is left behind when its file is given up.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferretto_ipc::reactor::Waker;
use ferretto_service::compression::{Compressor, FileCompression, Fit};
use ferretto_service::{ReadBatch, SessionId};
use rustix::event::{PollFd, PollFlags, poll};

use crate::channel::{Receiver, Sender, channel};
use crate::system::open_flags;

/// An open trace file that nothing is written into yet.
pub(super) struct TraceFile {
    file: File,
    /// Where it is, if it was made for the session.
    created: Option<PathBuf>,
}

impl TraceFile {
    /// The descriptor that a consumer passed.
    pub(super) fn passed(fd: OwnedFd) -> Result<TraceFile, String> {
        let flags =
            open_flags(&fd).map_err(|error| format!("cannot use the file of the session: {error}"))?;
        if flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err("the file of the session is not open for writing".into());
        }
        Ok(TraceFile {
            file: File::from(fd),
            created: None,
        })
    }

    /// Makes the file that `output_path` names; it must not exist yet.
    pub(super) fn create(path: &Path) -> Result<TraceFile, String> {
        let failed = |error: io::Error| {
            let hint = match error.kind() {
                io::ErrorKind::AlreadyExists => "; remove it or choose another output_path",
                _ => "",
            };
            format!("cannot create the trace file {}: {error}{hint}", path.display())
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        // Not with the mode above, which the umask would cut.
        file.set_permissions(Permissions::from_mode(0o644))
            .map_err(failed)?;
        Ok(TraceFile {
            file,
            created: Some(path.to_owned()),
        })
    }

    /// Takes back a file that was made for a session which then was refused.
    pub(super) fn discard(self) {
        if let Some(path) = self.created {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What the thread of a file is to do.
enum Job {
    Write(Vec<u8>, Option<FileCompression>),
    /// Give away a second descriptor, for this clone.
    Share(SessionId),
    /// Write the first bytes of another file, so many of them.
    Copy(File, u64),
    Sync,
    /// Sync, for the last time.
    Close,
}

/// What a thread has done.
pub(super) enum Done {
    /// A batch was written: so many bytes, and how much of the batch that is.
    Written(SessionId, Result<(u64, Fit), String>),
    /// Another descriptor of a file for this clone, and the size of what it has to copy: all that was handed over before.
    Shared(SessionId, io::Result<(File, u64)>),
    /// What another file held was written, or could not be.
    Copied(SessionId, io::Result<()>),
    /// What was written so far did not reach the disk.
    NotSynced(SessionId, io::Error),
    /// The file is complete: its [`FileWriter`] can be dropped, which closes it.
    Closed(SessionId, io::Result<()>),
}

/// The thread that writes one file. When this is dropped it ends, after what it is doing.
pub(super) struct FileWriter(Sender<Job>);

impl FileWriter {
    /// Hands over a batch. The one before must be written.
    pub(super) fn write(&self, packets: &ReadBatch<'_>) {
        let mut batch = Vec::with_capacity(packets.len());
        packets.slices().for_each(|slice| batch.extend_from_slice(slice));
        self.send(Job::Write(batch, packets.compression));
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

    /// The same, for the last time: [`Done::Closed`].
    pub(super) fn close(&self) {
        self.send(Job::Close);
    }

    fn send(&self, job: Job) {
        // The thread is there as long as this is.
        let _ = self.0.send(job);
    }
}

/// What the threads of all files report.
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
    ///
    /// # Errors
    /// If there can be no more.
    pub(super) fn writer(&self, session: SessionId, file: TraceFile) -> io::Result<FileWriter> {
        let (jobs, received) = channel();
        let (done, waker) = (self.sender.clone(), self.waker.clone());
        let mut output = Output {
            file: file.file,
            compressor: None,
        };
        std::thread::Builder::new()
            .name("ferretto-file".into())
            .spawn(move || {
                while let Some(job) = received.receive() {
                    let result = match job {
                        Job::Write(batch, compression) => {
                            Done::Written(session, output.write(&batch, compression))
                        }
                        Job::Share(clone) => Done::Shared(clone, output.share()),
                        Job::Copy(from, size) => Done::Copied(session, output.copy(&from, size)),
                        Job::Sync => match output.sync() {
                            Ok(()) => continue,
                            Err(error) => Done::NotSynced(session, error),
                        },
                        Job::Close => Done::Closed(session, output.sync()),
                    };
                    if done.send(result).is_err() {
                        break;
                    }
                    waker.wake();
                }
            })?;
        Ok(FileWriter(jobs))
    }

    /// What some thread has done since, if any has.
    pub(super) fn next_done(&self) -> Option<Done> {
        self.done.try_receive().ok()
    }

    /// Waits for some thread to have done something; `None` if none has within this time.
    pub(super) fn wait(&self, at_most: Duration) -> Option<Done> {
        self.done.receive_within(at_most).ok()
    }
}

/// A file, and what packets go through on their way into it.
struct Output {
    file: File,
    compressor: Option<Compressor>,
}

impl Output {
    fn write(&mut self, batch: &[u8], compression: Option<FileCompression>) -> Result<(u64, Fit), String> {
        let Some(FileCompression { codec, room }) = compression else {
            self.append(batch).map_err(|error| error.to_string())?;
            return Ok((batch.len() as u64, Fit::Whole));
        };
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(codec).map_err(|error| error.to_string())?),
        };
        let mut compressed = Vec::new();
        let fit = compressor
            .compress_into(&mut compressed, batch, room)
            .map_err(|error| error.to_string())?;
        self.append(&compressed).map_err(|error| error.to_string())?;
        Ok((compressed.len() as u64, fit))
    }

    /// Writes all of `bytes`. If that fails part of the way, as when the disk is full, a regular file is cut back to what
    /// it held before, for a reader stops at a packet that is not whole.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match self.file.write(&bytes[written..]) {
                Ok(0) => return self.take_back(written, io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The descriptor is the application's, and may have been set not to wait.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], None)?;
                }
                Err(error) => return self.take_back(written, error),
            }
        }
        Ok(())
    }

    /// A write failed after so many bytes.
    fn take_back(&mut self, written: usize, error: io::Error) -> io::Result<()> {
        if written > 0 && self.file.metadata()?.is_file() {
            let end = self.file.stream_position()?;
            // Not what others added to the file.
            if self.file.metadata()?.len() == end {
                self.file.set_len(end - written as u64)?;
                self.file.seek(SeekFrom::Start(end - written as u64))?;
            }
        }
        Err(error)
    }

    /// Another descriptor of the file, and its size.
    ///
    /// # Errors
    /// If what was written cannot be read again, too.
    fn share(&self) -> io::Result<(File, u64)> {
        let metadata = self.file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other(
                "it is no regular file, and what it took is not to be had again",
            ));
        }
        if open_flags(&self.file)? & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(io::Error::other(
                "it is open for writing only; pass one that is open for reading, too",
            ));
        }
        Ok((self.file.try_clone()?, metadata.len()))
    }

    /// Writes the first `size` bytes of another file. Where that one is being written stays as it is.
    fn copy(&mut self, from: &File, size: u64) -> io::Result<()> {
        const CHUNK: u64 = 1024 * 1024;
        let mut chunk = vec![0; size.min(CHUNK) as usize];
        let mut copied = 0;
        while copied < size {
            let count = (size - copied).min(CHUNK) as usize;
            from.read_exact_at(&mut chunk[..count], copied)?;
            self.append(&chunk[..count])?;
            copied += count as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        match self.file.sync_data() {
            // Pipes and sockets cannot.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
    }
}
