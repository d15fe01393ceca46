//! The options in `#[annotation(...)]`.

use proc_macro::{Delimiter, Group, Span, TokenStream, TokenTree};

use crate::cursor::Cursor;
use crate::error::Error;
use crate::template::fill;

/// How a value is written.
#[derive(Clone, Debug)]
pub(super) enum How {
    /// By the implementation of `DebugAnnotation` for its type.
    Value,
    /// With `{}`.
    Display,
    /// With `{:?}`.
    Debug,
    /// By the function of this path.
    With(TokenStream),
    /// Not at all.
    Skip,
}

impl How {
    /// An expression of a type that is a `DebugAnnotation`; `reference` is one that gives a reference to the value.
    pub(super) fn applied_to(&self, reference: TokenStream, sdk: &TokenStream) -> TokenStream {
        let wrapped = match self {
            How::Value | How::Skip => return reference,
            How::Display => "$sdk::debug_annotation::display($reference)",
            How::Debug => "$sdk::debug_annotation::debug($reference)",
            How::With(path) => {
                let holes = [("sdk", sdk), ("path", path), ("reference", &reference)];
                return fill(
                    "$sdk::debug_annotation::from_fn(|value| $path($reference, value))",
                    &holes,
                );
            }
        };
        fill(wrapped, &[("sdk", sdk), ("reference", &reference)])
    }

    /// The trait that the type of the value has to implement, if that can be told.
    pub(super) fn required_trait(&self, sdk: &TokenStream) -> Option<TokenStream> {
        let path = match self {
            How::Value => "$sdk::debug_annotation::DebugAnnotation",
            How::Display => "::core::fmt::Display",
            How::Debug => "::core::fmt::Debug",
            How::With(_) | How::Skip => return None,
        };
        Some(fill(path, &[("sdk", sdk)]))
    }
}

/// The item that options stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Type,
    Variant,
    Field,
}

impl Target {
    fn allows(self, option: &str) -> bool {
        match self {
            Target::Type => ["display", "debug", "with", "bound", "crate"].contains(&option),
            Target::Variant => option == "rename",
            Target::Field => ["display", "debug", "with", "rename", "skip"].contains(&option),
        }
    }

    fn allowed(self) -> &'static str {
        match self {
            Target::Type => {
                "a type has the options `display`, `debug`, `with = path`, `bound(...)` and `crate = path`"
            }
            Target::Variant => "a variant has the option `rename = \"name\"`",
            Target::Field => {
                "a field has the options `skip`, `rename = \"name\"`, `display`, `debug` and `with = path`"
            }
        }
    }
}

/// The options of one type, variant or field.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) how: How,
    /// A string literal.
    pub(super) rename: Option<TokenTree>,
    /// The bounds for the where clause.
    pub(super) bounds: Option<TokenStream>,
    /// The path of the SDK.
    pub(super) sdk: Option<TokenStream>,
}

impl Options {
    /// Parses our options among the `attributes` of a `target`.
    pub(super) fn parse(attributes: Vec<Group>, target: Target) -> Result<Self, Error> {
        let mut options = Self {
            how: How::Value,
            rename: None,
            bounds: None,
            sdk: None,
        };
        for attribute in attributes {
            let mut attribute = Cursor::inside(&attribute);
            if !attribute.take_keyword("annotation") {
                continue;
            }
            let span = attribute.span();
            let Some(list) = attribute.take_group(Delimiter::Parenthesis) else {
                return Err(Error::new(
                    span,
                    format!("expected `annotation(...)`: {}", target.allowed()),
                ));
            };
            let mut list = Cursor::inside(&list);
            while !list.at_end() {
                options.parse_option(&mut list, target)?;
                list.expect_comma()?;
            }
        }
        Ok(options)
    }

    fn parse_option(&mut self, list: &mut Cursor, target: Target) -> Result<(), Error> {
        let option = list.expect_ident(&format!("an option: {}", target.allowed()))?;
        let (name, span) = (option.to_string(), option.span());
        if !target.allows(&name) {
            return Err(Error::new(
                span,
                format!("there is no `{name}` here: {}", target.allowed()),
            ));
        }
        match name.as_str() {
            "rename" => {
                let label = parse_label(list, span)?;
                if self.rename.replace(label).is_some() {
                    return Err(Error::new(span, "it is renamed already"));
                }
            }
            "bound" => {
                let Some(bounds) = list.take_group(Delimiter::Parenthesis) else {
                    return Err(Error::new(list.span(), "expected `bound(T: Bound, ...)`"));
                };
                self.bounds = Some(bounds.stream());
            }
            "crate" => {
                let path = parse_path(list, "expected `crate = path`, of the crate ferretto")?;
                if self.sdk.replace(path).is_some() {
                    return Err(Error::new(span, "there are two of `crate`"));
                }
            }
            how => {
                let how = match how {
                    "skip" => How::Skip,
                    "display" => How::Display,
                    "debug" => How::Debug,
                    _ => How::With(parse_path(
                        list,
                        "expected `with = path`, of a `fn(&T, AnnotationValue<'_>)`",
                    )?),
                };
                if !matches!(self.how, How::Value) {
                    let message = format!("`{name}` comes too late: how this is written was said before");
                    return Err(Error::new(span, message));
                }
                self.how = how;
            }
        }
        Ok(())
    }
}

fn parse_label(list: &mut Cursor, option: Span) -> Result<TokenTree, Error> {
    if !list.take_punct('=') {
        return Err(Error::new(option, "expected `rename = \"name\"`"));
    }
    let span = list.span();
    match list.take_literal() {
        Some(label) if label.to_string().starts_with(['"', 'r']) => Ok(label.into()),
        _ => Err(Error::new(span, "expected a name in quotes")),
    }
}

/// Parses `= path`; `expected` is the error.
fn parse_path(list: &mut Cursor, expected: &str) -> Result<TokenStream, Error> {
    let span = list.span();
    let path = if list.take_punct('=') {
        list.take_expression()
    } else {
        TokenStream::new()
    };
    if path.is_empty() {
        return Err(Error::new(span, expected));
    }
    Ok(path)
}
