//! [`DebugAnnotation`] for `serde_json`: objects are dictionaries, `null` is [none](AnnotationValue::none).

use serde_json::{Map, Number, Value};

use super::{AnnotationValue, DebugAnnotation};

impl DebugAnnotation for Value {
    fn write_annotation(&self, value: AnnotationValue<'_>) {
        match self {
            Value::Null => value.none(),
            Value::Bool(inner) => value.bool(*inner),
            Value::Number(inner) => inner.write_annotation(value),
            Value::String(inner) => value.string(inner),
            Value::Array(inner) => inner.write_annotation(value),
            Value::Object(inner) => inner.write_annotation(value),
        }
    }
}

/// Beyond 64 bits, its digits as a string: numbers are so large only with the feature `arbitrary_precision`.
impl DebugAnnotation for Number {
    fn write_annotation(&self, value: AnnotationValue<'_>) {
        if let Some(inner) = self.as_i64() {
            value.int(inner);
        } else if let Some(inner) = self.as_u64() {
            value.uint(inner);
        } else if let (true, Some(inner)) = (self.is_f64(), self.as_f64()) {
            value.double(inner);
        } else {
            value.display(self);
        }
    }
}

impl DebugAnnotation for Map<String, Value> {
    fn write_annotation(&self, value: AnnotationValue<'_>) {
        value.dictionary(|entries| {
            for (name, value) in self {
                entries.entry(name, value);
            }
        });
    }
}
