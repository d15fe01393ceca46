//! Writes filter bytecode, for the tests, benches and fuzz targets that need some.

#![allow(dead_code)] // Each program that includes this file uses a part of it.

/// The bytecode's treatment of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The field stays.
    Keep(u32),
    /// This field and the following ones stay, this many in all.
    KeepRange(u32, u32),
    /// The field is a message, filtered like the message with this index.
    Nested(u32, u32),
    /// The field is a string, which is filtered.
    Text(u32),
    /// The field is a string of this semantic type, which is filtered.
    TextOf(u32, u32),
}

impl Rule {
    /// The words that encode it.
    pub(crate) fn words(self) -> Vec<u32> {
        match self {
            Rule::Keep(field) => vec![field << 3 | 1],
            Rule::KeepRange(field, count) => vec![field << 3 | 2, count],
            Rule::Nested(field, message) => vec![field << 3 | 3, message],
            Rule::Text(field) => vec![field << 3 | 4],
            Rule::TextOf(field, semantic_type) => vec![field << 3 | 5, semantic_type],
        }
    }
}

/// The bytecode for these messages.
pub(crate) fn bytecode(messages: &[&[Rule]]) -> Vec<u8> {
    let of_message = |rules: &&[Rule]| {
        let words = rules.iter().flat_map(|rule| rule.words());
        words.chain([0]).collect::<Vec<u32>>()
    };
    encode(&messages.iter().flat_map(of_message).collect::<Vec<u32>>())
}

/// An overlay with rules for fields of messages.
pub(crate) fn overlay(entries: &[(u32, Rule)]) -> Vec<u8> {
    let words = |(message, rule): &(u32, Rule)| {
        let words = rule.words();
        [*message, words[0], words.get(1).copied().unwrap_or_default()]
    };
    encode(&entries.iter().flat_map(words).collect::<Vec<u32>>())
}

/// Words as they are in a config: varints and a checksum.
pub(crate) fn encode(words: &[u32]) -> Vec<u8> {
    let hash = words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    let mut bytes = Vec::new();
    for mut word in words.iter().copied().chain([hash as u32]) {
        while word >= 0x80 {
            bytes.push(word as u8 | 0x80);
            word >>= 7;
        }
        bytes.push(word as u8);
    }
    bytes
}

/// Bytes as a string in a text config.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\{byte:03o}")).collect()
}
