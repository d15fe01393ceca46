//! Cuts the schema down to what some roots reach, so that a generator sees no type that nobody uses.
//!
//! Comments survive: protobuf keys them by the position of a declaration in its file, so positions are
//! rewritten as declarations go.

use std::collections::{BTreeSet, HashMap};

use buffa_codegen::generated::descriptor::source_code_info::Location;
use buffa_codegen::generated::descriptor::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorProto, SourceCodeInfo,
};

use crate::Error;
use crate::selection::Selection;

// Field numbers in descriptor.proto: the steps of a `SourceCodeInfo.Location.path`. Typed by hand, because this crate generates the
// constants that all others use.
pub(crate) const FILE_MESSAGE: i32 = 4;
pub(crate) const FILE_ENUM: i32 = 5;
pub(crate) const MESSAGE_FIELD: i32 = 2;
pub(crate) const MESSAGE_NESTED: i32 = 3;
pub(crate) const MESSAGE_ENUM: i32 = 4;
const MESSAGE_ONEOF: i32 = 8;
pub(crate) const ENUM_VALUE: i32 = 2;

/// The declarations of `files` that `selection` keeps; files left without a declaration disappear.
///
/// # Errors
/// If the selection names a message or field that is not in `files`.
pub(crate) fn prune(
    files: &[FileDescriptorProto],
    selection: &Selection,
) -> Result<Vec<FileDescriptorProto>, Error> {
    let index = Index::new(files);
    let reached = reach(&index, selection, selection.roots, &BTreeSet::new())?;
    let mut kept = Vec::new();
    for file in files {
        let package = format!(".{}", file.package.as_deref().unwrap_or_default());
        let comments = file
            .source_code_info
            .as_option()
            .map(|info| info.location.as_slice());
        let mut cut = Cut {
            selection,
            reached: &reached,
            comments: comments
                .unwrap_or_default()
                .iter()
                .map(|location| (location.path.as_slice(), location))
                .collect(),
            locations: Vec::new(),
        };
        let mut pruned = FileDescriptorProto {
            name: file.name.clone(),
            package: file.package.clone(),
            syntax: file.syntax.clone(),
            ..Default::default()
        };
        cut.keep_comment(&[], &[]);
        for (at, message) in file.message_type.iter().enumerate() {
            let new = [FILE_MESSAGE, pruned.message_type.len() as i32];
            if let Some(message) = cut.message(message, &package, &[FILE_MESSAGE, at as i32], &new) {
                pruned.message_type.push(message);
            }
        }
        for (at, value) in file.enum_type.iter().enumerate() {
            let new = [FILE_ENUM, pruned.enum_type.len() as i32];
            if let Some(value) = cut.enumeration(value, &package, &[FILE_ENUM, at as i32], &new) {
                pruned.enum_type.push(value);
            }
        }
        pruned.source_code_info = SourceCodeInfo {
            location: std::mem::take(&mut cut.locations),
            ..Default::default()
        }
        .into();
        if !pruned.message_type.is_empty() || !pruned.enum_type.is_empty() {
            kept.push((file, pruned));
        }
    }
    let names: BTreeSet<_> = kept
        .iter()
        .filter_map(|(_, pruned)| pruned.name.clone())
        .collect();
    Ok(kept
        .into_iter()
        .map(|(file, mut pruned)| {
            pruned.dependency = file
                .dependency
                .iter()
                .filter(|name| names.contains(*name))
                .cloned()
                .collect();
            pruned
        })
        .collect())
}

/// The full names of the messages and enums that `roots` reach, as far as `selection` keeps them, without the fields and messages of `without`.
///
/// # Errors
/// If the selection or the roots name a message or field that is not in `files`.
pub fn names(
    files: &[FileDescriptorProto],
    selection: &Selection,
    roots: &[&str],
    without: &BTreeSet<String>,
) -> Result<BTreeSet<String>, Error> {
    reach(&Index::new(files), selection, roots, without)
}

/// Every message by its full name (`.package.Outer.Inner`), and the enums' names.
#[derive(Default)]
pub(crate) struct Index<'a> {
    pub(crate) messages: HashMap<String, &'a DescriptorProto>,
    pub(crate) enums: BTreeSet<String>,
}

impl<'a> Index<'a> {
    pub(crate) fn new(files: &'a [FileDescriptorProto]) -> Self {
        let mut index = Self::default();
        for file in files {
            let package = format!(".{}", file.package.as_deref().unwrap_or_default());
            for message in &file.message_type {
                index.add(message, &package);
            }
            index.add_enums(&file.enum_type, &package);
        }
        index
    }

    /// Whether this is the full name of a field.
    fn has_field(&self, name: &str) -> bool {
        let Some((message, field)) = name.rsplit_once('.') else {
            return false;
        };
        let fields = self.messages.get(message).map(|message| message.field.as_slice());
        let mut fields = fields.unwrap_or_default().iter();
        fields.any(|candidate| candidate.name.as_deref() == Some(field))
    }

    fn add_enums(&mut self, enums: &[EnumDescriptorProto], scope: &str) {
        self.enums
            .extend(enums.iter().map(|value| full_name(scope, value.name.as_deref())));
    }

    fn add(&mut self, message: &'a DescriptorProto, scope: &str) {
        let name = full_name(scope, message.name.as_deref());
        for nested in &message.nested_type {
            self.add(nested, &name);
        }
        self.add_enums(&message.enum_type, &name);
        self.messages.insert(name, message);
    }
}

/// The full name of `name` declared in `scope`.
#[must_use]
pub fn full_name(scope: &str, name: Option<&str>) -> String {
    format!("{scope}.{}", name.unwrap_or_default())
}

/// The names of the messages and enums that the roots reach.
fn reach(
    index: &Index<'_>,
    selection: &Selection,
    roots: &[&str],
    without: &BTreeSet<String>,
) -> Result<BTreeSet<String>, Error> {
    let only = selection.only.iter();
    let only =
        only.flat_map(|(message, fields)| fields.iter().map(move |field| format!("{message}.{field}")));
    let left_out = selection.left_out().map(str::to_owned);
    for name in left_out.chain(without.iter().cloned()).chain(only) {
        if !index.messages.contains_key(&name) && !index.has_field(&name) {
            return Err(Error::UnknownName(name));
        }
    }
    let keeps = |name: &str| selection.keeps(name) && !without.contains(name);
    let mut reached = BTreeSet::new();
    let mut open: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
    let known = |root: &String| index.messages.contains_key(root) || index.enums.contains(root);
    if let Some(root) = open.iter().find(|root| !known(root)) {
        return Err(Error::UnknownName(root.clone()));
    }
    while let Some(name) = open.pop() {
        if let Some(message) = index.messages.get(&name) {
            for field in &message.field {
                let Some(target) = field.type_name.as_deref() else {
                    continue;
                };
                let path = full_name(&name, field.name.as_deref());
                if keeps(&path) && keeps(target) && !reached.contains(target) {
                    open.push(target.to_owned());
                }
            }
        }
        reached.insert(name);
    }
    Ok(reached)
}

/// One file being cut.
struct Cut<'a> {
    selection: &'a Selection,
    reached: &'a BTreeSet<String>,
    comments: HashMap<&'a [i32], &'a Location>,
    locations: Vec<Location>,
}

impl Cut<'_> {
    fn keep_comment(&mut self, old: &[i32], new: &[i32]) {
        if let Some(location) = self.comments.get(old) {
            self.locations.push(Location {
                path: new.to_vec(),
                ..(*location).clone()
            });
        }
    }

    fn message(
        &mut self,
        message: &DescriptorProto,
        scope: &str,
        old: &[i32],
        new: &[i32],
    ) -> Option<DescriptorProto> {
        let name = full_name(scope, message.name.as_deref());
        let step = |path: &[i32], kind: i32, at: usize| [path, &[kind, at as i32]].concat();
        let mut kept = DescriptorProto {
            name: message.name.clone(),
            ..Default::default()
        };
        for (at, nested) in message.nested_type.iter().enumerate() {
            let to = step(new, MESSAGE_NESTED, kept.nested_type.len());
            kept.nested_type
                .extend(self.message(nested, &name, &step(old, MESSAGE_NESTED, at), &to));
        }
        for (at, nested) in message.enum_type.iter().enumerate() {
            let to = step(new, MESSAGE_ENUM, kept.enum_type.len());
            kept.enum_type
                .extend(self.enumeration(nested, &name, &step(old, MESSAGE_ENUM, at), &to));
        }
        let reached = self.reached.contains(&name);
        if !reached {
            // A scope that only holds something that was reached.
            return (!kept.nested_type.is_empty() || !kept.enum_type.is_empty()).then_some(kept);
        }
        self.keep_comment(old, new);
        kept.reserved_name = message.reserved_name.clone();
        let mut oneofs: HashMap<i32, i32> = HashMap::new();
        for (at, field) in message.field.iter().enumerate() {
            let target = field.type_name.as_deref().unwrap_or_default();
            if !self.selection.keeps(&full_name(&name, field.name.as_deref()))
                || !self.selection.keeps(target)
            {
                continue;
            }
            self.keep_comment(
                &step(old, MESSAGE_FIELD, at),
                &step(new, MESSAGE_FIELD, kept.field.len()),
            );
            let mut field = field.clone();
            field.json_name = None;
            if let Some(oneof) = field.oneof_index {
                field.oneof_index = Some(*oneofs.entry(oneof).or_insert_with(|| {
                    let to = kept.oneof_decl.len();
                    kept.oneof_decl.push(message.oneof_decl[oneof as usize].clone());
                    to as i32
                }));
            }
            kept.field.push(field);
        }
        for (from, to) in oneofs {
            self.keep_comment(
                &step(old, MESSAGE_ONEOF, from as usize),
                &step(new, MESSAGE_ONEOF, to as usize),
            );
        }
        Some(kept)
    }

    fn enumeration(
        &mut self,
        value: &EnumDescriptorProto,
        scope: &str,
        old: &[i32],
        new: &[i32],
    ) -> Option<EnumDescriptorProto> {
        if !self.reached.contains(&full_name(scope, value.name.as_deref())) {
            return None;
        }
        self.keep_comment(old, new);
        Some(value.clone())
    }
}
