//! Advice about configs that are legal but will disappoint.
//!
//! `perfetto` calls it just before a recording, when the config can still be changed, and [`check`](super::check) calls it too. [`advise`] looks at
//! values only; [`Surroundings`] has the service's offers and the kernel's abilities. It never refuses a config, and it gives no advice where
//! something is unknown, because a wrong warning is worse than none. The text parser and the service report configs that are illegal.

mod buffers;
mod filters;
pub(crate) mod known_sources;
mod rates;
mod session;
mod sources;
#[cfg(test)]
mod tests;
mod trace_filter;

use std::fmt;

use ferretto_proto::messages::TraceConfig;
use ferretto_proto::text::{Place, Positions};

use super::surroundings::Surroundings;
pub(crate) use buffers::LARGE_BUFFER_KB;
pub(crate) use filters::{SCAN_ALL, looks_at_no_process, nearest_event};

/// The origin of a config, which decides how messages refer to a place in it.
#[derive(Debug)]
pub(crate) enum ConfigOrigin {
    /// A text that somebody wrote.
    Text {
        /// The file.
        name: String,
        /// The places of the fields in it.
        positions: Positions,
    },
    /// An encoded config.
    Encoded {
        /// The file.
        name: String,
    },
    /// Light flags. The user has never seen the fields.
    Flags,
}

/// How important a piece of advice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Something requested will be missing, or the config has another effect than it seems to.
    Warning,
    /// The config has the intended effect, and could be better.
    Hint,
}

/// A suggestion for changing a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) weight: Weight,
    /// The field, as `data_sources[0].config.name`; empty for the config as a whole.
    pub(crate) path: String,
    /// The place in the text, or of its nearest parent there, if the config was text.
    pub(crate) place: Option<Place>,
    /// The problem.
    pub(crate) what: String,
    /// The suggested change.
    pub(crate) change: String,
}

impl Advice {
    /// Formats it as one line that begins with the place.
    pub(crate) fn line<'a>(&'a self, origin: &'a ConfigOrigin) -> impl fmt::Display + 'a {
        Line { advice: self, origin }
    }
}

struct Line<'a> {
    advice: &'a Advice,
    origin: &'a ConfigOrigin,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = self.advice;
        match (self.origin, &advice.place) {
            (ConfigOrigin::Flags, _) => {}
            (ConfigOrigin::Text { name, .. }, Some(place)) => {
                write!(f, "{name}:{}:{}: ", place.line, place.column)?
            }
            (ConfigOrigin::Text { name, .. } | ConfigOrigin::Encoded { name }, _)
                if advice.path.is_empty() =>
            {
                write!(f, "{name}: ")?
            }
            (ConfigOrigin::Text { name, .. } | ConfigOrigin::Encoded { name }, _) => {
                write!(f, "{name}: {}: ", advice.path)?
            }
        }
        let weight = match advice.weight {
            Weight::Warning => "warning",
            Weight::Hint => "hint",
        };
        write!(f, "{weight}: {}; {}", advice.what, advice.change)
    }
}

/// The most pieces of advice; nobody reads more.
const MOST: usize = 20;

/// Returns all advice about a config, in the order of its text: at most [`MOST`], and warnings before hints if there are more.
pub(crate) fn advise(
    config: &TraceConfig,
    origin: &ConfigOrigin,
    surroundings: &Surroundings,
) -> Vec<Advice> {
    let mut adviser = Adviser {
        config,
        origin,
        surroundings,
        advice: Vec::new(),
    };
    // A config that only activates triggers records nothing by itself, so its other fields mean nothing.
    if config.activate_triggers.is_empty() {
        sources::advise(&mut adviser);
        filters::advise(&mut adviser);
        buffers::advise(&mut adviser);
        trace_filter::advise(&mut adviser);
        if !matches!(origin, ConfigOrigin::Flags) {
            session::advise(&mut adviser);
        }
    }
    let mut advice = adviser.advice;
    if advice.len() > MOST {
        advice.sort_by_key(|advice| advice.weight == Weight::Hint);
        advice.truncate(MOST);
    }
    advice.sort_by_key(|advice| advice.place.as_ref().map(|place| (place.line, place.column)));
    advice
}

/// The input of all advisers, and the advice so far.
struct Adviser<'a> {
    config: &'a TraceConfig,
    origin: &'a ConfigOrigin,
    surroundings: &'a Surroundings,
    advice: Vec<Advice>,
}

impl Adviser<'_> {
    fn warn(&mut self, path: impl Into<String>, what: impl Into<String>, change: impl Into<String>) {
        self.add(Weight::Warning, path.into(), what.into(), change.into());
    }

    fn hint(&mut self, path: impl Into<String>, what: impl Into<String>, change: impl Into<String>) {
        self.add(Weight::Hint, path.into(), what.into(), change.into());
    }

    /// Whether there is more advice than will be shown. Searching on would only take time.
    fn has_enough(&self) -> bool {
        self.advice.len() > MOST
    }

    fn add(&mut self, weight: Weight, path: String, what: String, change: String) {
        let place = match self.origin {
            ConfigOrigin::Text { positions, .. } => positions.place(&path),
            ConfigOrigin::Encoded { .. } | ConfigOrigin::Flags => None,
        };
        self.advice.push(Advice {
            weight,
            path,
            place,
            what,
            change,
        });
    }
}

/// Returns the name of a data source in a config; empty if it has none.
fn name_of(source: &ferretto_proto::messages::trace_config::DataSource) -> &str {
    source.config.name.as_deref().unwrap_or_default()
}

/// Returns the index of the buffer that a data source writes into, if there is one.
fn target_of(
    config: &TraceConfig,
    source: &ferretto_proto::messages::trace_config::DataSource,
) -> Option<usize> {
    let name = source.config.target_buffer_name.as_deref().unwrap_or_default();
    let index = source.config.target_buffer.unwrap_or_default() as usize;
    if name.is_empty() {
        return (index < config.buffers.len()).then_some(index);
    }
    let named = config
        .buffers
        .iter()
        .position(|buffer| buffer.name.as_deref() == Some(name))?;
    (index == 0 || index == named).then_some(named)
}

/// Formats milliseconds for people.
fn time(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 if ms.is_multiple_of(1000) => format!("{} s", ms / 1000),
        1000..120_000 => format!("{:.1} s", ms as f64 / 1000.0),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}
