//! The output of a recording: a file, a pipe or stdout, and the packets that go into it.
//!
//! Called by [`record`](super::record). It is opened before the service is asked for anything, so that an output that
//! cannot be written costs no recording; it is emptied when the recording starts, so that a refused one leaves an
//! earlier trace as it was; one that cannot take all keeps the whole packets that it took; and [`Output::discard`] takes away what
//! has none.
//!
//! A trace file is one encoded `perfetto.protos.Trace`: every packet is its field 1, length-delimited. Only whole packets
//! are ever written, so a file cut off between two of them is still a trace.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ferretto_wire::{decode_varint, encode_varint};

use super::pipe::Pipe;
use super::plan::{ExistingFile, Sink};
use super::session::Writer;
use super::signals::Interrupted;
use crate::private_file;
use crate::trace_reader::{self, Cut, End, MAX_PREAMBLE, PACKET_TAG, Piece};

/// Bytes collected before a write.
const BUFFER: usize = 256 * 1024;

/// Why an output cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    // Upstream's words: tests and scripts look for them.
    #[error(
        "Error: Output file '{0}' already exists, refusing to overwrite due to '--no-clobber'. Choose another with -o"
    )]
    Exists(PathBuf),
    #[error("cannot open the output {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
}

/// An open output.
#[derive(Debug)]
pub(crate) struct Output {
    stream: Stream,
    /// Whole packets that are still to be written.
    pending: Vec<u8>,
    /// Where it is, unless it is stdout. Absolute, since a background process changes its directory.
    path: Option<PathBuf>,
    /// Whether to empty or remove it; `None` if it is no file.
    origin: Option<Origin>,
    name: String,
    /// Who fills it, once the recording has begun.
    writer: Option<Writer>,
    bytes: u64,
    /// What came after it could not be written any more.
    missing: Missing,
}

/// What an output does not have.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
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
            stream,
            pending: Vec::new(),
            path,
            origin,
            name,
            writer: None,
            bytes: 0,
            missing: Missing::default(),
        }))
    }

    /// Lets a signal that was told there end the wait for a reader.
    pub(crate) fn heed(&mut self, interrupted: Interrupted) {
        if let Stream::Pipe(pipe) = &mut self.stream {
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
        match &self.stream {
            Stream::File(_) => false,
            Stream::Pipe(pipe) => pipe.awaits_reader(),
        }
    }

    /// Empties a file: the recording starts, and `writer` will fill it.
    pub(crate) fn begin(&mut self, writer: Writer) -> io::Result<()> {
        match &mut self.stream {
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
        self.stream.file().as_fd().try_clone_to_owned()
    }

    /// Appends one packet.
    pub(crate) fn write_packet(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut preamble = [0; MAX_PREAMBLE];
        let preamble = packet_preamble(packet.len() as u64, &mut preamble);
        self.pending.extend_from_slice(preamble);
        self.pending.extend_from_slice(packet);
        self.bytes += (preamble.len() + packet.len()) as u64;
        if self.pending.len() < BUFFER {
            return Ok(());
        }
        self.finish()
    }

    /// Whether what was written into it stays there.
    pub(crate) fn is_file(&self) -> bool {
        self.origin.is_some()
    }

    /// Counts a packet that is not written any more.
    pub(crate) fn miss_packet(&mut self, packet: &[u8]) {
        let preamble = packet_preamble(packet.len() as u64, &mut [0; MAX_PREAMBLE]).len();
        self.missing.packets += 1;
        self.missing.bytes += (preamble + packet.len()) as u64;
    }

    /// What it does not have.
    pub(crate) fn missing(&self) -> Missing {
        self.missing
    }

    /// Ends the output: everything is handed to the kernel. If that fails, it ends with the last packet that was taken whole, as far
    /// as what was written can be taken back.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let mut written = 0;
        let failure = loop {
            if written == self.pending.len() {
                self.pending.clear();
                return Ok(());
            }
            match self.stream.write(&self.pending[written..]) {
                Ok(0) => break io::ErrorKind::WriteZero.into(),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        let whole = self.end_of_packets(written);
        self.bytes -= (self.pending.len() - whole) as u64;
        self.pending.clear();
        if let (Stream::File(file), Some(_)) = (&self.stream, self.origin) {
            // There is always room for less.
            let _ = file.set_len(self.bytes);
        }
        Err(failure)
    }

    /// Where the packets end of which all is among the first so many bytes that were to be written. Those after are missing.
    fn end_of_packets(&mut self, written: usize) -> usize {
        let mut end = 0;
        let mut rest = self.pending.as_slice();
        while let Some(length) = framed_length(rest) {
            let next = self.pending.len() - rest.len() + length;
            if next <= written {
                end = next;
            } else {
                self.missing.packets += 1;
                self.missing.bytes += length as u64;
            }
            rest = &rest[length.min(rest.len())..];
        }
        end
    }

    /// Its size in bytes; `None` when the service writes it and it is no file.
    pub(crate) fn size(&self) -> Option<u64> {
        match (self.writer, self.origin) {
            (Some(Writer::Service), Some(_)) => {
                self.stream.file().metadata().ok().map(|metadata| metadata.len())
            }
            (Some(Writer::Service), None) => None,
            (Some(Writer::Us) | None, _) => Some(self.bytes),
        }
    }

    /// Hands the packets of a file that the service wrote to `look`, those inside compressed ones as well; tells if it ends inside
    /// one. Fails at anything that is no packet.
    pub(crate) fn read_back(&mut self, mut look: impl FnMut(&[u8])) -> io::Result<Option<Cut>> {
        let mut file = self.stream.file();
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
            ControlFlow::Continue(End { cut, .. }) => Ok(cut),
            ControlFlow::Break(damage) => Err(io::Error::new(io::ErrorKind::InvalidData, damage.to_string())),
        }
    }

    /// After a recording that failed: keeps what data there are and tells how many bytes, or discards an output without any.
    pub(crate) fn salvage(mut self) -> Option<u64> {
        // What cannot be written is missing.
        let _ = self.finish();
        let size = self.size().unwrap_or(0);
        if self.writer.is_some() && size > 0 {
            return Some(size);
        }
        self.discard();
        None
    }

    /// Takes away what is behind the last whole packet of a file that the service wrote.
    pub(crate) fn cut_off(&mut self, cut: Cut) -> io::Result<()> {
        self.stream.file().set_len(cut.offset)
    }

    /// How many bytes there is still room for where it is, if it is a file.
    pub(crate) fn room(&self) -> Option<u64> {
        self.origin?;
        let filesystem = rustix::fs::fstatvfs(self.stream.file()).ok()?;
        // Some that are far away do not tell.
        (filesystem.f_blocks > 0).then(|| filesystem.f_bavail.saturating_mul(filesystem.f_frsize))
    }

    /// Removes a file that this recording made or emptied, unless somebody put another in its place. Pipes, devices
    /// and files still untouched stay.
    pub(crate) fn discard(self) -> Discarded {
        let ours = self.origin.is_some_and(|origin| origin != Origin::Untouched);
        match self.path {
            Some(path) if ours && is_at(self.stream.file(), &path) => match std::fs::remove_file(&path) {
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
    options.read(true).write(true);
    match existing {
        ExistingFile::Refuse => private_file::create_new(&options, path).map(|file| (file, Origin::Created)),
        ExistingFile::Replace => {
            let (file, origin) = private_file::open(&options, path)?;
            Ok(match origin {
                private_file::Origin::Created => (file, Origin::Created),
                private_file::Origin::Found => (file, Origin::Untouched),
            })
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// The bytes that the first packet takes, with those before it; `None` if there is none.
fn framed_length(packets: &[u8]) -> Option<usize> {
    let (payload, len) = decode_varint(packets.get(1..)?).ok()?;
    Some(1 + len + usize::try_from(payload).ok()?)
}

/// The bytes before a packet: its tag and its length as a varint.
fn packet_preamble(length: u64, buffer: &mut [u8; MAX_PREAMBLE]) -> &[u8] {
    let [tag, varint @ ..] = buffer;
    *tag = PACKET_TAG;
    let len = encode_varint(length, varint).len();
    &buffer[..1 + len]
}

#[cfg(test)]
mod tests;
