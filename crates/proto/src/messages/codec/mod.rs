//! What generated messages are made of: their traits and field types, and what encodes and decodes them.
//!
//! `messages::generated` says for each field which function here takes it, and nothing more; see [`message`] for why.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod message;
pub(crate) mod scalar;

pub use decode::{DecodeError, Decoder, MAX_DEPTH, MAX_ELEMENT_MEMORY};
pub(crate) use ferretto_wire::{Field, Writer};
pub use message::{Enumeration, Fields, Message, MessageField, UnknownFields};
