//! The mistakes in a text: their kinds, their places, and how they are shown.

use std::fmt;

use super::place::Place;

/// One mistake in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The place of the mistake.
    pub place: Place,
    /// The mistake.
    pub problem: Problem,
    /// The probable intention, as a whole sentence or question.
    pub hint: Option<String>,
}

/// The kinds of mistakes. Names of messages are full (`perfetto.protos.TraceConfig`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The text differs from the text that should stand here.
    Unexpected {
        /// The text that should stand here.
        expected: String,
        /// The text that stands here.
        found: String,
    },
    /// The message has no such field.
    UnknownField {
        /// The message.
        message: String,
        /// The name that is none of its fields.
        field: String,
    },
    /// The enum of a field has no such value.
    UnknownEnumValue {
        /// The field.
        field: String,
        /// The name or number.
        value: String,
    },
    /// A number does not fit the type of its field.
    OutOfRange {
        /// The field.
        field: String,
        /// The number as written.
        value: String,
        /// The type in the schema.
        type_name: &'static str,
        /// Its least value.
        min: i128,
        /// Its greatest value.
        max: i128,
    },
    /// Escapes give a text field bytes that are not UTF-8. Receivers would refuse the whole config.
    NotUtf8 {
        /// The field.
        field: String,
    },
    /// A field that is not repeated occurs twice.
    Duplicate {
        /// The field.
        field: String,
        /// The line in which the field occurs first.
        line: usize,
    },
    /// Two fields exclude each other.
    Exclusive {
        /// The later field.
        field: String,
        /// The earlier field.
        other: String,
        /// Line of the earlier field.
        line: usize,
        /// The schema's name for the choice between the fields.
        oneof: String,
    },
    /// A list of values for a field with one value.
    NotRepeated {
        /// The field.
        field: String,
    },
    /// A brace, bracket or quote that is never closed.
    NeverClosed {
        /// The opening character.
        opener: char,
        /// The character that would close it.
        closer: char,
    },
    /// The text after a string of several lines cannot follow a string: the string was probably meant to end in its first line.
    LongString {
        /// The line in which the string begins.
        from: usize,
        /// The line in which the string ends.
        to: usize,
        /// The text after the string.
        found: String,
    },
    /// The text is JSON.
    Json,
    /// An extension or an expanded `Any`, which configs do not have.
    Extension {
        /// The message.
        message: String,
        /// The text between the brackets.
        name: String,
    },
    /// Messages are nested deeper than any schema needs.
    TooDeep {
        /// The greatest depth.
        limit: usize,
    },
    /// The text has more mistakes, which are not listed.
    TooMany {
        /// The number of mistakes in the list.
        limit: usize,
    },
    /// The schema does not have the requested message type. This is not a mistake in the text.
    NoSuchMessage(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Unexpected { expected, found } => write!(f, "expected {expected}, found {found}"),
            Problem::UnknownField { message, field } => {
                write!(f, "{} has no field `{field}`", short_name(message))
            }
            Problem::UnknownEnumValue { field, value } => write!(f, "`{value}` is not a value of `{field}`"),
            Problem::OutOfRange {
                field,
                value,
                type_name,
                min,
                max,
            } => write!(
                f,
                "{value} is out of range for `{field}`, {article} {type_name} ({min} to {max})",
                article = article(type_name)
            ),
            Problem::NotUtf8 { field } => write!(f, "the value of `{field}` is not UTF-8, as text has to be"),
            Problem::Duplicate { field, line } => {
                write!(f, "`{field}` takes one value, and has it since line {line}")
            }
            Problem::Exclusive {
                field,
                other,
                line,
                oneof,
            } => write!(
                f,
                "`{field}` and `{other}` (line {line}) exclude each other: at most one field of `{oneof}` may be given"
            ),
            Problem::NotRepeated { field } => {
                write!(f, "`{field}` is not repeated: it takes one value, not a list")
            }
            Problem::NeverClosed { opener, closer } => write!(
                f,
                "this `{opener}` is never closed: expected `{closer}` before the end of the text"
            ),
            Problem::LongString { from, to, found } => write!(
                f,
                "{found} cannot follow a string that runs from line {from} to line {to}: is its closing quote missing in line \
                 {from}?"
            ),
            Problem::Json => write!(f, "this is JSON, but a text config is in protobuf's text format"),
            Problem::Extension { message, name } => write!(
                f,
                "{} has no extension `[{name}]`, and no message of a trace config has any",
                short_name(message)
            ),
            Problem::TooDeep { limit } => write!(f, "messages are nested more than {limit} deep"),
            Problem::TooMany { limit } => write!(f, "more than {limit} mistakes: correct those above first"),
            Problem::NoSuchMessage(value) => write!(f, "the embedded schema has no message {value}"),
        }
    }
}

impl std::error::Error for Problem {}

/// The name of a message without its package, which is the same for all messages.
pub(super) fn short_name(message: &str) -> &str {
    message.strip_prefix("perfetto.protos.").unwrap_or(message)
}

fn article(type_name: &str) -> &'static str {
    if type_name.starts_with('i') { "an" } else { "a" }
}

/// All mistakes in a text, in the order of the text. `Display` renders each mistake with its line and a caret;
/// [`TextErrors::render`] also names the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextErrors(pub(super) Vec<TextError>);

impl std::error::Error for TextErrors {}

impl fmt::Display for TextErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_all(f, &self.0, "")
    }
}

impl TextErrors {
    /// The mistakes, at least one.
    #[must_use]
    pub fn errors(&self) -> &[TextError] {
        &self.0
    }

    /// As `Display`, but with the name of the file before each place. Compilers write places like this, and editors understand them.
    #[must_use]
    pub fn render(&self, file: &str) -> String {
        struct InFile<'a>(&'a [TextError], &'a str);
        impl fmt::Display for InFile<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_all(f, self.0, self.1)
            }
        }
        InFile(&self.0, file).to_string()
    }
}

fn write_all(f: &mut fmt::Formatter<'_>, errors: &[TextError], file: &str) -> fmt::Result {
    for (at, error) in errors.iter().enumerate() {
        if at > 0 {
            f.write_str("\n")?;
        }
        if !file.is_empty() {
            write!(f, "{file}:")?;
        }
        write!(f, "{error}")?;
    }
    Ok(())
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column, .. } = self.place;
        write!(f, "{line}:{column}: error: {}", self.problem)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        write!(f, "\n{}", self.place.caret())
    }
}

impl TextError {
    /// The mistake at `start..end` (bytes) of `source`.
    pub(super) fn new(
        source: &str,
        start: usize,
        end: usize,
        problem: Problem,
        hint: Option<String>,
    ) -> Self {
        Self {
            place: Place::new(source, start, end),
            problem,
            hint,
        }
    }
}
