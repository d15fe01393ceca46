//! One trace file that a session streams into (`write_into_file`): opens it, and writes whole packets into the file, pipe or socket behind its
//! descriptor.
//!
//! The thread of the file uses this (`files.rs`). A write into anything but a regular file may last for ever, for example into a pipe without a
//! reader. It ends with an error when it is [cancelled](CancelWrites). If a full disk took only a part of a packet, that part is removed, so that the
//! file can be read to its end.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, PipeReader, PipeWriter, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ferretto_ipc::PassedFd;
use ferretto_ipc::passed_fd::{OpenedFor, opened_for};
use ferretto_wire::Reader;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};

/// The bytes that a writable pipe takes without waiting.
const PIPE_BUF: usize = 4096;

/// An open trace file that is still empty.
pub(crate) struct TraceFile {
    file: PassedFd,
    /// The path, if the host made the file.
    created: Option<PathBuf>,
}

impl TraceFile {
    /// The descriptor that a consumer passed.
    pub(crate) fn passed(fd: PassedFd) -> Result<TraceFile, String> {
        let purpose = opened_for(&fd)
            .map_err(|error| format!("cannot use the descriptor passed for write_into_file: {error}"))?;
        if !matches!(purpose, OpenedFor::Writing | OpenedFor::Both) {
            return Err("the descriptor passed for write_into_file is not open for writing".into());
        }
        Ok(TraceFile {
            file: fd,
            created: None,
        })
    }

    /// Makes the file that `output_path` names; it must not exist yet. Only its owner may read it, because a trace reveals a lot about a machine.
    pub(crate) fn create(path: &Path) -> Result<TraceFile, String> {
        let failed = |error: io::Error| {
            format!(
                "cannot create the trace file {}: {error}{}",
                path.display(),
                hint(error.kind())
            )
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        // The umask may have cut the mode above.
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(failed)?;
        Ok(TraceFile {
            file: OwnedFd::from(file).into(),
            created: Some(path.to_owned()),
        })
    }

    /// Removes a file that was made for a session which then was refused.
    pub(crate) fn discard(self) {
        if let Some(path) = self.created {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Makes the file ready to be written, and returns a value that cancels its writes. The thread that writes the file finds out its kind: even that
    /// may take long if the disk is at the other end of a network.
    pub(crate) fn into_writer(self) -> io::Result<(PacketWriter, CancelWrites)> {
        let (cancelled, cancel) = io::pipe()?;
        let writer = PacketWriter {
            file: File::from(self.file.into_inner()),
            kind: None,
            cancelled,
        };
        Ok((writer, CancelWrites { _end: cancel }))
    }
}

/// What to do if there can be no file for this reason.
fn hint(reason: io::ErrorKind) -> &'static str {
    match reason {
        io::ErrorKind::AlreadyExists => "; remove it or choose another output_path",
        io::ErrorKind::PermissionDenied => {
            "; the service may make no file there: have the client pass a descriptor (perfetto -o), or add the folder to traced's \
             FERRETTO_OUTPUT_FOLDERS; root's traced writes only to folders that root owns or that everybody may write to"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; the service may not write there, as systemd's unit has it for /tmp and /var/tmp: have the client pass a descriptor \
             (perfetto -o), or choose an output_path below /var/lib/traced"
        }
        _ => "",
    }
}

/// Ends the writes and copies of a [`PacketWriter`] when it is dropped, except for writes into regular files, which end by themselves.
pub(crate) struct CancelWrites {
    /// Closing this end of a pipe is the signal to the other.
    _end: PipeWriter,
}

/// The kind of file behind a descriptor, as far as writing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Written data can be taken back.
    RegularFile,
    /// A disk as well, but of fixed size.
    BlockDevice,
    Socket,
    /// Pipes, terminals, and all other kinds.
    Other,
}

impl Kind {
    fn of(file: &File) -> io::Result<Kind> {
        let kind = file.metadata()?.file_type();
        Ok(if kind.is_file() {
            Kind::RegularFile
        } else if kind.is_block_device() {
            Kind::BlockDevice
        } else if kind.is_socket() {
            Kind::Socket
        } else {
            Kind::Other
        })
    }
}

/// Writes packets into a file.
pub(crate) struct PacketWriter {
    file: File,
    /// `Some` once something was written or shared.
    kind: Option<Kind>,
    cancelled: PipeReader,
}

impl PacketWriter {
    /// Writes packets in the format of a trace file. If that fails part of the way, a regular file ends with the last whole packet.
    pub(crate) fn write(&mut self, packets: &[u8]) -> io::Result<()> {
        let mut written = 0;
        self.write_all(packets, &mut written)
            .or_else(|error| self.give_up(packets, written, error))
    }

    fn kind(&mut self) -> io::Result<Kind> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => Ok(*self.kind.insert(Kind::of(&self.file)?)),
        }
    }

    /// Returns another descriptor of the file, and its size.
    ///
    /// # Errors
    /// If the file cannot also be read.
    pub(crate) fn share(&mut self) -> io::Result<(File, u64)> {
        if self.kind()? != Kind::RegularFile {
            return Err(io::Error::other(
                "it is no regular file, so its data cannot be read again",
            ));
        }
        if opened_for(&self.file)? == OpenedFor::Writing {
            return Err(io::Error::other(
                "its descriptor is open for writing only; pass one that is open for reading, too",
            ));
        }
        Ok((self.file.try_clone()?, self.file.metadata()?.len()))
    }

    /// Writes the first `size` bytes of another file, whose own position does not change. If this fails or is cancelled, the bytes copied so far are
    /// taken back, because they may end in the middle of a packet.
    pub(crate) fn copy(&mut self, from: &File, size: u64) -> io::Result<()> {
        let mut copied = 0;
        self.copy_all(from, size, &mut copied).inspect_err(|_| {
            // If taking back fails too, the first error is the one to report.
            let _ = self.take_back(copied);
        })
    }

    /// Copies; `copied` counts the bytes.
    fn copy_all(&mut self, from: &File, size: u64, copied: &mut u64) -> io::Result<()> {
        const CHUNK: u64 = 1024 * 1024;
        let mut chunk = vec![0; size.min(CHUNK) as usize];
        while *copied < size {
            // The file may be large, and the client that wanted the copy gone.
            self.check_cancelled()?;
            let count = (size - *copied).min(CHUNK) as usize;
            from.read_exact_at(&mut chunk[..count], *copied)?;
            let mut written = 0;
            let result = self.write_all(&chunk[..count], &mut written);
            *copied += written as u64;
            result?;
        }
        Ok(())
    }

    fn check_cancelled(&self) -> io::Result<()> {
        let mut polled = [PollFd::new(&self.cancelled, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default()))?;
        if polled[0].revents().is_empty() {
            Ok(())
        } else {
            Err(given_up())
        }
    }

    /// Writes all of `bytes`; `written` counts them.
    fn write_all(&mut self, bytes: &[u8], written: &mut usize) -> io::Result<()> {
        while *written < bytes.len() {
            match self.write_some(&bytes[*written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.kind()? {
            Kind::RegularFile | Kind::BlockDevice => self.file.write(bytes),
            Kind::Socket => loop {
                match send(&self.file, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Err(rustix::io::Errno::AGAIN) => self.await_room()?,
                    result => return Ok(result?),
                }
            },
            Kind::Other => loop {
                self.await_room()?;
                match self.file.write(&bytes[..bytes.len().min(PIPE_BUF)]) {
                    // Others may write, too.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return result,
                }
            },
        }
    }

    /// Waits until a small write does not block.
    fn await_room(&self) -> io::Result<()> {
        let mut polled = [
            PollFd::new(&self.file, PollFlags::OUT),
            PollFd::new(&self.cancelled, PollFlags::empty()),
        ];
        poll(&mut polled, None)?;
        if !polled[1].revents().is_empty() {
            return Err(given_up());
        }
        Ok(())
    }

    /// Handles a write that failed after `written` bytes.
    fn give_up(&mut self, packets: &[u8], written: usize, error: io::Error) -> io::Result<()> {
        let surplus = written - whole_packets(&packets[..written]);
        match self.take_back(surplus as u64) {
            Ok(()) => Err(error),
            Err(why) => Err(io::Error::new(
                error.kind(),
                format!("{error}; the packet it broke off in stays, since: {why}"),
            )),
        }
    }

    /// Cuts this much off the end of a regular file; leaves others as they are.
    fn take_back(&mut self, bytes: u64) -> io::Result<()> {
        if bytes == 0 || self.kind()? != Kind::RegularFile {
            return Ok(());
        }
        let end = self.file.stream_position()?;
        // Bytes that others added to the file stay.
        if self.file.metadata()?.len() == end {
            self.file.set_len(end - bytes)?;
            self.file.seek(SeekFrom::Start(end - bytes))?;
        }
        Ok(())
    }

    /// Has the kernel bring all written data to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.file.sync_data() {
            // Pipes and sockets cannot be synced.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
    }
}

fn given_up() -> io::Error {
    io::Error::other("it was given up")
}

/// The number of bytes of a cut-off trace file that are whole packets.
fn whole_packets(trace: &[u8]) -> usize {
    let mut reader = Reader::new(trace);
    let mut whole = 0;
    while let Some(Ok(_)) = reader.next() {
        whole = reader.position();
    }
    whole
}

#[cfg(test)]
mod tests;
