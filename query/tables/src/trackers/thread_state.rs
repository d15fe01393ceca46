//! The state of each thread from moment to moment, and who woke it.
//!
//! A row is written when nothing can change it any more: a running or runnable state when it ends, a blocked one when the thread runs again, because the reason
//! of the block may come in between.

use crate::output::Output;
use crate::rows::{self, Cell};
use crate::schema::{SPURIOUS_SCHED_WAKEUP, THREAD_STATE};
use crate::strings::{StringId, Strings};
use crate::trackers::processes::{IDLE, Utid};

/// Bits of `common_flags`: in an interrupt, in a soft interrupt.
const INTERRUPT: u32 = 0x08 | 0x10;

/// The columns of a row that change after it was made.
const DUR: usize = 2;
const IO_WAIT: usize = 6;
const BLOCKED_FUNCTION: usize = 7;

#[derive(Debug, Clone, Copy)]
struct Row {
    id: i64,
    ts: i64,
    /// `None` if the kernel gave bits that mean nothing.
    state: Option<StringId>,
    /// All columns.
    cells: rows::Row<12>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    last: Option<Row>,
    /// The block before `last`, which has ended but whose reason may still come.
    blocked: Option<Row>,
}

/// Who woke a thread, and where from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waking {
    pub(crate) waker: Utid,
    pub(crate) common_flags: Option<u32>,
}

impl Waking {
    fn irq_context(self) -> Option<bool> {
        self.common_flags.map(|flags| flags & INTERRUPT != 0)
    }
}

/// The states of all threads.
#[derive(Debug)]
pub(crate) struct ThreadStates {
    /// Nothing is followed that nobody reads.
    is_wanted: bool,
    threads: Vec<Thread>,
    running: Option<StringId>,
    runnable: Option<StringId>,
    rows: i64,
    spurious: i64,
}

/// Where rows go.
pub(crate) struct To<'a, 'b> {
    pub(crate) strings: &'a Strings,
    pub(crate) output: &'a mut Output<'b>,
}

impl ThreadStates {
    pub(crate) fn new(strings: &mut Strings, output: &Output<'_>) -> ThreadStates {
        ThreadStates {
            is_wanted: output.wants(&THREAD_STATE) || output.wants(&SPURIOUS_SCHED_WAKEUP),
            threads: Vec::new(),
            running: Some(strings.intern("Running")),
            runnable: Some(strings.intern("R")),
            rows: 0,
            spurious: 0,
        }
    }

    #[inline]
    fn last(&self, utid: Utid) -> Option<&Row> {
        self.threads.get(utid as usize)?.last.as_ref()
    }

    /// Takes in a switch from one thread, now in state `state`, to another.
    #[inline]
    pub(crate) fn switch(
        &mut self,
        ts: i64,
        cpu: u32,
        from: Utid,
        state: Option<StringId>,
        to: Utid,
        out: &mut To<'_, '_>,
    ) {
        if !self.is_wanted {
            return;
        }
        // A thread that leaves a CPU without having been on one: its last state has no known end.
        let was_running = self.last(from).is_none_or(|row| row.state == self.running);
        if was_running {
            self.close(ts, from);
        }
        self.open(ts, from, state, None, None, out);
        self.close(ts, to);
        self.open(ts, to, self.running, Some(cpu), None, out);
    }

    /// Takes in that a thread is to be woken.
    #[inline]
    pub(crate) fn waking(&mut self, ts: i64, utid: Utid, waking: Waking, out: &mut To<'_, '_>) {
        if !self.is_wanted {
            return;
        }
        match self.last(utid) {
            Some(row) if row.state == self.running || row.state == self.runnable => {
                let row = [
                    Cell::from(self.spurious),
                    Cell::from(ts),
                    Cell::from(row.id),
                    Cell::from(waking.irq_context()),
                    Cell::from(utid),
                    Cell::from(waking.waker),
                ];
                self.spurious += 1;
                out.output.push(&SPURIOUS_SCHED_WAKEUP, &row, out.strings);
            }
            _ => {
                self.close(ts, utid);
                self.open(ts, utid, self.runnable, None, Some(waking), out);
            }
        }
    }

    /// Takes in that a thread has begun.
    pub(crate) fn new_task(&mut self, ts: i64, utid: Utid, waker: Utid, out: &mut To<'_, '_>) {
        let waking = Waking {
            waker,
            common_flags: Some(0),
        };
        self.open(ts, utid, self.runnable, None, Some(waking), out);
    }

    /// Takes in why the thread was blocked last.
    pub(crate) fn blocked_reason(&mut self, utid: Utid, io_wait: bool, function: Option<StringId>) {
        let runnable = self.runnable;
        let running = self.running;
        let Some(thread) = self.threads.get_mut(utid as usize) else {
            return;
        };
        let is_blocked = |row: &&mut Row| row.state != runnable && row.state != running;
        let Some(row) = thread
            .last
            .as_mut()
            .filter(is_blocked)
            .or(thread.blocked.as_mut())
        else {
            return;
        };
        row.cells.set(IO_WAIT, Cell::from(io_wait));
        if function.is_some() {
            row.cells.set(BLOCKED_FUNCTION, Cell::from(function));
        }
    }

    #[inline]
    fn close(&mut self, ts: i64, utid: Utid) {
        if let Some(row) = self
            .threads
            .get_mut(utid as usize)
            .and_then(|thread| thread.last.as_mut())
        {
            row.cells.set(DUR, Cell::from(ts.wrapping_sub(row.ts)));
        }
    }

    #[inline]
    fn open(
        &mut self,
        ts: i64,
        utid: Utid,
        state: Option<StringId>,
        cpu: Option<u32>,
        waking: Option<Waking>,
        out: &mut To<'_, '_>,
    ) {
        if utid == IDLE || !self.is_wanted {
            return;
        }
        let waker = waking.and_then(|waking| self.last(waking.waker));
        let row = Row {
            id: self.rows,
            ts,
            state,
            cells: rows::Row::new([
                Cell::from(self.rows),
                Cell::from(ts),
                Cell::from(-1),
                Cell::from(cpu),
                Cell::from(utid),
                Cell::from(state),
                Cell::NULL,
                Cell::NULL,
                Cell::from(waking.map(|waking| waking.waker)),
                Cell::from(waker.filter(|row| row.state == self.running).map(|row| row.id)),
                Cell::from(waking.and_then(Waking::irq_context)),
                Cell::from(cpu),
            ]),
        };
        self.rows += 1;
        let at = utid as usize;
        if at >= self.threads.len() {
            self.grow(at);
        }
        let Thread { last, blocked } = &mut self.threads[at];
        let is_blocked = |row: &Row| row.state != self.running && row.state != self.runnable;
        if let Some(older) =
            blocked.take_if(|_| state != self.runnable || last.as_ref().is_some_and(is_blocked))
        {
            write(&older, out);
        }
        match last {
            // The block may still get its reason.
            Some(before) if state == self.runnable && is_blocked(before) => *blocked = Some(*before),
            Some(before) => write(before, out),
            None => {}
        }
        *last = Some(row);
    }

    #[cold]
    fn grow(&mut self, utid: usize) {
        self.threads.resize(utid + 1, Thread::default());
    }

    /// Writes the states that never end.
    pub(crate) fn finish(&mut self, out: &mut To<'_, '_>) {
        for thread in &mut self.threads {
            for row in [thread.blocked.take(), thread.last.take()].into_iter().flatten() {
                write(&row, out);
            }
        }
    }
}

#[inline]
fn write(row: &Row, out: &mut To<'_, '_>) {
    out.output.push_row(&THREAD_STATE, &row.cells, out.strings);
}
