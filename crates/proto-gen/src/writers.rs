//! The outputs in `src/write/generated`: typed writers for the messages of [`WRITERS`], over `ferretto_wire::Writer`.
//!
//! A writer is a new type over the borrowed wire writer, one method per field, so that the compiler folds a chain
//! of setters into the appends they are. The shape is described in `ferretto_proto::write`.

use std::collections::HashMap;
use std::fmt::Write as _;

use buffa_codegen::generated::descriptor::field_descriptor_proto::{Label, Type};
use buffa_codegen::generated::descriptor::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};

use crate::folders::Modules;
use crate::gates::Gates;
use crate::names::{field as field_name, module, rust_path};
use crate::selection::WRITERS;
use crate::{Error, Output, prune};

/// Methods that every writer has, and so no field can be called.
const TAKEN: [&str; 2] = ["new", "writer"];

/// A typed writer for every selected message.
///
/// # Errors
/// If the selection does not match the schema, or a field has a type that nothing we write has needed so far.
pub fn generate(files: &[FileDescriptorProto]) -> Result<Vec<Output>, Error> {
    let gates = Gates::new(files)?;
    let mut whole = HashMap::new();
    for file in files {
        for message in &file.message_type {
            whole.insert(prune::full_name(&scope(file), message.name.as_deref()), message);
        }
    }
    let mut modules = Modules::default();
    for file in &prune::prune(files, &WRITERS)? {
        for message in &file.message_type {
            let name = prune::full_name(&scope(file), message.name.as_deref());
            let mut code = String::new();
            // In a message with a list of fields, the other fields get no name either.
            let numbered = match WRITERS.fields_of(&name) {
                Some(_) => message,
                None => whole[&name],
            };
            emit(&mut code, &gates, message, numbered, &scope(file), 0)?;
            modules.insert(file, gates.of_whole_writer(&name), name, code);
        }
    }
    Ok(modules.outputs("src/write/generated", ""))
}

fn scope(file: &FileDescriptorProto) -> String {
    format!(".{}", file.package.as_deref().unwrap_or_default())
}

/// Appends the writer of `message`, and a module with the writers of its nested messages. `whole` is the message whose field
/// numbers get a name, also fields that have no setter: usually the message before pruning.
fn emit(
    code: &mut String,
    gates: &Gates,
    message: &DescriptorProto,
    whole: &DescriptorProto,
    scope: &str,
    depth: usize,
) -> Result<(), Error> {
    let name = message.name.as_deref().unwrap_or_default();
    let full = prune::full_name(scope, Some(name));
    let pad = "    ".repeat(depth);
    let gate = gates.of_writer(&full);
    let attribute = gate.map(|gate| format!("{pad}{gate}\n")).unwrap_or_default();
    // A message that lost all of its fields is but a scope for nested ones.
    if !message.field.is_empty() || whole.field.is_empty() {
        let mut body = String::new();
        for field in &whole.field {
            let (field_name, number) = (
                field.name.as_deref().unwrap_or_default(),
                field.number.unwrap_or_default(),
            );
            let _ = writeln!(body, "{pad}    /// Field number of `{field_name}`.");
            let _ = writeln!(
                body,
                "{pad}    pub const {}: u32 = {number};",
                field_name.to_uppercase()
            );
        }
        for field in &message.field {
            body.push('\n');
            // A writer that needs a feature has the attribute already.
            let gates = gate.is_none().then_some(gates);
            setter(&mut body, gates, field, &pad)?;
        }
        let _ = writeln!(
            code,
            "{attribute}{pad}message_writer!(\n{pad}    /// Writes a `{name}`.\n{pad}    {name}\n{pad});\n"
        );
        let _ = writeln!(code, "{attribute}{pad}impl {name}<'_> {{\n{body}{pad}}}");
    }
    let nested: Vec<_> = message.nested_type.iter().collect();
    if !nested.is_empty() {
        let module = module(name);
        let _ = writeln!(
            code,
            "\n{pad}/// Messages nested in `{name}`.\n{pad}pub mod {module} {{"
        );
        for (at, inner) in nested.into_iter().enumerate() {
            let inner_whole = whole
                .nested_type
                .iter()
                .find(|candidate| candidate.name == inner.name);
            if at > 0 {
                code.push('\n');
            }
            emit(code, gates, inner, inner_whole.unwrap_or(inner), &full, depth + 1)?;
        }
        let _ = writeln!(code, "{pad}}}");
    }
    Ok(())
}

/// The argument of a scalar's setter, and the wire writer's call that appends it.
struct Scalar {
    argument: String,
    call: &'static str,
    value: &'static str,
}

fn scalar(field: &FieldDescriptorProto) -> Option<Scalar> {
    let (argument, call, value) = match field.r#type? {
        Type::TYPE_INT32 => ("i32", "varint_field", "i64::from(value) as u64"),
        Type::TYPE_INT64 => ("i64", "varint_field", "value as u64"),
        Type::TYPE_UINT32 => ("u32", "varint_field", "u64::from(value)"),
        Type::TYPE_UINT64 => ("u64", "varint_field", "value"),
        Type::TYPE_BOOL => ("bool", "varint_field", "u64::from(value)"),
        Type::TYPE_FIXED32 => ("u32", "fixed32_field", "value"),
        Type::TYPE_FIXED64 => ("u64", "fixed64_field", "value"),
        Type::TYPE_FLOAT => ("f32", "fixed32_field", "value.to_bits()"),
        Type::TYPE_DOUBLE => ("f64", "fixed64_field", "value.to_bits()"),
        Type::TYPE_STRING | Type::TYPE_BYTES => ("impl AsRef<[u8]>", "bytes_field", "value.as_ref()"),
        Type::TYPE_ENUM => {
            let path = rust_path("crate::messages", field.type_name.as_deref().unwrap_or_default());
            return Some(Scalar {
                argument: path,
                call: "varint_field",
                value: "i64::from(value as i32) as u64",
            });
        }
        _ => return None,
    };
    Some(Scalar {
        argument: argument.to_owned(),
        call,
        value,
    })
}

fn setter(
    code: &mut String,
    gates: Option<&Gates>,
    field: &FieldDescriptorProto,
    pad: &str,
) -> Result<(), Error> {
    let name = field.name.as_deref().unwrap_or_default();
    let number = field.number.unwrap_or_default();
    let method = if TAKEN.contains(&name) {
        format!("{name}_field")
    } else {
        field_name(name)
    };
    let packed = field
        .options
        .as_option()
        .is_some_and(|options| options.packed == Some(true));
    let repeated = field.label == Some(Label::LABEL_REPEATED);
    let (doc, argument, statement) = if field.r#type == Some(Type::TYPE_MESSAGE) {
        let path = rust_path("crate::write", field.type_name.as_deref().unwrap_or_default());
        let doc = if repeated { "Appends one" } else { "Writes" };
        (
            doc,
            format!("fill: impl FnOnce(&mut {path}<'_>)"),
            format!("self.0.nested({number}, |writer| fill(&mut {path}::new(writer)));"),
        )
    } else {
        let unsupported = || {
            Error::Messages(format!(
                "no typed writer for fields like {name}; add its type to writers.rs"
            ))
        };
        let Scalar {
            argument,
            call,
            value,
        } = scalar(field).ok_or_else(unsupported)?;
        match (packed, repeated) {
            (true, _) if call != "varint_field" => return Err(unsupported()),
            (true, _) => {
                let values = match value {
                    "value" => "values".to_owned(),
                    value => format!("values.into_iter().map(|value| {value})"),
                };
                (
                    "Writes all of",
                    format!("values: impl IntoIterator<Item = {argument}>"),
                    format!("self.0.packed_field({number}, {values});"),
                )
            }
            (false, true) => (
                "Appends one",
                format!("value: {argument}"),
                format!("self.0.{call}({number}, {value});"),
            ),
            (false, false) => (
                "Writes",
                format!("value: {argument}"),
                format!("self.0.{call}({number}, {value});"),
            ),
        }
    };
    let _ = writeln!(code, "{pad}    /// {doc} `{name}`, field {number}.");
    let target = field.type_name.as_deref().unwrap_or_default();
    if field.r#type == Some(Type::TYPE_MESSAGE)
        && let Some(attribute) = gates.and_then(|gates| gates.of_writer(target))
    {
        let _ = writeln!(code, "{pad}    {attribute}");
    }
    let _ = writeln!(code, "{pad}    #[inline]");
    let _ = writeln!(
        code,
        "{pad}    pub fn {method}(&mut self, {argument}) -> &mut Self {{"
    );
    let _ = writeln!(code, "{pad}        {statement}\n{pad}        self\n{pad}    }}");
    Ok(())
}
