//! From a sample to its call stack.
//!
//! `Profiler` asks for the stack of each sample that it keeps, and heap profiles for that of each sampled allocation. Frames of the kernel have names only. Frames of user space
//! have an address in their file, and the function's name if the file's symbol table has it. Frames that were seen before, at the same address of the same process, keep their number, so
//! that a frame costs one look into a table. If a stack ends too early, its outermost frame says why, as upstream's do.
//!
//! A sampled process may be hostile. The work of unwinding is bounded for each sample and each process, in units that are counted. A sample causes a
//! bounded number of reads, and no new read starts after 500 ms. [`LoadRequest`](ferretto_unwind::LoadRequest) lists the reads that may still wait
//! for somebody else, and then hold up the thread of the instance. So may reading command lines, if the config chooses processes by them.

use std::time::{Duration, Instant};

use ferretto_ipc::reactor::boot_now;
use ferretto_probes::ftrace::kallsyms::KernelSymbols;
use ferretto_probes::lru::LruMap;
use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::messages::profiling::StackUnwindError;
use ferretto_unwind::{
    Arch, End, Frame, FrameKind, Maps, ModuleCache, Process, Refreshed, Registers, StackCopy, StackPage,
    Unwinder, WorkBudget,
};
use perf_event_open_sys::bindings as sys;

use crate::config::UserFrames;
use crate::interning::{FrameId, Interning, Mapping};
use crate::left_out::LeftOut;
use crate::names::{Names, Reading};
use crate::output::Unwound;
use crate::profiler::CONTEXT_USER;
use crate::queue::Item;
use crate::record::Sample;

mod known;
mod numbers;
mod problem;

pub use ferretto_unwind::Program;
pub use known::Met;
use known::{Known, Memory};
use numbers::{Lasts, Place, number};
use problem::{Problem, error_of, explanation, name_of};

/// As upstream.
const MOST_FRAMES: usize = 1000;

/// Bytes of unwind tables that stay in memory.
const MOST_TABLE_BYTES: usize = 64 << 20;

/// Processes that are known at a time. Each has a descriptor. The one that was not sampled for longest is forgotten first.
const MOST_PROCESSES: usize = 4096;

/// Frames of one process that keep their number at a time.
const MOST_FRAMES_OF_PROCESS: usize = 1 << 16;

/// Modules that are loaded for one sample.
const MOST_LOADS: u32 = 256;

/// No more is read for a sample after this time.
const MOST_TIME: Duration = Duration::from_millis(500);

/// Pages of 4 KiB that are read of a deep stack, for one sample: 4 MB, because they are read in a row, also those between large frames.
const MOST_PAGES: usize = 1024;

/// Units of work that a process has for each sample more. The unused units are kept for later samples, up to
/// [`WorkBudget::FOR_SAMPLE`], which it begins with. So tables that are made to cost much do so once.
const WORK_PER_SAMPLE: u32 = WorkBudget::FOR_SAMPLE / 16;

/// Mappings of a process that are recorded until it is sampled.
const MOST_RECORDED: usize = 256;

/// Mappings that a process may have so that recorded ones are put among them: that takes as long as there are mappings, for any sample.
const MOST_TO_EXTEND: usize = 1 << 12;

/// The mappings of a process are read again at most this often, in nanoseconds. Until then, samples are found in those that were recorded.
const REFRESH_INTERVAL: u64 = 100_000_000;

/// Marks in call chains are above this: they are small negative numbers.
const FIRST_MARK: u64 = sys::PERF_CONTEXT_MAX;

/// The result of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A stack, whole or not.
    Stack(Unwound),
    /// Nothing of it could be found.
    Skipped(SampleSkipReason),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Stacks {
    user: UserFrames,
    left_out: LeftOut,
    cache: ModuleCache,
    unwinder: Unwinder,
    processes: LruMap<i32, Known>,
    /// The processes that have ended since the rings were last empty: samples of before may come yet.
    exited: Vec<i32>,
    kernel: KernelFrames,
    names: Names,
    /// The frames of the stack that is being put together, callees before callers.
    numbers: Vec<FrameId>,
    frames: Vec<Frame>,
    /// The part of the sample's stack behind its copy.
    pages: Vec<StackPage>,
    /// How often mappings were read again.
    refreshes: u64,
}

/// Frames of the kernel.
#[derive(Debug, Default)]
struct KernelFrames {
    /// Read before the first sample.
    symbols: Option<KernelSymbols>,
    numbers: foldhash::HashMap<u64, FrameId>,
    name: String,
}

impl Stacks {
    /// Finds frames of user space in this way.
    pub(crate) fn new(user: UserFrames) -> Stacks {
        Stacks::without(user, LeftOut::default())
    }

    /// The same, without these frames.
    pub fn without(user: UserFrames, left_out: LeftOut) -> Stacks {
        Stacks {
            user,
            left_out,
            cache: ModuleCache::new(MOST_TABLE_BYTES),
            unwinder: Unwinder::new(MOST_FRAMES),
            processes: LruMap::new(MOST_PROCESSES),
            exited: Vec::new(),
            kernel: KernelFrames::default(),
            names: Names::default(),
            numbers: Vec::new(),
            frames: Vec::new(),
            pages: Vec::new(),
            refreshes: 0,
        }
    }

    /// Reads the list of the kernel's functions, which takes a tenth of a second.
    pub(crate) fn read_kernel_symbols(&mut self) {
        self.kernel.symbols();
    }

    /// Forgets all that is known about processes and files.
    pub(crate) fn clear(&mut self) {
        self.processes.clear();
        self.exited.clear();
        self.cache.clear();
        self.unwinder.clear();
        self.names.clear();
    }

    /// Processes may have changed their mappings unnoticed: each has them read again before its next stack.
    pub fn distrust(&mut self) {
        for known in self.processes.values_mut() {
            known.is_stale = true;
        }
    }

    /// The numbers of frames are void.
    pub fn forget_numbers(&mut self) {
        self.kernel.numbers.clear();
        for known in self.processes.values_mut() {
            known.numbers.clear();
        }
    }

    /// All samples of processes that have ended are handled.
    pub(crate) fn forget_exited(&mut self) {
        for pid in self.exited.drain(..) {
            self.processes.remove(&pid);
        }
    }

    /// A process has ended, or runs another program: later samples with its id are of another one.
    pub fn forget_process(&mut self, pid: i32) {
        if let Some(known) = self.processes.remove(&pid)
            && known.work < WorkBudget::FOR_SAMPLE
        {
            // A program does not get more work by starting itself anew.
            let mut next = Known::new(Memory::Recorded(Maps::default()), 0);
            next.work = known.work;
            self.replace(pid, next);
        }
    }

    /// Samples with this id are of this process from now on, and of no other one that gets the id.
    pub fn meet(&mut self, pid: i32, met: Met) {
        let mut known = Known::new(Memory::Met(met.0), 0);
        if let Some(before) = self.processes.peek(&pid) {
            known.work = before.work;
        }
        self.replace(pid, known);
    }

    /// How often the mappings of processes were read again.
    pub fn refreshes(&self) -> u64 {
        self.refreshes
    }

    /// A process has begun or ended, or has mapped a file.
    pub(crate) fn on_change(&mut self, item: Item) {
        match item {
            Item::Exec { pid, timestamp } => {
                // Older samples must not be taken for those of its new program.
                let mut known = Known::new(Memory::Recorded(Maps::default()), timestamp);
                if let Some(before) = self.processes.peek(&pid) {
                    known.work = before.work;
                }
                self.replace(pid, known);
            }
            Item::Fork {
                pid,
                parent,
                timestamp,
            } => {
                // Records of other CPUs may come first: it may run another program already.
                if self
                    .processes
                    .peek(&pid)
                    .is_some_and(|known| known.since >= timestamp)
                {
                    return;
                }
                let inherited = self.processes.peek(&parent).and_then(Known::maps);
                let inherited = inherited
                    .filter(|maps| maps.mappings().len() <= MOST_RECORDED)
                    .cloned();
                let memory = Memory::Recorded(inherited.unwrap_or_default());
                let mut known = Known::new(memory, timestamp);
                // Both have half of the work that the parent had left, so that a program does not get more by starting itself anew.
                known.work = WORK_PER_SAMPLE;
                if let Some(parent) = self.processes.peek_mut(&parent) {
                    parent.work /= 2;
                    known.work = known.work.max(parent.work);
                }
                self.replace(pid, known);
            }
            Item::Mapped(mapped) => {
                let mapped = mapped.borrowed();
                let Some(known) = self.processes.peek_mut(&mapped.pid) else {
                    return;
                };
                known.is_stale = true;
                let mapping = || ferretto_unwind::Mapping {
                    start: mapped.start,
                    end: mapped.start.saturating_add(mapped.length),
                    offset: mapped.offset,
                    device: mapped.device,
                    inode: mapped.inode,
                    name: mapped.path.into(),
                };
                match &mut known.memory {
                    Memory::Recorded(maps) if maps.mappings().len() < MOST_RECORDED => {
                        maps.insert(mapping());
                    }
                    Memory::Read(_) if known.recent.len() < MOST_RECORDED => known.recent.push(mapping()),
                    _ => {}
                }
            }
            Item::Exit { pid } => self.exited.push(pid),
            Item::Sample(..) => {}
        }
    }

    /// Takes the process with this id for another.
    fn replace(&mut self, pid: i32, known: Known) {
        self.processes.remove(&pid);
        self.processes.get_or_insert_with(pid, || known);
    }

    /// The stack of a sample.
    pub fn find(&mut self, sample: &Sample<'_>, interning: &mut Interning) -> Found {
        self.numbers.clear();
        let mut chain = sample.callchain.iter();
        for address in chain.by_ref().take_while(|&address| address != CONTEXT_USER) {
            if address < FIRST_MARK {
                self.numbers.push(self.kernel.number(address, interning));
            }
        }
        let error = match self.user {
            UserFrames::Skip => None,
            UserFrames::KernelFramePointers => {
                let addresses: Vec<u64> = chain.filter(|&address| address < FIRST_MARK).collect();
                // Nothing is left of the chain of a thread of the kernel.
                match addresses.is_empty() {
                    true => None,
                    false => self.user_frames(sample, &Method::Given(&addresses), interning),
                }
            }
            UserFrames::Dwarf | UserFrames::FramePointers => match registers(sample) {
                Ok(None) => None,
                Ok(Some(registers)) => {
                    let method = match self.user {
                        UserFrames::FramePointers => Method::FramePointers(registers),
                        _ => Method::Tables(registers),
                    };
                    self.user_frames(sample, &method, interning)
                }
                Err(error) => Some(error),
            },
        };
        let error = match error {
            Some(Problem::Gone) if self.numbers.is_empty() => {
                return Found::Skipped(SampleSkipReason::PROFILER_SKIP_READ_STAGE);
            }
            Some(Problem::Gone) => Some((StackUnwindError::UNWIND_ERROR_SYSTEM_CALL, None)),
            Some(Problem::Error(error)) => Some((error, None)),
            Some(Problem::Explained(error, reason)) => Some((error, Some(reason))),
            None => None,
        };
        if let Some((error, reason)) = &error {
            let nowhere = interning.mapping(&Mapping::default());
            let name = match reason {
                None => format!("ERROR {}", name_of(*error)),
                Some(reason) => format!("ERROR {}: {reason}", name_of(*error)),
            };
            self.numbers.push(interning.frame(nowhere, name.as_bytes(), 0));
        }
        if self.numbers.is_empty() {
            return Found::Skipped(SampleSkipReason::PROFILER_SKIP_UNWIND_STAGE);
        }
        Found::Stack(Unwound {
            callstack: interning.callstack(&self.numbers),
            error: error.map(|(error, _)| error),
        })
    }

    /// Adds the frames of user space.
    fn user_frames(
        &mut self,
        sample: &Sample<'_>,
        method: &Method<'_>,
        interning: &mut Interning,
    ) -> Option<Problem> {
        let known = self
            .processes
            .get_or_insert_with(sample.pid, || Known::new(Memory::Recorded(Maps::default()), 0));
        if sample.timestamp < known.since || known.process(sample.pid).is_none() {
            return Some(Problem::Gone);
        }
        let Memory::Read(process) = &mut known.memory else {
            return Some(Problem::Gone);
        };
        if std::mem::take(&mut known.is_stale) {
            match process.refresh(boot_now(), REFRESH_INTERVAL) {
                Ok(Refreshed::TooSoon) => known.is_stale = true,
                Ok(Refreshed::Read) => {
                    self.refreshes += 1;
                    known.recent.clear();
                }
                Err(_) => {}
            }
        }
        let work = WorkBudget::new(known.work);
        // The files that had to be read for this sample, within bounds that no honest program reaches.
        let mut patience = Patience::default();
        let mut loads = 0;
        let mut has_refreshed = false;
        let mut has_rest = false;
        self.pages.clear();
        let end = loop {
            let stack = StackCopy {
                base: method.stack_base(),
                bytes: sample.stack,
                rest: &self.pages,
            };
            match method.unwind(&mut self.unwinder, process, &stack, &work, &mut self.frames) {
                End::ModuleNeeded(mapping) if loads < MOST_LOADS && patience.lasts() => {
                    loads += 1;
                    process.load(mapping, &self.cache);
                }
                End::StackEnds(address)
                    if sample.is_stack_cut
                        && self.pages.len() < MOST_PAGES
                        && patience.lasts()
                        && (has_rest || process.is_active(&self.frames, &stack)) =>
                {
                    has_rest = true;
                    // The stack is unwound again with them, so there are twice as many each time.
                    let more = self.pages.len().max(1).min(MOST_PAGES - self.pages.len());
                    if !process.read_stack(address, more, &mut self.pages) {
                        break End::StackEnds(address);
                    }
                }
                End::UnknownMapping if !has_refreshed => {
                    has_refreshed = true;
                    match process.refresh(boot_now(), REFRESH_INTERVAL) {
                        Ok(Refreshed::Read) => {
                            self.refreshes += 1;
                            known.recent.clear();
                        }
                        Ok(Refreshed::TooSoon) | Err(_)
                            if !known.recent.is_empty()
                                && process.maps().mappings().len() <= MOST_TO_EXTEND =>
                        {
                            process.extend(known.recent.drain(..));
                        }
                        Ok(Refreshed::TooSoon) | Err(_) => break End::UnknownMapping,
                    }
                }
                end => break end,
            }
        };
        known.work = work
            .left()
            .saturating_add(WORK_PER_SAMPLE)
            .min(WorkBudget::FOR_SAMPLE);
        if end == End::UnknownMapping && process.is_program_gone() && self.frames.len() <= 1 {
            // What it has mapped since its mappings were read is gone with it.
            return Some(Problem::Gone);
        }
        // A frame's mapping is known by its file, so that its build id and load bias are.
        for index in 0..self.frames.len() {
            if let Some(mapping) = self.frames[index].mapping
                && process.module(mapping).is_none()
                && loads < MOST_LOADS
                && patience.lasts()
            {
                loads += 1;
                process.load(mapping, &self.cache);
            }
        }
        if known.generation != process.generation() || known.numbers.len() > MOST_FRAMES_OF_PROCESS {
            known.generation = process.generation();
            known.numbers.clear();
        }
        let mut is_leading = true;
        for frame in &self.frames {
            let key = (frame.pc, matches!(frame.kind, FrameKind::Caller));
            let of_frame = match known.numbers.get(&key) {
                Some(of_frame) => *of_frame,
                None => {
                    // A name that would have to be read now is there for a later sample.
                    let reading = match patience.lasts() {
                        true => Reading::Files,
                        false => Reading::Nothing,
                    };
                    let whose = (sample.pid, known.since);
                    let tables = (&mut self.names, &self.left_out);
                    let (of_frame, lasts) = number(process, whose, frame, reading, tables, interning);
                    if lasts == Lasts::AsLongAsMappings {
                        known.numbers.insert(key, of_frame);
                    }
                    of_frame
                }
            };
            is_leading = is_leading && of_frame.place == Place::LeftOutInFront;
            if !is_leading {
                self.numbers.push(of_frame.number);
            }
        }
        let error = error_of(end)?;
        Some(match explanation(process, end) {
            None => Problem::Error(error),
            Some(reason) => Problem::Explained(error, reason),
        })
    }
}

/// The time for the reads of one sample. It begins with the first of them, because most samples need none.
#[derive(Debug, Default)]
struct Patience(Option<Instant>);

impl Patience {
    fn lasts(&mut self) -> bool {
        self.0.get_or_insert_with(Instant::now).elapsed() < MOST_TIME
    }
}

/// How frames of user space are found.
#[derive(Debug)]
enum Method<'a> {
    /// The kernel has found these addresses.
    Given(&'a [u64]),
    FramePointers(Registers),
    Tables(Registers),
}

impl Method<'_> {
    /// The address of the first byte of the stack's copy.
    fn stack_base(&self) -> u64 {
        match self {
            Method::Given(_) => 0,
            Method::FramePointers(registers) | Method::Tables(registers) => registers.stack_pointer(),
        }
    }

    fn unwind(
        &self,
        unwinder: &mut Unwinder,
        process: &Process,
        stack: &StackCopy<'_>,
        work: &WorkBudget,
        frames: &mut Vec<Frame>,
    ) -> End {
        match self {
            Method::Given(addresses) => {
                frames.clear();
                let kinds = std::iter::once(FrameKind::Sampled).chain(std::iter::repeat(FrameKind::Caller));
                frames.extend(
                    addresses
                        .iter()
                        .zip(kinds)
                        .map(|(pc, kind)| process.frame_at(*pc, kind)),
                );
                match frames.iter().all(|frame| frame.mapping.is_some()) {
                    true => End::Complete,
                    false => End::UnknownMapping,
                }
            }
            Method::FramePointers(registers) => {
                unwinder.walk_frame_pointers(process, registers, stack, work, frames)
            }
            Method::Tables(registers) => unwinder.unwind(process, registers, stack, work, frames),
        }
    }
}

impl KernelFrames {
    fn number(&mut self, address: u64, interning: &mut Interning) -> FrameId {
        if let Some(known) = self.numbers.get(&address) {
            return *known;
        }
        let mut name = std::mem::take(&mut self.name);
        if !self.symbols().lookup(address, &mut name) {
            name.clear();
        }
        // No address leaves the daemon, for it would tell where the kernel is.
        let mapping = interning.mapping(&Mapping {
            path: b"kernel",
            ..Mapping::default()
        });
        let number = interning.frame(mapping, name.as_bytes(), 0);
        self.name = name;
        self.numbers.insert(address, number);
        number
    }

    fn symbols(&mut self) -> &KernelSymbols {
        // Without the list of symbols frames have no names, as upstream's.
        self.symbols
            .get_or_insert_with(|| KernelSymbols::of_this_kernel().unwrap_or_default())
    }
}

/// The registers of user space; `None` in threads of the kernel.
fn registers(sample: &Sample<'_>) -> Result<Option<Registers>, Problem> {
    let unsupported = Problem::Error(StackUnwindError::UNWIND_ERROR_UNSUPPORTED);
    let Some(arch) = Arch::current() else {
        return Err(unsupported);
    };
    let Some(sampled) = sample.registers else {
        return Ok(None);
    };
    if !sampled.is_64_bit {
        return Err(Problem::Error(StackUnwindError::UNWIND_ERROR_BAD_ARCH));
    }
    let mut values = [0; 64];
    let count = sampled.values.len().min(values.len());
    for (value, sampled) in values.iter_mut().zip(sampled.values.iter()) {
        *value = sampled;
    }
    Registers::from_perf(arch, arch.perf_mask(), &values[..count])
        .map(Some)
        .ok_or(unsupported)
}

#[cfg(test)]
mod tests;
