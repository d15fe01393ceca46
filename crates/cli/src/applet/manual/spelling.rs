//! Recognises a misspelled subcommand in the first argument.
//!
//! [`applet`](crate::applet) calls it. The words of a recording are events (`group/name`) and atrace categories, and nearly any word could be a
//! category. So a word counts as a mistake only if it resembles a subcommand or names a file.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;

use crate::config::categories::is_category;
use crate::figures::Word;
use crate::usage::nearest_subcommand;

/// Suggests the intended command for a first argument that is no subcommand; `None` for flags, events and everything else that begins a recording.
pub(crate) fn misspelling(word: &OsStr) -> Option<String> {
    let text = word.to_str()?;
    if text.starts_with('-') || text.is_empty() || is_category(text) {
        return None;
    }
    if Path::new(word).is_file() {
        let word = Word(text);
        return Some(match begins_as_text(Path::new(text)) {
            true => format!(
                "{text} is a file, and no event to record. To record by a config: `ferretto --txt -c {word} -o trace.pftrace`"
            ),
            false => format!(
                "{text} is a file, and no event to record. To look at a trace: `ferretto open {word}` or `ferretto info {word}`"
            ),
        });
    }
    let meant = nearest_subcommand(text)?;
    Some(format!(
        "there is no subcommand {text:?}; did you mean `ferretto {meant}`? `ferretto help` lists them all, and events to record \
         are named GROUP/NAME, like sched/sched_switch"
    ))
}

/// Whether a file begins as a text config does. A trace has a control character among its first bytes.
fn begins_as_text(file: &Path) -> bool {
    let mut start = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(512).read_to_end(&mut start));
    read.is_ok_and(|count| count > 0)
        && start
            .iter()
            .all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_were_swapped_left_out_or_added_are_seen_through() {
        for (typed, meant) in [
            ("trcaed", "traced"),
            ("traced_probe", "traced_probes"),
            ("triger_perfetto", "trigger_perfetto"),
            ("perfeto", "perfetto"),
            ("recrod", "record"),
            ("recordd", "record"),
            ("hlep", "help"),
            ("completion", "completions"),
        ] {
            assert_eq!(nearest_subcommand(typed).as_deref(), Some(meant), "{typed}");
        }
    }

    #[test]
    fn words_that_begin_a_recording_are_no_misspellings() {
        for word in ["-t", "--out", "sched/sched_switch", "sched/*", "", "-"] {
            assert_eq!(misspelling(word.as_ref()), None, "{word}");
        }
        for category in crate::config::categories::CATEGORIES {
            assert_eq!(misspelling(category.as_ref()), None, "{category}");
        }
        assert_eq!(
            misspelling("gibberish".as_ref()),
            None,
            "a category for all we know"
        );
        assert!(misspelling("hell".as_ref()).is_some_and(|said| said.contains("ferretto help")));
    }

    #[test]
    fn a_file_is_recognised_as_config_or_trace() {
        let folder = tempfile::tempdir().unwrap();
        let told = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            misspelling(path.as_os_str()).unwrap()
        };
        let config = told("config", b"buffers {\n\tsize_kb: 4 # gr\xc3\xb6\xc3\x9fe\n}");
        assert!(config.contains("ferretto --txt -c"), "{config}");
        let trace = told("a trace", b"\n\x04\x08\x01\x10\x02");
        assert!(trace.contains("ferretto open '"), "{trace}");
    }
}
