//! The procedural macros of the crate `ferretto`, which re-exports them, with examples. Do not depend on this crate by itself.
//!
//! It reads tokens by hand and depends on nothing: what a parser for all of Rust takes to compile would be a good part of the
//! time that all of `ferretto` takes. Types and expressions pass through as they are; only their ends have to be found.

#![forbid(unsafe_code)]

use proc_macro::{TokenStream, TokenTree};

mod constant;
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
/// Slices of functions that are called in it are within that of an `async fn`: see `ferretto::future`.
///
/// Behind the category, in any order:
///
/// | option | |
/// |---|---|
/// | `name = "..."` | is the name of the slice; else it is that of the function |
/// | `args` | records all parameters as arguments, but `self` |
/// | `skip(a, b)` | records all parameters but these |
/// | `skip_all` | records no parameter, as if nothing was said |
/// | `args(a, self.b, "c" => expression)` | records these: `a`, `b` and `c`; with `skip(...)`, besides the parameters |
/// | `ret` | records what the function returns, as argument `return` of the slice's end |
/// | `err` | records the error that the function returns, as argument `error`, and in the trace's log; with `ret`, that is what `Ok` holds |
/// | `option = expression` | passes on what else `trace_event!` takes |
///
/// What is returned is written as arguments are, and an error as it displays. `ret(Debug)`, `ret(Display)` and `err(Debug)` write it so. With either, the
/// body of a function that is not `async` becomes that of a closure.
#[proc_macro_attribute]
pub fn trace_function(arguments: TokenStream, item: TokenStream) -> TokenStream {
    function::expand(arguments, item)
}

/// `if_constant!(NAME { tokens } { other tokens })` is the first tokens if the name is written as those of constants are, in capitals. For the
/// macros of events: `macro_rules` can neither look at a name nor ask what it stands for.
#[doc(hidden)]
#[proc_macro]
pub fn if_constant(input: TokenStream) -> TokenStream {
    let mut input = input.into_iter();
    let is_constant = input
        .next()
        .is_some_and(|name| constant::is_written_as_one(&name.to_string()));
    match (is_constant, input.next(), input.next()) {
        (true, Some(TokenTree::Group(chosen)), _) | (false, _, Some(TokenTree::Group(chosen))) => {
            chosen.stream()
        }
        // The macros of events always give both.
        _ => TokenStream::new(),
    }
}
