//! `ferretto open`: shows a trace in the Perfetto UI, which fetches it from this process.
//!
//! [`applet`](crate::applet) calls it. It works like upstream's `open_trace_in_ui` and `record_android_trace`: it serves the file on 127.0.0.1:9001,
//! the only port from which the content security policy of ui.perfetto.dev lets pages fetch, and ends once the file was fetched. With a copy of the
//! UI ([`site`]) it serves that as well, until a signal ends it. [`subject`] is the trace, [`link`] makes the address to visit, [`request`] decides
//! about requests, [`exhibition`] answers them and [`body`] is sent in the answers, [`http`](crate::http) has the sockets, and [`browser`] starts a
//! browser if the UI can be reached ([`reach`]).
//!
//! The address to visit is the only line on stdout; everything else goes to stderr. Exit codes: 0 when the trace was fetched, 1 when it was not, 2
//! for a wrong command line.

mod body;
mod browser;
mod exhibition;
mod link;
mod reach;
mod request;
mod site;
mod subject;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use ferretto_ipc::reactor::{ReactorError, Signal};

pub(crate) use self::request::is_loopback;
use crate::figures::{Bytes, Elapsed};
use crate::http::Server;
use crate::machine::{Holder, ThisMachine, holder_of};
use crate::stderr;
use crate::usage;
use exhibition::{Exhibition, Fetched, Incident, Transfer};
use link::{SshLogin, Ui};
use request::{Audience, Policy, Refusal};
use site::{NoSite, Site};
use subject::{Check, NoSubject, Subject};

/// The name in its messages.
const NAME: &str = "ferretto open";
/// The port on which the UI's own tools serve, and from which its pages may fetch.
pub(crate) const PORT: u16 = 9001;

/// The most different incidents that are reported.
const MOST_TOLD: usize = 10;

const FETCHED: u8 = 0;
const FAILURE: u8 = 1;

/// Returns the definition of all flags. Upstream's `open_trace_in_ui -i FILE -n --origin URL` works unchanged.
pub(crate) fn command() -> Command {
    Command::new("open")
        .about("Shows a trace in the Perfetto UI")
        .long_about(
            "Shows a trace in the Perfetto UI: serves the file to this machine's browsers only, and to the UI's pages only, says which \
             address to visit, and ends once the UI has fetched the file. The trace goes from here into the browser and nowhere else. \
             What gzip, zstd and xz compressed is expanded; other formats that the UI reads are shown as they are.",
        )
        .after_help("Exits with 0 when the trace was fetched, 1 when it was not, 2 when a flag makes no sense.")
        .arg(
            Arg::new("trace")
                .value_name("TRACE")
                .value_parser(value_parser!(PathBuf))
                .required_unless_present("input")
                .help("The trace to show; - is stdin"),
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
            Arg::new("ui")
                .long("ui")
                .value_name("DIR|ZIP")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("origin")
                .help("Serve this copy of the UI as well, until Ctrl-C")
                .long_help(
                    "Serve this copy of the UI as well, for machines that do not reach ui.perfetto.dev: perfetto-ui.zip of a release \
                     (https://github.com/google/perfetto/releases), or the folder it was unpacked into. Goes on until Ctrl-C, as the \
                     UI loads parts of itself later.",
                ),
        )
        .arg(
            Arg::new("force")
                .long("force")
                .action(ArgAction::SetTrue)
                .help("Show it even if it does not look like a trace"),
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

/// Runs the applet with the arguments after its name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let matches = match usage::matches(NAME, command().bin_name(NAME), words) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    match open(&matches) {
        Ok((Some(_), Some(_))) => FETCHED,
        Ok((None, Some(fetched))) => {
            tell_fetched(&fetched);
            FETCHED
        }
        Ok((Some(Signal::Interrupt), None)) => {
            say("ended by Ctrl-C before the trace was fetched");
            FAILURE
        }
        Ok((_, None)) => {
            say("told to end before the trace was fetched");
            FAILURE
        }
        Err(error) => {
            say(error);
            FAILURE
        }
    }
}

fn tell_fetched(Fetched { bytes, took }: &Fetched) {
    say(format_args!(
        "fetched, {} in {}; the browser has the trace now",
        Bytes(*bytes),
        Elapsed(*took)
    ));
}

/// The reason why a trace cannot be shown.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Subject(#[from] NoSubject),
    #[error(transparent)]
    Site(#[from] NoSite),
    #[error("cannot read the trace: {0}")]
    Unreadable(io::Error),
    #[error(
        "port {port} is taken{by}: the UI fetches from there, so end that program, or wait until it is done",
        by = holder.as_ref().map_or(String::new(), |holder| format!(" by {holder}"))
    )]
    PortTaken { port: u16, holder: Option<Holder> },
    #[error("cannot serve on 127.0.0.1:{port}: {source}")]
    Listen { port: u16, source: io::Error },
    #[error("cannot serve the trace: {0}")]
    Serve(#[from] ReactorError),
    #[error("cannot say which address to visit, since stdout is closed: {0}")]
    Stdout(io::Error),
}

/// Serves until the trace was fetched, or until a signal. Returns the signal, and the last transfer of the trace.
fn open(matches: &ArgMatches) -> Result<(Option<Signal>, Option<Fetched>), OpenError> {
    let given = matches.get_one::<PathBuf>("trace").or(matches.get_one("input"));
    let check = match matches.get_flag("force") {
        true => Check::Nothing,
        false => Check::Beginning,
    };
    // clap ensures that one of them is there. Otherwise opening the empty name fails.
    let subject = Subject::open(given.map_or(Path::new(""), PathBuf::as_path), check)?;
    let bytes = subject.size().map_err(OpenError::Unreadable)?;
    let site = matches.get_one::<PathBuf>("ui").map(|path| Site::open(path));
    let site = site.transpose()?;
    let ui = matches.get_one::<Ui>("origin").cloned().unwrap_or_default();
    let audience = match site {
        None => Audience::PagesOf(ui.origin().to_owned()),
        Some(_) => Audience::OwnPages,
    };
    let own_ui = site.is_some();
    let server = bind(matches, site.as_ref())?;
    let port = server.port();
    let ssh = SshLogin::of_this_process();
    // The near end of the tunnel is the port from which the UI's pages may fetch, whatever the far end is.
    let near_port = if ssh.is_some() && (own_ui || ui.is_public()) {
        PORT
    } else {
        port
    };
    let address = match own_ui {
        true => link::address_of_copy(near_port, &subject.name),
        false => ui.address(near_port, &subject.name),
    };

    if let Some(what) = subject.remark {
        say(format_args!(
            "this is no Perfetto trace: {what}; the UI may read it"
        ));
    }
    let compression = subject.compression;
    say(format_args!(
        "serving {} ({}{}) on 127.0.0.1:{port} until {}Ctrl-C ends it",
        String::from_utf8_lossy(&subject.name).escape_debug(),
        Bytes(bytes),
        compression.map_or(String::new(), |compression| format!(
            ", expanding {}",
            compression.name()
        )),
        match own_ui {
            true => "",
            false => "it was fetched once; ",
        }
    ));
    if let Some(ssh) = &ssh {
        say(format_args!(
            "for a browser on the other end of this ssh connection, first type there\n    {}",
            ssh.tunnel(near_port, port)
        ));
    } else if !own_ui && ui.is_public() && port != PORT {
        say(format_args!(
            "ui.perfetto.dev may fetch from port {PORT} only: nothing will come of this without a tunnel from there to {port}"
        ));
    }
    let browser = if matches.get_flag("no-open-browser") {
        browser::Start::NotWanted
    } else {
        // A local copy can be reached, and a browser beyond ssh has another way to the UI.
        let look = || match own_ui || ssh.is_some() {
            true => Ok(()),
            false => reach::look(&ui),
        };
        browser::start(&address, look)
    };
    say(match browser {
        browser::Start::Started => "a browser should show it in a moment; if none does, visit".to_owned(),
        browser::Start::NotWanted => "to see it, visit".to_owned(),
        browser::Start::NoDisplay => {
            "there is no display here to start a browser on; to see it, visit".to_owned()
        }
        browser::Start::NoOpener => {
            "there is no xdg-open here to start a browser with; to see it, visit".to_owned()
        }
        browser::Start::OutOfReach(reason) => format!(
            "the UI at {} cannot be reached from here ({reason}), so no browser is started; get perfetto-ui.zip of a release from {} \
             and name it with --ui, or visit with a browser that gets there or has the UI already",
            ui.origin(),
            site::RELEASES
        ),
    });
    let mut stdout = io::stdout();
    writeln!(stdout, "{address}")
        .and_then(|()| stdout.flush())
        .map_err(OpenError::Stdout)?;
    let mut told = Vec::new();
    let mut exhibition = Exhibition {
        policy: Policy::new(audience, &subject.name),
        subject,
        site,
        fetched: None,
        tell: |incident| {
            // The same incident is reported once, and no further ones after [`MOST_TOLD`], because a page can cause ever new ones.
            if told.len() < MOST_TOLD && !told.contains(&incident) {
                tell(&incident, &ui);
                told.push(incident);
            }
        },
    };
    let signal = server.serve(&mut exhibition)?;
    Ok((signal, exhibition.fetched))
}

/// Listens on the requested port. A copy of the UI works on any port, but browsers keep settings by port, so it takes another one only if the usual
/// one is taken.
fn bind(matches: &ArgMatches, copy: Option<&Site>) -> Result<Server<Transfer>, OpenError> {
    let wanted = matches.get_one::<u16>("port").copied().unwrap_or(PORT);
    let any_will_do =
        copy.is_some() && matches.value_source("port") != Some(clap::parser::ValueSource::CommandLine);
    let bound = match Server::bind(wanted) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && any_will_do => Server::bind(0),
        bound => bound,
    };
    bound.map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => OpenError::PortTaken {
            port: wanted,
            holder: holder_of(&ThisMachine, wanted),
        },
        _ => OpenError::Listen { port: wanted, source },
    })
}

fn tell(incident: &Incident, ui: &Ui) {
    match incident {
        Incident::Fetched(fetched) => tell_fetched(fetched),
        Incident::CutOff { sent, of: Some(of) } => say(format_args!(
            "the browser hung up after {} of {}; still serving",
            Bytes(*sent),
            Bytes(*of)
        )),
        Incident::CutOff { sent, of: None } => say(format_args!(
            "the browser hung up after {}; still serving",
            Bytes(*sent)
        )),
        Incident::Broken(reason) => say(format_args!("{reason}; the browser gets what comes before")),
        Incident::Shrunk { sent, of } => say(format_args!(
            "the file became shorter while it was fetched ({} of {}): was it written anew? Reload the UI's page to try again",
            Bytes(*sent),
            Bytes(*of)
        )),
        Incident::Unreadable(what, reason) => {
            say(format_args!("cannot read {what}: {reason}; still serving"))
        }
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
        Incident::Unreachable(reason) => say(format_args!("{reason}; still serving")),
        // The UI checks whether a trace processor listens here, and learns that none does.
        Incident::Refused(_) => {}
    }
}

/// Prints a line to stderr.
fn say(text: impl Display) {
    stderr::say(NAME, &text);
}
