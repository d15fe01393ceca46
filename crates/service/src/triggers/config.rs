//! The triggers of a config, checked: their names, the producers that may activate them, and their effect.
//!
//! `enable` calls this before a session exists.

use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::{TraceConfig, trace_config, trace_config::trigger_config};
use ferretto_wire::{Reader, Value};

use crate::expression::{Expression, NameExpressions};
use crate::limits;
use crate::ordered::OrderedSet;
use crate::work_budget::WorkBudget;

/// The effect of a trigger on the session that waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The session is recorded; without a trigger it cannot be read.
    #[default]
    Unspecified,
    /// The first starts the session.
    StartTracing,
    /// The first stops the session.
    StopTracing,
    /// Each trigger has the consumer clone the session, which goes on.
    CloneSnapshot,
}

impl Mode {
    /// The name in configs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Unspecified => "UNSPECIFIED",
            Mode::StartTracing => "START_TRACING",
            Mode::StopTracing => "STOP_TRACING",
            Mode::CloneSnapshot => "CLONE_SNAPSHOT",
        }
    }
}

/// A trigger that a session waits for.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: Arc<str>,
    /// Names of producers that may activate it; `None` for all.
    producers: Option<Arc<Expression>>,
    /// The delay from the activation to the effect; for `StartTracing`, the duration of the session after it.
    pub(crate) delay_ms: u32,
    /// Activations within 24 hours after which further ones are ignored; 0 for no limit.
    max_per_day: u32,
    skip_probability: f64,
}

impl Definition {
    /// Whether a producer of this name may activate it.
    pub(crate) fn admits(&self, producer: &str, budget: &WorkBudget) -> bool {
        self.producers
            .as_ref()
            .is_none_or(|producers| producers.matches_name(producer, budget))
    }

    /// Whether it is skipped for this draw from [0, 1).
    pub(crate) fn skips(&self, draw: f64) -> bool {
        draw < self.skip_probability
    }

    /// Whether it was activated as often as it may be, after `earlier` activations within 24 hours.
    pub(crate) fn is_spent(&self, earlier: u64) -> bool {
        self.max_per_day != 0 && earlier >= u64::from(self.max_per_day)
    }
}

/// The checked `trigger_config`.
#[derive(Debug, Default)]
pub(crate) struct TriggerConfig {
    pub(crate) mode: Mode,
    /// How long the session waits for a trigger. At least 1, unless the mode is `Unspecified`.
    pub(crate) timeout_ms: u32,
    pub(crate) definitions: Vec<Definition>,
}

impl TriggerConfig {
    /// Checks the `trigger_config` of a config, which was decoded from `bytes`.
    ///
    /// # Errors
    /// The reason why the config has to be refused.
    pub(crate) fn check(
        config: &TraceConfig,
        bytes: &[u8],
        max_duration: Duration,
    ) -> Result<TriggerConfig, String> {
        let wanted = &config.trigger_config;
        let mode = mode(config, bytes)?;
        let timeout_ms = wanted.trigger_timeout_ms.unwrap_or_default();
        if mode != Mode::Unspecified {
            if timeout_ms == 0 || Duration::from_millis(timeout_ms.into()) > max_duration {
                return Err(format!(
                    "trigger_config.trigger_timeout_ms: {timeout_ms} ms is not a time to wait for triggers: it has to be \
                     positive and at most {} ms",
                    max_duration.as_millis()
                ));
            }
            if config.duration_ms.unwrap_or_default() != 0 {
                return Err(
                    "duration_ms must not be set in a config with triggers: trigger_timeout_ms and stop_delay_ms say how \
                     long it lasts"
                        .into(),
                );
            }
        }
        if matches!(mode, Mode::StopTracing | Mode::CloneSnapshot) && config.write_into_file == Some(true) {
            return Err(format!(
                "write_into_file does not go together with trigger_mode {}: there is nothing to be written before the \
                 trigger",
                mode.name()
            ));
        }
        Ok(TriggerConfig {
            mode,
            timeout_ms,
            definitions: definitions(&wanted.triggers)?,
        })
    }
}

/// The mode, which an unknown number makes invalid: a trigger of the future does something that this service does not know,
/// and the session would last until it is done.
fn mode(config: &TraceConfig, bytes: &[u8]) -> Result<Mode, String> {
    let mode = match raw_mode(bytes) {
        0 => Mode::Unspecified,
        1 => Mode::StartTracing,
        2 => Mode::StopTracing,
        4 => Mode::CloneSnapshot,
        number => {
            return Err(format!(
                "trigger_config: {number} is an invalid trigger_mode; this service knows START_TRACING (1), STOP_TRACING \
                 (2) and CLONE_SNAPSHOT (4)"
            ));
        }
    };
    if config.trigger_config.use_clone_snapshot_if_available != Some(true) {
        return Ok(mode);
    }
    // The fallback for services that are too old for the flag.
    if mode != Mode::StopTracing {
        return Err(format!(
            "trigger_config: trigger_mode must be STOP_TRACING with use_clone_snapshot_if_available, not {}",
            mode.name()
        ));
    }
    Ok(Mode::CloneSnapshot)
}

/// `trigger_config.trigger_mode` as a number: the decoded message has none for numbers it does not know.
fn raw_mode(config: &[u8]) -> u64 {
    let of = |message, number| {
        Reader::new(message)
            .filter_map(Result::ok)
            .filter(move |field| field.number == number)
            .map(|field| field.value)
    };
    of(config, TraceConfig::TRIGGER_CONFIG)
        .filter_map(|value| match value {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        })
        .flat_map(|triggers| of(triggers, trace_config::TriggerConfig::TRIGGER_MODE))
        .filter_map(|value| match value {
            Value::Varint(number) => Some(number),
            _ => None,
        })
        .last()
        .unwrap_or_default()
}

fn definitions(triggers: &[trigger_config::Trigger]) -> Result<Vec<Definition>, String> {
    if triggers.len() > limits::MAX_TRIGGERS_PER_CONFIG {
        return Err(format!(
            "too many triggers: {}, the limit is {}",
            triggers.len(),
            limits::MAX_TRIGGERS_PER_CONFIG
        ));
    }
    let mut names = OrderedSet::new();
    let given = triggers
        .iter()
        .filter_map(|trigger| trigger.producer_name_regex.as_deref());
    let mut expressions = NameExpressions::new(
        "producer_name_regex",
        limits::MAX_TRIGGER_REGEXES_PER_CONFIG,
        given.filter(|expression| !expression.is_empty()),
    )?;
    let define = |trigger: &trigger_config::Trigger| {
        let name = trigger.name.as_deref().unwrap_or_default();
        if name.len() > limits::MAX_TRIGGER_NAME {
            return Err(format!(
                "a trigger has a name of {} bytes, the limit is {}",
                name.len(),
                limits::MAX_TRIGGER_NAME
            ));
        }
        Ok(Definition {
            name: name.into(),
            producers: None,
            delay_ms: trigger.stop_delay_ms.unwrap_or_default(),
            max_per_day: trigger.max_per_24_h.unwrap_or_default(),
            skip_probability: trigger.skip_probability.unwrap_or_default(),
        })
    };
    let mut definitions: Vec<Definition> = triggers.iter().map(define).collect::<Result<_, _>>()?;
    for (definition, trigger) in definitions.iter_mut().zip(triggers) {
        let name = &definition.name;
        if !names.insert(name.clone()) {
            return Err(format!("duplicate trigger name {name:?}"));
        }
        let expression = trigger.producer_name_regex.as_deref().unwrap_or_default();
        if expression.is_empty() {
            continue;
        }
        let compiled = expressions
            .get(expression)
            .map_err(|error| format!("trigger {name:?}: producer_name_regex {expression:?}: {error}"))?;
        definition.producers = Some(compiled);
    }
    Ok(definitions)
}
