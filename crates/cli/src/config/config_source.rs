//! Reads a trace config, encoded or as text.
//!
//! The plan of a recording and `ferretto config` call it. Fields that our schema lacks survive, because the messages keep unknown fields. So a
//! producer gets its part byte for byte as the user wrote it.

use std::ffi::OsStr;
use std::io::Read;

use ferretto_proto::messages::{Message, TraceConfig};
use ferretto_proto::text::{self, NotText, UnknownNames};

use super::advice::ConfigOrigin;

/// How a config is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfigSyntax {
    /// An encoded `TraceConfig`.
    Encoded,
    /// Its text form.
    Text,
    /// Its text form; unknown fields and enum values are skipped.
    LossyText,
}

/// A config as the user wrote it, before anything is added.
#[derive(Debug)]
pub(crate) struct WrittenConfig {
    pub(crate) config: TraceConfig,
    pub(crate) origin: ConfigOrigin,
}

/// A config that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the trace config {name}: {source}")]
    Read { name: String, source: std::io::Error },
    #[error("the trace config is not valid\n{name}:{source}")]
    NotUtf8 { name: String, source: NotText },
    #[error("the trace config {name} is UTF-16: save it as UTF-8")]
    Utf16 { name: String },
    #[error("the trace config {name} is encoded, but a text is expected; leave out --txt")]
    EncodedWithFlag { name: String },
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

/// Guesses from its bytes whether a config is text. An encoded config has tags and lengths that are control characters, which nobody types. UTF-16
/// counts as text, because its author meant text.
pub(crate) fn detect(bytes: &[u8]) -> ConfigSyntax {
    let utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    let is_text = |byte: &u8| matches!(byte, b'\t'..=b'\r' | b' '..=b'~' | 0x80..);
    if utf16 || bytes.iter().all(is_text) {
        ConfigSyntax::Text
    } else {
        ConfigSyntax::Encoded
    }
}

/// Parses a config; `name` is for messages.
pub(crate) fn parse_config(
    name: &str,
    bytes: &[u8],
    syntax: ConfigSyntax,
) -> Result<WrittenConfig, ConfigError> {
    let unknown_names = match syntax {
        ConfigSyntax::Encoded => return parse_encoded(name, bytes),
        ConfigSyntax::Text => UnknownNames::Refuse,
        ConfigSyntax::LossyText => UnknownNames::Drop,
    };
    parse_text(name, bytes, unknown_names).map_err(|error| {
        // An encoded config is rarely valid text, so the user probably gave the wrong flag.
        let is_encoded =
            detect(bytes) == ConfigSyntax::Encoded && TraceConfig::decode_from_slice(bytes).is_ok();
        match is_encoded {
            true => ConfigError::EncodedWithFlag {
                name: name.to_owned(),
            },
            false => error,
        }
    })
}

fn parse_encoded(name: &str, bytes: &[u8]) -> Result<WrittenConfig, ConfigError> {
    let name = name.to_owned();
    match TraceConfig::decode_from_slice(bytes) {
        Ok(config) => Ok(WrittenConfig {
            config,
            origin: ConfigOrigin::Encoded { name },
        }),
        Err(_) if detect(bytes) == ConfigSyntax::Text && std::str::from_utf8(bytes).is_ok() => {
            Err(ConfigError::TextWithoutFlag { name })
        }
        Err(source) => Err(ConfigError::Encoded { name, source }),
    }
}

/// Checks text against the schema. An error shows each mistake with its line and column.
fn parse_text(name: &str, bytes: &[u8], unknown_names: UnknownNames) -> Result<WrittenConfig, ConfigError> {
    let name = name.to_owned();
    let source = match text::source(bytes) {
        Ok(source) => source,
        Err(NotText::Utf16) => return Err(ConfigError::Utf16 { name }),
        Err(source) => return Err(ConfigError::NotUtf8 { name, source }),
    };
    let (encoded, positions) = text::encode_with_positions(&source, text::TRACE_CONFIG, unknown_names)
        .map_err(|errors| ConfigError::Text(errors.render(&name)))?;
    match TraceConfig::decode_from_slice(&encoded) {
        Ok(config) => Ok(WrittenConfig {
            config,
            origin: ConfigOrigin::Text { name, positions },
        }),
        Err(source) => Err(ConfigError::Encoded { name, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, syntax: ConfigSyntax) -> Result<TraceConfig, String> {
        match parse_config("demo.cfg", text.as_bytes(), syntax) {
            Ok(written) => Ok(written.config),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn encoded_and_text_configs_give_the_same() {
        let config = TraceConfig {
            duration_ms: Some(10_000),
            ..Default::default()
        };
        let encoded = parse_config("x", &config.encode_to_vec(), ConfigSyntax::Encoded).unwrap();
        assert_eq!(encoded.config, config);
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
    }

    #[test]
    fn a_config_that_is_no_text_is_refused_with_its_format() {
        let refused = |bytes: &[u8]| {
            parse_config("x", bytes, ConfigSyntax::Text)
                .unwrap_err()
                .to_string()
        };
        let encoded = TraceConfig {
            duration_ms: Some(10_000),
            unique_session_name: Some("x".to_owned()),
            ..Default::default()
        };
        assert!(refused(&encoded.encode_to_vec()).contains("is encoded"));
        let error = refused(b"a: 'caf\xe9'");
        assert!(
            error.contains("x:1:8: error: the byte 0xe9 is not UTF-8"),
            "{error}"
        );
        let utf16: Vec<u8> = "\u{feff}duration_ms: 5"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        assert!(refused(&utf16).contains("is UTF-16"), "{}", refused(&utf16));
        assert_eq!(detect(&utf16), ConfigSyntax::Text);
        assert_eq!(detect(&encoded.encode_to_vec()), ConfigSyntax::Encoded);
        // Perfetto's own parser accepts any byte there.
        assert!(parse_config("x", b"duration_ms: 5 # gr\xf6\xdfer", ConfigSyntax::Text).is_ok());
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
