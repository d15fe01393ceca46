//! Sorts the events of a trace by time, in bounded memory.
//!
//! The tokenizer pushes encoded events; the import takes them in order. When the events in memory exceed a budget, they are sorted and written to a temporary
//! file as a run. At the end all runs are merged.
//!
//! Events of one time come in the order of the trace processor's sorter: each source of events (a *queue*) keeps its own order; the queue that had the last
//! event goes on, then the other queues follow by number. Utids and row numbers depend on this order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// The most events of one time that are put into the order of the trace processor. Beyond, queues come by number.
const MOST_AT_ONCE: usize = 1 << 16;
/// The bytes of a run that are read at once.
const BUFFER: usize = 64 << 10;
/// Time, queue and length in front of each event in a run.
const HEADER: usize = 16;

/// A place in the order of events.
#[derive(Debug, Clone, Copy)]
struct Key {
    ts: i64,
    queue: u32,
    len: u32,
    offset: usize,
}

/// A sorted event.
#[derive(Debug)]
pub(crate) struct Sorted<'a> {
    pub(crate) ts: i64,
    pub(crate) queue: u32,
    pub(crate) event: &'a [u8],
}

/// Events on their way into order.
pub(crate) struct Sorter {
    budget: usize,
    keys: Vec<Key>,
    events: Vec<u8>,
    runs: Option<Runs>,
    max_ts: i64,
    /// Events before time 0, which do not exist.
    negative: u64,
}

struct Runs {
    file: File,
    /// Where each run begins, and where it ends.
    bounds: Vec<(u64, u64)>,
}

impl Sorter {
    /// Sorts with about this much memory.
    pub(crate) fn new(budget: usize) -> Sorter {
        Sorter {
            budget,
            keys: Vec::new(),
            events: Vec::new(),
            runs: None,
            max_ts: 0,
            negative: 0,
        }
    }

    /// Returns the latest time so far; 0 if there is none.
    pub(crate) fn max_ts(&self) -> i64 {
        self.max_ts
    }

    /// Returns how many events were left out because their time is negative.
    pub(crate) fn negative(&self) -> u64 {
        self.negative
    }

    /// Adds the event that `encode` appends.
    #[inline]
    pub(crate) fn push(&mut self, ts: i64, queue: u32, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        if ts < 0 {
            self.negative += 1;
            return Ok(());
        }
        let offset = self.events.len();
        encode(&mut self.events);
        let len = (self.events.len() - offset) as u32;
        self.keys.push(Key {
            ts,
            queue,
            len,
            offset,
        });
        self.max_ts = self.max_ts.max(ts);
        // Sorting needs room for half of the keys once more.
        if self.events.len() + self.keys.len() * (size_of::<Key>() * 3 / 2) > self.budget {
            self.spill()?;
        }
        Ok(())
    }

    fn sort(&mut self) {
        // Stable, so events of one time and queue keep their order. The sort finds stretches that are in order, which most are.
        self.keys.sort_by_key(|key| (key.ts, key.queue));
    }

    fn spill(&mut self) -> io::Result<()> {
        self.sort();
        let runs = match &mut self.runs {
            Some(runs) => runs,
            None => self.runs.insert(Runs {
                file: tempfile::tempfile()?,
                bounds: Vec::new(),
            }),
        };
        let begin = runs.bounds.last().map_or(0, |(_, end)| *end);
        let mut end = begin;
        let mut writer = BufWriter::with_capacity(1 << 20, &runs.file);
        for key in &self.keys {
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(&key.ts.to_le_bytes());
            header[8..12].copy_from_slice(&key.queue.to_le_bytes());
            header[12..].copy_from_slice(&key.len.to_le_bytes());
            writer.write_all(&header)?;
            writer.write_all(&self.events[key.offset..][..key.len as usize])?;
            end += (HEADER + key.len as usize) as u64;
        }
        writer.flush()?;
        drop(writer);
        runs.bounds.push((begin, end));
        self.keys.clear();
        self.events.clear();
        Ok(())
    }

    /// Passes all events to `visit`, in order.
    ///
    /// # Errors
    /// If the temporary file cannot be written or read, or whatever `visit` fails with.
    pub(crate) fn finish<E: From<io::Error>>(
        mut self,
        visit: impl FnMut(Sorted<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut order = Order {
            visit,
            last: 0,
            lead: 0,
            ts: i64::MIN,
            delayed: Vec::new(),
            delayed_events: Vec::new(),
        };
        if self.runs.is_none() {
            self.sort();
            for key in &self.keys {
                order.take(key.ts, key.queue, &self.events[key.offset..][..key.len as usize])?;
            }
            return order.flush();
        }
        self.spill()?;
        let Some(Runs { file, bounds }) = self.runs.take() else {
            return Ok(());
        };
        self.events = Vec::new();
        self.keys = Vec::new();
        let mut readers: Vec<Run<'_>> = bounds
            .iter()
            .map(|(begin, end)| Run::new(&file, *begin, *end))
            .collect();
        let mut heads = BinaryHeap::new();
        for (number, run) in readers.iter_mut().enumerate() {
            if let Some((ts, queue)) = run.advance()? {
                heads.push(Reverse((ts, queue, number)));
            }
        }
        while let Some(Reverse((ts, queue, number))) = heads.pop() {
            let run = &mut readers[number];
            order.take(ts, queue, &run.event)?;
            if let Some((ts, queue)) = run.advance()? {
                heads.push(Reverse((ts, queue, number)));
            }
        }
        order.flush()
    }
}

/// A run that is being read. All share one file, so each says where it reads.
struct Run<'a> {
    reader: BufReader<Part<'a>>,
    event: Vec<u8>,
}

struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = (self.end - self.at).min(buffer.len() as u64) as usize;
        self.file.seek(SeekFrom::Start(self.at))?;
        let count = self.file.read(&mut buffer[..wanted])?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<'a> Run<'a> {
    fn new(file: &'a File, at: u64, end: u64) -> Run<'a> {
        Run {
            reader: BufReader::with_capacity(BUFFER, Part { file, at, end }),
            event: Vec::new(),
        }
    }

    /// Reads the next event. Returns its time and queue; `None` at the end.
    fn advance(&mut self) -> io::Result<Option<(i64, u32)>> {
        let mut header = [0; HEADER];
        match self.reader.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let ts = u64::from(word(0)) | u64::from(word(4)) << 32;
        self.event.resize(word(12) as usize, 0);
        self.reader.read_exact(&mut self.event)?;
        Ok(Some((ts as i64, word(8))))
    }
}

/// Puts events of one time, which come by queue, into the order of the trace processor.
struct Order<F> {
    visit: F,
    ts: i64,
    /// The queue of the last event.
    last: u32,
    /// The queue whose events of this time come first.
    lead: u32,
    /// The events of this time whose queues come before `lead`, by queue and length.
    delayed: Vec<(u32, usize)>,
    delayed_events: Vec<u8>,
}

impl<F> Order<F> {
    #[inline]
    fn take<E>(&mut self, ts: i64, queue: u32, event: &[u8]) -> Result<(), E>
    where
        F: FnMut(Sorted<'_>) -> Result<(), E>,
    {
        if ts != self.ts {
            self.flush()?;
            self.ts = ts;
            self.lead = self.last;
        }
        if queue != self.lead {
            if queue < self.lead && self.delayed.len() < MOST_AT_ONCE {
                self.delayed.push((queue, event.len()));
                self.delayed_events.extend_from_slice(event);
                return Ok(());
            }
            self.flush()?;
        }
        self.last = queue;
        (self.visit)(Sorted { ts, queue, event })
    }

    /// Passes the delayed events on.
    #[inline]
    fn flush<E>(&mut self) -> Result<(), E>
    where
        F: FnMut(Sorted<'_>) -> Result<(), E>,
    {
        if self.delayed.is_empty() {
            return Ok(());
        }
        let mut at = 0;
        for (queue, len) in self.delayed.drain(..) {
            self.last = queue;
            let event = &self.delayed_events[at..at + len];
            at += len;
            (self.visit)(Sorted {
                ts: self.ts,
                queue,
                event,
            })?;
        }
        self.delayed_events.clear();
        // The next events of this time come after them.
        self.lead = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
