//! The procedural macros of the crate `ferretto`, which re-exports them, with examples. Do not depend on this crate by itself.
//!
//! It reads tokens by hand and depends on nothing: a parser for all of Rust would take a good part of the compile time of all of `ferretto`. Types
//! and expressions pass through as they are; only their ends have to be found.

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
/// - A struct is a dictionary of its fields. A struct with a single unnamed field is written as that field; with more of them it is an array. Without
///   fields it is its name, as a string.
/// - A variant of an enum without fields is its name, as a string. Other variants are a dictionary with one entry, named after the variant, whose
///   value is as that of a struct.
///
/// `#[annotation(...)]` changes that:
///
/// | on | option | effect |
/// |---|---|---|
/// | field | `skip` | leaves it out |
/// | field, variant | `rename = "name"` | sets its name in the trace |
/// | field, type | `display`, `debug` | writes it as `{}` or `{:?}` formats it |
/// | field, type | `with = path` | writes it by `path(&value, AnnotationValue)` |
/// | type | `bound(T: Bound, ...)` | replaces the bounds on type parameters |
/// | type | `crate = path` | says where the crate `ferretto` is, if it has another name here or is re-exported by a crate |
///
/// Without `bound`, each type parameter that occurs in a recorded field has to implement `DebugAnnotation`, or `Display` or `Debug` where the field
/// says so.
#[proc_macro_derive(DebugAnnotation, attributes(annotation))]
pub fn derive_debug_annotation(item: TokenStream) -> TokenStream {
    derive::expand(item).unwrap_or_else(error::Error::into_tokens)
}

/// Records a function as a slice: `#[trace_function("category")]`.
///
/// The slice is on the track of the thread, as with `trace_event!`, and lasts until the function returns or unwinds. The slice of an `async fn` is on
/// a track of its own, as with `trace_async!`: it begins when the future is first polled and lasts until the future is done or dropped, whatever
/// threads run it meanwhile. A function that `#[async_trait]` has rewritten counts as the `async fn` that it was.
///
/// So does any function that ends with `async { ... }`, `async move { ... }` or `Box::pin` of such a block. If statements in front of the block use
/// what the arguments of the event are made of, its slice begins with the call, before they can move it. Other futures are not seen: a variable that
/// holds a block, a block with a method behind it or with `return` in front, the result of another function. The slice is then that of the call, which
/// only makes the future: give such a function an `async move { ... }` at its end, or use `ferretto::future`.
///
/// Slices of functions that an `async fn` calls are within its slice: see `ferretto::future`.
///
/// Options follow the category, in any order:
///
/// | option | |
/// |---|---|
/// | `name = "..."` | is the name of the slice, instead of the function's |
/// | `args` | records all parameters except `self` as arguments |
/// | `skip(a, b)` | records all parameters but these |
/// | `skip_all` | records no parameter, which is the default |
/// | `args(a, self.b, "c" => expression)` | records these: `a`, `b` and `c`; with `skip(...)`, besides the parameters |
/// | `ret` | records the returned value, as argument `return` of the slice's end |
/// | `err` | records the returned error, as argument `error`, and in the trace's log; with `ret`, the value in `Ok` is recorded as well |
/// | `crate = path` | says where the crate `ferretto` is, if it has another name here or is re-exported by a crate: `crate = facade::ferretto` |
/// | `option = expression` | passes any other option on to `trace_event!` |
///
/// Returned values are written like arguments, and errors as they display. `ret(Debug)`, `ret(Display)` and `err(Debug)` choose the format. With
/// `ret` or `err`, the body of a function that is not `async` becomes the body of a closure.
#[proc_macro_attribute]
pub fn trace_function(arguments: TokenStream, item: TokenStream) -> TokenStream {
    function::expand(arguments, item)
}

/// `if_constant!(NAME { tokens } { other tokens })` expands to the first tokens if the name is in capitals, as constants are, and else to the others.
/// For the macros of events: `macro_rules` cannot look at the letters of a name.
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
