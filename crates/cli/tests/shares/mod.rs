//! The totals of `ferretto profile` beside those of `perf report`, function by function, and beside what programs in C, C++, Rust, Go, JavaScript and
//! Python do by construction.
//!
//! Both profilers sample the same run of a program. A share that is measured with so many samples has the standard deviation of a binomial distribution.
//! Shares agree if they differ by less than five of these. How long anything takes does not matter.
//!
//! `FERRETTO_SHARES_SECONDS` is the processor time of each program, 3 by default, and `FERRETTO_SHARES_FREQUENCY` that of our samples, 499 by default.
//! More samples find smaller differences.

mod counts;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use counts::{Counts, Inlined, Reading};

use crate::perf::may_profile;
use crate::support::tracefs::Tracefs;
use crate::support::{PATIENCE, Running, socket_folder};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

/// Functions with less than this share in both profiles are not compared one by one: they run when a program begins, while the machine is busy with it.
const LEAST: f64 = 0.01;

/// A folder with a program and its profiles.
struct Workshop(
    tempfile::TempDir,
    #[allow(
        dead_code,
        reason = "it is held, because profiles have the kernel's events as well"
    )]
    Option<Tracefs>,
);

impl Workshop {
    /// If this user may not profile, prints that the test is skipped.
    fn open() -> Option<Workshop> {
        crate::support::signals::as_usual();
        may_profile().then(|| Workshop(socket_folder("shares-"), Tracefs::share()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles a program from its source; returns its path. If there is no compiler, prints that the test is skipped.
    fn compile(&self, compiler: &[&str], source: &str, name: &str) -> Option<PathBuf> {
        let program = self.path(name);
        let (compiler, flags) = compiler.split_first().unwrap();
        let output = Command::new(compiler)
            .args(flags)
            .arg("-o")
            .args([&program, &source_of(source)])
            // Of Go.
            .env("GOCACHE", self.path("cache"))
            .env("GO111MODULE", "off")
            .output();
        let Ok(output) = output else {
            println!("skipped: there is no {compiler}");
            return None;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        Some(program)
    }

    /// Starts a program, which waits for a line on stdin, and profiles it with both profilers from this line to its end. If there is no `perf`, prints
    /// that the test is skipped.
    fn profile(&self, command: &[&str]) -> Option<Both> {
        if Command::new("perf").arg("--version").output().is_err() {
            println!("skipped: there is no perf");
            return None;
        }
        let (line, end) = (self.pipe("line"), self.pipe("end"));
        let until_its_end = File::options().write(true).open(self.path("end")).unwrap();
        let mut program = Command::new(command[0])
            .args(&command[1..])
            // Some programs leave files where they are.
            .current_dir(self.0.path())
            .stdin(line)
            .stdout(until_its_end)
            .spawn()
            .map(Running)
            .unwrap();
        drop(end);
        let pid = program.pid();
        // The shell writes the line once both profilers sample.
        let profile = format!(
            "profile -F {} -p {pid} -o both.pftrace -- perf record -q -e cpu-clock -F 997 -p {pid} -o perf.data -- sh -c",
            frequency()
        );
        // The script ignores SIGTERM, because `perf` sends it when the program has ended, and would then report that the script failed.
        let script = "trap '' TERM; exec 3<end; echo >line; cat <&3";
        let words: Vec<&str> = profile.split(' ').chain([script]).collect();
        let said = self.run(FERRETTO, &words);
        assert!(program.wait(PATIENCE).unwrap().success());
        let report =
            "report -i perf.data --stdio --no-children -g none --no-demangle -F sample,dso,symbol -t |";
        let report = self.run("perf", &report.split(' ').collect::<Vec<_>>());
        // Just-in-time compilers leave their lists of functions, which `perf report` has read by now.
        let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
        self.run(FERRETTO, &["convert", "both.pftrace", "-o", "both.pb.gz"]);
        let profile = std::fs::read(self.path("both.pb.gz")).unwrap();
        Some(Both {
            ours: Counts::of_pprof(&profile, Inlined::Apart),
            ours_by_symbol: Counts::of_pprof(&profile, Inlined::InItsCaller),
            perfs: Counts::of_report(&report),
            said,
        })
    }

    /// A pipe with a name.
    fn pipe(&self, name: &str) -> File {
        let path = self.path(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        // Opening for both directions does not wait for the other end.
        File::options().read(true).write(true).open(path).unwrap()
    }

    /// Runs a program in the folder; returns its output.
    fn run(&self, program: &str, words: &[&str]) -> String {
        let output = Command::new(program)
            .args(words)
            .current_dir(self.0.path())
            .env("TMPDIR", self.0.path())
            .env("PERFETTO_CONSUMER_SOCK_NAME", self.path("consumer"))
            .env("PERFETTO_PRODUCER_SOCK_NAME", self.path("producer"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned() + &said
    }
}

fn source_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/shares/programs")
        .join(name)
}

fn seconds() -> String {
    std::env::var("FERRETTO_SHARES_SECONDS").unwrap_or_else(|_| "3".to_owned())
}

fn frequency() -> String {
    std::env::var("FERRETTO_SHARES_FREQUENCY").unwrap_or_else(|_| "499".to_owned())
}

/// The results of both profilers for the same run.
struct Both {
    /// With inlined functions.
    ours: Counts,
    /// As `perf report` counts: by symbols.
    ours_by_symbol: Counts,
    perfs: Counts,
    /// The output of `ferretto profile`.
    said: String,
}

impl Both {
    /// Compares the profiles function by function.
    fn assert_agree(&self) {
        let (ours, perfs) = (&self.ours_by_symbol, &self.perfs);
        assert!(ours.samples > 200 && perfs.samples > 1000, "{}", self.said);
        let rows = ours.beside(perfs);
        let differ: Vec<_> = rows
            .iter()
            .filter(|row| row.largest() >= LEAST && !row.agrees())
            .collect();
        assert!(differ.is_empty(), "{differ:#?}\nof {rows:#?}\n{}", self.said);
    }

    /// Asserts the shares of functions, in percent of their sum. A part of its name selects a function.
    fn assert_are(&self, reading: Reading, expected: &[(&str, u32)]) {
        let counts: Vec<u64> = expected
            .iter()
            .map(|(part, _)| self.ours.sum_of(reading, part))
            .collect();
        let all: u64 = counts.iter().sum();
        assert!(all > 200, "{:#?}\n{}", self.ours, self.said);
        for (&count, (part, percent)) in counts.iter().zip(expected) {
            let share = f64::from(*percent) / 100.0;
            let deviation = (share * (1.0 - share) / all as f64).sqrt();
            let measured = count as f64 / all as f64;
            assert!(
                (measured - share).abs() < counts::DEVIATIONS * deviation,
                "{part} has {measured} instead of {share} of {all} samples\n{:#?}\n{}",
                self.ours,
                self.said
            );
        }
    }

    /// Asserts that 99 of 100 call stacks begin with the thread's first function.
    fn assert_whole(&self) {
        let (incomplete, all) = (self.ours.incomplete, self.ours.samples);
        assert!(
            incomplete * 100 <= all,
            "{incomplete} of {all} are not whole: {:#?}\n{}",
            self.ours,
            self.said
        );
    }
}

/// Release builds have no frame pointers.
const RELEASE: [&str; 4] = ["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

#[test]
fn of_c() {
    let Some(workshop) = Workshop::open() else { return };
    let compiler = [&["cc"][..], &RELEASE].concat();
    let Some(program) = workshop.compile(&compiler, "plain.c", "plain") else {
        return;
    };
    let Some(both) = workshop.profile(&[program.to_str().unwrap(), &seconds()]) else {
        return;
    };
    both.assert_agree();
    both.assert_are(
        Reading::Own,
        &[("ten", 10), ("twenty", 20), ("thirty", 30), ("forty", 40)],
    );
    both.assert_whole();
}

#[test]
fn of_cpp() {
    let Some(workshop) = Workshop::open() else { return };
    let compiler = [&["c++", "-std=c++17"][..], &RELEASE].concat();
    let Some(program) = workshop.compile(&compiler, "templates.cpp", "templates") else {
        return;
    };
    let Some(both) = workshop.profile(&[program.to_str().unwrap(), &seconds()]) else {
        return;
    };
    both.assert_agree();
    both.assert_are(
        Reading::Own,
        &[
            ("shares::work<unsigned long, ", 10),
            ("shares::work<unsigned long long, ", 20),
            ("shares::Thirty::run", 30),
            ("shares::inlined", 40),
        ],
    );
    both.assert_whole();
}

#[test]
fn of_rust() {
    let Some(workshop) = Workshop::open() else { return };
    let compiler = "rustc -O --edition 2024 -C debuginfo=1 -C symbol-mangling-version=v0";
    let compiler: Vec<&str> = compiler.split(' ').collect();
    let Some(program) = workshop.compile(&compiler, "generics.rs", "generics") else {
        return;
    };
    let Some(both) = workshop.profile(&[program.to_str().unwrap(), &seconds()]) else {
        return;
    };
    both.assert_agree();
    // Their innermost functions belong to the standard library's number types.
    both.assert_are(
        Reading::Total,
        &[
            ("generics::work::<u32, 10>", 10),
            ("generics::work::<u64, 20>", 20),
            ("generics::Thirty as generics::Worker>::run", 30),
            ("generics::caller", 40),
        ],
    );
    both.assert_whole();
}

#[test]
#[ignore = "takes Go, which has 500 MB"]
fn of_go() {
    let Some(workshop) = Workshop::open() else { return };
    let Some(program) = workshop.compile(&["go", "build"], "goroutines.go", "goroutines") else {
        return;
    };
    let Some(both) = workshop.profile(&[program.to_str().unwrap(), &seconds()]) else {
        return;
    };
    both.assert_agree();
    both.assert_are(
        Reading::Own,
        &[
            ("main.ten", 10),
            ("main.twenty", 20),
            ("main.(*thirty).run", 30),
            ("main.steps", 40),
        ],
    );
    both.assert_whole();
}

/// Just-in-time compilers give all functions frame pointers, also functions that call nothing.
const COMPILER: [&str; 4] = [
    "cc",
    "-O2",
    "-fno-omit-frame-pointer",
    "-mno-omit-leaf-frame-pointer",
];

#[test]
fn of_code_that_is_compiled_while_it_runs() {
    let Some(workshop) = Workshop::open() else { return };
    let Some(program) = workshop.compile(&COMPILER, "compiler.c", "compiler") else {
        return;
    };
    let Some(both) = workshop.profile(&[program.to_str().unwrap(), &seconds()]) else {
        return;
    };
    both.assert_agree();
    both.assert_are(
        Reading::Own,
        &[("ten", 10), ("twenty", 20), ("thirty", 30), ("forty", 40)],
    );
    both.assert_whole();
}

/// `perf` reads the list at the end, so it has the last name of each address.
#[test]
fn of_code_that_takes_the_place_of_other_code() {
    let Some(workshop) = Workshop::open() else { return };
    let Some(program) = workshop.compile(&COMPILER, "compiler.c", "compiler") else {
        return;
    };
    let Some(both) = workshop.profile(&[program.to_str().unwrap(), &seconds(), "in place"]) else {
        return;
    };
    both.assert_are(
        Reading::Own,
        &[("ten", 10), ("twenty", 20), ("thirty", 30), ("forty", 40)],
    );
}

#[test]
fn of_javascript() {
    let Some(workshop) = Workshop::open() else { return };
    if Command::new("node").arg("--version").output().is_err() {
        println!("skipped: there is no node");
        return;
    }
    let source = source_of("compiled.js");
    // A function that is inlined into another has no name.
    let flags = ["--perf-basic-prof", "--no-turbo-inlining"];
    let command = ["node", flags[0], flags[1], source.to_str().unwrap(), &seconds()];
    let Some(both) = workshop.profile(&command) else {
        return;
    };
    both.assert_agree();
    // Code is interpreted before it is compiled, and has no name then.
    both.assert_are(
        Reading::Total,
        &[("*ten ", 10), ("*twenty ", 20), ("*thirty ", 30), ("*forty ", 40)],
    );
    both.assert_whole();
}

#[test]
#[ignore = "takes Python 3.12, which FERRETTO_PYTHON names"]
fn of_python() {
    let Some(workshop) = Workshop::open() else { return };
    let source = source_of("trampolines.py");
    let python = std::env::var("FERRETTO_PYTHON").unwrap_or_else(|_| "python3.12".to_owned());
    let command = [&python, "-X", "perf", source.to_str().unwrap(), &seconds()];
    let Some(both) = workshop.profile(&command) else {
        return;
    };
    both.assert_agree();
    both.assert_are(
        Reading::Total,
        &[
            ("py::ten:", 10),
            ("py::twenty:", 20),
            ("py::thirty:", 30),
            ("py::forty:", 40),
        ],
    );
    both.assert_whole();
}
