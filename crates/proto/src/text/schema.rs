//! The embedded descriptors as a table, in which the parser looks up names, and the printer looks up numbers.
//!
//! Decoding the whole descriptor set takes a fraction of a millisecond. A general reflection library would need many times as long
//! to build its pool, and each run reads only a little text.

use std::collections::HashMap;
use std::sync::LazyLock;

use ferretto_wire::{Reader, Value, WireError};

use crate::descriptors;
use crate::messages::Enumeration as _;
use crate::messages::field_descriptor_proto::{Label, Type};
use crate::write::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, OneofDescriptorProto,
};

/// Everything that [`descriptors::TRACE`] declares.
pub(super) static TRACE: LazyLock<Schema> = LazyLock::new(|| {
    Schema::load(descriptors::TRACE).expect("the descriptors are ours, and every test here reads them")
});

/// Index of a message in [`Schema::messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageId(usize);

/// Index of an enum in [`Schema::enums`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EnumId(usize);

#[derive(Debug)]
pub(super) struct Schema {
    messages: Vec<Message>,
    enums: Vec<Enum>,
    ids: HashMap<String, TypeId>,
}

#[derive(Clone, Copy, Debug)]
enum TypeId {
    Message(MessageId),
    Enum(EnumId),
}

#[derive(Debug)]
pub(super) struct Message {
    /// The full name without a leading dot.
    pub(super) name: String,
    pub(super) fields: Vec<Field>,
    /// The field numbers with their index in [`Message::fields`], ascending.
    numbers: Vec<(u32, usize)>,
    pub(super) oneofs: Vec<&'static str>,
    /// The names of former fields.
    pub(super) reserved: Vec<&'static str>,
}

#[derive(Debug)]
pub(super) struct Enum {
    /// The names and numbers in the order of declaration.
    pub(super) values: Vec<(&'static str, i32)>,
    /// The numbers with their index in [`Enum::values`], ascending. If a number has several names, the first name comes first.
    numbers: Vec<(i32, usize)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) repeated: bool,
    /// The index in [`Message::oneofs`].
    pub(super) oneof: Option<usize>,
}

/// The type of a field, as far as text and encoding depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer(Integer),
    Double,
    Float,
    Bool,
    /// A string literal whose value must be UTF-8.
    Text,
    /// A string literal.
    Bytes,
    Message(MessageId),
    Enum(EnumId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Integer {
    /// The type's name in a schema, such as `uint32`.
    pub(super) name: &'static str,
    pub(super) min: i128,
    pub(super) max: i128,
    pub(super) encoding: Encoding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Varint,
    Zigzag,
    Fixed32,
    Fixed64,
}

impl Kind {
    /// `None` for groups, because the schema has none.
    fn new(field_type: Type, target: Option<TypeId>) -> Option<Self> {
        use Encoding::{Fixed32, Fixed64, Varint, Zigzag};
        let integer = |name, min: i128, max: i128, encoding| {
            Some(Self::Integer(Integer {
                name,
                min,
                max,
                encoding,
            }))
        };
        let signed32 = (i128::from(i32::MIN), i128::from(i32::MAX));
        let signed64 = (i128::from(i64::MIN), i128::from(i64::MAX));
        match (field_type, target) {
            (Type::TYPE_DOUBLE, _) => Some(Self::Double),
            (Type::TYPE_FLOAT, _) => Some(Self::Float),
            (Type::TYPE_INT64, _) => integer("int64", signed64.0, signed64.1, Varint),
            (Type::TYPE_UINT64, _) => integer("uint64", 0, u64::MAX.into(), Varint),
            (Type::TYPE_INT32, _) => integer("int32", signed32.0, signed32.1, Varint),
            (Type::TYPE_FIXED64, _) => integer("fixed64", 0, u64::MAX.into(), Fixed64),
            (Type::TYPE_FIXED32, _) => integer("fixed32", 0, u32::MAX.into(), Fixed32),
            (Type::TYPE_BOOL, _) => Some(Self::Bool),
            (Type::TYPE_STRING, _) => Some(Self::Text),
            (Type::TYPE_MESSAGE, Some(TypeId::Message(id))) => Some(Self::Message(id)),
            (Type::TYPE_BYTES, _) => Some(Self::Bytes),
            (Type::TYPE_UINT32, _) => integer("uint32", 0, u32::MAX.into(), Varint),
            (Type::TYPE_ENUM, Some(TypeId::Enum(id))) => Some(Self::Enum(id)),
            (Type::TYPE_SFIXED32, _) => integer("sfixed32", signed32.0, signed32.1, Fixed32),
            (Type::TYPE_SFIXED64, _) => integer("sfixed64", signed64.0, signed64.1, Fixed64),
            (Type::TYPE_SINT32, _) => integer("sint32", signed32.0, signed32.1, Zigzag),
            (Type::TYPE_SINT64, _) => integer("sint64", signed64.0, signed64.1, Zigzag),
            _ => None,
        }
    }
}

impl Schema {
    /// Reads a `FileDescriptorSet`. It leaves out fields whose types are not in the set.
    fn load(set: &'static [u8]) -> Result<Self, WireError> {
        let mut schema = Self {
            messages: Vec::new(),
            enums: Vec::new(),
            ids: HashMap::new(),
        };
        // A field may have a type that comes later, so fields are read after all types have an index.
        let mut waiting = Vec::new();
        for file in children(set, FileDescriptorSet::FILE) {
            let file = file?;
            let package = text(file, FileDescriptorProto::PACKAGE)?;
            for message in children(file, FileDescriptorProto::MESSAGE_TYPE) {
                schema.declare(message?, package, &mut waiting)?;
            }
            for declared in children(file, FileDescriptorProto::ENUM_TYPE) {
                schema.declare_enum(declared?, package)?;
            }
        }
        for (id, descriptor) in waiting {
            for field in children(descriptor, DescriptorProto::FIELD) {
                let field = schema.field(field?)?;
                schema.messages[id].fields.extend(field);
            }
            let message = &mut schema.messages[id];
            message.numbers = sorted(message.fields.iter().map(|field| field.number));
        }
        Ok(schema)
    }

    fn declare(
        &mut self,
        descriptor: &'static [u8],
        scope: &str,
        waiting: &mut Vec<(usize, &'static [u8])>,
    ) -> Result<(), WireError> {
        let name = format!("{scope}.{}", text(descriptor, DescriptorProto::NAME)?);
        let id = self.messages.len();
        waiting.push((id, descriptor));
        let reserved = children(descriptor, DescriptorProto::RESERVED_NAME)
            .map(|name| Ok(std::str::from_utf8(name?).unwrap_or_default()))
            .collect::<Result<_, WireError>>()?;
        let oneofs = children(descriptor, DescriptorProto::ONEOF_DECL)
            .map(|oneof| text(oneof?, OneofDescriptorProto::NAME))
            .collect::<Result<_, _>>()?;
        self.ids.insert(name.clone(), TypeId::Message(MessageId(id)));
        self.messages.push(Message {
            name: name.clone(),
            fields: Vec::new(),
            numbers: Vec::new(),
            oneofs,
            reserved,
        });
        for nested in children(descriptor, DescriptorProto::NESTED_TYPE) {
            self.declare(nested?, &name, waiting)?;
        }
        for nested in children(descriptor, DescriptorProto::ENUM_TYPE) {
            self.declare_enum(nested?, &name)?;
        }
        Ok(())
    }

    fn declare_enum(&mut self, descriptor: &'static [u8], scope: &str) -> Result<(), WireError> {
        let name = format!("{scope}.{}", text(descriptor, EnumDescriptorProto::NAME)?);
        let values = children(descriptor, EnumDescriptorProto::VALUE)
            .map(|value| {
                let value = value?;
                let number = number(value, EnumValueDescriptorProto::NUMBER)?.unwrap_or_default();
                Ok((text(value, EnumValueDescriptorProto::NAME)?, number as i32))
            })
            .collect::<Result<Vec<_>, WireError>>()?;
        self.ids.insert(name, TypeId::Enum(EnumId(self.enums.len())));
        let numbers = sorted(values.iter().map(|(_, number)| *number));
        self.enums.push(Enum { values, numbers });
        Ok(())
    }

    fn field(&self, descriptor: &'static [u8]) -> Result<Option<Field>, WireError> {
        let target = self
            .ids
            .get(text(descriptor, FieldDescriptorProto::TYPE_NAME)?.trim_start_matches('.'))
            .copied();
        let field_type = number(descriptor, FieldDescriptorProto::TYPE)?.unwrap_or_default();
        let Some(kind) =
            Type::from_i32(field_type as i32).and_then(|field_type| Kind::new(field_type, target))
        else {
            return Ok(None);
        };
        Ok(Some(Field {
            name: text(descriptor, FieldDescriptorProto::NAME)?,
            number: number(descriptor, FieldDescriptorProto::NUMBER)?.unwrap_or_default() as u32,
            kind,
            repeated: number(descriptor, FieldDescriptorProto::LABEL)? == Some(Label::LABEL_REPEATED as u64),
            oneof: number(descriptor, FieldDescriptorProto::ONEOF_INDEX)?.map(|index| index as usize),
        }))
    }

    pub(super) fn find_message(&self, full_name: &str) -> Option<MessageId> {
        match self.ids.get(full_name) {
            Some(TypeId::Message(id)) => Some(*id),
            _ => None,
        }
    }

    pub(super) fn message(&self, id: MessageId) -> &Message {
        &self.messages[id.0]
    }

    /// Finds the nearest message below `from` that has a field of this name. Returns the names of the fields on the way, and the message.
    pub(super) fn way_to(&self, from: MessageId, name: &str) -> Option<(Vec<&'static str>, &Message)> {
        /// A field at a greater depth is never meant.
        const DEEPEST: usize = 4;
        let mut reached = vec![from];
        let mut ways = vec![(from, Vec::new())];
        for _ in 0..DEEPEST {
            let mut further = Vec::new();
            for (id, way) in ways {
                for field in &self.message(id).fields {
                    let Kind::Message(inner) = field.kind else {
                        continue;
                    };
                    if reached.contains(&inner) {
                        continue;
                    }
                    reached.push(inner);
                    let mut way = way.clone();
                    way.push(field.name);
                    let message = self.message(inner);
                    if message.field(name).is_some() {
                        return Some((way, message));
                    }
                    further.push((inner, way));
                }
            }
            ways = further;
        }
        None
    }

    pub(super) fn enumeration(&self, id: EnumId) -> &Enum {
        &self.enums[id.0]
    }
}

impl Message {
    pub(super) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    pub(super) fn field_numbered(&self, number: u32) -> Option<&Field> {
        let at = self
            .numbers
            .binary_search_by_key(&number, |(number, _)| *number)
            .ok()?;
        Some(&self.fields[self.numbers[at].1])
    }
}

impl Enum {
    /// The name of a number. If it has several, this is the first.
    pub(super) fn name_of(&self, number: i32) -> Option<&'static str> {
        let at = self.numbers.partition_point(|(candidate, _)| *candidate < number);
        let (found, index) = self.numbers.get(at)?;
        (*found == number).then(|| self.values[*index].0)
    }
}

/// Returns the numbers with their positions, in ascending order.
fn sorted<N: Ord>(numbers: impl Iterator<Item = N>) -> Vec<(N, usize)> {
    let mut sorted: Vec<(N, usize)> = numbers.zip(0..).collect();
    sorted.sort();
    sorted
}

/// The contents of all length-delimited fields of this number.
fn children(message: &'static [u8], number: u32) -> impl Iterator<Item = Result<&'static [u8], WireError>> {
    Reader::new(message).filter_map(move |field| match field {
        Ok(field) if field.number == number => field.value.as_bytes().map(Ok),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

/// The first text field of this number, or an empty text.
fn text(message: &'static [u8], number: u32) -> Result<&'static str, WireError> {
    let bytes = children(message, number).next().transpose()?.unwrap_or_default();
    Ok(std::str::from_utf8(bytes).unwrap_or_default())
}

fn number(message: &[u8], number: u32) -> Result<Option<u64>, WireError> {
    for field in Reader::new(message) {
        let field = field?;
        if let (true, Value::Varint(value)) = (field.number == number, field.value) {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::FieldOptions;

    #[test]
    fn no_field_of_a_config_is_packed() {
        // The parser appends repeated scalars one by one. Some readers of packed fields may not accept that.
        fn collect(message: &'static [u8], scope: &str, packed: &mut Vec<(String, &'static str)>) {
            let name = format!("{scope}.{}", text(message, DescriptorProto::NAME).unwrap());
            for field in children(message, DescriptorProto::FIELD).map(Result::unwrap) {
                let mut options = children(field, FieldDescriptorProto::OPTIONS).map(Result::unwrap);
                if options.any(|options| number(options, FieldOptions::PACKED).unwrap() == Some(1)) {
                    packed.push((name.clone(), text(field, FieldDescriptorProto::NAME).unwrap()));
                }
            }
            let nested = children(message, DescriptorProto::NESTED_TYPE).map(Result::unwrap);
            nested.for_each(|nested| collect(nested, &name, packed));
        }
        let mut packed = Vec::new();
        for file in children(descriptors::TRACE, FileDescriptorSet::FILE).map(Result::unwrap) {
            let package = text(file, FileDescriptorProto::PACKAGE).unwrap();
            let messages = children(file, FileDescriptorProto::MESSAGE_TYPE).map(Result::unwrap);
            messages.for_each(|message| collect(message, package, &mut packed));
        }
        assert!(!packed.is_empty(), "traces have such fields");
        let mut reached = vec![TRACE.find_message("perfetto.protos.TraceConfig").unwrap()];
        let mut next = 0;
        while let Some(id) = reached.get(next).copied() {
            next += 1;
            let message = TRACE.message(id);
            for field in &message.fields {
                let is_packed = packed
                    .iter()
                    .any(|(owner, name)| *owner == message.name && *name == field.name);
                assert!(!is_packed, "{}.{}", message.name, field.name);
                match field.kind {
                    Kind::Message(id) if !reached.contains(&id) => reached.push(id),
                    _ => {}
                }
            }
        }
        assert!(reached.len() > 90, "{}", reached.len());
    }

    #[test]
    fn fields_and_enum_values_are_found_by_their_numbers() {
        for message in &TRACE.messages {
            for field in &message.fields {
                let found = message.field_numbered(field.number).map(|found| found.name);
                assert_eq!(found, Some(field.name), "{}", message.name);
            }
            assert!(message.field_numbered(0).is_none());
        }
        for enumeration in &TRACE.enums {
            for (_, number) in &enumeration.values {
                let first = enumeration.values.iter().find(|(_, other)| other == number);
                assert_eq!(enumeration.name_of(*number), first.map(|(name, _)| *name));
            }
            assert_eq!(enumeration.name_of(i32::MIN), None);
        }
    }

    #[test]
    fn every_field_finds_its_type() {
        let fields = |schema: &Schema| {
            schema
                .messages
                .iter()
                .map(|message| message.fields.len())
                .sum::<usize>()
        };
        fn declared(message: &'static [u8]) -> usize {
            children(message, DescriptorProto::FIELD).count()
                + children(message, DescriptorProto::NESTED_TYPE)
                    .map(Result::unwrap)
                    .map(declared)
                    .sum::<usize>()
        }
        let expected: usize = children(descriptors::TRACE, FileDescriptorSet::FILE)
            .map(Result::unwrap)
            .flat_map(|file| children(file, FileDescriptorProto::MESSAGE_TYPE).map(Result::unwrap))
            .map(declared)
            .sum();
        assert!(expected > 500, "{expected}");
        assert_eq!(fields(&TRACE), expected);
    }
}
