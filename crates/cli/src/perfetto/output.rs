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
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::plan::{ExistingFile, Sink};

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
    writer: BufWriter<File>,
    /// What to empty or remove, for a file.
    file: Option<FileOutput>,
    name: String,
    stage: Stage,
    packets: u64,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opened,
    Begun,
}

#[derive(Debug)]
struct FileOutput {
    /// Absolute, since a background process changes its directory.
    path: PathBuf,
    origin: Origin,
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
        let (file, file_output, name) = match sink {
            Sink::OpenedByService(_) => return Ok(None),
            Sink::Stdout => {
                let fd = io::stdout().as_fd().try_clone_to_owned();
                let fd = fd.map_err(|source| OpenError::Open {
                    path: "stdout".into(),
                    source,
                })?;
                (File::from(fd), None, "stdout".to_owned())
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
                // Devices and pipes are neither emptied nor removed.
                let is_file = file.metadata().map_err(error)?.is_file();
                (
                    file,
                    is_file.then_some(FileOutput {
                        path: absolute,
                        origin,
                    }),
                    path.display().to_string(),
                )
            }
        };
        Ok(Some(Output {
            writer: BufWriter::with_capacity(BUFFER, file),
            file: file_output,
            name,
            stage: Stage::Opened,
            packets: 0,
            bytes: 0,
        }))
    }

    /// What to call it in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Empties a file: the recording starts.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file
            && file.origin == Origin::Untouched
        {
            self.writer.get_ref().set_len(0)?;
            file.origin = Origin::Emptied;
        }
        self.stage = Stage::Begun;
        Ok(())
    }

    /// A descriptor for the service to write into.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.writer.get_ref().as_fd().try_clone_to_owned()
    }

    /// Appends one packet.
    pub(crate) fn write_packet(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut preamble = [0; MAX_PREAMBLE];
        let preamble = packet_preamble(packet.len() as u64, &mut preamble);
        self.writer.write_all(preamble)?;
        self.writer.write_all(packet)?;
        self.packets += 1;
        self.bytes += (preamble.len() + packet.len()) as u64;
        Ok(())
    }

    /// Ends the output: everything is handed to the kernel.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Bytes and packets in the output, whoever wrote them. Of a pipe only our own are known; packets are `None` where
    /// they cannot be counted.
    pub(crate) fn contents(&mut self) -> Contents {
        if self.file.is_none() || self.packets > 0 {
            return Contents {
                bytes: self.bytes,
                packets: (self.packets > 0).then_some(self.packets),
            };
        }
        let file = self.writer.get_ref();
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        Contents {
            bytes,
            packets: count_packets(file).ok(),
        }
    }

    /// After a recording that failed: keeps what data there are and tells how many, or discards an output without any.
    pub(crate) fn salvage(mut self) -> Option<Contents> {
        let flushed = self.finish();
        let contents = self.contents();
        if self.stage == Stage::Begun && flushed.is_ok() && contents.bytes > 0 {
            return Some(contents);
        }
        self.discard();
        None
    }

    /// Removes a file that this recording made or emptied, unless somebody put another in its place. Pipes, devices
    /// and files still untouched stay.
    pub(crate) fn discard(self) -> Discarded {
        let (file, _) = self.writer.into_parts();
        match self.file {
            Some(output) if output.origin != Origin::Untouched && is_at(&file, &output.path) => {
                match std::fs::remove_file(&output.path) {
                    Ok(()) => Discarded::Removed,
                    Err(_) => Discarded::Left,
                }
            }
            _ => Discarded::Left,
        }
    }
}

/// What an output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Packets, where they can be counted.
    pub(crate) packets: Option<u64>,
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
        opened => opened.map(|file| (file, Origin::Created)),
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

/// Counts the packets of a trace file, reading little more than their lengths. The position of `file` moves.
fn count_packets(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::with_capacity(BUFFER, file);
    let mut packets = 0;
    let mut tag = [0];
    while reader.read(&mut tag)? == 1 {
        if tag[0] != PACKET_TAG {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "something other than packets in the trace",
            ));
        }
        let length = read_varint(&mut reader)?;
        let length = i64::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        reader.seek_relative(length)?;
        packets += 1;
    }
    Ok(packets)
}

fn read_varint(reader: &mut impl Read) -> io::Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
