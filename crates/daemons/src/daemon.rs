//! The common part of all daemons: flags, the exit code, and the steps from the start to the service of clients. Each
//! step is reported to the processes that wait for it.
//!
//! A daemon's `serve` gets a [`Startup`]. `begin` has then already taken over the descriptors that the daemon was given. The daemon may first [go on
//! in the background](Startup::go_into_background), then open its sockets and files. It calls [`Startup::started`] when it can no longer fail to
//! start, and [`Startup::ready`] when it serves clients.

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgAction, Args, Parser};
use ferretto_ipc::reactor::Signal;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions};

use crate::background::{self, Forked};
use crate::inherited::{self, ServiceManager};
use crate::log::{self, Level};
use crate::sandbox::Policy;
use crate::starter;

/// The flags of every daemon. `--version` and `--help` take effect where they stand, as in upstream's `getopt_long`, and all later words are ignored.
#[derive(Debug, Args)]
pub struct Flags {
    /// Start in the background: prints the daemon's process id and ends once the daemon is up, or fails with it.
    #[arg(long)]
    background: bool,
    /// Log only warnings and errors.
    #[arg(long)]
    quiet: bool,
    /// Keep all rights that the user has. Without this flag, a daemon gives up what it does not need: capabilities, system calls, and where it can, files
    #[arg(long)]
    no_sandbox: bool,
    /// Print the version.
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,
    /// Upstream's daemons do not look at words that are no flags.
    #[arg(hide = true)]
    words: Vec<OsString>,
}

impl Flags {
    /// Gives up all rights but those of the policy, unless the flags say otherwise. To be called while the process has one thread, and before it
    /// reads anything that a client sends.
    pub fn confine(&self, policy: Policy) {
        if !self.no_sandbox {
            policy.enforce();
        }
    }
}

/// Returns the part of `--help` about the environment: these variables, then the variables that every daemon heeds.
pub fn environment(variables: &[(&str, &str)]) -> String {
    const OF_ALL: [(&str, &str); 2] = [
        (
            log::LEVEL,
            "The level of the log on stderr: error, warning (as with --quiet) or info (the default)",
        ),
        (
            "NOTIFY_SOCKET",
            "Set by systemd, which is told when the daemon is ready (Type=notify)",
        ),
    ];
    let mut text = "Environment:\n".to_owned();
    for (name, meaning) in variables.iter().chain(&OF_ALL) {
        text += &format!("  {name}\n          {meaning}\n");
    }
    text
}

/// A program that serves until a signal ends it.
pub trait Daemon: Parser {
    /// The name as people type it.
    const NAME: &'static str;
    /// The variable with the number of a descriptor that gets a byte once the daemon is ready.
    const NOTIFY: &'static str;

    /// The flags that are not its own.
    fn flags(&self) -> &Flags;

    /// Runs the daemon until it ends.
    ///
    /// # Errors
    /// With the error that ends the daemon, to be logged.
    fn serve(&self, startup: &mut Startup) -> Result<(), Box<dyn Error>>;
}

/// Runs a daemon with the words after its name; returns the exit code, which is upstream's: 1 for any error. Wrong flags are explained on stderr, and
/// the error that ends the daemon is the last line of its log.
pub fn run<D: Daemon>(words: Vec<OsString>) -> u8 {
    let daemon = match D::try_parse_from(std::iter::once(D::NAME.into()).chain(words)) {
        Ok(daemon) => daemon,
        Err(message) => return explain(message),
    };
    let flags = daemon.flags();
    if flags.quiet {
        log::limit(Level::Warning);
    }
    for word in &flags.words {
        log::warning(format_args!("{}: {word:?} is no flag and is ignored", D::NAME));
    }
    // `startup` lives until the error is logged: a process that waits for the daemon sees its descriptor close, and may kill the daemon then.
    let mut startup = None;
    match Startup::begin(D::NOTIFY).and_then(|begun| daemon.serve(startup.insert(begun))) {
        Ok(()) => 0,
        Err(error) => {
            log::error(format_args!("{}: {error}", D::NAME));
            1
        }
    }
}

/// Prints help, version or a usage error.
fn explain(mut message: clap::Error) -> u8 {
    // The suggestion would be to write the flag as a word, and words are ignored.
    message.remove(ContextKind::Suggested);
    // A reader that is gone is no failure.
    match message.kind() {
        ErrorKind::DisplayVersion => drop(writeln!(io::stdout(), "{}", crate::VERSION)),
        _ => drop(message.print()),
    }
    u8::from(message.use_stderr())
}

/// A daemon that is starting, and the processes that wait for it.
#[derive(Debug)]
pub struct Startup {
    /// Named by the environment.
    notify: Option<File>,
    service_manager: Option<ServiceManager>,
    /// The process that the user started, if this one goes on in the background.
    parent: Option<OwnedFd>,
}

impl Startup {
    fn begin(notify: &'static str) -> Result<Startup, Box<dyn Error>> {
        starter::end_with_starter()?;
        Ok(Startup {
            notify: inherited::named_by(notify)?.map(File::from),
            service_manager: service_manager(),
            parent: None,
        })
    }

    /// Goes on in another process, if the flags ask for that. The original process waits until the new one calls [`started`](Startup::started),
    /// prints the daemon's process id and ends. If the daemon ends before, which has then logged the reason, the original process ends with its exit
    /// code.
    ///
    /// # Errors
    /// If there can be no other process.
    pub fn go_into_background(&mut self, flags: &Flags) -> io::Result<()> {
        if !flags.background {
            return Ok(());
        }
        let (told, tell) = pipe_with(PipeFlags::CLOEXEC)?;
        match background::fork()? {
            Forked::Child => self.parent = Some(tell),
            Forked::Parent(child) => {
                drop(tell);
                let code = match File::from(told).read_exact(&mut [0]) {
                    Ok(()) => {
                        // A closed stdout does not stop the daemon.
                        let _ = writeln!(io::stdout(), "{child}");
                        0
                    }
                    Err(_) => exit_code(child),
                };
                std::process::exit(code);
            }
        }
        Ok(())
    }

    /// The daemon has all that it needs. In the background, it leaves its terminal.
    ///
    /// # Errors
    /// If the daemon cannot leave its terminal.
    pub fn started(&mut self) -> io::Result<()> {
        if let Some(parent) = self.parent.take() {
            background::leave_terminal()?;
            // If the parent was killed, no process waits.
            let _ = rustix::io::write(&parent, b"1");
        }
        Ok(())
    }

    /// Reports, once, that clients are served from now on; `status` describes the service. Further calls have no effect.
    pub fn ready(&mut self, status: &str) {
        if let Some(mut notify) = self.notify.take()
            && let Err(error) = notify.write_all(b"1")
        {
            log::warning(format_args!(
                "the program that waits for readiness did not take the message: {error}"
            ));
        }
        if let Some(service_manager) = self.service_manager.take()
            && let Err(error) = service_manager.ready(status)
        {
            log::warning(format_args!("cannot tell systemd that all is ready: {error}"));
        }
    }
}

/// The service manager that waits for this process, if one does.
fn service_manager() -> Option<ServiceManager> {
    ServiceManager::of_this_process().unwrap_or_else(|error| {
        log::warning(format_args!("cannot tell systemd when all is ready: {error}"));
        None
    })
}

/// Returns the exit code of a child that failed.
fn exit_code(child: i32) -> i32 {
    let status = Pid::from_raw(child).and_then(|child| {
        rustix::process::waitpid(Some(child), WaitOptions::empty())
            .ok()
            .flatten()
    });
    status.and_then(|(_, status)| status.exit_status()).unwrap_or(1)
}

/// The signals that end a daemon in good order. A signal of the terminal that the daemon's starter has set to be ignored (`nohup`, or a script that
/// runs it with `&`) stays ignored. SIGTERM is never ignored, because service managers and `kill` stop daemons with it.
pub fn ending_signals() -> Vec<Signal> {
    let mut signals = vec![Signal::Interrupt, Signal::HangUp];
    signals.retain(|signal| !inherited::ignores(*signal));
    signals.push(Signal::Terminate);
    signals
}
