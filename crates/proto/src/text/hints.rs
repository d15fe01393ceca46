//! Guesses at the intention behind a mistake, in words.
//!
//! [`parser`](super::parser) and [`scalar`](super::scalar) call these functions of the parser's state after they have found a mistake.

use super::SIZE_UNITS;
use super::error::short_name;
use super::lexer::{Token, TokenKind};
use super::literal::{float, integer};
use super::parser::Parser;
use super::place::is_invisible;
use super::scalar::{Literal, Scalar};
use super::schema::{Field, Kind, Message};
use super::suggest::{nearest, nearest_within};

/// The names of units, and the value of each in the smallest one.
type Units = &'static [(&'static str, u64)];

/// Units of time that people write after a number, with their values in nanoseconds.
const TIMES: Units = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("sec", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
/// The units of fields, by the ends of their names.
const FIELD_UNITS: &[(&str, &str, Units, u64)] = &[
    ("_ns", "nanoseconds", TIMES, 1),
    ("_us", "microseconds", TIMES, 1_000),
    ("_ms", "milliseconds", TIMES, 1_000_000),
    ("_s", "seconds", TIMES, 1_000_000_000),
    ("_kb", "KB", SIZE_UNITS, 1 << 10),
    ("_mb", "MB", SIZE_UNITS, 1 << 20),
    ("_bytes", "bytes", SIZE_UNITS, 1),
    ("_pages", "pages", SIZE_UNITS, 4 << 10),
];

impl Parser<'_> {
    /// Describes a piece of the text, in words.
    pub(super) fn describe(&self, start: usize, end: usize) -> String {
        const LONGEST: usize = 40;
        let text = &self.source[start..end];
        let mut letters = text.chars();
        match (letters.next(), letters.next()) {
            (None, _) => "the end of the text".to_owned(),
            (Some(letter), None) if letter.is_control() || is_invisible(letter) || letter == '\u{a0}' => {
                format!("the character U+{:04X}", letter as u32)
            }
            _ if text.contains('\n') => "a string of several lines".to_owned(),
            _ => {
                let mut shown: String = text
                    .chars()
                    .take(LONGEST)
                    .map(|letter| {
                        if letter.is_control() || is_invisible(letter) {
                            '·'
                        } else {
                            letter
                        }
                    })
                    .collect();
                if text.chars().count() > LONGEST {
                    shown.push('…');
                }
                format!("`{shown}`")
            }
        }
    }

    /// The hint about a character that looks like another one.
    pub(super) fn strange_character_hint(&self, token: Token) -> Option<String> {
        let TokenKind::Symbol(letter) = token.kind else {
            return None;
        };
        let hint = match letter {
            '“' | '”' | '„' | '«' | '»' => "strings are in straight quotes: \"",
            '‘' | '’' | '‚' | '`' | '´' => "strings are in straight quotes: \" or '",
            '\u{a0}'
            | '\u{2000}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}'
            | '\u{2060}'
            | '\u{3000}'
            | '\u{feff}' => {
                "it looks like a blank and is none, as text from web pages and documents has them: write an ordinary blank"
            }
            '\0' => "the text has binary zeros in it: is it UTF-16, or encoded?",
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// The hint about a value that has no name before it, if no other hint applies.
    pub(super) fn stray_value_hint(&self) -> Option<String> {
        let after_comma = self.source[..self.end].ends_with(',');
        match self.next.kind {
            TokenKind::Number if after_comma => Some("numbers have no separators in them".to_owned()),
            TokenKind::String if after_comma => Some(
                "a field of several values is written once for each of them, or with all of them between [ and ]".to_owned(),
            ),
            _ => None,
        }
    }

    /// Turns a name in the style of JSON or of other languages (`durationMs`, `DURATION_MS`) into the schema's style.
    pub(super) fn snake_case(&self, name: &str) -> Option<String> {
        if name.is_empty() || !name.is_ascii() {
            return None;
        }
        if name.bytes().all(|byte| !byte.is_ascii_lowercase()) {
            return Some(name.to_ascii_lowercase());
        }
        let mut snake = String::new();
        for letter in name.chars() {
            if letter.is_ascii_uppercase() && !snake.is_empty() && !snake.ends_with('_') {
                snake.push('_');
            }
            snake.push(letter.to_ascii_lowercase());
        }
        Some(snake)
    }

    /// The hint about a field that the innermost message does not have: the field that was probably meant, or the message that has it.
    pub(super) fn where_field_belongs(&self, message: &Message, name: &str) -> Option<String> {
        let names = || message.fields.iter().map(|field| field.name);
        let snake = self
            .snake_case(name)
            .filter(|snake| message.field(snake).is_some());
        if let Some(similar) = snake.as_deref().or_else(|| nearest_within(name, 1, names())) {
            return Some(format!("did you mean `{similar}`?"));
        }
        if let Some(hint) = self.inside(name) {
            return Some(hint);
        }
        // The name may be one part of a field's name.
        let parts = |field: &&str| field.split('_').any(|part| part == name) && name.len() > 2;
        if let Some(longer) = names().find(parts) {
            return Some(format!("did you mean `{longer}`?"));
        }
        if let Some(hint) = self.elsewhere(name) {
            return Some(hint);
        }
        if let Some(similar) = nearest(name, names()) {
            return Some(format!("did you mean `{similar}`?"));
        }
        let simple: String = name.chars().filter(|letter| *letter != '_').collect();
        if self.frames.len() == 1 && simple.eq_ignore_ascii_case(short_name(&message.name)) {
            return Some("the text is what would be inside its braces".to_owned());
        }
        const MOST: usize = 8;
        let mut known: Vec<&str> = names().take(MOST).collect();
        if message.fields.len() > MOST {
            known.push("…");
        }
        (!known.is_empty()).then(|| format!("its fields are {}", known.join(", ")))
    }

    /// A field of exactly this name in a message that is not inside the innermost.
    fn elsewhere(&self, name: &str) -> Option<String> {
        if let Some((_, frame)) = self.enclosing_with(name) {
            let outer = self.frames[frame].message?;
            let inner = self.frames.get(frame + 1)?.name;
            return Some(format!(
                "it is a field of {}: write it outside of `{inner} {{ … }}`",
                short_name(&self.schema.message(outer).name)
            ));
        }
        self.frames
            .iter()
            .enumerate()
            .rev()
            .skip(1)
            .find_map(|(at, frame)| {
                let (way, owner) = self.schema.way_to(frame.message?, name)?;
                let (way, owner) = (braces(&way), short_name(&owner.name));
                Some(match at {
                    0 => format!("it is a field of {owner}: `{way}`"),
                    at => format!("it is a field of {owner}: `{way}` in `{}`", self.frames[at].name),
                })
            })
    }

    /// A field of exactly this name in a message inside the innermost.
    fn inside(&self, name: &str) -> Option<String> {
        let (way, _) = self.schema.way_to(self.frames.last()?.message?, name)?;
        Some(format!("it belongs into `{}`", braces(&way)))
    }

    /// The hint about a field of a message around the innermost one, when a brace is missing.
    pub(super) fn missing_brace_hint(&self, frame: usize) -> String {
        if let Some(hint) = self.crooked_hint() {
            return hint;
        }
        let open = frame + 1;
        format!(
            "is a `}}` missing before it, for the `{} {{` of line {}?",
            self.frames[open].name,
            self.opening_line(open)
        )
    }

    /// The hint about the place of a missing brace, judged by the indentation.
    pub(super) fn crooked_hint(&self) -> Option<String> {
        self.crooked.as_ref().map(|crooked| {
            format!(
                "is a `}}` missing for the `{} {{` of line {}? What closes it now, in line {}, is indented as if for another",
                crooked.name, crooked.from, crooked.to
            )
        })
    }

    /// The hint about a field that occurs twice.
    pub(super) fn twice_hint(&self, frame: usize, field: Field) -> String {
        let Kind::Message(_) = field.kind else {
            return "leave one of them out".to_owned();
        };
        let frame = &self.frames[frame];
        if frame.repeated {
            format!(
                "begin another `{} {{ … }}`, or put both into one `{} {{ … }}`",
                frame.name, field.name
            )
        } else {
            format!("put both into one `{} {{ … }}`", field.name)
        }
    }

    /// The hint about a value that its field does not accept: the value that was probably meant.
    pub(super) fn value_hint(&self, field: Field, scalar: &Scalar<'_>) -> Option<String> {
        let quoted = match &scalar.literal {
            Literal::Bytes(bytes) => Some(std::str::from_utf8(bytes).ok()?.trim()),
            _ => None,
        };
        let text = quoted.unwrap_or(scalar.text);
        let without_quotes = |value: &str| match quoted {
            Some(_) => format!("write it without quotes: `{value}`"),
            None => format!("did you mean `{value}`?"),
        };
        match field.kind {
            Kind::Integer(_) => integer_hint(field.name, text, quoted.is_some()),
            Kind::Double | Kind::Float => quoted.and_then(float).map(|_| without_quotes(text)),
            Kind::Bool => {
                let value = match text.to_ascii_lowercase().as_str() {
                    "true" | "yes" | "on" | "enabled" | "enable" => "true",
                    "false" | "no" | "off" | "disabled" | "disable" => "false",
                    _ => return None,
                };
                Some(without_quotes(value))
            }
            Kind::Text | Kind::Bytes => match scalar.literal {
                Literal::Bytes(_) => None,
                _ => Some(format!("write `\"{}\"`", &self.source[scalar.start..scalar.end])),
            },
            Kind::Enum(id) => {
                let names = || self.schema.enumeration(id).values.iter().map(|(name, _)| *name);
                // Other languages write the type's name before the value's.
                let name = text.rsplit(['.', ':']).next().unwrap_or(text);
                let end = format!("_{}", name.to_ascii_uppercase());
                let meant = names()
                    .find(|known| known.eq_ignore_ascii_case(name))
                    .or_else(|| nearest_within(name, 1, names()))
                    .or_else(|| names().find(|known| known.ends_with(&end)))
                    .or_else(|| {
                        names().find(|known| known.split('_').any(|part| part.eq_ignore_ascii_case(name)))
                    })
                    .or_else(|| nearest(name, names()));
                meant.map(without_quotes)
            }
            Kind::Message(_) => None,
        }
    }
}

/// The names of nested messages, as they are written in the text.
fn braces(way: &[&str]) -> String {
    format!("{} {{ … {}}}", way.join(" { "), "} ".repeat(way.len() - 1))
}

/// The hint about a value that should be an integer: the integer that was probably meant, for a field of this name.
fn integer_hint(field: &str, text: &str, in_quotes: bool) -> Option<String> {
    let text = text.trim();
    if integer(text).is_ok() {
        // It is an integer. If it has no quotes, the mistake is another one.
        return in_quotes.then(|| format!("write it without quotes: `{text}`"));
    }
    let plain = text.strip_prefix('+').unwrap_or(text).replace(['_', '\''], "");
    if integer(&plain).is_ok() {
        return Some(format!("write digits alone: `{plain}`"));
    }
    let digits = plain
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(plain.len());
    let (number, unit) = plain.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    if let Some((_, in_words, units, worth)) = FIELD_UNITS.iter().find(|(end, ..)| field.ends_with(end))
        && let Some((_, of_unit)) = units.iter().find(|(name, _)| *name == unit)
        && let Some(number) = float(number)
    {
        // `f64` is exact below 2^53, and nobody writes larger numbers with a unit.
        let value = number * *of_unit as f64 / *worth as f64;
        if value >= 1.0 && value < 2f64.powi(53) {
            return Some(format!("write it in {in_words}: `{}`", value.round() as u64));
        }
    }
    let value = float(&plain)?;
    let whole = value.fract() == 0.0 && value.is_finite() && value < 2f64.powi(53);
    Some(if whole {
        format!("write digits alone: `{}`", value as u64)
    } else {
        "it has to be a whole number".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_converted_to_that_of_the_field() {
        for (field, text, hint) in [
            ("duration_ms", "10s", "write it in milliseconds: `10000`"),
            ("duration_ms", "1.5s", "write it in milliseconds: `1500`"),
            ("duration_ms", "2min", "write it in milliseconds: `120000`"),
            ("duration_ms", "500ms", "write it in milliseconds: `500`"),
            ("size_kb", "64mb", "write it in KB: `65536`"),
            ("size_kb", "64MiB", "write it in KB: `65536`"),
            ("max_file_size_bytes", "1g", "write it in bytes: `1073741824`"),
            ("duration_ms", "1e3", "write digits alone: `1000`"),
            ("duration_ms", "1_000", "write digits alone: `1000`"),
            ("duration_ms", "+5", "write digits alone: `5`"),
            ("duration_ms", "5.0", "write digits alone: `5`"),
            ("duration_ms", "1.5", "it has to be a whole number"),
        ] {
            assert_eq!(
                integer_hint(field, text, false).as_deref(),
                Some(hint),
                "{field}: {text}"
            );
        }
        for (field, text) in [
            ("size_kb", "10s"),
            ("target_buffer", "5mb"),
            ("duration_ms", "soon"),
            ("duration_ms", ""),
        ] {
            assert_eq!(integer_hint(field, text, false), None, "{field}: {text}");
        }
        assert_eq!(
            integer_hint("duration_ms", "5", true).as_deref(),
            Some("write it without quotes: `5`")
        );
        assert_eq!(integer_hint("duration_ms", "5", false), None);
    }
}
