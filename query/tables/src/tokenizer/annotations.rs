//! Makes arguments of the debug annotations of an event.

use std::borrow::Cow;

use ferretto_proto::write::{DebugAnnotation, InternedData};
use ferretto_wire::{Field, Value as Wire};

use super::json;
use super::sequence::Sequence;
use super::track_event::code::Coder;
use crate::context::Context;
use crate::fields::{all_bytes, fields, number};
use crate::sql_text;
use crate::strings::{StringId, Strings};

/// How deep annotations are followed.
const MOST_DEPTH: usize = 64;
/// The most arguments of one event.
pub(super) const MOST_ARGUMENTS: usize = 4096;

/// The key of an argument, without places in arrays and with them. It grows and shrinks on the way through an annotation.
#[derive(Debug)]
pub(super) struct Key {
    flat: String,
    whole: String,
}

/// The way back to the key of what a part belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Back {
    flat: usize,
    whole: usize,
}

impl Key {
    pub(super) fn new(text: &str) -> Key {
        // Room for a few parts.
        let begin = || {
            let mut key = String::with_capacity(text.len() + 64);
            key.push_str(text);
            key
        };
        Key {
            flat: begin(),
            whole: begin(),
        }
    }

    fn back(&self) -> Back {
        Back {
            flat: self.flat.len(),
            whole: self.whole.len(),
        }
    }

    /// Goes to the part that has this name.
    pub(super) fn enter(&mut self, name: &str) -> Back {
        let back = self.back();
        for key in [&mut self.flat, &mut self.whole] {
            key.push('.');
            key.push_str(name);
        }
        back
    }

    /// Goes to an element.
    pub(super) fn enter_element(&mut self, at: usize) -> Back {
        let back = self.back();
        self.whole.push('[');
        sql_text::int(at as i64, &mut self.whole);
        self.whole.push(']');
        back
    }

    /// Goes back.
    pub(super) fn leave(&mut self, back: Back) {
        self.flat.truncate(back.flat);
        self.whole.truncate(back.whole);
    }

    /// Returns the key with places in arrays, by which arrays are known.
    pub(super) fn whole(&self) -> &str {
        &self.whole
    }

    /// Returns the numbers of both forms.
    pub(super) fn intern(&self, strings: &mut Strings) -> (StringId, StringId) {
        (strings.intern(&self.flat), strings.intern(&self.whole))
    }
}

/// What one walk through the fields of an annotation finds.
#[derive(Debug, Default)]
struct Parts<'a> {
    name_iid: u64,
    name: Option<&'a [u8]>,
    /// The value, and its place in [`VALUES`].
    value: Option<(usize, Field<'a>)>,
    has_entries: bool,
    has_elements: bool,
    /// Parts in the older form.
    has_nested: bool,
    nested: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    fn new(message: &'a [u8]) -> Parts<'a> {
        let mut parts = Parts::default();
        for field in fields(message) {
            match (field.number, field.value) {
                (DebugAnnotation::NAME_IID, Wire::Varint(value)) => parts.name_iid = value,
                (DebugAnnotation::NAME, Wire::Bytes(value)) => parts.name = Some(value),
                (DebugAnnotation::DICT_ENTRIES, _) => parts.has_entries = true,
                (DebugAnnotation::ARRAY_VALUES, _) => parts.has_elements = true,
                (DebugAnnotation::NESTED_VALUE, value) => {
                    parts.has_nested = true;
                    parts.nested = value.as_bytes().or(parts.nested);
                }
                (number, _) => {
                    if let Some(at) = VALUES.iter().position(|known| *known == number)
                        && parts.value.is_none_or(|(known, _)| at <= known)
                    {
                        parts.value = Some((at, field));
                    }
                }
            }
        }
        parts
    }

    /// Returns the name; `None` if it has none that is known.
    fn name(&self, sequence: &Sequence, context: &mut Context<'_>) -> Option<StringId> {
        match self.name_iid {
            0 => self.name.map(|name| context.strings.intern_bytes(name)),
            iid => sequence.name(InternedData::DEBUG_ANNOTATION_NAMES, iid, context),
        }
    }

    /// Returns the value of an annotation that has no parts; `None` if it has parts or no value.
    fn plain(&self) -> Option<Field<'a>> {
        let has_parts = self.has_entries || self.has_elements || self.has_nested;
        self.value.filter(|_| !has_parts).map(|(_, field)| field)
    }
}

/// Adds the arguments of one annotation.
pub(super) fn annotation(
    message: &[u8],
    sequence: &Sequence,
    coder: &mut Coder<'_>,
    context: &mut Context<'_>,
) {
    // Nearly all annotations have a name and one plain value: their key is made without strings in between.
    let parts = Parts::new(message);
    let Some(name) = parts.name(sequence, context) else {
        context.stats.add("track_event_parser_errors", None, 1);
        return;
    };
    let key = context.debug_key(name);
    match parts.plain() {
        Some(field) => value(field, key, key, sequence, coder, context),
        None => {
            let mut key = Key::new(context.strings.get(key));
            nested(message, &parts, &mut key, 0, sequence, coder, context);
        }
    }
}

/// In the order in which one value is preferred to another.
const VALUES: [u32; 9] = [
    DebugAnnotation::BOOL_VALUE,
    DebugAnnotation::UINT_VALUE,
    DebugAnnotation::INT_VALUE,
    DebugAnnotation::DOUBLE_VALUE,
    DebugAnnotation::STRING_VALUE,
    DebugAnnotation::STRING_VALUE_IID,
    DebugAnnotation::POINTER_VALUE,
    DebugAnnotation::LEGACY_JSON_VALUE,
    DebugAnnotation::PROTO_VALUE,
];

fn value(
    field: Field<'_>,
    flat: StringId,
    whole: StringId,
    sequence: &Sequence,
    coder: &mut Coder<'_>,
    context: &mut Context<'_>,
) {
    match (field.number, field.value) {
        (DebugAnnotation::BOOL_VALUE, Wire::Varint(value)) => coder.bool(flat, whole, value != 0),
        (DebugAnnotation::UINT_VALUE, Wire::Varint(value)) => coder.uint(flat, whole, value),
        (DebugAnnotation::INT_VALUE, Wire::Varint(value)) => coder.int(flat, whole, value as i64),
        (DebugAnnotation::DOUBLE_VALUE, Wire::Fixed64(value)) => coder.real(flat, whole, value),
        (DebugAnnotation::POINTER_VALUE, Wire::Varint(value)) => coder.pointer(flat, whole, value),
        (DebugAnnotation::STRING_VALUE, Wire::Bytes(value)) => coder.text(flat, whole, value),
        (DebugAnnotation::LEGACY_JSON_VALUE, Wire::Bytes(value)) => {
            let text = |id| context.strings.get(id).to_owned();
            let mut key = Key {
                flat: text(flat),
                whole: text(whole),
            };
            json::add(value, &mut key, coder, context);
        }
        (DebugAnnotation::STRING_VALUE_IID, Wire::Varint(iid)) => {
            match sequence.name(InternedData::DEBUG_ANNOTATION_STRING_VALUES, iid, context) {
                Some(text) => coder.pooled(flat, whole, text),
                None => context.stats.add("track_event_parser_errors", None, 1),
            }
        }
        // Messages of types that only the program knows.
        _ => {}
    }
}

/// Adds the arguments of an annotation that has parts. Returns whether there was one.
fn nested(
    message: &[u8],
    parts: &Parts<'_>,
    key: &mut Key,
    depth: usize,
    sequence: &Sequence,
    coder: &mut Coder<'_>,
    context: &mut Context<'_>,
) -> bool {
    if depth >= MOST_DEPTH || coder.arguments() >= MOST_ARGUMENTS {
        context.stats.add("track_event_parser_errors", None, 1);
        return false;
    }
    if parts.has_entries {
        for entry in all_bytes(message, DebugAnnotation::DICT_ENTRIES) {
            let parts = Parts::new(entry);
            let Some(name) = parts.name(sequence, context) else {
                context.stats.add("track_event_parser_errors", None, 1);
                return true;
            };
            let back = key.enter(&sanitized(context.strings.get(name)));
            nested(entry, &parts, key, depth + 1, sequence, coder, context);
            key.leave(back);
        }
        return true;
    }
    if parts.has_elements {
        let mut any = false;
        for element in all_bytes(message, DebugAnnotation::ARRAY_VALUES) {
            let parts = Parts::new(element);
            let back = key.enter_element(coder.next_element(&key.whole));
            let is_there = nested(element, &parts, key, depth + 1, sequence, coder, context);
            key.leave(back);
            if is_there {
                coder.add_element(&key.whole);
                any = true;
            }
        }
        return any;
    }
    let (flat, whole) = key.intern(&mut context.strings);
    if let Some(field) = parts.plain() {
        value(field, flat, whole, sequence, coder, context);
        return true;
    }
    match parts.nested {
        Some(message) => legacy_nested(message, key, depth + 1, coder, context),
        None => false,
    }
}

/// The older way to have parts.
fn legacy_nested(
    message: &[u8],
    key: &mut Key,
    depth: usize,
    coder: &mut Coder<'_>,
    context: &mut Context<'_>,
) -> bool {
    const TYPE: u32 = 1;
    const DICT_KEYS: u32 = 2;
    const DICT_VALUES: u32 = 3;
    const ARRAY_VALUES: u32 = 4;
    const INT: u32 = 5;
    const DOUBLE: u32 = 6;
    const BOOL: u32 = 7;
    const STRING: u32 = 8;
    if depth >= MOST_DEPTH || coder.arguments() >= MOST_ARGUMENTS {
        return false;
    }
    let kind = fields(message)
        .filter(|field| field.number == TYPE)
        .filter_map(|field| number(field.value))
        .last();
    match kind.unwrap_or(0) {
        1 => {
            let values = all_bytes(message, DICT_VALUES);
            let mut any = false;
            for (name, value) in all_bytes(message, DICT_KEYS).zip(values) {
                let back = key.enter(&sanitized(&String::from_utf8_lossy(name)));
                any |= legacy_nested(value, key, depth + 1, coder, context);
                key.leave(back);
            }
            any
        }
        2 => {
            let mut any = false;
            for value in all_bytes(message, ARRAY_VALUES) {
                let back = key.enter_element(coder.next_element(&key.whole));
                let is_there = legacy_nested(value, key, depth + 1, coder, context);
                key.leave(back);
                if is_there {
                    coder.add_element(&key.whole);
                    any = true;
                }
            }
            any
        }
        _ => {
            let (flat, whole) = key.intern(&mut context.strings);
            for wanted in [BOOL, INT, DOUBLE, STRING] {
                let Some(field) = fields(message).filter(|field| field.number == wanted).last() else {
                    continue;
                };
                match (wanted, field.value) {
                    (BOOL, Wire::Varint(value)) => coder.bool(flat, whole, value != 0),
                    (INT, Wire::Varint(value)) => coder.int(flat, whole, value as i64),
                    (DOUBLE, Wire::Fixed64(value)) => coder.real(flat, whole, value),
                    (STRING, Wire::Bytes(value)) => coder.text(flat, whole, value),
                    _ => return false,
                }
                return true;
            }
            false
        }
    }
}

/// Returns a name in which nothing means a part of something.
pub(crate) fn sanitized(name: &str) -> Cow<'_, str> {
    const PARTS: [u8; 3] = *b".[]";
    match name.bytes().any(|byte| PARTS.contains(&byte)) {
        true => name.replace(PARTS.map(char::from), "_").into(),
        false => name.into(),
    }
}
