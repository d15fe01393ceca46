//! Checks the JSON output of our programs with its schemas in `docs/schema`, and makes the tables of fields in `docs/json.md` from the same schemas.
//!
//! The schemas are JSON Schema (2020-12), and this checks the keywords in them. An unknown keyword fails the test, so everything in a schema is
//! checked.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Returns the folder of the documentation.
pub(crate) fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn schema(name: &str) -> Value {
    let path = docs().join(format!("schema/{name}.json"));
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks a program's output with the schema of this name; returns it decoded.
///
/// # Panics
/// If it is no JSON, or does not match the schema.
#[track_caller]
pub(crate) fn check(name: &str, printed: &[u8]) -> Value {
    let value: Value = serde_json::from_slice(printed)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(printed)));
    let mut faults = Vec::new();
    compare(&schema(name), &value, name, &mut faults);
    assert!(faults.is_empty(), "{}\n{value:#}", faults.join("\n"));
    value
}

/// Notes the differences between `value`, which is at `place`, and `schema`.
fn compare(schema: &Value, value: &Value, place: &str, faults: &mut Vec<String>) {
    let keywords = schema
        .as_object()
        .unwrap_or_else(|| panic!("{place}: the schema is no object"));
    let types = types(keywords);
    let whole_as_number = value.is_u64() && types.contains(&"number");
    if !types.contains(&type_of(value)) && !whole_as_number {
        faults.push(format!("{place}: {value} is not {}", types.join(" or ")));
        return;
    }
    for (keyword, wanted) in keywords {
        match (keyword.as_str(), value) {
            ("$schema" | "title" | "description" | "type" | "required", _) => {}
            ("enum", _) => {
                if !wanted.as_array().unwrap().contains(value) {
                    faults.push(format!("{place}: {value} is none of {wanted}"));
                }
            }
            ("minimum", Value::Number(number)) => {
                if number.as_f64() < wanted.as_f64() {
                    faults.push(format!("{place}: {value} is below {wanted}"));
                }
            }
            ("items", Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    compare(wanted, item, &format!("{place}[{index}]"), faults);
                }
            }
            ("properties", Value::Object(fields)) => {
                let wanted = wanted.as_object().unwrap();
                for (name, field) in fields {
                    match wanted.get(name) {
                        Some(wanted) => compare(wanted, field, &format!("{place}.{name}"), faults),
                        None => faults.push(format!("{place}.{name} is not documented")),
                    }
                }
                for name in wanted.keys().filter(|name| !fields.contains_key(*name)) {
                    faults.push(format!("{place}.{name} is missing"));
                }
            }
            // If `null` is allowed as well, the other keywords do not apply to it.
            ("minimum" | "items" | "properties", _) => {}
            (unknown, _) => panic!("{place}: the keyword {unknown} is not checked here"),
        }
    }
}

fn types(keywords: &Map<String, Value>) -> Vec<&str> {
    match &keywords["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().map(|name| name.as_str().unwrap()).collect(),
        other => panic!("{other} is no type"),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the fields of the schema of this name as a table of Markdown.
///
/// # Panics
/// If a field has no description, or is not required.
pub(crate) fn table(name: &str) -> String {
    let mut out = String::from("| field | type | what |\n|---|---|---|\n");
    rows(&schema(name), "", &mut out);
    out
}

fn rows(schema: &Value, prefix: &str, out: &mut String) {
    let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    let required: Vec<&str> = schema["required"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    let all = names.iter().all(|name| required.contains(&name.as_str()));
    assert!(
        all && names.len() == required.len(),
        "{prefix}: no field may be missing"
    );
    // Later versions may add fields, so a schema must allow unknown ones to its readers; the tests do not allow them.
    assert!(
        schema["additionalProperties"].is_null(),
        "{prefix}: others may be there"
    );
    for name in required {
        let field = &schema["properties"][name];
        let description = field["description"].as_str().unwrap_or_default();
        assert!(!description.is_empty(), "{prefix}{name} has no description");
        let path = format!("{prefix}{name}");
        let mut types: Vec<String> = types(field.as_object().unwrap())
            .into_iter()
            .map(str::to_owned)
            .collect();
        if types[0] == "array" {
            types[0] = format!("list of {}s", field["items"]["type"].as_str().unwrap());
        }
        writeln!(out, "| `{path}` | {} | {description} |", types.join(" or ")).unwrap();
        if field["properties"].is_object() {
            rows(field, &format!("{path}."), out);
        } else if field["items"]["properties"].is_object() {
            rows(&field["items"], &format!("{path}[]."), out);
        }
    }
}
