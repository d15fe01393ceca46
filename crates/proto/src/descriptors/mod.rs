//! The schema as data: an encoded `FileDescriptorSet`, for the text format and for whoever reflects.

/// `FileDescriptorSet` of `perfetto.protos.Trace` and all that it reaches. In it is `perfetto.protos.TraceConfig` with every data
/// source's config message, Android's and Chrome's included. Without comments.
pub const TRACE: &[u8] = include_bytes!("trace.binpb");
