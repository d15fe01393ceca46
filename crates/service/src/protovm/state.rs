//! The incremental state: a message without a schema, as a tree of nodes that get their types from their use.
//!
//! Bytes stay bytes until a program enters them; then they become a message. A field that came once is itself until a program takes it for a repeated
//! one; then it becomes the first element of a list (*indexed*), or of a list that is searched by a field of its elements (*keyed*). There is no way
//! back from keyed to indexed. A change to a type that the node cannot have gives the [`Reason`] to abort. Every change takes memory from the
//! [`Budget`] or gives it back, and one that fails leaves the node as it was.
//!
//! Called by the machine only, with field numbers from 1 to [`MAX_FIELD`] where nodes are created. Trees are as deep as the
//! paths of the program are long, which is bounded.

use ferretto_wire::{Field, Reader, Value, Writer};

use super::budget::{Budget, ENTRY};
use super::machine::{Reason, Stop};
use super::map::{Map, NodesMut};
use super::program::{Absent, Empty, MergeRules, Submessages};

/// The largest field number for programs: upstream's decoder passes over fields with higher ones.
pub(super) const MAX_FIELD: u32 = (1 << 24) - 1;

/// The fields of an encoded message, up to the first that is malformed.
pub(super) struct Fields<'m>(Reader<'m>);

impl<'m> Fields<'m> {
    pub(super) fn of(message: &'m [u8]) -> Self {
        Self(Reader::new(message))
    }

    /// The next one. It takes work, and so do those before it that are passed over.
    pub(super) fn next(&mut self, budget: &mut Budget) -> Result<Option<Field<'m>>, Reason> {
        while let Some(field) = self.0.next_field() {
            budget.work(1)?;
            if field.number <= MAX_FIELD {
                return Ok(Some(field));
            }
        }
        Ok(None)
    }
}

/// A number as it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
}

impl Scalar {
    /// The number, if the field has one.
    pub(super) fn of(value: Value<'_>) -> Option<Self> {
        match value {
            Value::Varint(number) => Some(Scalar::Varint(number)),
            Value::Fixed32(number) => Some(Scalar::Fixed32(number)),
            Value::Fixed64(number) => Some(Scalar::Fixed64(number)),
            Value::Bytes(_) => None,
        }
    }

    /// Its bits.
    pub(super) fn bits(self) -> u64 {
        match self {
            Scalar::Varint(number) | Scalar::Fixed64(number) => number,
            Scalar::Fixed32(number) => number.into(),
        }
    }
}

/// The content of a node.
#[derive(Debug)]
enum Content {
    /// Entered and not yet set. Not encoded.
    Empty,
    /// A string, or a message that no program has entered.
    Bytes(Box<[u8]>),
    Scalar(Scalar),
    /// Fields by number.
    Message(Box<Map>),
    /// Elements of a repeated field, by index; deleted ones leave gaps.
    Indexed(Box<Map>),
    /// A list, by one field of its elements.
    Keyed(Box<Map>),
}

impl Content {
    /// The reason that it is not of the wanted type.
    fn is_no(&self, wanted: &'static str) -> Reason {
        let is = match self {
            Content::Empty => "field that was not set",
            Content::Bytes(_) => "string or message",
            Content::Scalar(_) => "number",
            Content::Message(_) => "message",
            Content::Indexed(_) => "list by index",
            Content::Keyed(_) => "list by key",
        };
        Reason::WrongKind { is, wanted }
    }
}

/// A field of the state, or the state itself.
#[derive(Debug)]
pub(super) struct Node {
    content: Content,
    /// The merge that wrote it last: a field that comes twice in one merge is a repeated one.
    merged_in: u64,
}

impl Node {
    /// A node that was not set yet.
    pub(super) const fn empty() -> Self {
        Self::of(Content::Empty)
    }

    const fn of(content: Content) -> Self {
        Self {
            content,
            merged_in: 0,
        }
    }

    /// Bytes of memory that it counts beyond its own entry.
    fn memory(&self) -> u64 {
        match &self.content {
            Content::Empty | Content::Scalar(_) => 0,
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Message(map) | Content::Indexed(map) | Content::Keyed(map) => memory(map),
        }
    }

    /// Makes it empty.
    pub(super) fn clear(&mut self, budget: &mut Budget) {
        budget.give_back(self.memory());
        *self = Node::empty();
    }

    /// Returns its fields, after turning it into a message.
    fn message(&mut self, budget: &mut Budget) -> Result<&mut Map, Reason> {
        match &self.content {
            Content::Empty => self.content = Content::Message(Box::new(Map::new())),
            Content::Bytes(bytes) => {
                let map = take_apart(bytes, budget)?;
                budget.give_back(bytes.len() as u64);
                self.content = Content::Message(Box::new(map));
            }
            _ => {}
        }
        match &mut self.content {
            Content::Message(map) => Ok(map),
            other => Err(other.is_no("message")),
        }
    }

    /// Returns its elements, after turning it into a repeated field.
    fn indexed(&mut self, budget: &mut Budget) -> Result<&mut Map, Reason> {
        match &self.content {
            Content::Empty => self.content = Content::Indexed(Box::new(Map::new())),
            Content::Bytes(_) | Content::Scalar(_) | Content::Message(_) => {
                self.becomes_first_of(0, Content::Indexed, budget)?;
            }
            Content::Indexed(_) | Content::Keyed(_) => {}
        }
        match &mut self.content {
            Content::Indexed(list) => Ok(list),
            other => Err(other.is_no("list by index")),
        }
    }

    /// Returns its elements by their field `key_field`, after turning it into a repeated field.
    fn keyed(&mut self, key_field: u32, budget: &mut Budget) -> Result<&mut Map, Reason> {
        match &mut self.content {
            Content::Empty => self.content = Content::Keyed(Box::new(Map::new())),
            Content::Bytes(_) | Content::Message(_) => {
                let key = self.key(key_field, budget)?;
                self.becomes_first_of(key, Content::Keyed, budget)?;
            }
            Content::Indexed(list) => {
                let mut keys = Vec::with_capacity(list.len());
                for (_, element) in list.iter() {
                    keys.push(element.key(key_field, budget)?);
                }
                let list = std::mem::replace(&mut **list, Map::new());
                let mut map = Map::new();
                for (element, key) in list.into_nodes().zip(keys) {
                    // The first of a key is the one.
                    if map.get(key).is_none() {
                        map.insert(key, element);
                    } else {
                        budget.give_back(ENTRY + element.memory());
                    }
                }
                self.content = Content::Keyed(Box::new(map));
            }
            Content::Scalar(_) | Content::Keyed(_) => {}
        }
        match &mut self.content {
            Content::Keyed(map) => Ok(map),
            other => Err(other.is_no("list by key")),
        }
    }

    /// Becomes a list of which it was the only element.
    fn becomes_first_of(
        &mut self,
        key: u64,
        list: impl FnOnce(Box<Map>) -> Content,
        budget: &mut Budget,
    ) -> Result<(), Reason> {
        budget.take(ENTRY)?;
        let only = std::mem::replace(&mut self.content, Content::Empty);
        let mut map = Map::new();
        map.insert(key, Node::of(only));
        self.content = list(Box::new(map));
        Ok(())
    }

    /// The number in its field `field`.
    fn key(&self, field: u32, budget: &mut Budget) -> Result<u64, Reason> {
        let absent = Reason::NoKey(field);
        match &self.content {
            Content::Bytes(bytes) => {
                let mut candidates = Fields::of(bytes);
                while let Some(candidate) = candidates.next(budget)? {
                    if candidate.number == field {
                        return Scalar::of(candidate.value).map(Scalar::bits).ok_or(absent);
                    }
                }
                Err(absent)
            }
            Content::Message(map) => {
                budget.work(1)?;
                let key = map.get(field.into()).and_then(Node::scalar);
                key.map(Scalar::bits).ok_or(absent)
            }
            _ => Err(self.content.is_no("message")),
        }
    }

    /// The field `field` of this message.
    pub(super) fn enter(
        &mut self,
        field: u32,
        absent: Absent,
        budget: &mut Budget,
    ) -> Result<&mut Node, Stop> {
        let node = self.field(field, absent, budget)?;
        match node.content {
            Content::Indexed(_) | Content::Keyed(_) => Err(node.content.is_no("single field").into()),
            _ => Ok(node),
        }
    }

    /// Enters element `index` of the repeated field `field`. The next one is created even if the program does not create absent ones: so does
    /// upstream.
    pub(super) fn enter_at(
        &mut self,
        field: u32,
        index: u32,
        budget: &mut Budget,
    ) -> Result<&mut Node, Stop> {
        let list = self.field(field, Absent::IsCreated, budget)?.indexed(budget)?;
        let index = u64::from(index);
        if list.get(index).is_none() && index > list.len() as u64 {
            return Err(Reason::LeavesGap.into());
        }
        Ok(get_or_create(list, index, budget)?)
    }

    /// Enters the element of the repeated field `field` that has this key. If there is such a field, the element is created even if the program does
    /// not create absent ones: so does upstream.
    pub(super) fn enter_keyed(
        &mut self,
        field: u32,
        key_field: u32,
        key: u64,
        absent: Absent,
        budget: &mut Budget,
    ) -> Result<&mut Node, Stop> {
        let map = self.field(field, absent, budget)?.keyed(key_field, budget)?;
        Ok(get_or_create(map, key, budget)?)
    }

    /// The elements of the repeated field `field`, if there are any.
    pub(super) fn each(&mut self, field: u32, budget: &mut Budget) -> Result<Option<NodesMut<'_>>, Reason> {
        match self.message(budget)?.get_mut(field.into()) {
            Some(node) => Ok(Some(node.indexed(budget)?.nodes_mut())),
            None => Ok(None),
        }
    }

    fn field(&mut self, field: u32, absent: Absent, budget: &mut Budget) -> Result<&mut Node, Stop> {
        let map = self.message(budget)?;
        if absent == Absent::Fails {
            return map.get_mut(field.into()).ok_or(Stop::Failed);
        }
        Ok(get_or_create(map, field.into(), budget)?)
    }

    /// Takes out the field `field`, or one of its elements.
    pub(super) fn remove(&mut self, field: u32, element: Option<u64>, budget: &mut Budget) {
        let Content::Message(map) = &mut self.content else {
            return;
        };
        let removed = match element {
            None => map.remove(field.into()),
            Some(key) => map
                .get_mut(field.into())
                .and_then(|list| match &mut list.content {
                    Content::Indexed(elements) | Content::Keyed(elements) => elements.remove(key),
                    _ => None,
                }),
        };
        if let Some(node) = removed {
            budget.give_back(ENTRY + node.memory());
        }
    }

    /// The number it holds.
    pub(super) fn scalar(&self) -> Option<Scalar> {
        match self.content {
            Content::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// Becomes a number, if it is empty or a number.
    pub(super) fn set_scalar(&mut self, scalar: Scalar) -> Result<(), Reason> {
        match self.content {
            Content::Empty | Content::Scalar(_) => {
                self.content = Content::Scalar(scalar);
                Ok(())
            }
            _ => Err(self.content.is_no("number")),
        }
    }

    /// Becomes a string, or a message that no program has entered. Numbers and lists do not.
    pub(super) fn set_bytes(&mut self, bytes: &[u8], budget: &mut Budget) -> Result<(), Reason> {
        match self.content {
            Content::Empty | Content::Bytes(_) | Content::Message(_) => {
                let bytes = budget.copy(bytes)?;
                budget.give_back(self.memory());
                self.content = Content::Bytes(bytes);
                Ok(())
            }
            _ => Err(self.content.is_no("message")),
        }
    }

    /// Takes over the fields of a message: single ones replace existing ones; of repeated ones all elements replace the existing ones.
    pub(super) fn merge(
        &mut self,
        message: &[u8],
        rules: MergeRules,
        merge: u64,
        budget: &mut Budget,
    ) -> Result<(), Reason> {
        if !matches!(
            self.content,
            Content::Empty | Content::Bytes(_) | Content::Message(_)
        ) {
            return Err(self.content.is_no("message"));
        }
        if message.is_empty() {
            return Ok(());
        }
        let map = self.message(budget)?;
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next(budget)? {
            let number = u64::from(field.number);
            match map.get_mut(number) {
                Some(_) if rules.empty == Empty::Deletes && field.value == Value::Bytes(&[]) => {
                    if let Some(node) = map.remove(number) {
                        budget.give_back(ENTRY + node.memory());
                    }
                }
                Some(node)
                    if rules.submessages == Submessages::Kept
                        && matches!(node.content, Content::Message(_)) => {}
                Some(node) => node.take_over(field, merge, budget)?,
                None => {
                    let content = entry(field.value, budget)?;
                    let merged_in = merge;
                    map.insert(number, Node { content, merged_in });
                }
            }
        }
        Ok(())
    }

    /// Merges a field into this existing one.
    fn take_over(&mut self, field: Field<'_>, merge: u64, budget: &mut Budget) -> Result<(), Reason> {
        if let Content::Keyed(_) = self.content {
            return Err(Reason::MergesKeyed(field.number));
        }
        let first = self.merged_in != merge;
        if first && !matches!(self.content, Content::Indexed(_)) {
            let content = content(field.value, budget)?;
            budget.give_back(self.memory());
            let merged_in = merge;
            *self = Node { content, merged_in };
            return Ok(());
        }
        let list = self.indexed(budget)?;
        if first {
            budget.give_back(memory(list));
            *list = Map::new();
        }
        append(list, field.value, budget)?;
        self.merged_in = merge;
        Ok(())
    }

    /// Writes its contents as those of the message `out`. Only messages and bytes have any.
    pub(super) fn write(&self, out: &mut Writer) {
        match &self.content {
            Content::Bytes(bytes) => out.raw(bytes),
            Content::Message(map) => write_fields(map, out),
            Content::Empty | Content::Scalar(_) | Content::Indexed(_) | Content::Keyed(_) => {}
        }
    }

    fn write_as(&self, field: u32, out: &mut Writer) {
        match &self.content {
            Content::Empty => {}
            Content::Bytes(bytes) => out.bytes_field(field, bytes),
            Content::Scalar(Scalar::Varint(number)) => out.varint_field(field, *number),
            Content::Scalar(Scalar::Fixed32(number)) => out.fixed32_field(field, *number),
            Content::Scalar(Scalar::Fixed64(number)) => out.fixed64_field(field, *number),
            Content::Message(map) => out.nested(field, |out| write_fields(map, out)),
            Content::Indexed(map) | Content::Keyed(map) => {
                for (_, element) in map.iter() {
                    element.write_as(field, out);
                }
            }
        }
    }

    /// Counts the memory of everything in it, by looking at all of it.
    #[cfg(any(test, fuzzing))]
    pub(super) fn memory_in_all(&self) -> u64 {
        self.memory()
    }

    #[cfg(test)]
    pub(super) fn number(number: u64) -> Self {
        Node::of(Content::Scalar(Scalar::Varint(number)))
    }

    #[cfg(test)]
    pub(super) fn as_number(&self) -> Option<u64> {
        self.scalar().map(Scalar::bits)
    }
}

/// Bytes of memory that the entries of a map count.
fn memory(map: &Map) -> u64 {
    let mut bytes = 0;
    for (_, node) in map.iter() {
        bytes += ENTRY + node.memory();
    }
    bytes
}

fn write_fields(map: &Map, out: &mut Writer) {
    for (number, node) in map.iter() {
        // Keys of messages are field numbers.
        node.write_as(number as u32, out);
    }
}

/// Splits an encoded message into its fields, each still encoded; fields that come more than once become lists.
fn take_apart(message: &[u8], budget: &mut Budget) -> Result<Map, Reason> {
    let mut map = Map::new();
    if let Err(reason) = add_all(&mut map, message, budget) {
        budget.give_back(memory(&map));
        return Err(reason);
    }
    Ok(map)
}

/// Adds the fields of a message that is being taken apart.
fn add_all(map: &mut Map, message: &[u8], budget: &mut Budget) -> Result<(), Reason> {
    let mut fields = Fields::of(message);
    while let Some(field) = fields.next(budget)? {
        match map.get_mut(field.number.into()) {
            Some(node) => append(node.indexed(budget)?, field.value, budget)?,
            None => {
                let content = entry(field.value, budget)?;
                map.insert(field.number.into(), Node::of(content));
            }
        }
    }
    Ok(())
}

/// Adds an element to a list without gaps.
fn append(list: &mut Map, value: Value<'_>, budget: &mut Budget) -> Result<(), Reason> {
    let content = entry(value, budget)?;
    list.insert(list.len() as u64, Node::of(content));
    Ok(())
}

/// The content of a new entry, for which memory is taken too.
fn entry(value: Value<'_>, budget: &mut Budget) -> Result<Content, Reason> {
    budget.take(ENTRY)?;
    content(value, budget).inspect_err(|_| budget.give_back(ENTRY))
}

fn content(value: Value<'_>, budget: &mut Budget) -> Result<Content, Reason> {
    Ok(match value {
        Value::Bytes(bytes) => Content::Bytes(budget.copy(bytes)?),
        Value::Varint(number) => Content::Scalar(Scalar::Varint(number)),
        Value::Fixed32(number) => Content::Scalar(Scalar::Fixed32(number)),
        Value::Fixed64(number) => Content::Scalar(Scalar::Fixed64(number)),
    })
}

fn get_or_create<'m>(map: &'m mut Map, key: u64, budget: &mut Budget) -> Result<&'m mut Node, Reason> {
    if map.get(key).is_none() {
        budget.take(ENTRY)?;
        map.insert(key, Node::empty());
    }
    map.get_mut(key).ok_or(Reason::LeavesGap)
}
