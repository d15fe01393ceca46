//! Typed writers: each appends the fields of one message to a [`Writer`](ferretto_wire::Writer), with no struct in between.
//!
//! Used by all code that emits packets: data sources, the SDK, the service. A setter appends one field and returns the
//! writer, so calls chain; a field that is a message takes a closure that fills it; a repeated field is one call
//! per element, a packed one takes all of its values at once. Text takes bytes too, for the kernel's names need
//! not be UTF-8.
//!
//! ```
//! use ferretto_proto::write::TracePacket;
//! use ferretto_wire::Writer;
//!
//! let mut writer = Writer::new();
//! TracePacket::new(&mut writer).timestamp(5).process_tree(|tree| {
//!     tree.processes(|process| {
//!         process.pid(1).cmdline("/sbin/init");
//!     });
//! });
//! assert_eq!(writer.as_slice(), b"\x40\x05\x12\x10\x0a\x0e\x08\x01\x1a\x0a/sbin/init");
//! ```
//!
//! Nothing checks that a singular field is written once: on the wire the last one wins, and for messages they merge.
//! Every field has its number as a constant (`TracePacket::TIMESTAMP`), also those without a setter; readers match on
//! them, and [`writer`](TracePacket::writer) leads to the untyped writer for bytes that are already encoded and for
//! fields whose number is only known at run time (generic ftrace events).

/// Declares the writer type of one message, and the two methods that all of them have.
macro_rules! message_writer {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'w>(&'w mut ::ferretto_wire::Writer);

        impl<'w> $name<'w> {
            /// Appends to `writer`, which holds nothing but this message's fields so far (or nothing at all).
            #[inline]
            pub fn new(writer: &'w mut ::ferretto_wire::Writer) -> Self {
                Self(writer)
            }

            /// The untyped writer, at this message.
            #[inline]
            pub fn writer(&mut self) -> &mut ::ferretto_wire::Writer {
                self.0
            }
        }
    };
}

#[rustfmt::skip]
#[allow(clippy::redundant_closure)]
mod generated;

pub use generated::*;
