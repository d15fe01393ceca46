//! `perfetto --query` and `--query-raw`: asks the service for its state and prints it on stdout.
//!
//! Called by [`run`](super::run), and for the state by [`bugreport`](super::bugreport) and [`doctor`](crate::doctor).

use std::io::Write;
use std::time::Duration;

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_ipc::Address;
use ferretto_ipc::reactor::{Deadline, Events, Reactor, Token, monotonic_now};
use ferretto_proto::messages::TracingServiceState;

use super::console::Console;
use super::plan::QueryFormat;
use super::service::{FindService, Service, unreachable};
use super::service_state::{Viewer, json, table};
use super::{FAILURE, SUCCESS};
use crate::stdout::Screen;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const SERVICE: Token = Token(0);

/// Asks and prints; gives the exit code.
pub(super) fn query(format: QueryFormat, find_service: FindService<'_>, console: &mut Console) -> u8 {
    match printed(format, find_service) {
        Ok((output, origin)) => {
            if origin == Origin::Started {
                console.notice(
                    "no tracing service is running; this is the one that `ferretto` starts for a recording",
                );
            }
            // A reader that has seen enough (`| head`) is no failure.
            let mut stdout = std::io::stdout();
            let _ = stdout.write_all(&output).and_then(|()| stdout.flush());
            SUCCESS
        }
        Err(reason) => {
            console.say(reason);
            FAILURE
        }
    }
}

/// Whose state it is.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    Running,
    /// Started to be asked.
    Started,
}

fn printed(format: QueryFormat, find_service: FindService<'_>) -> Result<(Vec<u8>, Origin), String> {
    let service = find_service().map_err(|error| error.to_string())?;
    let (state, encoded) = ask(&service, StateScope::Everything)?;
    let output = match format {
        QueryFormat::Raw => encoded,
        QueryFormat::Json => format!("{:#}\n", json(&state)).into_bytes(),
        QueryFormat::Table | QueryFormat::LongTable => {
            table(&state, format, viewer(), Screen::look().style()).into_bytes()
        }
    };
    let origin = match service.started {
        Some(_) => Origin::Started,
        None => Origin::Running,
    };
    Ok((output, origin))
}

/// Asks a service for its state; gives it decoded and as it came.
pub(super) fn ask(
    service: &Service,
    scope: StateScope,
) -> Result<(Box<TracingServiceState>, Vec<u8>), String> {
    ask_within(PATIENCE, &service.consumer_socket, scope)
}

/// Likewise, of the service at this socket, which gets this long to answer.
pub(crate) fn ask_within(
    patience: Duration,
    socket: &Address,
    scope: StateScope,
) -> Result<(Box<TracingServiceState>, Vec<u8>), String> {
    let endpoint = ConsumerEndpoint::connect(socket).map_err(|error| unreachable(socket, &error))?;
    state_of(endpoint, scope, patience)
}

/// Asks the service at the other end of a connection, which gets this long to answer.
pub(crate) fn state_of(
    mut endpoint: ConsumerEndpoint,
    scope: StateScope,
    patience: Duration,
) -> Result<(Box<TracingServiceState>, Vec<u8>), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot ask the service for its state: {error}");
    endpoint
        .query_service_state(scope)
        .map_err(|error| failed(&error))?;

    let mut reactor = Reactor::new().map_err(|error| failed(&error))?;
    let mut events = Events::new();
    let deadline = Deadline::after(patience);
    endpoint.flush();
    reactor
        .register(&endpoint, SERVICE, endpoint.interest())
        .map_err(|error| failed(&error))?;
    loop {
        while let Some(event) = endpoint.next_event() {
            match event {
                ConsumerEvent::Reply {
                    reply: Ok(ConsumerReply::ServiceState { state, encoded }),
                    ..
                } => return Ok((state, encoded)),
                ConsumerEvent::Reply {
                    reply: Err(error), ..
                } => return Err(failed(&error)),
                ConsumerEvent::Disconnected(reason) => return Err(failed(&reason)),
                ConsumerEvent::Connected | ConsumerEvent::Reply { .. } => {}
            }
        }
        if matches!(deadline, Deadline::Monotonic(at) if monotonic_now() >= at) {
            return Err(failed(&format_args!("no answer within {} s", patience.as_secs())));
        }
        reactor
            .reregister(&endpoint, SERVICE, endpoint.interest())
            .map_err(|error| failed(&error))?;
        reactor
            .wait(&mut events, Some(deadline))
            .map_err(|error| failed(&error))?;
        for ready in events.ready() {
            if ready.readable || ready.hung_up {
                endpoint.on_readable();
            }
        }
        endpoint.flush();
    }
}

fn viewer() -> Viewer {
    if rustix::process::geteuid().is_root() {
        Viewer::Root
    } else {
        Viewer::User
    }
}
