//! Runs peers' programs, each against a service of its own, and reports their output and its consequences.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use ferretto_bench_sdk::description::Description;
use ferretto_bench_sdk::order::Order;
use ferretto_bench_sdk::peer::{Destination, Tracing};

use crate::system::{Programs, Recording, Service};
use crate::trace::{self, Contents};

/// A peer's program.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    path: PathBuf,
    pub(crate) description: Description,
}

impl Program {
    /// The program of a peer, which is beside this one if it was built.
    pub(crate) fn find(name: &'static str) -> Result<Option<Program>, String> {
        let this = env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
        let path = this.with_file_name(name);
        if !path.exists() {
            return Ok(None);
        }
        let output = Command::new(&path)
            .arg("describe")
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("starting {}: {error}", path.display()))?;
        let description = String::from_utf8_lossy(&output.stdout).parse()?;
        Ok(Some(Program {
            name,
            path,
            description,
        }))
    }
}

/// The output of a process, and observations around it.
#[derive(Default)]
pub(crate) struct Outcome {
    /// For each batch, the CPU time of each thread.
    pub(crate) batches: Vec<Vec<Duration>>,
    /// Of a load: the time it took, and how often the case was done.
    pub(crate) load: Option<(Duration, u64)>,
    /// CPU time of the service from the first event to when all had settled.
    pub(crate) service: Option<Duration>,
    /// The trace, if there is one.
    pub(crate) contents: Option<Contents>,
}

impl Outcome {
    /// How many of the events are not in the trace. Peers without one lose nothing here.
    pub(crate) fn lost(&self, order: &Order) -> u64 {
        let done = self.load.map_or(order.total(), |(_, done)| done);
        let written = done * order.case.events();
        self.contents
            .map_or(0, |contents| written.saturating_sub(contents.events))
    }
}

/// The program that runs the process, if not the system alone.
#[derive(Clone, Copy)]
pub(crate) enum Under<'a> {
    Nothing,
    /// Callgrind, which writes what each thread executed into files of this prefix.
    Callgrind(&'a Path),
}

/// The fate of the trace after its events are counted.
pub(crate) enum Trace<'a> {
    Drop,
    /// It is looked at.
    Judge(&'a dyn Fn(&Path) -> Result<(), String>),
}

/// Carries out one order.
pub(crate) fn run(
    peer: &Program,
    order: &Order,
    programs: &Programs,
    directory: &Path,
    under: Under<'_>,
    trace: &Trace<'_>,
) -> Result<Outcome, String> {
    let through_service = peer.description.destination == Destination::Service;
    let service = through_service
        .then(|| Service::start(programs, &directory.join("service")))
        .transpose()?;
    let recording = match (&service, order.tracing) {
        (Some(service), Tracing::On) => Some(service.record(programs)?),
        _ => None,
    };
    carry_out(peer, order, service.as_ref(), recording, under, trace).map_err(|reason| {
        let state = if order.tracing == Tracing::On {
            ""
        } else {
            ", tracing off"
        };
        format!("{}, {}{state}: {reason}", peer.name, order.case)
    })
}

fn carry_out(
    peer: &Program,
    order: &Order,
    service: Option<&Service>,
    recording: Option<Recording>,
    under: Under<'_>,
    trace: &Trace<'_>,
) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let mut process = Process::start(peer, order, service, under)?;
    process.lines_until("begin", |_| Ok(()))?;
    let before = service.map(Service::cpu_time).transpose()?;
    process.go_on()?;
    process.lines_until("end", |line| outcome.take(line))?;
    let after = service.map(Service::cpu_time).transpose()?;
    outcome.service = after
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    if let Some(recording) = recording {
        let path = recording.stop()?;
        outcome.contents = Some(trace::count(&path)?);
        if let Trace::Judge(judge) = trace {
            judge(&path)?;
        }
        // Before the next of these, not when the service goes.
        fs::remove_file(&path).map_err(|error| format!("removing {}: {error}", path.display()))?;
    }
    process.finish()?;
    Ok(outcome)
}

impl Outcome {
    fn take(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words
            .map(|word| word.parse().map_err(|error| format!("{line}: {error}")))
            .collect::<Result<_, String>>()?;
        match (kind, numbers.as_slice()) {
            ("batch", times) => {
                self.batches
                    .push(times.iter().copied().map(Duration::from_nanos).collect());
            }
            ("load", &[took, done]) => self.load = Some((Duration::from_nanos(took), done)),
            _ => return Err(format!("it said {line}")),
        }
        Ok(())
    }
}

/// A process that carries out an order.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(
        peer: &Program,
        order: &Order,
        service: Option<&Service>,
        under: Under<'_>,
    ) -> Result<Process, String> {
        let mut command = match under {
            Under::Nothing => Command::new(&peer.path),
            Under::Callgrind(prefix) => {
                let mut command = Command::new("valgrind");
                command.args(["-q", "--tool=callgrind", "--separate-threads=yes"]);
                command.arg("--toggle-collect=ferretto_bench_sdk::measure::timed*");
                command.arg(format!("--callgrind-out-file={}", prefix.display()));
                command.arg("--log-file=/dev/null").arg(&peer.path);
                command
            }
        };
        command
            .args(order.to_words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // The libraries talk, of reconnecting for example; what matters is on stdout.
        if env::var_os("BENCH_VERBOSE").is_none() {
            command.stderr(Stdio::null());
        }
        if let Some(service) = service {
            service.address(&mut command);
        }
        let mut child = command.spawn().map_err(|error| format!("starting it: {error}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("it has no output")?;
        Ok(Process {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    fn lines_until(
        &mut self,
        last: &str,
        mut each: impl FnMut(&str) -> Result<(), String>,
    ) -> Result<(), String> {
        loop {
            let mut line = String::new();
            let length = self
                .stdout
                .read_line(&mut line)
                .map_err(|error| format!("listening: {error}"))?;
            if length == 0 {
                return Err(format!(
                    "it ended before it said {last} (BENCH_VERBOSE=1 shows why)"
                ));
            }
            match line.trim_end() {
                line if line == last => return Ok(()),
                line => each(line)?,
            }
        }
    }

    fn go_on(&mut self) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("it was told to leave")?;
        writeln!(stdin).map_err(|error| format!("telling it to go on: {error}"))
    }

    fn finish(mut self) -> Result<(), String> {
        self.stdin = None;
        let status = self
            .child
            .wait()
            .map_err(|error| format!("waiting for it: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("it ended with {status}"))
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended, unless something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
