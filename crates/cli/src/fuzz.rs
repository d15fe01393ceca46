//! Treats arbitrary bytes as a trace file, compressed or not. `ferretto info` and `ferretto text` must read them to the end, agree on the content,
//! and print no control characters. Its own test calls it with random bytes, and the target `trace_reader` in
//! `fuzz/` at the root of the repository with bytes that reach new code. Nothing else in the crate uses it.

use std::io::Read;

use crate::{convert, info, text};
use ferretto_trace_file::expanded;

/// Converts `data` to every format, whatever it is.
///
/// # Panics
/// If a format is not written.
pub fn conversion(data: &[u8]) {
    convert::survive(data);
}

/// Compressed input is expanded up to this many bytes. Other tests cover larger files.
const EXPANDED: u64 = 1 << 20;

/// Reads `data` as a trace file.
///
/// # Panics
/// If one of the requirements in the module description is not met.
#[allow(clippy::unwrap_used)]
pub fn trace_file(data: &[u8]) {
    let (compression, source) = expanded(data).unwrap();
    if compression.is_some() {
        let mut contents = Vec::new();
        // Damage is an error; `contents` then holds the bytes before it.
        let _ = source.take(EXPANDED).read_to_end(&mut contents);
        return plain(&contents);
    }
    plain(data);
}

#[allow(clippy::unwrap_used)]
fn plain(data: &[u8]) {
    let mut out = Vec::new();
    let outcome = text::print(data, &mut out).unwrap();
    assert_eq!(outcome.end.size, data.len() as u64);
    let printed = String::from_utf8(out).unwrap();
    assert!(printed.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')));
    let (mut packets, mut open) = (0, 0_u64);
    for line in printed.lines().map(str::trim_start) {
        packets += u64::from(line == "packet {" && open <= 1);
        // A string contains no line breaks, and before a comment there are only spaces.
        if !line.starts_with('#') {
            open += u64::from(line.ends_with('{'));
            open -= u64::from(line == "}");
        }
    }
    assert_eq!(open, 0, "what is opened is closed");
    // A field of a packet could have this name too, but none has.
    assert_eq!(packets, outcome.packets);
    let described = info::describe(data);
    assert_eq!(
        (described.packets, described.damaged),
        (outcome.packets, outcome.damaged)
    );
    let terminal = |letter: char| letter.is_control() && letter != '\n';
    assert!(!described.report.contains(terminal), "{:?}", described.report);
    let json: serde_json::Value = serde_json::from_str(&described.json).unwrap();
    assert_eq!(json["packets"], outcome.packets);
}

#[cfg(test)]
mod tests {
    use ferretto_wire::Writer;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_to_the_end(parts in prop::collection::vec((0..3_u8, prop::collection::vec(any::<u8>(), 0..60)), 0..12)) {
            let mut bytes = Vec::new();
            for (kind, content) in &parts {
                let mut trace = Writer::new();
                trace.nested(1, |packet| {
                    if *kind == 0 {
                        packet.varint_field(3, 0);
                        packet.varint_field(10, 1);
                    }
                    packet.bytes_field(900, content);
                });
                match kind {
                    0 | 1 => bytes.extend(trace.as_slice()),
                    _ => bytes.extend(content),
                }
            }
            super::trace_file(&bytes);
        }
    }
}
