//! `tracebox`: upstream's bundle of all programs. Without a program's name it records like `perfetto`, with a service of its own.
//!
//! [`applet`](crate::applet) calls it. Its service and probes are children ([`autostart`](crate::autostart)). They use private sockets, or those that
//! `PERFETTO_PRODUCER_SOCK_NAME` and `PERFETTO_CONSUMER_SOCK_NAME` name, or with `--system-sockets` the usual ones, where programs find them. If
//! `tracebox ctl start` has started a service ([`ctl`]), that one records, unless `--autodaemonize` asks for a new one. Exit codes are those of
//! `perfetto`, and 1 as upstream's for a wrong command line.

mod ctl;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Write as _;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};
use ferretto_heap_client::handshake::HEAP_SOCK_NAME;
use ferretto_ipc::socket_names;
use ferretto_ipc::socket_names::{CONSUMER_SOCK_NAME, PRODUCER_SOCK_NAME};

use crate::autostart::{self, SocketPlace, Sockets};
use crate::perfetto::{self, Program};
use crate::running::is_there;
use crate::service::{FindServiceError, Service};
use crate::stderr;
use crate::usage::PROGRAMS;

/// The name in its messages.
const NAME: &str = "tracebox";
const FAILURE: u8 = 1;
const SYSTEM_SOCKETS: &str = "--system-sockets";
const AUTODAEMONIZE: &str = "--autodaemonize";
/// The subcommand that no other program has.
const CTL: &str = "ctl";

/// Returns the definition of all flags.
pub(crate) fn command() -> Command {
    perfetto::command(Program::Perfetto)
        .name(NAME)
        .bin_name(NAME)
        .about("Records traces with a service and probes that it starts for the recording; or is one of all programs.")
        .override_usage(
            "tracebox [OPTIONS] -o FILE EVENT...\n       tracebox [OPTIONS] -c CONFIG [--txt] -o FILE\n       tracebox APPLET \
             [ARGUMENTS]\n       tracebox ctl start|stop|status",
        )
        .after_help(applets())
        .after_long_help(applets())
        .disable_help_subcommand(true)
        .subcommand_help_heading("Besides")
        .subcommand(ctl::command())
        .next_help_heading("Own service")
        .arg(
            Arg::new("system-sockets")
                .long("system-sockets")
                .action(ArgAction::SetTrue)
                .help("Let it listen where programs look for a service")
                .long_help(
                    "Lets the service listen at the usual sockets, so that programs which are instrumented connect to it. If one \
                     listens there already, that records. Without this, sockets are private, unless \
                     PERFETTO_PRODUCER_SOCK_NAME and PERFETTO_CONSUMER_SOCK_NAME name them.",
                ),
        )
        .arg(
            Arg::new("autodaemonize")
                .long("autodaemonize")
                .action(ArgAction::SetTrue)
                .help("Start one even if `tracebox ctl start` has")
                .long_help(
                    "Starts a service for the recording even if `tracebox ctl start` has started one in the background, which would \
                     be used otherwise.",
                ),
        )
}

/// Returns the help text about programs and an example.
fn applets() -> String {
    let mut text = "Applets:\n".to_owned();
    for program in PROGRAMS.iter().filter(|program| **program != NAME) {
        let _ = writeln!(text, "  {program}");
    }
    text + "\nExample:\n  tracebox -t 5s -o trace.pftrace sched/sched_switch sched/sched_waking"
}

/// Runs with the arguments after the program's name; returns the exit code. `program` returns the function that runs a program of this name.
pub(crate) fn run(words: Vec<OsString>, program: impl Fn(&OsStr) -> Option<fn(Vec<OsString>) -> u8>) -> u8 {
    let Some(first) = words.first() else {
        // Upstream prints this to stdout and fails.
        let _ = write!(std::io::stdout(), "{}", command().render_help());
        return FAILURE;
    };
    if first != NAME
        && let Some(run) = program(first)
    {
        return run(words.into_iter().skip(1).collect());
    }
    if first == CTL {
        return ctl::run(words);
    }
    let own = match OwnFlags::take(words) {
        Ok(own) => own,
        Err(problem) => return fail(&problem),
    };
    let name = OsString::from(NAME);
    let loud = match command().try_get_matches_from(std::iter::once(&name).chain(&own.rest)) {
        Ok(matches) => !matches.get_flag("quiet"),
        // `perfetto` prints its help to stderr and fails.
        Err(message) if message.kind() == ErrorKind::DisplayHelp => {
            stderr::tell(&message.render().to_string());
            return FAILURE;
        }
        // `perfetto` itself reports these errors.
        Err(_) => false,
    };
    let mut notice = |text: String| {
        if loud {
            stderr::say(NAME, &text);
        }
    };
    perfetto::run(Program::Perfetto, own.rest, &mut || {
        find_service(own.wish, &mut notice)
    })
}

fn fail(problem: &str) -> u8 {
    stderr::say(NAME, problem);
    FAILURE
}

/// The service that the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// The service of `tracebox ctl`, or a new one.
    Any,
    /// A new one.
    Own,
    /// One that programs find.
    System,
}

/// The flags that only `tracebox` has, and the other arguments. As in upstream, these flags may be anywhere before `--`.
#[derive(Debug, PartialEq, Eq)]
struct OwnFlags {
    wish: Wish,
    rest: Vec<OsString>,
}

impl OwnFlags {
    fn take(words: Vec<OsString>) -> Result<OwnFlags, String> {
        let mut own = OwnFlags {
            wish: Wish::Any,
            rest: Vec::new(),
        };
        let (mut system, mut autodaemonize) = (0, 0);
        let mut words = words.into_iter();
        for word in words.by_ref() {
            if word == SYSTEM_SOCKETS {
                system += 1;
            } else if word == AUTODAEMONIZE {
                autodaemonize += 1;
            } else {
                let is_end = word == "--";
                own.rest.push(word);
                if is_end {
                    break;
                }
            }
        }
        own.rest.extend(words);
        if system > 1 {
            return Err(format!("Cannot specify {SYSTEM_SOCKETS} multiple times"));
        }
        own.wish = match (system, autodaemonize) {
            (0, 0) => Wish::Any,
            (0, _) => Wish::Own,
            (_, _) => Wish::System,
        };
        Ok(own)
    }
}

/// Returns the service that records, and starts one if necessary.
fn find_service(wish: Wish, notice: &mut dyn FnMut(String)) -> Result<Service, FindServiceError> {
    let named = |variable: &str| match env::var_os(variable) {
        Some(_) => SocketPlace::Usual,
        None => SocketPlace::Private,
    };
    let sockets = match wish {
        Wish::System => Sockets::USUAL,
        Wish::Any | Wish::Own => Sockets {
            producers: named(PRODUCER_SOCK_NAME),
            consumers: named(CONSUMER_SOCK_NAME),
            heaps: named(HEAP_SOCK_NAME),
        },
    };
    let usual = socket_names::consumer_address()?;
    let takes_running = match wish {
        Wish::Any if ctl::has_started(&usual) => true,
        // A service that listens there already must be used, because a second one could not listen.
        _ => sockets.consumers == SocketPlace::Usual,
    };
    if takes_running && is_there(&usual) {
        notice(format!("the tracing service that listens at {usual} records"));
        return Ok(Service {
            consumer_socket: usual,
            started: None,
        });
    }
    autostart::start(sockets).map_err(FindServiceError::Start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(line: &str) -> Result<OwnFlags, String> {
        OwnFlags::take(line.split_whitespace().map(OsString::from).collect())
    }

    fn flags(wish: Wish, rest: &str) -> Result<OwnFlags, String> {
        let rest = rest.split_whitespace().map(OsString::from).collect();
        Ok(OwnFlags { wish, rest })
    }

    #[test]
    fn own_flags_stand_anywhere_before_the_end_of_flags() {
        assert_eq!(taken("-t 1s sched"), flags(Wish::Any, "-t 1s sched"));
        assert_eq!(
            taken("-t 1s --system-sockets sched"),
            flags(Wish::System, "-t 1s sched")
        );
        assert_eq!(taken("--autodaemonize -t 1s"), flags(Wish::Own, "-t 1s"));
        assert_eq!(taken("--system-sockets --autodaemonize"), flags(Wish::System, ""));
        assert_eq!(
            taken("sched -- --system-sockets"),
            flags(Wish::Any, "sched -- --system-sockets")
        );
        assert_eq!(
            taken("--system-sockets x --system-sockets"),
            Err("Cannot specify --system-sockets multiple times".to_owned())
        );
    }
}
