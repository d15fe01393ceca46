//! Makes arguments of the debug annotations of an event.

use ferretto_proto::write::{DebugAnnotation, InternedData};
use ferretto_wire::{Field, Value as Wire};

use super::json;
use super::sequence::Sequence;
use super::track_event::code::Coder;
use crate::context::Context;
use crate::fields::{all_bytes, fields, number};
use crate::strings::StringId;

/// How deep annotations are followed.
const MOST_DEPTH: usize = 64;
/// The most arguments of one event.
pub(super) const MOST_ARGUMENTS: usize = 4096;

/// The key of an argument: without places in arrays, and with them.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) flat: String,
    pub(super) whole: String,
}

impl Key {
    pub(super) fn child(&self, name: &str) -> Key {
        Key {
            flat: format!("{}.{name}", self.flat),
            whole: format!("{}.{name}", self.whole),
        }
    }

    pub(super) fn element(&self, at: usize) -> Key {
        Key {
            flat: self.flat.clone(),
            whole: format!("{}[{at}]", self.whole),
        }
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
    let Some(name) = name_of(message, sequence, context) else {
        context.stats.add("track_event_parser_errors", None, 1);
        return;
    };
    let key = context.debug_key(name);
    match plain(message) {
        Some(field) => value(field, key, key, sequence, coder, context),
        None => {
            let text = context.strings.get(key).to_owned();
            let key = Key {
                flat: text.clone(),
                whole: text,
            };
            nested(message, &key, 0, sequence, coder, context);
        }
    }
}

/// Returns the name of an annotation.
fn name_of(message: &[u8], sequence: &Sequence, context: &mut Context<'_>) -> Option<StringId> {
    let (mut iid, mut name) = (0, None);
    for field in fields(message) {
        match (field.number, field.value) {
            (DebugAnnotation::NAME_IID, Wire::Varint(value)) => iid = value,
            (DebugAnnotation::NAME, Wire::Bytes(value)) => name = Some(value),
            _ => {}
        }
    }
    match iid {
        0 => name.map(|name| context.strings.intern_bytes(name)),
        iid => sequence.name(InternedData::DEBUG_ANNOTATION_NAMES, iid, context),
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

/// Returns the value of an annotation that has no parts; `None` if it has parts or no value.
fn plain(message: &[u8]) -> Option<Field<'_>> {
    let mut best: Option<(usize, Field<'_>)> = None;
    for field in fields(message) {
        if matches!(
            field.number,
            DebugAnnotation::DICT_ENTRIES | DebugAnnotation::ARRAY_VALUES | DebugAnnotation::NESTED_VALUE
        ) {
            return None;
        }
        if let Some(at) = VALUES.iter().position(|known| *known == field.number)
            && best.is_none_or(|(known, _)| at <= known)
        {
            best = Some((at, field));
        }
    }
    best.map(|(_, field)| field)
}

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
            let key = Key {
                flat: text(flat),
                whole: text(whole),
            };
            json::add(value, key, coder, context);
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
    key: &Key,
    depth: usize,
    sequence: &Sequence,
    coder: &mut Coder<'_>,
    context: &mut Context<'_>,
) -> bool {
    if depth >= MOST_DEPTH || coder.arguments() >= MOST_ARGUMENTS {
        context.stats.add("track_event_parser_errors", None, 1);
        return false;
    }
    let has = |number| fields(message).any(|field| field.number == number);
    if has(DebugAnnotation::DICT_ENTRIES) {
        for entry in all_bytes(message, DebugAnnotation::DICT_ENTRIES) {
            let Some(name) = name_of(entry, sequence, context) else {
                context.stats.add("track_event_parser_errors", None, 1);
                return true;
            };
            let name = sanitized(context.strings.get(name));
            nested(entry, &key.child(&name), depth + 1, sequence, coder, context);
        }
        return true;
    }
    if has(DebugAnnotation::ARRAY_VALUES) {
        let mut any = false;
        for element in all_bytes(message, DebugAnnotation::ARRAY_VALUES) {
            let element_key = key.element(coder.next_element(&key.whole));
            if nested(element, &element_key, depth + 1, sequence, coder, context) {
                coder.add_element(&key.whole);
                any = true;
            }
        }
        return any;
    }
    let (flat, whole) = (
        context.strings.intern(&key.flat),
        context.strings.intern(&key.whole),
    );
    if let Some(field) = plain(message) {
        value(field, flat, whole, sequence, coder, context);
        return true;
    }
    let legacy = fields(message).filter(|field| field.number == DebugAnnotation::NESTED_VALUE);
    match legacy.filter_map(|field| field.value.as_bytes()).last() {
        Some(message) => legacy_nested(message, key, depth + 1, coder, context),
        None => false,
    }
}

/// The older way to have parts.
fn legacy_nested(
    message: &[u8],
    key: &Key,
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
                let name = sanitized(&String::from_utf8_lossy(name));
                any |= legacy_nested(value, &key.child(&name), depth + 1, coder, context);
            }
            any
        }
        2 => {
            let mut any = false;
            for value in all_bytes(message, ARRAY_VALUES) {
                let element_key = key.element(coder.next_element(&key.whole));
                if legacy_nested(value, &element_key, depth + 1, coder, context) {
                    coder.add_element(&key.whole);
                    any = true;
                }
            }
            any
        }
        _ => {
            let (flat, whole) = (
                context.strings.intern(&key.flat),
                context.strings.intern(&key.whole),
            );
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
pub(crate) fn sanitized(name: &str) -> String {
    name.replace(['.', '[', ']'], "_")
}
