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

/// The columns of a row that are looked at, or change, after it was made.
const ID: usize = 0;
const TS: usize = 1;
const DUR: usize = 2;
const IO_WAIT: usize = 6;
const BLOCKED_FUNCTION: usize = 7;

/// What follows from a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Running,
    Runnable,
    /// All others, also of bits that mean nothing.
    Blocked,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    kind: Kind,
    /// All columns.
    cells: rows::Row<12>,
}

/// What a thread goes on with.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// On this CPU.
    Running(u32),
    Woken(Waking),
    /// Off its CPU, in a state that is `None` if the kernel gave bits that mean nothing.
    Left(Option<StringId>),
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
    running: StringId,
    runnable: StringId,
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
            running: strings.intern("Running"),
            runnable: strings.intern("R"),
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
        if self.last(from).is_some_and(|row| row.kind == Kind::Running) {
            self.close(ts, from);
        }
        self.open(ts, from, Next::Left(state), out);
        self.close(ts, to);
        self.open(ts, to, Next::Running(cpu), out);
    }

    /// Takes in that a thread is to be woken.
    #[inline]
    pub(crate) fn waking(&mut self, ts: i64, utid: Utid, waking: Waking, out: &mut To<'_, '_>) {
        if !self.is_wanted {
            return;
        }
        match self.last(utid) {
            Some(row) if row.kind != Kind::Blocked => {
                let row = [
                    Cell::from(self.spurious),
                    Cell::from(ts),
                    Cell::from(row.cells.int(ID)),
                    Cell::from(waking.irq_context()),
                    Cell::from(utid),
                    Cell::from(waking.waker),
                ];
                self.spurious += 1;
                out.output.push(&SPURIOUS_SCHED_WAKEUP, &row, out.strings);
            }
            _ => {
                self.close(ts, utid);
                self.open(ts, utid, Next::Woken(waking), out);
            }
        }
    }

    /// Takes in that a thread has begun.
    pub(crate) fn new_task(&mut self, ts: i64, utid: Utid, waker: Utid, out: &mut To<'_, '_>) {
        let waking = Waking {
            waker,
            common_flags: Some(0),
        };
        self.open(ts, utid, Next::Woken(waking), out);
    }

    /// Takes in why the thread was blocked last.
    pub(crate) fn blocked_reason(&mut self, utid: Utid, io_wait: bool, function: Option<StringId>) {
        let Some(thread) = self.threads.get_mut(utid as usize) else {
            return;
        };
        let is_blocked = |row: &&mut Row| row.kind == Kind::Blocked;
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
            let dur = ts.wrapping_sub(row.cells.int(TS));
            row.cells.set(DUR, Cell::from(dur));
        }
    }

    /// Begins a state. Each caller has its own copy of this, in which all is constant that follows from what `next` is.
    #[inline(always)]
    fn open(&mut self, ts: i64, utid: Utid, next: Next, out: &mut To<'_, '_>) {
        if utid == IDLE || !self.is_wanted {
            return;
        }
        let (kind, state, cpu, waking) = match next {
            Next::Running(cpu) => (Kind::Running, Some(self.running), Some(cpu), None),
            Next::Woken(waking) => (Kind::Runnable, Some(self.runnable), None, Some(waking)),
            Next::Left(state) if state == Some(self.runnable) => (Kind::Runnable, state, None, None),
            Next::Left(state) => (Kind::Blocked, state, None, None),
        };
        let waker = waking.and_then(|waking| self.last(waking.waker));
        let waker = waker.filter(|row| row.kind == Kind::Running);
        let waker = waker.map(|row| row.cells.int(ID));
        let id = self.rows;
        self.rows += 1;
        let at = utid as usize;
        if at >= self.threads.len() {
            self.grow(at);
        }
        let Thread { last, blocked } = &mut self.threads[at];
        let was_blocked = last.as_ref().is_some_and(|row| row.kind == Kind::Blocked);
        if let Some(older) = blocked
            && (kind != Kind::Runnable || was_blocked)
        {
            write(older, out);
            *blocked = None;
        }
        match last {
            // The block may still get its reason.
            Some(_) if kind == Kind::Runnable && was_blocked => *blocked = *last,
            Some(before) => write(before, out),
            None => {}
        }
        *last = Some(Row {
            kind,
            cells: rows::Row::new([
                Cell::from(id),
                Cell::from(ts),
                Cell::from(-1),
                Cell::from(cpu),
                Cell::from(utid),
                Cell::from(state),
                Cell::NULL,
                Cell::NULL,
                Cell::from(waking.map(|waking| waking.waker)),
                Cell::from(waker),
                Cell::from(waking.and_then(Waking::irq_context)),
                Cell::from(cpu),
            ]),
        });
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
