//! How names of the schema are written in Rust: used by both generators of code, whose outputs refer to each other.

use std::fmt::Write as _;

use buffa_codegen::idents::{escape_mod_ident, is_rust_keyword};

/// The Rust path below `root` of the type with this full protobuf name: outer messages are modules in snake case.
#[must_use]
pub(crate) fn rust_path(root: &str, full_name: &str) -> String {
    let relative = full_name.strip_prefix(".perfetto.protos.").unwrap_or(full_name);
    let mut path = root.to_owned();
    let mut parts = relative.split('.').peekable();
    while let Some(part) = parts.next() {
        let part = if parts.peek().is_some() {
            module(part)
        } else {
            part.to_owned()
        };
        let _ = write!(path, "::{part}");
    }
    path
}

/// The module for the types that are nested in the message of this name.
#[must_use]
pub fn module(message: &str) -> String {
    escape_mod_ident(&snake_case(message))
}

/// A field or method of this name.
#[must_use]
pub fn field(name: &str) -> String {
    if is_rust_keyword(name) {
        format!("r#{name}")
    } else {
        name.to_owned()
    }
}

/// The type, or variant of one, for a name in snake case.
#[must_use]
pub(crate) fn camel_case(name: &str) -> String {
    let mut camel = String::new();
    for part in name.split('_') {
        let mut letters = part.chars();
        camel.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        camel.extend(letters);
    }
    camel
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    let mut letters = name.chars().peekable();
    let mut previous = None;
    while let Some(letter) = letters.next() {
        // A word begins behind a lower-case letter, and with the last of several capitals (`IPCFrame`).
        let begins_word = previous.is_some_and(|previous: char| {
            !previous.is_uppercase() || letters.peek().is_some_and(|next| next.is_lowercase())
        });
        if letter.is_uppercase() && begins_word {
            snake.push('_');
        }
        previous = Some(letter);
        snake.extend(letter.to_lowercase());
    }
    snake
}
