//! Text that is formatted straight into a packet, without a `String` in between.
//!
//! Called by the annotation values that are formatted. The field is whole whatever the formatting does: what was written
//! before an implementation of `Display` returned an error stands.

use std::fmt::{self, Write};

use ferretto_wire::Writer;

/// Appends `text` as the string field `number`.
#[inline]
pub(super) fn write_text(writer: &mut Writer, number: u32, text: fmt::Arguments<'_>) {
    match text.as_str() {
        Some(text) => writer.bytes_field(number, text.as_bytes()),
        None => writer.nested(number, |writer| {
            // `Pieces` never fails, so an error is one that the formatted value made up. There is nobody to tell.
            let _ = Pieces(writer).write_fmt(text);
        }),
    }
}

/// Appends `bytes` as the string field `number`, with U+FFFD for what is not UTF-8.
pub(super) fn write_lossy(writer: &mut Writer, number: u32, bytes: &[u8]) {
    match str::from_utf8(bytes) {
        Ok(text) => writer.bytes_field(number, text.as_bytes()),
        Err(_) => writer.nested(number, |writer| {
            for chunk in bytes.utf8_chunks() {
                writer.raw(chunk.valid().as_bytes());
                if !chunk.invalid().is_empty() {
                    writer.raw("\u{fffd}".as_bytes());
                }
            }
        }),
    }
}

/// Appends what is formatted into it to the message that a writer is at.
struct Pieces<'w>(&'w mut Writer);

impl Write for Pieces<'_> {
    #[inline]
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.0.raw(piece.as_bytes());
        Ok(())
    }
}
