//! The outputs in `src/messages/generated`: owned Rust structs for the messages of [`MESSAGES`].
//!
//! For each message a struct, and an implementation of `codec::Fields` that says which function of `codec` takes which field. The
//! generated code is kept small and free of generics over buffers, since everybody who builds the SDK compiles it.

use std::collections::HashMap;
use std::fmt::Write as _;

use buffa_codegen::generated::descriptor::field_descriptor_proto::{Label, Type};
use buffa_codegen::generated::descriptor::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
};

use crate::folders::Modules;
use crate::gates::{Gates, PROBES};
use crate::names::{camel_case, field as field_name, module, rust_path};
use crate::prune::{
    ENUM_VALUE, FILE_ENUM, FILE_MESSAGE, MESSAGE_ENUM, MESSAGE_FIELD, MESSAGE_NESTED, full_name,
};
use crate::selection::{MESSAGES, NUMBERED};
use crate::{Error, Output, prune};

const UNKNOWN: &str = "&mut self.unknown_fields";

/// Where the generated file is a module, for paths within it.
const ROOT: &str = "crate::messages";

/// The structs of every selected message, unknown fields preserved.
///
/// # Errors
/// If the selection does not match the schema or a field is of a kind that no message has had so far.
pub fn generate(files: &[FileDescriptorProto]) -> Result<Vec<Output>, Error> {
    let gates = Gates::new(files)?;
    let numbered = numbered(files)?;
    let mut modules = Modules::default();
    for file in &prune::prune(files, &MESSAGES)? {
        let scope = format!(".{}", file.package.as_deref().unwrap_or_default());
        let comments = Comments::of(file);
        for (at, message) in file.message_type.iter().enumerate() {
            let mut code = Code::new(&gates, &numbered);
            code.message(message, &scope, &comments, &[FILE_MESSAGE, at as i32])?;
            let name = full_name(&scope, message.name.as_deref());
            modules.insert(file, gates.of_whole_type(&name), name, code.text);
        }
        for (at, value) in file.enum_type.iter().enumerate() {
            let mut code = Code::new(&gates, &numbered);
            code.enumeration(value, &scope, &comments, &[FILE_ENUM, at as i32]);
            let name = full_name(&scope, value.name.as_deref());
            modules.insert(file, gates.of_whole_type(&name), name, code.text);
        }
    }
    Ok(modules.outputs(
        "src/messages/generated",
        "\n#[allow(unused_imports)]\nuse crate::messages::codec;\n",
    ))
}

/// The messages of [`NUMBERED`] by their full names, with all of their fields: those too that the structs leave out.
fn numbered(files: &[FileDescriptorProto]) -> Result<HashMap<&'static str, &DescriptorProto>, Error> {
    let index = prune::Index::new(files);
    let of = |name: &&'static str| match index.messages.get(*name) {
        Some(message) => Ok((*name, *message)),
        None => Err(Error::UnknownName((*name).to_owned())),
    };
    NUMBERED.iter().map(of).collect()
}

/// The comments above declarations in a file, by their place.
struct Comments<'a>(HashMap<&'a [i32], &'a str>);

impl<'a> Comments<'a> {
    fn of(file: &'a FileDescriptorProto) -> Comments<'a> {
        let info = file.source_code_info.as_option();
        let locations = info.map(|info| info.location.as_slice()).unwrap_or_default();
        let leading = locations.iter().filter_map(|location| {
            let comment = location.leading_comments.as_deref()?;
            Some((location.path.as_slice(), comment))
        });
        Comments(leading.collect())
    }
}

/// A place within the one at `path`.
fn within(path: &[i32], kind: i32, at: usize) -> Vec<i32> {
    [path, &[kind, at as i32]].concat()
}

/// How a field that is no message is stored, and what in `codec` takes it.
enum Kind {
    /// The scalar type of `codec` and the Rust type.
    Scalar(&'static str, &'static str),
    /// The path of its type.
    Enum(String),
    String,
    Bytes,
    /// The path of its type.
    Message(String),
}

impl Kind {
    fn of(field: &FieldDescriptorProto) -> Result<Kind, Error> {
        let path = || rust_path(ROOT, field.type_name.as_deref().unwrap_or_default());
        Ok(match field.r#type {
            Some(Type::TYPE_INT32) => Kind::Scalar("Int32", "i32"),
            Some(Type::TYPE_INT64) => Kind::Scalar("Int64", "i64"),
            Some(Type::TYPE_UINT32) => Kind::Scalar("Uint32", "u32"),
            Some(Type::TYPE_UINT64) => Kind::Scalar("Uint64", "u64"),
            Some(Type::TYPE_SINT32) => Kind::Scalar("Sint32", "i32"),
            Some(Type::TYPE_SINT64) => Kind::Scalar("Sint64", "i64"),
            Some(Type::TYPE_BOOL) => Kind::Scalar("Bool", "bool"),
            Some(Type::TYPE_FIXED32) => Kind::Scalar("Fixed32", "u32"),
            Some(Type::TYPE_FIXED64) => Kind::Scalar("Fixed64", "u64"),
            Some(Type::TYPE_SFIXED32) => Kind::Scalar("Sfixed32", "i32"),
            Some(Type::TYPE_SFIXED64) => Kind::Scalar("Sfixed64", "i64"),
            Some(Type::TYPE_FLOAT) => Kind::Scalar("Float", "f32"),
            Some(Type::TYPE_DOUBLE) => Kind::Scalar("Double", "f64"),
            Some(Type::TYPE_ENUM) => Kind::Enum(path()),
            Some(Type::TYPE_STRING) => Kind::String,
            Some(Type::TYPE_BYTES) => Kind::Bytes,
            Some(Type::TYPE_MESSAGE) => Kind::Message(path()),
            Some(Type::TYPE_GROUP) | None => {
                let name = field.name.as_deref().unwrap_or_default();
                return Err(Error::Messages(format!(
                    "the field {name} is a group, which nobody uses"
                )));
            }
        })
    }

    /// The Rust type of one value.
    fn value(&self) -> &str {
        match self {
            Kind::Scalar(_, rust) => rust,
            Kind::String => "String",
            Kind::Bytes => "Vec<u8>",
            Kind::Enum(path) | Kind::Message(path) => path,
        }
    }
}

impl Kind {
    /// The function in `codec` that takes one or many of them.
    fn function(&self, repeated: bool) -> &'static str {
        match (self, repeated) {
            (Kind::Scalar(..), false) => "scalar",
            (Kind::Scalar(..), true) => "scalars",
            (Kind::Enum(_), false) => "enums",
            (Kind::Enum(_), true) => "enums_packed",
            (Kind::String, false) => "string",
            (Kind::String, true) => "strings",
            (Kind::Bytes, false) => "bytes",
            (Kind::Bytes, true) => "bytes_list",
            (Kind::Message(_), _) => "messages",
        }
    }
}

/// One field of a struct with the lines that are about it.
struct Member {
    name: String,
    comment: Option<Vec<i32>>,
    gate: Option<&'static str>,
    rust_type: String,
    empty: &'static str,
    visit: String,
    merge: Vec<String>,
    /// The numbers and names of its fields in the schema.
    fields: Vec<(i32, String)>,
}

impl Member {
    /// A field outside of oneofs.
    fn plain(field: &FieldDescriptorProto, message: &str, comment: Vec<i32>) -> Result<Member, Error> {
        let name = field_name(field.name.as_deref().unwrap_or_default());
        let number = field.number.unwrap_or_default();
        let kind = Kind::of(field)?;
        let value = kind.value();
        let options = field.options.as_option();
        let packed = options.is_some_and(|options| options.packed == Some(true));
        let repeated = field.label == Some(Label::LABEL_REPEATED);
        let to = format!("&mut self.{name}");
        let (rust_type, empty) = match (&kind, repeated) {
            (_, true) => (format!("Vec<{value}>"), "Vec::new()"),
            (Kind::Message(_), false) => (
                format!("codec::MessageField<{value}>"),
                "codec::MessageField::none()",
            ),
            (_, false) => (format!("Option<{value}>"), "None"),
        };
        let scalar_type = match kind {
            Kind::Scalar(scalar, _) => format!("::<codec::scalar::{scalar}>"),
            _ => String::new(),
        };
        let put = match (&kind, repeated) {
            (Kind::Scalar(..), true) if packed => "packed",
            (Kind::Enum(_), true) if packed => {
                let reason = format!("the field {name} is a packed enum, which no message has had so far");
                return Err(Error::Messages(reason));
            }
            (Kind::Enum(_), _) => "enums",
            _ => kind.function(repeated),
        };
        let take = format!("{}{scalar_type}", kind.function(repeated));
        let merge = match (&kind, repeated) {
            (Kind::Message(_), _) | (Kind::String | Kind::Bytes, true) => {
                format!("decoder.{take}(field, {to})")
            }
            (Kind::Enum(_), _) => format!("codec::decode::{take}(field, {to}, {UNKNOWN})"),
            _ => format!("codec::decode::{take}(field, {to})"),
        };
        Ok(Member {
            rust_type,
            empty,
            gate: Gates::of_field(&full_name(message, field.name.as_deref())),
            visit: format!("codec::visit::{put}{scalar_type}(visitor, {number}, &self.{name});"),
            merge: vec![format!("{number} => {merge},")],
            fields: vec![named(field)],
            name,
            comment: Some(comment),
        })
    }
}

/// A field's number and its name in the schema.
fn named(field: &FieldDescriptorProto) -> (i32, String) {
    (
        field.number.unwrap_or_default(),
        field.name.clone().unwrap_or_default(),
    )
}

/// The type of a oneof.
struct Oneof {
    name: String,
    variants: Vec<String>,
}

impl Oneof {
    /// The oneof of this name in a message, and its member.
    fn new(name: &str, message: &str, fields: &[&FieldDescriptorProto]) -> Result<(Oneof, Member), Error> {
        let member = field_name(name);
        let type_name = camel_case(name);
        let path = rust_path(ROOT, &format!("{message}.{type_name}"));
        let mut visit = format!("match &self.{member} {{\n");
        let mut merge = Vec::new();
        let mut variants = Vec::new();
        for field in fields {
            let number = field.number.unwrap_or_default();
            let variant = camel_case(field.name.as_deref().unwrap_or_default());
            let kind = Kind::of(field)?;
            let held = match &kind {
                Kind::Message(path) => format!("Box<{path}>"),
                kind => kind.value().to_owned(),
            };
            variants.push(format!("{variant}({held}),"));
            let function = match &kind {
                Kind::Scalar(scalar, _) => format!("scalar::<codec::scalar::{scalar}>"),
                kind => kind.function(false).to_owned(),
            };
            let put = match &kind {
                Kind::Scalar(scalar, _) => {
                    format!("value::<codec::scalar::{scalar}>(visitor, {number}, *value)")
                }
                Kind::Enum(_) => format!("enums(visitor, {number}, &Some(*value))"),
                Kind::String => format!("text(visitor, {number}, value)"),
                Kind::Bytes => format!("contents(visitor, {number}, value)"),
                Kind::Message(_) => format!("nested(visitor, {number}, &**value)"),
            };
            let _ = writeln!(
                visit,
                "    Some({path}::{variant}(value)) => codec::visit::{put},"
            );
            let unknown = match &kind {
                Kind::Enum(_) => format!(", {UNKNOWN}"),
                _ => String::new(),
            };
            merge.push(match &kind {
                Kind::Message(_) => format!(
                    "{number} => {{\n    \
                     if !matches!(self.{member}, Some({path}::{variant}(_))) {{\n        \
                     self.{member} = Some({path}::{variant}(Box::new(Default::default())));\n    }}\n    \
                     match &mut self.{member} {{\n        \
                     Some({path}::{variant}(value)) => decoder.nested(field, &mut **value),\n        \
                     _ => Ok(()),\n    }}\n}}"
                ),
                _ => format!(
                    "{number} => {{\n    let mut value = None;\n    \
                     codec::decode::{function}(field, &mut value{unknown})?;\n    \
                     self.{member} = value.map({path}::{variant}).or(self.{member}.take());\n    Ok(())\n}}"
                ),
            });
        }
        visit.push_str("    None => {}\n}");
        let member = Member {
            name: member,
            comment: None,
            gate: None,
            rust_type: format!("Option<{path}>"),
            empty: "None",
            visit,
            merge,
            fields: fields.iter().map(|field| named(field)).collect(),
        };
        let name = type_name;
        Ok((Oneof { name, variants }, member))
    }
}

/// Lines of Rust, indented.
struct Code<'a> {
    text: String,
    depth: usize,
    gates: &'a Gates,
    numbered: &'a HashMap<&'static str, &'a DescriptorProto>,
}

impl<'a> Code<'a> {
    fn new(gates: &'a Gates, numbered: &'a HashMap<&'static str, &'a DescriptorProto>) -> Code<'a> {
        Code {
            text: String::new(),
            depth: 0,
            gates,
            numbered,
        }
    }

    /// Puts what follows behind the feature if it is about a type that needs it.
    fn gate(&mut self, full_name: &str) {
        let gates = self.gates;
        self.attribute(gates.of_type(full_name));
    }

    fn attribute(&mut self, attribute: Option<&str>) {
        if let Some(attribute) = attribute {
            self.line(attribute);
        }
    }

    fn line(&mut self, lines: &str) {
        for line in lines.lines() {
            if !line.is_empty() {
                let _ = write!(self.text, "{:1$}{line}", "", 4 * self.depth);
            }
            self.text.push('\n');
        }
    }

    fn open(&mut self, line: &str) {
        self.line(&format!("{line} {{"));
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    fn comment(&mut self, comments: &Comments<'_>, path: &[i32]) {
        for line in comments.0.get(path).unwrap_or(&"").lines() {
            self.line(format!("///{line}").trim_end());
        }
    }

    fn enumeration(
        &mut self,
        value: &EnumDescriptorProto,
        scope: &str,
        comments: &Comments<'_>,
        path: &[i32],
    ) {
        let name = value.name.as_deref().unwrap_or_default();
        let full = full_name(scope, value.name.as_deref());
        let mut names: HashMap<i32, &str> = HashMap::new();
        let mut aliases = Vec::new();
        self.comment(comments, path);
        self.gate(&full);
        self.line("#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]");
        self.open(&format!("pub enum {name}"));
        let mut listed = Vec::new();
        for (at, value) in value.value.iter().enumerate() {
            let (name, number) = (
                value.name.as_deref().unwrap_or_default(),
                value.number.unwrap_or_default(),
            );
            if let Some(first) = names.get(&number) {
                aliases.push((name, *first));
                continue;
            }
            names.insert(number, name);
            self.comment(comments, &within(path, ENUM_VALUE, at));
            if at == 0 {
                self.line("#[default]");
            }
            self.line(&format!("{name} = {number},"));
            listed.push((name, number));
        }
        self.close();
        if !aliases.is_empty() {
            self.gate(&full);
            self.open(&format!("impl {name}"));
            for (alias, first) in aliases {
                self.line(&format!("pub const {alias}: Self = Self::{first};"));
            }
            self.close();
        }
        self.gate(&full);
        self.open(&format!("impl codec::Enumeration for {name}"));
        self.line("const VALUES: &'static [(Self, &'static str)] = &[");
        for (name, _) in &listed {
            self.line(&format!("    (Self::{name}, \"{name}\"),"));
        }
        self.line("];\n#[inline]\nfn to_i32(self) -> i32 {\n    self as i32\n}");
        self.open("fn from_i32(number: i32) -> Option<Self>");
        self.open("Some(match number");
        for (name, number) in &listed {
            self.line(&format!("{number} => Self::{name},"));
        }
        self.line("_ => return None,");
        self.depth -= 1;
        self.line("})");
        self.close();
        self.close();
    }

    fn message(
        &mut self,
        message: &DescriptorProto,
        scope: &str,
        comments: &Comments<'_>,
        path: &[i32],
    ) -> Result<(), Error> {
        let name = message.name.as_deref().unwrap_or_default();
        let full = full_name(scope, message.name.as_deref());
        let (members, oneofs) = members(message, &full, path)?;
        if !is_scope(message) {
            self.structure(&full, name, &members, comments, path);
            self.fields(&full, name, &members);
        }
        if message.nested_type.is_empty() && message.enum_type.is_empty() && oneofs.is_empty() {
            return Ok(());
        }
        self.open(&format!("pub mod {}", module(name)));
        if !message.enum_type.is_empty() || message.nested_type.iter().any(|inner| !is_scope(inner)) {
            self.line("#[allow(unused_imports)]\nuse crate::messages::codec;");
        }
        for (at, inner) in message.nested_type.iter().enumerate() {
            self.message(inner, &full, comments, &within(path, MESSAGE_NESTED, at))?;
        }
        for (at, inner) in message.enum_type.iter().enumerate() {
            self.enumeration(inner, &full, comments, &within(path, MESSAGE_ENUM, at));
        }
        for oneof in &oneofs {
            self.gate(&full);
            self.line("#[derive(Clone, Debug, PartialEq)]");
            self.open(&format!("pub enum {}", oneof.name));
            oneof.variants.iter().for_each(|variant| self.line(variant));
            self.close();
        }
        self.close();
        Ok(())
    }

    fn structure(
        &mut self,
        full: &str,
        name: &str,
        members: &[Member],
        comments: &Comments<'_>,
        path: &[i32],
    ) {
        self.comment(comments, path);
        self.gate(full);
        self.line("#[derive(Clone, PartialEq)]");
        self.open(&format!("pub struct {name}"));
        for member in members {
            if let Some(path) = &member.comment {
                self.comment(comments, path);
            }
            self.attribute(member.gate);
            self.line(&format!("pub {}: {},", member.name, member.rust_type));
        }
        self.line("/// Fields that this schema does not have.\npub unknown_fields: codec::UnknownFields,");
        self.close();
        self.gate(full);
        self.open(&format!("impl {name}"));
        self.open("const EMPTY: Self = Self");
        for member in members {
            self.attribute(member.gate);
            self.line(&format!("{}: {},", member.name, member.empty));
        }
        self.line("unknown_fields: codec::UnknownFields::new(),");
        self.depth -= 1;
        self.line("};");
        let numbered = self.numbered.get(full);
        for field in numbered.into_iter().flat_map(|message| &message.field) {
            let name = field.name.as_deref().unwrap_or_default().to_uppercase();
            let number = field.number.unwrap_or_default();
            self.line(&format!("pub const {name}: u32 = {number};"));
        }
        self.close();
        self.gate(full);
        self.line(&format!("codec::message_impls!({name});"));
    }

    fn fields(&mut self, full: &str, name: &str, members: &[Member]) {
        self.gate(full);
        self.open(&format!("impl codec::Fields for {name}"));
        self.open("fn visit(&self, visitor: &mut codec::Visitor<'_, '_, '_>)");
        for member in members {
            self.attribute(member.gate);
            self.line(&member.visit);
        }
        self.line("codec::visit::unknown(visitor, &self.unknown_fields);");
        self.close();
        // A type that needs a feature has the attribute already.
        let gates = self.gates;
        self.attribute(gates.of_type(full).is_none().then_some(PROBES));
        self.open("fn names(&self) -> (&'static str, &'static [(u32, &'static str)])");
        let names = members.iter().flat_map(|member| &member.fields);
        let names: Vec<_> = names
            .map(|(number, name)| format!("({number}, \"{name}\")"))
            .collect();
        self.line(&format!("(\"{name}\", &[{}])", names.join(", ")));
        self.close();
        let unused = if members
            .iter()
            .any(|member| member.merge.iter().any(|line| line.contains("decoder")))
        {
            "decoder"
        } else {
            "_"
        };
        self.open(&format!(
            "fn merge(&mut self, field: &codec::Field<'_>, {unused}: &mut codec::Decoder) -> Result<(), codec::DecodeError>"
        ));
        self.open("match field.number");
        for member in members {
            for arm in &member.merge {
                self.attribute(member.gate);
                self.line(arm);
            }
        }
        self.line("_ => self.unknown_fields.take(field),");
        self.close();
        self.close();
        self.line(&format!(
            "fn empty() -> &'static Self {{\n    static EMPTY: {name} = {name}::EMPTY;\n    &EMPTY\n}}"
        ));
        self.line("#[inline(never)]\nextern \"C\" fn release(self: Box<Self>) {}");
        self.close();
    }
}

/// Whether it is but a scope for nested types, having lost all of its fields.
fn is_scope(message: &DescriptorProto) -> bool {
    message.field.is_empty() && !(message.nested_type.is_empty() && message.enum_type.is_empty())
}

/// The members of a message's struct in the order of their numbers, and its oneofs.
fn members(message: &DescriptorProto, full: &str, path: &[i32]) -> Result<(Vec<Member>, Vec<Oneof>), Error> {
    let mut fields: Vec<_> = message.field.iter().enumerate().collect();
    fields.sort_by_key(|(_, field)| field.number);
    let mut members = Vec::new();
    let mut oneofs: Vec<Oneof> = Vec::new();
    for (at, field) in &fields {
        let Some(index) = field.oneof_index else {
            members.push(Member::plain(field, full, within(path, MESSAGE_FIELD, *at))?);
            continue;
        };
        let of_oneof: Vec<_> = fields
            .iter()
            .filter(|(_, other)| other.oneof_index == Some(index))
            .map(|(_, other)| *other)
            .collect();
        if of_oneof.first().map(|first| first.number) == Some(field.number) {
            let name = message.oneof_decl[index as usize].name.as_deref();
            let (oneof, member) = Oneof::new(name.unwrap_or_default(), full, &of_oneof)?;
            oneofs.push(oneof);
            members.push(member);
        }
    }
    Ok((members, oneofs))
}
