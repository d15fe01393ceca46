//! Flags that other profilers have and `ferretto profile` has not: what to do instead.
//!
//! [`run`](super::run) asks for it when the parser does not know a flag. The flags come from the manuals of `perf record`, `samply record`,
//! `py-spy record` and `cargo flamegraph`.

use crate::profiling::Advice;

/// Flags, and the advice about them as the end of a sentence.
pub(super) const ADVICE: [Advice; 31] = [
    (
        &["-b", "--branch-any", "-j", "--branch-filter"],
        "taken branches are not recorded; `perf record -b` does that",
    ),
    (
        &["--all-user", "--user-callchains"],
        "name the event with :u, as in -e cpu-clock:u",
    ),
    (
        &["--all-kernel", "--kernel-callchains"],
        "name the event with :k, as in -e cpu-clock:k",
    ),
    (
        &["-u", "--uid"],
        "choose the processes of a user with -p \"$(pgrep -d, -u USER)\"",
    ),
    (
        &["-G", "--cgroup"],
        "choose the processes of a cgroup with -p \"$(paste -sd, /sys/fs/cgroup/NAME/cgroup.procs)\"",
    ),
    (
        &["-i", "--no-inherit", "--per-thread"],
        "choose processes with -p, or threads with -t",
    ),
    (&["--idle"], "sample where threads wait with --off-cpu"),
    (
        &["-D", "--delay"],
        "start the program first, and sample it with -p PID when it is time",
    ),
    (
        &["--filter"],
        "a tracepoint in a config has a filter: `ferretto -c CONFIG`, with the data source linux.perf",
    ),
    (
        &["-m", "--mmap-pages"],
        "buffers have the size that the frequency needs; ring_buffer_pages in a config for `ferretto -c CONFIG` changes it",
    ),
    (
        &["--max-size"],
        "max_file_size_bytes in a config for `ferretto -c CONFIG` limits the file",
    ),
    (
        &["-S", "--snapshot", "--overwrite", "--switch-output"],
        "a config without write_into_file records into a ring buffer: `ferretto -c CONFIG`, with the data source linux.perf",
    ),
    (
        &["--control"],
        "Ctrl-C or SIGINT ends the recording, and so does --duration",
    ),
    (
        &["-z", "--compression-level"],
        "compress the file afterwards: `ferretto open` and `ferretto convert` read gzip, zstd and xz",
    ),
    (
        &[
            "-I",
            "--intr-regs",
            "--user-regs",
            "-W",
            "--weight",
            "--phys-data",
            "--data",
            "-R",
            "--raw-samples",
        ],
        "samples have a time, a thread, a CPU and a call stack; `perf record` can record more",
    ),
    (
        &["-P", "--period", "-T", "--timestamp", "--sample-cpu"],
        "leave it out: each sample has its time, thread and CPU",
    ),
    (
        &["-k", "--clockid"],
        "leave it out: the trace says how its clocks relate",
    ),
    (&["-r"], "-F or --rate says how often to sample"),
    (
        &["--nonblocking", "--proc-map-timeout"],
        "leave it out: the profiler stops no program while it reads",
    ),
    (
        &[
            "-B",
            "--no-buildid",
            "-N",
            "--no-buildid-cache",
            "--buildid-all",
            "--buildid-mmap",
        ],
        "leave it out: names of functions are written into the trace at once",
    ),
    (
        &[
            "-v",
            "--verbose",
            "--stdio",
            "--no-bpf-event",
            "--exclude-perf",
            "--tail-synthesize",
        ],
        "leave it out",
    ),
    (
        &["-n", "--no-open", "--save-only"],
        "leave it out: nothing is opened by itself",
    ),
    (
        &["--no-samples"],
        "a profile consists of samples; to record without them, use `ferretto -c CONFIG`",
    ),
    (
        &["-s", "--stat"],
        "counts of each thread are not recorded; `perf record -s` does that",
    ),
    (
        &["--realtime"],
        "leave it out: the profiler cannot be given a priority",
    ),
    (
        &["--open"],
        "`ferretto open FILE` shows a trace, and browsers show a flame graph",
    ),
    (
        &["--subprocesses", "--native", "--threads"],
        "leave it out: all threads of a command and of the processes that it starts are sampled, with native frames",
    ),
    (
        &[
            "--unstable-presymbolicate",
            "--profile-name",
            "--iteration-count",
            "--reuse-threads",
        ],
        "leave it out, and run the command as often as is needed",
    ),
    (
        &["-f"],
        "--format chooses the format, and so does the ending of the file for -o",
    ),
    (&["--root"], "run all of it with sudo: `sudo ferretto profile`"),
    (
        &[
            "--reverse",
            "--inverted",
            "--flamechart",
            "--title",
            "--subtitle",
            "--palette",
            "--colors",
            "--min-width",
            "--image-width",
            "--notes",
            "--no-inline",
        ],
        "draw it with another program: `ferretto convert --to folded TRACE | inferno-flamegraph`",
    ),
];

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::args::{Args, NAME};
    use super::*;
    use crate::profiling::{advice_about, check};

    #[test]
    fn flags_of_other_profilers_are_answered_with_what_to_do_instead() {
        for (line, said) in [
            ("profile -b -- make", "`perf record -b`"),
            ("profile --all-user", "-e cpu-clock:u"),
            ("profile --uid=1000", "there is no --uid here: choose"),
            ("profile -m 128", "ring_buffer_pages"),
            ("profile -r 99", "-F or --rate"),
            ("profile --save-only -- make", "leave it out"),
        ] {
            let mistake = Args::try_parse_from(line.split_whitespace()).unwrap_err();
            let advice = advice_about(NAME, &mistake, &ADVICE).unwrap_or_default();
            assert!(advice.contains(said), "{line}: {advice} {mistake}");
        }
        let mistake = Args::try_parse_from(["profile", "--frequency", "99"]).unwrap_err();
        assert_eq!(advice_about(NAME, &mistake, &ADVICE), None);
    }

    #[test]
    fn no_advice_is_about_a_flag_that_exists_or_given_twice() {
        check(&ADVICE, &Args::command());
    }
}
