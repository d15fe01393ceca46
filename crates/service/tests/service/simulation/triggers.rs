//! Triggers: sessions that they start, stop or clone, and producers that activate them.

use ferretto_proto::messages::TraceConfig;
use ferretto_proto::messages::trace_config::TriggerConfig;
use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_service::ProducerId;

use super::Simulation;
use crate::random::Random;

/// Makes this config wait for triggers. The service refuses some of them.
pub(super) fn wait_for_triggers(config: &mut TraceConfig, random: &mut Random) {
    let modes = [
        TriggerMode::UNSPECIFIED,
        TriggerMode::START_TRACING,
        TriggerMode::STOP_TRACING,
        TriggerMode::CLONE_SNAPSHOT,
    ];
    let triggers = (0..1 + random.below(3))
        .map(|n| Trigger {
            name: Some(format!("t{}", random.below(2) + 2 * n)),
            stop_delay_ms: random.one_in(2).then(|| random.below(3000) as u32),
            producer_name_regex: random.one_in(4).then(|| format!("p[0{}]", random.below(3))),
            max_per_24_h: random.one_in(4).then(|| random.below(3) as u32),
            skip_probability: random.one_in(4).then_some(0.5),
            ..Default::default()
        })
        .collect();
    config.trigger_config = TriggerConfig {
        trigger_mode: random.pick(&modes),
        triggers,
        trigger_timeout_ms: Some(1 + random.below(20_000) as u32),
        ..Default::default()
    }
    .into();
    config.duration_ms = None;
    if random.one_in(2) {
        config.write_into_file = None;
        config.file_write_period_ms = None;
        config.max_file_size_bytes = None;
    }
}

/// The triggers that a session of this config waits for.
pub(super) fn triggers_of(config: &TraceConfig) -> Vec<String> {
    let triggers = config.trigger_config.triggers.iter();
    triggers.filter_map(|trigger| trigger.name.clone()).collect()
}

impl Simulation {
    /// Has a producer activate some triggers. Sessions wait for some of these only.
    pub(super) fn activate_triggers(&mut self, id: ProducerId) {
        let random = &mut self.random;
        let names: Vec<String> = (0..random.below(4))
            .map(|_| format!("t{}", random.below(7)))
            .collect();
        for session in self.sessions.values_mut() {
            session.is_triggered |= session.triggers.iter().any(|trigger| names.contains(trigger));
        }
        let bits = random.next();
        self.world
            .service
            .activate_triggers(id, &names, bits, &self.world.now);
    }
}
