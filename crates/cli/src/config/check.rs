//! `ferretto config check`: reports everything that can be known about a config without recording it.
//!
//! [`run`](super::run) calls it. It first reports why the config is illegal: mistakes in the text, then the service's refusal, for which it runs the
//! state machine of `traced` with no clients. Then it gives advice about a config that is legal but will disappoint.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ferretto_client::consumer::StateScope;
use ferretto_ipc::socket_names::consumer_address;
use ferretto_proto::messages::{Message, TraceConfig};
use ferretto_service::{ConfigInput, Identity, Now, OutputFile, Service};

use super::advice::{Advice, ConfigOrigin, Weight, advise};
use super::config_source::WrittenConfig;
use super::refusals::{Refusal, check_config};
use super::surroundings::{Kernel, Offers, RecordedMachine, Surroundings};
use super::{FAILURE, NAME, SUCCESS, parse};
use crate::ask::ask_within;
use crate::stderr;
use crate::stdout::print;

/// The time that a service has to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Checks a config and prints the result; returns the exit code.
///
/// # Errors
/// If the findings cannot be printed.
pub(super) fn check(name: &str, bytes: &[u8]) -> Result<u8, String> {
    let (report, code) = match parse(name, bytes) {
        Ok(written) => judged(name, &written),
        Err(mistakes) => (format!("{mistakes}\n"), FAILURE),
    };
    print(report.as_bytes())?;
    Ok(code)
}

fn judged(name: &str, written: &WrittenConfig) -> (String, u8) {
    let machine = RecordedMachine::look();
    let refusal = refusal(name, written, &machine);
    let surroundings = look_around(&written.config, machine);
    let advice = advise(&written.config, &written.origin, &surroundings);
    (
        report(name, &written.origin, refusal.as_deref(), &advice),
        match refusal {
            Some(_) => FAILURE,
            None => SUCCESS,
        },
    )
}

/// Returns the command line's or the service's refusal, with the place in front.
pub(crate) fn refusal(name: &str, written: &WrittenConfig, machine: &RecordedMachine) -> Option<String> {
    let config = &written.config;
    match check_config(config, &written.origin) {
        // This message has its place in the text already.
        Err(Refusal::KernelEvents(malformed)) => return Some(malformed.to_string()),
        Err(error) => return Some(format!("{name}: error: {error}")),
        Ok(()) => {}
    }
    if !config.activate_triggers.is_empty() {
        return None;
    }
    let mut service = Service::new(Identity {
        uid: rustix::process::geteuid().as_raw(),
        version: String::new(),
        machine_name: machine.name.clone(),
        ..Identity::default()
    });
    let consumer = service.connect_consumer(rustix::process::geteuid().as_raw());
    // The command line clears it before it sends the config.
    let config = TraceConfig {
        enable_extra_guardrails: None,
        ..config.clone()
    };
    let file = match config.output_path.as_deref() {
        Some(path) if !path.is_empty() => OutputFile::Created,
        _ => OutputFile::Passed,
    };
    let bytes: Arc<[u8]> = config.encode_to_vec().into();
    let input = ConfigInput { config, bytes };
    let refused = service.enable_tracing(consumer, input, &file, 0, &Now::default());
    let reason = refused.err()?;
    Some(format!(
        "{name}: error: the service would refuse this config: {reason}"
    ))
}

/// Looks at service and kernel; notes on stderr what cannot be seen.
fn look_around(config: &TraceConfig, machine: RecordedMachine) -> Surroundings {
    let unseen = |what: &str, why: &str| stderr::say(NAME, &format_args!("note: {what}: {why}"));
    let answer = consumer_address()
        .map_err(|error| error.to_string())
        .and_then(|socket| ask_within(PATIENCE, &socket, StateScope::Everything));
    let service = match answer {
        Ok((state, _)) => Some(Offers::of(&state)),
        Err(why) => {
            let first = why.split(". ").next().unwrap_or(&why);
            unseen(
                "the data sources are compared with those that `ferretto` itself would start",
                first,
            );
            Some(Offers::of_own_probes())
        }
    };
    let kernel = Kernel::look(config);
    if let Err(why) = &kernel
        && config
            .data_sources
            .iter()
            .any(|source| source.config.ftrace_config.is_set())
    {
        unseen("the names of kernel events are not checked", why);
    }
    Surroundings {
        service,
        kernel: kernel.ok().flatten(),
        machine,
    }
}

/// Formats the refusal and the advice, a line or more each.
fn report(name: &str, origin: &ConfigOrigin, refusal: Option<&str>, advice: &[Advice]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    if let Some(refusal) = refusal {
        let _ = writeln!(out, "{refusal}");
    }
    for advice in advice {
        let _ = writeln!(out, "{}", advice.line(origin));
        if let Some(place) = &advice.place {
            let _ = writeln!(out, "{}", place.caret());
        }
    }
    let count = |weight| advice.iter().filter(|advice| advice.weight == weight).count();
    let verdict = match refusal {
        Some(_) => "would be refused",
        None => "can be recorded",
    };
    let _ = write!(out, "{name}: {verdict}");
    let found = [
        (count(Weight::Warning), "warning", "warnings"),
        (count(Weight::Hint), "hint", "hints"),
    ];
    for (count, one, several) in found {
        match count {
            0 => {}
            1 => _ = write!(out, ", 1 {one}"),
            _ => _ = write!(out, ", {count} {several}"),
        }
    }
    out.push('\n');
    out
}
