//! The schema as data: an encoded `FileDescriptorSet`, for the text format and for whoever reflects.

/// `FileDescriptorSet` of `perfetto.protos.TraceConfig` and all that it reaches: every data source's config
/// message, Android's and Chrome's included. Without comments.
pub const CONFIG: &[u8] = include_bytes!("config.binpb");
