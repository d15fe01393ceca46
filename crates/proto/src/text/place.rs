//! A stretch of a text, as people see it: line, column, and the line itself with a caret below.
//!
//! Mistakes ([`TextError`](super::TextError)) have a place, and so do fields ([`Positions`](super::Positions)).

use std::fmt;

/// A place in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line of the source, without its end. If the line is very long, this has only the surroundings of the place. Characters that
    /// a terminal would not show, or would obey, are replaced by `·`.
    pub excerpt: String,
    /// The start of the place in `excerpt`, in characters from 0.
    pub excerpt_column: usize,
    /// The length of the place in `excerpt`, in characters. It is at least 1, even at the end of a line.
    pub width: usize,
}

/// The most characters of a line that are shown.
const EXCERPT: usize = 120;

impl Place {
    /// The place of the bytes `start..end` of `source`. It ends with its first line.
    pub(super) fn new(source: &str, start: usize, end: usize) -> Self {
        let line_start = source[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = source[start..]
            .find('\n')
            .map_or(source.len(), |newline| start + newline);
        let text = source[line_start..line_end].trim_end_matches('\r');
        let before = source[line_start..start].chars().count();
        let wide = source[start..end.clamp(start, line_end)].chars().count();
        // The excerpt of a long line starts some characters before the place.
        let skipped = if text.chars().count() > EXCERPT {
            before.saturating_sub(EXCERPT / 3)
        } else {
            0
        };
        let excerpt: String = text.chars().skip(skipped).take(EXCERPT).map(shown).collect();
        let excerpt_column = before - skipped;
        Self {
            line: line_number(source, start),
            column: before + 1,
            width: wide.min(EXCERPT.saturating_sub(excerpt_column)).max(1),
            excerpt,
            excerpt_column,
        }
    }

    /// Returns the line and, below it, the caret, both indented.
    #[must_use]
    pub fn caret(&self) -> impl fmt::Display + '_ {
        Caret(self)
    }
}

struct Caret<'a>(&'a Place);

impl fmt::Display for Caret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.0;
        write!(f, "  {}\n  ", place.excerpt)?;
        let mut letters = place.excerpt.chars();
        for letter in letters.by_ref().take(place.excerpt_column) {
            // Tabs before the caret stay tabs, so that the caret stands below its place, however wide tabs are.
            match letter {
                '\t' => f.write_str("\t")?,
                letter => write!(f, "{:1$}", "", columns(letter))?,
            }
        }
        let below: usize = letters.take(place.width).map(columns).sum();
        f.write_str(&"^".repeat(below.max(1)))
    }
}

/// Replaces a character that a terminal would not show, such as a byte order mark, or would obey.
fn shown(letter: char) -> char {
    match letter {
        '\t' => '\t',
        letter if letter.is_control() || is_invisible(letter) => '·',
        letter => letter,
    }
}

/// Whether a character has no width and does not combine with the previous letter, or changes the direction of writing.
pub(super) fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns the number of columns that a terminal uses for a character. The wide ranges are those of Unicode's `EastAsianWidth.txt`;
/// marks that combine with the previous letter have no columns.
fn columns(letter: char) -> usize {
    match letter as u32 {
        0x0300..=0x036f
        | 0x1ab0..=0x1aff
        | 0x1dc0..=0x1dff
        | 0x20d0..=0x20ff
        | 0xfe00..=0xfe0f
        | 0xfe20..=0xfe2f => 0,
        0x1100..=0x115f
        | 0x2e80..=0x303e
        | 0x3041..=0x33ff
        | 0x3400..=0x4dbf
        | 0x4e00..=0x9fff
        | 0xa000..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1f64f
        | 0x1f680..=0x1f6ff
        | 0x1f900..=0x1f9ff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Returns the line, from 1, with the byte at `offset`.
pub(super) fn line_number(source: &str, offset: usize) -> usize {
    1 + source[..offset].bytes().filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders the place of the first occurrence of `part`.
    fn caret(source: &str, part: &str) -> String {
        let start = source.find(part).unwrap();
        Place::new(source, start, start + part.len()).caret().to_string()
    }

    #[test]
    fn the_caret_stands_below_its_place_after_tabs_and_wide_characters() {
        assert_eq!(caret("\ta bad", "bad"), "  \ta bad\n  \t  ^^^");
        assert_eq!(caret("é: bad\r\n", "bad"), "  é: bad\n     ^^^");
        assert_eq!(caret("表: bad", "bad"), "  表: bad\n      ^^^");
        assert_eq!(caret("x 表😀 y", "表😀"), "  x 表😀 y\n    ^^^^");
        // A letter and its accent use one column.
        assert_eq!(caret("e\u{301} bad", "bad"), "  e\u{301} bad\n    ^^^");
        assert_eq!(caret("a\n bad\nc", "bad"), "   bad\n   ^^^");
    }

    #[test]
    fn nothing_is_shown_that_a_terminal_would_obey() {
        assert_eq!(
            caret("\u{feff}a \u{1b}[31m bad\u{202e}", "bad"),
            "  ·a ·[31m bad·\n           ^^^"
        );
    }

    #[test]
    fn a_place_of_several_lines_or_at_the_end_of_one_has_its_caret() {
        assert_eq!(caret("'a\nb'", "'a\nb'"), "  'a\n  ^^");
        let end = Place::new("abc", 3, 3);
        assert_eq!((end.line, end.column), (1, 4));
        assert_eq!(end.caret().to_string(), "  abc\n     ^");
    }
}
