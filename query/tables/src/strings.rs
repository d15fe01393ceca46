//! The distinct strings of a trace, by number.
//!
//! The tokenizer interns names, the trackers compare them, and the tables write them. Equal strings have equal numbers. Values that may all differ, such as
//! those of debug annotations, do not come here, because the pool lives as long as the export.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// The number of a string in [`Strings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StringId(pub(crate) u32);

/// All distinct strings so far.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    /// All strings, one behind the other.
    text: String,
    /// The end of each string in `text`.
    ends: Vec<usize>,
    longest: usize,
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Strings {
    /// Returns the number of a string. Bytes that are no UTF-8 are replaced, as Arrow has only UTF-8.
    pub(crate) fn intern_bytes(&mut self, bytes: &[u8]) -> StringId {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.intern(text),
            Err(_) => self.intern(&String::from_utf8_lossy(bytes)),
        }
    }

    /// Returns the number of a string.
    pub(crate) fn intern(&mut self, text: &str) -> StringId {
        let Strings {
            text: all,
            ends,
            longest,
            numbers,
            hasher,
        } = self;
        let hash = hasher.hash_one(text);
        if let Some(number) = numbers.find(hash, |number| nth(all, ends, *number) == text) {
            return StringId(*number);
        }
        let number = ends.len() as u32;
        all.push_str(text);
        ends.push(all.len());
        *longest = text.len().max(*longest);
        numbers.insert_unique(hash, number, |number| hasher.hash_one(nth(all, ends, *number)));
        StringId(number)
    }

    /// Returns the length of the longest string.
    #[inline]
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns a string.
    #[inline]
    pub(crate) fn get(&self, id: StringId) -> &str {
        nth(&self.text, &self.ends, id.0)
    }
}

#[inline]
fn nth<'a>(text: &'a str, ends: &[usize], number: u32) -> &'a str {
    let number = number as usize;
    let start = match number {
        0 => 0,
        _ => ends[number - 1],
    };
    &text[start..ends[number]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_have_equal_numbers() {
        let mut strings = Strings::default();
        let texts: Vec<String> = (0..1000).map(|number| format!("s{}", number % 300)).collect();
        let ids: Vec<StringId> = texts.iter().map(|text| strings.intern(text)).collect();
        for (text, id) in texts.iter().zip(&ids) {
            assert_eq!(strings.get(*id), text);
            assert_eq!(strings.intern_bytes(text.as_bytes()), *id);
        }
        let empty = strings.intern("");
        assert_eq!(strings.get(empty), "");
        let broken = strings.intern_bytes(b"a\xffb");
        assert_eq!(strings.get(broken), "a\u{fffd}b");
    }
}
