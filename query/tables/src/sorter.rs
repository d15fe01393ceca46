//! Sorts the events of a trace by time, in bounded memory.
//!
//! The tokenizer pushes encoded events; the import takes them in order. When the events in memory exceed a budget, they are written to a temporary file as a
//! sorted run. At the end all runs are merged.
//!
//! Nothing is sorted that is in order, which nearly everything is: each source of events (a *queue*) keeps its events in a few *piles*, each in order, and piles
//! are merged. Only what fits on no pile is sorted.
//!
//! Events of one time come in the order of the trace processor's sorter: each queue keeps its own order; the queue that had the last event goes on, then the
//! other queues follow by number. Utids and row numbers depend on this order.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// The most events of one time that are put into the order of the trace processor. Beyond, queues come by number.
const MOST_AT_ONCE: usize = 1 << 16;
/// The bytes of a run that are read at once.
const BUFFER: usize = 64 << 10;
/// The most piles of a queue. As many sequences can write events that come in turns.
const MOST_PILES: usize = 8;
/// The bytes of a pile that are allocated at once.
const CHUNK: usize = 32 << 10;
/// Events up to this size, header included, are short. A chunk is full when it has no room for another short event, so that only longer ones make it grow.
const SHORT: usize = 32;
/// The room for short events that is made at once.
const ROOM: usize = 1 << 10;
/// Time and length in front of each event.
const HEADER: usize = 12;
/// Queue, time and length in front of each event of a run.
const RUN_HEADER: usize = 4 + HEADER;
/// What the place of an event takes while it is sorted.
const PLACE: usize = size_of::<(i64, &[u8])>() * 3 / 2;

/// A sorted event.
#[derive(Debug)]
pub(crate) struct Sorted<'a> {
    pub(crate) ts: i64,
    pub(crate) queue: u32,
    pub(crate) event: &'a [u8],
}

/// Events behind each other, each with its time and length in front.
#[derive(Debug)]
struct Pile {
    /// The time of the last event.
    last: i64,
    full: Vec<Vec<u8>>,
    /// The chunk that events are added to.
    tail: Vec<u8>,
    /// The bytes of `tail` that are events. Behind them is room for short ones, if there is any.
    used: usize,
}

impl Pile {
    fn new() -> Pile {
        Pile {
            last: i64::MIN,
            full: Vec::new(),
            tail: Vec::new(),
            used: 0,
        }
    }

    /// Adds the event that `encode` appends. Returns how many bytes were allocated.
    #[inline]
    fn push(&mut self, ts: i64, encode: impl FnOnce(&mut Vec<u8>)) -> usize {
        self.last = ts;
        let mut allocated = 0;
        if self.tail.capacity() - self.used < SHORT {
            allocated = self.begin_chunk();
        }
        let chunk = &mut self.tail;
        let capacity = chunk.capacity();
        chunk.truncate(self.used);
        chunk.extend_from_slice(&header(ts, 0));
        encode(chunk);
        let len = chunk.len() - self.used - HEADER;
        chunk[self.used..][..HEADER].copy_from_slice(&header(ts, len));
        self.used = chunk.len();
        allocated + chunk.capacity() - capacity
    }

    /// Adds a short event, in a place of fixed size.
    #[inline(always)]
    fn push_short<const N: usize>(&mut self, ts: i64, event: [u8; N]) -> usize {
        const { assert!(HEADER + N <= SHORT) };
        self.last = ts;
        let mut allocated = 0;
        if self.tail.len() - self.used < SHORT {
            allocated = self.make_room();
        }
        if let Some(place) = self.tail[self.used..].first_chunk_mut::<SHORT>() {
            place[..HEADER].copy_from_slice(&header(ts, N));
            place[HEADER..][..N].copy_from_slice(&event);
            self.used += HEADER + N;
        }
        allocated
    }

    /// Makes room for short events. Returns how many bytes were allocated.
    #[cold]
    fn make_room(&mut self) -> usize {
        let mut allocated = 0;
        if self.tail.capacity() - self.used < SHORT {
            allocated = self.begin_chunk();
        }
        // A little at a time, which stays in the cache until it is written.
        let room = self.used + ROOM;
        self.tail.resize(room.min(self.tail.capacity()), 0);
        allocated
    }

    #[cold]
    fn begin_chunk(&mut self) -> usize {
        let mut full = std::mem::replace(&mut self.tail, Vec::with_capacity(CHUNK));
        full.truncate(std::mem::take(&mut self.used));
        if !full.is_empty() {
            self.full.push(full);
        }
        CHUNK
    }

    fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let full = self.full.iter().map(Vec::as_slice);
        full.chain([&self.tail[..self.used]])
    }

    fn events(&self) -> impl Iterator<Item = (i64, &[u8])> {
        self.chunks()
            .flat_map(|mut rest| std::iter::from_fn(move || split_event(&mut rest)))
    }
}

/// What is in front of an event.
#[inline]
fn header(ts: i64, len: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&ts.to_le_bytes());
    header[8..].copy_from_slice(&(len as u32).to_le_bytes());
    header
}

/// Takes an event off.
#[inline]
fn split_event<'a>(from: &mut &'a [u8]) -> Option<(i64, &'a [u8])> {
    let (ts, rest) = from.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (event, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *from = rest;
    Some((i64::from_le_bytes(*ts), event))
}

/// The events of one source.
#[derive(Debug, Default)]
struct Queue {
    /// Each in order. An event goes on the first pile whose last event is not later. So of two events of one time the later is on the same pile or on one
    /// behind.
    piles: Vec<Pile>,
    /// What was earlier than the ends of all piles, in no order.
    rest: Option<Pile>,
}

impl Queue {
    /// Adds an event, which `push` adds to a pile and returns how many bytes were allocated. Returns how many bytes it will take.
    #[inline]
    fn push(&mut self, ts: i64, push: impl FnOnce(&mut Pile) -> usize) -> usize {
        if let Some(pile) = self.piles.iter_mut().find(|pile| pile.last <= ts) {
            return push(pile);
        }
        if self.piles.len() < MOST_PILES {
            self.piles.push(Pile::new());
            return self.piles.last_mut().map_or(0, push);
        }
        let rest = self.rest.get_or_insert_with(Pile::new);
        // Sorting makes a second pile of it.
        2 * push(rest) + PLACE
    }

    /// Makes the rest the last pile.
    fn sort(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        let mut events: Vec<(i64, &[u8])> = rest.events().collect();
        events.sort_by_key(|event| event.0);
        let mut sorted = Pile::new();
        for (ts, event) in events {
            sorted.push(ts, |to| to.extend_from_slice(event));
        }
        self.piles.push(sorted);
    }
}

/// Events on their way into order.
pub(crate) struct Sorter {
    budget: usize,
    /// The bytes that `queues` have.
    held: usize,
    queues: Vec<Queue>,
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
            held: 0,
            queues: Vec::new(),
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

    /// Adds the event that `encode` appends. Numbers of queues are small.
    #[inline]
    pub(crate) fn push(&mut self, ts: i64, queue: u32, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.push_with(ts, queue, |pile| pile.push(ts, encode))
    }

    /// Adds a short event.
    #[inline]
    pub(crate) fn push_short<const N: usize>(
        &mut self,
        ts: i64,
        queue: u32,
        event: [u8; N],
    ) -> io::Result<()> {
        self.push_with(ts, queue, |pile| pile.push_short(ts, event))
    }

    #[inline]
    fn push_with(&mut self, ts: i64, queue: u32, push: impl FnOnce(&mut Pile) -> usize) -> io::Result<()> {
        if ts < 0 {
            self.negative += 1;
            return Ok(());
        }
        let queue = queue as usize;
        if queue >= self.queues.len() {
            self.queues.resize_with(queue + 1, Queue::default);
        }
        self.held += self.queues[queue].push(ts, push);
        self.max_ts = self.max_ts.max(ts);
        if self.held > self.budget {
            self.spill()?;
        }
        Ok(())
    }

    /// Passes the events in memory to `visit`, by time and queue, and forgets them.
    fn drain<E: From<io::Error>>(
        &mut self,
        visit: impl FnMut(i64, u32, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.held = 0;
        let mut queues = std::mem::take(&mut self.queues);
        queues.iter_mut().for_each(Queue::sort);
        let piles = (0..).zip(&queues).flat_map(|(number, queue)| {
            queue.piles.iter().map(move |pile| PileReader {
                queue: number,
                ts: None,
                chunks: pile.chunks().collect::<Vec<_>>().into_iter(),
                rest: &[],
                event: &[],
            })
        });
        merge(piles.collect(), visit)
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut runs = match self.runs.take() {
            Some(runs) => runs,
            None => Runs {
                file: tempfile::tempfile()?,
                bounds: Vec::new(),
            },
        };
        let begin = runs.bounds.last().map_or(0, |(_, end)| *end);
        let mut end = begin;
        let mut writer = BufWriter::with_capacity(1 << 20, &runs.file);
        self.drain(|ts, queue, event| {
            let mut header = [0; RUN_HEADER];
            header[..4].copy_from_slice(&queue.to_le_bytes());
            header[4..12].copy_from_slice(&ts.to_le_bytes());
            header[12..].copy_from_slice(&(event.len() as u32).to_le_bytes());
            writer.write_all(&header)?;
            writer.write_all(event)?;
            end += (RUN_HEADER + event.len()) as u64;
            io::Result::Ok(())
        })?;
        writer.flush()?;
        drop(writer);
        runs.bounds.push((begin, end));
        self.runs = Some(runs);
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
            self.drain(|ts, queue, event| order.take(ts, queue, event))?;
            return order.flush();
        }
        self.spill()?;
        let Some(Runs { file, bounds }) = self.runs.take() else {
            return Ok(());
        };
        let runs = bounds.iter().map(|(begin, end)| Run::new(&file, *begin, *end));
        merge(runs.collect(), |ts, queue, event| order.take(ts, queue, event))?;
        order.flush()
    }
}

/// Events by time and queue.
trait Source {
    /// Goes to the next event.
    fn advance(&mut self) -> io::Result<()>;

    /// Returns the time and the queue of the event; `None` at the end.
    fn time(&self) -> Option<(i64, u32)>;

    /// The event.
    fn event(&self) -> &[u8];
}

/// The events of all sources that are next, as a tree of matches: the sources are its leaves, and each place below the first has the head that lost there.
///
/// A *head* is one number that says what comes first: time, queue, source.
struct Heads {
    first: u128,
    losers: Vec<u128>,
}

impl Heads {
    /// The head of a source that has ended.
    const END: u128 = u128::MAX;

    fn new(sources: &[impl Source]) -> Heads {
        let mut losers = vec![Heads::END; sources.len()];
        let heads = sources.iter().enumerate();
        let heads = heads.map(|(number, source)| Heads::head(source.time(), number));
        let mut winners: Vec<u128> = losers.iter().copied().chain(heads).collect();
        for place in (1..losers.len()).rev() {
            let (one, other) = (winners[2 * place], winners[2 * place + 1]);
            (winners[place], losers[place]) = (one.min(other), one.max(other));
        }
        Heads {
            first: winners.get(1).copied().unwrap_or(Heads::END),
            losers,
        }
    }

    #[inline]
    fn head(time: Option<(i64, u32)>, source: usize) -> u128 {
        // No time is negative.
        time.map_or(Heads::END, |(ts, queue)| {
            u128::from(ts as u64) << 64 | u128::from(queue) << 32 | source as u128
        })
    }

    /// Returns the source of the first event; `None` if all have ended.
    #[inline]
    fn first(&self) -> Option<usize> {
        (self.first != Heads::END).then_some(self.first as u32 as usize)
    }

    /// Replaces the first event by the next one of its source.
    #[inline]
    fn replace_first(&mut self, source: usize, time: Option<(i64, u32)>) {
        let mut winner = Heads::head(time, source);
        let mut place = (self.losers.len() + source) / 2;
        while place > 0 {
            let loser = &mut self.losers[place];
            // Which is first follows no order where events of several CPUs come in turns, so it decides no branch.
            let exchanged = (winner ^ *loser) & u128::from(*loser < winner).wrapping_neg();
            (winner, *loser) = (winner ^ exchanged, *loser ^ exchanged);
            place /= 2;
        }
        self.first = winner;
    }
}

/// Merges sources. Events of one time and queue come in the order of the sources.
fn merge<S: Source, E: From<io::Error>>(
    mut sources: Vec<S>,
    mut visit: impl FnMut(i64, u32, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    for source in &mut sources {
        source.advance()?;
    }
    let mut heads = Heads::new(&sources);
    while let Some(number) = heads.first() {
        let source = &mut sources[number];
        if let Some((ts, queue)) = source.time() {
            visit(ts, queue, source.event())?;
        }
        source.advance()?;
        heads.replace_first(number, source.time());
    }
    Ok(())
}

/// A pile that is being read.
struct PileReader<'a> {
    queue: u32,
    ts: Option<i64>,
    chunks: std::vec::IntoIter<&'a [u8]>,
    rest: &'a [u8],
    event: &'a [u8],
}

impl Source for PileReader<'_> {
    #[inline]
    fn advance(&mut self) -> io::Result<()> {
        if self.rest.is_empty() {
            self.rest = self.chunks.next().unwrap_or_default();
        }
        let next = split_event(&mut self.rest);
        self.ts = next.map(|(ts, _)| ts);
        self.event = next.map_or(&[], |(_, event)| event);
        Ok(())
    }

    #[inline]
    fn time(&self) -> Option<(i64, u32)> {
        self.ts.map(|ts| (ts, self.queue))
    }

    #[inline]
    fn event(&self) -> &[u8] {
        self.event
    }
}

/// A run that is being read. All share one file, so each says where it reads.
struct Run<'a> {
    reader: BufReader<Part<'a>>,
    time: Option<(i64, u32)>,
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
            time: None,
            event: Vec::new(),
        }
    }
}

impl Source for Run<'_> {
    fn advance(&mut self) -> io::Result<()> {
        self.time = None;
        if self.reader.fill_buf()?.is_empty() {
            return Ok(());
        }
        let mut header = [0; RUN_HEADER];
        self.reader.read_exact(&mut header)?;
        let [q0, q1, q2, q3, ts @ .., l0, l1, l2, l3] = header;
        self.event
            .resize(u32::from_le_bytes([l0, l1, l2, l3]) as usize, 0);
        self.reader.read_exact(&mut self.event)?;
        self.time = Some((i64::from_le_bytes(ts), u32::from_le_bytes([q0, q1, q2, q3])));
        Ok(())
    }

    fn time(&self) -> Option<(i64, u32)> {
        self.time
    }

    fn event(&self) -> &[u8] {
        &self.event
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
    #[inline(always)]
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
