//! The other processes: a tracing service of its own for each measurement, and a recording with upstream's command line.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use ferretto_bench_sdk::cpu;

/// How long a program may take to start, and a recording to be written.
const PATIENCE: Duration = Duration::from_secs(180);

/// The same for all: one session with track events, into a buffer that holds all of them, and from there into the file when it is
/// over, so that reading is no part of the measurement.
const CONFIG: &str = r#"
buffers { size_kb: 1572864 fill_policy: RING_BUFFER }
data_sources { config { name: "track_event" track_event_config { enabled_categories: "*" } } }
write_into_file: true
file_write_period_ms: 3600000
flush_period_ms: 3600000
"#;

/// The programs around the peers.
pub(crate) struct Programs {
    pub(crate) traced: PathBuf,
    pub(crate) perfetto: PathBuf,
    /// Upstream's trace processor: `tpq TRACE SQL`, `tpq --stats TRACE`.
    pub(crate) tpq: Option<PathBuf>,
}

/// A running service, which ends with this.
pub(crate) struct Service {
    process: Child,
    directory: PathBuf,
}

impl Service {
    pub(crate) fn start(programs: &Programs, directory: &Path) -> Result<Service, String> {
        fs::create_dir_all(directory).map_err(|error| format!("making {}: {error}", directory.display()))?;
        let mut command = Command::new(&programs.traced);
        let log =
            File::create(directory.join("traced.log")).map_err(|error| format!("making a log: {error}"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        address(&mut command, directory);
        let process = command
            .spawn()
            .map_err(|error| format!("starting {}: {error}", programs.traced.display()))?;
        let service = Service {
            process,
            directory: directory.to_owned(),
        };
        let begin = Instant::now();
        for socket in [PRODUCER, CONSUMER] {
            while UnixStream::connect(directory.join(socket)).is_err() {
                if begin.elapsed() > PATIENCE {
                    return Err(format!("{} does not listen", programs.traced.display()));
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(service)
    }

    /// Tells a program where the service is.
    pub(crate) fn address(&self, command: &mut Command) {
        address(command, &self.directory);
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(&self.process)
    }

    /// Its use so far.
    pub(crate) fn cpu_time(&self) -> Result<Duration, String> {
        cpu::process_time(self.pid()).map_err(|error| format!("reading the service's time: {error}"))
    }

    pub(crate) fn record(&self, programs: &Programs) -> Result<Recording, String> {
        let trace = self.directory.join("trace.pftrace");
        let log = self.directory.join("perfetto.log");
        let mut command = Command::new(&programs.perfetto);
        command.args(["--txt", "-c", "-", "-o"]).arg(&trace);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(File::create(&log).map_err(|error| format!("making a log: {error}"))?);
        self.address(&mut command);
        let mut process = command
            .spawn()
            .map_err(|error| format!("starting {}: {error}", programs.perfetto.display()))?;
        process
            .stdin
            .take()
            .map_or(Ok(()), |mut stdin| stdin.write_all(CONFIG.as_bytes()))
            .map_err(|error| format!("sending the config: {error}"))?;
        Ok(Recording { process, trace, log })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A recording under way.
pub(crate) struct Recording {
    process: Child,
    trace: PathBuf,
    log: PathBuf,
}

impl Recording {
    /// Ends it: everything that was committed, and the data still in shared memory, is in the file then.
    pub(crate) fn stop(mut self) -> Result<PathBuf, String> {
        kill_process(pid(&self.process), Signal::INT)
            .map_err(|error| format!("stopping the recording: {error}"))?;
        let begin = Instant::now();
        loop {
            if let Some(status) = self
                .process
                .try_wait()
                .map_err(|error| format!("waiting: {error}"))?
            {
                if status.success() {
                    return Ok(std::mem::take(&mut self.trace));
                }
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("the recording failed with {status}: {log}"));
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("the recording does not end in {PATIENCE:?}"));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // It has ended, unless something went wrong.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const PRODUCER: &str = "producer.sock";
const CONSUMER: &str = "consumer.sock";

fn address(command: &mut Command, directory: &Path) {
    command
        .env("PERFETTO_PRODUCER_SOCK_NAME", directory.join(PRODUCER))
        .env("PERFETTO_CONSUMER_SOCK_NAME", directory.join(CONSUMER));
}

fn pid(process: &Child) -> Pid {
    Pid::from_child(process)
}
