//! Advice on the session itself: its length, its file, its flushes, and fields that have no effect here.
//!
//! [`advise`](super::advise) calls it, except for configs that flags made.

use ferretto_proto::messages::trace_config::trigger_config::TriggerMode;
use ferretto_proto::messages::trace_config::{FFlushMode, StatsdLogging, WriteFlushMode};
use ferretto_service::limits;

use super::{Adviser, name_of};
use crate::config::length::is_for_others_to_end;

/// A user who writes fewer milliseconds, or bytes, probably means seconds or megabytes.
const SHORT_MS: u32 = 60;
const SMALL_FILE: u64 = 64 << 10;
/// In ms. A file that is flushed to disk more often than this keeps the disk busy.
const OFTEN_MS: u32 = 1000;

pub(super) fn advise(adviser: &mut Adviser<'_>) {
    units(adviser);
    end(adviser);
    file(adviser);
    flushes(adviser);
    incremental_state(adviser);
    triggers(adviser);
    android(adviser);
    if adviser.config.deferred_start.unwrap_or_default() {
        adviser.warn(
            "deferred_start",
            "with deferred_start a recording waits until its consumer starts it, and the command line never does",
            "leave it out",
        );
    }
}

/// Warns of numbers that were probably meant in another unit.
fn units(adviser: &mut Adviser<'_>) {
    if let Some(ms @ 1..=SHORT_MS) = adviser.config.duration_ms {
        adviser.hint(
            "duration_ms",
            format!("it will be recorded for {ms} milliseconds"),
            format!("for seconds write `duration_ms: {ms}000`"),
        );
    }
    if let Some(bytes @ 1..SMALL_FILE) = adviser.config.max_file_size_bytes
        && adviser.config.write_into_file.unwrap_or_default()
    {
        adviser.warn(
            "max_file_size_bytes",
            format!("the file may have {bytes} bytes: the recording ends when it is first written"),
            format!("for megabytes write `max_file_size_bytes: {bytes}000000`"),
        );
    }
}

fn end(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    if config.duration_ms.unwrap_or_default() != 0 || is_for_others_to_end(config) {
        return;
    }
    if !config.write_into_file.unwrap_or_default() {
        adviser.hint(
            "duration_ms",
            "without duration_ms it is recorded until Ctrl-C, and the buffers keep what fits",
            "write `duration_ms: 10000`, or `write_into_file: true` for a file of any length",
        );
    } else if config.max_file_size_bytes.unwrap_or_default() == 0 {
        adviser.hint(
            "write_into_file",
            "with neither duration_ms nor max_file_size_bytes the file grows until somebody ends the recording or the disk is full",
            "write for example `max_file_size_bytes: 1000000000`",
        );
    }
}

fn file(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    if config.write_into_file.unwrap_or_default() {
        let least = limits::MIN_FILE_WRITE_PERIOD.as_millis();
        if let Some(period @ 1..) = config.file_write_period_ms
            && u128::from(period) < least
        {
            adviser.warn(
                "file_write_period_ms",
                format!("{period} ms is less than the shortest period: it will be {least} ms"),
                format!("write {least} or more"),
            );
        } else if config.fflush_post_write == Some(FFlushMode::FFLUSH_ENABLED)
            && let Some(period @ 1..OFTEN_MS) = config.file_write_period_ms
        {
            adviser.warn(
                "fflush_post_write",
                format!("the file is forced onto the disk every {period} ms, which slows down whatever else writes to it"),
                format!("write `file_write_period_ms: {OFTEN_MS}` or more"),
            );
        }
        return;
    }
    let given = [
        (
            "max_file_size_bytes",
            config.max_file_size_bytes.unwrap_or_default() != 0,
        ),
        (
            "file_write_period_ms",
            config.file_write_period_ms.unwrap_or_default() != 0,
        ),
        ("write_flush_mode", config.write_flush_mode.is_some()),
        ("fflush_post_write", config.fflush_post_write.is_some()),
        (
            "output_path",
            config.output_path.as_deref().is_some_and(|path| !path.is_empty()),
        ),
    ];
    for (field, _) in given.into_iter().filter(|(_, given)| *given) {
        adviser.warn(
            field,
            format!("{field} does nothing without write_into_file"),
            "write `write_into_file: true`, or leave it out",
        );
    }
}

fn flushes(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    let period = config.flush_period_ms.unwrap_or_default();
    let decided = config.write_into_file.unwrap_or_default()
        && config.write_flush_mode != Some(WriteFlushMode::WRITE_FLUSH_DISABLED);
    if period != 0 && decided {
        adviser.hint(
            "flush_period_ms",
            "with write_into_file the service decides itself when producers hand over what they have, and ignores \
             flush_period_ms",
            "leave it out, or write `write_flush_mode: WRITE_FLUSH_DISABLED`",
        );
    }
}

fn incremental_state(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    let period = config
        .incremental_state_config
        .clear_period_ms
        .unwrap_or_default();
    let Some(offers) = &adviser.surroundings.service else {
        return;
    };
    if period == 0 || config.data_sources.is_empty() {
        return;
    }
    // A source that is not connected yet may have incremental state.
    let none_has_it = config.data_sources.iter().all(|source| {
        let mut offered = offers.offering(name_of(source)).peekable();
        offered.peek().is_some() && offered.all(|(source, _)| !source.clears_incremental_state)
    });
    if none_has_it {
        adviser.warn(
            "incremental_state_config.clear_period_ms",
            "none of the data sources has a state that could be cleared",
            "leave it out",
        );
    }
}

fn triggers(adviser: &mut Adviser<'_>) {
    let triggers = &adviser.config.trigger_config;
    if !triggers.is_set() {
        return;
    }
    let mode = triggers.trigger_mode.unwrap_or(TriggerMode::UNSPECIFIED);
    let clones = triggers.use_clone_snapshot_if_available.unwrap_or_default();
    if mode == TriggerMode::UNSPECIFIED && !clones && !triggers.triggers.is_empty() {
        adviser.warn(
            "trigger_config",
            "without trigger_mode triggers neither start nor stop anything, and without one of them the trace stays empty",
            "write `trigger_mode: STOP_TRACING`, `START_TRACING` or `CLONE_SNAPSHOT`",
        );
    } else if mode != TriggerMode::UNSPECIFIED && triggers.triggers.is_empty() {
        adviser.warn(
            "trigger_config",
            "there is no trigger: nothing can happen before trigger_timeout_ms is over",
            "write `triggers { name: \"…\" stop_delay_ms: 1000 }`",
        );
    } else if mode != TriggerMode::UNSPECIFIED && triggers.trigger_timeout_ms.unwrap_or_default() == 0 {
        adviser.warn(
            "trigger_config.trigger_timeout_ms",
            "without trigger_timeout_ms nobody would wait for the triggers, and the service refuses the config",
            "write `trigger_timeout_ms: 3600000`",
        );
    }
    let mut delays = Vec::new();
    for (index, trigger) in triggers.triggers.iter().enumerate() {
        if mode == TriggerMode::START_TRACING && trigger.stop_delay_ms.unwrap_or_default() == 0 {
            delays.push(index);
        }
    }
    for index in delays {
        adviser.warn(
            format!("trigger_config.triggers[{index}].stop_delay_ms"),
            "this trigger starts the recording and ends it at once",
            "write `stop_delay_ms: 10000` for what should be recorded after it",
        );
    }
}

/// Warns of fields that only Android's services use.
fn android(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    let given = [
        ("android_report_config", config.android_report_config.is_set()),
        ("incident_report_config", config.incident_report_config.is_set()),
        ("statsd_metadata", config.statsd_metadata.is_set()),
        (
            "statsd_logging",
            config.statsd_logging == Some(StatsdLogging::STATSD_LOGGING_ENABLED),
        ),
        ("notify_traceur", config.notify_traceur.unwrap_or_default()),
        (
            "allow_user_build_tracing",
            config.allow_user_build_tracing.unwrap_or_default(),
        ),
    ];
    for (field, _) in given.into_iter().filter(|(_, given)| *given) {
        adviser.hint(
            field,
            format!("{field} does nothing outside of Android"),
            "leave it out",
        );
    }
}
