//! The traits of generated messages: decoding, encoding, and defaults for fields that are absent.
//!
//! For each field, generated code says which function in [`super::decode`] and [`super::visit`] to call. The loops, checks and bounds are written,
//! and compiled, once for all messages. This keeps the messages cheap to build: nothing is generic over a buffer, nothing is instantiated again in
//! the crates that use them, and a field is one call that is not inlined. Nested messages and enums are reached through [`Messages`] and [`Enums`],
//! so only these few methods are compiled for each type.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use ferretto_wire::{Field, Reader, Writer};

use super::decode::{DecodeError, Decoder};
use super::visit::Visitor;

/// A message's fields, one by one: the part that is generated.
pub trait Fields: Send + Sync + 'static {
    /// Shows all fields to a visitor, in the order of their numbers, and the unknown ones.
    fn visit(&self, visitor: &mut Visitor<'_, '_, '_>);

    /// The name of the message in the schema, and the numbers and names of its fields. Programs that neither record nor read traces are built without
    /// names.
    fn names(&self) -> (&'static str, &'static [(u32, &'static str)]) {
        ("Message", &[])
    }

    /// Decodes one field: replaces the value of a singular field, merges a message, or appends to a repeated field.
    ///
    /// # Errors
    /// If the field is not of the schema's type, or exceeds a bound.
    fn merge(&mut self, field: &Field<'_>, decoder: &mut Decoder) -> Result<(), DecodeError>;

    /// The message without any field.
    fn empty() -> &'static Self
    where
        Self: Sized;

    /// Drops a message, see [`MessageField`]. Generated as a function that is not inlined. Its callers need no code for panics, because it has the ABI
    /// of C.
    extern "C" fn release(self: Box<Self>)
    where
        Self: Sized;
}

/// A message of the schema. Fields and enum values that this version does not know survive decoding and encoding.
pub trait Message: Fields + Clone + fmt::Debug + Default + PartialEq {
    /// Decodes a message.
    ///
    /// # Errors
    /// If the bytes are no such message, nest too deeply or would take too much memory.
    fn decode_from_slice(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut message = Self::default();
        message.merge_from_slice(bytes)?;
        Ok(message)
    }

    /// Decodes on top of the present fields, as if the two messages had been encoded one after the other.
    ///
    /// # Errors
    /// As [`Message::decode_from_slice`]; the message then has some of the fields.
    fn merge_from_slice(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        Decoder::new().fields(bytes, self)
    }

    /// The encoded message.
    fn encode_to_vec(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        encode(self, &mut writer);
        writer.into_vec()
    }

    /// The length of the encoded message in bytes. Encodes the message to find it.
    fn encoded_len(&self) -> usize {
        let mut writer = Writer::new();
        encode(self, &mut writer);
        writer.len()
    }
}

fn encode(message: &dyn Fields, writer: &mut Writer) {
    message.visit(&mut Visitor::wire(writer));
}

impl<T: Fields + Clone + fmt::Debug + Default + PartialEq> Message for T {}

/// An enum of the schema. Values of later versions are kept among the unknown fields of the message.
pub trait Enumeration: Copy + Eq + fmt::Debug + Default + Send + Sync + 'static {
    /// All values with their names in the schema.
    const VALUES: &'static [(Self, &'static str)];

    /// Its number on the wire.
    fn to_i32(self) -> i32;

    /// The value of this number.
    fn from_i32(number: i32) -> Option<Self>;

    /// Its name in the schema.
    #[inline]
    fn proto_name(self) -> &'static str {
        let named = Self::VALUES.iter().find(|(value, _)| *value == self);
        named.map_or("", |(_, name)| name)
    }

    /// [`Self::proto_name`] for [`Debug`](fmt::Debug) of messages; empty where no names are compiled.
    #[doc(hidden)]
    fn shown_name(self) -> &'static str {
        #[cfg(feature = "probes")]
        return self.proto_name();
        #[cfg(not(feature = "probes"))]
        ""
    }
}

/// An optional field that holds a message. Reads as the message without any field while it is not set.
///
/// It drops its message by [`Fields::release`], which this crate compiles once. Otherwise the compiler would build the code that drops a message,
/// with all messages in it, in every codegen unit of every crate that drops such a field: it was a sixth of the SDK's machine code.
pub struct MessageField<T: Fields>(ManuallyDrop<Option<Box<T>>>);

impl<T: Fields> MessageField<T> {
    /// Not set.
    #[must_use]
    pub const fn none() -> Self {
        MessageField(ManuallyDrop::new(None))
    }

    /// Set to `message`.
    #[must_use]
    pub fn some(message: T) -> Self {
        MessageField(ManuallyDrop::new(Some(Box::new(message))))
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// The message, if it is set.
    #[must_use]
    pub fn as_option(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// The message to be changed, if it is set.
    #[must_use]
    pub fn as_option_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// The message itself, if it is set.
    #[must_use]
    pub fn into_option(mut self) -> Option<T> {
        self.take()
    }

    /// Takes the message out; the field is not set then.
    pub fn take(&mut self) -> Option<T> {
        self.0.take().map(|message| *message)
    }
}

impl<T: Fields + Default> MessageField<T> {
    /// The message for changing it; sets an empty one if the field is not set.
    pub fn get_or_insert_default(&mut self) -> &mut T {
        if self.0.is_none() {
            // The old value is empty and needs no drop. `forget` spares the compiler from proving that for each message.
            std::mem::forget(self.0.replace(Box::default()));
        }
        match &mut *self.0 {
            Some(message) => message,
            None => unreachable!(),
        }
    }
}

/// A field that holds messages: one, or as many as there are.
pub trait Messages {
    /// The message at this place.
    fn get(&self, at: usize) -> Option<&dyn Fields>;

    /// The message that the next occurrence of the field is merged into.
    fn next(&mut self) -> &mut dyn Fields;
}

impl<T: Fields + Default> Messages for MessageField<T> {
    fn get(&self, at: usize) -> Option<&dyn Fields> {
        match &*self.0 {
            Some(message) if at == 0 => Some(&**message),
            _ => None,
        }
    }

    fn next(&mut self) -> &mut dyn Fields {
        self.get_or_insert_default()
    }
}

impl<T: Fields + Default> Messages for Vec<T> {
    fn get(&self, at: usize) -> Option<&dyn Fields> {
        match self.as_slice().get(at) {
            Some(message) => Some(message),
            None => None,
        }
    }

    fn next(&mut self) -> &mut dyn Fields {
        let at = self.len();
        self.push(T::default());
        &mut self[at]
    }
}

/// A field that holds values of an enum: one, or as many as there are.
pub(crate) trait Enums {
    /// The value at this place: its number, and its name as far as names are compiled.
    fn get(&self, at: usize) -> Option<(i32, &'static str)>;

    /// Takes over the value of this number, if there is one.
    fn take(&mut self, number: i32) -> bool;
}

impl<E: Enumeration> Enums for Option<E> {
    fn get(&self, at: usize) -> Option<(i32, &'static str)> {
        match self {
            Some(value) if at == 0 => Some((value.to_i32(), value.shown_name())),
            _ => None,
        }
    }

    fn take(&mut self, number: i32) -> bool {
        let value = E::from_i32(number);
        if value.is_some() {
            *self = value;
        }
        value.is_some()
    }
}

impl<E: Enumeration> Enums for Vec<E> {
    fn get(&self, at: usize) -> Option<(i32, &'static str)> {
        match self.as_slice().get(at) {
            Some(value) => Some((value.to_i32(), value.shown_name())),
            None => None,
        }
    }

    fn take(&mut self, number: i32) -> bool {
        match E::from_i32(number) {
            Some(value) => {
                self.push(value);
                true
            }
            None => false,
        }
    }
}

impl<T: Fields> Deref for MessageField<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.as_option().unwrap_or(T::empty())
    }
}

/// A message without any field is the same as none.
impl<T: Fields + PartialEq> PartialEq for MessageField<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Fields> Drop for MessageField<T> {
    fn drop(&mut self) {
        if let Some(message) = self.0.take() {
            T::release(message);
        }
    }
}

impl<T: Fields + Clone> Clone for MessageField<T> {
    fn clone(&self) -> Self {
        MessageField(self.0.clone())
    }
}

impl<T: Fields> Default for MessageField<T> {
    fn default() -> Self {
        MessageField::none()
    }
}

impl<T: Fields + fmt::Debug> fmt::Debug for MessageField<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Fields> From<T> for MessageField<T> {
    fn from(message: T) -> Self {
        MessageField::some(message)
    }
}

impl<T: Fields> From<Option<T>> for MessageField<T> {
    fn from(message: Option<T>) -> Self {
        MessageField(ManuallyDrop::new(message.map(Box::new)))
    }
}

/// Fields that this version of the schema does not know, as they were encoded.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UnknownFields(Vec<u8>);

impl UnknownFields {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        UnknownFields(Vec::new())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        // Only whole fields are put in.
        Reader::new(&self.0).map_while(Result::ok)
    }

    /// The encoded fields.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a field.
    pub fn push(&mut self, field: &Field<'_>) {
        self.0.extend_from_slice(field.raw);
    }

    /// [`Self::push`] with the signature of the functions that take other fields.
    #[inline(never)]
    pub(crate) fn take(&mut self, field: &Field<'_>) -> Result<(), DecodeError> {
        self.push(field);
        Ok(())
    }

    /// Adds a varint, the form of enum values.
    pub fn push_varint(&mut self, number: u32, value: u64) {
        let mut writer = Writer::new();
        writer.varint_field(number, value);
        self.0.extend_from_slice(writer.as_slice());
    }
}

impl fmt::Debug for UnknownFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|field| (field.number, field.value)))
            .finish()
    }
}
