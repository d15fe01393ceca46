//! Upstream's binaries as partners for tests: found, started on private sockets, ended with the test.
//!
//! They are looked for in `$PERFETTO_REFERENCE`, then in the cache folder `perfetto-reference/bin`. Tests that find none, or none that
//! this user can run, say so and pass.

#![allow(dead_code)] // Each test binary that includes this file uses a part of it.

pub(crate) mod inherited;
pub(crate) mod socket_folder;

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use ferretto_ipc::Address;
use rustix::pipe::PipeFlags;
pub(crate) use socket_folder::socket_folder;

/// A folder with `perfetto`, `traced` and `traced_probes`.
pub(crate) struct Reference {
    programs: PathBuf,
}

impl Reference {
    /// Upstream's binaries, or a line that says that the test is skipped.
    pub(crate) fn find() -> Option<Reference> {
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
        let candidates = [
            std::env::var_os("PERFETTO_REFERENCE").map(PathBuf::from),
            cache.map(|cache| cache.join("perfetto-reference/bin")),
        ];
        let programs = candidates
            .into_iter()
            .flatten()
            .find(|folder| folder.join("traced").exists());
        let Some(programs) = programs else {
            println!("skipped: upstream's binaries are not here; name their folder in PERFETTO_REFERENCE");
            return None;
        };
        static RUNS: OnceLock<bool> = OnceLock::new();
        let runs = || {
            let mut traced = Command::new(programs.join("traced"));
            let ended = traced.arg("--version").stderr(Stdio::null()).output();
            ended.is_ok_and(|output| output.status.success())
        };
        if !RUNS.get_or_init(runs) {
            let folder = programs.display();
            println!("skipped: this user cannot run upstream's binaries in {folder}");
            return None;
        }
        Some(Reference { programs })
    }

    /// The file of one of its programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Sockets in a folder of their own.
    pub(crate) fn sockets(self) -> Sockets {
        let directory = socket_folder("ferretto-test-");
        Sockets {
            programs: self.programs,
            directory,
        }
    }
}

/// Private sockets for one service and its clients.
pub(crate) struct Sockets {
    programs: PathBuf,
    directory: tempfile::TempDir,
}

impl Sockets {
    /// Where producers connect.
    pub(crate) fn producer(&self) -> Address {
        Address::Unix(self.directory.path().join("producer"))
    }

    /// Where consumers connect.
    pub(crate) fn consumer(&self) -> Address {
        Address::Unix(self.directory.path().join("consumer"))
    }

    /// A file beside the sockets.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// One of upstream's programs, to be run on these sockets.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", self.producer().to_string())
            .env("PERFETTO_CONSUMER_SOCK_NAME", self.consumer().to_string())
            .stdin(Stdio::null());
        command
    }

    /// Upstream's service, listening when this returns.
    pub(crate) fn start_traced(&self) -> Running {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let mut command = self.command("traced");
        let number = inherited::inherit(&mut command, &write);
        let child = command
            .env("TRACED_NOTIFY_FD", number.to_string())
            .stderr(Stdio::null())
            .spawn()
            .expect("traced starts");
        drop(write);
        let running = Running(child);
        File::from(read)
            .read_exact(&mut [0])
            .expect("traced tells that it listens");
        running
    }
}

/// A process that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Either fails only when the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
