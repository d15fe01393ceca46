//! The processes that were met: their mappings, and the numbers of their frames.
//!
//! [`Stacks`](super::Stacks) keeps them. The mappings of a process are read when its first sample needs them.

use std::io;

use ferretto_ipc::reactor::boot_now;
use ferretto_unwind::{Maps, Process, Program, WorkBudget};

use super::REFRESH_INTERVAL;
use super::numbers::Numbered;

/// A process that is known by more than its id: this reads only the process that had the id when it was opened.
#[derive(Debug)]
pub struct Met(pub(super) Process);

impl Met {
    /// The process that has this id now, and its mappings. So the stacks of a process can be found when it has ended, or runs another program. A caller
    /// that means a certain process checks afterwards that it has not ended.
    ///
    /// # Errors
    /// If there is no such process, or its directory in procfs cannot be opened.
    pub fn open(pid: i32) -> io::Result<Met> {
        let pid = u32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        Process::meet(pid).map(Met)
    }

    /// Returns the program that it runs, if the kernel has told.
    pub fn program(&self) -> Option<&Program> {
        self.0.program()
    }
}

/// A process that was met.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) memory: Memory,
    /// When it began to run its program, on the clock of samples; 0 if that is not known.
    pub(super) since: u64,
    /// It has mapped files since its mappings were read.
    pub(super) is_stale: bool,
    /// Some of these.
    pub(super) recent: Vec<ferretto_unwind::Mapping>,
    /// Units of work that its next sample may take.
    pub(super) work: u32,
    /// The generation of the process that the numbers are of.
    pub(super) generation: u64,
    /// By address, and whether it is the return address of a call. Each frame of each sample looks here, so the hash is a quick one; it begins with
    /// random numbers, which a process that chooses its addresses does not know.
    pub(super) numbers: foldhash::HashMap<(u64, bool), Numbered>,
}

/// The state of a process's mappings.
#[derive(Debug)]
pub(super) enum Memory {
    /// Nothing was asked yet. It had these when it began, and has mapped files since.
    Recorded(Maps),
    /// It was met, and has its mappings unless they could not be read then.
    Met(Process),
    /// Read from procfs, or as they were recorded if the process was gone by then.
    Read(Process),
    /// It was gone before it was met.
    Gone,
}

impl Known {
    pub(super) fn new(memory: Memory, since: u64) -> Known {
        Known {
            memory,
            since,
            is_stale: false,
            recent: Vec::new(),
            work: WorkBudget::FOR_SAMPLE,
            generation: 0,
            numbers: foldhash::HashMap::default(),
        }
    }

    /// Its process; reads the mappings when it is first asked for.
    pub(super) fn process(&mut self, pid: i32) -> Option<&mut Process> {
        if !matches!(self.memory, Memory::Read(_) | Memory::Gone) {
            let process = match std::mem::replace(&mut self.memory, Memory::Gone) {
                Memory::Met(process) if !process.maps().mappings().is_empty() => Some(process),
                Memory::Met(process) => opened(process),
                Memory::Recorded(maps) => {
                    let there = u32::try_from(pid).ok().and_then(|pid| Process::open(pid).ok());
                    there
                        .and_then(opened)
                        .or_else(|| match maps.mappings().is_empty() {
                            true => None,
                            false => Process::ended(maps).ok(),
                        })
                }
                Memory::Read(process) => Some(process),
                Memory::Gone => None,
            };
            self.memory = process.map_or(Memory::Gone, Memory::Read);
        }
        match &mut self.memory {
            Memory::Read(process) => Some(process),
            Memory::Recorded(_) | Memory::Met(_) | Memory::Gone => None,
        }
    }

    pub(super) fn maps(&self) -> Option<&Maps> {
        match &self.memory {
            Memory::Recorded(maps) => Some(maps),
            Memory::Read(process) => Some(process.maps()),
            Memory::Met(_) | Memory::Gone => None,
        }
    }
}

/// The process with its mappings; `None` if it has ended.
fn opened(mut process: Process) -> Option<Process> {
    process.refresh(boot_now(), REFRESH_INTERVAL).ok()?;
    // A process that is ending has no memory any more.
    (!process.maps().mappings().is_empty()).then_some(process)
}
