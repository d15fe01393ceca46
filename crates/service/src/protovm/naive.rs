//! The same machine in its plainest form: a table of paths and values, cursors that are paths, and the program run as it is encoded. The interpreter
//! of arbitrary bytes compares it with the real one.
//!
//! Its memory is unlimited, and it gives up after [`STEPS`].

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::vm_instruction::{AbortLevel, Operation};
use ferretto_proto::messages::vm_op_select::PathComponent;
use ferretto_proto::messages::vm_op_select::path_component::Field as Part;
use ferretto_proto::messages::{
    UnknownFields, VmCursorEnum, VmInstruction, VmOpMerge, VmOpSelect, VmProgram,
};
use ferretto_wire::{Reader, Value, Writer};

const STEPS: usize = 100_000;
/// Fields above are passed over.
const LAST_FIELD: u32 = 0xff_ffff;

/// Field numbers; behind one of a repeated field, the index or key of an element.
type Path = Vec<u64>;

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Empty,
    Bytes(Vec<u8>),
    /// Wire type and bits.
    Number(u8, u64),
    Message,
    Indexed,
    Keyed,
}

/// How a run ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Failed,
    Aborted,
    /// How it would have ended is unknown.
    GivenUp,
}

pub(super) struct Naive {
    program: VmProgram,
    state: BTreeMap<Path, Kind>,
    registers: [Option<u64>; 32],
    steps: usize,
}

#[derive(Clone)]
struct Cursors<'p> {
    source: Value<'p>,
    /// `None` once deleted.
    target: Option<Path>,
    /// Upstream takes elements that an iteration entered for the root.
    target_is_root: bool,
    /// The target when the innermost selection began.
    saved: Option<Option<Path>>,
}

/// An element of a repeated field: of the packet, or of the state.
type Element<'p> = (Option<Value<'p>>, Option<Path>);

/// The side that a selection moves: 1 and 2, or anything else.
fn side(cursor: Option<VmCursorEnum>, unknown: &UnknownFields) -> i32 {
    let default = if unknown.iter().any(|field| field.number == 1) {
        3
    } else {
        1
    };
    cursor.map_or(default, |cursor| cursor as i32)
}

fn fields(message: &[u8]) -> Vec<(u32, Value<'_>)> {
    let fields = Reader::new(message).map_while(Result::ok);
    let fields = fields.map(|field| (field.number, field.value));
    fields.filter(|(number, _)| *number <= LAST_FIELD).collect()
}

fn kind(value: Value<'_>) -> Kind {
    match value {
        Value::Varint(bits) => Kind::Number(0, bits),
        Value::Fixed64(bits) => Kind::Number(1, bits),
        Value::Fixed32(bits) => Kind::Number(5, bits.into()),
        Value::Bytes(bytes) => Kind::Bytes(bytes.to_vec()),
    }
}

impl Naive {
    pub(super) fn new(program: &VmProgram) -> Self {
        Self {
            program: program.clone(),
            state: BTreeMap::from([(Vec::new(), Kind::Empty)]),
            registers: [None; 32],
            steps: 0,
        }
    }

    pub(super) fn apply(&mut self, packet: &[u8]) -> Result<(), End> {
        let mut cursors = Cursors {
            source: Value::Bytes(packet),
            target: Some(Vec::new()),
            target_is_root: true,
            saved: None,
        };
        self.steps = 0;
        let program = self.program.clone();
        self.instructions(&program.instructions, &mut cursors)
    }

    pub(super) fn encoded_state(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match &self.state[&Vec::new()] {
            Kind::Bytes(bytes) => out.raw(bytes),
            _ => self.write_children(&Vec::new(), &mut out),
        }
        out.into_vec()
    }

    fn children(&self, path: &Path) -> Vec<Path> {
        let below = self.state.range(path.clone()..);
        let below = below.take_while(|(other, _)| other.starts_with(path));
        below
            .filter(|(other, _)| other.len() == path.len() + 1)
            .map(|(other, _)| other.clone())
            .collect()
    }

    fn write_children(&self, path: &Path, out: &mut Writer) {
        for child in self.children(path) {
            self.write(&child, child[path.len()] as u32, out);
        }
    }

    fn write(&self, path: &Path, field: u32, out: &mut Writer) {
        match &self.state[path] {
            Kind::Empty => {}
            Kind::Bytes(bytes) => out.bytes_field(field, bytes),
            Kind::Number(0, bits) => out.varint_field(field, *bits),
            Kind::Number(1, bits) => out.fixed64_field(field, *bits),
            Kind::Number(_, bits) => out.fixed32_field(field, *bits as u32),
            Kind::Message => out.nested(field, |out| self.write_children(path, out)),
            Kind::Indexed | Kind::Keyed => {
                for child in self.children(path) {
                    self.write(&child, field, out);
                }
            }
        }
    }

    fn remove(&mut self, path: &Path) {
        self.state.retain(|other, _| !other.starts_with(path));
    }

    fn put(&mut self, path: &Path, kind: Kind) {
        self.remove(path);
        self.state.insert(path.clone(), kind);
    }

    /// Moves the value at `from`, and all below it, to `to`: one level deeper, or elsewhere beside it.
    fn relocate(&mut self, from: &Path, to: &Path) {
        let moved: Vec<(Path, Kind)> = self
            .state
            .iter()
            .filter(|(path, _)| path.starts_with(from))
            .map(|(path, kind)| ([to.as_slice(), &path[from.len()..]].concat(), kind.clone()))
            .collect();
        self.remove(from);
        self.state.extend(moved);
    }

    fn instructions(&mut self, list: &[VmInstruction], cursors: &mut Cursors<'_>) -> Result<(), End> {
        for instruction in list {
            self.steps += 1;
            if self.steps > STEPS {
                return Err(End::GivenUp);
            }
            if let Err(end) = self.instruction(instruction, cursors) {
                let unknown_level = instruction.unknown_fields.iter().any(|field| field.number == 6);
                match (end, instruction.abort_level) {
                    (End::Failed, None) if unknown_level => {}
                    (End::Failed, Some(AbortLevel::SKIP_CURRENT_INSTRUCTION)) => {}
                    (End::Failed, Some(AbortLevel::ABORT)) => return Err(End::Aborted),
                    _ => return Err(end),
                }
            }
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &VmInstruction, cursors: &mut Cursors<'_>) -> Result<(), End> {
        let target = |cursors: &Cursors<'_>| cursors.target.clone().ok_or(End::Aborted);
        match instruction.operation.as_ref().ok_or(End::Aborted)? {
            Operation::Select(select) => {
                let before = cursors.clone();
                cursors.saved = Some(before.target.clone());
                let creates_in_source = side(select.cursor, &select.unknown_fields) == 1
                    && select.create_if_not_exist == Some(true);
                let end = if creates_in_source {
                    Err(End::Aborted)
                } else {
                    self.select(select, &select.relative_path, instruction, cursors)
                };
                *cursors = before;
                return end;
            }
            Operation::RegLoad(load) => {
                let register = (load.dst_register.unwrap_or_default() & 0xff) as usize;
                if register >= 32 {
                    return Err(End::Aborted);
                }
                let from = match side(load.cursor, &load.unknown_fields) {
                    1 => kind(cursors.source),
                    _ => self.state[&target(cursors)?].clone(),
                };
                let Kind::Number(_, bits) = from else {
                    return Err(End::Aborted);
                };
                self.registers[register] = Some(bits);
            }
            Operation::Merge(merge) => {
                let Value::Bytes(message) = cursors.source else {
                    return Err(End::Aborted);
                };
                self.merge(&target(cursors)?, message, merge)?;
            }
            Operation::Set(_) => {
                let path = target(cursors)?;
                let new = kind(cursors.source);
                let fits = match (&new, &self.state[&path]) {
                    (Kind::Bytes(_), Kind::Empty | Kind::Bytes(_) | Kind::Message) => true,
                    (Kind::Number(..), Kind::Empty | Kind::Number(..)) => !path.is_empty(),
                    _ => false,
                };
                if !fits {
                    return Err(End::Aborted);
                }
                self.put(&path, new);
            }
            Operation::Del(_) => {
                let path = target(cursors)?;
                if cursors.target_is_root {
                    self.put(&path, Kind::Empty);
                } else if cursors.saved == Some(Some(path.clone())) {
                    return Err(End::Aborted);
                } else {
                    self.remove(&path);
                    cursors.target = None;
                }
            }
        }
        self.instructions(&instruction.nested_instructions, cursors)
    }

    fn select(
        &mut self,
        select: &VmOpSelect,
        path: &[PathComponent],
        instruction: &VmInstruction,
        cursors: &mut Cursors<'_>,
    ) -> Result<(), End> {
        self.steps += 1;
        let [component, rest @ ..] = path else {
            return self.instructions(&instruction.nested_instructions, cursors);
        };
        let Some(Part::FieldId(field)) = component.field else {
            return Err(End::Aborted);
        };
        let in_source = side(select.cursor, &select.unknown_fields) == 1;
        if !in_source && !(1..=LAST_FIELD).contains(&field) {
            return Err(End::Aborted);
        }
        if component.is_repeated == Some(true) {
            let elements: Vec<(Option<Value<'_>>, Option<Path>)> =
                match side(select.cursor, &select.unknown_fields) {
                    1 => self.source_elements(cursors, field)?,
                    2 => {
                        let elements = self.target_elements(cursors, field)?;
                        elements.into_iter().map(|path| (None, Some(path))).collect()
                    }
                    _ => return Err(End::Aborted),
                };
            for (source, target) in elements {
                if let Some(source) = source {
                    cursors.source = source;
                }
                if target.is_some() {
                    cursors.target = target;
                    cursors.target_is_root = true;
                }
                self.select(select, rest, instruction, cursors)?;
            }
            return Ok(());
        }
        let second = rest.first().map(|next| (next, &next.field));
        let (element, rest) = match second {
            Some((_, Some(Part::ArrayIndex(index)))) => (Some((None, u64::from(*index))), &rest[1..]),
            Some((next, Some(Part::MapKeyFieldId(key_field)))) => {
                let register = next.register_to_match.ok_or(End::Aborted)? & 0xff;
                let key = self.registers.get(register as usize).ok_or(End::Aborted)?;
                let key = key.ok_or(End::Aborted)? & 0xffff_ffff;
                (Some((Some(*key_field), key)), &rest[1..])
            }
            _ => (None, rest),
        };
        if in_source {
            let index = match element {
                None => 0,
                Some((None, index)) => index as usize,
                Some((Some(_), _)) => return Err(End::Aborted),
            };
            let elements = self.source_elements(cursors, field)?;
            let (source, _) = elements.get(index).ok_or(End::Failed)?;
            cursors.source = source.ok_or(End::Failed)?;
        } else {
            let creates = select.create_if_not_exist == Some(true);
            self.enter(cursors, field, element, creates)?;
        }
        self.select(select, rest, instruction, cursors)
    }

    fn source_elements<'p>(&mut self, cursors: &Cursors<'p>, field: u32) -> Result<Vec<Element<'p>>, End> {
        let Value::Bytes(message) = cursors.source else {
            return Err(End::Aborted);
        };
        let all = fields(message);
        self.steps += all.len();
        let elements = all.into_iter().filter(|(number, _)| *number == field);
        Ok(elements.map(|(_, value)| (Some(value), None)).collect())
    }

    fn target_elements(&mut self, cursors: &Cursors<'_>, field: u32) -> Result<Vec<Path>, End> {
        let message = cursors.target.clone().ok_or(End::Aborted)?;
        self.become_message(&message)?;
        let list = [message.as_slice(), &[field.into()]].concat();
        if !self.state.contains_key(&list) {
            return Ok(Vec::new());
        }
        self.become_indexed(&list)?;
        Ok(self.children(&list))
    }

    /// Moves the target into a field, or into an element of one: with a field for its key by key, without by index.
    fn enter(
        &mut self,
        cursors: &mut Cursors<'_>,
        field: u32,
        element: Option<(Option<u32>, u64)>,
        creates: bool,
    ) -> Result<(), End> {
        let message = cursors.target.clone().ok_or(End::Aborted)?;
        self.become_message(&message)?;
        let mut path = [message.as_slice(), &[field.into()]].concat();
        let by_index = matches!(element, Some((None, _)));
        if !creates && !by_index && !self.state.contains_key(&path) {
            return Err(End::Failed);
        }
        self.state.entry(path.clone()).or_insert(Kind::Empty);
        match element {
            None if matches!(self.state[&path], Kind::Indexed | Kind::Keyed) => return Err(End::Aborted),
            None => {}
            Some((None, index)) => {
                self.become_indexed(&path)?;
                let count = self.children(&path).len() as u64;
                path.push(index);
                if !self.state.contains_key(&path) && index > count {
                    return Err(End::Aborted);
                }
                self.state.entry(path.clone()).or_insert(Kind::Empty);
            }
            Some((Some(key_field), key)) => {
                self.become_keyed(&path, key_field)?;
                path.push(key);
                self.state.entry(path.clone()).or_insert(Kind::Empty);
            }
        }
        cursors.target = Some(path);
        cursors.target_is_root = false;
        Ok(())
    }

    fn become_message(&mut self, path: &Path) -> Result<(), End> {
        match self.state[path].clone() {
            Kind::Message => {}
            Kind::Empty => self.put(path, Kind::Message),
            Kind::Bytes(bytes) => {
                self.put(path, Kind::Message);
                let mut values: BTreeMap<u32, Vec<Value<'_>>> = BTreeMap::new();
                for (number, value) in fields(&bytes) {
                    self.steps += 1;
                    values.entry(number).or_default().push(value);
                }
                for (number, values) in values {
                    let field = [path.as_slice(), &[number.into()]].concat();
                    if let [only] = values[..] {
                        self.put(&field, kind(only));
                        continue;
                    }
                    self.put(&field, Kind::Indexed);
                    for (index, value) in values.into_iter().enumerate() {
                        self.put(&[field.as_slice(), &[index as u64]].concat(), kind(value));
                    }
                }
            }
            _ => return Err(End::Aborted),
        }
        Ok(())
    }

    fn become_indexed(&mut self, path: &Path) -> Result<(), End> {
        match self.state[path] {
            Kind::Indexed => {}
            Kind::Empty => self.put(path, Kind::Indexed),
            Kind::Keyed => return Err(End::Aborted),
            _ => {
                self.relocate(path, &[path.as_slice(), &[0]].concat());
                self.state.insert(path.clone(), Kind::Indexed);
            }
        }
        Ok(())
    }

    fn become_keyed(&mut self, path: &Path, key_field: u32) -> Result<(), End> {
        match self.state[path] {
            Kind::Keyed => {}
            Kind::Empty => self.put(path, Kind::Keyed),
            Kind::Bytes(_) | Kind::Message => {
                let key = self.key(path, key_field)?;
                self.relocate(path, &[path.as_slice(), &[key]].concat());
                self.state.insert(path.clone(), Kind::Keyed);
            }
            Kind::Indexed => {
                let elements = self.children(path);
                let mut keys = Vec::new();
                for element in &elements {
                    keys.push(self.key(element, key_field)?);
                }
                let mut taken = BTreeSet::new();
                let mut keyed = Naive::new(&VmProgram::default());
                keyed.state = BTreeMap::from([(path.clone(), Kind::Keyed)]);
                for (element, key) in elements.iter().zip(keys) {
                    if taken.insert(key) {
                        let below = self.state.iter().filter(|(other, _)| other.starts_with(element));
                        for (other, kind) in below {
                            let moved = [path.as_slice(), &[key], &other[element.len()..]].concat();
                            keyed.state.insert(moved, kind.clone());
                        }
                    }
                }
                self.remove(path);
                self.state.extend(keyed.state);
            }
            Kind::Number(..) => return Err(End::Aborted),
        }
        Ok(())
    }

    fn key(&mut self, path: &Path, key_field: u32) -> Result<u64, End> {
        let found = match &self.state[path] {
            Kind::Bytes(bytes) => {
                let all = fields(bytes);
                let found = all.iter().find(|(number, _)| *number == key_field);
                found.map(|(_, value)| kind(*value))
            }
            Kind::Message => {
                let field = [path.as_slice(), &[key_field.into()]].concat();
                self.state.get(&field).cloned()
            }
            _ => None,
        };
        match found {
            Some(Kind::Number(_, bits)) => Ok(bits),
            _ => Err(End::Aborted),
        }
    }

    fn merge(&mut self, path: &Path, message: &[u8], merge: &VmOpMerge) -> Result<(), End> {
        if !matches!(self.state[path], Kind::Empty | Kind::Bytes(_) | Kind::Message) {
            return Err(End::Aborted);
        }
        if message.is_empty() {
            return Ok(());
        }
        self.become_message(path)?;
        let mut merged = BTreeSet::new();
        for (number, value) in fields(message) {
            self.steps += 1;
            let field = [path.as_slice(), &[number.into()]].concat();
            let there = self.state.get(&field).cloned();
            if there.is_some() && merge.del_if_src_empty == Some(true) && value == Value::Bytes(&[]) {
                self.remove(&field);
                merged.remove(&number);
                continue;
            }
            if there == Some(Kind::Message) && merge.skip_submessages == Some(true) {
                continue;
            }
            let again = !merged.insert(number);
            match there {
                None => self.put(&field, kind(value)),
                Some(Kind::Keyed) => return Err(End::Aborted),
                Some(Kind::Indexed) if !again => {
                    self.put(&field, Kind::Indexed);
                    self.put(&[field.as_slice(), &[0]].concat(), kind(value));
                }
                Some(_) if again => {
                    self.become_indexed(&field)?;
                    let count = self.children(&field).len() as u64;
                    self.put(&[field.as_slice(), &[count]].concat(), kind(value));
                }
                Some(_) => self.put(&field, kind(value)),
            }
        }
        Ok(())
    }
}
