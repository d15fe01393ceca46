//! Whole systems for tests and benches: a service, probes and a command line, each ours or upstream's, as real processes on private sockets; and
//! queries of traces with upstream's trace processor.
//!
//! The tests and benches of this crate that run several programs use it. Nothing sleeps as synchronisation: programs report over a descriptor that
//! they are ready, and every wait has a deadline. Programs end with the [`System`] that started them. They are asked to end before they are killed,
//! because probes restore tracefs.

#![allow(dead_code, clippy::unwrap_used)] // Each program that includes this file uses a part of it.

pub(crate) mod address;
pub(crate) mod c_program;
pub(crate) mod dialect;
pub(crate) mod example;
pub(crate) mod heap_client;
pub(crate) mod heap_trace;
#[cfg(target_arch = "x86_64")]
pub(crate) mod injection;
pub(crate) mod journal;
mod machine_lock;
pub(crate) mod peers;
pub(crate) mod process;
pub(crate) mod random;
#[path = "../../../ipc/tests/reference/mod.rs"]
pub(crate) mod reference;
pub(crate) mod schema;
pub(crate) mod service;
pub(crate) mod signals;
pub(crate) mod terminal;
pub(crate) mod trace;
pub(crate) mod tracefs;
pub(crate) mod ui_port;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ferretto_proto::messages::{Message, TracingServiceState};
use reference::Reference;
pub(crate) use reference::inherited::inherit;
pub(crate) use reference::socket_folder;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

/// The time that a program has to start, to reach a state, or to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the names of the files in a folder, without their endings.
pub(crate) fn file_stems(folder: &Path) -> BTreeSet<String> {
    let stem = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        path.file_stem().unwrap().to_str().unwrap().to_owned()
    };
    std::fs::read_dir(folder).unwrap().map(stem).collect()
}

/// Checks repeatedly until it is so.
///
/// # Panics
/// If it is not so within [`PATIENCE`].
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "not so in time: {what}");
        // What is awaited needs the processor more.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The origin of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Upstream,
    Ours,
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Side::Upstream => "upstream",
            Side::Ours => "ours",
        })
    }
}

/// The programs of a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Traced,
    TracedProbes,
    /// Only ours: upstream's package has none.
    TracedPerf,
    /// Only ours, likewise.
    Heapprofd,
    /// Only ours, likewise.
    TracedRelay,
    Perfetto,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Traced => "traced",
            Program::TracedProbes => "traced_probes",
            Program::TracedPerf => "traced_perf",
            Program::Heapprofd => "heapprofd",
            Program::TracedRelay => "traced_relay",
            Program::Perfetto => "perfetto",
        }
    }
}

/// The programs of one or both sides.
pub(crate) struct Programs {
    upstream: Option<Reference>,
}

impl Programs {
    /// Only our programs.
    pub(crate) fn ours() -> Programs {
        Programs { upstream: None }
    }

    /// Our programs and upstream's; or prints that the test is skipped.
    pub(crate) fn of_both() -> Option<Programs> {
        let upstream = Some(Reference::find()?);
        Some(Programs { upstream })
    }

    /// Whether upstream's programs are among them.
    pub(crate) fn has_upstreams(&self) -> bool {
        self.upstream.is_some()
    }

    /// Returns the file of a program.
    pub(crate) fn path(&self, side: Side, program: Program) -> PathBuf {
        match (side, program) {
            (Side::Ours, Program::Traced) => env!("CARGO_BIN_EXE_traced").into(),
            (Side::Ours, Program::TracedProbes) => env!("CARGO_BIN_EXE_traced_probes").into(),
            (Side::Ours, Program::TracedPerf) => env!("CARGO_BIN_EXE_traced_perf").into(),
            (Side::Ours, Program::Heapprofd) => env!("CARGO_BIN_EXE_heapprofd").into(),
            (Side::Ours, Program::TracedRelay) => env!("CARGO_BIN_EXE_traced_relay").into(),
            (Side::Ours, Program::Perfetto) => env!("CARGO_BIN_EXE_perfetto").into(),
            (Side::Upstream, program) => {
                let upstream = self.upstream.as_ref().expect("made with of_both");
                upstream.program(program.name())
            }
        }
    }
}

/// A folder with sockets, configs, logs and traces, and the programs that run in it.
pub(crate) struct System<'a> {
    programs: &'a Programs,
    folder: tempfile::TempDir,
    running: Vec<Running>,
}

impl<'a> System<'a> {
    /// A system without programs.
    pub(crate) fn new(programs: &'a Programs) -> System<'a> {
        signals::as_usual();
        System {
            programs,
            folder: socket_folder("ferretto-test-"),
            running: Vec::new(),
        }
    }

    /// A system whose service listens and whose probes have registered their data sources.
    pub(crate) fn with_daemons(programs: &'a Programs, traced: Side, probes: Side) -> System<'a> {
        let mut system = System::new(programs);
        system.start(traced, Program::Traced);
        system.start(probes, Program::TracedProbes);
        system
    }

    /// Returns the path of a program.
    pub(crate) fn program(&self, side: Side, program: Program) -> PathBuf {
        self.programs.path(side, program)
    }

    /// Returns the path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of the socket for producers.
    pub(crate) fn producer_socket(&self) -> PathBuf {
        self.path("producer")
    }

    /// Returns the path of the socket for programs whose heaps are profiled.
    pub(crate) fn heap_socket(&self) -> PathBuf {
        self.path("heap")
    }

    /// Returns the path of the socket for consumers.
    pub(crate) fn consumer_socket(&self) -> PathBuf {
        self.path("consumer")
    }

    /// Makes a command that finds this system's sockets and writes its errors to `log` in the folder.
    pub(crate) fn command(&self, program: &Path, log: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", self.producer_socket())
            .env("PERFETTO_CONSUMER_SOCK_NAME", self.consumer_socket())
            .env("FERRETTO_HEAP_SOCK_NAME", self.heap_socket())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.path(log)).unwrap());
        command
    }

    /// Starts a daemon, and waits until it is ready; returns its process id.
    pub(crate) fn start(&mut self, side: Side, program: Program) -> u32 {
        self.start_with(side, program, |_| {})
    }

    /// Like [`System::start`], after `prepare` has changed the command.
    pub(crate) fn start_with(
        &mut self,
        side: Side,
        program: Program,
        prepare: impl FnOnce(&mut Command),
    ) -> u32 {
        self.start_copy(&self.programs.path(side, program), program, prepare)
    }

    /// Copies a program into the folder, where other users may run it.
    pub(crate) fn copy_of(&self, side: Side, program: Program) -> PathBuf {
        let copy = self.path(program.name());
        copy_program(&self.programs.path(side, program), &copy);
        copy
    }

    /// Starts the daemon in this file as [`System::start_with`] does.
    pub(crate) fn start_copy(
        &mut self,
        file: &Path,
        program: Program,
        prepare: impl FnOnce(&mut Command),
    ) -> u32 {
        let log = format!("{}.log", program.name());
        let mut command = self.command(file, &log);
        prepare(&mut command);
        self.start_command(program, command)
    }

    /// Ends the daemon with this process id, and waits for its end.
    pub(crate) fn end(&mut self, pid: u32) {
        self.running.retain(|running| running.pid() != pid);
    }

    /// Sends a signal to the daemon with this process id, and waits for its end; returns its exit status.
    pub(crate) fn end_with(&mut self, pid: u32, signal: Signal) -> Option<ExitStatus> {
        self.signal(pid, signal);
        self.await_end(pid)
    }

    /// Sends a signal to the daemon with this process id.
    pub(crate) fn signal(&self, pid: u32, signal: Signal) {
        let running = self.running.iter().find(|running| running.pid() == pid);
        running.expect("it was started").signal(signal);
    }

    /// Waits for the end of the daemon with this process id; returns its exit status.
    pub(crate) fn await_end(&mut self, pid: u32) -> Option<ExitStatus> {
        let position = self.running.iter().position(|running| running.pid() == pid)?;
        self.running.remove(position).wait(PATIENCE)
    }

    /// Ends all daemons.
    pub(crate) fn end_all(&mut self) {
        self.running.clear();
    }

    /// Starts our service with these limits of descriptors.
    pub(crate) fn start_with_descriptors(&mut self, soft: Option<u64>, hard: Option<u64>) -> u32 {
        let text = |count: Option<u64>| count.map_or("unlimited".into(), |count| count.to_string());
        let traced = self.programs.path(Side::Ours, Program::Traced);
        let mut command = self.command(Path::new("sh"), "traced.log");
        command.arg("-c").arg(format!(
            "ulimit -Sn {} && ulimit -Hn {} && exec {}",
            text(soft),
            text(hard),
            traced.display()
        ));
        self.start_command(Program::Traced, command)
    }

    /// Starts a daemon with its producer socket, or sockets, elsewhere.
    pub(crate) fn start_at(&mut self, side: Side, program: Program, producer_sockets: &str) -> u32 {
        self.start_with(side, program, |command| {
            command.env("PERFETTO_PRODUCER_SOCK_NAME", producer_sockets);
        })
    }

    fn start_command(&mut self, program: Program, mut command: Command) -> u32 {
        let log = format!("{}.log", program.name());
        let variable = match program {
            Program::Traced => "TRACED_NOTIFY_FD",
            Program::TracedProbes => "TRACED_PROBES_NOTIFY_FD",
            Program::TracedPerf => "TRACED_PERF_NOTIFY_FD",
            Program::Heapprofd => "HEAPPROFD_NOTIFY_FD",
            Program::TracedRelay => "TRACED_RELAY_NOTIFY_FD",
            Program::Perfetto => unreachable!("no daemon"),
        };
        let running = spawn_and_await(&mut command, |command, fd| {
            command.env(variable, fd.to_string());
        });
        match running {
            Ok((running, _)) => {
                let pid = running.pid();
                self.running.push(running);
                pid
            }
            Err(problem) => panic!("{}: {problem}\n{}", program.name(), self.log(&log)),
        }
    }

    /// Starts a recording of `config` (text), and waits until all its data sources have started.
    pub(crate) fn record(&self, perfetto: Side, config: &str) -> Recording {
        let (recording, status) = self.begin(&self.programs.path(perfetto, Program::Perfetto), &[], config);
        assert_eq!(status, 0, "{perfetto} perfetto says so\n{}", recording.said());
        recording
    }

    /// Starts a recording with this command line and more flags; also returns its report of the start.
    pub(crate) fn begin(&self, program: &Path, flags: &[&str], config: &str) -> (Recording, u8) {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.begin_into(program, flags, config, self.path(&format!("{number}.pftrace")))
    }

    /// Starts a recording into this file.
    pub(crate) fn begin_into(
        &self,
        program: &Path,
        flags: &[&str],
        config: &str,
        trace: PathBuf,
    ) -> (Recording, u8) {
        let name = trace.file_stem().unwrap().display().to_string();
        let config_file = self.path(&format!("{name}.cfg"));
        std::fs::write(&config_file, config).unwrap();
        let log = format!("perfetto.{name}.log");
        let mut command = self.command(program, &log);
        command
            .args(flags)
            .arg("--txt")
            .arg("-c")
            .arg(config_file)
            .arg("-o")
            .arg(&trace);
        let running = spawn_and_await(&mut command, |command, fd| {
            command.arg("--notify-fd").arg(fd.to_string());
        });
        match running {
            Ok((running, status)) => {
                let log = self.path(&log);
                (Recording { running, trace, log }, status)
            }
            Err(problem) => panic!("{}: {problem}\n{}", program.display(), self.log(&log)),
        }
    }

    /// Queries the service's state with our command line.
    pub(crate) fn state(&self) -> TracingServiceState {
        let output = self
            .command(&self.programs.path(Side::Ours, Program::Perfetto), "query.log")
            .arg("--query-raw")
            .stdout(Stdio::piped())
            .output()
            .unwrap();
        assert!(output.status.success(), "--query-raw: {}", self.log("query.log"));
        TracingServiceState::decode_from_slice(&output.stdout).unwrap()
    }

    /// Queries until the service's state is as wanted.
    pub(crate) fn await_state(&self, wanted: impl Fn(&TracingServiceState) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let state = self.state();
            if wanted(&state) {
                return;
            }
            assert!(Instant::now() < until, "not the wanted state: {state:?}");
            // Each query is a process, and what is awaited needs the processor more.
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the end of a log in the folder.
    pub(crate) fn log(&self, name: &str) -> String {
        tail(&self.path(name))
    }

    /// Fails if a daemon has ended.
    pub(crate) fn assert_running(&mut self) {
        let ended: Vec<_> = self
            .running
            .iter_mut()
            .filter_map(|running| running.0.try_wait().unwrap())
            .collect();
        assert!(
            ended.is_empty(),
            "{ended:?}\n{}\n{}",
            self.log("traced.log"),
            self.log("traced_probes.log")
        );
    }
}

impl Drop for System<'_> {
    fn drop(&mut self) {
        // The probes end before the service, because otherwise they would try to connect again.
        while let Some(running) = self.running.pop() {
            drop(running);
        }
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            println!("logs and traces are kept in {}", self.folder.path().display());
        }
    }
}

/// A running `perfetto`.
pub(crate) struct Recording {
    running: Running,
    trace: PathBuf,
    log: PathBuf,
}

impl Recording {
    /// Waits for the end of the recording; returns the trace.
    pub(crate) fn finish(self) -> PathBuf {
        self.finish_within(PATIENCE)
    }

    /// Like [`Recording::finish`], for recordings that take long.
    pub(crate) fn finish_within(mut self, patience: Duration) -> PathBuf {
        let status = self.running.wait(patience);
        assert!(
            status.is_some_and(|status| status.success()),
            "perfetto: {status:?}\n{}",
            tail(&self.log)
        );
        self.trace
    }

    /// Waits until the recording has ended in any way.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        self.running.wait(PATIENCE)
    }

    /// Returns the end of its messages.
    pub(crate) fn said(&self) -> String {
        tail(&self.log)
    }

    /// Waits until its messages contain this.
    pub(crate) fn await_said(&self, part: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.said().contains(part) {
            assert!(Instant::now() < until, "{part:?} is not said:\n{}", self.said());
            std::thread::yield_now();
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Ends the recording as Ctrl-C does; returns the trace.
    pub(crate) fn interrupt(self) -> PathBuf {
        self.running.signal(Signal::INT);
        self.finish()
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Returns the path of the trace, which may be incomplete.
    pub(crate) fn trace(&self) -> &Path {
        &self.trace
    }
}

/// A process, which is killed when this is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Starts a program that reads nothing and is not waited for.
    pub(crate) fn start(program: &Path, words: &[&str]) -> Running {
        let mut command = Command::new(program);
        Running(command.args(words).stdin(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It fails only if the process has already ended.
        let _ = rustix::process::kill_process(Pid::from_child(&self.0), signal);
    }

    /// Returns its exit status, if it ends in this time.
    pub(crate) fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        if let Some(status) = self.0.try_wait().unwrap() {
            return Some(status);
        }
        let process = rustix::process::pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).unwrap();
        is_readable(&process, patience).then(|| self.0.wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        if self.wait(PATIENCE).is_none() {
            // Both fail only if the process has already ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Copies a program by another process. If this process wrote the file, programs that other threads start meanwhile would inherit the descriptor, and
/// nobody could run the file. Everybody may run the copy, whatever the umask.
pub(crate) fn copy_program(program: &Path, to: &Path) {
    let mut install = Command::new("install");
    let copied = install.args(["-m", "755"]).arg(program).arg(to).status();
    assert!(
        copied.unwrap().success(),
        "install {} {}",
        program.display(),
        to.display()
    );
}

/// Writes a script that everybody may run, by another process as [`copy_program`] does.
pub(crate) fn write_script(file: &Path, text: &str) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(file);
    let mut writer = writer.stdin(Stdio::piped()).spawn().unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success(), "{}", file.display());
}

/// Runs `command`, which writes a byte to a descriptor when it is ready; `pass` tells the command the descriptor's number. Returns that byte.
pub(crate) fn spawn_and_await(
    command: &mut Command,
    pass: impl FnOnce(&mut Command, i32),
) -> Result<(Running, u8), String> {
    let (ready, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let number = inherit(command, &write);
    pass(command, number);
    let running = Running(command.spawn().map_err(|error| error.to_string())?);
    drop(write);
    if !is_readable(&ready, PATIENCE) {
        return Err(format!("not ready in {PATIENCE:?}"));
    }
    let mut byte = [0];
    match File::from(ready).read_exact(&mut byte) {
        Ok(()) => Ok((running, byte[0])),
        Err(_) => Err("ended before it was ready".into()),
    }
}

/// Whether there are data to read, or the end, within this time.
pub(crate) fn is_readable(fd: impl AsFd, patience: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let timeout = patience.try_into().unwrap();
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&timeout))).unwrap() > 0
}

fn tail(log: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
