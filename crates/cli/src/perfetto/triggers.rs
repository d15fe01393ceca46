//! The triggers of configs: activates those that a config names, and describes those that a config waits for.
//!
//! [`run`](super::run) and [`record`](super::record) call it.

use ferretto_proto::messages::trace_config::trigger_config::TriggerMode;
use ferretto_proto::messages::{TraceConfig, trace_config::trigger_config::Trigger};

use super::background::{self, Detached, StartStatus};
use super::console::Console;
use super::plan::Activation;
use super::{FAILURE, SUCCESS};
use crate::trigger_perfetto::sender;

/// The most names in a message.
const MAX_TOLD: usize = 5;

/// Activates triggers; returns the exit code. Records nothing.
pub(super) fn activate(activation: &Activation, console: &mut Console) -> u8 {
    let reports = activation
        .notify_fd
        .map(background::notify_report)
        .transpose()
        .and_then(|report| background::detach(activation.process, report));
    let reports = match reports {
        Ok(Detached::Parent(status, reason)) => {
            if let Some(reason) = reason {
                console.say(reason);
            }
            return status as u8;
        }
        Ok(Detached::Recorder(reports)) => reports,
        Err(error) => {
            console.say(error);
            return FAILURE;
        }
    };
    let (exit_code, status, reason) = match sender::send(&activation.triggers) {
        Ok(()) => (SUCCESS, StartStatus::Started, String::new()),
        Err(error) => {
            console.say(&error);
            (FAILURE, StartStatus::Failed, error.to_string())
        }
    };
    for report in reports {
        report.send(status, &reason);
    }
    exit_code
}

/// Whether triggers start the data sources of this config.
pub(super) fn start_it(config: &TraceConfig) -> bool {
    let triggers = &config.trigger_config;
    triggers.trigger_mode == Some(TriggerMode::START_TRACING) && !triggers.triggers.is_empty()
}

/// Describes the triggers that a recording of this config waits for; `None` if it waits for none.
pub(super) fn awaited(config: &TraceConfig) -> Option<String> {
    let triggers = &config.trigger_config;
    let snapshots = triggers.use_clone_snapshot_if_available == Some(true);
    let names = names(&triggers.triggers)?;
    let what = match triggers.trigger_mode? {
        TriggerMode::UNSPECIFIED => return None,
        TriggerMode::START_TRACING => "recording starts when",
        TriggerMode::CLONE_SNAPSHOT => "a snapshot is written whenever",
        TriggerMode::STOP_TRACING if snapshots => "a snapshot is written whenever",
        TriggerMode::STOP_TRACING => "recording ends when",
    };
    let seconds = f64::from(triggers.trigger_timeout_ms.unwrap_or_default()) / 1000.0;
    Some(format!(
        "{what} a trigger is activated ({names}); if none is within {seconds} s, there is no trace"
    ))
}

/// Lists the names of triggers; `None` if there are none.
fn names(triggers: &[Trigger]) -> Option<String> {
    let told: Vec<&str> = triggers
        .iter()
        .take(MAX_TOLD)
        .map(|trigger| trigger.name.as_deref().unwrap_or_default())
        .collect();
    match triggers.len().checked_sub(told.len())? {
        _ if told.is_empty() => None,
        0 => Some(told.join(", ")),
        more => Some(format!("{} and {more} more", told.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_proto::messages::trace_config;

    fn config(mode: Option<TriggerMode>, count: usize) -> TraceConfig {
        let trigger = |number| Trigger {
            name: Some(format!("t{number}")),
            ..Default::default()
        };
        TraceConfig {
            trigger_config: trace_config::TriggerConfig {
                trigger_mode: mode,
                trigger_timeout_ms: Some(1500),
                triggers: (0..count).map(trigger).collect(),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_recording_that_waits_tells_for_what() {
        assert_eq!(
            awaited(&config(Some(TriggerMode::START_TRACING), 1)).as_deref(),
            Some(
                "recording starts when a trigger is activated (t0); if none is within 1.5 s, there is no trace"
            )
        );
        let ends = awaited(&config(Some(TriggerMode::STOP_TRACING), 7)).unwrap();
        assert!(ends.starts_with("recording ends when"), "{ends}");
        assert!(ends.contains("(t0, t1, t2, t3, t4 and 2 more)"), "{ends}");
        let mut snapshots = config(Some(TriggerMode::STOP_TRACING), 1);
        snapshots
            .trigger_config
            .get_or_insert_default()
            .use_clone_snapshot_if_available = Some(true);
        assert_eq!(
            awaited(&snapshots),
            awaited(&config(Some(TriggerMode::CLONE_SNAPSHOT), 1))
        );
    }

    #[test]
    fn others_wait_for_nothing() {
        assert_eq!(awaited(&TraceConfig::default()), None);
        assert_eq!(awaited(&config(None, 1)), None);
        assert_eq!(awaited(&config(Some(TriggerMode::UNSPECIFIED), 1)), None);
        assert_eq!(awaited(&config(Some(TriggerMode::STOP_TRACING), 0)), None);
    }
}
