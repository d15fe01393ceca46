//! The trace configs that the command line itself refuses, before the service sees them.
//!
//! [`plan`](crate::perfetto) calls it before a recording, and `ferretto config check` calls it.

use ferretto_proto::messages::{TraceConfig, trace_config};

use super::advice::ConfigOrigin;
use super::event_names::{Malformed, malformed};

/// The reason for refusing a config.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    KernelEvents(Malformed),
    #[error(
        "the trace config sets only one of cmd_trace_start_delay.min_delay_ms and max_delay_ms; set both"
    )]
    HalfDelay,
    #[error(
        "the trace config sets cmd_trace_start_delay.min_delay_ms ({min}) above max_delay_ms ({max}); swap them"
    )]
    InvertedDelay { min: u32, max: u32 },
    #[error("the trace config has {0}, which only works with --upload, on Android")]
    ReportConfig(&'static str),
}

/// Whether the triggers of a config clone the session.
pub(crate) fn takes_snapshots(config: &TraceConfig) -> bool {
    let clone_snapshot = trace_config::trigger_config::TriggerMode::CLONE_SNAPSHOT;
    let triggers = &config.trigger_config;
    triggers.trigger_mode == Some(clone_snapshot) || triggers.use_clone_snapshot_if_available == Some(true)
}

/// Checks a config for reasons to refuse it.
pub(crate) fn check_config(config: &TraceConfig, origin: &ConfigOrigin) -> Result<(), Refusal> {
    check_reports(config)?;
    if let Some(malformed) = malformed(config, origin) {
        return Err(Refusal::KernelEvents(malformed));
    }
    let delay = &config.cmd_trace_start_delay;
    match (delay.min_delay_ms, delay.max_delay_ms) {
        (None, None) => Ok(()),
        (Some(min), Some(max)) if min > max => Err(Refusal::InvertedDelay { min, max }),
        (Some(_), Some(_)) => Ok(()),
        _ => Err(Refusal::HalfDelay),
    }
}

fn check_reports(config: &TraceConfig) -> Result<(), Refusal> {
    let named = |package: &Option<String>| package.as_deref().is_some_and(|package| !package.is_empty());
    if named(&config.incident_report_config.destination_package) {
        return Err(Refusal::ReportConfig(
            "incident_report_config.destination_package",
        ));
    }
    if named(&config.android_report_config.reporter_service_package) {
        return Err(Refusal::ReportConfig(
            "android_report_config.reporter_service_package",
        ));
    }
    Ok(())
}
