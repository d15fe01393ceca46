//! From the bytes of a file to text.

use std::borrow::Cow;
use std::fmt;

use super::lexer::{Lexer, TokenKind};
use super::place::Place;

/// The bytes are not text, for this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotText {
    /// A byte order mark says that they are UTF-16.
    Utf16,
    /// They are in another encoding, or are not text at all.
    NotUtf8 {
        /// The position of the first such byte outside of comments.
        place: Place,
        /// The byte.
        byte: u8,
    },
}

impl fmt::Display for NotText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotText::Utf16 => f.write_str("the text is UTF-16: save it as UTF-8"),
            NotText::NotUtf8 { place, byte } => write!(
                f,
                "{}:{}: error: the byte 0x{byte:02x} is not UTF-8: save the file as UTF-8\n{}",
                place.line,
                place.column,
                place.caret()
            ),
        }
    }
}

impl std::error::Error for NotText {}

/// Returns the text of a file. As in Perfetto's own parser, comments may have any bytes; bytes that are not UTF-8 are replaced there.
///
/// # Errors
/// The position of the first byte that is not text.
pub fn source(bytes: &[u8]) -> Result<Cow<'_, str>, NotText> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(NotText::Utf16);
    }
    let text = String::from_utf8_lossy(bytes);
    let Cow::Owned(text) = text else {
        return Ok(text);
    };
    // The positions of the replacement characters in the result, without those of the file's own.
    let mut replaced = Vec::new();
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        at += chunk.valid().len();
        if let Some(byte) = chunk.invalid().first() {
            replaced.push((at, *byte));
            at += char::REPLACEMENT_CHARACTER.len_utf8();
        }
    }
    let mut lexer = Lexer::new(&text);
    let mut replaced = replaced.into_iter().peekable();
    loop {
        let token = lexer.next();
        while replaced.next_if(|(at, _)| *at < token.start).is_some() {}
        match replaced.peek() {
            Some((at, byte)) if *at < token.end => {
                let place = Place::new(&text, *at, *at + char::REPLACEMENT_CHARACTER.len_utf8());
                return Err(NotText::NotUtf8 { place, byte: *byte });
            }
            _ if token.kind == TokenKind::End => return Ok(Cow::Owned(text)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_may_hold_any_bytes() {
        let text = source(b"# gr\xf6\xdfer\nduration_ms: 5 // \xff\xfe").unwrap();
        assert_eq!(text, "# gr\u{fffd}\u{fffd}er\nduration_ms: 5 // \u{fffd}\u{fffd}");
        assert!(matches!(source("# größer".as_bytes()).unwrap(), Cow::Borrowed(_)));
    }

    #[test]
    fn elsewhere_the_first_byte_that_is_no_text_is_pointed_at() {
        // A replacement character that the file has itself is text.
        let error = source(b"# \xff\nname: '\xef\xbf\xbd caf\xe9'").unwrap_err();
        let NotText::NotUtf8 { place, byte } = &error else {
            panic!("{error}")
        };
        assert_eq!((place.line, place.column, *byte), (2, 13, 0xe9));
        assert!(matches!(
            source(b"duration_ms\xa0: 5"),
            Err(NotText::NotUtf8 { byte: 0xa0, .. })
        ));
        assert_eq!(source(b"\xff\xfed\0u\0"), Err(NotText::Utf16));
    }
}
