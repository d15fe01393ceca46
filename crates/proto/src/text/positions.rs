//! Where each field of a config stands in its text, so that whatever is said of a field later can point there.

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
    /// The path of the value that is being read.
    path: String,
}

impl Positions {
    pub(super) fn new(source: &str) -> Self {
        Self {
            source: source.to_owned(),
            ..Self::default()
        }
    }

    /// A value of a field is read, at these bytes: what comes before [`leave`](Self::leave) is inside. Gives what that needs.
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

    /// Where the field at `path` stands; of one that the text does not have, the innermost message around it that it has.
    /// `None` if there is nothing of that either.
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
