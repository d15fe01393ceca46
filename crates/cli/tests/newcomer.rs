//! A new user's first ten minutes. Each step is typed into a shell in a terminal, and the screen must tell the user what to do next.
//!
//! The user is the one who runs the tests, or `nobody` for the steps of an unprivileged user.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::terminal::{Size, Terminal};
use crate::support::tracefs::Tracefs;
use crate::support::ui_port::UiPort;

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

/// Large enough for the overview and a few lines around it.
const SCREEN: Size = Size(44, 100);

/// The user who types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    Myself,
    Nobody,
}

/// A user in a home folder, who has installed `ferretto` and runs no service.
struct Newcomer {
    home: tempfile::TempDir,
    shell: Terminal,
}

impl Newcomer {
    fn arrives(user: User) -> Newcomer {
        let home = crate::support::socket_folder("home-");
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        // Everybody may run it, whatever the umask.
        std::fs::set_permissions(&bin, std::fs::Permissions::from_mode(0o755)).unwrap();
        let installed = bin.join("ferretto");
        if std::fs::hard_link(FERRETTO, &installed).is_err() {
            crate::support::copy_program(Path::new(FERRETTO), &installed);
        }
        let mut bash = match user {
            User::Myself => Command::new("bash"),
            User::Nobody => {
                let mut other = Command::new("setpriv");
                other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "bash"]);
                other
            }
        };
        bash.args(["--norc", "--noprofile", "-i"])
            .current_dir(home.path())
            .env("HOME", home.path())
            .env("TMPDIR", home.path())
            .env(
                "PATH",
                format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()),
            )
            .env("PS1", "ready> ")
            .env("PERFETTO_CONSUMER_SOCK_NAME", home.path().join("no-consumers"))
            .env("PERFETTO_PRODUCER_SOCK_NAME", home.path().join("no-producers"))
            .env_remove("HISTFILE");
        let mut shell = Terminal::open(SCREEN, &bash);
        shell.await_prompt();
        Newcomer { home, shell }
    }

    /// Types a line and waits for its end; returns the output, with the exit code at the end.
    fn types(&mut self, line: &str) -> String {
        let screen = self.shell.run(&format!("{line}; echo \"exit code $?\""));
        let mut rows = screen
            .lines()
            .skip_while(|row| !row.starts_with("ready> "))
            .skip(1);
        let mut said = String::new();
        for row in rows.by_ref().take_while(|row| *row != "ready>") {
            said.push_str(row);
            // A full row continues in the next one.
            if row.chars().count() < usize::from(SCREEN.1) {
                said.push('\n');
            }
        }
        println!("$ {line}\n{said}");
        said
    }

    /// Types a line that records. Repeats it if the machine was so busy that the probes did not acknowledge the final flush in time.
    fn records(&mut self, line: &str) -> String {
        let mut said = self.types(line);
        for _ in 0..10 {
            if !said.contains("not acknowledged in time") {
                break;
            }
            said = self.types(line);
        }
        said
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Writes a file that the user can read, whatever the umask.
    fn writes(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn has(&self, name: &str) -> bool {
        std::fs::metadata(self.path(name)).is_ok_and(|file| file.len() > 0)
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns a user who is not root.
fn without_rights() -> User {
    if is_root() { User::Nobody } else { User::Myself }
}

fn assert_said(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in what was said:\n{said}");
    }
}

#[test]
fn the_name_alone_shows_the_first_steps() {
    let mut user = Newcomer::arrives(without_rights());
    let said = user.types("ferretto");
    assert_said(
        &said,
        &[
            "Start here",
            "sudo ferretto -t 5s -o trace.pftrace sched/",
            "ferretto help",
            "exit code 1",
        ],
    );
    assert_eq!(user.types("ferretto --help").replace("code 0", "code 1"), said);
}

#[test]
fn without_privileges_kernel_events_are_missing_and_advice_is_given() {
    let mut user = Newcomer::arrives(without_rights());
    let said = user.records("ferretto -t 1s -o trace.pftrace sched/sched_switch");
    let way = match std::path::Path::new("/sys/kernel/tracing").exists() {
        true => ["run as root", "sudo"],
        // Many containers lack it.
        false => ["As root, outside of a container", "mount -t tracefs"],
    };
    assert_said(&said, &way);
    assert_said(
        &said,
        &[
            "recorded 1.0 s",
            "not complete",
            "not recorded: kernel events",
            "ferretto open trace.pftrace",
            "nothing that was asked for was recorded",
            "exit code 1",
        ],
    );
    assert!(!said.contains("nothing lost") && !said.contains("] W "), "{said}");
    assert!(user.has("trace.pftrace"));
}

#[test]
fn without_rights_and_events_processes_and_counters_are_recorded() {
    let mut user = Newcomer::arrives(without_rights());
    let said = user.records("ferretto -t 1s -o trace.pftrace");
    assert_said(
        &said,
        &[
            "recorded 1.0 s",
            "nothing lost",
            "ferretto open trace.pftrace",
            "exit code 0",
        ],
    );
    assert!(user.has("trace.pftrace"));
}

#[test]
fn a_size_for_the_file_brings_no_advice_on_other_fields() {
    let mut user = Newcomer::arrives(without_rights());
    let said = user.records("ferretto -t 1s -s 10mb -o trace.pftrace");
    assert_said(&said, &["nothing lost", "exit code 0"]);
    assert!(!said.contains("flush_period_ms"), "{said}");
}

#[test]
fn as_root_kernel_events_are_recorded() {
    let Some(_tracefs) = Tracefs::lock() else { return };
    let mut user = Newcomer::arrives(User::Myself);
    let said = user.records("ferretto -t 1s -o trace.pftrace sched/sched_switch sched/sched_waking");
    assert_said(
        &said,
        &[
            "recorded 1.0 s",
            " packets, nothing lost",
            "ferretto open trace.pftrace",
            "exit code 0",
        ],
    );
    let typo = user.types("ferretto -t 1s -o trace.pftrace sched/sched_swich");
    assert_said(
        &typo,
        &["this kernel has no event", "sched/sched_swich", "exit code 1"],
    );
}

#[test]
fn a_trace_recorded_with_sudo_belongs_to_the_user() {
    use std::os::unix::fs::MetadataExt;
    if !is_root() {
        println!("skipped: giving files away needs root");
        return;
    }
    let mut user = Newcomer::arrives(User::Myself);
    // The variables that sudo sets.
    user.types("SUDO_UID=65534 SUDO_GID=65534 ferretto -t 100ms -o trace.pftrace");
    assert_eq!(
        std::fs::metadata(user.path("trace.pftrace")).unwrap().uid(),
        65534
    );
    // A file of another user keeps its owner.
    std::fs::write(user.path("mine.pftrace"), "").unwrap();
    user.types("SUDO_UID=65534 SUDO_GID=65534 ferretto -t 100ms -o mine.pftrace");
    assert!(user.has("mine.pftrace"));
    assert_eq!(std::fs::metadata(user.path("mine.pftrace")).unwrap().uid(), 0);
}

#[test]
fn a_trace_without_a_name_gets_one_and_no_earlier_one_is_lost() {
    let mut user = Newcomer::arrives(without_rights());
    let said = user.types("ferretto -t 10ms; ferretto -t 10ms; ferretto -t 10ms");
    assert_said(&said, &["to see it: ferretto open trace-2", "exit code 0"]);
    let entries = std::fs::read_dir(user.home.path()).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let traces: Vec<String> = names.filter(|name| name.ends_with(".pftrace")).collect();
    assert_eq!(traces.len(), 3, "{traces:?}");
    for name in &traces {
        assert!(
            said.contains(&format!("bytes into {name}")) && user.has(name),
            "{name}: {said}"
        );
        // The name has the date and the time.
        let digits = name.chars().filter(char::is_ascii_digit).count();
        assert!(name.starts_with("trace-") && digits >= 14, "{name}");
    }
}

#[test]
fn a_typing_error_gets_a_suggestion() {
    let mut user = Newcomer::arrives(without_rights());
    let said = user.types("ferretto trcaed");
    assert_said(&said, &["did you mean", "ferretto traced", "exit code 1"]);
    let said = user.types("ferretto -t 5x -o trace.pftrace");
    assert_said(&said, &["--time", "\"x\"", "ms, s, m, h", "exit code 1"]);
    assert!(!user.has("trace.pftrace"));
}

#[test]
fn a_mistake_in_a_config_is_pointed_at() {
    let mut user = Newcomer::arrives(without_rights());
    let config = "buffers { size_kb: 4096 }\nduration_ms: 500\ndata_sources { config { nmae: \"linux.sys_stats\" } }\n";
    user.writes("trace.cfg", config);
    let said = user.types("ferretto -c trace.cfg -o trace.pftrace");
    assert_said(&said, &["--txt", "exit code 1"]);
    let said = user.types("ferretto --txt -c trace.cfg -o trace.pftrace");
    assert_said(
        &said,
        &[
            "trace.cfg:3:25",
            "`nmae`",
            "did you mean `name`",
            "^^^^",
            "exit code 1",
        ],
    );
    assert!(!user.has("trace.pftrace"));
    user.writes("trace.cfg", &config.replace("nmae", "name"));
    let said = user.types("ferretto --txt -c trace.cfg -o trace.pftrace");
    assert_said(&said, &["recorded 0.5 s", "exit code 0"]);
    let said = user.types("ferretto trace.cfg");
    assert_said(
        &said,
        &["is a file", "ferretto --txt -c trace.cfg", "exit code 1"],
    );
}

#[test]
fn ctrl_c_ends_the_recording_and_keeps_the_data() {
    let mut user = Newcomer::arrives(without_rights());
    user.shell.press("ferretto -t 10m -o trace.pftrace\r");
    let screen = user.shell.await_screen("the changing line", |rows| {
        rows.last()
            .is_some_and(|row| row.starts_with("recording ") && row.contains(" left"))
    });
    assert!(screen.contains("Ctrl-C"), "{screen}");
    user.shell.press("\x03");
    let screen = user.shell.await_screen("the prompt", |rows| {
        rows.last().is_some_and(|row| row == "ready>")
    });
    assert_said(
        &screen,
        &[
            "Ctrl-C: ending the recording",
            "Wrote ",
            "ferretto open trace.pftrace",
        ],
    );
    assert!(
        !screen.contains("^C") && !screen.contains("\nrecording "),
        "{screen}"
    );
    assert!(user.has("trace.pftrace"));
}

#[test]
fn a_full_disk_is_reported_before_and_after_and_leaves_whole_packets() {
    if !is_root() {
        println!("skipped: mounting a small disk needs root");
        return;
    }
    let mut user = Newcomer::arrives(User::Myself);
    // In a namespace of its own, so that the disk disappears with the command. The many processes make the trace larger than the disk, even in a
    // container.
    let said = user.types(
        "mkdir disk; unshare --mount sh -c 'for i in $(seq 99); do sleep 99 & all=\"$all $!\"; done; \
         mount -t tmpfs -o size=4k small disk && ferretto -t 1s -o disk/trace.pftrace; code=$?; \
         kill $all; ls disk | wc -l; exit $code'",
    );
    assert_said(
        &said,
        &[
            "only 4.0 KiB free for ",
            ", but the buffers hold up to 32.0 MiB",
            "cannot write disk/trace.pftrace",
            "No space left",
            "free some space",
            "of it are in disk/trace.pftrace",
            "are missing",
            "\n1\n",
            "exit code 1",
        ],
    );
}

#[test]
fn a_query_without_a_service_says_how_to_come_by_one() {
    let mut user = Newcomer::arrives(without_rights());
    let said = user.types("ferretto --query");
    assert_said(
        &said,
        &[
            "no tracing service is running",
            "linux.process_stats",
            "exit code 0",
        ],
    );
    let said = user.types("ferretto perfetto --query");
    assert_said(
        &said,
        &["no tracing service listens at", "ferretto traced", "exit code 1"],
    );
}

/// Whether this `ferretto` has this subcommand.
fn has_subcommand(name: &str) -> bool {
    let help = Command::new(FERRETTO)
        .args(["help", name])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if !help.status.success() {
        println!("skipped: there is no subcommand {name}");
    }
    help.status.success()
}

#[test]
fn a_trace_is_looked_at_and_opened_as_the_summary_says() {
    let mut user = Newcomer::arrives(without_rights());
    user.types("ferretto -t 1s -o trace.pftrace");
    if has_subcommand("info") {
        let said = user.types("ferretto info trace.pftrace");
        assert_said(&said, &["linux.process_stats", "exit code 0"]);
    }
    if has_subcommand("open") {
        let _port = UiPort::lock();
        user.shell.press("\x0cferretto open trace.pftrace\r");
        user.shell.await_screen("where to go", |rows| {
            rows.join("").contains("https://ui.perfetto.dev/")
        });
        user.shell.press("\x03");
        user.shell.await_screen("the prompt", |rows| {
            rows.last().is_some_and(|row| row == "ready>")
        });
    }
    let said = user.types("ferretto trace.pftrace");
    assert_said(
        &said,
        &[
            "ferretto open trace.pftrace",
            "ferretto info trace.pftrace",
            "exit code 1",
        ],
    );
}

#[test]
fn the_next_step_quotes_a_name_with_a_space() {
    let mut user = Newcomer::arrives(without_rights());
    let said = user.types("ferretto -t 100ms -o 'my trace'");
    assert_said(&said, &["ferretto open 'my trace'"]);
    assert!(Path::new(&user.path("my trace")).exists());
}
