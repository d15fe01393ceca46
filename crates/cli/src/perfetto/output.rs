//! The output of a recording: a file, a pipe or stdout, and the packets that go into it.
//!
//! Called by [`record`](super::record). It is opened before the service is asked for anything, so that an output that
//! cannot be written costs no recording; it is emptied when the recording starts, so that a refused one leaves an
//! earlier trace as it was; and [`Output::discard`] takes away what a failed one left, so that no half-written file
//! looks like a trace.
//!
//! A trace file is one encoded `perfetto.protos.Trace`: every packet is its field 1, length-delimited. Only whole packets
//! are ever written, so a file cut off between two of them is still a trace.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::pipe::{Interrupted, Pipe};
use super::plan::{ExistingFile, Sink};
use super::session::Writer;
use crate::trace_reader::{self, End, Piece};

/// The tag of `Trace.packet`: field 1, length-delimited.
const PACKET_TAG: u8 = 0x0a;
/// A tag and the longest varint.
const MAX_PREAMBLE: usize = 1 + 10;
/// Bytes collected before a write.
const BUFFER: usize = 256 * 1024;
/// Only the user may read a trace: it tells what ran on the machine.
const MODE: u32 = 0o600;

/// Why an output cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("{0} exists, and --no-clobber says not to overwrite it")]
    Exists(PathBuf),
    #[error("cannot open the output {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
}

/// An open output.
#[derive(Debug)]
pub(crate) struct Output {
    stream: BufWriter<Stream>,
    /// Where it is, unless it is stdout. Absolute, since a background process changes its directory.
    path: Option<PathBuf>,
    /// Whether to empty or remove it; `None` if it is no file.
    origin: Option<Origin>,
    name: String,
    /// Who fills it, once the recording has begun.
    writer: Option<Writer>,
    bytes: u64,
}

#[derive(Debug)]
enum Stream {
    File(File),
    /// What others read or take meanwhile; devices as well.
    Pipe(Pipe),
}

impl Stream {
    fn file(&self) -> &File {
        match self {
            Stream::File(file) => file,
            Stream::Pipe(pipe) => pipe.file(),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::File(file) => file.write(bytes),
            Stream::Pipe(pipe) => pipe.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// We made it.
    Created,
    /// It was there, and still is as it was.
    Untouched,
    /// It was there; its content is gone.
    Emptied,
}

impl Output {
    /// Opens the output, without touching what is in it. `None` when the service opens it by itself.
    pub(crate) fn open(sink: &Sink, existing: ExistingFile) -> Result<Option<Output>, OpenError> {
        let (stream, path, origin, name) = match sink {
            Sink::OpenedByService(_) | Sink::SameAsBefore => return Ok(None),
            Sink::Stdout => {
                let error = |source| OpenError::Open {
                    path: "stdout".into(),
                    source,
                };
                let fd = io::stdout().as_fd().try_clone_to_owned().map_err(error)?;
                let file = File::from(fd);
                let stream = match file.metadata().map_err(error)?.is_file() {
                    true => Stream::File(file),
                    false => Stream::Pipe(Pipe::inherited(file)),
                };
                (stream, None, None, "stdout".to_owned())
            }
            Sink::File(path) => {
                let error = |source| OpenError::Open {
                    path: path.clone(),
                    source,
                };
                let (file, origin) = match open_file(path, existing) {
                    Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {
                        return Err(OpenError::Exists(path.clone()));
                    }
                    opened => opened.map_err(error)?,
                };
                let absolute = std::path::absolute(path).map_err(error)?;
                let kind = file.metadata().map_err(error)?.file_type();
                // Devices and pipes are neither emptied nor removed.
                let (stream, origin) = match (kind.is_file(), kind.is_fifo()) {
                    (true, _) => (Stream::File(file), Some(origin)),
                    (false, true) => (Stream::Pipe(Pipe::named(file)), None),
                    (false, false) => (Stream::Pipe(Pipe::inherited(file)), None),
                };
                (stream, Some(absolute), origin, path.display().to_string())
            }
        };
        Ok(Some(Output {
            stream: BufWriter::with_capacity(BUFFER, stream),
            path,
            origin,
            name,
            writer: None,
            bytes: 0,
        }))
    }

    /// Lets a signal that was told there end the wait for a reader.
    pub(crate) fn heed(&mut self, interrupted: Interrupted) {
        if let Stream::Pipe(pipe) = self.stream.get_mut() {
            pipe.heed(interrupted);
        }
    }

    /// What to call it in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where it is, unless it is stdout.
    pub(crate) fn absolute_path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether it is a FIFO that nobody reads yet.
    pub(crate) fn awaits_reader(&self) -> bool {
        match self.stream.get_ref() {
            Stream::File(_) => false,
            Stream::Pipe(pipe) => pipe.awaits_reader(),
        }
    }

    /// Empties a file: the recording starts, and `writer` will fill it.
    pub(crate) fn begin(&mut self, writer: Writer) -> io::Result<()> {
        match self.stream.get_mut() {
            Stream::File(file) if self.origin == Some(Origin::Untouched) => {
                file.set_len(0)?;
                self.origin = Some(Origin::Emptied);
            }
            Stream::File(_) => {}
            Stream::Pipe(pipe) => pipe.stop_reading(writer),
        }
        self.writer = Some(writer);
        Ok(())
    }

    /// A descriptor for the service to write into.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.stream.get_ref().file().as_fd().try_clone_to_owned()
    }

    /// Appends one packet.
    pub(crate) fn write_packet(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut preamble = [0; MAX_PREAMBLE];
        let preamble = packet_preamble(packet.len() as u64, &mut preamble);
        self.stream.write_all(preamble)?;
        self.stream.write_all(packet)?;
        self.bytes += (preamble.len() + packet.len()) as u64;
        Ok(())
    }

    /// Ends the output: everything is handed to the kernel.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.stream.flush()
    }

    /// Its size in bytes; `None` when the service writes it and it is no file.
    pub(crate) fn size(&self) -> Option<u64> {
        match (self.writer, self.origin) {
            (Some(Writer::Service), Some(_)) => self
                .stream
                .get_ref()
                .file()
                .metadata()
                .ok()
                .map(|metadata| metadata.len()),
            (Some(Writer::Service), None) => None,
            (Some(Writer::Us) | None, _) => Some(self.bytes),
        }
    }

    /// Hands the packets of a file that the service wrote to `look`, those inside compressed ones as well. Fails at anything that
    /// is no packet, and if the file ends inside one with [`io::ErrorKind::UnexpectedEof`].
    pub(crate) fn read_back(&mut self, mut look: impl FnMut(&[u8])) -> io::Result<()> {
        let mut file = self.stream.get_ref().file();
        file.seek(SeekFrom::Start(0))?;
        let read = trace_reader::read(file, |piece| {
            match piece {
                Piece::Packet(packet) => look(packet),
                Piece::Damage(damage) => return ControlFlow::Break(damage),
                Piece::CompressedStart(_) | Piece::CompressedEnd => {}
            }
            ControlFlow::Continue(())
        })?;
        match read {
            ControlFlow::Continue(End { cut: None, .. }) => Ok(()),
            ControlFlow::Continue(End { cut: Some(_), .. }) => Err(io::ErrorKind::UnexpectedEof.into()),
            ControlFlow::Break(damage) => Err(io::Error::new(io::ErrorKind::InvalidData, damage.to_string())),
        }
    }

    /// After a recording that failed: keeps what data there are and tells how many bytes, or discards an output without any.
    pub(crate) fn salvage(mut self) -> Option<u64> {
        let flushed = self.finish();
        let size = self.size().unwrap_or(0);
        if self.writer.is_some() && flushed.is_ok() && size > 0 {
            return Some(size);
        }
        self.discard();
        None
    }

    /// Removes a file that this recording made or emptied, unless somebody put another in its place. Pipes, devices
    /// and files still untouched stay.
    pub(crate) fn discard(self) -> Discarded {
        let (stream, _) = self.stream.into_parts();
        let ours = self.origin.is_some_and(|origin| origin != Origin::Untouched);
        match self.path {
            Some(path) if ours && is_at(stream.file(), &path) => match std::fs::remove_file(&path) {
                Ok(()) => Discarded::Removed,
                Err(_) => Discarded::Left,
            },
            _ => Discarded::Left,
        }
    }
}

/// What became of the output of a failed recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discarded {
    /// The file is gone.
    Removed,
    /// Nothing was removed.
    Left,
}

fn open_file(path: &Path, existing: ExistingFile) -> io::Result<(File, Origin)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(MODE);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && existing == ExistingFile::Replace => {
            // `create` for links that point nowhere yet, which `create_new` takes for files.
            options
                .create(true)
                .truncate(false)
                .open(path)
                .map(|file| (file, Origin::Untouched))
        }
        opened => {
            let file = opened?;
            give_to_who_used_sudo(&file);
            Ok((file, Origin::Created))
        }
    }
}

/// Recording the kernel needs root, looking at the trace does not: a file that was made under `sudo` is its user's, who could not even
/// read it otherwise. Only files made here are given away.
fn give_to_who_used_sudo(file: &File) {
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if let (true, Some(user), Some(group)) = (
        rustix::process::geteuid().is_root(),
        id("SUDO_UID"),
        id("SUDO_GID"),
    ) {
        let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        // Some filesystems have no owners: then it stays as it is.
        let _ = rustix::fs::fchown(file, Some(user), Some(group));
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// The bytes before a packet: its tag and its length as a varint.
fn packet_preamble(mut length: u64, buffer: &mut [u8; MAX_PREAMBLE]) -> &[u8] {
    buffer[0] = PACKET_TAG;
    let mut end = 1;
    loop {
        let more = if length > 0x7f { 0x80 } else { 0 };
        buffer[end] = (length & 0x7f) as u8 | more;
        end += 1;
        length >>= 7;
        if length == 0 {
            return &buffer[..end];
        }
    }
}

#[cfg(test)]
mod tests;
