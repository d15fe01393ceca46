//! The outcome of a script: its output and its files.

use std::path::Path;
use std::process::ExitStatus;

use ferretto_proto::messages::{Message, TraceConfig};
use ferretto_wire::{Field, Reader, Value};

const TRACE_CONFIG: u32 = 33;

/// The outcome of a script.
pub(crate) struct Outcome {
    /// The lines of stdout, and a line for each new file.
    pub(crate) seen: String,
    /// The configs in the traces, by file name.
    pub(crate) configs: Vec<(String, String)>,
    /// The contents of files with names that end in `.same`.
    pub(crate) same: Vec<(String, String)>,
    /// The content of stderr.
    pub(crate) said: String,
}

impl Outcome {
    /// Returns the outcome of a script in this folder.
    pub(crate) fn of(printed: &str, status: ExitStatus, folder: &Path, said: String) -> Outcome {
        let here = folder.display().to_string();
        let mut lines: Vec<String> = printed
            .replace(&here, "HERE")
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect();
        if status.code() != Some(0) {
            lines.push(status.to_string());
        }
        let (mut configs, mut same) = (Vec::new(), Vec::new());
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "said" && !name.ends_with(".cfg"))
            .collect();
        names.sort();
        for name in names {
            let path = folder.join(&name);
            if !path.metadata().is_ok_and(|metadata| metadata.is_file()) {
                continue;
            }
            let content = std::fs::read(&path).unwrap();
            lines.push(format!("{name}: {}", kind(&content)));
            if name.ends_with(".same") {
                same.push((name, String::from_utf8_lossy(&content).into_owned()));
            } else if let Some(config) = packets(&content).and_then(|packets| config_in(&packets)) {
                configs.push((name, config.replace(&here, "HERE")));
            }
        }
        Outcome {
            seen: lines.join("\n"),
            configs,
            same,
            said,
        }
    }
}

fn kind(content: &[u8]) -> &'static str {
    match packets(content) {
        _ if content.is_empty() => "empty",
        Some(packets) if config_in(&packets).is_some() => "a trace",
        Some(_) => "packets",
        None => "something else",
    }
}

/// Returns the packets of a trace; `None` if the file is no trace or incomplete.
fn packets(content: &[u8]) -> Option<Vec<&[u8]>> {
    Reader::new(content)
        .map(|field| match field {
            Ok(Field {
                number: 1,
                value: Value::Bytes(packet),
                ..
            }) => Some(packet),
            _ => None,
        })
        .collect()
}

/// Returns the config in a trace, without the random name.
fn config_in(packets: &[&[u8]]) -> Option<String> {
    let config = packets.iter().find_map(|packet| {
        Reader::new(packet).find_map(|field| match field {
            Ok(Field {
                number: TRACE_CONFIG,
                value: Value::Bytes(config),
                ..
            }) => Some(config),
            _ => None,
        })
    })?;
    let mut config = TraceConfig::decode_from_slice(config).ok()?;
    config.trace_uuid_msb = None;
    config.trace_uuid_lsb = None;
    Some(format!("{config:#?}"))
}
