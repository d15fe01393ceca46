//! Flags that other heap profilers have and `ferretto heap` has not: what to do instead.
//!
//! [`run`](super::run) asks for it when the parser does not know a flag. The flags come from upstream's script `heap_profile` and from the manuals of
//! `heaptrack`, `valgrind --tool=massif`, `bytehound`, jemalloc's `jeprof` and gperftools' `pprof`.

use crate::profiling::Advice;

pub(super) const ADVICE: [Advice; 16] = [
    (
        &["--idle-allocations"],
        "which memory is used is not known, only which is live; leave it out",
    ),
    (
        &["--disable-fork-teardown"],
        "leave it out: each forked child is profiled as a process of its own",
    ),
    (
        &[
            "--no-versions",
            "--no-annotations",
            "--no-android-tree-symbolization",
            "--disable-selinux",
            "--simpleperf",
        ],
        "it is about Android; leave it out, or use upstream's `heap_profile android` for a phone",
    ),
    (
        &[
            "--traceconv-binary",
            "--trace-processor-binary",
            "--tracebox-binary",
        ],
        "leave it out: no other program is needed",
    ),
    (
        &[
            "--tool",
            "--detailed-freq",
            "--max-snapshots",
            "--peak-inaccuracy",
            "--threshold",
        ],
        "write `ferretto heap -- COMMAND`; --at-max shows the memory at its maximum, and --dump-every how it grew",
    ),
    (
        &["--massif-out-file", "--record-only", "--raw", "-r"],
        "-o names the file; its ending says what is written: .pftrace, .pb.gz, .folded or .svg",
    ),
    (
        &["--pages-as-heap"],
        "only memory of malloc and of heaps that programs tell of is profiled; `ferretto -t 10s --help` shows how to record counters of memory",
    ),
    (
        &["--stacks", "--depth", "--stack-depth"],
        "leave it out: call stacks are recorded whole, up to 64 KiB of stack",
    ),
    (
        &["--alloc-fn", "--ignore-fn", "--use-inject"],
        "leave it out: functions of allocators are passed over in the list",
    ),
    (&["--time-unit"], "leave it out: dumps have the time of the clock"),
    (
        &["-A", "--analyze", "--print-leaks", "--show_leaks", "--leak-check"],
        "leave it out: what is live at the end is listed first",
    ),
    (
        &[
            "--inuse_space",
            "--inuse_objects",
            "--alloc_space",
            "--alloc_objects",
        ],
        "record with -o profile.pb.gz, and choose the number with `pprof -sample_index=…`; `ferretto convert --of` chooses too",
    ),
    (
        &["--base", "--diff_base", "--diff"],
        "record two profiles with -o A.pb.gz and -o B.pb.gz, and compare them with `pprof -base`",
    ),
    (
        &["-g", "--call-graph"],
        "leave it out: each sample has its call stack",
    ),
    (
        &["-F", "--freq", "--rate", "-e", "--event"],
        "allocations are sampled by bytes: -i says how many are between two samples",
    ),
    (&["-t", "--time"], "-d says how long to record"),
];

/// Returns the advice about words before the command that are a tool's own.
pub(super) fn advice_about_words(words: &[std::ffi::OsString]) -> Option<&'static str> {
    let first = words.first()?.to_str()?;
    let before_command = words.iter().any(|word| word == "--");
    match first {
        "host" if before_command => {
            Some("leave out `host`: `ferretto heap -- COMMAND` is upstream's `heap_profile host -- COMMAND`")
        }
        "android" => Some(
            "programs of this machine are profiled; for those of a phone, use upstream's `heap_profile android`",
        ),
        "heaptrack" | "valgrind" | "bytehound" => {
            Some("leave the other profiler out: name the program itself, as in `ferretto heap -- ./server`")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::args::{Args, NAME};
    use super::*;
    use crate::profiling::{advice_about, check};

    #[test]
    fn flags_of_other_profilers_are_answered_with_what_to_do_instead() {
        for (line, said) in [
            ("heap --idle-allocations -- make", "leave it out"),
            ("heap --tool=massif ./a.out", "--at-max"),
            ("heap --record-only ./a.out", "-o names the file"),
            ("heap --inuse_space", "sample_index"),
            ("heap -F 99 -- make", "-i says how many"),
            ("heap --disable-selinux -n app", "heap_profile android"),
        ] {
            let mistake = Args::try_parse_from(line.split_whitespace()).unwrap_err();
            let advice = advice_about(NAME, &mistake, &ADVICE).unwrap_or_default();
            assert!(advice.contains(said), "{line}: {advice} {mistake}");
        }
    }

    #[test]
    fn no_advice_is_about_a_flag_that_exists_or_given_twice() {
        check(&ADVICE, &Args::command());
    }

    #[test]
    fn words_of_other_tools_before_the_command_are_answered() {
        let words = |line: &str| line.split(' ').map(std::ffi::OsString::from).collect::<Vec<_>>();
        assert!(advice_about_words(&words("host -- ./server")).is_some());
        assert!(advice_about_words(&words("android -n app")).is_some());
        assert!(advice_about_words(&words("valgrind --tool=massif ./server")).is_some());
        // There is a program of that name.
        assert!(advice_about_words(&words("host example.org")).is_none());
        assert!(advice_about_words(&words("./server")).is_none());
    }
}
