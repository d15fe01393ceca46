//! The tables of a module that say how its functions are left: `.eh_frame` with its index `.eh_frame_hdr`, and `.debug_frame`.
//!
//! The formats are those of the DWARF standard (section 6.4, call frame information) and of the Linux Standard Base (`.eh_frame`, `.eh_frame_hdr`).
//! `gimli` reads them. A module's maker may have written anything into its tables, so that what they say is bounded here: the length of the
//! instructions for a function, the steps of an expression, which may jump back, and with the sample's [`WorkBudget`] all of them together.

use gimli::constants::{DW_EH_PE_datarel, DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_udata4};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, EhFrameHdr, EndianSlice,
    Evaluation, EvaluationResult, Expression, FrameDescriptionEntry, LittleEndian, Location, Operation,
    Reader, Register, RegisterRule, Section, UnwindContext, UnwindContextStorage, UnwindExpression,
    UnwindOffset, UnwindSection, UnwindTableRow, Value,
};

use crate::elf::{Headers, Image, Unusable};
use crate::expand;
use crate::registers::{Arch, Registers};
use crate::rule::{LOST, Rule, RuleKind, Slot, Stop, UNCHANGED};
use crate::stack::StackCopy;
use crate::work::{Spent, WorkBudget};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Entry<'a> = FrameDescriptionEntry<Bytes<'a>>;
type Row = UnwindTableRow<usize, Rows>;
/// Where rows are put together.
pub(crate) type Context = UnwindContext<usize, Rows>;
/// The action on the row for an instruction, and the entry that has it.
type Visit<'v, T> = dyn FnMut(&Row, &Entry<'_>, &dyn Expressions) -> Result<T, NoRule> + 'v;

/// Bytes of instructions for one function, and for the common part of functions. The longest seen has 3,000.
const LONGEST_ENTRY: usize = 16 << 10;
/// Steps of one expression. The longest seen, that of the procedure linkage table, has eight.
const MOST_STEPS: u32 = 1000;
/// Values that one expression may ask for.
const MOST_QUESTIONS: u32 = 100;

/// Rules of a row: enough for all general registers and vector registers of aarch64, and their few companions.
const MOST_RULES: usize = 80;
/// Rules that are looked at or copied for one unit of work.
const RULES_OF_UNIT: usize = 16;
/// Units of work for a lookup besides the bytes of the instructions that are found: two searches, the headers of two entries, and a look at the rules
/// of the row for each register that is followed.
const LOOKUP: u32 = 32;
/// Units for following a row without a rule, besides those of its lookup: a look at the row's rules for each register.
const FOLLOWING: u32 = 64;
/// Units for an expression, besides its steps.
const EXPRESSION: u32 = 8;
/// Work for the index of a table, in bytes of entries for each byte of the table. The common part of functions is read again for each of them, and
/// is about as long as the shortest of their own entries.
const INDEXING: u64 = 4;

/// Bytes of one table, expanded. The table of a browser with all its libraries in one file has 20 MB.
const LARGEST_TABLE: u64 = 64 << 20;

/// Why tables have no rule for an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRule {
    /// There are none.
    NoTables,
    /// They do not mention it.
    NotCovered,
    /// The tables say something about it that cannot be understood.
    Malformed,
    /// The sample's work was spent before it was found.
    OverBudget,
}

impl From<Spent> for NoRule {
    fn from(_: Spent) -> NoRule {
        NoRule::OverBudget
    }
}

/// Memory for rows. Instructions look at all rules of a row or copy them, so that their number bounds what one instruction takes.
#[derive(Debug)]
pub(crate) struct Rows;

impl UnwindContextStorage<usize> for Rows {
    type Rules = [(Register, RegisterRule<usize>); MOST_RULES];
    /// As many rows as `gimli` has without being told.
    type Stack = Box<[UnwindTableRow<usize, Rows>; 4]>;
}

#[derive(Debug)]
pub(crate) struct Tables {
    arch: Arch,
    bases: BaseAddresses,
    eh_frame: Box<[u8]>,
    /// Sorted table of functions, made by the linker. Without it, `index` has them.
    eh_frame_hdr: Box<[u8]>,
    index: Box<[Function]>,
    debug_frame: Box<[u8]>,
    debug_index: Box<[Function]>,
}

/// Where the entry of a function is in a table.
#[derive(Debug, Clone, Copy)]
struct Function {
    start: u64,
    entry: u32,
}

impl Tables {
    /// Reads the tables of the file with these headers. Without any, it is empty, and covers no instruction.
    ///
    /// # Errors
    /// If they are outside of the file, too large, cannot be read, or take too much work to find the functions in.
    pub(crate) fn read(image: &dyn Image, headers: &Headers) -> Result<Tables, Unusable> {
        let content = |section, what| match section {
            Some(section) => headers.content(image, section, LARGEST_TABLE, what),
            None => Ok(Vec::new()),
        };
        let header_section = headers.section(b".eh_frame_hdr").or(headers.eh_frame_hdr);
        let eh_frame_hdr = content(header_section, "index of unwind tables")?;
        let mut bases = BaseAddresses::default();
        if let Some(section) = header_section {
            bases = bases.set_eh_frame_hdr(section.address);
        }
        // Without section headers, the index says where the table is, and it ends with its segment at the latest.
        let found = || {
            let header = EhFrameHdr::new(&eh_frame_hdr, LittleEndian)
                .parse(&bases, 8)
                .ok()?;
            headers.segment_from(header.eh_frame_ptr().direct().ok()?)
        };
        let section = headers.section(b".eh_frame").or_else(found);
        let eh_frame = content(section, "unwind tables")?;
        if let Some(section) = section {
            bases = bases.set_eh_frame(section.address);
        }
        for (name, set) in [
            (
                b".text".as_slice(),
                BaseAddresses::set_text as fn(BaseAddresses, u64) -> BaseAddresses,
            ),
            (b".got", BaseAddresses::set_got),
        ] {
            if let Some(section) = headers.section(name) {
                bases = set(bases, section.address);
            }
        }
        // In Go's programs it is compressed, and there is no other.
        let debug_frame = match headers.section(b".debug_frame") {
            Some(section) => expand::section(
                image,
                headers,
                section,
                LARGEST_TABLE,
                "unwind tables for debuggers",
            )?,
            None => Vec::new(),
        };
        let mut tables = Tables {
            arch: headers.arch,
            bases,
            eh_frame: eh_frame.into(),
            eh_frame_hdr: eh_frame_hdr.into(),
            index: Box::default(),
            debug_frame: debug_frame.into(),
            debug_index: Box::default(),
        };
        if !tables.has_sorted_header() {
            tables.eh_frame_hdr = Box::default();
            tables.index = index(&tables.eh_frame(), &tables.bases)?;
        }
        tables.debug_index = index(&tables.debug_frame(), &tables.bases)?;
        Ok(tables)
    }

    /// Bytes that the tables take.
    pub(crate) fn memory_bytes(&self) -> usize {
        let functions = self.index.len() + self.debug_index.len();
        self.eh_frame.len()
            + self.eh_frame_hdr.len()
            + self.debug_frame.len()
            + functions * size_of::<Function>()
    }

    /// Whether the index is as all linkers write it: numbers of four bytes, as many as it says. `gimli` takes its word for the latter.
    fn has_sorted_header(&self) -> bool {
        const ENCODINGS: [u8; 3] = [
            DW_EH_PE_pcrel.0 | DW_EH_PE_sdata4.0,
            DW_EH_PE_udata4.0,
            DW_EH_PE_datarel.0 | DW_EH_PE_sdata4.0,
        ];
        let Some((head, table)) = self.eh_frame_hdr.split_at_checked(12) else {
            return false;
        };
        let count = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        head[0] == 1 && head[1..4] == ENCODINGS && count > 0 && u64::from(count) * 8 <= table.len() as u64
    }

    fn eh_frame(&self) -> EhFrame<Bytes<'_>> {
        let mut section = EhFrame::new(&self.eh_frame, LittleEndian);
        section.set_address_size(8);
        section.set_vendor(self.vendor());
        section
    }

    fn debug_frame(&self) -> DebugFrame<Bytes<'_>> {
        let mut section = DebugFrame::new(&self.debug_frame, LittleEndian);
        section.set_address_size(8);
        section.set_vendor(self.vendor());
        section
    }

    fn vendor(&self) -> gimli::Vendor {
        match self.arch {
            Arch::X86_64 => gimli::Vendor::Default,
            Arch::Aarch64 => gimli::Vendor::AArch64,
        }
    }

    /// The rule for the instruction at `address`, as the module counts addresses.
    pub(crate) fn rule(
        &self,
        address: u64,
        context: &mut Context,
        work: &WorkBudget,
    ) -> Result<Rule, NoRule> {
        self.with_row(address, context, work, &mut |row, entry, section| {
            Ok(rule(self.arch, row, entry, section))
        })
    }

    /// Follows the tables without a rule.
    pub(crate) fn evaluate(
        &self,
        address: u64,
        context: &mut Context,
        registers: &mut Registers,
        stack: &StackCopy<'_>,
        work: &WorkBudget,
    ) -> Result<Result<bool, Stop>, NoRule> {
        self.with_row(address, context, work, &mut |row, entry, section| {
            work.spend(FOLLOWING)?;
            Ok(evaluate(row, entry, section, registers, stack, work))
        })
    }

    fn with_row<T>(
        &self,
        address: u64,
        context: &mut Context,
        work: &WorkBudget,
        then: &mut Visit<'_, T>,
    ) -> Result<T, NoRule> {
        work.spend(LOOKUP)?;
        let offset = if self.eh_frame_hdr.is_empty() {
            find(&self.index, address)
        } else {
            self.in_header(address)
        };
        let found = match offset {
            Some(offset) => {
                let place = Place { offset, address };
                row_at(&self.eh_frame(), &self.bases, place, context, work, then)
            }
            None if self.eh_frame.is_empty() && self.debug_frame.is_empty() => Err(NoRule::NoTables),
            None => Err(NoRule::NotCovered),
        };
        match (found, find(&self.debug_index, address)) {
            (Err(NoRule::NotCovered), Some(offset)) => {
                let place = Place { offset, address };
                row_at(&self.debug_frame(), &self.bases, place, context, work, then)
            }
            (found, _) => found,
        }
    }

    fn in_header(&self, address: u64) -> Option<usize> {
        let header = EhFrameHdr::new(&self.eh_frame_hdr, LittleEndian)
            .parse(&self.bases, 8)
            .ok()?;
        let table = header.table()?;
        let entry = table.lookup(address, &self.bases).ok()?.direct().ok()?;
        // `pointer_to_offset` subtracts without looking.
        let offset = entry.checked_sub(header.eh_frame_ptr().direct().ok()?)?;
        usize::try_from(offset).ok()
    }
}

/// The functions in a table, sorted.
fn index<'a, S: UnwindSection<Bytes<'a>> + Section<Bytes<'a>>>(
    section: &S,
    bases: &BaseAddresses,
) -> Result<Box<[Function]>, Unusable> {
    let mut functions = Vec::new();
    let mut entries = section.entries(bases);
    let mut work = (section.reader().len() as u64).saturating_mul(INDEXING);
    // Behind something malformed there is no telling where the next entry starts.
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let entry = u32::try_from(partial.offset());
        if let (Ok(entry), Ok(parsed)) = (entry, partial.parse(common_entry)) {
            work = work
                .checked_sub(parsed.cie().entry_len() as u64)
                .ok_or(Unusable::TooCostly("unwind tables"))?;
            functions.push(Function {
                start: parsed.initial_address(),
                entry,
            });
        }
    }
    functions.sort_unstable_by_key(|function| function.start);
    Ok(functions.into())
}

/// The common part of functions, unless it is too long.
fn common_entry<'a, S: UnwindSection<Bytes<'a>> + Section<Bytes<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    offset: S::Offset,
) -> gimli::Result<CommonInformationEntry<Bytes<'a>>> {
    // Reading it takes as long as it is.
    let mut entry = *section.reader();
    entry.skip(UnwindOffset::into(offset))?;
    let (bytes, _) = entry.read_initial_length()?;
    match bytes > LONGEST_ENTRY {
        true => Err(gimli::Error::UnsupportedOffset),
        false => section.cie_from_offset(bases, offset),
    }
}

fn find(functions: &[Function], address: u64) -> Option<usize> {
    let after = functions.partition_point(|function| function.start <= address);
    Some(functions.get(after.checked_sub(1)?)?.entry as usize)
}

/// An instruction, and where the entry for it should be in a table.
#[derive(Debug, Clone, Copy)]
struct Place {
    offset: usize,
    address: u64,
}

/// Finds the row for an instruction.
fn row_at<'a, T, S: UnwindSection<Bytes<'a>> + Section<Bytes<'a>> + Expressions>(
    section: &S,
    bases: &BaseAddresses,
    Place { offset, address }: Place,
    context: &mut Context,
    work: &WorkBudget,
    then: &mut Visit<'_, T>,
) -> Result<T, NoRule> {
    let entry = section
        .fde_from_offset(bases, S::Offset::from(offset), common_entry)
        .map_err(|_| NoRule::Malformed)?;
    // The common part of functions was read, even if the instruction is not in this one.
    let common = entry.cie().entry_len();
    work.spend(units(common))?;
    if !entry.contains(address) {
        return Err(NoRule::NotCovered);
    }
    if entry.entry_len() > LONGEST_ENTRY {
        return Err(NoRule::Malformed);
    }
    // Its instructions are followed until the row is found, and before them those that functions have in common. Each may look at all rules that the
    // others have set, for which they need two bytes.
    let bytes = common + entry.entry_len();
    work.spend(units(bytes + bytes * MOST_RULES.min(bytes / 2) / RULES_OF_UNIT))?;
    let row = entry
        .unwind_info_for_address(section, bases, context, address)
        .map_err(|_| NoRule::Malformed)?;
    then(row, &entry, section)
}

/// The units of work for so many bytes or steps.
fn units(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The expressions in a table, whichever it is.
trait Expressions {
    fn expression(&self, at: &UnwindExpression<usize>) -> Option<Expression<Bytes<'_>>>;
}

impl Expressions for EhFrame<Bytes<'_>> {
    fn expression(&self, at: &UnwindExpression<usize>) -> Option<Expression<Bytes<'_>>> {
        at.get(self).ok()
    }
}

impl Expressions for DebugFrame<Bytes<'_>> {
    fn expression(&self, at: &UnwindExpression<usize>) -> Option<Expression<Bytes<'_>>> {
        at.get(self).ok()
    }
}

/// The rule that a row of the table is, or that it is none.
fn rule(arch: Arch, row: &Row, entry: &Entry<'_>, section: &dyn Expressions) -> Rule {
    let return_address = row.register(entry.cie().return_address_register());
    if is_root(arch, return_address.as_ref()) {
        return Rule::ROOT;
    }
    simple_rule(arch, row, entry, section, return_address).unwrap_or(Rule::EVALUATED)
}

fn simple_rule(
    arch: Arch,
    row: &Row,
    entry: &Entry<'_>,
    section: &dyn Expressions,
    return_address: Option<RegisterRule<usize>>,
) -> Option<Rule> {
    let (kind, register, offset) = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => (RuleKind::Register, *register, *offset),
        // Functions that align their stack save where their caller's ended.
        CfaRule::Expression(at) => {
            let mut operations = section.expression(at)?.operations(entry.cie().encoding());
            let Some(Operation::RegisterOffset { register, offset, .. }) = operations.next().ok()? else {
                return None;
            };
            let Some(Operation::Deref {
                size: 8,
                space: false,
                ..
            }) = operations.next().ok()?
            else {
                return None;
            };
            if operations.next().ok()?.is_some() {
                return None;
            }
            (RuleKind::InStack, register, offset)
        }
    };
    if entry.is_signal_trampoline() {
        return None;
    }
    let mut rule = Rule {
        kind,
        base: u8::try_from(register.0).ok().filter(|&number| number < 32)?,
        offset: i32::try_from(offset).ok()?,
        return_address: slot(return_address)?,
        ..Rule::ROOT
    };
    for (place, &number) in rule.saved.iter_mut().zip(arch.preserved()) {
        *place = slot(row.register(Register(number.into())))?;
    }
    Some(rule)
}

/// Where a register is saved; `None` if that takes more than a slot.
fn slot(rule: Option<RegisterRule<usize>>) -> Option<Slot> {
    match rule {
        None | Some(RegisterRule::SameValue) => Some(UNCHANGED),
        Some(RegisterRule::Undefined) => Some(LOST),
        Some(RegisterRule::Offset(offset)) if offset % 8 == 0 => Slot::try_from(offset / 8)
            .ok()
            .filter(|&slot| slot != UNCHANGED && slot != LOST),
        Some(_) => None,
    }
}

/// Whether tables say with this rule for the return address that there is no caller. On aarch64 many functions that do not save the link register
/// have no rule at all.
fn is_root(arch: Arch, return_address: Option<&RegisterRule<usize>>) -> bool {
    match return_address {
        Some(RegisterRule::Undefined) => true,
        None => arch == Arch::X86_64,
        Some(_) => false,
    }
}

/// Goes to the caller as `row` says. Returns whether the function was the one to which signal handlers return.
fn evaluate(
    row: &Row,
    entry: &Entry<'_>,
    section: &dyn Expressions,
    registers: &mut Registers,
    stack: &StackCopy<'_>,
    work: &WorkBudget,
) -> Result<bool, Stop> {
    let compute = |at: &UnwindExpression<usize>, first| {
        let expression = section.expression(at).ok_or(Stop::Broken)?;
        compute(expression, entry, registers, stack, work, first)
    };
    let arch = registers.arch();
    let caller = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => registers
            .get(register.0)
            .ok_or(Stop::Broken)?
            .wrapping_add_signed(*offset),
        CfaRule::Expression(at) => compute(at, None)?,
    };
    let value = |number: u16, rule: Option<RegisterRule<usize>>| match rule {
        None | Some(RegisterRule::SameValue) => registers.get(number).ok_or(Stop::Broken),
        Some(RegisterRule::Offset(offset)) => Ok(stack.read(caller.wrapping_add_signed(offset))?),
        Some(RegisterRule::ValOffset(offset)) => Ok(caller.wrapping_add_signed(offset)),
        Some(RegisterRule::Register(other)) => registers.get(other.0).ok_or(Stop::Broken),
        Some(RegisterRule::Expression(at)) => Ok(stack.read(compute(&at, Some(caller))?)?),
        Some(RegisterRule::ValExpression(at)) => compute(&at, Some(caller)),
        Some(_) => Err(Stop::Broken),
    };
    let column = entry.cie().return_address_register();
    let pc = value(column.0, row.register(column))?;
    let signal = entry.is_signal_trampoline();
    // A signal handler may have a stack of its own.
    if caller <= registers.stack_pointer() && !signal {
        return Err(Stop::Broken);
    }

    let mut after = *registers;
    for &number in arch.preserved() {
        match value(number.into(), row.register(Register(number.into()))) {
            Ok(value) => after.set(number.into(), value),
            Err(Stop::OverBudget) => return Err(Stop::OverBudget),
            Err(_) => after.forget(number.into()),
        }
    }
    if signal {
        // The interrupted function had all its registers.
        for number in (0..32).filter(|number| !arch.preserved().contains(number)) {
            let rule = row.register(Register(number.into()));
            match value(number.into(), rule.or(Some(RegisterRule::Undefined))) {
                Ok(value) => after.set(number.into(), value),
                Err(Stop::OverBudget) => return Err(Stop::OverBudget),
                Err(_) => {}
            }
        }
    }
    if signal {
        after.resume(pc, caller);
    } else {
        after.leave(pc, caller);
    }
    *registers = after;
    Ok(signal)
}

/// The value of an expression. `first` is on its stack to begin with.
fn compute(
    expression: Expression<Bytes<'_>>,
    entry: &Entry<'_>,
    registers: &Registers,
    stack: &StackCopy<'_>,
    work: &WorkBudget,
    first: Option<u64>,
) -> Result<u64, Stop> {
    // Without a jump back there are no more steps than bytes, and hardly any expression has one.
    let mut most_steps = u32::try_from(expression.0.len())
        .unwrap_or(MOST_STEPS)
        .min(MOST_STEPS);
    work.spend(EXPRESSION + most_steps)?;
    loop {
        match compute_in_steps(expression, entry, registers, stack, first, most_steps) {
            Ok(value) => return Ok(value),
            Err(NoValue::Stopped(stop)) => return Err(stop),
            Err(NoValue::TooManySteps) if most_steps == MOST_STEPS => return Err(Stop::Broken),
            Err(NoValue::TooManySteps) => {
                work.spend(MOST_STEPS)?;
                most_steps = MOST_STEPS;
            }
        }
    }
}

/// Why an expression has no value.
enum NoValue {
    TooManySteps,
    Stopped(Stop),
}

impl From<gimli::Error> for NoValue {
    fn from(error: gimli::Error) -> NoValue {
        match error {
            gimli::Error::TooManyIterations => NoValue::TooManySteps,
            _ => NoValue::Stopped(Stop::Broken),
        }
    }
}

#[inline]
fn compute_in_steps(
    expression: Expression<Bytes<'_>>,
    entry: &Entry<'_>,
    registers: &Registers,
    stack: &StackCopy<'_>,
    first: Option<u64>,
    most_steps: u32,
) -> Result<u64, NoValue> {
    const BROKEN: NoValue = NoValue::Stopped(Stop::Broken);
    let mut evaluation: Evaluation<Bytes<'_>> = expression.evaluation(entry.cie().encoding());
    evaluation.set_max_iterations(most_steps);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut result = evaluation.evaluate()?;
    for _ in 0..MOST_QUESTIONS {
        result = match result {
            EvaluationResult::Complete => {
                return match evaluation.as_result().last().map(|piece| &piece.location) {
                    Some(Location::Address { address }) => Ok(*address),
                    _ => Err(BROKEN),
                };
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                // The column of the return address is the pc.
                let value = if register.0 == 16 && registers.arch() == Arch::X86_64 {
                    registers.pc()
                } else {
                    registers.get(register.0).ok_or(BROKEN)?
                };
                evaluation.resume_with_register(Value::Generic(value))
            }
            EvaluationResult::RequiresMemory {
                address,
                size: 8,
                space: None,
                ..
            } => {
                let value = stack
                    .read(address)
                    .map_err(|outside| NoValue::Stopped(outside.into()))?;
                evaluation.resume_with_memory(Value::Generic(value))
            }
            _ => return Err(BROKEN),
        }?;
    }
    Err(BROKEN)
}
