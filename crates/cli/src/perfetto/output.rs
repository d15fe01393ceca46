//! The output of a recording: a file, a pipe or stdout, with the packets that go into it.
//!
//! [`record`](super::record) uses it. It opens the output before it asks the service for anything, so that an unwritable output costs no recording.
//! It empties a file only when it asks for the data, so that a mistake, a missing service, or one that refuses the config, leaves an earlier trace as
//! it was. A file that the service may write into, during the recording or for a clone, is emptied before that: what the service then refuses costs the
//! earlier trace, as with upstream's. If an output cannot take everything, it keeps the complete packets that it took. [`Output::discard`] removes a
//! file without any.
//!
//! A trace file is one encoded `perfetto.protos.Trace`: every packet is its field 1, length-delimited. Only whole packets
//! are ever written, so a file cut off between two of them is still a trace.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ferretto_wire::decode_varint;

use super::pipe::Pipe;
use super::plan::{ExistingFile, Sink};
use super::session::Writer;
use super::signals::Interrupted;
use crate::private_file;
use ferretto_trace_file::{self as trace_file, Cut, End, MAX_PREAMBLE, Piece, packet_preamble};

/// Bytes collected before a write.
const BUFFER: usize = 256 * 1024;

/// The reason why an output cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    // Upstream's sentence, for which tests and scripts look.
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
    /// Its absolute path, because a background process changes its directory; `None` for stdout.
    path: Option<PathBuf>,
    /// The origin of the file, which decides whether to empty or remove it; `None` if the output is no file.
    origin: Option<Origin>,
    name: String,
    /// The process that writes the packets, once the recording has begun.
    writer: Option<Writer>,
    bytes: u64,
    /// The packets that came after writing had failed.
    missing: Missing,
}

/// The packets that an output lacks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
enum Stream {
    File(File),
    /// A pipe or socket with a reader, or a device.
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
    /// This recording created it.
    Created,
    /// It existed, and is unchanged.
    Untouched,
    /// It existed, and has been emptied.
    Emptied,
}

impl Output {
    /// Opens the output, without changing its content. `None` when the service opens it by itself.
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

    /// Lets a signal end the wait for a reader.
    pub(crate) fn heed(&mut self, interrupted: Interrupted) {
        if let Stream::Pipe(pipe) = &mut self.stream {
            pipe.heed(interrupted);
        }
    }

    /// Returns its name for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns its absolute path, unless it is stdout.
    pub(crate) fn absolute_path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether it is a FIFO without a reader so far.
    pub(crate) fn awaits_reader(&self) -> bool {
        match &self.stream {
            Stream::File(_) => false,
            Stream::Pipe(pipe) => pipe.awaits_reader(),
        }
    }

    /// Notes that `writer` will fill it, if the service agrees. A file keeps its content.
    pub(crate) fn expect(&mut self, writer: Writer) {
        if let Stream::Pipe(pipe) = &mut self.stream {
            pipe.stop_reading(writer);
        }
        self.writer = Some(writer);
    }

    /// Empties a file, because `writer` fills it now.
    pub(crate) fn begin(&mut self, writer: Writer) -> io::Result<()> {
        self.expect(writer);
        if let (Stream::File(file), Some(Origin::Untouched)) = (&mut self.stream, self.origin) {
            file.set_len(0)?;
            self.origin = Some(Origin::Emptied);
        }
        Ok(())
    }

    /// Returns a descriptor for the service to write into.
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

    /// Whether it is a file, which keeps the written data.
    pub(crate) fn is_file(&self) -> bool {
        self.origin.is_some()
    }

    /// Counts a packet that is not written because writing has failed.
    pub(crate) fn miss_packet(&mut self, packet: &[u8]) {
        let preamble = packet_preamble(packet.len() as u64, &mut [0; MAX_PREAMBLE]).len();
        self.missing.packets += 1;
        self.missing.bytes += (preamble + packet.len()) as u64;
    }

    /// Returns the packets that it lacks.
    pub(crate) fn missing(&self) -> Missing {
        self.missing
    }

    /// Hands all pending packets to the kernel. If that fails, cuts a file off after the last complete packet.
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
            // Shortening a file always works.
            let _ = file.set_len(self.bytes);
        }
        Err(failure)
    }

    /// Returns the end of the last packet that lies completely in the first `written` pending bytes. Counts the packets after it as missing.
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

    /// Returns its size in bytes; `None` if the service writes it and it is no file.
    pub(crate) fn size(&self) -> Option<u64> {
        match (self.writer, self.origin) {
            (Some(Writer::Service), Some(_)) => {
                self.stream.file().metadata().ok().map(|metadata| metadata.len())
            }
            (Some(Writer::Service), None) => None,
            (Some(Writer::Us) | None, _) => Some(self.bytes),
        }
    }

    /// Returns the absolute path; `None` for stdout.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Passes the packets of a file that the service wrote to `look`, also those inside compressed packets. Returns the cut if the file ends inside a
    /// packet. Fails at any damage.
    pub(crate) fn read_back(&mut self, mut look: impl FnMut(&[u8])) -> io::Result<Option<Cut>> {
        let mut file = self.stream.file();
        file.seek(SeekFrom::Start(0))?;
        let read = trace_file::read(file, |piece| {
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

    /// Ends the output of a failed recording. If there are data, keeps them and returns their size in bytes; otherwise discards the output.
    pub(crate) fn salvage(mut self) -> Option<u64> {
        // Packets that cannot be written count as missing.
        let _ = self.finish();
        let size = self.size().unwrap_or(0);
        if self.writer.is_some() && size > 0 {
            return Some(size);
        }
        self.discard();
        None
    }

    /// Removes the incomplete packet at the end of a file that the service wrote.
    pub(crate) fn cut_off(&mut self, cut: Cut) -> io::Result<()> {
        self.stream.file().set_len(cut.offset)
    }

    /// Returns the space in bytes that a file may take: what is free, and what an earlier trace has.
    pub(crate) fn room(&self) -> Option<u64> {
        let earlier = match self.origin? {
            Origin::Untouched => self.stream.file().metadata().ok()?.blocks().saturating_mul(512),
            Origin::Created | Origin::Emptied => 0,
        };
        let filesystem = rustix::fs::fstatvfs(self.stream.file()).ok()?;
        let free = filesystem.f_bavail.saturating_mul(filesystem.f_frsize);
        // Some network filesystems do not report it.
        (filesystem.f_blocks > 0).then(|| free.saturating_add(earlier))
    }

    /// Removes a file that this recording created or emptied, unless another file is now at its path. Pipes, devices and unchanged files remain.
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

/// The fate of a failed recording's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discarded {
    /// The file was removed.
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

/// Returns the length of the first packet with its preamble; `None` if there is no packet.
fn framed_length(packets: &[u8]) -> Option<usize> {
    let (payload, len) = decode_varint(packets.get(1..)?).ok()?;
    Some(1 + len + usize::try_from(payload).ok()?)
}

#[cfg(test)]
mod tests;
