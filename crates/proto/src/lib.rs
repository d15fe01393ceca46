//! Perfetto's schema: generated messages, typed zero-copy writers, descriptors and the text format.
#![forbid(unsafe_code)]

pub mod descriptors;
pub mod messages;
