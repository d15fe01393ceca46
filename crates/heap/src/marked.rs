//! Finds running processes that carry the client, and asks them to connect.
//!
//! The `thread` of an instance calls it once, when it starts. A process with the client has mapped a file with a known name, and handles the
//! signal. Both are checked right before the signal is sent to the descriptor of this process, which was opened before the checks.
//!
//! The process may still lose its handler in between, by running another program. The kernel gives the new program the default action, also for a signal
//! that came while `execve` was at work, and the default action of [`SIGNAL`] is to do nothing. So nothing is left of this race. But if the process has
//! installed a handler of its own over the client's, this handler gets the signal: nobody can tell from outside whose handler it is. Handlers of this signal
//! have to expect it at any time.

use std::fs::File;
use std::io::{BufRead, BufReader};

use ferretto_heap_client::handshake::{MARK, SIGNAL};
use ferretto_profile::guardrails::memory_kb;
use ferretto_profile::scope::cmdline_of;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::config::HeapConfig;
use crate::pidfd;
use crate::sessions::Sessions;

/// Asks all processes that the config means. Returns those that it cannot ask because another session profiles them.
pub(crate) fn ask(config: &HeapConfig, sessions: &Sessions) -> Vec<i32> {
    let mut rejected = Vec::new();
    let only_pids =
        !config.targets.all && config.targets.names.is_empty() && config.targets.patterns.is_empty();
    let pids: Vec<i32> = match only_pids {
        true => config.targets.pids.iter().copied().collect(),
        false => all_processes(),
    };
    for pid in pids {
        ask_one(pid, config, sessions, &mut rejected);
    }
    rejected
}

fn all_processes() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str().and_then(|name| name.parse().ok()))
        .collect()
}

fn ask_one(pid: i32, config: &HeapConfig, sessions: &Sessions, rejected: &mut Vec<i32>) {
    let Some(process) = Pid::from_raw(pid).filter(|process| *process != getpid()) else {
        return;
    };
    let Ok(open) = pidfd_open(process, PidfdFlags::empty()) else {
        return;
    };
    // Other users' files cannot be read, unless this is root.
    if !is_marked(pid) || !config.targets.include(pid, || cmdline_of(pid)) {
        return;
    }
    let memory = memory_kb(pid.unsigned_abs());
    if config.least_anonymous_kb > 0 && memory.is_some_and(|kb| kb < config.least_anonymous_kb) {
        return;
    }
    if sessions.is_claimed(pid) {
        rejected.push(pid);
        return;
    }
    // The command line may have taken long to read.
    if is_marked(pid) && handles_signal(pid) {
        // A process that is gone by now has nothing to be profiled.
        let _ = pidfd::send_signal(&open, SIGNAL);
    }
}

/// Whether a process has mapped the file that only clients have.
fn is_marked(pid: i32) -> bool {
    let mark = format!("/memfd:{MARK} (deleted)");
    let Ok(maps) = File::open(format!("/proc/{pid}/maps")) else {
        return false;
    };
    let mut lines = BufReader::new(maps).split(b'\n').map_while(Result::ok);
    lines.any(|line| line.ends_with(mark.as_bytes()))
}

/// Whether a process has a handler for the signal.
fn handles_signal(pid: i32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (SIGNAL - 1) != 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_without_the_client_is_neither_marked_nor_asked() {
        let own = std::process::id().cast_signed();
        assert!(!is_marked(own));
        assert!(!handles_signal(own));
    }

    #[test]
    fn a_process_that_has_lost_its_handler_is_not_ended_by_the_signal() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cat runs");
        let pid = Pid::from_child(&child);
        let mut echo = |line: &[u8; 1]| {
            child
                .stdin
                .as_mut()
                .expect("a pipe")
                .write_all(line)
                .expect("cat reads");
            let mut back = [0];
            child
                .stdout
                .as_mut()
                .expect("a pipe")
                .read_exact(&mut back)
                .expect("cat writes");
            assert_eq!(back, *line);
        };
        // It runs its own program.
        echo(b"1");
        assert!(!handles_signal(pid.as_raw_nonzero().get()));
        let open = pidfd_open(pid, PidfdFlags::empty()).expect("it is there");
        pidfd::send_signal(&open, SIGNAL).expect("it is sent");
        echo(b"2");
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
    }
}
