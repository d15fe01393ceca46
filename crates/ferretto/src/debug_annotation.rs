//! Debug annotations: the arguments of events, of any type.
//!
//! The macros of track events call [`DebugAnnotation::write_annotation`] for each `"name" => value` they are given. To use a type of your own there,
//! derive or implement the trait, or wrap the value in [`display`], [`debug`], [`error()`] or [`from_fn`]. Values go straight into the packet:
//! nothing here allocates, and nothing is kept.
//!
//! ```
//! use ferretto::debug_annotation::{AnnotationValue, DebugAnnotation};
//!
//! struct Request {
//!     url: String,
//!     retries: u32,
//!     deadline: Option<std::time::Duration>,
//!     error: std::io::Error,
//! }
//!
//! impl DebugAnnotation for Request {
//!     fn write_annotation(&self, value: AnnotationValue<'_>) {
//!         value.dictionary(|request| {
//!             request
//!                 .entry("url", &self.url)
//!                 .entry("retries", self.retries)
//!                 .entry("deadline", self.deadline)
//!                 .entry("error", &self.error);
//!         });
//!     }
//! }
//! ```
//!
//! # How values read in a trace
//! An annotation `request` of this type is shown in the user interface as a tree, and gives four arguments in SQL: `debug.request.url` and so on;
//! `debug.list[2]` is the third element of a list.
//!
//! **Nothing is a value too.** `None`, an empty dictionary and an empty list write nothing, so the argument is not there, and `EXTRACT_ARG` gives
//! `NULL`, which sums and averages leave out. Among the elements of a list they are the strings `None`, `{}` and `[]`, because readers number only
//! elements that have a value.
//!
//! **Large values** are written as they are. An annotation of megabytes takes megabytes of the trace buffer.

use std::fmt;

use ferretto_proto::write::DebugAnnotation as Field;
use ferretto_wire::{Cursor, Writer};

use crate::private::AnnotationFront;

use text::write_text;

mod error;
mod impls;
#[cfg(feature = "serde_json")]
mod json;
mod text;
mod time;

pub use error::{ErrorValue, error};

#[cfg(test)]
mod tests;

/// A value that can be an argument of an event.
///
/// Implemented for numbers, text, times, errors, collections, paths, addresses and more; see the list below. With the feature `serde_json` also
/// for its values. It can be derived with `#[derive(DebugAnnotation)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of an event",
    label = "needs `DebugAnnotation`",
    note = "add `#[derive(ferretto::DebugAnnotation)]` to `{Self}`, or wrap the value: `debug_annotation::debug(&value)`, `debug_annotation::display(&value)`"
)]
pub trait DebugAnnotation {
    /// Writes the value, by one call of one of `value`'s methods. Dropping `value` writes [`none`](AnnotationValue::none).
    ///
    /// This runs while an event is being written, and only if a session records it. It should neither block nor have side effects. An event that it
    /// traces is not recorded.
    fn write_annotation(&self, value: AnnotationValue<'_>);

    /// Returns the value, if it is always a simple one, which can be written in a shorter way.
    #[doc(hidden)]
    #[inline]
    fn as_scalar(&self) -> Option<Scalar<'_>> {
        None
    }
}

/// A simple value, which contains no others.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Scalar<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(&'a str),
}

impl Scalar<'_> {
    /// Writes an annotation of an event that begins with these bytes, if there is room for it.
    #[inline(always)]
    pub(crate) fn put<'w>(self, event: Cursor<'w>, front: &AnnotationFront) -> Option<Cursor<'w>> {
        let (annotation, length) =
            event.nested_with_front(&front.bytes, front.len(), AnnotationFront::LENGTH_AT)?;
        let annotation = match self {
            Scalar::Bool(value) => annotation.varint_field(Field::BOOL_VALUE, u64::from(value)),
            Scalar::Int(value) => annotation.varint_field(Field::INT_VALUE, value as u64),
            Scalar::Uint(value) => annotation.varint_field(Field::UINT_VALUE, value),
            Scalar::Double(value) => annotation.fixed64_field(Field::DOUBLE_VALUE, value.to_bits()),
            Scalar::Text(value) => annotation.bytes_field(Field::STRING_VALUE, value.as_bytes()),
        }?;
        Some(annotation.end_nested(length))
    }
}

/// The place in a packet that takes a value. Every method consumes it, so that it gets one value at most.
#[derive(Debug)]
pub struct AnnotationValue<'w> {
    /// At a message of type `DebugAnnotation` that has no value yet.
    writer: &'w mut Writer,
    place: Place,
}

/// The position of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Behind a name: an argument of an event or an entry of a dictionary. Without a value, the entry does not exist.
    Named,
    /// Among the elements of an array. Without a value, readers would give its index to the next element.
    Element,
}

impl<'w> AnnotationValue<'w> {
    /// The value of the `DebugAnnotation` message that `writer` is at, whose name is written or will be.
    #[inline]
    pub fn new(writer: &'w mut Writer) -> Self {
        Self {
            writer,
            place: Place::Named,
        }
    }

    /// No value; see [how it reads](self#how-values-read-in-a-trace).
    #[inline]
    pub fn none(self) {}

    /// Writes a simple value.
    #[inline]
    fn scalar(self, value: Scalar<'_>) {
        match value {
            Scalar::Bool(value) => self.bool(value),
            Scalar::Int(value) => self.int(value),
            Scalar::Uint(value) => self.uint(value),
            Scalar::Double(value) => self.double(value),
            Scalar::Text(value) => self.string(value),
        }
    }

    /// A truth value.
    #[inline]
    pub fn bool(self, value: bool) {
        self.writer.varint_field(Field::BOOL_VALUE, u64::from(value));
    }

    /// A signed integer.
    #[inline]
    pub fn int(self, value: i64) {
        self.writer.varint_field(Field::INT_VALUE, value as u64);
    }

    /// An unsigned integer. SQL has none: there, a number that does not fit an `i64` is negative.
    #[inline]
    pub fn uint(self, value: u64) {
        self.writer.varint_field(Field::UINT_VALUE, value);
    }

    /// A floating point number. Readers show NaN as nothing.
    #[inline]
    pub fn double(self, value: f64) {
        self.writer.fixed64_field(Field::DOUBLE_VALUE, value.to_bits());
    }

    /// An address, which is shown in hexadecimal.
    #[inline]
    pub fn pointer(self, address: u64) {
        self.writer.varint_field(Field::POINTER_VALUE, address);
    }

    /// Text. Readers end it at the first NUL.
    #[inline]
    pub fn string(self, value: &str) {
        self.writer.bytes_field(Field::STRING_VALUE, value.as_bytes());
    }

    /// Text as [`format_args!`] makes it, formatted in place.
    #[inline]
    pub fn format(self, text: fmt::Arguments<'_>) {
        write_text(self.writer, Field::STRING_VALUE, text);
    }

    /// The `{}` format of a value, written in place.
    #[inline]
    pub fn display(self, value: impl fmt::Display) {
        self.format(format_args!("{value}"));
    }

    /// The `{:?}` format of a value, written in place.
    #[inline]
    pub fn debug(self, value: impl fmt::Debug) {
        self.format(format_args!("{value:?}"));
    }

    /// A dictionary, whose entries `fill` adds.
    #[inline]
    pub fn dictionary(self, fill: impl FnOnce(&mut Dictionary<'_>)) {
        let start = self.writer.len();
        fill(&mut Dictionary { writer: self.writer });
        if self.place == Place::Element && self.writer.len() == start {
            AnnotationValue::new(self.writer).string("{}");
        }
    }

    /// An array, whose elements `fill` adds.
    #[inline]
    pub fn array(self, fill: impl FnOnce(&mut Array<'_>)) {
        let start = self.writer.len();
        fill(&mut Array { writer: self.writer });
        if self.place == Place::Element && self.writer.len() == start {
            AnnotationValue::new(self.writer).string("[]");
        }
    }

    /// One of several alternatives: a dictionary with the entry `name`, or just `name` if `value` is nothing.
    #[inline]
    pub fn variant(self, name: &str, value: impl DebugAnnotation) {
        let before = self.writer.len();
        let is_empty = self.writer.nested(Field::DICT_ENTRIES, |entry| {
            entry.bytes_field(Field::NAME, name.as_bytes());
            let start = entry.len();
            value.write_annotation(AnnotationValue::new(entry));
            entry.len() == start
        });
        if is_empty {
            self.writer.truncate(before);
            self.string(name);
        }
    }

    /// A protobuf message, which `fill` encodes. `type_name` is its full name with a dot in front (`.example.Request`). Readers without a descriptor
    /// of that type leave the value out.
    #[inline]
    pub fn proto(self, type_name: &str, fill: impl FnOnce(&mut Writer)) {
        self.writer
            .bytes_field(Field::PROTO_TYPE_NAME, type_name.as_bytes());
        self.writer.nested(Field::PROTO_VALUE, fill);
    }
}

/// The entries of a dictionary: see [`AnnotationValue::dictionary`]. If a name comes twice, readers may show the last only.
#[derive(Debug)]
pub struct Dictionary<'w> {
    writer: &'w mut Writer,
}

impl Dictionary<'_> {
    /// Adds an entry.
    #[inline]
    pub fn entry(&mut self, name: &str, value: impl DebugAnnotation) -> &mut Self {
        self.writer.nested(Field::DICT_ENTRIES, |entry| {
            entry.bytes_field(Field::NAME, name.as_bytes());
            value.write_annotation(AnnotationValue::new(entry));
        });
        self
    }

    /// Adds an entry whose name is the `{}` format of `name`.
    #[inline]
    pub fn entry_display(&mut self, name: impl fmt::Display, value: impl DebugAnnotation) -> &mut Self {
        self.writer.nested(Field::DICT_ENTRIES, |entry| {
            write_text(entry, Field::NAME, format_args!("{name}"));
            value.write_annotation(AnnotationValue::new(entry));
        });
        self
    }

    /// Adds an entry for each pair.
    pub fn entries<N: fmt::Display, V: DebugAnnotation>(
        &mut self,
        entries: impl IntoIterator<Item = (N, V)>,
    ) -> &mut Self {
        for (name, value) in entries {
            self.entry_display(name, value);
        }
        self
    }
}

/// The elements of an array: see [`AnnotationValue::array`].
#[derive(Debug)]
pub struct Array<'w> {
    writer: &'w mut Writer,
}

impl Array<'_> {
    /// Adds an element.
    #[inline]
    pub fn push(&mut self, value: impl DebugAnnotation) -> &mut Self {
        self.writer.nested(Field::ARRAY_VALUES, |element| {
            let start = element.len();
            value.write_annotation(AnnotationValue {
                writer: element,
                place: Place::Element,
            });
            if element.len() == start {
                AnnotationValue::new(element).string("None");
            }
        });
        self
    }

    /// Adds an element for each value.
    pub fn extend<V: DebugAnnotation>(&mut self, values: impl IntoIterator<Item = V>) -> &mut Self {
        for value in values {
            self.push(value);
        }
        self
    }
}

/// A value that is written as `{}` formats it: see [`display`].
#[derive(Clone, Copy, Debug)]
pub struct DisplayValue<T>(T);

/// Writes `value` as `{}` formats it. Takes a reference as well.
///
/// ```
/// # use ferretto::debug_annotation::display;
/// # fn annotate(_: impl ferretto::debug_annotation::DebugAnnotation) {}
/// # let error = std::io::Error::other("no");
/// annotate(display(&error));
/// ```
#[inline]
pub const fn display<T: fmt::Display>(value: T) -> DisplayValue<T> {
    DisplayValue(value)
}

impl<T: fmt::Display> DebugAnnotation for DisplayValue<T> {
    #[inline]
    fn write_annotation(&self, value: AnnotationValue<'_>) {
        value.display(&self.0);
    }
}

/// A value that is written as `{:?}` formats it: see [`debug`].
#[derive(Clone, Copy, Debug)]
pub struct DebugValue<T>(T);

/// Writes `value` as `{:?}` formats it. Takes a reference as well.
#[inline]
pub const fn debug<T: fmt::Debug>(value: T) -> DebugValue<T> {
    DebugValue(value)
}

impl<T: fmt::Debug> DebugAnnotation for DebugValue<T> {
    #[inline]
    fn write_annotation(&self, value: AnnotationValue<'_>) {
        value.debug(&self.0);
    }
}

/// A value that a closure writes: see [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

/// A value that the closure `write` puts together on the spot.
///
/// ```
/// # use ferretto::debug_annotation::from_fn;
/// # fn annotate(_: impl ferretto::debug_annotation::DebugAnnotation) {}
/// let (width, height) = (640, 480);
/// annotate(from_fn(|value| {
///     value.dictionary(|size| {
///         size.entry("width", width).entry("height", height);
///     })
/// }));
/// ```
#[inline]
pub const fn from_fn<F: Fn(AnnotationValue<'_>)>(write: F) -> FromFn<F> {
    FromFn(write)
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

impl<F: Fn(AnnotationValue<'_>)> DebugAnnotation for FromFn<F> {
    #[inline]
    fn write_annotation(&self, value: AnnotationValue<'_>) {
        (self.0)(value);
    }
}
