//! Trace files that sessions stream into (`write_into_file`).
//!
//! Each has a thread that does nothing but write: a disk that is slow, or a pipe whose reader is, holds up its own
//! session and nobody else's. The event loop hands over one batch at a time and gets it back, with what became of it,
//! when it is written; so a file costs the memory of one batch, however slow it is.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use ferretto_ipc::reactor::Waker;
use ferretto_service::SessionId;

/// An open trace file that nothing is written into yet.
pub(super) struct TraceFile {
    file: File,
    /// Where it is, if the daemon made it itself.
    created: Option<PathBuf>,
}

impl TraceFile {
    /// The descriptor that a consumer passed.
    pub(super) fn passed(fd: OwnedFd) -> TraceFile {
        TraceFile {
            file: File::from(fd),
            created: None,
        }
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
    Write(Vec<u8>),
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
    Written(SessionId, Vec<u8>, io::Result<()>),
    /// Another descriptor of a file for this clone, and the size of what it has to copy: all that was handed over before.
    Shared(SessionId, io::Result<(File, u64)>),
    /// What another file held was written, or could not be.
    Copied(SessionId, io::Result<()>),
    /// What was written so far reached the disk, or did not.
    Synced(io::Result<()>),
    /// The file is closed.
    Closed(SessionId, io::Result<()>),
}

/// The thread that writes one file. It ends when this is dropped, after what it is doing.
pub(super) struct FileWriter {
    jobs: Sender<Job>,
    /// The memory of the last batch, for the next.
    batch: Vec<u8>,
}

impl FileWriter {
    fn start(
        session: SessionId,
        file: TraceFile,
        done: Sender<Done>,
        waker: Waker,
    ) -> io::Result<FileWriter> {
        let (jobs, received) = channel();
        let mut file = file.file;
        std::thread::Builder::new()
            .name("trace-file".into())
            .spawn(move || {
                for job in received {
                    let (result, last) = match job {
                        Job::Write(batch) => {
                            let written = file.write_all(&batch);
                            (Done::Written(session, batch, written), false)
                        }
                        Job::Share(clone) => (Done::Shared(clone, share(&file)), false),
                        Job::Copy(from, size) => {
                            let copied = copy(&from, size, &mut file);
                            (Done::Copied(session, copied), false)
                        }
                        Job::Sync => (Done::Synced(sync(&file)), false),
                        Job::Close => (Done::Closed(session, sync(&file)), true),
                    };
                    if done.send(result).is_err() || last {
                        break;
                    }
                    waker.wake();
                }
                drop(file);
                waker.wake();
            })?;
        Ok(FileWriter {
            jobs,
            batch: Vec::new(),
        })
    }

    /// Hands over a batch. The one before must be back.
    pub(super) fn write<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        slices.for_each(|slice| batch.extend_from_slice(slice));
        self.send(Job::Write(batch));
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

fn sync(file: &File) -> io::Result<()> {
    match file.sync_data() {
        // Pipes and sockets cannot.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

fn share(file: &File) -> io::Result<(File, u64)> {
    Ok((file.try_clone()?, file.metadata()?.len()))
}

/// Writes the first `size` bytes of one file into another. Where the first one is being written stays as it is.
fn copy(from: &File, size: u64, to: &mut File) -> io::Result<()> {
    const CHUNK: u64 = 1024 * 1024;
    let mut chunk = vec![0; size.min(CHUNK) as usize];
    let mut at = 0;
    while at < size {
        let count = (size - at).min(CHUNK) as usize;
        from.read_exact_at(&mut chunk[..count], at)?;
        to.write_all(&chunk[..count])?;
        at += count as u64;
    }
    Ok(())
}
