//! The procedural macros of the crate `ferretto`, which re-exports them, with examples. Do not depend on this crate by itself.
//!
//! It reads tokens by hand and depends on nothing: what a parser for all of Rust takes to compile would be a good part of the
//! time that all of `ferretto` takes. Types and expressions pass through as they are; only their ends have to be found.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;

mod cursor;
mod derive;
mod error;
mod function;
mod template;

/// Derives `DebugAnnotation`, by which a value can be an argument of an event.
///
/// - A struct is a dictionary of its fields. One with a single unnamed field is what that field is; with more of them
///   it is an array. Without fields it is its name, as a string.
/// - Of an enum, a variant without fields is its name, as a string. Others are a dictionary with one entry,
///   named after the variant, whose value is as that of a struct.
///
/// `#[annotation(...)]` changes that:
///
/// | on | option | does |
/// |---|---|---|
/// | field | `skip` | leaves it out |
/// | field, variant | `rename = "name"` | is what it is called in the trace |
/// | field, type | `display`, `debug` | writes it as `{}` or `{:?}` formats it |
/// | field, type | `with = path` | writes it by `path(&value, AnnotationValue)` |
/// | type | `bound(T: Bound, ...)` | replaces the bounds on type parameters |
///
/// Without `bound`, each type parameter that occurs in a recorded field has to implement `DebugAnnotation`, or `Display` or
/// `Debug` where the field says so.
#[proc_macro_derive(DebugAnnotation, attributes(annotation))]
pub fn derive_debug_annotation(item: TokenStream) -> TokenStream {
    derive::expand(item).unwrap_or_else(error::Error::into_tokens)
}

/// Records a function as a slice: `#[trace_function("category")]`.
///
/// The slice is on the track of the thread, as `trace_event!` has it, and lasts until the function returns or unwinds. That of an
/// `async fn` is on a track of its own, as `trace_async!` has it: it begins when the future is first polled and lasts until
/// the future is done or dropped, whatever threads run it meanwhile. An `async fn` behind `#[async_trait]` is taken for
/// what it was written as.
///
/// Behind the category:
/// - `name = "..."` is the name of the slice; else it is that of the function.
/// - `args` records all parameters as arguments (not `self`), and `skip(a, b)` all but those.
/// - `args(a, self.b, "c" => expression)` records these: `a`, `b` and `c`.
/// - `option = expression` passes on what else `trace_event!` takes.
#[proc_macro_attribute]
pub fn trace_function(arguments: TokenStream, item: TokenStream) -> TokenStream {
    function::expand(arguments, item)
}
