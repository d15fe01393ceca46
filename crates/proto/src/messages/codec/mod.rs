//! The parts of generated messages: their traits and field types, and the code that decodes and shows them.
//!
//! `messages::generated` says for each field which function here takes it, and nothing more; see [`message`] for why.

pub(crate) mod decode;
pub(crate) mod message;
pub(crate) mod scalar;
pub(crate) mod visit;

pub use decode::{DecodeError, Decoder, MAX_DEPTH, MAX_ELEMENT_MEMORY};
pub(crate) use ferretto_wire::Field;
pub use message::{Enumeration, Fields, Message, MessageField, Messages, UnknownFields};
pub use visit::Visitor;

/// Implementations that all messages share.
macro_rules! message_impls {
    ($name:ident) => {
        impl Default for $name {
            #[inline]
            fn default() -> Self {
                Self::EMPTY
            }
        }
        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::messages::codec::visit::debug(self, f)
            }
        }
    };
}
pub(crate) use message_impls;
