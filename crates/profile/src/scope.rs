//! Which processes an instance samples.
//!
//! `Profiler` asks once for each process that it meets, and again after the process has started another program. Heap profiles use [`cmdline_of`] and
//! [`matches_cmdline`]. The rules and their order are upstream's: exclusions win, then what is named, then shards, then additional command lines.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;

use crate::config::Scope;
use crate::glob;

/// Bytes of a command line that are looked at, as upstream.
const LONGEST_CMDLINE: usize = 511;

/// Applies a [`Scope`].
#[derive(Debug)]
pub(crate) struct ProcessFilter {
    scope: Scope,
    /// Command lines that were taken because there was room for more.
    additional: HashSet<Vec<u8>>,
}

impl ProcessFilter {
    /// For the processes that `scope` describes.
    pub(crate) fn new(scope: Scope) -> ProcessFilter {
        ProcessFilter {
            scope,
            additional: HashSet::new(),
        }
    }

    /// Whether any command line makes a difference.
    pub(crate) fn needs_cmdlines(&self) -> bool {
        !self.scope.cmdlines.is_empty()
            || !self.scope.excluded_cmdlines.is_empty()
            || self.scope.additional_cmdlines > 0
    }

    /// Whether a process is not sampled, whatever program it runs.
    pub(crate) fn rules_out(&self, pid: i32) -> bool {
        self.scope.pids_alone().is_some_and(|pids| !pids.contains(&pid))
    }

    /// Whether a process is sampled. `cmdline` is what `/proc/PID/cmdline` has, if it can be read; threads of the kernel have none.
    pub(crate) fn accepts(&mut self, pid: i32, cmdline: Option<&[u8]>) -> bool {
        let Scope {
            pids,
            cmdlines,
            excluded_pids,
            excluded_cmdlines,
            additional_cmdlines,
            shard,
        } = &self.scope;
        let matches = |patterns: &[String]| {
            let matches = |cmdline| patterns.iter().any(|pattern| matches_cmdline(pattern, cmdline));
            cmdline.is_some_and(matches)
        };
        if matches(excluded_cmdlines) || excluded_pids.contains(&pid) {
            return false;
        }
        if matches(cmdlines) || pids.contains(&pid) {
            return true;
        }
        if cmdlines.is_empty() && pids.is_empty() && *additional_cmdlines == 0 && shard.is_none() {
            return true;
        }
        if let Some(shard) = shard {
            return pid.cast_unsigned() % shard.count == shard.chosen;
        }
        let Some(cmdline) = cmdline else { return false };
        if self.additional.contains(cmdline) {
            return true;
        }
        let has_room = self.additional.len() < *additional_cmdlines as usize;
        if has_room {
            self.additional.insert(cmdline.to_vec());
        }
        has_room
    }
}

/// The beginning of a process's command line; `None` if it cannot be read. It is in the process's memory, which may be a file whose server never answers.
pub fn cmdline_of(pid: i32) -> Option<Vec<u8>> {
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    let mut cmdline = Vec::new();
    file.take(LONGEST_CMDLINE as u64).read_to_end(&mut cmdline).ok()?;
    Some(cmdline)
}

/// Whether a pattern matches a command line: the program's path if the pattern begins with a slash, else the program's name.
pub fn matches_cmdline(pattern: &str, cmdline: &[u8]) -> bool {
    let program = cmdline.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = program.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let text = if pattern.starts_with('/') { program } else { name };
    glob::matches(pattern, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(scope: Scope) -> ProcessFilter {
        ProcessFilter::new(scope)
    }

    fn named(patterns: &[&str]) -> Scope {
        Scope {
            cmdlines: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
            ..Scope::default()
        }
    }

    #[test]
    fn an_empty_scope_takes_everybody() {
        let mut everybody = filter(Scope::default());
        assert!(everybody.accepts(7, Some(b"/bin/sh\0-c\0true\0")));
        assert!(everybody.accepts(7, None));
    }

    #[test]
    fn command_lines_are_needed_only_where_they_make_a_difference() {
        assert!(!filter(Scope::default()).needs_cmdlines());
        let by_pid = Scope {
            pids: [8].into(),
            excluded_pids: [7].into(),
            shard: Some(crate::config::Shard { count: 4, chosen: 3 }),
            ..Scope::default()
        };
        assert!(!filter(by_pid).needs_cmdlines());
        assert!(filter(named(&["sh"])).needs_cmdlines());
        let excluded = Scope {
            excluded_cmdlines: vec!["sh".to_owned()],
            ..Scope::default()
        };
        assert!(filter(excluded).needs_cmdlines());
        let additional = Scope {
            additional_cmdlines: 1,
            ..Scope::default()
        };
        assert!(filter(additional).needs_cmdlines());
    }

    #[test]
    fn a_pattern_matches_the_name_of_the_program_or_with_a_slash_its_path() {
        let cases: [(&str, &[u8], bool); 9] = [
            ("echo", b"/bin/echo\0hello\0", true),
            ("echo", b"echo\0/bin/cat\0", true),
            ("/bin/e*", b"/bin/echo\0", true),
            ("/bin/e*", b"/sbin/echo\0", false),
            ("bin/echo", b"/bin/echo\0", false),
            ("ec?o", b"/bin/echo", true),
            ("[a-e]cho", b"/bin/echo\0", true),
            ("echo", b"", false),
            ("*", b"", true),
        ];
        for (pattern, cmdline, expected) in cases {
            assert_eq!(
                filter(named(&[pattern])).accepts(7, Some(cmdline)),
                expected,
                "{pattern} {}",
                String::from_utf8_lossy(cmdline)
            );
        }
    }

    #[test]
    fn exclusions_win_over_what_is_named() {
        let mut scope = named(&["*"]);
        scope.pids.insert(7);
        scope.excluded_pids.insert(7);
        scope.excluded_cmdlines.push("cat".to_owned());
        let mut filter = filter(scope);
        assert!(!filter.accepts(7, Some(b"echo\0")));
        assert!(!filter.accepts(8, Some(b"/bin/cat\0")));
        assert!(filter.accepts(8, Some(b"echo\0")));
        assert!(!filter.accepts(9, None));
    }

    #[test]
    fn only_ids_alone_rule_out_others() {
        let by_pid = Scope {
            pids: [7].into(),
            ..Scope::default()
        };
        let ruled_out = |scope: &Scope| [7, 8].map(|pid| filter(scope.clone()).rules_out(pid));
        assert_eq!(ruled_out(&by_pid), [false, true]);
        let or_by_name = Scope {
            cmdlines: vec!["sh".to_owned()],
            ..by_pid.clone()
        };
        let or_more = Scope {
            additional_cmdlines: 1,
            ..by_pid.clone()
        };
        let or_shard = Scope {
            shard: Some(crate::config::Shard { count: 4, chosen: 3 }),
            ..by_pid
        };
        for scope in [or_by_name, or_more, or_shard, Scope::default()] {
            assert_eq!(ruled_out(&scope), [false, false], "{scope:?}");
        }
    }

    #[test]
    fn a_shard_takes_the_processes_with_its_rest() {
        let scope = Scope {
            shard: Some(crate::config::Shard { count: 4, chosen: 3 }),
            pids: [8].into(),
            ..Scope::default()
        };
        let mut filter = filter(scope);
        let accepted: Vec<i32> = (1..=12).filter(|&pid| filter.accepts(pid, Some(b"sh"))).collect();
        assert_eq!(accepted, [3, 7, 8, 11]);
    }

    #[test]
    fn additional_command_lines_are_taken_as_they_come() {
        let scope = Scope {
            additional_cmdlines: 2,
            pids: [1].into(),
            ..Scope::default()
        };
        let mut filter = filter(scope);
        let mut accepts = |pid, cmdline: &[u8]| filter.accepts(pid, Some(cmdline));
        assert!(accepts(5, b"a\0"));
        assert!(accepts(6, b"b\0"));
        assert!(!accepts(7, b"c\0"));
        assert!(accepts(8, b"a\0"));
        assert!(accepts(1, b"d\0"));
    }
}
