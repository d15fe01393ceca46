//! Perfetto's schema: generated messages, typed zero-copy writers, descriptors and the text format.
