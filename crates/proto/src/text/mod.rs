//! Protobuf's text format. It checks configs that people write against the schema and turns them into binary, and prints traces
//! for people ([`Printer`]).
//!
//! The command line reads every text config with it. It accepts the whole [text format][spec], and two things that Perfetto's own
//! parser accepts besides: scalars without a colon, and strings that run over several lines. It also accepts `//` comments:
//! Perfetto's documentation writes them, although Perfetto's parser refuses them. It refuses mistakes that Perfetto's parser
//! overlooks: integers that overflow, `1.5` for an integer, negative numbers for unsigned fields, `=` for a colon. A text that both
//! parsers accept gives the same bytes with both: an integer with leading zeros is decimal, although the specification makes it
//! octal. Fields that the schema no longer has, but keeps as reserved names, are skipped, as the specification asks.
//!
//! An error message names the place, the text that is there and the text that was expected. One run reports several errors.
//!
//! ```
//! use ferretto_proto::text;
//!
//! let config = text::encode("duration_ms: 10000  // ten seconds", text::TRACE_CONFIG)?;
//! assert_eq!(config, [0x18, 0x90, 0x4e]);
//!
//! let refused = text::encode("duration_ms: 10s\nbufers { size_kb: 4096 }", text::TRACE_CONFIG).unwrap_err();
//! assert_eq!(
//!     refused.render("demo.cfg"),
//!     "demo.cfg:1:14: error: expected an integer (uint32) for `duration_ms`, found `10s`; write it in milliseconds: `10000`
//!   duration_ms: 10s
//!                ^^^
//! demo.cfg:2:1: error: TraceConfig has no field `bufers`; did you mean `buffers`?
//!   bufers { size_kb: 4096 }
//!   ^^^^^^"
//! );
//! # Ok::<(), text::TextErrors>(())
//! ```
//!
//! [spec]: https://protobuf.dev/reference/protobuf/textformat-spec/

mod error;
mod fields;
mod hints;
mod lexer;
mod literal;
mod parser;
mod place;
mod positions;
mod print;
mod scalar;
mod schema;
mod source;
mod suggest;

pub use error::{Problem, TextError, TextErrors};
pub use fields::{Fields, NamedField, Values};
pub use place::Place;
pub use positions::Positions;
pub use print::Printer;
pub use source::{NotText, source};
pub use suggest::{nearest, nearest_within};

/// The message type of configs.
pub const TRACE_CONFIG: &str = "perfetto.protos.TraceConfig";

/// The units that people write after the number of a size, with their values in bytes.
pub const SIZE_UNITS: &[(&str, u64)] = &[
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1 << 30),
    ("gib", 1 << 30),
];

/// The message type of traces.
pub const TRACE_PACKET: &str = "perfetto.protos.TracePacket";

/// How to treat names that the schema does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UnknownNames {
    /// They are mistakes.
    #[default]
    Refuse,
    /// Fields with an unknown name, and values with an unknown enum name, are left out silently, so that a
    /// config for a newer version can be used. Everything else is still checked.
    Drop,
}

/// Returns the binary form of `source`, a `message` (full name, such as [`TRACE_CONFIG`]) in the text format. Fields keep
/// the order of the text.
///
/// # Errors
/// Every mistake in the text, in its order.
pub fn encode(source: &str, message: &str) -> Result<Vec<u8>, TextErrors> {
    encode_with(source, message, UnknownNames::Refuse)
}

/// As [`encode`], with a choice for names that the schema does not have.
///
/// # Errors
/// Every mistake in the text, in its order.
pub fn encode_with(source: &str, message: &str, unknown_names: UnknownNames) -> Result<Vec<u8>, TextErrors> {
    let (parser, id) = parser(source, message, unknown_names)?;
    parser.run(id).map(|(bytes, _)| bytes)
}

/// As [`encode_with`]. Also returns the place of each field in the text.
///
/// # Errors
/// Every mistake in the text, in its order.
pub fn encode_with_positions(
    source: &str,
    message: &str,
    unknown_names: UnknownNames,
) -> Result<(Vec<u8>, Positions), TextErrors> {
    let (parser, id) = parser(source, message, unknown_names)?;
    parser.with_positions().run(id)
}

fn parser<'a>(
    source: &'a str,
    message: &str,
    unknown_names: UnknownNames,
) -> Result<(parser::Parser<'a>, schema::MessageId), TextErrors> {
    let schema = &*schema::TRACE;
    match schema.find_message(message) {
        Some(id) => Ok((parser::Parser::new(schema, source, unknown_names), id)),
        None => {
            let problem = Problem::NoSuchMessage(message.to_owned());
            Err(TextErrors(vec![TextError::new("", 0, 0, problem, None)]))
        }
    }
}
