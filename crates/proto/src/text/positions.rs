//! The place of each field of a config in its text, so that later messages about a field can point there.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use super::place::Place;

/// The places of the fields of a text, by path: `buffers[0].size_kb`, `data_sources[1].config.ftrace_config.ftrace_events[2]`.
/// Repeated fields have an index, counted from 0.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    source: String,
    places: BTreeMap<String, Range<usize>>,
    /// The path of the value that the parser reads now.
    path: String,
}

impl Positions {
    pub(super) fn new(source: &str) -> Self {
        Self {
            source: source.to_owned(),
            ..Self::default()
        }
    }

    /// Notes the place of a value of a field. Values that begin before [`leave`](Self::leave) are inside it. Returns the argument for `leave`.
    pub(super) fn enter(&mut self, name: &str, index: Option<usize>, place: Range<usize>) -> usize {
        let mark = self.path.len();
        if mark > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        if let Some(index) = index {
            // Writing to a string cannot fail.
            let _ = write!(self.path, "[{index}]");
        }
        self.places.insert(self.path.clone(), place);
        mark
    }

    pub(super) fn leave(&mut self, mark: usize) {
        self.path.truncate(mark);
    }

    /// Returns the place of the field at `path`. If the text does not have that field, returns the place of the innermost enclosing
    /// message that the text has, or `None` if it has none of them.
    #[must_use]
    pub fn place(&self, path: &str) -> Option<Place> {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return Some(Place::new(&self.source, place.start, place.end));
            }
            path = path.rsplit_once('.')?.0;
        }
    }
}
