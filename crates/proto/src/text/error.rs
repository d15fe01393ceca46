//! What is wrong with a text, where, and how that is shown.

use std::fmt;

use super::place::Place;

/// One mistake in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// Where it is.
    pub place: Place,
    /// What is wrong.
    pub problem: Problem,
    /// What was probably meant, as a whole sentence or question.
    pub hint: Option<String>,
}

/// The kinds of mistakes. Names of messages are full (`perfetto.protos.TraceConfig`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Something else should stand here.
    Unexpected {
        /// What should.
        expected: String,
        /// What does.
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
    /// Escapes give a text field bytes that are no text. Receivers would refuse the whole config.
    NotUtf8 {
        /// The field.
        field: String,
    },
    /// A field that is not repeated is given again.
    Duplicate {
        /// The field.
        field: String,
        /// Line of the first time.
        line: usize,
    },
    /// Only one of some fields may be given.
    Exclusive {
        /// The later field.
        field: String,
        /// The earlier field.
        other: String,
        /// Line of the earlier field.
        line: usize,
        /// What the schema calls the choice.
        oneof: String,
    },
    /// A list of values for a field that takes one.
    NotRepeated {
        /// The field.
        field: String,
    },
    /// What is opened here is never closed.
    NeverClosed {
        /// The opening character.
        opener: char,
        /// What would close it.
        closer: char,
    },
    /// What follows a string of several lines cannot follow it: it may have been meant to end in its first line.
    LongString {
        /// The line where it begins.
        from: usize,
        /// The line where it ends.
        to: usize,
        /// What follows.
        found: String,
    },
    /// The text is JSON.
    Json,
    /// An extension or an expanded `Any`, which configs do not have.
    Extension {
        /// The message.
        message: String,
        /// What stands between the brackets.
        name: String,
    },
    /// Messages are nested deeper than any schema needs.
    TooDeep {
        /// The greatest depth.
        limit: usize,
    },
    /// The mistakes from here on are not listed.
    TooMany {
        /// How many are listed.
        limit: usize,
    },
    /// The type asked for is not in the schema; not a mistake in the text.
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

/// The name of a message without its package, which all of them share.
pub(super) fn short_name(message: &str) -> &str {
    message.strip_prefix("perfetto.protos.").unwrap_or(message)
}

fn article(type_name: &str) -> &'static str {
    if type_name.starts_with('i') { "an" } else { "a" }
}

/// Everything that is wrong with a text, in its order. `Display` renders each mistake with its line and a caret;
/// [`TextErrors::render`] names the file too.
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

    /// As `Display`, with the name of the file before each place, as compilers do and editors understand.
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
