//! The choices of a `TrackEventConfig`: the recorded categories, and how events are written.
//!
//! Read when an instance of the data source is set up; the categories of call sites are then looked up once each, so
//! nothing here is on the path of an event.
//!
//! # Which categories
//!
//! A config has four lists of patterns: categories and tags, enabled and disabled. The first of these rules that matches a category decides whether
//! it is recorded:
//!
//! 1. exact names: enabled categories, disabled categories, disabled tags, enabled tags, in this order;
//! 2. patterns such as `gpu.*`, a name's beginning and a `*`: the four lists in the same order;
//! 3. the pattern `*`, which matches everything: the four lists in the same order.
//!
//! A category that nothing matches is recorded. A list of tags matches if any of the category's tags does. If no list of tags has an entry, the tags
//! `slow` and `debug` are disabled; a single enabled tag lifts that for both.
//!
//! These are the rules of upstream's C++ library. Its C library (and so the crate `perfetto-sdk`) has others: enabled tags come before disabled
//! categories, `*` is a pattern like others, `slow` and `debug` are not special, and a category that nothing matches is *not* recorded.

use std::num::NonZeroU64;

use ferretto_proto::messages::TrackEventConfig;

#[cfg(test)]
mod tests;

/// The tags that are disabled where a config has no tags.
const DISABLED_UNLESS_SAID: [&str; 2] = ["slow", "debug"];

/// The categories that a config enables.
#[derive(Clone, Debug)]
pub(crate) struct CategoryFilter {
    enabled_categories: Patterns,
    disabled_categories: Patterns,
    disabled_tags: Patterns,
    enabled_tags: Patterns,
}

/// The precision of a pattern. More precise ones are tried first.
#[derive(Clone, Copy, Debug)]
enum Precision {
    Exact,
    Prefix,
    Everything,
}

/// One of a config's lists, by precision.
#[derive(Clone, Debug, Default)]
struct Patterns {
    exact: Vec<Box<str>>,
    prefixes: Vec<Box<str>>,
    everything: bool,
}

impl Patterns {
    fn new<S: AsRef<str>>(list: impl IntoIterator<Item = S>) -> Self {
        let mut patterns = Self::default();
        for pattern in list {
            // Characters after a `*` are ignored, as in upstream.
            match pattern.as_ref().split_once('*') {
                None => patterns.exact.push(pattern.as_ref().into()),
                Some(("", _)) => patterns.everything = true,
                Some((prefix, _)) => patterns.prefixes.push(prefix.into()),
            }
        }
        patterns
    }

    fn matches(&self, name: &str, precision: Precision) -> bool {
        match precision {
            Precision::Exact => self.exact.iter().any(|exact| **exact == *name),
            Precision::Prefix => self.prefixes.iter().any(|prefix| name.starts_with(&**prefix)),
            Precision::Everything => self.everything,
        }
    }
}

impl CategoryFilter {
    /// The categories that `config` enables.
    pub(crate) fn new(config: &TrackEventConfig) -> Self {
        let says_nothing_of_tags = config.disabled_tags.is_empty() && config.enabled_tags.is_empty();
        Self {
            enabled_categories: Patterns::new(&config.enabled_categories),
            disabled_categories: Patterns::new(&config.disabled_categories),
            disabled_tags: if says_nothing_of_tags {
                Patterns::new(DISABLED_UNLESS_SAID)
            } else {
                Patterns::new(&config.disabled_tags)
            },
            enabled_tags: Patterns::new(&config.enabled_tags),
        }
    }

    /// Whether events of the category `name`, which has these tags, are recorded.
    ///
    /// For groups see [`is_group_enabled`](Self::is_group_enabled).
    pub(crate) fn is_enabled(&self, name: &str, tags: &[&str]) -> bool {
        self.is_enabled_by(name, [tags, &[]])
    }

    /// As [`is_enabled`](Self::is_enabled), for a category whose tags are in two lists.
    pub(crate) fn is_enabled_by(&self, name: &str, tags: [&[&str]; 2]) -> bool {
        for precision in [Precision::Exact, Precision::Prefix, Precision::Everything] {
            let any_tag = |patterns: &Patterns| {
                let mut all = tags.iter().copied().flatten();
                all.any(|tag| patterns.matches(tag, precision))
            };
            if self.enabled_categories.matches(name, precision) {
                return true;
            }
            if self.disabled_categories.matches(name, precision) || any_tag(&self.disabled_tags) {
                return false;
            }
            if any_tag(&self.enabled_tags) {
                return true;
            }
        }
        true
    }

    /// Whether events of the group `names` are recorded: names separated by commas, one of which must be enabled.
    ///
    /// `tags_of` returns the tags of registered categories. A member counts as enabled also if it would be without its tags. Upstream does the same,
    /// so with a config without tags a group with a slow category is recorded, though the category alone is not.
    pub(crate) fn is_group_enabled<'t>(
        &self,
        names: &str,
        tags_of: impl Fn(&str) -> Option<&'t [&'t str]>,
    ) -> bool {
        names.split(',').filter(|name| !name.is_empty()).any(|name| {
            tags_of(name).is_some_and(|tags| self.is_enabled(name, tags)) || self.is_enabled(name, &[])
        })
    }
}

/// The options of a config for writing events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrackEventOptions {
    /// Nanoseconds per unit of timestamps, and of thread times. A config's 0 is taken as 1.
    pub(crate) timestamp_unit_multiplier: NonZeroU64,
    /// Whether timestamps are differences to the one before on the sequence.
    pub(crate) incremental_timestamps: bool,
    /// Whether debug annotations are left out.
    pub(crate) filter_debug_annotations: bool,
    /// Whether names made at run time are replaced by `FILTERED`.
    pub(crate) filter_dynamic_event_names: bool,
    /// Whether events on their thread's track carry the thread's CPU time.
    pub(crate) thread_time_sampling: bool,
    /// Nanoseconds that must pass before the thread's time is taken again; 0 for each event.
    pub(crate) thread_time_subsampling_ns: u64,
}

impl TrackEventOptions {
    /// The options that `config` sets, with upstream's defaults.
    pub(crate) fn new(config: &TrackEventConfig) -> Self {
        Self {
            timestamp_unit_multiplier: config
                .timestamp_unit_multiplier
                .and_then(NonZeroU64::new)
                .unwrap_or(NonZeroU64::MIN),
            incremental_timestamps: !config.disable_incremental_timestamps.unwrap_or(false),
            filter_debug_annotations: config.filter_debug_annotations.unwrap_or(false),
            filter_dynamic_event_names: config.filter_dynamic_event_names.unwrap_or(false),
            thread_time_sampling: config.enable_thread_time_sampling.unwrap_or(false),
            thread_time_subsampling_ns: config.thread_time_subsampling_ns.unwrap_or(0),
        }
    }
}

/// Why a session with `config` may not take over events that were recorded since start-up with the config `startup`: how they differ from the events
/// that the session would have recorded. `None` if it may.
///
/// As in upstream, categories, tags and filters must agree, whatever the order of the lists; timestamps are written as the startup config says.
/// (Upstream also requires that both configs have track event options.)
pub(crate) fn difference(startup: &TrackEventConfig, config: &TrackEventConfig) -> Option<String> {
    let lists = |config: &TrackEventConfig| {
        [
            ("enabled_categories", &config.enabled_categories),
            ("disabled_categories", &config.disabled_categories),
            ("enabled_tags", &config.enabled_tags),
            ("disabled_tags", &config.disabled_tags),
        ]
        .map(|(name, list)| {
            let mut names = list.clone();
            names.sort_unstable();
            names.dedup();
            (name, format!("{names:?}"))
        })
    };
    let filters = |config: &TrackEventConfig| {
        let options = TrackEventOptions::new(config);
        [
            ("filter_debug_annotations", options.filter_debug_annotations),
            ("filter_dynamic_event_names", options.filter_dynamic_event_names),
        ]
        .map(|(name, filters)| (name, filters.to_string()))
    };
    let said = |config: &TrackEventConfig| lists(config).into_iter().chain(filters(config));
    let differences: Vec<String> = said(startup)
        .zip(said(config))
        .filter(|(startup, session)| startup != session)
        .map(|((name, startup), (_, session))| {
            format!("`{name}` is {startup} for startup and {session} in the session")
        })
        .collect();
    (!differences.is_empty()).then(|| differences.join(", "))
}
