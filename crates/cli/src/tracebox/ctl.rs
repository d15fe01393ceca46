//! `tracebox ctl start|stop|status`: service and probes in the background, for as many recordings as come.
//!
//! Called by [`tracebox`](super). They listen at the usual sockets, or where the variables say. Which processes they are is kept in a file
//! for each consumer socket, in the folder that this user's journals of ftrace are in: nobody else can write there, so nobody else
//! decides what `stop` ends. A process is taken for one of them only if it is called so. Exit codes: 0 if they run (`stop`: if they
//! have ended), 3 from `status` if they do not, 4 if that is not known, 1 for failures and words that make no sense.

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
use crate::usage;

const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;
const NOT_RUNNING: u8 = 3;
const NOT_KNOWN: u8 = 4;
/// The name it speaks under.
const NAME: &str = "tracebox ctl";
/// How long a daemon has to end, which for the probes includes putting tracefs back.
const PATIENCE: Duration = Duration::from_secs(10);

/// The definition of its words.
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

/// Runs with the words from `ctl` on; gives the exit code.
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
        let _ = writeln!(io::stderr(), "{NAME}: {problem}");
        FAILURE
    })
}

/// Whether `start` has started a service at this address, which has not ended.
pub(super) fn has_started(consumers: &Address) -> bool {
    files(consumers)
        .iter()
        .any(|file| read(file).iter().any(is_alive))
}

/// A line of an answer. A reader that has gone is no failure.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn file_name(consumers: &Address) -> String {
    format!("ctl-{}", consumers.to_string().replace('/', "%"))
}

/// The files in which processes may be kept.
fn files(consumers: &Address) -> [PathBuf; 2] {
    let name = file_name(consumers);
    let uid = rustix::process::geteuid().as_raw();
    JournalDir::places(uid).map(|folder| folder.join(&name))
}

/// `name pid`, one a line.
fn read(file: &PathBuf) -> Vec<InBackground> {
    // What others could have written says nothing.
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

/// Process ids are used again, so it counts as well what the process was started as: by that name, or with that word, whatever the
/// program's file is called.
fn is_alive(daemon: &InBackground) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", daemon.pid)).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).take(2);
    words.any(|word| word.rsplit(|byte| *byte == b'/').next() == Some(daemon.name.as_bytes()))
}

/// The process that listens.
fn listener(running: &Running) -> String {
    let pid = running.listener.and_then(|listener| listener.pid);
    let process = pid.and_then(|pid| process_named(&ThisMachine, pid));
    process.map_or("somebody".to_owned(), |process| process.to_string())
}

/// What there is.
struct Daemons {
    consumers: Address,
    producers: Vec<Address>,
    /// Those that were started here, alive or not, in the order of their start.
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

    /// Those that `start` has started and that have not ended.
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
            // A second service could not listen there.
            Found::Silent(reason) => return Err(reason),
            Found::Nobody | Found::LeftOver => {}
        }
        // Probes whose service has crashed wait for another: they would offer the same data sources again.
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
                // Half of them is of no use.
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

    /// Ends them, the last one first: probes without a service would wait for another.
    fn end(&self, daemons: &[InBackground]) -> Result<(), String> {
        if daemons.is_empty() {
            // What is kept may be what another `start` has just started.
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

    /// Keeps what was started, for who comes later.
    fn keep(&self, started: &[InBackground]) -> Result<(), String> {
        let mut text = String::new();
        for daemon in started {
            text.push_str(&format!("{} {}\n", daemon.name, daemon.pid));
        }
        let mut problem = "no folder for that could be made".to_owned();
        for file in files(&self.consumers) {
            let kept = match file.parent().map(JournalDir::at) {
                Some(Ok(folder)) => {
                    // What one that was killed has left says nothing any more.
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
            // One that is left names processes that have ended.
            let _ = fs::remove_file(file);
        }
    }
}

/// Tells a daemon to end, and waits until it has.
fn end(daemon: &InBackground) -> io::Result<()> {
    let pid = Pid::from_raw(daemon.pid).ok_or_else(|| io::Error::other("this is no process id"))?;
    let process = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        process => process?,
    };
    // From here on the id is not given to another one.
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
