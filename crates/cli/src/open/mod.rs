//! `ferretto open`: shows a trace in the Perfetto UI, which fetches it from this process.
//!
//! Called by [`applet`](crate::applet). What upstream's `open_trace_in_ui` and `record_android_trace` do: the file is served on
//! 127.0.0.1:9001, the one port that the content security policy of ui.perfetto.dev lets its pages fetch from, and the process ends
//! once the file was fetched. [`link`] knows the address to visit, [`request`] who may have the file, [`server`] has the sockets,
//! [`browser`] starts a browser.
//!
//! The address to visit is the one line on stdout; everything else is said on stderr. Exit codes: 0 when the trace was fetched, 1
//! when it was not, 2 for a command line that makes no sense.

mod browser;
mod link;
mod request;
mod server;

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use ferretto_ipc::reactor::Signal;

use crate::doctor;
use crate::perfetto::figures::{Bytes, Elapsed};
use link::{SshLogin, Ui};
use request::{Policy, Refusal};
use server::{BindError, Incident, Outcome, Server};

/// The name it speaks under.
const NAME: &str = "ferretto open";
/// The port that the UI's own tools serve on, and that its pages may fetch from.
pub(crate) const PORT: u16 = 9001;

/// At most so many different incidents are told of.
const MOST_TOLD: usize = 10;

const FETCHED: u8 = 0;
const FAILURE: u8 = 1;
const USAGE: u8 = 2;

/// The definition of all flags. Upstream's `open_trace_in_ui -i FILE -n --origin URL` works unchanged.
pub(crate) fn command() -> Command {
    Command::new("open")
        .about("Shows a trace in the Perfetto UI")
        .long_about(
            "Shows a trace in the Perfetto UI: serves the file to this machine's browsers only, and to the UI's pages only, says which \
             address to visit, and ends once the UI has fetched the file. The trace goes from here into the browser and nowhere else.",
        )
        .after_help("Exits with 0 when the trace was fetched, 1 when it was not, 2 when a flag makes no sense.")
        .arg(
            Arg::new("trace")
                .value_name("TRACE")
                .value_parser(value_parser!(PathBuf))
                .required_unless_present("input")
                .help("The trace to show"),
        )
        .arg(
            Arg::new("input")
                .short('i')
                .long("trace")
                .value_name("TRACE")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("trace")
                .help("The same, as upstream's open_trace_in_ui has it"),
        )
        .arg(
            Arg::new("no-open-browser")
                .short('n')
                .long("no-open-browser")
                .action(ArgAction::SetTrue)
                .help("Only say which address to visit"),
        )
        .arg(
            Arg::new("origin")
                .long("origin")
                .value_name("URL")
                .value_parser(|url: &str| url.parse::<Ui>())
                .default_value(link::PUBLIC_UI)
                .help("The UI to show it in: another address where the same pages are"),
        )
        .arg(
            Arg::new("port")
                .short('p')
                .long("port")
                .value_name("PORT")
                .value_parser(value_parser!(u16))
                .default_value("9001")
                .help("Serve on this port (0: any)")
                .long_help(
                    "Serve on this port (0: any that is free). The pages of ui.perfetto.dev may fetch from port 9001 only, so another \
                     one is for a UI with other rules, or for the far end of an ssh tunnel whose near end is 9001.",
                ),
        )
}

/// Runs the applet with the words after its name; gives the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let words = std::iter::once(OsString::from(NAME)).chain(words);
    let matches = match command().bin_name(NAME).try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(message) => {
            let _ = message.print();
            return if message.use_stderr() { USAGE } else { FETCHED };
        }
    };
    match open(&matches) {
        Ok(Outcome::Fetched { bytes, took }) => {
            say(format_args!(
                "fetched, {} in {}; the browser has the trace now",
                Bytes(bytes),
                Elapsed(took)
            ));
            FETCHED
        }
        Ok(Outcome::Interrupted(Signal::Interrupt)) => {
            say("ended by Ctrl-C before the trace was fetched");
            FAILURE
        }
        Ok(Outcome::Interrupted(_)) => {
            say("told to end before the trace was fetched");
            FAILURE
        }
        Err(error) => {
            say(error);
            FAILURE
        }
    }
}

/// Why a trace cannot be shown.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("cannot open {}: {source}", path.display())]
    Trace { path: PathBuf, source: io::Error },
    #[error("{} is not a file that can be served: a trace that comes out of a pipe has to be saved first", .0.display())]
    NotAFile(PathBuf),
    #[error("{} is empty: there is nothing to show (yet?)", .0.display())]
    Empty(PathBuf),
    #[error(
        "port {port} is taken{by}: the UI fetches from there, so end that program, or wait until it is done",
        by = holder.as_ref().map_or(String::new(), |holder| format!(" by {holder}"))
    )]
    PortTaken {
        port: u16,
        holder: Option<doctor::Holder>,
    },
    #[error("cannot serve on 127.0.0.1:{port}: {source}")]
    Listen { port: u16, source: io::Error },
    #[error("cannot serve the trace: {0}")]
    Serve(#[from] server::ServeError),
    #[error("cannot say which address to visit, since stdout is closed: {0}")]
    Stdout(io::Error),
}

fn open(matches: &ArgMatches) -> Result<Outcome, OpenError> {
    let given = matches.get_one::<PathBuf>("trace").or(matches.get_one("input"));
    // One of them is there, clap has seen to that; without, the empty name cannot be opened.
    let (file, name) = open_trace(given.map_or(Path::new(""), PathBuf::as_path))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let ui = matches.get_one::<Ui>("origin").cloned().unwrap_or_default();
    let wanted_port = matches.get_one::<u16>("port").copied().unwrap_or(PORT);
    let server =
        Server::bind(wanted_port, file, Policy::new(ui.origin(), &name)).map_err(|error| match error {
            BindError::Taken => OpenError::PortTaken {
                port: wanted_port,
                holder: doctor::port_holder(wanted_port),
            },
            BindError::Reactor(error) => OpenError::Serve(error.into()),
            BindError::Refused(source) => OpenError::Listen {
                port: wanted_port,
                source,
            },
        })?;
    let port = server.port();
    let ssh = SshLogin::of_this_process();
    // The tunnel begins at the port that the UI's pages may fetch from, wherever it ends.
    let near_port = if ssh.is_some() && ui.is_public() {
        PORT
    } else {
        port
    };
    let address = ui.address(near_port, &name);

    say(format_args!(
        "serving {} ({}) on 127.0.0.1:{port} until it was fetched once; Ctrl-C ends it",
        String::from_utf8_lossy(&name).escape_debug(),
        Bytes(bytes)
    ));
    if let Some(ssh) = ssh {
        say(format_args!(
            "for a browser on the other end of this ssh connection, first type there\n    {}",
            ssh.tunnel(near_port, port)
        ));
    } else if ui.is_public() && port != PORT {
        say(format_args!(
            "ui.perfetto.dev may fetch from port {PORT} only: nothing will come of this without a tunnel from there to {port}"
        ));
    }
    let browser = if matches.get_flag("no-open-browser") {
        browser::Start::NotWanted
    } else {
        browser::start(&address)
    };
    say(match browser {
        browser::Start::Started => "a browser should show it in a moment; if none does, visit",
        browser::Start::NotWanted => "to see it, visit",
        browser::Start::NoDisplay => "there is no display here to start a browser on; to see it, visit",
        browser::Start::NoOpener => "there is no xdg-open here to start a browser with; to see it, visit",
    });
    let mut stdout = io::stdout();
    writeln!(stdout, "{address}")
        .and_then(|()| stdout.flush())
        .map_err(OpenError::Stdout)?;
    Ok(serve(server, &ui)?)
}

/// The trace, and the name that it is served under.
fn open_trace(path: &Path) -> Result<(File, Vec<u8>), OpenError> {
    let failed = |source| OpenError::Trace {
        path: path.to_owned(),
        source,
    };
    // Looked at first: opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let name = path.file_name().map(|name| name.as_bytes().to_vec());
    match (metadata.is_file(), metadata.len(), name) {
        (true, 0, _) => Err(OpenError::Empty(path.to_owned())),
        (true, _, Some(name)) => Ok((File::open(path).map_err(failed)?, name)),
        _ => Err(OpenError::NotAFile(path.to_owned())),
    }
}

/// Serves, and says what happens meanwhile.
fn serve(mut server: Server, ui: &Ui) -> Result<Outcome, server::ServeError> {
    let mut told = Vec::new();
    server.serve(&mut |incident| {
        // A page that asks again and again is told of once, and one that asks in ever new ways some time not at all.
        if told.len() < MOST_TOLD && !told.contains(&incident) {
            tell(&incident, ui);
            told.push(incident);
        }
    })
}

fn tell(incident: &Incident, ui: &Ui) {
    match incident {
        Incident::CutOff { sent, of } => say(format_args!(
            "the browser hung up after {} of {}; still serving",
            Bytes(*sent),
            Bytes(*of)
        )),
        Incident::Shrunk { sent, of } => say(format_args!(
            "the file became shorter while it was fetched ({} of {}): was it written anew? Reload the UI's page to try again",
            Bytes(*sent),
            Bytes(*of)
        )),
        Incident::Unreadable(reason) => say(format_args!("cannot read the trace: {reason}; still serving")),
        Incident::Refused(Refusal::ForeignOrigin(Some(origin))) => say(format_args!(
            "refused a page of {origin}: only those of {} may have the trace (see --origin)",
            ui.origin()
        )),
        Incident::Refused(Refusal::ForeignOrigin(None)) => say(
            "refused a request that comes from no page: the address to visit is the UI's, which then fetches the trace",
        ),
        Incident::Refused(Refusal::ForeignHost(host)) => say(format_args!(
            "refused a request for the host {host}: this is 127.0.0.1 and localhost only"
        )),
        // The UI itself looks whether a trace processor listens here, and is told that there is none.
        Incident::Refused(_) => {}
    }
}

/// A line for people.
fn say(text: impl Display) {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(io::stderr(), "{NAME}: {text}");
}
