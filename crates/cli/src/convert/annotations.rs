//! Debug annotations as JSON.
//!
//! The writer of Chrome's JSON calls it for the arguments of each event.

use std::collections::HashMap;

use ferretto_proto::messages::debug_annotation::nested_value::NestedType;
use ferretto_proto::messages::debug_annotation::{NameField, NestedValue, Value as Content};
use ferretto_proto::messages::{DebugAnnotation, InternedData};
use serde_json::{Map, Value};

/// The interned texts of a sequence that annotations refer to.
#[derive(Debug, Default)]
pub(super) struct Texts {
    names: HashMap<u64, String>,
    values: HashMap<u64, String>,
}

impl Texts {
    /// Takes in interned data. The first of two entries with one id holds.
    pub(super) fn take(&mut self, interned: &InternedData) {
        for entry in &interned.debug_annotation_names {
            let name = || entry.name.clone().unwrap_or_default();
            self.names.entry(entry.iid.unwrap_or(0)).or_insert_with(name);
        }
        for entry in &interned.debug_annotation_string_values {
            let text = || String::from_utf8_lossy(entry.str.as_deref().unwrap_or_default()).into_owned();
            self.values.entry(entry.iid.unwrap_or(0)).or_insert_with(text);
        }
    }
}

/// Returns the annotations as members of an object.
pub(super) fn arguments(annotations: &[DebugAnnotation], texts: &Texts) -> Map<String, Value> {
    annotations
        .iter()
        .map(|annotation| (name(annotation, texts), value(annotation, texts)))
        .collect()
}

fn name(annotation: &DebugAnnotation, texts: &Texts) -> String {
    match &annotation.name_field {
        Some(NameField::Name(name)) => name.clone(),
        Some(NameField::NameIid(iid)) => texts.names.get(iid).cloned().unwrap_or_default(),
        None => String::new(),
    }
}

fn value(annotation: &DebugAnnotation, texts: &Texts) -> Value {
    if !annotation.dict_entries.is_empty() {
        return arguments(&annotation.dict_entries, texts).into();
    }
    if !annotation.array_values.is_empty() {
        return annotation
            .array_values
            .iter()
            .map(|entry| value(entry, texts))
            .collect();
    }
    match &annotation.value {
        Some(Content::BoolValue(value)) => (*value).into(),
        Some(Content::UintValue(value)) => (*value).into(),
        Some(Content::IntValue(value)) => (*value).into(),
        Some(Content::DoubleValue(value)) => (*value).into(),
        Some(Content::PointerValue(value)) => format!("{value:#x}").into(),
        Some(Content::StringValue(text)) => text.clone().into(),
        Some(Content::StringValueIid(iid)) => texts.values.get(iid).cloned().unwrap_or_default().into(),
        Some(Content::LegacyJsonValue(text)) => {
            serde_json::from_str(text).unwrap_or_else(|_| text.clone().into())
        }
        Some(Content::NestedValue(nested)) => nested_value(nested),
        None => Value::Null,
    }
}

fn nested_value(nested: &NestedValue) -> Value {
    match nested.nested_type {
        Some(NestedType::DICT) => {
            let entries = nested.dict_keys.iter().zip(&nested.dict_values);
            entries
                .map(|(key, value)| (key.clone(), nested_value(value)))
                .collect::<Map<_, _>>()
                .into()
        }
        Some(NestedType::ARRAY) => nested.array_values.iter().map(nested_value).collect(),
        _ => {
            let text = nested.string_value.clone().map(Value::from);
            let number = nested
                .int_value
                .map(Value::from)
                .or(nested.double_value.map(Value::from));
            text.or(number)
                .or(nested.bool_value.map(Value::from))
                .unwrap_or_default()
        }
    }
}
