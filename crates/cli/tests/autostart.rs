//! The service that `ferretto` starts for itself: the conditions, its messages, and its remains after a kill.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use crate::support::PATIENCE;
use crate::support::address::abandoned_socket;
use rustix::process::{Pid, Signal, kill_process};

const FERRETTO: &str = env!("CARGO_BIN_EXE_ferretto");

/// A folder for everything: temporary files, traces, sockets without listeners.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        crate::support::signals::as_usual();
        let home = crate::support::socket_folder("home-");
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o777)).unwrap();
        Home(home)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn ferretto(&self, words: &[&str]) -> Command {
        let mut command = Command::new(FERRETTO);
        command
            .args(words)
            .current_dir(self.0.path())
            .env("TMPDIR", self.0.path())
            .env("PERFETTO_CONSUMER_SOCK_NAME", self.path("consumer"))
            .env("PERFETTO_PRODUCER_SOCK_NAME", self.path("producer"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Returns the folders of sockets.
    fn folders(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut folders: Vec<String> = names.filter(|name| name.starts_with("ferretto-")).collect();
        folders.sort();
        folders
    }
}

fn run(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn advice_from_its_daemons_is_readable() {
    let home = Home::new();
    let config = "buffers { size_kb: 64 } duration_ms: 10 data_sources { config { name: \"linux.ftrace\" ftrace_config { \
                  instance_name: \"no-such-instance\" ftrace_events: \"sched/sched_switch\" } } }";
    std::fs::write(home.path("trace.cfg"), config).unwrap();
    // Without access to tracefs, or without tracefs, the advice is another one of the same kind.
    let (_, said) = run(home.ferretto(&["--txt", "-c", "trace.cfg", "-o", "trace"]));
    assert!(said.contains("linux.ftrace could not be set up: "), "{said}");
    assert!(!said.contains("\\n") && said.contains('`'), "{said}");
}

#[test]
fn a_link_to_a_socket_without_a_listener_is_no_service() {
    let home = Home::new();
    symlink(home.path("nowhere"), home.path("consumer")).unwrap();
    let (code, said) = run(home.ferretto(&["-t", "10ms", "-o", "trace"]));
    assert_eq!(code, Some(0), "{said}");
    // A socket whose owner has ended.
    abandoned_socket(&home.path("nowhere"));
    let (code, said) = run(home.ferretto(&["-t", "10ms", "-o", "trace"]));
    assert_eq!(code, Some(0), "{said}");
    assert!(home.path("consumer").is_symlink(), "it is not ours to remove");
}

#[test]
fn a_long_name_of_the_folder_for_temporary_files_is_no_obstacle() {
    let home = Home::new();
    let long = home.path(&"x".repeat(100));
    std::fs::create_dir(&long).unwrap();
    let mut command = home.ferretto(&["-t", "10ms", "-o", "trace"]);
    command.env("TMPDIR", long);
    let (code, said) = run(command);
    assert_eq!(code, Some(0), "{said}");
}

/// Starts a long recording; returns once its own service is there.
fn endless(home: &Home) -> Child {
    let before = home.folders();
    let child = home.ferretto(&["-t", "0", "-o", "endless"]).spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    let is_new = |folder: &String| !before.contains(folder) && home.path(folder).join("consumer").exists();
    let folder = loop {
        assert!(Instant::now() < until, "it starts no service");
        if let Some(folder) = home.folders().into_iter().find(is_new) {
            break home.path(&folder);
        }
    };
    // A signal before the recording has begun gives it up.
    let is_recording = || {
        let mut list = home.ferretto(&["list", "sessions", "--json"]);
        list.env("PERFETTO_CONSUMER_SOCK_NAME", folder.join("consumer"));
        String::from_utf8_lossy(&list.output().unwrap().stdout).contains("STARTED")
    };
    while !is_recording() {
        assert!(Instant::now() < until, "it does not record");
    }
    child
}

#[test]
fn the_folder_of_a_run_that_was_killed_is_removed_by_the_next() {
    let home = Home::new();
    let mut killed = endless(&home);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = home.folders();
    assert_eq!(left.len(), 1);

    // Folders that must remain: one in use, and others with unrelated content.
    let running = endless(&home);
    std::fs::create_dir(home.path("ferretto-of-somebody")).unwrap();
    std::fs::write(home.path("ferretto-of-somebody").join("data"), "of value").unwrap();
    std::fs::create_dir(home.path("value")).unwrap();
    std::fs::write(home.path("value").join("owner"), "1").unwrap();
    symlink(home.path("value"), home.path("ferretto-link")).unwrap();
    let (code, said) = run(home.ferretto(&["-t", "10ms", "-o", "trace"]));
    assert_eq!(code, Some(0), "{said}");

    let after = home.folders();
    assert!(!after.contains(&left[0]), "{after:?}");
    assert_eq!(
        after.len(),
        3,
        "of the one that runs, and two of others: {after:?}"
    );
    assert_eq!(
        std::fs::read(home.path("ferretto-of-somebody").join("data")).unwrap(),
        b"of value"
    );
    assert!(home.path("value").join("owner").exists() && home.path("ferretto-link").is_symlink());

    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    let ended = running.wait_with_output().unwrap();
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert_eq!(home.folders(), ["ferretto-link", "ferretto-of-somebody"]);
}

#[test]
fn a_folder_of_another_user_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a folder to another user");
        return;
    }
    let home = Home::new();
    let mut killed = endless(&home);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = home.folders();
    std::os::unix::fs::chown(home.path(&left[0]), Some(65534), Some(65534)).unwrap();
    let (code, said) = run(home.ferretto(&["-t", "10ms", "-o", "trace"]));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(home.folders(), left);
}

#[test]
fn programs_that_go_on_as_another_user_reach_the_heap_profiler_and_cannot_record() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    const MODES: &str = "cd ${FERRETTO_HEAP_SOCK_NAME%/*} && stat -c '%n %a' . heap consumer >&2";
    for umask in ["022", "077"] {
        let home = Home::new();
        let mut command = Command::new("sh");
        let record = "umask $0; exec \"$@\"";
        command
            .args(["-c", record, umask, FERRETTO])
            .args(["-t", "30s", "-o", "trace", "--", "sh", "-c", MODES])
            .current_dir(home.0.path())
            .env("TMPDIR", home.0.path())
            .env("PERFETTO_CONSUMER_SOCK_NAME", home.path("consumer"))
            .env("PERFETTO_PRODUCER_SOCK_NAME", home.path("producer"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (_, said) = run(command);
        assert!(said.contains(". 711\n"), "{umask}: {said}");
        assert!(said.contains("heap 666\n"), "{umask}: {said}");
        // Recording shows the activity of all processes.
        let consumer = said.lines().find_map(|line| line.strip_prefix("consumer "));
        let mode = consumer.and_then(|mode| u32::from_str_radix(mode, 8).ok());
        assert!(mode.is_some_and(|mode| mode & 0o002 == 0), "{umask}: {said}");
    }
}
