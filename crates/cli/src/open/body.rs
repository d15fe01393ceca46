//! The body of an answer: bytes of a file, or the content of a compressed file.
//!
//! [`subject`](super::subject) and [`site`](super::site) make it, [`exhibition`](super::exhibition) sends it. Only one piece is in memory, because
//! the kernel moves a file's bytes (`sendfile`) and compressed files are expanded while they are sent. A body has the announced length, or is cut off
//! so that the browser notices.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use rustix::io::Errno;

use crate::http::Browser;
use ferretto_trace_file::{Broken, Compression, expanding};

/// The bytes that are expanded at a time.
const PIECE: usize = 64 << 10;

/// A resource that a browser can request.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) media_type: &'static str,
    /// Its size in bytes; `None` if only expanding it shows the size.
    pub(super) size: Option<u64>,
    pub(super) contents: Contents,
}

/// The source of a resource's bytes.
#[derive(Debug)]
pub(super) enum Contents {
    /// A whole file.
    Whole(Rc<File>),
    /// A part of a file.
    Part(Rc<File>, Range<u64>),
    /// A deflated part of a file, as in zip archives.
    Inflated(Rc<File>, Range<u64>),
    /// A compressed file.
    Expanded(Rc<File>, Compression),
}

impl Resource {
    /// Starts a body with its contents.
    pub(super) fn body(&self) -> io::Result<Body> {
        Ok(match &self.contents {
            Contents::Whole(file) => Body::File {
                file: file.clone(),
                left: 0..self.size.unwrap_or(0),
            },
            Contents::Part(file, range) => Body::File {
                file: file.clone(),
                left: range.clone(),
            },
            Contents::Inflated(file, range) => {
                let size = self.size.unwrap_or(0);
                let inflated = inflated(file, range).take(size);
                Body::Stream(Stream::new(Box::new(inflated), Framing::Exactly(size)))
            }
            Contents::Expanded(file, compression) => {
                let expanded = expanding(*compression, At::new(file, 0))?;
                Body::Stream(Stream::new(expanded, Framing::Chunked))
            }
        })
    }
}

impl Resource {
    /// Reads its beginning, up to `most` bytes.
    pub(super) fn read_beginning(&self, most: u64, into: &mut Vec<u8>) -> io::Result<()> {
        match &self.contents {
            Contents::Whole(file) => At::new(file, 0).take(most).read_to_end(into)?,
            Contents::Part(file, range) => part(file, range).take(most).read_to_end(into)?,
            Contents::Inflated(file, range) => inflated(file, range).take(most).read_to_end(into)?,
            Contents::Expanded(file, compression) => expanding(*compression, At::new(file, 0))?
                .take(most)
                .read_to_end(into)?,
        };
        Ok(())
    }
}

fn part(file: &Rc<File>, range: &Range<u64>) -> impl Read + use<> {
    At::new(file, range.start).take(range.end - range.start)
}

fn inflated(file: &Rc<File>, range: &Range<u64>) -> impl Read + use<> {
    flate2::read::DeflateDecoder::new(part(file, range))
}

/// Reads a file from an offset of its own, independently of other readers.
#[derive(Debug)]
pub(super) struct At {
    file: Rc<File>,
    offset: u64,
}

impl At {
    pub(super) fn new(file: &Rc<File>, offset: u64) -> At {
        At {
            file: file.clone(),
            offset,
        }
    }
}

impl Read for At {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// The part of a body that has not been sent.
pub(super) enum Body {
    File { file: Rc<File>, left: Range<u64> },
    Stream(Stream),
}

/// The result of a turn of sending.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The socket takes no more now, or the turn is over.
    Paused,
    All,
    /// The source is damaged, for this reason. All bytes before the damage were sent.
    Broken(String),
    /// The browser hung up.
    HungUp,
    /// The file ended too early.
    Shrunk,
    Unreadable(String),
}

impl Body {
    /// Sends the rest of the head, then as much as the socket takes, up to about `turn` bytes. Adds the number of sent content bytes to `count`.
    pub(super) fn send(&mut self, browser: &mut Browser, turn: usize, count: &mut u64) -> Sent {
        if let Err(error) = browser.flush() {
            return stopped(&error);
        }
        match self {
            Body::File { file, left } => send_file(browser, file, left, turn, count),
            Body::Stream(body) => body.send(browser, turn, count),
        }
    }
}

/// Interprets an error of a socket.
fn stopped(error: &io::Error) -> Sent {
    match error.kind() {
        ErrorKind::WouldBlock => Sent::Paused,
        _ => Sent::HungUp,
    }
}

fn send_file(browser: &Browser, file: &File, left: &mut Range<u64>, turn: usize, count: &mut u64) -> Sent {
    let mut left_of_turn = turn;
    while !left.is_empty() {
        if left_of_turn == 0 {
            return Sent::Paused;
        }
        let most = usize::try_from(left.end - left.start).unwrap_or(usize::MAX);
        match rustix::fs::sendfile(browser, file, Some(&mut left.start), most.min(left_of_turn)) {
            Ok(0) => return Sent::Shrunk,
            Ok(sent) => {
                left_of_turn -= sent;
                *count += sent as u64;
            }
            Err(Errno::AGAIN) => return Sent::Paused,
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::TIMEDOUT) => return Sent::HungUp,
            Err(error) => return Sent::Unreadable(error.to_string()),
        }
    }
    Sent::All
}

/// The way in which the browser finds the end of a body.
#[derive(Debug, Clone, Copy)]
enum Framing {
    /// By the announced length, of which this is left.
    Exactly(u64),
    /// By chunks: each piece begins with its length, and an empty one is the last (RFC 9112, section 7.1).
    Chunked,
}

/// A body whose bytes are produced while it is sent.
pub(super) struct Stream {
    source: Box<dyn Read>,
    framing: Framing,
    /// The piece that is being sent, and the number of its bytes that have been sent.
    piece: Vec<u8>,
    at: usize,
    ended: Option<Sent>,
}

impl Stream {
    fn new(source: Box<dyn Read>, framing: Framing) -> Stream {
        Stream {
            source,
            framing,
            piece: Vec::new(),
            at: 0,
            ended: None,
        }
    }

    fn send(&mut self, browser: &mut Browser, turn: usize, count: &mut u64) -> Sent {
        let mut left_of_turn = turn;
        loop {
            while self.at < self.piece.len() {
                match browser.write(&self.piece[self.at..]) {
                    Ok(sent) => {
                        self.at += sent;
                        left_of_turn = left_of_turn.saturating_sub(sent);
                    }
                    Err(error) => return stopped(&error),
                }
            }
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            if left_of_turn == 0 {
                return Sent::Paused;
            }
            *count += self.next_piece() as u64;
        }
    }

    /// Makes the next piece; returns the number of content bytes in it.
    fn next_piece(&mut self) -> usize {
        let mut bytes = vec![0; PIECE];
        let read = loop {
            match self.source.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let length = match read {
            Ok(length) => length,
            Err(error) => {
                self.ended = Some(match Broken::of(error) {
                    Ok(broken) => Sent::Broken(broken.to_string()),
                    Err(error) => Sent::Unreadable(error.to_string()),
                });
                0
            }
        };
        bytes.truncate(length);
        self.at = 0;
        match &mut self.framing {
            Framing::Exactly(left) => {
                *left -= length as u64;
                if length == 0 && self.ended.is_none() {
                    self.ended = Some(match *left {
                        0 => Sent::All,
                        _ => Sent::Shrunk,
                    });
                }
                self.piece = bytes;
            }
            Framing::Chunked => {
                if length == 0 && self.ended.is_none() {
                    self.ended = Some(Sent::All);
                }
                let tail = match &self.ended {
                    // The missing last chunk shows the browser that the body is incomplete.
                    Some(Sent::Unreadable(_)) => {
                        self.piece.clear();
                        return 0;
                    }
                    _ => b"\r\n",
                };
                self.piece = format!("{length:x}\r\n").into_bytes();
                self.piece.append(&mut bytes);
                self.piece.extend_from_slice(tail);
            }
        }
        length
    }
}
