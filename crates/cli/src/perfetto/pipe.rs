//! An output with a reader: a pipe, a FIFO, a socket, or a terminal.
//!
//! [`output`](super::output) uses it. The reader may come late, be slow, or go away. Writing waits for the reader, but a signal ends the wait: Ctrl-C
//! could not end a process that blocks in a `write`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use ferretto_ipc::reactor::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::session::Writer;
use super::signals::{Interrupted, Wish};

/// The bytes that a ready pipe takes without blocking: `PIPE_BUF`.
const PIECE: usize = 4096;
/// The period at which a wait checks for signals, and for a missing reader.
const SLICE: Duration = Duration::from_millis(100);

/// A pipe to write into, see the [module](self).
#[derive(Debug)]
pub(super) struct Pipe {
    file: File,
    reader: Reader,
    interrupted: Interrupted,
    /// The signals so far.
    heard: Vec<Signal>,
    patience: Patience,
}

/// The limit of waiting for the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Until the same signal comes twice.
    Usual,
    /// The rest was given up, so there is no more waiting.
    None,
}

/// The state of the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// This process has the pipe open for reading, so other readers cannot be noticed.
    Ourselves,
    /// There has been no reader yet.
    Awaited,
    /// There is a reader, or was one.
    Came,
}

impl Pipe {
    /// Wraps a pipe that another process opened and that has a reader.
    pub(super) fn inherited(file: File) -> Pipe {
        Pipe {
            file,
            reader: Reader::Came,
            interrupted: Interrupted::default(),
            heard: Vec::new(),
            patience: Patience::Usual,
        }
    }

    /// Wraps a FIFO that was opened by name for reading and writing, because opening it for writing alone would wait for a reader.
    pub(super) fn named(file: File) -> Pipe {
        Pipe {
            reader: Reader::Ourselves,
            ..Pipe::inherited(file)
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Sets the source of signals.
    pub(super) fn heed(&mut self, interrupted: Interrupted) {
        self.interrupted = interrupted;
    }

    /// Closes the pipe's own reading end, so that a missing reader can be noticed. The service would treat a missing reader as an error, so if it is
    /// the writer, the pipe keeps its reading end until another process reads.
    pub(super) fn stop_reading(&mut self, writer: Writer) {
        // Opening for writing alone does not block here, because this process still reads.
        if self.reader != Reader::Ourselves || self.reopen(File::options().write(true)).is_err() {
            return;
        }
        self.reader = match self.is_read() {
            true => Reader::Came,
            false => Reader::Awaited,
        };
        if self.reader == Reader::Awaited
            && writer == Writer::Service
            && self.reopen(File::options().read(true).write(true)).is_ok()
        {
            self.reader = Reader::Ourselves;
        }
    }

    /// Opens the same pipe again with other options, even if its name now belongs to another file.
    fn reopen(&mut self, options: &mut OpenOptions) -> io::Result<()> {
        let same = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        self.file = options.open(same)?;
        Ok(())
    }

    /// Whether it has not had a reader yet.
    pub(super) fn awaits_reader(&self) -> bool {
        self.reader == Reader::Awaited && !self.is_read()
    }

    /// Whether a process has it open for reading.
    fn is_read(&self) -> bool {
        let events = self.events(Duration::ZERO);
        events.is_ok_and(|events| !events.contains(PollFlags::ERR))
    }

    /// Returns its state once it can be written, or after this time.
    fn events(&self, patience: Duration) -> io::Result<PollFlags> {
        let mut polled = [PollFd::new(&self.file, PollFlags::OUT)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: patience.subsec_nanos().into(),
        };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(polled[0].revents()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it takes data, or fails.
    fn await_room(&mut self) -> io::Result<()> {
        // The recording has already handled earlier signals.
        self.hear();
        loop {
            let events = self.events(SLICE)?;
            let absent = events.contains(PollFlags::ERR) && self.reader == Reader::Awaited;
            if !absent && !events.is_empty() {
                self.reader = Reader::Came;
                return Ok(());
            }
            if self.patience == Patience::None || self.hear() == Wish::Again {
                self.patience = Patience::None;
                return Err(io::Error::other(
                    "nobody takes the rest, and a signal ended the wait",
                ));
            }
            if absent {
                std::thread::sleep(SLICE);
            }
        }
    }

    /// Classifies the signals since the last call. A repeated signal means that the wait should end.
    fn hear(&mut self) -> Wish {
        let mut wish = Wish::Known;
        for signal in self.interrupted.take() {
            match self.heard.contains(&signal) {
                true => wish = Wish::Again,
                false => self.heard.push(signal),
            }
        }
        wish
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.await_room()?;
        (&self.file).write(&bytes[..bytes.len().min(PIECE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
