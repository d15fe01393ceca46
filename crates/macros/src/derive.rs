//! `#[derive(DebugAnnotation)]`: the code that it generates for an [`Item`].

use proc_macro::{Ident, Literal, TokenStream, TokenTree};

use crate::cursor::{is_punct, name_of};
use crate::error::Error;
use crate::template::fill;
use item::{Body, Field, Fields, Item, Shape, Variant};
use options::How;

mod item;
mod options;

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream, Error> {
    let item = Item::parse(item)?;
    let sdk = &item.sdk;
    let bounds = match &item.bounds {
        Some(bounds) => bounds.clone(),
        None => inferred_bounds(&item),
    };
    let name = TokenStream::from(TokenTree::from(item.name.clone()));
    let write = match (&item.how, &item.body) {
        (How::Value, Body::Struct(fields)) => write_struct(&item.name, fields, sdk),
        (How::Value, Body::Enum(variants)) => write_enum(variants, sdk),
        (how, _) => fill(
            "$sdk::debug_annotation::DebugAnnotation::write_annotation(&$this, value)",
            &[("sdk", sdk), ("this", &how.applied_to(fill("self", &[]), sdk))],
        ),
    };
    Ok(fill(
        "#[automatically_derived]
        impl<$parameters> $sdk::debug_annotation::DebugAnnotation for $name<$arguments>
        where $conditions $bounds
        {
            #[inline]
            fn write_annotation(&self, value: $sdk::debug_annotation::AnnotationValue<'_>) {
                $write
            }
        }",
        &[
            ("sdk", sdk),
            ("parameters", &item.generics.parameters),
            ("name", &name),
            ("arguments", &item.generics.arguments),
            ("conditions", &item.conditions),
            ("bounds", &bounds),
            ("write", &write),
        ],
    ))
}

fn write_struct(name: &Ident, fields: &Fields, sdk: &TokenStream) -> TokenStream {
    let value = match fields.shape {
        Shape::Unit => fill("value.string($name)", &[("name", &label_of(name).into())]),
        _ => write_fields(fields, sdk),
    };
    fill(
        "match *self { Self { $pattern .. } => $value }",
        &[("pattern", &bindings(fields)), ("value", &value)],
    )
}

fn write_enum(variants: &[Variant], sdk: &TokenStream) -> TokenStream {
    let arms: TokenStream = variants
        .iter()
        .map(|variant| {
            let label = TokenStream::from(variant.label.clone());
            let value = if variant.fields.recorded().next().is_none() {
                fill("value.string($label)", &[("label", &label)])
            } else {
                let inner = match variant.fields.single() {
                    Some(field) => field.how.applied_to(field.binding.clone(), sdk),
                    None => fill(
                        "$sdk::debug_annotation::from_fn(|value| $fields)",
                        &[("sdk", sdk), ("fields", &write_fields(&variant.fields, sdk))],
                    ),
                };
                fill(
                    "value.variant($label, $inner)",
                    &[("label", &label), ("inner", &inner)],
                )
            };
            fill(
                "Self::$name { $pattern .. } => $value,",
                &[
                    ("name", &TokenTree::from(variant.name.clone()).into()),
                    ("pattern", &bindings(&variant.fields)),
                    ("value", &value),
                ],
            )
        })
        .collect();
    fill("match *self { $arms }", &[("arms", &arms)])
}

/// `field: binding,` for each field that is recorded.
fn bindings(fields: &Fields) -> TokenStream {
    let binding = |field: &Field| {
        let holes = [("member", &field.member), ("binding", &field.binding)];
        fill("$member: ref $binding,", &holes)
    };
    fields.recorded().map(binding).collect()
}

/// Writes the fields into `value`.
fn write_fields(fields: &Fields, sdk: &TokenStream) -> TokenStream {
    if let Some(field) = fields.single() {
        let inner = field.how.applied_to(field.binding.clone(), sdk);
        return fill(
            "$sdk::debug_annotation::DebugAnnotation::write_annotation(&$inner, value)",
            &[("sdk", sdk), ("inner", &inner)],
        );
    }
    let add = match fields.shape {
        Shape::Named => "fields.entry($label, $inner);",
        _ => "fields.push($inner);",
    };
    let statements: TokenStream = fields
        .recorded()
        .map(|field| {
            let label = TokenStream::from(field.label.clone());
            let inner = field.how.applied_to(field.binding.clone(), sdk);
            fill(add, &[("label", &label), ("inner", &inner)])
        })
        .collect();
    if statements.is_empty() {
        return fill("value.none()", &[]);
    }
    let container = match fields.shape {
        Shape::Named => "value.dictionary(|fields| { $statements })",
        _ => "value.array(|fields| { $statements })",
    };
    fill(container, &[("statements", &statements)])
}

/// `Parameter: Trait,` for each type parameter and each trait by which fields of its type are written.
fn inferred_bounds(item: &Item) -> TokenStream {
    let parameters = &item.generics.types;
    if parameters.is_empty() {
        return TokenStream::new();
    }
    if !matches!(item.how, How::Value) {
        return match item.how.required_trait(&item.sdk) {
            Some(required) => fill("Self: $required,", &[("required", &required)]),
            None => TokenStream::new(),
        };
    }
    let fields: Vec<&Field> = match &item.body {
        Body::Struct(fields) => fields.recorded().collect(),
        Body::Enum(variants) => variants
            .iter()
            .flat_map(|variant| variant.fields.recorded())
            .collect(),
    };
    let mut bounds = TokenStream::new();
    let mut known: Vec<(String, String)> = Vec::new();
    for field in fields {
        let Some(required) = field.how.required_trait(&item.sdk) else {
            continue;
        };
        for parameter in parameters {
            let bounded = match mention(&field.ty, parameter) {
                Mention::None => continue,
                Mention::Itself => TokenTree::from(parameter.clone()).into(),
                // A bound on `T` does not bound `T::Item`.
                Mention::Projection => field.ty.clone(),
            };
            let bound = (bounded.to_string(), required.to_string());
            if !known.contains(&bound) {
                known.push(bound);
                bounds.extend(fill(
                    "$bounded: $required,",
                    &[("bounded", &bounded), ("required", &required)],
                ));
            }
        }
    }
    bounds
}

/// How a type depends on a type parameter.
enum Mention {
    None,
    Itself,
    /// In an associated type of the parameter.
    Projection,
}

fn mention(ty: &TokenStream, parameter: &Ident) -> Mention {
    let tokens: Vec<TokenTree> = ty.clone().into_iter().collect();
    let mut found = Mention::None;
    for (index, token) in tokens.iter().enumerate() {
        let here = match token {
            TokenTree::Group(group) => mention(&group.stream(), parameter),
            TokenTree::Ident(ident) if ident.to_string() == parameter.to_string() => {
                let before = index.checked_sub(1).and_then(|before| tokens.get(before));
                let after = tokens.get(index + 1);
                if is_punct(before, ':') {
                    Mention::None
                } else if is_punct(after, ':')
                    || matches!(after, Some(TokenTree::Ident(word)) if word.to_string() == "as")
                {
                    Mention::Projection
                } else {
                    Mention::Itself
                }
            }
            _ => Mention::None,
        };
        match here {
            Mention::Projection => return here,
            Mention::Itself => found = here,
            Mention::None => {}
        }
    }
    found
}

/// A string literal that names `ident` in a trace.
fn label_of(ident: &Ident) -> TokenTree {
    Literal::string(&name_of(ident)).into()
}
