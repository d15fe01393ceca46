//! Reading a trace config, encoded or as text.
//!
//! Called by [`plan`](super::plan). What a config holds beyond our schema survives: the messages keep unknown fields, so
//! a producer gets its part byte for byte as the user wrote it.

use std::ffi::OsStr;
use std::io::Read;

use ferretto_proto::messages::{Message, TraceConfig};
use ferretto_proto::text::{self, UnknownNames};

/// How a config is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfigSyntax {
    /// An encoded `TraceConfig`.
    Encoded,
    /// Its text form.
    Text,
    /// Its text form, of which unknown fields and enum values are skipped.
    LossyText,
}

/// A config that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the trace config {name}: {source}")]
    Read { name: String, source: std::io::Error },
    #[error(
        "the trace config {name} is not UTF-8 text (byte {position}); an encoded config goes without --txt"
    )]
    NotText { name: String, position: usize },
    #[error("the trace config is not valid\n{0}")]
    Text(String),
    #[error("the trace config {name} is text, but an encoded one is expected; add --txt")]
    TextWithoutFlag { name: String },
    #[error("the trace config {name} is not an encoded TraceConfig: {source}")]
    Encoded {
        name: String,
        source: ferretto_proto::messages::DecodeError,
    },
}

/// Reads a file, or stdin for `-`.
pub(crate) fn read_config(name: &OsStr) -> Result<Vec<u8>, ConfigError> {
    let read = if name == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(name)
    };
    read.map_err(|source| ConfigError::Read {
        name: name.to_string_lossy().into_owned(),
        source,
    })
}

/// Parses what was read; `name` is for messages.
pub(crate) fn parse_config(
    name: &str,
    bytes: &[u8],
    syntax: ConfigSyntax,
) -> Result<TraceConfig, ConfigError> {
    let encoded = match syntax {
        ConfigSyntax::Encoded => None,
        ConfigSyntax::Text => Some(encode_text(name, bytes, UnknownNames::Refuse)?),
        ConfigSyntax::LossyText => Some(encode_text(name, bytes, UnknownNames::Drop)?),
    };
    TraceConfig::decode_from_slice(encoded.as_deref().unwrap_or(bytes)).map_err(|source| {
        if syntax == ConfigSyntax::Encoded && bytes.iter().all(|byte| is_text(*byte)) {
            ConfigError::TextWithoutFlag {
                name: name.to_owned(),
            }
        } else {
            ConfigError::Encoded {
                name: name.to_owned(),
                source,
            }
        }
    })
}

/// Checks text against the schema. A refusal shows each mistake at its line and column.
fn encode_text(name: &str, bytes: &[u8], unknown_names: UnknownNames) -> Result<Vec<u8>, ConfigError> {
    let source = std::str::from_utf8(bytes).map_err(|error| ConfigError::NotText {
        name: name.to_owned(),
        position: error.valid_up_to(),
    })?;
    text::encode_with(source, text::TRACE_CONFIG, unknown_names)
        .map_err(|errors| ConfigError::Text(errors.render(name)))
}

fn is_text(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, syntax: ConfigSyntax) -> Result<TraceConfig, String> {
        parse_config("demo.cfg", text.as_bytes(), syntax).map_err(|error| error.to_string())
    }

    #[test]
    fn encoded_and_text_configs_give_the_same() {
        let config = TraceConfig {
            duration_ms: Some(10_000),
            ..Default::default()
        };
        let encoded = parse_config("x", &config.encode_to_vec(), ConfigSyntax::Encoded).unwrap();
        assert_eq!(encoded, config);
        assert_eq!(
            parse("duration_ms: 10000 # ten seconds", ConfigSyntax::Text).unwrap(),
            config
        );
    }

    #[test]
    fn a_mistake_in_a_text_config_is_shown_where_it_is() {
        let error = parse("buffers { size_kb: 4 }\nbufers {}", ConfigSyntax::Text).unwrap_err();
        assert!(
            error.contains("demo.cfg:2:1: error:") && error.contains("did you mean `buffers`"),
            "{error}"
        );
        let lossy = parse("duration_ms: 7\nfrom_the_future: 1", ConfigSyntax::LossyText).unwrap();
        assert_eq!(lossy.duration_ms, Some(7));
    }

    #[test]
    fn a_text_config_without_its_flag_is_recognised() {
        let error = parse("duration_ms: 10000", ConfigSyntax::Encoded).unwrap_err();
        assert!(error.contains("add --txt"), "{error}");
        let error = parse_config("x", &[0x0a, 0xff], ConfigSyntax::Encoded)
            .unwrap_err()
            .to_string();
        assert!(error.contains("is not an encoded TraceConfig"), "{error}");
        let error = parse_config("x", &[b'a', 0xff], ConfigSyntax::Text)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not UTF-8 text (byte 1)"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let error = read_config("/nonexistent.cfg".as_ref()).unwrap_err().to_string();
        assert!(
            error.contains("/nonexistent.cfg") && error.contains("No such file"),
            "{error}"
        );
    }
}
