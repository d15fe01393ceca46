//! Random sessions, triggers, producers and times, compared with a simple model that scans lists.
//!
//! `FERRETTO_TRIGGERS_SEED=n` runs one seed.

use std::collections::BTreeMap;

use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_service::{ConsumerId, ProducerId};

use super::{CLONE_TRIGGER_HIT, DAY, triggered, triggers};
use crate::random::Random;
use crate::world::World;

const SEEDS: u64 = 30;
const STEPS: u64 = 150;

const TRIGGERS: [&str; 4] = ["a", "b", "c", "d"];
/// The names of producers, and expressions with the names that they match.
const PRODUCERS: [&str; 3] = ["p", "pp", "q"];
const EXPRESSIONS: [(&str, &[&str]); 4] = [
    ("", &["p", "pp", "q"]),
    ("p", &["p"]),
    ("p+", &["p", "pp"]),
    ("nobody", &[]),
];
const MODES: [TriggerMode; 3] = [
    TriggerMode::START_TRACING,
    TriggerMode::STOP_TRACING,
    TriggerMode::CLONE_SNAPSHOT,
];

struct Awaited {
    trigger: Trigger,
    senders: &'static [&'static str],
}

/// The model's view of a session.
struct Session {
    mode: TriggerMode,
    awaited: Vec<Awaited>,
    /// Triggers that were activated, and not read.
    unread: Vec<String>,
    hit: bool,
    started: bool,
    /// The time at which it will end, as far as it is known now.
    ends_at: u64,
    /// Snapshots, each with the time at which it is due.
    snapshots: Vec<(u64, String)>,
}

impl Session {
    /// Returns the snapshots that are due by this time.
    fn elapse(&mut self, now: u64) -> Vec<String> {
        let mut due: Vec<(u64, String)> = self.snapshots.extract_if(.., |(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        due.into_iter().map(|(_, name)| name).collect()
    }

    fn is_over(&self, now: u64) -> bool {
        now >= self.ends_at
    }
}

/// The activations that some session waited for.
#[derive(Default)]
struct Model {
    sessions: BTreeMap<ConsumerId, Session>,
    activations: Vec<(u64, String)>,
}

impl Model {
    fn activate(&mut self, sender: &str, name: &str, now: u64) {
        let day = u64::from(DAY) * 1_000_000;
        let earlier = self
            .activations
            .iter()
            .filter(|(at, activated)| activated == name && now - at <= day)
            .count();
        let mut matched = false;
        for session in self.sessions.values_mut() {
            let Some(awaited) = session
                .awaited
                .iter()
                .find(|awaited| awaited.trigger.name.as_deref() == Some(name))
            else {
                continue;
            };
            let limit = awaited.trigger.max_per_24_h.unwrap_or_default() as usize;
            if session.is_over(now)
                || !awaited.senders.contains(&sender)
                || awaited.trigger.skip_probability == Some(1.0)
                || limit > 0 && earlier >= limit
            {
                continue;
            }
            matched = true;
            let delay = u64::from(awaited.trigger.stop_delay_ms.unwrap_or_default()) * 1_000_000;
            session.unread.push(name.to_owned());
            match session.mode {
                TriggerMode::START_TRACING if !session.started => {
                    session.started = true;
                    session.ends_at = now + delay;
                }
                TriggerMode::STOP_TRACING if !session.hit => session.ends_at = now + delay,
                TriggerMode::CLONE_SNAPSHOT => session.snapshots.push((now + delay, name.to_owned())),
                _ => {}
            }
            session.hit = true;
        }
        if matched {
            self.activations.push((now, name.to_owned()));
        }
    }
}

fn random_session(random: &mut Random, now: u64) -> (Session, u32) {
    let mode = random.choose(&MODES);
    let timeout_ms = 1 + random.below(30 * 3_600_000) as u32;
    let awaited = TRIGGERS.iter().filter_map(|name| {
        let (expression, senders) = random.choose(&EXPRESSIONS);
        let trigger = Trigger {
            name: Some((*name).to_owned()),
            producer_name_regex: Some(expression.to_owned()),
            // The delay is not 0, because a session that a trigger starts would then never end.
            stop_delay_ms: Some(1 + random.below(20 * 3_600_000) as u32),
            max_per_24_h: Some(random.below(4) as u32),
            skip_probability: Some(random.choose(&[0.0, 0.0, 0.0, 1.0])),
            ..Default::default()
        };
        (random.below(3) > 0).then_some(Awaited { trigger, senders })
    });
    let session = Session {
        mode,
        awaited: awaited.collect(),
        unread: Vec::new(),
        hit: false,
        started: mode != TriggerMode::START_TRACING,
        ends_at: now + u64::from(timeout_ms) * 1_000_000,
        snapshots: Vec::new(),
    };
    (session, timeout_ms)
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let mut world = World::new();
    let mut model = Model::default();
    let producers: Vec<(ProducerId, &str)> = PRODUCERS
        .iter()
        .map(|name| (world.producer(name), *name))
        .collect();
    for step in 0..STEPS {
        let at = format!("seed {seed}, step {step}");
        match random.below(10) {
            0..=1 if model.sessions.len() < 5 => {
                let consumer = world.consumer();
                let now = world.now;
                world.service.observe_events(consumer, CLONE_TRIGGER_HIT, &now);
                let (session, timeout_ms) = random_session(&mut random, now.monotonic);
                let wanted: Vec<Trigger> = session
                    .awaited
                    .iter()
                    .map(|awaited| awaited.trigger.clone())
                    .collect();
                world.enable(consumer, &triggered(session.mode, timeout_ms, &wanted));
                model.sessions.insert(consumer, session);
            }
            0..=4 => {
                // Activations are at least a minute apart, so that the service's history is exact.
                let most = random.choose(&[120, 120, 120, 2000]);
                let minutes = 1 + random.below(most);
                world.advance(minutes * 60_000);
            }
            5 => {
                if let Some(consumer) = model.sessions.keys().next().copied() {
                    model.sessions.remove(&consumer);
                    world.lose_consumer(consumer);
                }
            }
            _ => {
                world.advance(60_000);
                let (producer, name) = random.choose(&producers);
                let trigger = random.choose(&TRIGGERS);
                model.activate(name, trigger, world.now.monotonic);
                world.activate_with(producer, &[trigger], random.next());
            }
        }
        let now = world.now.monotonic;
        for (consumer, session) in &mut model.sessions {
            let due = session.elapse(now);
            let told = &mut world.consumers.get_mut(consumer).expect("known").snapshots_due;
            let told: Vec<String> = std::mem::take(told)
                .into_iter()
                .filter_map(|hit| hit.trigger_name)
                .collect();
            assert_eq!(told, due, "{at}: snapshots");
            let ended = world.consumers[consumer].disabled.len();
            assert_eq!(ended, usize::from(session.is_over(now)), "{at}: ended");
            let trace = world.read(*consumer);
            if session.mode == TriggerMode::CLONE_SNAPSHOT || !session.hit && !session.awaited.is_empty() {
                assert!(trace.is_empty(), "{at}: hidden");
            } else {
                assert_eq!(
                    triggers(&trace),
                    std::mem::take(&mut session.unread),
                    "{at}: triggers"
                );
            }
        }
    }
}

#[test]
fn random_sessions_and_activations_agree_with_the_model() {
    let seeds = match std::env::var("FERRETTO_TRIGGERS_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    };
    seeds.for_each(run);
}
