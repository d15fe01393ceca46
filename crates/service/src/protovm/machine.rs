//! The interpreter: runs a program over a packet and changes the state.
//!
//! A program has two cursors: the *source* in the packet, which is a value, and the *target* in the state, which is a borrowed node. A selection
//! moves one of them for the instructions nested in it, by recursion, so that coming back is returning. An element that a program deletes is emptied
//! at once, and the selection that entered it takes it out of its parent: until then no other instruction can look at it, and a cursor that still
//! points to it finds it deleted.

use std::fmt;

use ferretto_proto::messages::VmProgram;
use ferretto_wire::{Value, Writer};

use super::budget::Budget;
use super::map::NodesMut;
use super::program::{Absent, Cursor, Instruction, OnFailure, Operation, Program, ProgramError, Step};
use super::state::{Fields, Node, Scalar};

/// How many registers programs have.
const REGISTERS: usize = 32;

/// A program, its registers and its state.
#[derive(Debug)]
pub struct ProtoVm {
    program: Program,
    state: Node,
    registers: [Option<u64>; REGISTERS],
    budget: Budget,
    /// Counts merges.
    merges: u64,
}

/// The result of a program for a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The packet is in the state.
    Merged,
    /// The packet is not one for this program, which found nothing to work on. Earlier changes stay.
    Failed,
    /// Program and packet, or program and state, contradict each other, or a limit was reached. Earlier changes stay.
    Aborted(Abort),
}

impl ProtoVm {
    /// A machine with an empty state, which may take `memory_limit` bytes.
    ///
    /// # Errors
    /// If the program is too large.
    pub fn new(program: &VmProgram, memory_limit: u64) -> Result<Self, ProgramError> {
        Ok(Self {
            program: Program::new(program)?,
            state: Node::empty(),
            registers: [None; REGISTERS],
            budget: Budget::new(memory_limit),
            merges: 0,
        })
    }

    /// Runs the program over a packet, with no more work than `left`, from which it is taken.
    pub(crate) fn apply_within(&mut self, packet: &[u8], left: &mut u64) -> Outcome {
        self.budget.restrict(*left);
        let outcome = self.apply(packet);
        *left = self.budget.left_at_once();
        self.budget.restrict(u64::MAX);
        outcome
    }

    /// Runs the program over a packet.
    pub fn apply(&mut self, packet: &[u8]) -> Outcome {
        self.budget.earn(packet.len());
        let mut run = Run {
            registers: &mut self.registers,
            budget: &mut self.budget,
            merges: &mut self.merges,
        };
        let mut target = Target {
            node: Some(&mut self.state),
            place: Place::Root,
        };
        let source = Value::Bytes(packet);
        let flow = run.instructions(&self.program.instructions, source, &mut target, Saved::Elsewhere);
        match flow {
            Ok(()) => Outcome::Merged,
            Err(Stop::Failed) => Outcome::Failed,
            Err(Stop::Aborted(abort)) => Outcome::Aborted(*abort),
        }
    }

    /// Writes the state as the contents of the message `out`.
    pub fn write_state(&self, out: &mut Writer) {
        self.state.write(out);
    }

    /// Bytes that count for the state.
    pub(crate) fn memory_used(&self) -> u64 {
        self.budget.memory_used()
    }

    /// Asserts that the counted memory is the actual one.
    #[cfg(any(test, fuzzing))]
    pub(super) fn check_invariants(&self) {
        assert_eq!(self.budget.memory_used(), self.state.memory_in_all());
    }
}

/// Why a program was aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    reason: Reason,
    /// Indices of the instruction and of the instructions around it, the innermost first.
    at: Vec<usize>,
}

impl Abort {
    /// Whether the reason is one of our limits, and not the program.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_limit(&self) -> bool {
        matches!(self.reason, Reason::OutOfMemory { .. } | Reason::TooMuchWork)
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, index) in self.at.iter().rev().enumerate() {
            let list = if depth == 0 {
                "instructions"
            } else {
                ".nested_instructions"
            };
            write!(f, "{list}[{index}]")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for Abort {}

/// Why an instruction cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    UnknownInstruction,
    CreatesInPacket,
    PathWithoutField,
    NoSuchField(u32),
    IteratesOverBoth,
    KeyedPacket,
    NoRegister,
    RegisterOutOfRange(u8),
    RegisterNotSet(u8),
    /// A field of the packet was entered or merged.
    NoMessageInPacket,
    /// A field of the packet was loaded.
    NoNumberInPacket,
    /// A field of the state was loaded.
    NoNumberInState,
    WrongKind {
        is: &'static str,
        wanted: &'static str,
    },
    NumberAsState,
    LeavesGap,
    NoKey(u32),
    MergesKeyed(u32),
    Deleted,
    DeletesSelected,
    OnFailure,
    OutOfMemory {
        limit: u64,
    },
    TooMuchWork,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::UnknownInstruction => f.write_str("this version knows no such instruction"),
            Reason::CreatesInPacket => {
                f.write_str("create_if_not_exist is for the state: nothing can be created in a packet")
            }
            Reason::PathWithoutField => f.write_str("a part of a path has no field_id where it needs one"),
            Reason::NoSuchField(field) => write!(f, "no field can have the number {field}"),
            Reason::IteratesOverBoth => {
                f.write_str("is_repeated is for one of the two cursors, VM_CURSOR_SRC or VM_CURSOR_DST")
            }
            Reason::KeyedPacket => {
                f.write_str("map_key_field_id is for the state: elements of a packet are not found by key")
            }
            Reason::NoRegister => f.write_str("map_key_field_id needs a register_to_match"),
            Reason::RegisterOutOfRange(register) => {
                write!(f, "there is no register {register}, only 0 to {}", REGISTERS - 1)
            }
            Reason::RegisterNotSet(register) => write!(f, "nothing was loaded into register {register}"),
            Reason::NoMessageInPacket => f.write_str("the field of the packet is a number and no message"),
            Reason::NoNumberInPacket => f.write_str("the field of the packet is no number"),
            Reason::NoNumberInState => f.write_str("the field of the state is no number"),
            Reason::WrongKind { is, wanted } => {
                write!(f, "the field of the state is a {is} and cannot become a {wanted}")
            }
            Reason::NumberAsState => f.write_str("the state is a message and cannot become a number"),
            Reason::LeavesGap => {
                f.write_str("an element can only be added right behind the last one of the repeated field")
            }
            Reason::NoKey(field) => {
                write!(
                    f,
                    "an element of the repeated field has no number in its field {field}, by which it is to be found"
                )
            }
            Reason::MergesKeyed(field) => {
                write!(
                    f,
                    "field {field} of the state is a list by key, and those cannot be merged"
                )
            }
            Reason::Deleted => f.write_str("the field of the state was deleted"),
            Reason::DeletesSelected => f.write_str(
                "the field of the state is still selected outside: a selection within one cannot delete it",
            ),
            Reason::OnFailure => f.write_str("it found nothing to work on, and its abort_level is ABORT"),
            Reason::OutOfMemory { limit } => {
                write!(
                    f,
                    "the state needs more than the {limit} bytes of its memory_limit_kb"
                )
            }
            Reason::TooMuchWork => f.write_str("the program takes too long for the size of the packets"),
        }
    }
}

/// Why instructions were not run to their end.
#[derive(Debug)]
pub(super) enum Stop {
    /// An instruction found nothing to work on.
    Failed,
    /// The program is over.
    Aborted(Box<Abort>),
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Self {
        Stop::Aborted(Box::new(Abort {
            reason,
            at: Vec::new(),
        }))
    }
}

/// The cursor in the state.
struct Target<'s> {
    /// `None` once it is deleted.
    node: Option<&'s mut Node>,
    place: Place,
}

/// The place of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The root of the state.
    Root,
    /// An element that an iteration entered, which finds its way from it to the next one.
    InIteration,
    /// An element that was entered by its number, index or key.
    Entered,
}

/// The place of the target when the innermost selection began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saved {
    /// At the current target: deleting it would leave the selection with nothing to come back to.
    Here,
    Elsewhere,
}

impl Target<'_> {
    fn node(&mut self) -> Result<&mut Node, Reason> {
        self.node.as_deref_mut().ok_or(Reason::Deleted)
    }
}

/// A selection, without its path.
#[derive(Clone, Copy)]
struct Selection<'p> {
    cursor: Cursor,
    absent: Absent,
    /// Run at the end of the path.
    nested: &'p [Instruction],
}

/// One run of a program.
struct Run<'m> {
    registers: &'m mut [Option<u64>; REGISTERS],
    budget: &'m mut Budget,
    merges: &'m mut u64,
}

impl Run<'_> {
    fn instructions(
        &mut self,
        instructions: &[Instruction],
        source: Value<'_>,
        target: &mut Target<'_>,
        saved: Saved,
    ) -> Result<(), Stop> {
        for (index, instruction) in instructions.iter().enumerate() {
            let mut flow = self.instruction(instruction, source, target, saved);
            if let Err(Stop::Failed) = flow {
                flow = match instruction.on_failure {
                    OnFailure::Skip => Ok(()),
                    OnFailure::BreakOuter => return Err(Stop::Failed),
                    OnFailure::Abort => Err(Reason::OnFailure.into()),
                };
            }
            if let Err(Stop::Aborted(abort)) = &mut flow {
                abort.at.push(index);
            }
            flow?;
        }
        Ok(())
    }

    fn instruction(
        &mut self,
        instruction: &Instruction,
        source: Value<'_>,
        target: &mut Target<'_>,
        saved: Saved,
    ) -> Result<(), Stop> {
        self.budget.work(1)?;
        let nested = &instruction.nested;
        match &instruction.operation {
            Operation::Select { cursor, path, absent } => {
                let end = Selection {
                    cursor: *cursor,
                    absent: *absent,
                    nested,
                };
                return match cursor {
                    Cursor::Source => self.in_packet(path, end, source, target),
                    Cursor::Target | Cursor::Both => self.in_state(path, end, source, target, Saved::Here),
                };
            }
            Operation::Load { cursor, register } => self.load(*cursor, *register, source, target)?,
            Operation::Delete => self.delete(target, saved)?,
            Operation::Merge(rules) => {
                let message = source.as_bytes().ok_or(Reason::NoMessageInPacket)?;
                *self.merges += 1;
                target.node()?.merge(message, *rules, *self.merges, self.budget)?;
            }
            Operation::Set => self.set(source, target)?,
            Operation::Impossible(reason) => return Err((*reason).into()),
        }
        self.instructions(nested, source, target, saved)
    }

    fn load(
        &mut self,
        cursor: Cursor,
        register: u8,
        source: Value<'_>,
        target: &mut Target<'_>,
    ) -> Result<(), Stop> {
        let place = self
            .registers
            .get_mut(usize::from(register))
            .ok_or(Reason::RegisterOutOfRange(register))?;
        let number = match cursor {
            Cursor::Source => Scalar::of(source).ok_or(Reason::NoNumberInPacket)?,
            Cursor::Target | Cursor::Both => target.node()?.scalar().ok_or(Reason::NoNumberInState)?,
        };
        *place = Some(number.bits());
        Ok(())
    }

    fn delete(&mut self, target: &mut Target<'_>, saved: Saved) -> Result<(), Stop> {
        let entered = target.place == Place::Entered;
        if target.node.is_some() && entered && saved == Saved::Here {
            return Err(Reason::DeletesSelected.into());
        }
        target.node()?.clear(self.budget);
        if entered {
            target.node = None;
        }
        Ok(())
    }

    fn set(&mut self, source: Value<'_>, target: &mut Target<'_>) -> Result<(), Reason> {
        if let Value::Bytes(bytes) = source {
            return target.node()?.set_bytes(bytes, self.budget);
        }
        // Upstream takes it, and crashes when it writes the state.
        if target.place == Place::Root {
            return Err(Reason::NumberAsState);
        }
        let number = Scalar::of(source).ok_or(Reason::NoNumberInPacket)?;
        target.node()?.set_scalar(number)
    }

    /// Follows a path in the packet, and runs the nested instructions at its end.
    fn in_packet(
        &mut self,
        path: &[Step],
        end: Selection<'_>,
        source: Value<'_>,
        target: &mut Target<'_>,
    ) -> Result<(), Stop> {
        let Some((step, path)) = path.split_first() else {
            return self.instructions(end.nested, source, target, Saved::Here);
        };
        self.budget.work(1)?;
        let (field, index) = match step {
            Step::Field(field) => (*field, Some(0)),
            Step::At { field, index } => (*field, Some(*index)),
            Step::Each(field) => (*field, None),
            Step::Keyed { .. } => return Err(Reason::KeyedPacket.into()),
            Step::Impossible(reason) => return Err((*reason).into()),
        };
        let mut earlier = 0;
        let mut candidates = Fields::of(source.as_bytes().ok_or(Reason::NoMessageInPacket)?);
        while let Some(candidate) = candidates.next(self.budget)? {
            if candidate.number != field {
                continue;
            }
            match index {
                None => self.in_packet(path, end, candidate.value, target)?,
                Some(index) if earlier == index => {
                    return self.in_packet(path, end, candidate.value, target);
                }
                Some(_) => earlier += 1,
            }
        }
        match index {
            None => Ok(()),
            Some(_) => Err(Stop::Failed),
        }
    }

    /// Follows a path in the state, and runs the nested instructions at its end.
    fn in_state(
        &mut self,
        path: &[Step],
        end: Selection<'_>,
        source: Value<'_>,
        target: &mut Target<'_>,
        saved: Saved,
    ) -> Result<(), Stop> {
        let Some((step, path)) = path.split_first() else {
            return self.instructions(end.nested, source, target, saved);
        };
        self.budget.work(1)?;
        let parent = target.node()?;
        let (field, element, node) = match step {
            Step::Field(field) => (*field, None, parent.enter(*field, end.absent, self.budget)?),
            Step::At { field, index } => {
                let node = parent.enter_at(*field, *index, self.budget)?;
                (*field, Some(u64::from(*index)), node)
            }
            Step::Keyed {
                field,
                key_field,
                register,
            } => {
                let key = self.key(*register)?;
                let node = parent.enter_keyed(*field, *key_field, key, end.absent, self.budget)?;
                (*field, Some(key), node)
            }
            Step::Each(_) if end.cursor == Cursor::Both => return Err(Reason::IteratesOverBoth.into()),
            Step::Each(field) => {
                let Some(elements) = parent.each(*field, self.budget)? else {
                    return Ok(());
                };
                return self.for_each(elements, path, end, source);
            }
            Step::Impossible(reason) => return Err((*reason).into()),
        };
        let mut entered = Target {
            node: Some(node),
            place: Place::Entered,
        };
        let flow = self.in_state(path, end, source, &mut entered, Saved::Elsewhere);
        if entered.node.is_none() {
            target.node()?.remove(field, element, self.budget);
        }
        flow
    }

    /// Follows a path from each of the elements of a repeated field of the state.
    fn for_each(
        &mut self,
        elements: NodesMut<'_>,
        path: &[Step],
        end: Selection<'_>,
        source: Value<'_>,
    ) -> Result<(), Stop> {
        for node in elements {
            self.budget.work(1)?;
            let mut element = Target {
                node: Some(node),
                place: Place::InIteration,
            };
            self.in_state(path, end, source, &mut element, Saved::Elsewhere)?;
        }
        Ok(())
    }

    /// The key by which elements are found. Upstream looks for the lower 32 bits of the register.
    fn key(&self, register: Option<u8>) -> Result<u64, Reason> {
        let register = register.ok_or(Reason::NoRegister)?;
        let place = self
            .registers
            .get(usize::from(register))
            .ok_or(Reason::RegisterOutOfRange(register))?;
        let key = place.ok_or(Reason::RegisterNotSet(register))?;
        Ok(u64::from(key as u32))
    }
}
