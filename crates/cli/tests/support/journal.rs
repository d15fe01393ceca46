//! A systemd-journald of its own, which nobody else writes to or reads: `scripts/with-journal` from inside of tests. It ends with its
//! value, or with the test.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// See the [module](self).
pub(crate) struct PrivateJournal {
    script: Child,
    /// The script's command reads from it, and ends with it.
    input: Option<ChildStdin>,
    socket: UnixDatagram,
}

impl PrivateJournal {
    /// One that takes messages, or a line that says that the test is skipped.
    pub(crate) fn start() -> Option<PrivateJournal> {
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/with-journal"))
            .args(["sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let output = script.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut said).unwrap();
        if said.starts_with("skipped:") {
            print!("{said}");
            script.wait().unwrap();
            return None;
        }
        assert_eq!(said, "ready\n");
        let input = script.stdin.take();
        let socket = UnixDatagram::unbound().unwrap();
        let journal = PrivateJournal {
            script,
            input,
            socket,
        };
        let address = journal.root().join("run/systemd/journal/socket");
        journal.socket.connect(address).unwrap();
        // The daemon's own entries about its start come first.
        journal.settle();
        Some(journal)
    }

    /// The process whose mount namespace has the journal.
    pub(crate) fn pid(&self) -> u32 {
        self.script.id()
    }

    /// The files as those see them who are inside.
    pub(crate) fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid()))
    }

    /// The words that start a program inside.
    pub(crate) fn nsenter(&self) -> [String; 2] {
        [format!("--mount=/proc/{}/ns/mnt", self.pid()), "--".to_owned()]
    }

    /// Sends an entry with these fields, as programs do (https://systemd.io/JOURNAL_NATIVE_PROTOCOL). Waits while the daemon is busy.
    pub(crate) fn send(&self, fields: &[(&str, &[u8])]) {
        let mut datagram = Vec::new();
        for (name, value) in fields {
            datagram.extend_from_slice(name.as_bytes());
            datagram.push(b'\n');
            datagram.extend_from_slice(&(value.len() as u64).to_le_bytes());
            datagram.extend_from_slice(value);
            datagram.push(b'\n');
        }
        assert_eq!(self.socket.send(&datagram).unwrap(), datagram.len());
    }

    /// The output of `journalctl` inside.
    pub(crate) fn journalctl(&self, arguments: &[&str]) -> String {
        let output = Command::new("nsenter")
            .args(self.nsenter())
            .args(["journalctl", "--quiet", "--no-pager"])
            .args(arguments)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "journalctl {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the journal has everything that was sent.
    pub(crate) fn settle(&self) {
        let marker = format!("settled-{}", std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        self.send(&[("FERRETTO_MARKER", marker.as_bytes())]);
        let wanted = format!("FERRETTO_MARKER={marker}");
        let until = Instant::now() + Duration::from_secs(120);
        while self.journalctl(&["--output=json", &wanted]).is_empty() {
            assert!(Instant::now() < until, "the journal does not have {marker}");
            std::thread::yield_now();
        }
    }
}

impl Drop for PrivateJournal {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.script.wait();
    }
}
