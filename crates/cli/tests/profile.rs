//! `ferretto profile` and `ferretto symbolize`, from nothing to a picture. They start their own service, and profile programs with known functions.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::perf::may_profile;
use crate::support::c_program::compile;
use crate::support::terminal::{Size, Terminal};
use crate::support::trace::{TraceProcessor, numbers};
use crate::support::tracefs::Tracefs;
use crate::support::{PATIENCE, Running, socket_folder};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

/// `hot STATUS` works for a second in `hot_leaf`, which `hot_caller` calls, and exits with that status. `hot` works for ever. `hot sleep now` sleeps
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

/// A folder with the program. `ferretto profile` of root records the kernel's events as well.
struct Workshop(
    tempfile::TempDir,
    #[allow(dead_code, reason = "it is held")] Option<Tracefs>,
);

impl Workshop {
    /// For a test that does not look at the kernel's events. If this user may not profile, or if there is no compiler, prints that the test is skipped.
    fn open() -> Option<Workshop> {
        Workshop::with(Tracefs::share)
    }

    fn with(tracefs: fn() -> Option<Tracefs>) -> Option<Workshop> {
        crate::support::signals::as_usual();
        if !may_profile() {
            return None;
        }
        let workshop = Workshop(socket_folder("profile-"), tracefs());
        let flags = ["-g", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
        compile(workshop.0.path(), "hot", PROGRAM, &flags)?;
        Some(workshop)
    }

    /// A workshop for other users, with a copy of `ferretto`, because they may not enter the folder of the original. If ordinary users may not profile, or
    /// nobody can act for them, prints that the test is skipped.
    fn open_to_others() -> Option<Workshop> {
        let workshop = Workshop::open()?;
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root starts a program as another user");
            return None;
        }
        let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
        if paranoid.trim().parse::<i32>().unwrap() > 2 {
            println!("skipped: this kernel lets nobody sample but root");
            return None;
        }
        std::fs::set_permissions(workshop.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
        crate::support::copy_program(FERRETTO.as_ref(), &workshop.path("ferretto"));
        Some(workshop)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs `ferretto`; returns its exit code and its messages on stderr.
    fn ferretto(&self, line: &str) -> (Option<i32>, String) {
        self.run(Command::new(FERRETTO).args(line.split_whitespace()))
    }

    /// Runs a command in the folder; returns its exit code and its messages on stderr.
    fn run(&self, command: &mut Command) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = command
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

/// Returns the first function in the list of this event.
fn leader<'a>(said: &'a str, event: &str) -> &'a str {
    let mut of_event = said
        .lines()
        .skip_while(|line| !(line.contains(event) && line.ends_with(':')));
    let row = of_event.nth(2).unwrap_or_default();
    row.split_whitespace().last().unwrap_or_default()
}

/// Returns the first command between backticks that contains this part.
fn suggestion<'a>(said: &'a str, part: &str) -> &'a str {
    let mut quoted = said.split('`').skip(1).step_by(2);
    quoted.find(|command| command.contains(part)).expect(said)
}

/// The functions of a profile, each with the samples in which it ran, and the samples in which it was on the stack.
#[derive(Debug, Default)]
struct Shares {
    functions: HashMap<String, (f64, f64)>,
    samples: f64,
}

impl Shares {
    /// Reads folded stacks.
    fn of_folded(folded: &str) -> Shares {
        let mut shares = Shares::default();
        for line in folded.lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            let count: f64 = count.parse().unwrap();
            shares.samples += count;
            let frames: Vec<&str> = stack.split(';').skip(2).collect();
            for frame in frames.iter().collect::<HashSet<_>>() {
                shares.function(frame).1 += count;
            }
            shares.function(frames[frames.len() - 1]).0 += count;
        }
        for (own, total) in shares.functions.values_mut() {
            (*own, *total) = (*own / shares.samples, *total / shares.samples);
        }
        shares
    }

    fn function(&mut self, name: &str) -> &mut (f64, f64) {
        self.functions.entry(name.to_owned()).or_default()
    }

    /// Whether the true share may have been measured as this one: they differ by less than five standard deviations, and 2 %. Programs also start and end, so
    /// shares that would be 0 or 1 deviate too.
    fn agrees(&self, own: f64, truth: f64) -> bool {
        let deviation = ((own * (1.0 - own) + truth * (1.0 - truth)) / self.samples).sqrt();
        (own - truth).abs() < 5.0 * deviation + 0.02
    }
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
    let Some(workshop) = Workshop::with(Tracefs::lock) else {
        return;
    };
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
fn addresses_without_a_name_are_listed_as_one() {
    let Some(workshop) = Workshop::open() else { return };
    let Some(_) = compile(&workshop.path(""), "nameless", PROGRAM, &["-O0", "-s"]) else {
        return;
    };
    let (code, said) = workshop.ferretto("profile -F 99 -o trace.pftrace -- ./nameless 0");
    assert_eq!(code, Some(0), "{said}");
    let rows: Vec<&str> = said.lines().filter(|line| line.contains(" nameless ")).collect();
    assert!(matches!(rows[..], [row] if row.ends_with("[no name]")), "{said}");
    assert_eq!(leader(&said, "cpu-clock"), "name]", "{said}");
}

#[test]
fn functions_have_their_shares_however_stacks_are_read() {
    /// Works for 60 % of the time in `heavy`, for 30 % in `medium`, which has the same caller, and for 10 % in `light`. Rounds have different lengths, because
    /// samples of equal rounds keep step with them where the period is a multiple of a round.
    const SHARES: &str = r#"
        #include <stdint.h>
        #include <time.h>
        volatile uint64_t sink;
        int length;
        #define WORK(n) for (int i = 0; i < n * length; i++) sink += i * i
        void heavy(void) { WORK(6); }
        void medium(void) { WORK(3); }
        void light(void) { WORK(1); }
        void both(void) { heavy(); medium(); }
        int main(void) {
            for (unsigned random = 1; clock() < 5 * CLOCKS_PER_SEC; both(), light()) {
                random = random * 1103515245 + 12345;
                length = 5000 + random % (1u << 30) / (1 << 17);
            }
            return 0;
        }
    "#;
    let Some(workshop) = Workshop::open() else { return };
    // Without optimisation each function has a frame pointer, and keeps its frame as long as it runs.
    let flags = ["-g", "-O0", "-fno-omit-frame-pointer"];
    let Some(_) = compile(&workshop.path(""), "shares", SHARES, &flags) else {
        return;
    };
    // At a high frequency, a busy machine has no time to copy the stacks of all samples.
    for (how, frequency) in [("dwarf", 199), ("fp", 199), ("kernel-fp", 997)] {
        let line = format!("profile -F {frequency} --call-graph {how} -o {how}.folded -- ./shares");
        let (code, said) = workshop.ferretto(&line);
        assert_eq!(code, Some(0), "{said}");
        let mut own = Shares::of_folded(&workshop.text(&format!("{how}.folded")));
        // A busy machine loses most of the 1,000.
        assert!(own.samples > 100.0, "{how}: {} samples\n{said}", own.samples);
        for (name, expected_own, expected_total) in [
            ("heavy", 0.6, 0.6),
            ("medium", 0.3, 0.3),
            ("light", 0.1, 0.1),
            ("both", 0.0, 0.9),
            ("main", 0.0, 1.0),
        ] {
            let (own_own, own_total) = *own.function(name);
            assert!(
                own.agrees(own_own, expected_own) && own.agrees(own_total, expected_total),
                "{name} has {own_own} of {own_total} with {how}"
            );
        }
    }
}

#[test]
fn a_thread_is_listed_alone_and_cpus_are_sampled_alone() {
    const THREADS: &str = r#"
        #define _GNU_SOURCE
        #include <pthread.h>
        #include <sched.h>
        volatile unsigned sink;
        __attribute__((noinline)) void *one(void *arg) { for (;;) sink++; }
        __attribute__((noinline)) void *other(void *arg) { for (;;) sink--; }
        int main(void) {
            pthread_t threads[2];
            pthread_create(&threads[0], 0, one, 0);
            pthread_setname_np(threads[0], "one");
            pthread_create(&threads[1], 0, other, 0);
            pthread_setname_np(threads[1], "other");
            cpu_set_t first;
            CPU_ZERO(&first);
            CPU_SET(0, &first);
            pthread_setaffinity_np(threads[1], sizeof(first), &first);
            pthread_join(threads[0], 0);
        }
    "#;
    let Some(workshop) = Workshop::open() else { return };
    let Some(program) = compile(&workshop.path(""), "threads", THREADS, &["-g", "-O1", "-pthread"]) else {
        return;
    };
    let running = Running::start(&program, &[]);
    let one = thread_named(running.pid(), "one");
    thread_named(running.pid(), "other");
    let line = format!("profile -F 99 -t {one} -d 2 -o one.folded");
    let (code, said) = workshop.ferretto(&line);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(leader(&said, "cpu-clock"), "one", "{said}");
    let folded = workshop.text("one.folded");
    assert!(
        folded.lines().all(|line| line.starts_with("threads;one;")),
        "{folded}"
    );
    // The two seconds begin when the profiler has started, however late that is.
    let samples = Shares::of_folded(&folded).samples;
    assert!(samples > 0.0, "{said}");
    // The profiler does not sample threads on other CPUs. The scheduler's events are from all CPUs.
    let pid = running.pid();
    let (code, said) = workshop.ferretto(&format!("profile -q -F 99 -p {pid} -C 0 -d 2"));
    assert_eq!(code, Some(0), "{said}");
    let name = said
        .lines()
        .find_map(|line| line.strip_prefix("ferretto profile: wrote "));
    let trace = workshop.path(name.expect(&said));
    assert!(trace.exists(), "the file that nobody named is named: {said}");
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let [samples] = processor.query(
        &trace,
        ["select count(*) > 0, count(distinct cpu), max(cpu) from perf_sample"],
    );
    assert_eq!(numbers(&samples), [1, 1, 0]);
}

/// Waits until a process has a thread of this name; returns its id.
fn thread_named(pid: u32, name: &str) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let thread = thread.unwrap();
            let comm = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            if comm.trim_end() == name {
                return thread.file_name().into_string().unwrap();
            }
        }
        assert!(Instant::now() < until, "no thread is named {name}");
        std::thread::yield_now();
    }
}

#[test]
fn suggested_commands_can_be_pasted_whatever_the_file_is_named() {
    let Some(workshop) = Workshop::open() else { return };
    let name = "it's mine.pftrace";
    let words = ["profile", "-F", "99", "-o", name, "--", "./hot", "0"];
    let (code, said) = workshop.run(Command::new(FERRETTO).args(words));
    assert_eq!(code, Some(0), "{said}");
    let pasted = suggestion(&said, "convert").replacen("ferretto", FERRETTO, 1);
    let (code, said) = workshop.run(Command::new("sh").args(["-c", &pasted]));
    assert_eq!(code, Some(0), "{pasted}: {said}");
    assert!(workshop.text("profile.svg").contains("hot_leaf"));
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
fn only_a_command_and_all_that_it_starts_are_sampled() {
    // An event of the kernel tells that the shell's child runs another program.
    let Some(workshop) = Workshop::with(Tracefs::lock) else {
        return;
    };
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let _busy_bystander = workshop.start(&[]);
    crate::support::copy_program(&workshop.path("hot"), &workshop.path("mine"));
    std::fs::write(workshop.path("script"), "./mine 3; exit $?\n").unwrap();
    let (code, said) = workshop.ferretto("profile -F 99 -o out.pftrace -- sh script");
    assert_eq!(code, Some(3), "{said}");
    let of = |name| {
        format!(
            "select count(*) > 0 from perf_sample join thread using (utid) join process using (upid)
            where process.name glob '*{name}'"
        )
    };
    let [mine, bystanders] = processor.query(&workshop.path("out.pftrace"), [&*of("mine"), &*of("hot")]);
    assert_eq!((numbers(&mine), numbers(&bystanders)), ([1], [0]), "{said}");
}

/// As for `perf record` and `samply`: whoever may trace a program may profile it, without root, a service of root's, or kernel events.
#[test]
fn an_ordinary_user_profiles_a_command() {
    const NOBODY: u32 = 65534;
    let Some(workshop) = Workshop::open_to_others() else {
        return;
    };
    let copy = workshop.path("ferretto");
    std::fs::write(workshop.path("script"), "./hot 3; exit $?\n").unwrap();
    // The first program that samples are of is the command, or one that the command starts.
    for command in [&["./hot", "3"], &["sh", "script"]] {
        let mut profile = Command::new(&copy);
        profile
            .args(["profile", "-F", "99", "-o", "out.folded", "--"])
            .args(command);
        let (code, said) = workshop.run(profile.uid(NOBODY).gid(NOBODY));
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("this user may not sample the kernel"), "{said}");
        let folded = workshop.text("out.folded");
        let highest = highest(&folded);
        assert!(
            highest.starts_with("./hot;") && highest.contains("main;hot_caller;hot_leaf "),
            "{folded}"
        );
        assert!(!folded.contains("ferretto;"), "{folded}");
    }
}

/// Their own code switches no context: without the kernel, whose part they may not sample, there is nothing to be counted.
#[test]
fn an_ordinary_user_hears_why_events_of_the_kernel_are_not_sampled() {
    const SOMEBODY: u32 = 65532;
    let Some(workshop) = Workshop::open_to_others() else {
        return;
    };
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    if paranoid.trim() != "2" {
        println!("skipped: this kernel lets everybody sample it");
        return;
    }
    for event in ["context-switches -c 1", "cpu-clock:k"] {
        let line = format!("profile -e {event} -o out.folded -- ./hot 3");
        let mut command = Command::new(workshop.path("ferretto"));
        command.args(line.split_whitespace()).uid(SOMEBODY).gid(SOMEBODY);
        let (code, said) = workshop.run(&mut command);
        assert_ne!(code, Some(0), "{said}");
        let failure = said
            .lines()
            .find(|line| line.contains("linux.perf could not be started"));
        assert!(
            failure.is_some_and(|line| line.contains("lower /proc/sys/kernel/perf_event_paranoid")),
            "{said}"
        );
        assert!(!said.contains("all processes are sampled"), "{said}");
    }
}

/// The kernel bounds the memory that all rings of a user have together. With this bound all CPUs get rings, but not if one CPU takes as much as it can.
#[test]
fn an_ordinary_user_with_little_locked_memory_has_rings_on_all_cpus() {
    // No other test's rings count against the same user's bound.
    const SOMEBODY: u32 = 65533;
    const PAGE_KB: usize = 4;
    /// Of the ring that has been tried last, with its first page.
    const PAGES: usize = 257;
    let Some(workshop) = Workshop::open_to_others() else {
        return;
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let free_kb = std::fs::read_to_string("/proc/sys/kernel/perf_event_mlock_kb").unwrap();
    let free_kb: usize = free_kb.trim().parse().unwrap();
    let limit_kb = (cpus * PAGES * PAGE_KB).saturating_sub(cpus * free_kb) + 160;
    let script = format!("ulimit -l {limit_kb}; exec ./ferretto profile -o out.folded -- ./hot 3");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).uid(SOMEBODY).gid(SOMEBODY);
    let (code, said) = workshop.run(&mut command);
    assert_eq!(code, Some(3), "{said}");
    let folded = workshop.text("out.folded");
    assert!(highest(&folded).contains("main;hot_caller;hot_leaf "), "{folded}");
}

#[test]
fn the_list_of_functions_grows_while_a_terminal_looks_on() {
    let Some(workshop) = Workshop::open() else { return };
    let running = workshop.start(&[]);
    let pid = running.pid();
    let mut command = Command::new(FERRETTO);
    command
        .args([
            "profile",
            "--top",
            "-d",
            "0",
            "-o",
            "live.svg",
            "-p",
            &pid.to_string(),
        ])
        .current_dir(workshop.0.path())
        .env("TMPDIR", workshop.0.path())
        .env("PERFETTO_CONSUMER_SOCK_NAME", workshop.path("consumer"))
        .env("PERFETTO_PRODUCER_SOCK_NAME", workshop.path("producer"));
    let mut terminal = Terminal::open(Size(20, 100), &command);
    let samples = |rows: &[String]| {
        let head = rows.iter().find(|row| row.contains(" so far, "))?;
        let shows_leader = rows
            .iter()
            .any(|row| row.contains(" %") && row.ends_with("hot_leaf"));
        let count = head.split(' ').next()?.replace(',', "");
        shows_leader.then(|| count.parse::<u64>().unwrap())
    };
    let screen = terminal.await_screen("a list", |rows| samples(rows).is_some());
    let rows: Vec<String> = screen.lines().map(str::to_owned).collect();
    let before = samples(&rows).unwrap();
    assert!(screen.contains("SELF") && screen.contains("TOTAL"), "{screen}");
    terminal.await_screen("more samples", |rows| samples(rows) > Some(before));
    // The cursor stays above the list, so that other lines replace it.
    terminal.await_cursor("the cursor on the line above the list", |rows, (row, _)| {
        let line = rows.get(usize::from(row));
        samples(rows).is_some() && line.is_some_and(|line| line.starts_with("recording "))
    });
    terminal.press("\x03");
    let (status, screen) = terminal.finish();
    assert!(status.success(), "{status}\n{screen}");
    assert!(
        !screen.contains("so far"),
        "the list at the end takes its place:\n{screen}"
    );
    assert!(screen.contains("hot_leaf"), "{screen}");
    assert!(workshop.text("live.svg").contains("hot_leaf"));
}

#[test]
fn without_a_terminal_the_functions_are_listed_at_the_end_only() {
    let Some(workshop) = Workshop::open() else { return };
    let running = workshop.start(&[]);
    let (code, said) = workshop.ferretto(&format!(
        "profile --top -d 1 -o plain.pftrace -p {}",
        running.pid()
    ));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("--top: stderr is no terminal"), "{said}");
    assert!(!said.contains("so far"), "{said}");
    assert_eq!(leader(&said, "cpu-clock"), "hot_leaf", "{said}");
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
    // If the other process gets no processor of its own, it would be in the picture as well.
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
        ("profile -d 5x", "none of the units"),
        ("profile -o trace.txt", "--format"),
        ("profile -o trace.pftrace.gz", "leave .gz out"),
        ("profile -t 2147483647", "no such thread"),
        ("profile -C 60000", "CPU 60000 is not online; use CPUs of 0"),
        ("profile -C all", "as in 0,2-3"),
        ("profile --call-graph dwarf,1000000", "1 to 65528"),
        ("profile -b -- make", "`perf record -b`"),
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
