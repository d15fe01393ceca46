//! `ferretto heap`, from nothing to a picture. It starts its own service, and profiles programs whose allocations are known.
//!
//! This package depends on the package of the preloaded library for tests, so cargo builds the library and puts it beside the tests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::support::c_program::compile;
use crate::support::heap_client::library;
use crate::support::socket_folder;
use crate::support::trace::{TraceProcessor, numbers};
use crate::support::tracefs::Tracefs;

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

/// `leaks` allocates 2 MB that stay, `churns` allocates 10 MB and frees them, and `peaks` allocates 4 MB that only the maximum includes. With an
/// argument, the program kills itself at its end.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#define KEEP(p) __asm__ volatile("" :: "r"(p) : "memory")
__attribute__((noinline)) void leaks(void) { char *p = malloc(100); KEEP(p); memset(p, 1, 100); }
__attribute__((noinline)) void churns(void) { char *p = malloc(500); KEEP(p); memset(p, 1, 500); free(p); KEEP(p); }
__attribute__((noinline)) char *peaks(void) { char *p = malloc(4000); KEEP(p); memset(p, 1, 4000); return p; }
char *held[1000];
int main(int argc, char **argv) {
    for (int i = 0; i < 20000; i++) { leaks(); churns(); }
    for (int i = 0; i < 1000; i++) held[i] = peaks();
    for (int i = 0; i < 1000; i++) free(held[i]);
    if (argc > 1) raise(SIGKILL);
    return 7;
}
"#;

/// The longest time that a program waits for the profiler, in microseconds, in tests in which every sample counts.
const PATIENCE: &str = "120000000";

struct Workshop(
    tempfile::TempDir,
    #[allow(
        dead_code,
        reason = "it is held, because profiles have the kernel's events as well"
    )]
    Option<Tracefs>,
);

impl Workshop {
    /// Prints that the test is skipped if there is no compiler.
    fn open() -> Option<Workshop> {
        let workshop = Workshop(socket_folder("heap-"), Tracefs::share());
        let flags = ["-g", "-O1", "-fno-optimize-sibling-calls"];
        compile(workshop.0.path(), "leaky", PROGRAM, &flags)?;
        Some(workshop)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `ferretto`; returns its exit code and its messages on stderr.
    fn ferretto(&self, words: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = Command::new(FERRETTO)
            .args(words)
            .current_dir(self.0.path())
            .env("TMPDIR", self.0.path())
            .env("FERRETTO_HEAP_LIBRARY", library())
            .env("PERFETTO_CONSUMER_SOCK_NAME", self.path("consumer"))
            .env("PERFETTO_PRODUCER_SOCK_NAME", self.path("producer"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    }

    /// Returns the bytes under each of the program's functions in a profile of folded stacks.
    fn bytes(&self, file: &str) -> BTreeMap<String, f64> {
        let folded = std::fs::read_to_string(self.path(file)).unwrap();
        let mut bytes = BTreeMap::new();
        for line in folded.lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            for function in ["leaks", "churns", "peaks"] {
                if stack.split(';').any(|frame| frame == function) {
                    *bytes.entry(function.to_owned()).or_default() += count.parse::<f64>().unwrap();
                }
            }
        }
        bytes
    }
}

/// Whether `expected` bytes, with one sample in 4096, can give this measurement: the difference is at most six standard deviations of the number of samples.
fn could_be(bytes: Option<&f64>, expected: f64) -> bool {
    let deviation = (expected * 4096.0).sqrt();
    bytes.is_some_and(|bytes| (bytes - expected).abs() < 6.0 * deviation)
}

#[test]
fn a_command_is_profiled_and_its_exit_status_is_passed_on() {
    let Some(workshop) = Workshop::open() else { return };
    let (code, said) = workshop.ferretto(&["heap", "-o", "trace.pftrace", "--", "./leaky"]);
    assert_eq!(code, Some(7), "{said}");
    let live = said.split("live at the end").nth(1).expect(&said);
    let first = live.lines().nth(2).unwrap();
    assert!(first.ends_with("leaks"), "{said}");
    assert!(said.contains("ferretto open trace.pftrace"), "{said}");
    for (of, function, expected) in [
        ("live", "leaks", 2e6),
        ("allocated", "leaks", 2e6),
        ("allocated", "churns", 10e6),
        ("allocated", "peaks", 4e6),
    ] {
        let words = [
            "convert",
            "--to",
            "folded",
            "--of",
            of,
            "-o",
            "stacks",
            "trace.pftrace",
        ];
        let (code, said) = workshop.ferretto(&words);
        assert_eq!(code, Some(0), "{said}");
        let bytes = workshop.bytes("stacks");
        assert!(could_be(bytes.get(function), expected), "{of}: {bytes:?}");
    }
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let live = "select sum(size), sum(size) > 1000000 from heap_profile_allocation";
    let named =
        "select count(*) from stack_profile_symbol where name = 'leaks' and source_file like '%leaky.c'";
    let [live, named] = processor.query(&workshop.path("trace.pftrace"), [live, named]);
    let [_, is_plausible] = numbers(&live);
    let [named] = numbers(&named);
    assert!(is_plausible == 1 && named > 0, "{live:?}");
}

#[test]
fn the_maximum_has_what_was_held_then() {
    let Some(workshop) = Workshop::open() else { return };
    let (code, said) = workshop.ferretto(&["heap", "--at-max", "-o", "max.folded", "--", "./leaky"]);
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("live at the maximum"), "{said}");
    let bytes = workshop.bytes("max.folded");
    assert!(could_be(bytes.get("leaks"), 2e6), "{bytes:?}");
    assert!(could_be(bytes.get("peaks"), 4e6), "{bytes:?}");
}

#[test]
fn every_process_of_a_shell_is_profiled() {
    let Some(workshop) = Workshop::open() else { return };
    let command = [
        "heap",
        "-o",
        "all.folded",
        "--",
        "sh",
        "-c",
        "./leaky; ./leaky & wait",
    ];
    let (code, said) = workshop.ferretto(&command);
    assert_eq!(code, Some(0), "{said}");
    let bytes = workshop.bytes("all.folded");
    assert!(could_be(bytes.get("leaks"), 4e6), "{bytes:?}");
}

#[test]
fn a_process_that_goes_on_after_the_command_is_named() {
    let Some(workshop) = Workshop::open() else { return };
    let fifo = workshop.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let command = [
        "sh",
        "-c",
        "(exec >/dev/null 2>&1; read line <fifo) & exec ./leaky",
    ];
    let words = [&["heap", "-o", "trace.pftrace", "--"][..], &command].concat();
    let (code, said) = workshop.ferretto(&words);
    // The process ends when its pipe does.
    drop(std::fs::File::options().write(true).open(&fifo).unwrap());
    assert_eq!(code, Some(7), "{said}");
    let (_, survivors) = said
        .split_once("still running, and not recorded any more")
        .expect(&said);
    assert!(
        survivors.contains("(sh)") && !survivors.contains("(leaky)"),
        "{said}"
    );
    let (_, said) = workshop.ferretto(&["heap", "-o", "trace.pftrace", "--", "./leaky"]);
    assert!(!said.contains("still running"), "{said}");
}

#[test]
fn a_program_without_a_free_descriptor_is_not_called_complete() {
    let Some(workshop) = Workshop::open() else { return };
    let command = ["prlimit", "--nofile=4", "./leaky"];
    let words = [&["heap", "-i", "100m", "-o", "trace.pftrace", "--"][..], &command].concat();
    let (code, said) = workshop.ferretto(&words);
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("`ulimit -n`"), "{said}");
}

#[test]
fn a_program_that_is_killed_leaves_its_profile() {
    let Some(workshop) = Workshop::open() else { return };
    let (code, said) = workshop.ferretto(&[
        "heap",
        "--shmem-size",
        "64k",
        "-o",
        "killed.folded",
        "--",
        "./leaky",
        "now",
    ]);
    assert_eq!(code, Some(128 + 9), "{said}");
    let bytes = workshop.bytes("killed.folded");
    // Samples that the profiler had not yet unwound may be missing: at most as many as the shared memory holds.
    assert!(
        bytes.get("leaks").is_some_and(|bytes| *bytes > 1e6),
        "{bytes:?} {said}"
    );
}

#[test]
fn every_allocation_is_sampled_at_an_interval_of_a_byte() {
    let Some(workshop) = Workshop::open() else { return };
    let (code, said) = workshop.ferretto(&[
        "heap",
        "-i",
        "1",
        "--block-client-timeout",
        PATIENCE,
        "-o",
        "exact.folded",
        "--",
        "./leaky",
    ]);
    assert_eq!(code, Some(7), "{said}");
    assert_eq!(workshop.bytes("exact.folded").get("leaks"), Some(&2e6), "{said}");
}

#[test]
fn a_script_in_python_is_profiled() {
    let Some(workshop) = Workshop::open() else { return };
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let script = "import sys; kept = [bytes(100_000) for _ in range(100)]; sys.exit(3)";
    let (code, said) = workshop.ferretto(&["heap", "-o", "py.pb.gz", "--", "python3", "-c", script]);
    assert_eq!(code, Some(3), "{said}");
    // The program of that name may be a script that starts other programs.
    assert!(said.contains("\nallocated"), "{said}");
}

#[test]
fn what_cannot_be_profiled_is_told_before_it_runs() {
    let Some(workshop) = Workshop::open() else { return };
    let flags = ["-static"];
    let source = "int main(void) { return 0; }";
    let library = Command::new("cc").arg("-print-file-name=libc.a").output();
    if !library.is_ok_and(|printed| printed.stdout.starts_with(b"/")) {
        println!("skipped: there is no static C library");
    } else if compile(workshop.0.path(), "static", source, &flags).is_some() {
        let (code, said) = workshop.ferretto(&["heap", "-o", "none.pftrace", "--", "./static"]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("linked statically"), "{said}");
        assert!(said.contains("no process was profiled"), "{said}");
    }
    let own = std::process::id().to_string();
    let (code, said) = workshop.ferretto(&["heap", "-p", &own]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("does not carry the client"), "{said}");
}
