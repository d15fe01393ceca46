//! Text that is formatted straight into a packet, without a `String` in between.
//!
//! Called by the annotation values that are formatted. The field is always complete: if an implementation of `Display` returns an error, the text
//! that it wrote before stays.

use std::fmt::{self, Write};

use ferretto_wire::Writer;

/// Appends `text` as the string field `number`.
#[inline]
pub(super) fn write_text(writer: &mut Writer, number: u32, text: fmt::Arguments<'_>) {
    match text.as_str() {
        Some(text) => writer.bytes_field(number, text.as_bytes()),
        None => writer.nested(number, |writer| {
            // `Pieces` never fails, so the formatted value itself made up an error. Nothing can be done about it.
            let _ = Pieces(writer).write_fmt(text);
        }),
    }
}

/// Appends `bytes` as the string field `number`, with U+FFFD in place of bytes that are not UTF-8.
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

/// Appends formatted text to the current message of a writer.
struct Pieces<'w>(&'w mut Writer);

impl Write for Pieces<'_> {
    #[inline]
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.0.raw(piece.as_bytes());
        Ok(())
    }
}
