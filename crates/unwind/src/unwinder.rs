//! From a sample to frames.

use std::sync::Arc;

use crate::elf::Unusable;
use crate::process::{Process, Region};
use crate::registers::{Arch, Registers};
use crate::rule::{Kept, Rule, RuleKind, Stop};
use crate::stack::StackCopy;
use crate::tables::{Context, NoRule, Tables};
use crate::work::WorkBudget;

/// Units of work for a frame whose rule is known.
const FRAME: u32 = 1;

/// Rules that an [`Unwinder`] keeps; 64 bytes each, one cache line.
const RULES: usize = 1 << 12;

/// A function that was active when the sample was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Where it was: of the first frame, the pc of the sample; of callers, where the call returns to.
    pub pc: u64,
    /// The index of the mapping that it is in; `None` if it is in none that is known.
    pub mapping: Option<u32>,
    /// How it comes to be active.
    pub kind: FrameKind,
    pub(crate) arch: Arch,
}

/// How a function comes to be active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// It was running.
    Sampled,
    /// It has called the function of the frame before.
    Caller,
    /// It is the one that a signal handler, the function of the frame before, returns to.
    SignalReturn,
    /// It was interrupted by a signal.
    Interrupted,
}

impl FrameKind {
    /// Whether the thread was at the frame's pc, rather than in the call before it.
    pub(crate) fn is_exact(self) -> bool {
        matches!(self, FrameKind::Sampled | FrameKind::Interrupted)
    }
}

/// How unwinding ended.
///
/// Upstream's `traced_perf` writes an error of libunwindstack for all but the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// At the thread's first function: the tables say that nothing called it, or the return address or frame pointer is 0.
    Complete,
    /// The copy of the stack ends before the stack does: this address lies behind it. [Read](Process::read_stack) more, and unwind again.
    StackEnds(u64),
    /// The module in this mapping has not been loaded, or the cache has dropped its tables. Load it, and unwind again.
    ModuleNeeded(u32),
    /// The last frame's pc is in no mapping that is known. It may be new: [refresh](Process::refresh) the process, and unwind again.
    UnknownMapping,
    /// Nothing says how to leave the last frame's function, which is in this mapping, and there is no frame pointer.
    NoUnwindInformation(u32),
    /// The same, because the module in this mapping is [unusable](Process::module).
    UnusableModule(u32),
    /// The tables of the module in this mapping are damaged.
    MalformedTables(u32),
    /// The last frame's function, which is in this mapping, cannot be left as the tables say: they ask for something that is not in the sample.
    Inconsistent(u32),
    /// There are more frames than were asked for.
    TooManyFrames,
    /// The sample's [`WorkBudget`] was spent when the last frame, which is in this mapping, was to be left.
    OverBudget(u32),
}

/// Unwinds the stacks of one thread of the profiler: it has the rules that were used lately, for all processes.
#[derive(Debug)]
pub struct Unwinder {
    most_frames: usize,
    rules: Box<[Cached]>,
    context: Box<Context>,
}

/// A rule and its purpose.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Cached {
    serial: u64,
    address: u64,
    rule: Rule,
}

const NO_RULE: Cached = Cached {
    serial: 0,
    address: 0,
    rule: Rule::ROOT,
};

impl Unwinder {
    /// An unwinder for stacks of at most `most_frames` frames.
    pub fn new(most_frames: usize) -> Unwinder {
        Unwinder {
            most_frames,
            rules: vec![NO_RULE; RULES].into(),
            context: Box::default(),
        }
    }

    /// Forgets all rules.
    pub fn clear(&mut self) {
        self.rules.fill(NO_RULE);
    }

    /// Replaces `frames` by those of a thread of `process`, innermost first. It reads no files and waits for nothing; for the same sample, with the
    /// same `work`, it can be called again after the process was refreshed or a module was loaded.
    pub fn unwind(
        &mut self,
        process: &Process,
        registers: &Registers,
        stack: &StackCopy<'_>,
        work: &WorkBudget,
        frames: &mut Vec<Frame>,
    ) -> End {
        let mut sample = Sample {
            process,
            stack,
            work,
            kept: Kept::Pointers,
        };
        match self.unwind_sample(&sample, registers, frames) {
            // It may take one of the registers that were not followed.
            End::Inconsistent(_) => {
                sample.kept = Kept::Preserved;
                self.unwind_sample(&sample, registers, frames)
            }
            end => end,
        }
    }

    /// As [`unwind`](Self::unwind), by frame pointers alone: for programs that are built with them. It needs no modules.
    pub fn walk_frame_pointers(
        &mut self,
        process: &Process,
        registers: &Registers,
        stack: &StackCopy<'_>,
        work: &WorkBudget,
        frames: &mut Vec<Frame>,
    ) -> End {
        frames.clear();
        let sample = Sample {
            process,
            stack,
            work,
            kept: Kept::Pointers,
        };
        let mut registers = *registers;
        let mut kind = FrameKind::Sampled;
        loop {
            if frames.len() >= self.most_frames {
                return End::TooManyFrames;
            }
            let frame = process.frame_at(registers.pc(), kind);
            frames.push(frame);
            let Some(mapping) = frame.mapping else {
                return End::UnknownMapping;
            };
            if work.spend(FRAME).is_err() {
                return End::OverBudget(mapping);
            }
            let otherwise = End::NoUnwindInformation(mapping);
            if let Err(end) = by_frame_pointer(&sample, &mut registers, End::Complete, otherwise) {
                return end;
            }
            if registers.pc() == 0 {
                return End::Complete;
            }
            kind = FrameKind::Caller;
        }
    }

    fn unwind_sample(&mut self, sample: &Sample<'_>, registers: &Registers, frames: &mut Vec<Frame>) -> End {
        frames.clear();
        let mut registers = *registers;
        let arch = registers.arch();
        let mut kind = FrameKind::Sampled;
        let mut index = 0;
        loop {
            if frames.len() >= self.most_frames {
                return End::TooManyFrames;
            }
            let pc = registers.pc();
            // A call may be the last instruction of its function.
            let lookup = pc - u64::from(!kind.is_exact());
            let region = match sample.process.regions().get(index as usize) {
                Some(region) if region.contains(lookup) => Some(region),
                _ => sample.process.find(lookup).map(|(found, region)| {
                    index = found;
                    region
                }),
            };
            frames.push(Frame {
                pc,
                mapping: region.map(|_| index),
                kind,
                arch,
            });
            let Some(region) = region else {
                return End::UnknownMapping;
            };
            if sample.work.spend(FRAME).is_err() {
                return End::OverBudget(index);
            }
            match self.step(sample, index, region, lookup, &mut registers, kind) {
                Ok(Stepped::ToCaller) => kind = FrameKind::Caller,
                Ok(Stepped::OverSignal) => {
                    if let Some(frame) = frames.last_mut() {
                        frame.kind = FrameKind::SignalReturn;
                    }
                    kind = FrameKind::Interrupted;
                }
                Err(end) => return end,
            }
            if arch == Arch::Aarch64 {
                registers.set_pc(registers.pc() & sample.process.address_mask());
            }
            if registers.pc() == 0 {
                return End::Complete;
            }
        }
    }

    /// Goes from a function to its caller.
    fn step(
        &mut self,
        sample: &Sample<'_>,
        index: u32,
        region: &Region,
        lookup: u64,
        registers: &mut Registers,
        kind: FrameKind,
    ) -> Result<Stepped, End> {
        if region.serial == 0 {
            return without_module(sample, index, registers, kind);
        }
        let address = lookup.wrapping_add(region.to_module);
        let place = (address ^ region.serial << 5) as usize % RULES;
        let stepped = if let Some(cached) = self.cached(place, region.serial, address) {
            if cached.rule.kind == RuleKind::Evaluated {
                self.evaluate(sample, index, address, registers)?
            } else {
                step_by(&cached.rule, sample, registers, kind)
            }
        } else {
            let tables = tables(sample.process, index)?;
            match tables.rule(address, &mut self.context, sample.work) {
                Ok(rule) => {
                    // The rule that was here moves to the neighbour.
                    self.rules[place ^ 1] = self.rules[place];
                    self.rules[place] = Cached {
                        serial: region.serial,
                        address,
                        rule,
                    };
                    if rule.kind == RuleKind::Evaluated {
                        self.evaluate(sample, index, address, registers)?
                    } else {
                        step_by(&rule, sample, registers, kind)
                    }
                }
                Err(NoRule::Malformed) => return Err(End::MalformedTables(index)),
                Err(NoRule::OverBudget) => return Err(End::OverBudget(index)),
                Err(NoRule::NotCovered) => {
                    if kind.is_exact()
                        && let Some(stepped) = by_return_address(sample, registers, kind)
                    {
                        return Ok(stepped);
                    }
                    return without_tables(sample, index, registers, kind);
                }
                Err(NoRule::NoTables) => return without_tables(sample, index, registers, kind),
            }
        };
        stepped.map_err(|stop| match stop {
            Stop::Root => End::Complete,
            Stop::StackEnds(address) => End::StackEnds(address),
            Stop::Broken => End::Inconsistent(index),
            Stop::OverBudget => End::OverBudget(index),
        })
    }

    /// The rule for an address, which is in its place or in the neighbour's: two that share a place do not drive each other out.
    #[inline]
    fn cached(&self, place: usize, serial: u64, address: u64) -> Option<&Cached> {
        let places = [place, place ^ 1].into_iter();
        places
            .map(|place| &self.rules[place])
            .find(|cached| cached.address == address && cached.serial == serial)
    }

    fn evaluate(
        &mut self,
        sample: &Sample<'_>,
        index: u32,
        address: u64,
        registers: &mut Registers,
    ) -> Result<Result<Stepped, Stop>, End> {
        let tables = tables(sample.process, index)?;
        match tables.evaluate(address, &mut self.context, registers, sample.stack, sample.work) {
            Ok(signal) => Ok(signal.map(|signal| match signal {
                true => Stepped::OverSignal,
                false => Stepped::ToCaller,
            })),
            Err(NoRule::OverBudget) => Err(End::OverBudget(index)),
            Err(_) => Err(End::MalformedTables(index)),
        }
    }
}

/// The values that are the same for all frames of a sample.
struct Sample<'a> {
    process: &'a Process,
    stack: &'a StackCopy<'a>,
    work: &'a WorkBudget,
    kept: Kept,
}

enum Stepped {
    ToCaller,
    OverSignal,
}

#[inline]
fn step_by(
    rule: &Rule,
    sample: &Sample<'_>,
    registers: &mut Registers,
    kind: FrameKind,
) -> Result<Stepped, Stop> {
    rule.step(registers, sample.stack, kind, sample.kept)
        .map(|()| Stepped::ToCaller)
}

fn tables(process: &Process, index: u32) -> Result<Arc<Tables>, End> {
    let module = process.module(index).and_then(Result::ok);
    module
        .and_then(|module| module.tables())
        .ok_or(End::ModuleNeeded(index))
}

/// Leaves a function that is in a mapping without a module.
#[cold]
fn without_module(
    sample: &Sample<'_>,
    index: u32,
    registers: &mut Registers,
    kind: FrameKind,
) -> Result<Stepped, End> {
    let otherwise = End::UnusableModule(index);
    match sample.process.module(index) {
        None => Err(End::ModuleNeeded(index)),
        Some(Err(Unusable::NoFile)) => {
            // A compiler that has written code into memory knows how its own first function looks.
            let root = if kind.is_exact() { otherwise } else { End::Complete };
            by_frame_pointer(sample, registers, root, otherwise).or_else(|end| {
                let has_no_frame = end == root || end == otherwise;
                let stepped = has_no_frame.then(|| by_return_address(sample, registers, kind));
                stepped.flatten().ok_or(end)
            })
        }
        Some(_) => by_frame_pointer(sample, registers, otherwise, otherwise),
    }
}

/// Leaves a function that its module's tables do not mention.
#[cold]
fn without_tables(
    sample: &Sample<'_>,
    index: u32,
    registers: &mut Registers,
    kind: FrameKind,
) -> Result<Stepped, End> {
    let otherwise = End::NoUnwindInformation(index);
    let root = if kind.is_exact() { otherwise } else { End::Complete };
    by_frame_pointer(sample, registers, root, otherwise)
}

/// A function that was interrupted and that no table mentions is often a stub that uses no stack. Its return address is on top of the stack, or in the
/// link register. One that calls others, as Python's trampolines do on x86-64, has eight bytes of its own there, because calls need an aligned stack.
fn by_return_address(sample: &Sample<'_>, registers: &mut Registers, kind: FrameKind) -> Option<Stepped> {
    let top = registers.stack_pointer();
    let (pc, caller) = match (registers.arch(), kind.is_exact()) {
        (Arch::X86_64, true) => (sample.stack.read(top).ok()?, top.wrapping_add(8)),
        (Arch::X86_64, false) => (sample.stack.read(top.wrapping_add(8)).ok()?, top.wrapping_add(16)),
        (Arch::Aarch64, true) => {
            let pc = registers.get(Arch::Aarch64.return_address())?;
            (pc & sample.process.address_mask(), top)
        }
        (Arch::Aarch64, false) => return None,
    };
    sample.process.find(pc.wrapping_sub(1))?;
    registers.leave(pc, caller);
    Some(Stepped::ToCaller)
}

/// Where there are no tables, functions may have frame pointers: just-in-time compilers and Go write them. With a frame pointer of 0, unwinding ends
/// with `root`; with one that does not look like any, with `otherwise`.
fn by_frame_pointer(
    sample: &Sample<'_>,
    registers: &mut Registers,
    root: End,
    otherwise: End,
) -> Result<Stepped, End> {
    let arch = registers.arch();
    let frame = registers.get(arch.frame_pointer()).ok_or(otherwise)?;
    if frame == 0 {
        return Err(root);
    }
    if frame < registers.stack_pointer() {
        return Err(otherwise);
    }
    let outside = |outside| match Stop::from(outside) {
        Stop::StackEnds(address) => End::StackEnds(address),
        _ => otherwise,
    };
    let caller_frame = sample.stack.read(frame).map_err(outside)?;
    let mut pc = sample.stack.read(frame.wrapping_add(8)).map_err(outside)?;
    if arch == Arch::Aarch64 {
        pc &= sample.process.address_mask();
    }
    // A register that is used for something else may point anywhere.
    if pc != 0 && sample.process.find(pc.wrapping_sub(1)).is_none() {
        return Err(otherwise);
    }
    registers.set(arch.frame_pointer(), caller_frame);
    registers.leave(pc, frame.wrapping_add(16));
    Ok(Stepped::ToCaller)
}
