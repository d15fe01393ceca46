//! `ferretto profile` and `ferretto symbolize`, from nothing to a picture: they start their own service, and profile programs with known functions.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::perf::may_profile;
use crate::support::c_program::compile;
use crate::support::trace::{TraceProcessor, numbers};
use crate::support::{Running, socket_folder};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

/// `hot STATUS` works for a second in `hot_leaf`, which `hot_caller` calls, and exits with that status; `hot` works on and on; `hot sleep now` sleeps
/// again and again in `sleeps_here`.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
volatile uint64_t sink;
__attribute__((noinline)) void hot_leaf(int n) { for (int i = 0; i < n; i++) sink += i * i; }
__attribute__((noinline)) void hot_caller(void) { hot_leaf(100000); sink++; }
__attribute__((noinline)) void sleeps_here(void) { usleep(20000); sink++; }
int main(int argc, char **argv) {
    if (argc == 3) for (;;) sleeps_here();
    while (argc == 1 || clock() < CLOCKS_PER_SEC) hot_caller();
    return atoi(argv[1]);
}
"#;

/// A folder with the program.
struct Workshop(tempfile::TempDir);

impl Workshop {
    /// Prints that the test is skipped if this user may not profile, or there is no compiler.
    fn open() -> Option<Workshop> {
        crate::support::signals::as_usual();
        if !may_profile() {
            return None;
        }
        let workshop = Workshop(socket_folder("profile-"));
        let flags = ["-g", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
        compile(workshop.0.path(), "hot", PROGRAM, &flags)?;
        Some(workshop)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs `ferretto`; returns its exit code and what it said on stderr.
    fn ferretto(&self, line: &str) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = Command::new(FERRETTO)
            .args(line.split_whitespace())
            .current_dir(self.0.path())
            .env("TMPDIR", self.0.path())
            .env("PERFETTO_CONSUMER_SOCK_NAME", self.path("consumer"))
            .env("PERFETTO_PRODUCER_SOCK_NAME", self.path("producer"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    }

    /// Starts the program, which runs until the end of the test.
    fn start(&self, words: &[&str]) -> Running {
        Running::start(&self.path("hot"), words)
    }
}

/// Returns the first function of the list of this event.
fn leader<'a>(said: &'a str, event: &str) -> &'a str {
    let mut of_event = said
        .lines()
        .skip_while(|line| !(line.contains(event) && line.ends_with(':')));
    let row = of_event.nth(2).unwrap_or_default();
    row.split_whitespace().last().unwrap_or_default()
}

/// Returns the line of folded stacks with the highest count.
fn highest(folded: &str) -> &str {
    let count = |line: &&str| {
        let count = line.rsplit(' ').next().unwrap();
        count.parse::<u64>().unwrap()
    };
    folded.lines().max_by_key(count).unwrap_or_default()
}

#[test]
fn the_hot_function_of_a_command_leads_and_its_exit_status_is_passed_on() {
    let Some(workshop) = Workshop::open() else { return };
    let (code, said) = workshop.ferretto("profile -F 99 -o trace.pftrace -- ./hot 7");
    assert_eq!(code, Some(7), "{said}");
    assert_eq!(leader(&said, "cpu-clock"), "hot_leaf", "{said}");
    assert!(said.contains("ferretto open trace.pftrace"), "{said}");
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let named =
        "select count(*), max(s.source_file like '%hot.c'), max(s.line_number) from stack_profile_symbol s
        join stack_profile_frame f using (symbol_set_id) where s.name = 'hot_leaf'";
    let scheduled = "select count(*) > 0 from sched join thread using (utid) where thread.name = 'hot'";
    let [named, scheduled] = processor.query(&workshop.path("trace.pftrace"), [named, scheduled]);
    let [frames, has_file, line] = numbers(&named);
    assert!(frames > 0 && has_file == 1 && line == 7, "{named:?}");
    assert_eq!(
        numbers(&scheduled),
        [1],
        "the scheduler's decisions are beside it"
    );
}

#[test]
fn other_formats_have_only_the_processes_of_the_command() {
    let Some(workshop) = Workshop::open() else { return };
    let _bystander = workshop.start(&["sleep", "now"]);
    let _busy_bystander = workshop.start(&[]);
    crate::support::copy_program(&workshop.path("hot"), &workshop.path("mine"));
    // The program is a grandchild.
    std::fs::write(workshop.path("script"), "./mine 3; exit $?\n").unwrap();
    let (code, said) = workshop.ferretto("profile -F 99 -o out.folded -- sh script");
    assert_eq!(code, Some(3), "{said}");
    let folded = workshop.text("out.folded");
    let highest = highest(&folded);
    assert!(highest.contains("main;hot_caller;hot_leaf "), "{folded}");
    for line in folded.lines() {
        let process = line.split(';').next().unwrap();
        assert!(!process.ends_with("hot"), "{line}");
    }
    let left = std::fs::read_dir(workshop.path("")).unwrap();
    let left = left.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .ends_with(".pftrace")
    });
    assert_eq!(left.count(), 0, "only what was asked for is left");
}

#[test]
fn a_running_process_is_sampled_alone() {
    let Some(workshop) = Workshop::open() else { return };
    let running = workshop.start(&[]);
    let other = workshop.start(&[]);
    let pid = running.pid();
    let (code, said) = workshop.ferretto(&format!("profile -F 99 -p {pid} --duration 1500ms -o out.svg"));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(leader(&said, "cpu-clock"), "hot_leaf", "{said}");
    let picture = workshop.text("out.svg");
    assert!(
        picture.contains("<svg") && picture.contains("hot_leaf"),
        "{picture}"
    );
    // One that has no processor to itself meanwhile would be in it as well.
    drop(running);
    let gone = format!("profile -p {pid} -o gone.svg");
    let (code, said) = workshop.ferretto(&gone);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no such process"), "{said}");
    drop(other);
}

#[test]
fn waiting_counts_for_as_long_as_it_takes() {
    let Some(workshop) = Workshop::open() else { return };
    let running = workshop.start(&["sleep", "now"]);
    let pid = running.pid();
    let line = format!("profile -F 99 --off-cpu -p {pid} --duration 5s -o out.folded");
    let (code, said) = workshop.ferretto(&line);
    assert_eq!(code, Some(0), "{said}");
    let folded = workshop.text("out.folded");
    let sleeping = highest(&folded);
    assert!(sleeping.contains("main;sleeps_here;"), "{folded}\n{said}");
    let waited: u64 = sleeping.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(
        waited > 300_000_000 && waited < 10_000_000_000,
        "{waited} ns\n{said}"
    );
}

#[test]
fn a_trace_gets_names_later_without_being_changed() {
    let Some(workshop) = Workshop::open() else { return };
    let running = workshop.start(&[]);
    let pid = running.pid();
    let config = format!(
        "buffers {{ size_kb: 16384 }} duration_ms: 1000 data_sources {{ config {{ name: 'linux.perf' perf_event_config {{
            timebase {{ frequency: 99 }} callstack_sampling {{ scope {{ target_pid: {pid} }} }} }} }} }}"
    );
    std::fs::write(workshop.path("trace.cfg"), config).unwrap();
    let (code, said) = workshop.ferretto("--txt -c trace.cfg -o trace");
    assert_eq!(code, Some(0), "{said}");
    let text = |trace: &str| {
        let output = Command::new(FERRETTO)
            .args(["text", trace])
            .current_dir(workshop.path(""))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let has_symbols = |trace: &str| {
        let text = text(trace);
        let mut modules = text.split("module_symbols {").skip(1);
        modules.any(|module| module.contains("function_name: \"hot_leaf\"") && module.contains("hot.c\""))
    };
    assert!(!text("trace").contains("module_symbols"));
    let before = std::fs::read(workshop.path("trace")).unwrap();
    let (code, said) = workshop.ferretto("symbolize trace -o named");
    assert_eq!(code, Some(0), "{said}");
    assert!(has_symbols("named"), "{said}");
    assert_eq!(std::fs::read(workshop.path("trace")).unwrap(), before);
    let (code, said) = workshop.ferretto("symbolize trace");
    assert_eq!(code, Some(0), "{said}");
    assert!(has_symbols("trace"), "{said}");
}

#[test]
fn flags_that_mean_nothing_are_refused_with_advice() {
    let folder = socket_folder("profile-");
    for (line, advice) in [
        ("profile -e page-fault", "did you mean page-faults?"),
        ("profile -F often", "write one like 999, or max"),
        ("profile -F 99 -c 5", "cannot be used with"),
        ("profile --call-graph lbr", "kernel-fp"),
        (
            "profile --frequency 99",
            "unrecognized option '--frequency': did you mean '--freq'?",
        ),
        ("profile --duration 5", "the number needs a unit"),
        ("profile -o trace.json", "--format"),
        ("profile -o -", "name one with -o"),
        ("profile -- no-such-command", "no such command"),
    ] {
        let output = Command::new(FERRETTO)
            .args(line.split_whitespace())
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(advice),
            "{line}: {said}"
        );
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "{line}");
    }
}
