//! Protobuf wire format for hot paths: varints, a bounded writer with back-patched lengths, a scanning reader.
