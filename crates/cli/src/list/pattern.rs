//! The patterns that select names, with suggestions for patterns that match nothing.
//!
//! The subjects of `ferretto list` call it.

use std::cell::{Cell, RefCell};

use ferretto_proto::text::nearest;
use ferretto_recorder::{glob, is_glob};

/// The patterns of a command line. A name that matches one of them is selected; without patterns, all names are.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    all: Vec<Pattern>,
    /// All names that were compared.
    names: RefCell<Vec<String>>,
}

#[derive(Debug)]
struct Pattern {
    typed: String,
    fits_something: Cell<bool>,
}

impl Patterns {
    pub(super) fn new<'a>(typed: impl IntoIterator<Item = &'a String>) -> Patterns {
        let pattern = |typed: &String| Pattern {
            typed: typed.clone(),
            fits_something: Cell::new(false),
        };
        Patterns {
            all: typed.into_iter().map(pattern).collect(),
            names: RefCell::default(),
        }
    }

    /// Whether any of these names is selected.
    pub(super) fn want<'a>(&self, names: impl IntoIterator<Item = &'a str> + Clone) -> bool {
        self.remember(names.clone());
        self.any(|pattern| names.clone().into_iter().any(|name| fits(pattern, name)))
    }

    /// Whether an object with this id, and perhaps a name, is selected. A pattern has to be the whole id, or match the name.
    pub(super) fn want_whole_or_part(&self, id: &str, name: Option<&str>) -> bool {
        self.remember(std::iter::once(id).chain(name));
        self.any(|pattern| pattern == id || name.is_some_and(|name| fits(pattern, name)))
    }

    /// Whether there are no patterns.
    pub(super) fn are_none(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether this kernel event is selected.
    pub(super) fn want_event(&self, group: &str, name: &str) -> bool {
        if !self.all.is_empty() {
            self.remember([format!("{group}/{name}").as_str()]);
        }
        self.any(|pattern| fits_event(pattern, group, name))
    }

    fn any(&self, fits: impl Fn(&str) -> bool) -> bool {
        // Every pattern is tried, to find those that match nothing.
        let fitting = self.all.iter().filter(|pattern| {
            let fits = fits(&pattern.typed);
            pattern.fits_something.set(fits || pattern.fits_something.get());
            fits
        });
        fitting.count() > 0 || self.all.is_empty()
    }

    fn remember<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        if !self.all.is_empty() {
            self.names
                .borrow_mut()
                .extend(names.into_iter().map(str::to_owned));
        }
    }

    /// Returns a message for each pattern that matches nothing.
    pub(super) fn unfit(&self) -> Vec<String> {
        let names = self.names.borrow();
        let unfit = self.all.iter().filter(|pattern| !pattern.fits_something.get());
        unfit
            .map(|pattern| match meant(&pattern.typed, &names) {
                Some(meant) => format!("nothing fits {:?}; did you mean {meant}?", pattern.typed),
                None if names.is_empty() => format!("nothing fits {:?}: there is none at all", pattern.typed),
                None => format!("nothing fits {:?}", pattern.typed),
            })
            .collect()
    }
}

/// Returns the name that is most similar to a pattern, as a whole or in its second half, or else the most similar group.
fn meant<'a>(typed: &str, names: &'a [String]) -> Option<&'a str> {
    let plain = typed.replace(':', "/").replace(['*', '?'], "");
    let plain = plain.trim_end_matches('/');
    let half = |name: &'a str| name.split_once('/').map(|(_, half)| half);
    let whole = nearest(plain, names.iter().map(String::as_str));
    whole
        .or_else(|| {
            let meant = nearest(plain, names.iter().filter_map(|name| half(name)))?;
            names
                .iter()
                .find(|name| half(name) == Some(meant))
                .map(String::as_str)
        })
        .or_else(|| {
            let groups = names.iter().filter_map(|name| name.split_once('/'));
            let meant = nearest(plain, groups.map(|(group, _)| group))?;
            // Includes the slash between group and name.
            names.iter().find_map(|name| {
                let (group, _) = name.split_once('/')?;
                (group == meant).then(|| &name[..=group.len()])
            })
        })
}

/// Whether a pattern matches a name. A glob matches the whole name, any other pattern a part of it. Case is ignored.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase(), name.to_ascii_lowercase());
    match is_glob(&pattern) {
        true => glob(&pattern, &name),
        false => name.contains(&pattern),
    }
}

/// Matches `group/`, `group/part` and `group:part`, in which the group has to match as a whole. Other patterns match either name.
fn fits_event(pattern: &str, group: &str, name: &str) -> bool {
    match pattern.split_once(['/', ':']) {
        Some((of_group, part)) => {
            glob(&of_group.to_ascii_lowercase(), &group.to_ascii_lowercase())
                && (part.is_empty() || fits(part, name))
        }
        None => fits(pattern, name) || fits(pattern, group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(typed: &[&str]) -> Patterns {
        let typed: Vec<String> = typed.iter().map(|typed| (*typed).to_owned()).collect();
        Patterns::new(&typed)
    }

    #[test]
    fn a_word_is_a_part_of_a_name_and_a_glob_the_whole_of_it() {
        for (pattern, name, expected) in [
            ("ftrace", "linux.ftrace", true),
            ("FTRACE", "linux.ftrace", true),
            ("linux.*", "linux.ftrace", true),
            ("*trace", "linux.ftrace", true),
            ("*trace", "linux.ftraces", false),
            ("l*x.?trace", "linux.ftrace", true),
            ("ftrace?", "linux.ftrace", false),
            ("*", "", true),
            ("**a*", "bab", true),
        ] {
            assert_eq!(patterns(&[pattern]).want([name]), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn events_are_named_as_perf_and_as_perfetto_do() {
        let fits = |pattern: &str| patterns(&[pattern]).want_event("sched", "sched_switch");
        for pattern in [
            "sched",
            "switch",
            "sched/",
            "sched:",
            "sched/*",
            "sched:sched_switch",
            "sched/switch",
            "sch*/",
            "sched_sw*",
            "s?hed:*_switch",
        ] {
            assert!(fits(pattern), "{pattern}");
        }
        for pattern in ["sche/", "sched/waking", "wit*", "ext4/", "switch/"] {
            assert!(!fits(pattern), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_matches_nothing_gets_a_suggestion() {
        for (typed, meant) in [
            ("sched/sched_swich", "did you mean sched/sched_switch?"),
            ("sched:sched_swich", "did you mean sched/sched_switch?"),
            ("sched_wakign", "did you mean sched/sched_waking?"),
            ("sched_wakign*", "did you mean sched/sched_waking?"),
            ("shced", "did you mean sched/?"),
            ("shced/", "did you mean sched/?"),
            ("gibberish", "nothing fits \"gibberish\""),
        ] {
            let patterns = patterns(&["waking", typed]);
            assert!(!patterns.want_event("sched", "sched_switch"));
            assert!(patterns.want_event("sched", "sched_waking"));
            let said = patterns.unfit();
            assert!(said.len() == 1 && said[0].ends_with(meant), "{said:?}");
        }
        assert_eq!(
            patterns(&["x"]).unfit(),
            ["nothing fits \"x\": there is none at all"]
        );
        assert!(patterns(&[]).want(["anything"]));
    }
}
