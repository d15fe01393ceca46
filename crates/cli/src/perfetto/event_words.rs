//! Interprets event words of a command line in the spelling of `perf`, `trace-cmd`, `strace` and `bpftrace`, or as bare names.
//!
//! [`plan`](super::plan) calls it for `ferretto`. `perfetto` interprets words as upstream does: with a slash they are kernel events, without one
//! atrace categories. Here a bare word that is no category is looked up among the kernel's events in tracefs. If tracefs cannot be read, the probes
//! look the word up. A word without a meaning is refused, with the nearest one that has one.

use ferretto_probes::ftrace::{syscalls, typed};
use ferretto_proto::text::nearest_within;
use ferretto_recorder::is_glob;

use super::light_config::Wanted;
use super::workload::is_runnable;
use crate::config::advice::nearest_event;
use crate::config::categories::{is_category, nearest_category};
use crate::config::event_names::names_in;
use crate::config::surroundings::Kernel;
use crate::usage::nearest_subcommand;

/// The prefix of `strace`'s filters.
const STRACE: &str = "trace=";
/// The most candidates that a message lists.
const FEW: usize = 8;

/// The way in which a word was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// By itself, where `perfetto` takes categories.
    Bare,
    /// With `-e`, as other tools take events, groups and system calls.
    WithFlag,
}

/// A word that has no unique meaning here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WordError {
    #[error("there is no event, category or subcommand {word:?}{}", Meant(.meant))]
    Unknown {
        word: String,
        /// A word to type instead.
        meant: Option<String>,
    },
    #[error("{word:?} is an event of several groups: write one of {}", .events.join(", "))]
    Ambiguous { word: String, events: Vec<String> },
    #[error("this kernel has no event {event:?}{}", Meant(.meant))]
    NotInKernel { event: String, meant: Option<String> },
    #[error(
        "{0:?} is all events of the kernel, thousands: name groups, like 'sched/*' 'irq/*'; `ferretto list events` lists them"
    )]
    Everything(String),
    #[error("{0:?} matches no event of this kernel; `ferretto list events` lists them")]
    NoMatch(String),
    #[error("{call:?} is no system call of this machine{}", Meant(.meant))]
    UnknownSyscall { call: String, meant: Option<String> },
}

struct Meant<'a>(&'a Option<String>);

impl std::fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(meant) => write!(f, "; did you mean {meant}?"),
            None => f.write_str("; `ferretto list events` lists events, `ferretto help` subcommands"),
        }
    }
}

/// Returns the meaning of `words` for this kernel; `None` stands for a kernel whose events cannot be read.
pub(crate) fn understand<'a>(
    words: impl IntoIterator<Item = (Given, &'a str)>,
    kernel: Option<&Kernel>,
) -> Result<Vec<Wanted>, WordError> {
    let mut wanted = Vec::new();
    for (given, word) in words {
        match word.strip_prefix(STRACE) {
            Some(calls) => wanted.extend(system_calls(calls)?),
            None => {
                for name in names_in(word) {
                    wanted.extend(meaning(given, name, kernel)?);
                }
            }
        }
    }
    // Events that this kernel lacks are left to the advice, unless nothing else is requested.
    let missing = |wanted: &Wanted| match (wanted, kernel) {
        (Wanted::Event(event), Some(kernel)) => !kernel.has(event),
        _ => false,
    };
    if let (Some(Wanted::Event(event)), Some(kernel)) = (wanted.first(), kernel)
        && wanted.iter().all(missing)
    {
        return Err(WordError::NotInKernel {
            event: event.clone(),
            meant: nearest_event(kernel, event),
        });
    }
    Ok(wanted)
}

fn system_calls(list: &str) -> Result<Vec<Wanted>, WordError> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| match syscalls::number(name) {
            Some(_) => Ok(system_call(name)),
            None => Err(WordError::UnknownSyscall {
                call: name.to_owned(),
                meant: nearest_within(name, slips(name), syscalls::names())
                    .map(|name| format!("{STRACE}{name}")),
            }),
        })
        .collect()
}

/// Converts a system call's name to the form in `syscall_events`.
fn system_call(name: &str) -> Wanted {
    Wanted::SystemCall(format!("sys_{}", name.strip_prefix("sys_").unwrap_or(name)))
}

fn meaning(given: Given, name: String, kernel: Option<&Kernel>) -> Result<Vec<Wanted>, WordError> {
    let Some((group, event)) = name.split_once('/') else {
        return bare(given, name, kernel).map(|wanted| vec![wanted]);
    };
    match kernel {
        _ if (group, event) == ("*", "*") => Err(WordError::Everything(name)),
        Some(kernel) if is_glob(group) || (event != "*" && is_glob(event)) => {
            let found: Vec<Wanted> = kernel.matching(group, event).map(Wanted::Event).collect();
            match found.is_empty() {
                true => Err(WordError::NoMatch(name)),
                false => Ok(found),
            }
        }
        _ => Ok(vec![Wanted::Event(name)]),
    }
}

/// Interprets a name without a group.
fn bare(given: Given, name: String, kernel: Option<&Kernel>) -> Result<Wanted, WordError> {
    if given == Given::Bare && is_category(&name) {
        return Ok(Wanted::Category(name));
    }
    let Some(kernel) = kernel else {
        return unseen(given, name);
    };
    let events: Vec<String> = kernel
        .groups_of(&name)
        .map(|group| format!("{group}/{name}"))
        .collect();
    // An event with a message type of its own is the well-known one.
    let known = |event: &&String| {
        let parts = event.split_once('/');
        parts.is_some_and(|(group, name)| typed::find(group, name).is_some())
    };
    match (events.iter().find(known), events.as_slice()) {
        (Some(event), _) | (None, [event]) => return Ok(Wanted::Event(event.clone())),
        (None, []) => {}
        (None, _) => {
            let events = events.into_iter().take(FEW).collect();
            return Err(WordError::Ambiguous { word: name, events });
        }
    }
    match given {
        _ if kernel.events.contains_key(&name) => Ok(Wanted::Event(format!("{name}/*"))),
        Given::WithFlag if is_category(&name) => Ok(Wanted::Category(name)),
        Given::WithFlag if syscalls::number(&name).is_some() => Ok(system_call(&name)),
        _ => {
            let event = || nearest_event(kernel, &name).map(|event| format!("the event {event}"));
            let call = || syscalls::number(&name).map(|_| format!("the system call, -e {STRACE}{name}"));
            let program = || {
                is_runnable(name.as_ref()).ok()?;
                Some(format!("`ferretto -- {name}`, which records while it runs"))
            };
            // A program of exactly this name is more likely than a similar word.
            let meant = call()
                .or_else(program)
                .or_else(|| nearest_word(&name))
                .or_else(event);
            Err(WordError::Unknown { word: name, meant })
        }
    }
}

/// Interprets a name without a group if the kernel's events cannot be read. The probes may be able to read them, and then find its group.
fn unseen(given: Given, name: String) -> Result<Wanted, WordError> {
    if is_category(&name) {
        return Ok(Wanted::Category(name));
    }
    if given == Given::WithFlag && syscalls::number(&name).is_some() {
        return Ok(system_call(&name));
    }
    match nearest_word(&name) {
        Some(meant) => Err(WordError::Unknown {
            word: name,
            meant: Some(meant),
        }),
        None => Ok(Wanted::Event(name)),
    }
}

/// Returns a known word that is close to this one.
fn nearest_word(name: &str) -> Option<String> {
    let subcommand = || nearest_subcommand(name).map(|meant| format!("`ferretto {meant}`"));
    let category = nearest_category(name).map(|meant| format!("the category {meant}"));
    category.or_else(subcommand)
}

/// Returns the number of letters of a name that may differ.
fn slips(name: &str) -> usize {
    (name.len() / 4).clamp(1, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        let mut kernel = Kernel::default();
        for (group, names) in [
            ("sched", &["sched_switch", "sched_waking"][..]),
            ("irq", &["softirq_entry", "softirq_exit"]),
            ("syscalls", &["sys_enter_openat", "sys_exit_openat"]),
            ("raw_syscalls", &["sys_enter", "sys_exit"]),
            ("one", &["done"]),
            ("other", &["done"]),
            // Another event with a well-known name.
            ("vendor", &["sched_waking"]),
        ] {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            kernel.events.insert(group.to_owned(), names);
        }
        kernel
    }

    fn event(name: &str) -> Wanted {
        Wanted::Event(name.to_owned())
    }

    fn call(name: &str) -> Wanted {
        Wanted::SystemCall(name.to_owned())
    }

    fn category(name: &str) -> Wanted {
        Wanted::Category(name.to_owned())
    }

    #[test]
    fn words_of_other_tools_are_understood() {
        use Given::{Bare, WithFlag};
        for (given, typed, wanted) in [
            (Bare, "sched:sched_switch", vec![event("sched/sched_switch")]),
            (Bare, "sched_switch", vec![event("sched/sched_switch")]),
            (Bare, "sched_waking", vec![event("sched/sched_waking")]),
            (Bare, "sched", vec![category("sched")]),
            (WithFlag, "sched", vec![event("sched/*")]),
            (Bare, "sched:*", vec![event("sched/*")]),
            (Bare, "sched:*_?witch", vec![event("sched/sched_switch")]),
            (Bare, "s?hed/sched_switch", vec![event("sched/sched_switch")]),
            (
                Bare,
                "syscalls:sys_enter_openat",
                vec![event("syscalls/sys_enter_openat")],
            ),
            (
                WithFlag,
                "t:raw_syscalls:sys_enter",
                vec![event("raw_syscalls/sys_enter")],
            ),
            (
                WithFlag,
                "sched:sched_switch,irq:softirq_*",
                vec![
                    event("sched/sched_switch"),
                    event("irq/softirq_entry"),
                    event("irq/softirq_exit"),
                ],
            ),
            (
                WithFlag,
                "trace=openat,read",
                vec![call("sys_openat"), call("sys_read")],
            ),
            (WithFlag, "openat", vec![call("sys_openat")]),
            (WithFlag, "gfx", vec![category("gfx")]),
            (Bare, "vendor", vec![event("vendor/*")]),
        ] {
            assert_eq!(
                understand([(given, typed)], Some(&kernel())),
                Ok(wanted),
                "{typed}"
            );
        }
    }

    #[test]
    fn a_word_without_a_meaning_is_reported_with_the_nearest() {
        for (typed, said) in [
            ("sched_swich", "did you mean the event sched/sched_switch?"),
            ("shced", "did you mean the category sched?"),
            ("recrod", "did you mean `ferretto record`?"),
            ("openat", "did you mean the system call, -e trace=openat?"),
            ("gibberish", "`ferretto list events` lists events"),
            ("ls", "did you mean `ferretto -- ls`"),
            ("done", "write one of one/done, other/done"),
            ("sched/sched_swich", "did you mean sched/sched_switch?"),
            ("*/*", "name groups"),
            ("sched:x*", "matches no event"),
            ("trace=opneat", "did you mean trace=openat?"),
        ] {
            let error = understand([(Given::Bare, typed)], Some(&kernel())).unwrap_err();
            assert!(error.to_string().contains(said), "{typed}: {error}");
        }
    }

    #[test]
    fn events_that_this_kernel_lacks_are_kept_beside_others() {
        let both = [
            (Given::Bare, "sched/sched_switch"),
            (Given::Bare, "power/gpu_frequency"),
        ];
        let wanted = vec![event("sched/sched_switch"), event("power/gpu_frequency")];
        assert_eq!(understand(both, Some(&kernel())), Ok(wanted));
    }

    #[test]
    fn without_a_look_at_the_kernel_the_probes_find_the_group() {
        for (typed, wanted) in [
            ("sched_switch", event("sched_switch")),
            ("sched:sched_switch", event("sched/sched_switch")),
            ("sched", category("sched")),
        ] {
            assert_eq!(
                understand([(Given::Bare, typed)], None),
                Ok(vec![wanted]),
                "{typed}"
            );
        }
        let error = understand([(Given::Bare, "shced")], None).unwrap_err();
        assert!(error.to_string().contains("the category sched"), "{error}");
    }
}
