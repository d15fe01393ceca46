//! Owned structs of the messages that are decoded or built away from the hot paths.

#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod generated;

pub use buffa::{self, Message, MessageField, UnknownFields};
pub use generated::*;
