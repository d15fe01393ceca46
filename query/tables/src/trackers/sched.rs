//! Which thread each CPU runs, from switch to switch.
//!
//! A slice is written when the CPU switches again; until then the CPU keeps it.

use crate::output::Output;
use crate::rows::Cell;
use crate::schema::SCHED_SLICE;
use crate::strings::{StringId, Strings};
use crate::trackers::processes::Utid;

/// The slice that a CPU is in.
#[derive(Debug, Clone, Copy)]
struct Open {
    id: i64,
    ts: i64,
    utid: Utid,
    priority: i64,
}

/// What the last switch of a CPU said about the thread that runs since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Last {
    pub(crate) pid: i64,
    pub(crate) utid: Utid,
    pub(crate) priority: i64,
}

#[derive(Debug, Clone, Default)]
struct Cpu {
    open: Option<Open>,
    last: Option<Last>,
}

/// All CPUs.
#[derive(Debug, Default)]
pub(crate) struct Sched {
    cpus: Vec<Cpu>,
    rows: i64,
}

impl Sched {
    #[inline]
    fn cpu(&mut self, cpu: u32) -> &mut Cpu {
        let cpu = cpu as usize;
        if cpu >= self.cpus.len() {
            self.grow(cpu);
        }
        &mut self.cpus[cpu]
    }

    #[cold]
    fn grow(&mut self, cpu: usize) {
        self.cpus.resize(cpu + 1, Cpu::default());
    }

    /// What the CPU runs, as far as its switches have said.
    #[inline]
    pub(crate) fn last(&mut self, cpu: u32) -> Option<Last> {
        self.cpu(cpu).last
    }

    /// Remembers what the CPU runs from here on, and returns what it ran.
    #[inline]
    pub(crate) fn replace_last(&mut self, cpu: u32, last: Last) -> Option<Last> {
        self.cpu(cpu).last.replace(last)
    }

    /// Ends the slice of the CPU, if it is in one.
    #[inline]
    pub(crate) fn end(
        &mut self,
        cpu: u32,
        ts: i64,
        state: Option<StringId>,
        strings: &Strings,
        output: &mut Output<'_>,
    ) {
        if let Some(open) = self.cpu(cpu).open.take() {
            write(cpu, &open, ts.wrapping_sub(open.ts), state, strings, output);
        }
    }

    /// Whether the CPU is in a slice.
    #[inline]
    pub(crate) fn is_open(&mut self, cpu: u32) -> bool {
        self.cpu(cpu).open.is_some()
    }

    /// Begins a slice. One that has not ended remains without an end.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        cpu: u32,
        ts: i64,
        utid: Utid,
        priority: i64,
        strings: &Strings,
        output: &mut Output<'_>,
    ) {
        let id = self.rows;
        self.rows += 1;
        let open = Open {
            id,
            ts,
            utid,
            priority,
        };
        if let Some(unfinished) = self.cpu(cpu).open.replace(open) {
            write(cpu, &unfinished, -1, None, strings, output);
        }
    }

    /// Writes the slices that never end.
    pub(crate) fn finish(&mut self, strings: &Strings, output: &mut Output<'_>) {
        for (cpu, state) in self.cpus.iter_mut().enumerate() {
            if let Some(open) = state.open.take() {
                write(cpu as u32, &open, -1, None, strings, output);
            }
        }
    }
}

#[inline]
fn write(
    cpu: u32,
    open: &Open,
    dur: i64,
    state: Option<StringId>,
    strings: &Strings,
    output: &mut Output<'_>,
) {
    let row = [
        Cell::from(open.id),
        Cell::from(open.ts),
        Cell::from(dur),
        Cell::from(cpu),
        Cell::from(open.utid),
        Cell::from(state),
        Cell::from(open.priority),
        Cell::from(cpu),
    ];
    output.push(&SCHED_SLICE, &row, strings);
}
