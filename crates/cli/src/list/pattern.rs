//! Which names are wanted, and what was probably meant by a pattern that fits none.
//!
//! Called by the subjects of `ferretto list`.

use crate::glob::{glob, is_glob};
use std::cell::{Cell, RefCell};

use ferretto_proto::text::nearest;

/// All patterns of a command line. What fits one of them is wanted; without any, everything is.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    all: Vec<Pattern>,
    /// Names that came by, wanted or not.
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

    /// Whether something is wanted that goes by any of these names.
    pub(super) fn want<'a>(&self, names: impl IntoIterator<Item = &'a str> + Clone) -> bool {
        self.remember(names.clone());
        self.any(|pattern| names.clone().into_iter().any(|name| fits(pattern, name)))
    }

    /// Whether something is wanted that has this id, and perhaps a name: no part of an id stands for it.
    pub(super) fn want_whole_or_part(&self, id: &str, name: Option<&str>) -> bool {
        self.remember(std::iter::once(id).chain(name));
        self.any(|pattern| pattern == id || name.is_some_and(|name| fits(pattern, name)))
    }

    /// Whether there are none.
    pub(super) fn are_none(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether this kernel event is wanted.
    pub(super) fn want_event(&self, group: &str, name: &str) -> bool {
        if !self.all.is_empty() {
            self.remember([format!("{group}/{name}").as_str()]);
        }
        self.any(|pattern| fits_event(pattern, group, name))
    }

    fn any(&self, fits: impl Fn(&str) -> bool) -> bool {
        // Each of them is asked: all that fit something are to be known.
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

    /// What is to be said of each pattern that fits nothing.
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

/// The name that is most like it, or most like it in its second half.
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
            // With what separates it from the name.
            names.iter().find_map(|name| {
                let (group, _) = name.split_once('/')?;
                (group == meant).then(|| &name[..=group.len()])
            })
        })
}

/// A glob fits the whole name, anything else a part of it. The case of letters does not count.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase(), name.to_ascii_lowercase());
    match is_glob(&pattern) {
        true => glob(&pattern, &name),
        false => name.contains(&pattern),
    }
}

/// `group/`, `group/part` and `group:part`, where the group has to fit whole; or what fits either of the names.
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
    fn what_fits_nothing_is_told_with_what_was_meant() {
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
