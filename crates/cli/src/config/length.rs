//! How long a config records, how often a file is written meanwhile, and whether ring buffers may therefore overwrite data.
//!
//! The recording, the [`account`](crate::account) of its losses and the [`advice`](super::advice) on its config call it, so these agree.

use std::time::Duration;

use ferretto_proto::messages::TraceConfig;
use ferretto_proto::messages::trace_config::trigger_config::TriggerMode;
use ferretto_service::limits;

use super::refusals::takes_snapshots;

/// The event that ends a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// The user or a trigger ends it; the trigger may clone it instead.
    UntilStopped,
    /// The time in the config ends it, counted from the beginning or from a trigger.
    Given,
    /// The end of a command that runs meanwhile ends it.
    OfCommand,
}

impl Length {
    /// Reads the length from a config.
    pub(crate) fn of(config: &TraceConfig) -> Length {
        let triggers = &config.trigger_config;
        let mode = triggers.trigger_mode.filter(|_| !triggers.triggers.is_empty());
        match mode {
            // The user asked for everything after the trigger.
            Some(TriggerMode::START_TRACING) => Length::Given,
            Some(TriggerMode::STOP_TRACING | TriggerMode::CLONE_SNAPSHOT) => Length::UntilStopped,
            Some(TriggerMode::UNSPECIFIED) if takes_snapshots(config) => Length::UntilStopped,
            Some(TriggerMode::UNSPECIFIED) | None => match config.duration_ms.unwrap_or(0) {
                0 => Length::UntilStopped,
                _ => Length::Given,
            },
        }
    }

    /// Like [`of`](Length::of), while a command runs.
    pub(crate) fn with_command(config: &TraceConfig) -> Length {
        match Length::of(config) {
            // The recording ends with the command, unless it waits for triggers, which the command may activate.
            Length::UntilStopped if config.trigger_config.triggers.is_empty() => Length::OfCommand,
            length => length,
        }
    }

    /// Whether the ring buffers are there to keep the newest data, as in a flight recorder. In a recording with a given end, the user wants all data
    /// from beginning to end, so data that a ring overwrites are lost.
    pub(crate) fn keeps_the_newest(self, config: &TraceConfig) -> bool {
        self == Length::UntilStopped && config.write_into_file != Some(true)
    }
}

/// Returns the period in which data go from the buffers into a file that is written while recording.
pub(crate) fn file_write_period(config: &TraceConfig) -> Duration {
    match config.file_write_period_ms {
        None | Some(0) => limits::DEFAULT_FILE_WRITE_PERIOD,
        Some(ms) => limits::MIN_FILE_WRITE_PERIOD.max(Duration::from_millis(ms.into())),
    }
}

/// Returns the longest time that it records, including the wait for triggers; `None` if others decide.
pub(crate) fn longest(config: &TraceConfig) -> Option<Duration> {
    let ms = |value: Option<u32>| Duration::from_millis(value.unwrap_or(0).into());
    let triggers = &config.trigger_config;
    let given = ms(config.duration_ms);
    let longest = match given.is_zero() {
        true => {
            let delays = triggers.triggers.iter().map(|trigger| ms(trigger.stop_delay_ms));
            ms(triggers.trigger_timeout_ms) + delays.max().unwrap_or_default()
        }
        false => given,
    };
    (!longest.is_zero()).then_some(longest)
}

/// Whether others are meant to end or clone the recording: by a trigger, for a bug report, or by the session's name.
pub(crate) fn is_for_others_to_end(config: &TraceConfig) -> bool {
    let triggers = &config.trigger_config;
    let name = config.unique_session_name.as_deref();
    triggers.trigger_timeout_ms.unwrap_or_default() != 0
        || !triggers.triggers.is_empty()
        || config.bugreport_score.unwrap_or_default() > 0
        || name.is_some_and(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::trace_config::TriggerConfig;
    use ferretto_proto::messages::trace_config::trigger_config::Trigger;

    use super::*;

    fn config(duration_ms: u32, mode: Option<TriggerMode>) -> TraceConfig {
        let trigger = Trigger {
            name: Some("t".to_owned()),
            stop_delay_ms: Some(500),
            ..Default::default()
        };
        TraceConfig {
            duration_ms: Some(duration_ms),
            trigger_config: TriggerConfig {
                trigger_mode: mode,
                trigger_timeout_ms: mode.map(|_| 60_000),
                triggers: mode.map(|_| trigger).into_iter().collect(),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }
    }

    #[test]
    fn only_recordings_that_others_end_are_flight_recorders() {
        for (duration, mode, expected) in [
            (0, None, Length::UntilStopped),
            (1000, None, Length::Given),
            (0, Some(TriggerMode::STOP_TRACING), Length::UntilStopped),
            (1000, Some(TriggerMode::STOP_TRACING), Length::UntilStopped),
            (0, Some(TriggerMode::CLONE_SNAPSHOT), Length::UntilStopped),
            (0, Some(TriggerMode::START_TRACING), Length::Given),
            (1000, Some(TriggerMode::UNSPECIFIED), Length::Given),
        ] {
            let config = config(duration, mode);
            assert_eq!(Length::of(&config), expected, "{duration} {mode:?}");
            let keeps = expected == Length::UntilStopped;
            assert_eq!(expected.keeps_the_newest(&config), keeps, "{duration} {mode:?}");
        }
        let streamed = TraceConfig {
            write_into_file: Some(true),
            ..config(0, None)
        };
        assert!(!Length::of(&streamed).keeps_the_newest(&streamed));
    }

    #[test]
    fn a_command_has_a_beginning_and_an_end() {
        let endless = config(0, None);
        assert_eq!(Length::with_command(&endless), Length::OfCommand);
        assert!(!Length::OfCommand.keeps_the_newest(&endless));
        assert_eq!(Length::with_command(&config(1000, None)), Length::Given);
        let triggered = config(0, Some(TriggerMode::STOP_TRACING));
        assert_eq!(Length::with_command(&triggered), Length::UntilStopped);
    }

    #[test]
    fn triggers_are_waited_for_as_long_as_the_config_says() {
        let longest = |duration, mode| longest(&config(duration, mode)).map(|length| length.as_millis());
        assert_eq!(longest(0, None), None);
        assert_eq!(longest(1000, None), Some(1000));
        assert_eq!(longest(0, Some(TriggerMode::STOP_TRACING)), Some(60_500));
    }
}
