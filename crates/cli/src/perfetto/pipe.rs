//! An output that somebody reads while it is written: a pipe, a FIFO, a socket, a terminal.
//!
//! Called by [`output`](super::output). Its reader may come late, be slow or go away. It is waited for, but not past a signal: a
//! process that sits in a `write` which never returns could not be ended by Ctrl-C.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use ferretto_ipc::reactor::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::session::Writer;
use super::signals::{Interrupted, Wish};

/// As much as a pipe takes without waiting once it is ready: `PIPE_BUF`.
const PIECE: usize = 4096;
/// How often a wait looks for signals, and for a reader that is not there yet.
const SLICE: Duration = Duration::from_millis(100);

/// A pipe to write into, see the [module](self).
#[derive(Debug)]
pub(super) struct Pipe {
    file: File,
    reader: Reader,
    interrupted: Interrupted,
    /// Signals that came.
    heard: Vec<Signal>,
    patience: Patience,
}

/// How much of a wait for the reader there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Until the same signal comes twice.
    Usual,
    /// The rest was given up: nothing is waited for any more.
    None,
}

/// What is known of the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// We have it open for reading ourselves, so that nothing is known of others.
    Ourselves,
    /// There was none so far.
    Awaited,
    /// There is one, or was.
    Came,
}

impl Pipe {
    /// One that was opened by somebody else, who has a reader for it.
    pub(super) fn inherited(file: File) -> Pipe {
        Pipe {
            file,
            reader: Reader::Came,
            interrupted: Interrupted::default(),
            heard: Vec::new(),
            patience: Patience::Usual,
        }
    }

    /// One that was opened by its name, for reading as well, lest that wait for a reader. As long as that lasts it has one: ourselves.
    pub(super) fn named(file: File) -> Pipe {
        Pipe {
            reader: Reader::Ourselves,
            ..Pipe::inherited(file)
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whom to ask for signals.
    pub(super) fn heed(&mut self, interrupted: Interrupted) {
        self.interrupted = interrupted;
    }

    /// Stops being its own reader, so that the absence of others shows. The service would take that for an error: it is left as it
    /// was for a service to write into until somebody reads.
    pub(super) fn stop_reading(&mut self, writer: Writer) {
        // Opened for writing alone it would wait for a reader, were we not one still.
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

    /// Opens the same pipe once more, whatever bears its name by now, in place of what is open.
    fn reopen(&mut self, options: &mut OpenOptions) -> io::Result<()> {
        let same = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        self.file = options.open(same)?;
        Ok(())
    }

    /// Whether nobody reads it yet.
    pub(super) fn awaits_reader(&self) -> bool {
        self.reader == Reader::Awaited && !self.is_read()
    }

    /// Whether somebody has it open for reading.
    fn is_read(&self) -> bool {
        let events = self.events(Duration::ZERO);
        events.is_ok_and(|events| !events.contains(PollFlags::ERR))
    }

    /// Its state, once it can be written, or at the end of this time.
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

    /// Waits until it takes something, or fails.
    fn await_room(&mut self) -> io::Result<()> {
        // What came before is answered by the recording.
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

    /// What the signals mean that came since this was last asked. Each of them counts once for as long as a wait may look.
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
