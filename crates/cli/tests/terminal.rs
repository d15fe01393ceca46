//! Output for people: the real programs in a terminal with a modelled screen, and the same on pipes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::terminal::{Size, Terminal};
use crate::support::{Program, Programs, Side, System};
use rustix::process::{Pid, Signal, kill_process};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");
const PERFETTO: &str = env!("CARGO_BIN_EXE_perfetto");

/// Data that every machine has, every 50 ms.
const STEADY: &str = r#"
buffers { size_kb: 4096 }
data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 50 stat_period_ms: 50 } } }
"#;

/// More data than the buffer holds.
const LOSSY: &str = r#"
buffers { size_kb: 16 fill_policy: DISCARD }
data_sources { config {
  name: "linux.sys_stats"
  sys_stats_config { meminfo_period_ms: 10 vmstat_period_ms: 10 stat_period_ms: 10 }
} }
"#;

const WIDE: Size = Size(24, 120);

/// Runs a test with a service and probes of ours.
fn with_system(test: impl FnOnce(&System<'_>)) {
    let programs = Programs::ours();
    test(&System::with_daemons(&programs, Side::Ours, Side::Ours));
}

/// Makes a `perfetto` with a text config and more flags.
fn recording(system: &System<'_>, config: &str, flags: &[&str]) -> Command {
    let file = system.path("config");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(PERFETTO);
    command
        .env("PERFETTO_PRODUCER_SOCK_NAME", system.producer_socket())
        .env("PERFETTO_CONSUMER_SOCK_NAME", system.consumer_socket())
        .args(["--txt", "-o"])
        .arg(system.path("trace"))
        .arg("-c")
        .arg(file)
        .args(flags);
    command
}

fn is_live(row: &str) -> bool {
    [
        "recording ",
        "recorded ",
        "waiting for ",
        "writing ",
        "connecting ",
    ]
    .iter()
    .any(|start| row.starts_with(start))
}

fn live_rows(screen: &str) -> Vec<&str> {
    screen.lines().filter(|row| is_live(row)).collect()
}

fn await_recording(terminal: &mut Terminal) -> String {
    terminal.await_screen("the changing line", |rows| {
        rows.last().is_some_and(|row| row.starts_with("recording "))
    })
}

#[test]
fn one_line_changes_in_place_and_a_summary_takes_its_place() {
    with_system(|system| {
        let config = format!("{STEADY} duration_ms: 8000");
        let mut terminal = Terminal::open(WIDE, &recording(system, &config, &[]));
        let screen = terminal.await_cursor("time, fill, rate and losses", |rows, (row, column)| {
            let all = |line: &String| {
                line.starts_with("recording ")
                    && [" s left, ", "buffer ", "B/s", "nothing lost"]
                        .iter()
                        .all(|part| line.contains(part))
            };
            rows.last().is_some_and(all) && (usize::from(row), column) == (rows.len() - 1, 0)
        });
        assert_eq!(live_rows(&screen).len(), 1, "{screen}");
        let (status, screen) = terminal.finish();
        assert!(status.success(), "{screen}");
        assert_eq!(live_rows(&screen), [""; 0], "{screen}");
        let lines: Vec<&str> = screen.split("\nperfetto: ").collect();
        assert!(lines[0].starts_with("perfetto: Connected to the Perfetto traced service, TTL: 8s"));
        let summary: String = lines[1].split('\n').collect();
        for part in [
            "Wrote ",
            "  recorded 8.0 s, ",
            " packets, nothing lost",
            "to see it: ferretto open ",
        ] {
            assert!(summary.contains(part), "{part:?} is not in\n{screen}");
        }
    });
}

#[test]
fn a_narrow_window_gets_a_short_line_and_a_wider_one_more() {
    with_system(|system| {
        let mut terminal = Terminal::open(Size(24, 46), &recording(system, STEADY, &[]));
        let screen = await_recording(&mut terminal);
        let line = live_rows(&screen)[0];
        assert!(line.len() < 46 && !line.contains("nothing lost"), "{screen}");
        terminal.resize(Size(24, 22));
        let fits = |row: &String| row.starts_with("recording ") && row.len() < 22 && !row.contains(',');
        let screen = terminal.await_screen("a shorter line", |rows| rows.last().is_some_and(fits));
        assert_eq!(live_rows(&screen).len(), 1, "{screen}");
        terminal.resize(WIDE);
        let all = |row: &String| row.starts_with("recording ") && row.contains("nothing lost");
        // The cursor is at its start, so that a terminal that breaks the line in two can have it cleared.
        let screen = terminal.await_cursor("the whole line", |rows, (_, column)| {
            rows.last().is_some_and(all) && column == 0
        });
        assert_eq!(live_rows(&screen).len(), 1, "{screen}");
        terminal.press("\x03");
        let (status, screen) = terminal.finish();
        assert!(status.success(), "{screen}");
    });
}

#[test]
fn ctrl_c_ends_the_recording_and_leaves_no_trace_on_the_screen() {
    with_system(|system| {
        let mut terminal = Terminal::open(WIDE, &recording(system, STEADY, &[]));
        await_recording(&mut terminal);
        terminal.press("\x03");
        let (status, screen) = terminal.finish();
        assert!(status.success(), "{screen}");
        assert!(
            screen
                .contains("\nperfetto: Ctrl-C: ending the recording (again to give it up)\nperfetto: Wrote "),
            "{screen}"
        );
        assert!(!screen.contains("^C"), "{screen}");
        assert_eq!(live_rows(&screen), [""; 0], "{screen}");
    });
}

#[test]
fn ctrl_z_leaves_a_clean_line_and_fg_brings_it_back() {
    with_system(|system| {
        let mut terminal = Terminal::shell(WIDE, system.path("").as_path());
        let command = typed(&recording(system, STEADY, &[]));
        terminal.press(&format!("{command}\r"));
        await_recording(&mut terminal);
        terminal.press("\x1a");
        let stopped = |rows: &[String]| {
            rows.iter().any(|row| row.contains("Stopped")) && rows.last().is_some_and(|row| row == "ready>")
        };
        let screen = terminal.await_screen("the shell", stopped);
        assert_eq!(live_rows(&screen), [""; 0], "{screen}");
        terminal.press("\x0cfg\r");
        let screen = await_recording(&mut terminal);
        assert_eq!(live_rows(&screen).len(), 1, "{screen}");
        terminal.press("\x03");
        let screen =
            terminal.await_screen("the shell", |rows| rows.last().is_some_and(|row| row == "ready>"));
        assert!(screen.contains("Wrote "), "{screen}");
        assert_eq!(live_rows(&screen), [""; 0], "{screen}");
    });
}

#[test]
fn in_the_background_no_line_is_drawn_over_the_users_typing() {
    with_system(|system| {
        let mut terminal = Terminal::shell(WIDE, system.path("").as_path());
        let config = format!("{STEADY} duration_ms: 1500");
        let command = typed(&recording(system, &config, &[]));
        terminal.press(&format!("{command} &\r"));
        let screen = terminal.await_screen("the end", |rows| {
            rows.iter().any(|row| row.contains("ferretto open"))
        });
        assert!(screen.contains("Wrote "), "{screen}");
        assert!(
            !terminal.written().contains("recording 0"),
            "{}",
            terminal.written()
        );
        terminal.press("exit\r");
        terminal.finish();
    });
}

/// Returns the command as a user types it.
fn typed(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.to_str().unwrap().to_owned()).collect();
    let environment = command
        .get_envs()
        .map(|(name, value)| format!("{}={} ", name.to_str().unwrap(), value.unwrap().to_str().unwrap()));
    environment.collect::<String>() + &words.join(" ")
}

#[test]
fn losses_are_red_unless_colours_are_unwanted() {
    const RED: &str = "\x1b[31m";
    with_system(|system| {
        let begun = |config: &str, name: &str, value: &str| {
            let mut command = recording(system, config, &[]);
            command.env(name, value);
            Terminal::open(WIDE, &command)
        };
        let ended = |mut terminal: Terminal| {
            terminal.await_screen("losses", |rows| rows.iter().any(|row| row.contains("  lost: ")));
            terminal.written()
        };
        // The recording ends after its line has shown losses.
        let written = |name: &str, value: &str| {
            let mut terminal = begun(LOSSY, name, value);
            terminal.await_screen("losses so far", |rows| {
                rows.iter().any(|row| row.contains(", LOST "))
            });
            terminal.press("\x03");
            ended(terminal)
        };
        let usual = written("NO_COLOR", "");
        assert!(usual.contains(&format!("{RED}, LOST ")), "{usual:?}");
        assert!(usual.contains(&format!("{RED}  lost: ")), "{usual:?}");
        let colourless = written("NO_COLOR", "1");
        assert!(!colourless.contains("\x1b[3"), "{colourless:?}");
        assert!(
            colourless.contains(", LOST ") && colourless.contains("\x1b[J"),
            "{colourless:?}"
        );
        let dumb = ended(begun(&format!("{LOSSY} duration_ms: 5000"), "TERM", "dumb"));
        assert!(!dumb.contains('\x1b'), "{dumb:?}");
    });
}

#[test]
fn quiet_recordings_report_losses_and_nothing_else() {
    with_system(|system| {
        let run = |config: &str, milliseconds: u64| {
            let config = format!("{config} duration_ms: {milliseconds}");
            let terminal = Terminal::open(WIDE, &recording(system, &config, &["-q"]));
            let (status, screen) = terminal.finish();
            assert!(status.success(), "{screen}");
            let piped = recording(system, &config, &["--quiet"])
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert!(piped.status.success() && piped.stdout.is_empty());
            (screen, text(&piped.stderr))
        };
        assert_eq!(run(STEADY, 1_000), (String::new(), String::new()));
        // On a busy machine it takes a while until the buffer is full.
        let (screen, piped) = run(LOSSY, 5_000);
        for said in [&screen, &piped] {
            assert!(!said.is_empty());
            // On the screen a line may take several rows.
            assert!(
                said.starts_with("perfetto: lost: ") && !said.contains("Wrote"),
                "{said}"
            );
        }
        let refused = recording(system, "bogus: 1", &["-q"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            text(&refused.stderr).contains("bogus"),
            "{}",
            text(&refused.stderr)
        );
    });
}

#[test]
fn a_recording_goes_on_without_a_reader_of_its_messages() {
    with_system(|system| {
        let config = format!("{LOSSY} duration_ms: 300");
        let trace = system.path("trace");
        let command = recording(system, &config, &[]);
        for redirection in ["2>&-", "2>/dev/full", "2> >(:)"] {
            let mut shell = Command::new("bash");
            shell.arg("-c").arg(format!("{} {redirection}", typed(&command)));
            assert!(shell.status().unwrap().success(), "{redirection}");
            assert!(std::fs::metadata(&trace).unwrap().len() > 0, "{redirection}");
            std::fs::remove_file(&trace).unwrap();
        }
        for (line, code) in [
            ("perfetto --help", 1),
            ("perfetto --bogus", 1),
            ("trigger_perfetto -h", 1),
            ("", 1),
            ("inof", 1),
        ] {
            let mut shell = Command::new("bash");
            shell.arg("-c").arg(format!("{FERRETTO} {line} 2>/dev/full"));
            assert_eq!(shell.output().unwrap().status.code(), Some(code), "{line}");
        }
    });
}

#[test]
fn a_recording_that_waits_for_a_trigger_says_so() {
    with_system(|system| {
        let config = format!(
            "{STEADY} trigger_config {{ trigger_mode: START_TRACING trigger_timeout_ms: 60000 triggers {{ name: \"go\" \
             stop_delay_ms: 1000 }} }}"
        );
        let mut terminal = Terminal::open(WIDE, &recording(system, &config, &[]));
        let screen = terminal.await_screen("what is awaited", |rows| {
            rows.last()
                .is_some_and(|row| row.starts_with("waiting for a trigger: "))
        });
        assert!(screen.contains(" left") && screen.contains("(go)"), "{screen}");
        let mut trigger = Command::new(env!("CARGO_BIN_EXE_trigger_perfetto"));
        trigger
            .arg("go")
            .env("PERFETTO_PRODUCER_SOCK_NAME", system.producer_socket());
        assert!(trigger.status().unwrap().success());
        let (status, screen) = terminal.finish();
        assert!(status.success() && screen.contains("Wrote "), "{screen}");
    });
}

#[test]
fn a_service_that_dies_leaves_one_clean_line_that_says_so() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let traced = system.start(Side::Ours, Program::Traced);
    system.start(Side::Ours, Program::TracedProbes);
    let mut terminal = Terminal::open(WIDE, &recording(&system, STEADY, &[]));
    await_recording(&mut terminal);
    kill_process(
        Pid::from_raw(i32::try_from(traced).unwrap()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    let (status, screen) = terminal.finish();
    assert_eq!(status.code(), Some(1), "{screen}");
    assert!(
        screen.contains("\nperfetto: the recording broke off: "),
        "{screen}"
    );
    assert_eq!(live_rows(&screen), [""; 0], "{screen}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn output(program: &str, line: &str) -> Output {
    let mut command = Command::new(program);
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn help_fits_a_screen_and_leads_on() {
    let (status, screen) = Terminal::open(Size(40, 100), &Command::new(FERRETTO)).finish();
    assert_eq!(status.code(), Some(1), "nothing was done");
    for part in [
        "Records what a Linux machine does",
        "Start here",
        "Usage: ferretto",
        "ferretto help record",
    ] {
        assert!(screen.contains(part), "{part:?} is not in\n{screen}");
    }
    for line in ["--help", "-h", "help", "-t 5s --help"] {
        let asked = output(FERRETTO, line);
        assert!(asked.status.success() && asked.stderr.is_empty(), "{line}");
        assert!(text(&asked.stdout).contains("Start here"), "{line}");
    }
    let full = output(FERRETTO, "help record");
    assert!(text(&full.stdout).contains("--clone-by-name"));
    assert_eq!(
        text(&output(FERRETTO, "record --help").stdout),
        text(&full.stdout)
    );
}

#[test]
fn help_of_upstreams_programs_keeps_to_their_ways() {
    for line in ["", "-h", "--help"] {
        let help = output(PERFETTO, line);
        assert_eq!(
            (help.status.code(), text(&help.stdout)),
            (Some(1), String::new()),
            "{line}"
        );
        assert!(text(&help.stderr).contains("--background-wait"), "{line}");
    }
    let help = output(env!("CARGO_BIN_EXE_trigger_perfetto"), "--help");
    assert_eq!((help.status.code(), text(&help.stdout)), (Some(1), String::new()));
    assert!(
        text(&help.stderr).contains("Usage: trigger_perfetto TRIGGER"),
        "{}",
        text(&help.stderr)
    );
    let asked_for = output(FERRETTO, "help perfetto");
    assert!(asked_for.status.success() && text(&asked_for.stdout).contains("--background-wait"));
}

#[test]
fn a_misspelt_subcommand_is_reported_and_not_recorded() {
    let folder = tempfile::tempdir().unwrap();
    for (line, hint) in [
        ("recrod -o trace x", "`ferretto record`"),
        ("tracde", "`ferretto traced`"),
        ("hlep", "`ferretto help`"),
    ] {
        let mut command = Command::new(FERRETTO);
        let said = command
            .args(line.split(' '))
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(said.status.code(), Some(1), "{line}");
        assert!(
            text(&said.stderr).contains(hint),
            "{line}: {}",
            text(&said.stderr)
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let unknown = output(FERRETTO, "help nothing");
    assert_eq!(unknown.status.code(), Some(1));
}

/// A folder in which `ferretto` is a command.
fn folder_with_ferretto() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(FERRETTO, folder.path().join("ferretto")).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    (folder, path)
}

fn installed(shell: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(shell))
        .find(|file| file.exists());
    if found.is_none() {
        println!("skipped: {shell} is not installed");
    }
    found
}

/// Returns the names of all subcommands.
fn subcommands() -> Vec<String> {
    let overview = text(&output(FERRETTO, "--help").stdout);
    let (_, list) = overview.split_once("Subcommands:\n").unwrap();
    let named = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let lines = list.lines().take_while(|line| !line.is_empty()).filter(named);
    lines
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect()
}

fn words_on(screen: &str) -> Vec<&str> {
    screen.split_whitespace().collect()
}

/// Types this into the emptied line, asks for completions, and waits until all wanted words are on the screen.
fn await_completion(terminal: &mut Terminal, typed: &str, wanted: &[&str]) {
    terminal.press(&format!("\x15\x0c{typed}\t"));
    let all = |rows: &[String]| wanted.iter().all(|word| words_on(&rows.join(" ")).contains(word));
    terminal.await_screen(&format!("completion of {typed:?} to {wanted:?}"), all);
}

#[test]
fn bash_completes_flags_subcommands_and_files() {
    let (folder, path) = folder_with_ferretto();
    std::fs::write(folder.path().join("unique.cfg"), "").unwrap();
    let mut terminal = Terminal::shell(Size(40, 120), folder.path());
    terminal.run(&format!("PATH={path}; bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; bind 'set page-completions off'"));
    let said =
        terminal.run("source <(ferretto completions bash); source <(ferretto completions bash perfetto)");
    assert_eq!(said.lines().count(), 2, "{said}");

    let mut completed = |typed: &str, wanted: &[&str]| await_completion(&mut terminal, typed, wanted);
    completed(
        "ferretto --no",
        &["--no-clobber", "--no-guardrails", "--notify-fd"],
    );
    completed("ferretto --clone-f", &["--clone-for-bugreport"]);
    completed("ferretto record --save-f", &["--save-for-bugreport"]);
    completed("ferretto -c uni", &["unique.cfg"]);
    completed("ferretto help completio", &["completions"]);
    completed("ferretto completions z", &["zsh"]);
    completed("perfetto --det", &["--detach"]);
    for name in subcommands() {
        completed(&format!("ferretto {}", &name[..name.len() - 1]), &[&name]);
    }
    terminal.press("\x15exit\r");
    assert!(terminal.finish().0.success());
}

#[test]
fn zsh_completes_flags_and_subcommands() {
    let Some(zsh) = installed("zsh") else { return };
    let (folder, path) = folder_with_ferretto();
    let mut command = Command::new(zsh);
    command
        .args(["-f", "-i"])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env("PATH", path)
        .env("PS1", "ready> ");
    let mut terminal = Terminal::open(Size(40, 120), &command);
    let ready = |rows: &[String]| rows.last().is_some_and(|row| row == "ready>");
    terminal.await_screen("a prompt", ready);
    terminal.press(
        "unsetopt beep; autoload -Uz compinit; compinit -u -D; source <(ferretto completions zsh); clear\r",
    );
    terminal.await_screen("a clean screen", |rows| rows.len() == 1 && ready(rows));
    let mut completed = |typed: &str, wanted: &[&str]| await_completion(&mut terminal, typed, wanted);
    completed(
        "ferretto --no",
        &["--no-clobber", "--no-guardrails", "--notify-fd"],
    );
    completed("ferretto record --save-f", &["--save-for-bugreport"]);
    for name in subcommands() {
        completed(&format!("ferretto {}", &name[..name.len() - 1]), &[&name]);
    }
    terminal.press("\x15exit\r");
    terminal.finish();
}

#[test]
fn fish_completes_flags_and_subcommands() {
    let Some(fish) = installed("fish") else { return };
    let (folder, path) = folder_with_ferretto();
    let candidates = |typed: &str| {
        let mut command = Command::new(&fish);
        command.args(["--no-config", "-c"]).arg(format!(
            "ferretto completions fish | source; complete -C '{typed}'"
        ));
        let output = command
            .env("PATH", &path)
            .env("HOME", folder.path())
            .output()
            .unwrap();
        assert_eq!(text(&output.stderr), "", "{typed}");
        let lines = text(&output.stdout);
        let words = lines
            .lines()
            .map(|line| line.split('\t').next().unwrap().to_owned());
        words.collect::<BTreeSet<_>>()
    };
    let flags = ["--no-clobber", "--no-guardrails", "--notify-fd"];
    assert_eq!(candidates("ferretto --no"), flags.map(str::to_owned).into());
    assert!(candidates("ferretto record --save-f").contains("--save-for-bugreport"));
    for name in subcommands() {
        let typed = format!("ferretto {}", &name[..name.len() - 1]);
        assert!(candidates(&typed).contains(&name), "{typed}");
    }
}

#[test]
fn completions_are_there_for_every_program() {
    for shell in ["bash", "zsh", "fish"] {
        for program in ["perfetto", "traced", "traced_probes", "trigger_perfetto"] {
            let script = output(FERRETTO, &format!("completions {shell} {program}"));
            assert!(
                script.status.success() && text(&script.stdout).contains(program),
                "{shell} {program}"
            );
            let (Some(shell), file) = (installed(shell), tempfile::NamedTempFile::new().unwrap()) else {
                continue;
            };
            std::fs::write(file.path(), &script.stdout).unwrap();
            assert_parsed(&shell, file.path());
        }
    }
    let wrong = output(FERRETTO, "completions powershell");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("bash, zsh, fish"));
}

/// Makes a shell parse a script without running it.
fn assert_parsed(shell: &Path, script: &Path) {
    let mut shell = Command::new(shell);
    // Shells complain of locales that are not installed.
    let output = shell.arg("-n").arg(script).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
}
