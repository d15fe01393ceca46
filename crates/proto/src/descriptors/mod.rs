//! The schema as data: an encoded `FileDescriptorSet`, for the text format and for code that reflects on messages.

/// `FileDescriptorSet` of `perfetto.protos.Trace` and everything that it refers to. It includes `perfetto.protos.TraceConfig`
/// with every data source's config message, also Android's and Chrome's. It has no comments.
pub const TRACE: &[u8] = include_bytes!("trace.binpb");
