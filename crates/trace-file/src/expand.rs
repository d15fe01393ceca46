//! Expands files that are compressed as a whole with gzip, zstd or xz, recognised by their first bytes.
//!
//! [`Input`](super::Input) uses it. Memory holds a buffer and the window of the format, at most [`MOST_MEMORY`], regardless of the file's claims and
//! of its expanded size. Consecutive members, as `cat` and compressors with several threads make them, become one stream. All data that can be
//! expanded come out. Then, if the file is damaged, cut off or needs too much memory, comes a [`Broken`] with the offset. The libraries are driven
//! buffer by buffer, because their readers drop data before an error.
//!
//! For xz that is `lzma-rust2`: pure Rust, without `unsafe` in its decoder, and the only such library that bounds memory and can be driven this way.
//! `liblzma` is faster, but adds another C library.

use std::fmt;
use std::io::{self, Read};

use zstd::stream::raw::Operation;

#[cfg(test)]
mod tests;

/// The bytes that are read at once.
const BUFFER: usize = 64 << 10;
/// The most memory for the window. `xz -9` needs 64 MB, `zstd --ultra -22` and `zstd --long` 128 MB.
const MOST_MEMORY: u64 = 192 << 20;
/// The largest window of zstd, as a power of two.
const ZSTD_WINDOW_LOG: u32 = 27;
/// The bytes of a zstd frame with which its decoder can tell how many it needs next.
const ZSTD_FIRST: usize = 5;

/// The compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// As `gzip` makes it.
    Gzip,
    /// As `zstd` makes it.
    Zstd,
    /// As `xz` makes it.
    Xz,
}

impl Compression {
    /// The bytes that are enough to recognise a compression.
    pub(crate) const LONGEST_MAGIC: usize = 6;

    /// Returns the compression of a file that begins with these bytes.
    pub fn of(head: &[u8]) -> Option<Compression> {
        match head {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            // The second pattern is a skippable frame, which some compressors put first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Compression::Xz),
            _ => None,
        }
    }

    /// Returns the name of the program for this compression.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Xz => "xz",
        }
    }

    fn engine(self) -> io::Result<Box<dyn Engine>> {
        Ok(match self {
            Compression::Gzip => Box::new(flate2::Decompress::new_gzip(15)),
            Compression::Zstd => {
                let mut decoder = zstd::stream::raw::Decoder::new()?;
                decoder.set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
                Box::new(Zstd {
                    decoder,
                    wanted: ZSTD_FIRST,
                })
            }
            Compression::Xz => Box::new(lzma_rust2::XzStream::new_mem_limit(
                false,
                (MOST_MEMORY >> 10) as u32,
            )),
        })
    }
}

/// The reason why a compressed file cannot be expanded any further. It is the source of an [`io::Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    compression: Compression,
    /// The offset in the compressed file.
    offset: u64,
    fault: Fault,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    /// The file ends too early.
    Cut,
    /// The data are invalid. The libraries' messages are dropped, because they depend on buffer sizes.
    Damaged,
    /// Expanding needs more memory than [`MOST_MEMORY`].
    TooLarge,
    /// The system has less memory than expanding needs.
    NoMemory,
    /// Other data follow the compressed data.
    Followed,
}

impl Broken {
    /// Returns the fault that an error has as its source.
    ///
    /// # Errors
    /// The error itself, if it has another source.
    pub fn of(error: io::Error) -> io::Result<Broken> {
        error.downcast::<Broken>()
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, offset) = (self.compression.name(), self.offset);
        match &self.fault {
            Fault::Cut => write!(
                f,
                "the file's {name} data end too early, at byte {offset} of the file: cut off, or still being written"
            ),
            Fault::Damaged => write!(
                f,
                "the file's {name} data are damaged at byte {offset} of the file"
            ),
            Fault::TooLarge => write!(
                f,
                "the file's {name} data at byte {offset} of the file need more than {} MB of memory; expand them with {}",
                MOST_MEMORY >> 20,
                match self.compression {
                    Compression::Zstd => "`zstd -d --long=31`",
                    Compression::Xz | Compression::Gzip => "`xz -d`",
                }
            ),
            Fault::NoMemory => write!(
                f,
                "there is too little memory to expand the file's {name} data at byte {offset} of the file; free some, or raise this \
                 process's limit"
            ),
            Fault::Followed => write!(
                f,
                "behind the file's {name} data, from byte {offset} of the file on, is something else"
            ),
        }
    }
}

impl std::error::Error for Broken {}

/// The result of one call of a library.
struct Step {
    consumed: usize,
    produced: usize,
    outcome: Outcome,
}

enum Outcome {
    More,
    /// The compressed data are complete.
    End,
    Broken(Fault),
}

/// A library's state within compressed data.
trait Engine {
    /// Expands more. An empty `input` means that no more will come.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step;
}

impl Engine for flate2::Decompress {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step {
        let (before_in, before_out) = (self.total_in(), self.total_out());
        let outcome = match self.decompress(input, output, flate2::FlushDecompress::None) {
            Ok(flate2::Status::StreamEnd) => Outcome::End,
            Ok(flate2::Status::Ok | flate2::Status::BufError) => Outcome::More,
            Err(_) => Outcome::Broken(Fault::Damaged),
        };
        Step {
            consumed: (self.total_in() - before_in) as usize,
            produced: (self.total_out() - before_out) as usize,
            outcome,
        }
    }
}

struct Zstd {
    decoder: zstd::stream::raw::Decoder<'static>,
    /// The bytes that the decoder needs next: a header or a block. After an error in a later block, the library would drop the contents of earlier
    /// ones in the same call.
    wanted: usize,
}

impl Engine for Zstd {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step {
        let input = &input[..input.len().min(self.wanted)];
        match self.decoder.run_on_buffers(input, output) {
            Ok(status) => {
                // After a part of these bytes, the decoder asks for the rest.
                self.wanted = status.remaining.max(1);
                Step {
                    consumed: status.bytes_read,
                    produced: status.bytes_written,
                    outcome: match status.remaining {
                        0 => Outcome::End,
                        _ => Outcome::More,
                    },
                }
            }
            Err(error) => Step {
                consumed: 0,
                produced: 0,
                outcome: Outcome::Broken(zstd_fault(&error)),
            },
        }
    }
}

/// Tells the library's errors apart, which differ only in their text.
fn zstd_fault(error: &io::Error) -> Fault {
    let text = error.to_string();
    if text.contains("too much memory") {
        Fault::TooLarge
    } else if text.contains("not enough memory") {
        Fault::NoMemory
    } else {
        Fault::Damaged
    }
}

impl Engine for lzma_rust2::XzStream {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Step {
        let (before_in, before_out) = (self.total_in(), self.total_out());
        let action = match input.is_empty() {
            true => lzma_rust2::Action::Finish,
            false => lzma_rust2::Action::Run,
        };
        let outcome = match self.process(input, output, action) {
            Ok(result) => match result.status {
                lzma_rust2::Status::StreamEnd => Outcome::End,
                lzma_rust2::Status::Ok => Outcome::More,
            },
            Err(error) => Outcome::Broken(match error.kind() {
                io::ErrorKind::UnexpectedEof => Fault::Cut,
                io::ErrorKind::OutOfMemory => Fault::TooLarge,
                _ => Fault::Damaged,
            }),
        };
        Step {
            consumed: (self.total_in() - before_in) as usize,
            produced: (self.total_out() - before_out) as usize,
            outcome,
        }
    }
}

/// The expanded contents of a compressed file.
pub(crate) struct Expanding<R> {
    compression: Compression,
    source: R,
    buffer: Box<[u8]>,
    /// The part of the buffer that has been read and not yet expanded.
    start: usize,
    end: usize,
    /// The offset of `start` in the file.
    offset: u64,
    /// Whether the source has ended.
    is_over: bool,
    state: State,
}

enum State {
    /// Within compressed data.
    Inside(Box<dyn Engine>),
    /// After a member; others may follow.
    Between,
    Over,
    Broken(Broken),
}

impl<R: Read> Expanding<R> {
    /// Reads a file that begins with the mark of this compression.
    pub(crate) fn new(compression: Compression, source: R) -> io::Result<Expanding<R>> {
        Ok(Expanding {
            compression,
            source,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            offset: 0,
            is_over: false,
            state: State::Inside(compression.engine()?),
        })
    }

    /// Reads until `wanted` bytes are there, or the source ends.
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        while self.end - self.start < wanted && !self.is_over {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            match self.source.read(&mut self.buffer[self.end..])? {
                0 => self.is_over = true,
                count => self.end += count,
            }
        }
        Ok(())
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    fn break_off(&mut self, fault: Fault) {
        self.state = State::Broken(Broken {
            compression: self.compression,
            offset: self.offset,
            fault,
        });
    }

    /// Checks what follows a member: another member, nothing, or zeros that fill up a tape or disk.
    fn look_behind(&mut self) -> io::Result<()> {
        self.fill(Compression::LONGEST_MAGIC)?;
        let rest = &self.buffer[self.start..self.end];
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        if rest.is_empty() {
            self.state = State::Over;
        } else if zeros > 0 {
            self.consume(zeros);
        } else if Compression::of(rest) == Some(self.compression) {
            self.state = State::Inside(self.compression.engine()?);
        } else {
            self.break_off(Fault::Followed);
        }
        Ok(())
    }
}

impl<R: Read> Read for Expanding<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            match &mut self.state {
                State::Over => return Ok(0),
                State::Broken(broken) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, broken.clone()));
                }
                State::Between => self.look_behind()?,
                State::Inside(_) => {
                    self.fill(1)?;
                    let State::Inside(engine) = &mut self.state else {
                        continue;
                    };
                    let input = &self.buffer[self.start..self.end];
                    let Step {
                        consumed,
                        produced,
                        outcome,
                    } = engine.step(input, out);
                    let (stuck, dry) = (consumed == 0 && produced == 0, input.is_empty());
                    self.consume(consumed);
                    match outcome {
                        Outcome::End => self.state = State::Between,
                        Outcome::Broken(fault) => self.break_off(fault),
                        Outcome::More if stuck && dry => self.break_off(Fault::Cut),
                        Outcome::More if stuck => self.break_off(Fault::Damaged),
                        Outcome::More => {}
                    }
                    if produced > 0 {
                        return Ok(produced);
                    }
                }
            }
        }
    }
}
