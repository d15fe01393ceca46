//! `traced` and `traced_relay` for the tests, which need them beside the tunnel: the first word says which.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let which = words.next().unwrap_or_default();
    let rest = words.collect();
    match which.to_str() {
        Some("traced") => ferretto_daemons::traced::run(rest).into(),
        Some("traced_relay") => ferretto_daemons::traced_relay::run(rest).into(),
        _ => ExitCode::FAILURE,
    }
}
