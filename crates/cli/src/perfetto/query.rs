//! `perfetto --query` and `--query-raw`: asks the service for its state and prints it on stdout.
//!
//! [`run`](super::run) calls it; [`bugreport`](super::bugreport) calls it for the state alone.

use std::io::Write;
use std::time::Duration;

use ferretto_client::consumer::StateScope;
use ferretto_proto::messages::TracingServiceState;

use super::console::Console;
use super::{FAILURE, SUCCESS};
use crate::ask::ask_within;
use crate::service::{FindService, Service};
use crate::service_state::{QueryFormat, Viewer, json, table};
use crate::stdout::Screen;

/// The time that the service has to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Queries and prints the state; returns the exit code.
pub(super) fn query(format: QueryFormat, find_service: FindService<'_>, console: &mut Console) -> u8 {
    match printed(format, find_service) {
        Ok((output, origin)) => {
            if origin == Origin::Started {
                console.notice(
                    "no tracing service is running; this is the one that `ferretto` starts for a recording",
                );
            }
            // A reader that closes the pipe early (`| head`) is no failure.
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

/// The origin of the service.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    Running,
    /// Started for this query.
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

/// Asks a service for its state; returns it decoded and encoded.
pub(super) fn ask(
    service: &Service,
    scope: StateScope,
) -> Result<(Box<TracingServiceState>, Vec<u8>), String> {
    ask_within(PATIENCE, &service.consumer_socket, scope)
}

fn viewer() -> Viewer {
    if rustix::process::geteuid().is_root() {
        Viewer::Root
    } else {
        Viewer::User
    }
}
