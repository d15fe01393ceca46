//! The distinct strings of a trace, by number.
//!
//! The tokenizer interns names, the trackers compare them, and the tables write them. Equal strings have equal numbers. Values that may all differ, such as
//! those of debug annotations, do not come here, because the pool lives as long as the export. Beyond a limit all new strings become one, and are counted.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// The most bytes of all strings. Each counts [`ENTRY`] more.
const MOST: usize = 64 << 20;
/// About what a string takes beside its bytes.
const ENTRY: usize = 16;
/// Strings up to this length are short.
pub(crate) const SHORT: usize = 16;
/// Behind the last string, so that [`Pool::short`] finds as many bytes of each.
pub(crate) const PADDING: &str = "                ";
/// What strings beyond the limit become.
const BEYOND: &str = "(too many names)";

/// The number of a string in [`Strings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StringId(pub(crate) u32);

/// Where a string is. All of them have less than 4 GiB.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u32,
    len: u32,
}

/// All distinct strings so far.
#[derive(Debug)]
pub(crate) struct Strings {
    /// All strings, one behind the other, and [`PADDING`].
    text: String,
    places: Vec<Place>,
    longest: usize,
    /// The strings that became [`BEYOND`].
    beyond: u64,
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Default for Strings {
    fn default() -> Strings {
        Strings {
            text: String::new(),
            places: Vec::new(),
            longest: 0,
            beyond: 0,
            numbers: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl Strings {
    /// Returns the number of a string. Bytes that are no UTF-8 are replaced, as Arrow has only UTF-8.
    pub(crate) fn intern_bytes(&mut self, bytes: &[u8]) -> StringId {
        // What is known needs no check.
        if let Some(id) = self.find(bytes) {
            return id;
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => self.add(text),
            Err(_) => self.intern(&String::from_utf8_lossy(bytes)),
        }
    }

    #[inline]
    fn find(&self, bytes: &[u8]) -> Option<StringId> {
        let is_it = |number: &u32| nth(&self.text, &self.places, *number).as_bytes() == bytes;
        self.numbers
            .find(self.hasher.hash_one(bytes), is_it)
            .copied()
            .map(StringId)
    }

    /// Returns the number of a string.
    pub(crate) fn intern(&mut self, text: &str) -> StringId {
        match self.find(text.as_bytes()) {
            Some(id) => id,
            None => self.add(text),
        }
    }

    /// Adds a string that is not there yet.
    fn add(&mut self, text: &str) -> StringId {
        let Strings {
            text: all,
            places,
            longest,
            beyond,
            numbers,
            hasher,
        } = self;
        let hash = hasher.hash_one(text.as_bytes());
        if all.len() + text.len() + places.len() * ENTRY > MOST && text != BEYOND {
            *beyond += 1;
            return self.intern(BEYOND);
        }
        let number = places.len() as u32;
        all.truncate(places.last().map_or(0, |last| (last.start + last.len) as usize));
        places.push(Place {
            start: all.len() as u32,
            len: text.len() as u32,
        });
        all.push_str(text);
        all.push_str(PADDING);
        *longest = text.len().max(*longest);
        numbers.insert_unique(hash, number, |number| {
            hasher.hash_one(nth(all, places, *number).as_bytes())
        });
        StringId(number)
    }

    /// Returns how often a string was not added, because the limit was reached.
    pub(crate) fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Returns the length of the longest string.
    #[inline]
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns a string.
    #[inline]
    pub(crate) fn get(&self, id: StringId) -> &str {
        nth(&self.text, &self.places, id.0)
    }

    /// Returns where short strings are.
    #[inline]
    pub(crate) fn short_texts(&self) -> Pool<'_> {
        Pool {
            text: self.text.as_bytes(),
            places: &self.places,
        }
    }
}

/// The strings of [`Strings`], for many look-ups of short ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pool<'a> {
    text: &'a [u8],
    places: &'a [Place],
}

impl<'a> Pool<'a> {
    /// Returns bytes that begin with a string, and its length, if it is short.
    #[inline(always)]
    pub(crate) fn short(&self, id: StringId) -> Option<(&'a [u8; SHORT], usize)> {
        let Place { start, len } = *self.places.get(id.0 as usize)?;
        let bytes = self.text.get(start as usize..)?.first_chunk()?;
        (len as usize <= SHORT).then_some((bytes, len as usize))
    }
}

#[inline]
fn nth<'a>(text: &'a str, places: &[Place], number: u32) -> &'a str {
    let Place { start, len } = places[number as usize];
    &text[start as usize..][..len as usize]
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

    #[test]
    fn beyond_the_limit_new_strings_are_one() {
        let mut strings = Strings::default();
        let long = |number: usize| format!("{number}{}", "x".repeat(1 << 20));
        let first = strings.intern(&long(0));
        let last = (1..64).map(|number| strings.intern(&long(number))).last();
        assert_eq!(last.map(|id| strings.get(id)), Some(BEYOND));
        assert_eq!(strings.intern(&long(0)), first);
        assert_eq!(strings.beyond(), 1);
        assert_eq!(strings.intern(&long(100)), strings.intern(&long(101)));
        assert_eq!(strings.beyond(), 3);
    }
}
