//! `tracebox ctl start|stop|status`: runs service and probes in the background, for any number of recordings.
//!
//! [`tracebox`](super) calls it. The daemons listen at the usual sockets, or at those in the environment variables. Their process ids are kept in a
//! file for each consumer socket, in the folder of this user's ftrace journals. Nobody else can write there, so nobody else decides which process
//! `stop` ends. A process counts as one of the daemons only if it was started under the daemon's name. Exit codes: 0 if they run (`stop`: if they
//! have ended), 3 from `status` if they do not, 4 if that is unknown, 1 for failures and for a wrong command line.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Command;
use ferretto_ipc::Address;
use ferretto_ipc::socket_names::{consumer_address, producer_addresses};
use ferretto_probes::ftrace::restore::JournalDir;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::autostart::{self, InBackground};
use crate::machine::{ThisMachine, process_named};
use crate::running::{self, Found, Running};
use crate::stderr;
use crate::usage;

const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;
const NOT_RUNNING: u8 = 3;
const NOT_KNOWN: u8 = 4;
/// The name in its messages.
const NAME: &str = "tracebox ctl";
/// The time that a daemon has to end. For the probes that includes restoring tracefs.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn command() -> Command {
    Command::new("ctl")
        .bin_name(NAME)
        .about("Keeps service and probes in the background")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(
            Command::new("start")
                .about("Starts service and probes, unless they run; recordings of tracebox use them then"),
        )
        .subcommand(Command::new("stop").about("Ends those that `start` has started"))
        .subcommand(Command::new("status").about("Says whether they run, and where they listen"))
}

/// Runs with the arguments from `ctl` on; returns the exit code.
pub(super) fn run(words: Vec<OsString>) -> u8 {
    let matches = match command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(message) => {
            usage::print(NAME, &message);
            return u8::from(message.use_stderr());
        }
    };
    let done = Daemons::look().and_then(|daemons| match matches.subcommand_name() {
        Some("start") => daemons.start(),
        Some("stop") => daemons.stop(),
        _ => daemons.status(),
    });
    done.unwrap_or_else(|problem| {
        stderr::say(NAME, &problem);
        FAILURE
    })
}

/// Whether `start` has started a daemon for this address that is still alive.
pub(super) fn has_started(consumers: &Address) -> bool {
    files(consumers)
        .iter()
        .any(|file| read(file).iter().any(is_alive))
}

/// Prints a line of the answer. A closed pipe is no failure.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn file_name(consumers: &Address) -> String {
    format!("ctl-{}", consumers.to_string().replace('/', "%"))
}

/// Returns the possible files for the process ids.
fn files(consumers: &Address) -> [PathBuf; 2] {
    let name = file_name(consumers);
    let uid = rustix::process::geteuid().as_raw();
    JournalDir::places(uid).map(|folder| folder.join(&name))
}

/// Reads a file of lines `name pid`.
fn read(file: &PathBuf) -> Vec<InBackground> {
    // A file that others could have written proves nothing.
    if file
        .parent()
        .is_none_or(|folder| JournalDir::check(folder).is_err())
    {
        return Vec::new();
    }
    let text = fs::read_to_string(file).unwrap_or_default();
    let process = |line: &str| {
        let (name, pid) = line.split_once(' ')?;
        let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
        let name = name.to_owned();
        Some(InBackground { name, pid })
    };
    text.lines().filter_map(process).collect()
}

/// Whether a daemon is alive. Process ids are reused, so its command line must begin with the daemon's name, or have it as the second word, whatever
/// the name of the program's file.
fn is_alive(daemon: &InBackground) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", daemon.pid)).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).take(2);
    words.any(|word| word.rsplit(|byte| *byte == b'/').next() == Some(daemon.name.as_bytes()))
}

/// Describes the process that listens.
fn listener(running: &Running) -> String {
    let pid = running.listener.and_then(|listener| listener.pid);
    let process = pid.and_then(|pid| process_named(&ThisMachine, pid));
    process.map_or("somebody".to_owned(), |process| process.to_string())
}

/// The daemons of one user and address.
struct Daemons {
    consumers: Address,
    producers: Vec<Address>,
    /// The daemons that `start` has started, alive or not, in the order of their start.
    started: Vec<InBackground>,
}

impl Daemons {
    fn look() -> Result<Daemons, String> {
        let consumers = consumer_address().map_err(|error| error.to_string())?;
        Ok(Daemons {
            producers: producer_addresses().map_err(|error| error.to_string())?,
            started: files(&consumers).iter().flat_map(read).collect(),
            consumers,
        })
    }

    /// Returns the daemons from `start` that are still alive.
    fn alive(&self) -> Vec<InBackground> {
        let alive = self.started.iter().filter(|daemon| is_alive(daemon));
        alive.cloned().collect()
    }

    fn sockets(&self) -> String {
        let producers: Vec<String> = self.producers.iter().map(ToString::to_string).collect();
        format!(
            "{} for consumers, {} for producers",
            self.consumers,
            producers.join(" and ")
        )
    }

    fn start(&self) -> Result<u8, String> {
        match running::ask()?.found {
            Found::Service(running) => {
                say(&format!(
                    "Daemons are already running: {} listens at {}",
                    listener(&running),
                    self.sockets()
                ));
                return Ok(SUCCESS);
            }
            // A process listens there, so a new service could not.
            Found::Silent(reason) => return Err(reason),
            Found::Nobody | Found::LeftOver => {}
        }
        // Probes whose service has crashed wait for another one. They would offer the same data sources a second time.
        self.end(&self.alive())?;
        let mut started: Vec<InBackground> = Vec::new();
        let outcome = autostart::start_in_background(|daemon| {
            say(&format!("{} started (PID: {})", daemon.name, daemon.pid));
            started.push(daemon);
            self.keep(&started)
        });
        match outcome {
            Ok(()) => {
                say(&format!("Listening at {}", self.sockets()));
                Ok(SUCCESS)
            }
            Err(problem) => {
                // One daemon without the other is of no use.
                let ended = self.end(&started);
                Err(match ended {
                    Ok(()) => problem,
                    Err(also) => format!("{problem}; and then {also}"),
                })
            }
        }
    }

    fn stop(&self) -> Result<u8, String> {
        let alive = self.alive();
        if alive.is_empty() {
            return match running::ask()?.found {
                Found::Service(running) => Err(format!(
                    "{} listens at {}, but `tracebox ctl start` did not start it: end it where it was started",
                    listener(&running),
                    self.consumers
                )),
                Found::Silent(reason) => Err(reason),
                Found::Nobody | Found::LeftOver => {
                    self.forget();
                    say("No daemons are running");
                    Ok(SUCCESS)
                }
            };
        }
        self.end(&alive)?;
        Ok(SUCCESS)
    }

    /// Ends daemons, the last one first, because probes without a service would wait for another one.
    fn end(&self, daemons: &[InBackground]) -> Result<(), String> {
        if daemons.is_empty() {
            // The file may be from another `start` that has just run.
            return Ok(());
        }
        for daemon in daemons.iter().rev() {
            end(daemon)
                .map_err(|error| format!("{} (PID: {}) was not ended: {error}", daemon.name, daemon.pid))?;
            say(&format!("{} terminated (PID: {})", daemon.name, daemon.pid));
        }
        self.forget();
        Ok(())
    }

    fn status(&self) -> Result<u8, String> {
        let (line, code) = match running::ask()?.found {
            Found::Service(running) => {
                let line = format!(
                    "Daemons are running: {} listens at {}",
                    listener(&running),
                    self.sockets()
                );
                (line, SUCCESS)
            }
            Found::Nobody | Found::LeftOver => {
                let line = format!("No daemons are running: nobody listens at {}", self.consumers);
                (line, NOT_RUNNING)
            }
            Found::Silent(reason) => (reason, NOT_KNOWN),
        };
        say(&line);
        for daemon in &self.started {
            let state = if is_alive(daemon) { "running" } else { "ended" };
            say(&format!("{}: {state} (PID: {})", daemon.name, daemon.pid));
        }
        Ok(code)
    }

    /// Stores the process ids of started daemons for later calls.
    fn keep(&self, started: &[InBackground]) -> Result<(), String> {
        let mut text = String::new();
        for daemon in started {
            text.push_str(&format!("{} {}\n", daemon.name, daemon.pid));
        }
        let mut problem = "no folder for that could be made".to_owned();
        for file in files(&self.consumers) {
            let kept = match file.parent().map(JournalDir::at) {
                Some(Ok(folder)) => {
                    // A file of daemons that were killed is out of date.
                    let _ = fs::remove_file(&file);
                    let written = folder
                        .create(&file_name(&self.consumers))
                        .and_then(|mut file| file.write_all(text.as_bytes()));
                    written.map_err(|error| format!("{}: {error}", file.display()))
                }
                Some(Err(error)) => Err(error.to_string()),
                None => continue,
            };
            match kept {
                Ok(()) => return Ok(()),
                Err(why) => problem = why,
            }
        }
        Err(format!("cannot keep the process ids of the daemons: {problem}"))
    }

    fn forget(&self) {
        for file in files(&self.consumers) {
            // A file that cannot be removed only names processes that have ended.
            let _ = fs::remove_file(file);
        }
    }
}

/// Asks a daemon to end, and waits for it.
fn end(daemon: &InBackground) -> io::Result<()> {
    let pid = Pid::from_raw(daemon.pid).ok_or_else(|| io::Error::other("this is no process id"))?;
    let process = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        process => process?,
    };
    // The descriptor pins the process, so its id cannot be reused from here on.
    if !is_alive(daemon) {
        return Ok(());
    }
    rustix::process::pidfd_send_signal(&process, Signal::TERM)?;
    let timeout = PATIENCE.try_into().map_err(io::Error::other)?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&timeout)))? {
        0 => Err(io::Error::other("it was told to end, and has not within 10 s")),
        _ => Ok(()),
    }
}
