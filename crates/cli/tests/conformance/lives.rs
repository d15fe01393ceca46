//! Random lives: producers connect, register, acknowledge and disconnect; consumers begin, stop, flush, detach, attach and disconnect, with several
//! sessions at a time. The messages to all of them after each step are compared.
//!
//! `FERRETTO_CONFORMANCE_SEED=n` runs one seed.

use std::collections::BTreeMap;

use ferretto_client::consumer::ConsumerReply;
use ferretto_ipc::client::CallId;
use ferretto_proto::messages::clone_session_request::Selector;
use ferretto_proto::messages::observable_events::Type;
use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_proto::messages::trace_config::{
    DataSource, IncrementalStateConfig, SessionSemaphore, TriggerConfig,
};
use ferretto_proto::messages::{
    CloneSessionRequest, DataSourceConfig, DataSourceDescriptor, Message, TraceConfig,
};

use crate::conformance::chosen_seed;
use crate::conformance::parties::{Consumer, NO_PERIOD_MS, Producer, Service, config, plain, skeleton};
use crate::support::random::Random;
use crate::support::{PATIENCE, Programs, Side};

const SEEDS: std::ops::Range<u64> = 1..31;
const STEPS: usize = 120;
const PRODUCERS: usize = 3;
const CONSUMERS: usize = 3;
const NAMES: [&str; 3] = ["a", "b", "c"];
const KEYS: [&str; 2] = ["first key", "second key"];
const TRIGGERS: [&str; 3] = ["t", "u", "v"];
/// The text for a failed flush.
const FLUSH_FAILED: &str = "came to nothing";
/// A time that does not pass within a test.
const NEVER_MS: u32 = 600_000;

/// An action of a client. Producers and consumers have numbers; instances and flushes are counted in the order of their arrival.
#[derive(Clone, Debug)]
enum Step {
    Register(usize, DataSourceDescriptor),
    Update(usize, DataSourceDescriptor),
    Unregister(usize, &'static str),
    Started(usize, usize),
    Stopped(usize, usize),
    Flushed(usize, usize),
    LoseProducer(usize),
    Enable(usize, TraceConfig),
    Change(usize, TraceConfig),
    Start(usize),
    Disable(usize),
    Free(usize),
    Flush(usize),
    Detach(usize, &'static str),
    Attach(usize, &'static str),
    Observe(usize, Vec<Type>),
    Read(usize),
    LoseConsumer(usize),
    Activate(usize, &'static str),
    /// Clones the session that the second consumer began.
    Clone(usize, usize),
}

/// The theme of a conversation. Some actions cannot be combined, because upstream mishandles the combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// When a session has lost its last data source, upstream reports that all data sources have started, even if the session has not started or has
    /// ended, and then does not report it when it is true. So this report is not compared.
    Everything,
    /// The report is compared here, with sessions that start at once and are stopped only by freeing them.
    Starts,
    /// After a filter on producers was widened, upstream sets up only producers without an instance in the session. So each producer has at most one.
    Filters,
    /// In upstream, triggers affect sessions that have ended, and stop sessions that never started. So only triggers stop sessions without freeing
    /// them, and these sessions start at once.
    Triggers,
    /// Our service refuses some requests that upstream refuses only after the flush. So only consumers without a session request clones.
    Clones,
}

fn descriptor(random: &mut Random, name: &str, id: usize) -> DataSourceDescriptor {
    DataSourceDescriptor {
        id: Some(id as u64),
        will_notify_on_start: Some(random.one_in(2)),
        will_notify_on_stop: Some(random.one_in(2)),
        no_flush: Some(random.one_in(4)),
        handles_incremental_state_clear: Some(random.one_in(2)),
        ..plain(name)
    }
}

fn filter(random: &mut Random, source: &mut DataSource) {
    let (names, expressions): (&[&str], &[&str]) = match random.below(5) {
        0 => (&["p0"], &[]),
        1 => (&[], &["p[01]"]),
        2 => (&["p2"], &["p0"]),
        3 => (&["nobody"], &[]),
        _ => (&[], &[]),
    };
    source.producer_name_filter = names.iter().map(|name| (*name).into()).collect();
    source.producer_name_regex_filter = expressions.iter().map(|name| (*name).into()).collect();
}

fn trace_config(random: &mut Random, about: About) -> TraceConfig {
    let count = match about {
        About::Filters => 1,
        About::Everything | About::Starts | About::Triggers | About::Clones => random.below(4),
    };
    let source = |random: &mut Random| {
        let mut source = DataSource {
            config: DataSourceConfig {
                name: Some(NAMES[random.below(NAMES.len())].into()),
                target_buffer: Some(random.below(2) as u32),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        filter(random, &mut source);
        source
    };
    let data_sources = (0..count).map(|_| source(random)).collect();
    let semaphore = |random: &mut Random, name: &str| SessionSemaphore {
        name: Some(name.into()),
        max_other_session_count: Some(random.below(3) as u64),
        ..Default::default()
    };
    let semaphores: &[&str] = [&[][..], &[], &["s"], &["s", "t"]][random.below(4)];
    let semaphores = semaphores.iter().map(|name| semaphore(random, name));
    let mut asked = TraceConfig {
        data_sources,
        session_semaphores: semaphores.collect(),
        deferred_start: Some(about != About::Starts && random.one_in(3)),
        data_source_stop_timeout_ms: Some(NEVER_MS),
        flush_timeout_ms: Some(NEVER_MS),
        unique_session_name: random.one_in(6).then(|| "the only one".into()),
        incremental_state_config: IncrementalStateConfig {
            clear_period_ms: Some(NO_PERIOD_MS),
            ..Default::default()
        }
        .into(),
        ..config("")
    };
    asked.buffers.push(asked.buffers[0].clone());
    match random.below(10) {
        0 => asked.exclusive_prio = Some(1 + random.below(3) as u32),
        // Not both: upstream ends other sessions for an exclusive one that it then refuses.
        1 => {
            asked.enable_extra_guardrails = Some(true);
            asked.unique_session_name = Some(format!("guarded {}", random.below(20)));
            asked.buffers[0].size_kb = Some([64, 64, 6][random.below(3)]);
        }
        _ => {}
    }
    if about == About::Triggers {
        asked.trigger_config = trigger_config(random).into();
        let stops = asked.trigger_config.trigger_mode == Some(TriggerMode::STOP_TRACING);
        asked.deferred_start = Some(!stops && random.one_in(3));
    }
    asked
}

fn trigger_config(random: &mut Random) -> TriggerConfig {
    let modes = [
        TriggerMode::UNSPECIFIED,
        TriggerMode::START_TRACING,
        TriggerMode::STOP_TRACING,
        TriggerMode::CLONE_SNAPSHOT,
    ];
    let mode = modes[random.below(modes.len())];
    let first = random.below(TRIGGERS.len());
    let names = [TRIGGERS[first], TRIGGERS[(first + 1) % TRIGGERS.len()]];
    let triggers = names[..1 + random.below(2)].iter().map(|name| Trigger {
        name: Some((*name).into()),
        stop_delay_ms: Some([0, NEVER_MS][random.below(2)]),
        producer_name_regex: random.one_in(4).then(|| "p[01]".into()),
        skip_probability: random.one_in(8).then_some(1.0),
        ..Default::default()
    });
    TriggerConfig {
        trigger_mode: Some(mode),
        trigger_timeout_ms: Some(NEVER_MS),
        triggers: triggers.collect(),
        use_clone_snapshot_if_available: (mode == TriggerMode::STOP_TRACING && random.one_in(3))
            .then_some(true),
        ..Default::default()
    }
}

/// Returns the name of the session that a consumer begins.
fn of(consumer: usize) -> String {
    format!("of {consumer}")
}

fn conversation(seed: u64) -> (About, Vec<Step>) {
    let mut random = Random(seed);
    let about = [
        About::Everything,
        About::Starts,
        About::Filters,
        About::Triggers,
        About::Clones,
    ][random.below(5)];
    let random = &mut random;
    let mut registered: [Vec<DataSourceDescriptor>; PRODUCERS] = Default::default();
    let mut configs: [Option<TraceConfig>; CONSUMERS] = Default::default();
    let mut steps = Vec::new();
    while steps.len() < STEPS {
        let (producer, consumer) = (random.below(PRODUCERS), random.below(CONSUMERS));
        let known = &mut registered[producer];
        let recent = random.below(4);
        steps.push(match random.below(44) {
            0..5 => {
                let name = NAMES[random.below(NAMES.len())];
                let again = known.iter().any(|other| other.name.as_deref() == Some(name));
                if known.len() > 4 || again && about == About::Filters {
                    continue;
                }
                let id = 1 + known
                    .iter()
                    .map(|other| other.id.unwrap_or_default())
                    .max()
                    .unwrap_or_default();
                let descriptor = descriptor(random, name, id as usize);
                known.push(descriptor.clone());
                Step::Register(producer, descriptor)
            }
            5 if !known.is_empty() => {
                let old = known[random.below(known.len())].clone();
                let name = old.name.unwrap_or_default();
                Step::Update(
                    producer,
                    descriptor(random, &name, old.id.unwrap_or_default() as usize),
                )
            }
            6 if !known.is_empty() => {
                let gone = known[random.below(known.len())].name.clone();
                // If several have this name, the first one is unregistered.
                let at = known
                    .iter()
                    .position(|other| other.name == gone)
                    .unwrap_or_default();
                known.remove(at);
                let name = NAMES.into_iter().find(|name| gone.as_deref() == Some(*name));
                Step::Unregister(producer, name.unwrap_or_default())
            }
            7..12 => Step::Started(producer, recent),
            12..16 => Step::Stopped(producer, recent),
            16..20 => Step::Flushed(producer, recent),
            20 => {
                known.clear();
                Step::LoseProducer(producer)
            }
            21..26 => {
                let mut config = trace_config(random, about);
                if about == About::Clones {
                    config.unique_session_name = Some(of(consumer));
                    (config.exclusive_prio, config.enable_extra_guardrails) = (None, None);
                }
                configs[consumer] = Some(config.clone());
                Step::Enable(consumer, config)
            }
            26 if about == About::Filters => {
                let Some(mut changed) = configs[consumer].clone() else {
                    continue;
                };
                changed
                    .data_sources
                    .iter_mut()
                    .for_each(|source| filter(random, source));
                Step::Change(consumer, changed)
            }
            27 => Step::Start(consumer),
            28..30 if !matches!(about, About::Starts | About::Triggers) => Step::Disable(consumer),
            30 => Step::Free(consumer),
            31..34 => Step::Flush(consumer),
            34 => Step::Detach(consumer, KEYS[random.below(KEYS.len())]),
            35 => Step::Attach(consumer, KEYS[random.below(KEYS.len())]),
            36 | 37 => {
                let mut kinds = Vec::new();
                kinds.extend((!random.one_in(4)).then_some(Type::TYPE_DATA_SOURCES_INSTANCES));
                kinds.extend((about == About::Starts).then_some(Type::TYPE_ALL_DATA_SOURCES_STARTED));
                kinds.extend((about == About::Triggers).then_some(Type::TYPE_CLONE_TRIGGER_HIT));
                Step::Observe(consumer, kinds)
            }
            38 => Step::Read(consumer),
            39 => Step::LoseConsumer(consumer),
            40..43 if about == About::Triggers => {
                Step::Activate(producer, TRIGGERS[random.below(TRIGGERS.len())])
            }
            40..43 if about == About::Clones => Step::Clone(consumer, random.below(CONSUMERS)),
            _ => continue,
        });
    }
    (about, steps)
}

/// The clients of a conversation.
struct Parties<'a> {
    service: &'a Service<'a>,
    about: About,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
    asks: Consumer,
    /// Flushes that were requested and not answered.
    flushes: BTreeMap<usize, (usize, CallId)>,
    /// Clones that were requested and not answered, by consumer.
    clones: BTreeMap<usize, CallId>,
}

impl<'a> Parties<'a> {
    fn new(service: &'a Service<'a>, about: About) -> Parties<'a> {
        Parties {
            service,
            about,
            producers: (0..PRODUCERS)
                .map(|number| service.producer(&format!("p{number}")))
                .collect(),
            consumers: (0..CONSUMERS).map(|_| service.consumer()).collect(),
            asks: service.consumer(),
            flushes: BTreeMap::new(),
            clones: BTreeMap::new(),
        }
    }

    /// Waits until all consequences, and their consequences, have arrived.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.producers.iter_mut().for_each(Producer::settle);
            self.consumers
                .iter_mut()
                .for_each(|consumer| drop(consumer.state()));
        }
    }

    fn has_session(&mut self, consumer: usize) -> bool {
        let consumer = &mut self.consumers[consumer];
        let call = consumer.endpoint.trace_stats().unwrap();
        matches!(consumer.answer(call), Ok(ConsumerReply::TraceStats(_)))
    }

    fn answer(&mut self, consumer: usize, call: CallId) -> &'static str {
        match self.consumers[consumer].answer(call) {
            Ok(_) => "done",
            Err(_) => "rejected",
        }
    }

    /// Carries out a step; returns its answer.
    fn carry_out(&mut self, number: usize, step: &Step) -> String {
        let call = match step {
            Step::Register(producer, descriptor) => {
                self.producers[*producer].register(descriptor.clone());
                return String::new();
            }
            Step::Update(producer, descriptor) => {
                let endpoint = &mut self.producers[*producer].endpoint;
                endpoint.update_data_source(descriptor.clone()).unwrap();
                return String::new();
            }
            Step::Unregister(producer, name) => {
                let endpoint = &mut self.producers[*producer].endpoint;
                endpoint.unregister_data_source(name).unwrap();
                return String::new();
            }
            Step::Started(producer, recent) | Step::Stopped(producer, recent) => {
                let producer = &mut self.producers[*producer];
                let Some(instance) = producer.instances.iter().rev().nth(*recent).copied() else {
                    return String::new();
                };
                match step {
                    Step::Started(..) => producer.endpoint.notify_data_source_started(instance).unwrap(),
                    _ => producer.endpoint.notify_data_source_stopped(instance).unwrap(),
                }
                return producer.name_of(instance);
            }
            Step::Flushed(producer, recent) => {
                let producer = &mut self.producers[*producer];
                if let Some(flush) = producer.flushes.iter().rev().nth(*recent).copied() {
                    producer.endpoint.acknowledge_flush(flush).unwrap();
                }
                return String::new();
            }
            Step::LoseProducer(number) => {
                // Upstream waits for the acknowledgements of producers that have disconnected.
                let producer = &mut self.producers[*number];
                if let Some(flush) = producer.flushes.last().copied() {
                    producer.endpoint.acknowledge_flush(flush).unwrap();
                    producer.settle();
                }
                let place = self.producers.remove(*number);
                drop(place);
                while self.asks.state().producers.len() >= PRODUCERS {}
                let name = format!("p{number}");
                self.producers.insert(*number, self.service.producer(&name));
                return String::new();
            }
            Step::LoseConsumer(number) => {
                let held = self.has_session(*number);
                let sessions = self.asks.state().num_sessions;
                self.flushes.retain(|_, (consumer, _)| consumer != number);
                self.clones.remove(number);
                drop(self.consumers.remove(*number));
                let until = std::time::Instant::now() + PATIENCE;
                while held && self.asks.state().num_sessions == sessions {
                    assert!(std::time::Instant::now() < until, "the session stays");
                }
                self.consumers.insert(*number, self.service.consumer());
                return String::new();
            }
            Step::Enable(consumer, config) => {
                // After a refusal, upstream sends nothing more on this connection, even about a session that the consumer has.
                if !self.has_session(*consumer) {
                    self.consumers[*consumer].enable(config);
                }
                return String::new();
            }
            Step::Observe(consumer, kinds) => {
                let endpoint = &mut self.consumers[*consumer].endpoint;
                endpoint.observe_events(kinds).unwrap();
                return String::new();
            }
            Step::Flush(consumer) => {
                let endpoint = &mut self.consumers[*consumer].endpoint;
                let call = endpoint.flush_producers(NEVER_MS, 0x21).unwrap();
                self.flushes.insert(number, (*consumer, call));
                return String::new();
            }
            Step::Read(consumer) => return self.read(*consumer),
            Step::Activate(producer, name) => {
                let endpoint = &mut self.producers[*producer].endpoint;
                endpoint.activate_triggers(&[name]).unwrap();
                return String::new();
            }
            Step::Clone(consumer, whose) => {
                if self.clones.contains_key(consumer) || self.has_session(*consumer) {
                    return String::new();
                }
                let request = CloneSessionRequest {
                    selector: Some(Selector::UniqueSessionName(of(*whose))),
                    ..Default::default()
                };
                let endpoint = &mut self.consumers[*consumer].endpoint;
                let call = endpoint.clone_session(&request, None).unwrap();
                self.clones.insert(*consumer, call);
                return String::new();
            }
            Step::Change(consumer, config) => {
                let endpoint = &mut self.consumers[*consumer].endpoint;
                (
                    *consumer,
                    endpoint.change_trace_config(&config.encode_to_vec()).unwrap(),
                )
            }
            Step::Start(consumer) => (
                *consumer,
                self.consumers[*consumer].endpoint.start_tracing().unwrap(),
            ),
            Step::Disable(consumer) => (
                *consumer,
                self.consumers[*consumer].endpoint.disable_tracing().unwrap(),
            ),
            Step::Free(consumer) => (
                *consumer,
                self.consumers[*consumer].endpoint.free_buffers().unwrap(),
            ),
            Step::Detach(consumer, key) => {
                (*consumer, self.consumers[*consumer].endpoint.detach(key).unwrap())
            }
            Step::Attach(consumer, key) => {
                (*consumer, self.consumers[*consumer].endpoint.attach(key).unwrap())
            }
        };
        self.answer(call.0, call.1).to_owned()
    }

    /// Reads the service's notes in the trace since the last time, and the counts of flushes.
    fn read(&mut self, consumer: usize) -> String {
        let consumer = &mut self.consumers[consumer];
        let packets = consumer.read();
        let mut kinds: Vec<String> = packets.iter().map(|packet| skeleton(packet)).collect();
        // Other packets depend on time. The notes are in the order of their timestamps, and ours has a single timestamp for simultaneous events, so
        // they are sorted here.
        kinds.retain(|kind| kind.contains("69 ("));
        kinds.sort();
        const ALL_STARTED: &str = "69 (1)";
        kinds.retain(|kind| self.about == About::Starts || !kind.contains(ALL_STARTED));
        // For a clone, upstream flushes the buffers that are to be transferred separately, even if there are none.
        if self.about == About::Clones {
            const ALL_FLUSHED: &str = "69 (3)";
            kinds.retain(|kind| !kind.contains(ALL_FLUSHED));
            return kinds.join(", ");
        }
        let call = consumer.endpoint.trace_stats().unwrap();
        match consumer.answer(call) {
            Ok(ConsumerReply::TraceStats(stats)) => kinds.push(format!(
                "{:?} flushes requested, {:?} succeeded, {:?} failed",
                stats.flushes_requested, stats.flushes_succeeded, stats.flushes_failed
            )),
            _ => kinds.push("no session".into()),
        }
        kinds.join(", ")
    }

    /// Returns the messages to all clients since the last time, and the states of the sessions.
    fn told(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        for (number, producer) in self.producers.iter_mut().enumerate() {
            let meant = producer.meant.drain(..);
            let commands = producer.log.drain(..).zip(meant);
            told.extend(commands.map(|(command, meant)| format!("p{number}: {command} ({meant})")));
        }
        for (number, consumer) in self.consumers.iter_mut().enumerate() {
            told.extend(consumer.log.drain(..).map(|what| format!("c{number}: {what}")));
        }
        let consumers = &mut self.consumers;
        self.flushes.retain(|step, (consumer, call)| {
            let answer = consumers[*consumer].answered(*call);
            if let Some(answer) = &answer {
                let outcome = if answer.is_ok() { "succeeded" } else { FLUSH_FAILED };
                told.push(format!("c{consumer}: flush of step {step} {outcome}"));
            }
            answer.is_none()
        });
        self.clones.retain(|consumer, call| {
            let answer = consumers[*consumer].answered(*call);
            if let Some(answer) = &answer {
                let made =
                    matches!(answer, Ok(ConsumerReply::SessionCloned(clone)) if clone.success == Some(true));
                told.push(format!("c{consumer}: has a clone: {made}"));
            }
            answer.is_none()
        });
        let state = self.asks.state();
        let sessions = state.tracing_sessions.iter().map(|session| {
            let sources = session.num_data_sources.unwrap_or_default();
            format!("{} of {sources}", session.state.as_deref().unwrap_or_default())
        });
        let mut sessions: Vec<String> = sessions.collect();
        if self.about == About::Clones {
            // Sessions are listed by their ids, and our service assigns a clone's id when the clone is requested.
            sessions.sort();
        }
        told.push(sessions.join(", "));
        told
    }

    /// Ends everything, including detached sessions.
    fn end(mut self) {
        self.consumers.clear();
        for key in KEYS {
            let call = self.asks.endpoint.attach(key).unwrap();
            if self.asks.answer(call).is_ok() {
                let call = self.asks.endpoint.free_buffers().unwrap();
                self.asks.answer(call).unwrap();
            }
        }
        let service = self.service;
        drop(self);
        service.await_quiet();
    }
}

/// Returns the messages after each step.
fn what_is_told(service: &Service<'_>, about: About, steps: &[Step]) -> Vec<Vec<String>> {
    let mut parties = Parties::new(service, about);
    let mut lines = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let answer = parties.carry_out(number, step);
        parties.settle();
        let mut told = vec![answer];
        told.append(&mut parties.told());
        lines.push(told);
    }
    parties.end();
    lines
}

#[test]
fn random_lives_go_alike() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let seeds = chosen_seed().map_or_else(|| SEEDS.collect(), |seed| vec![seed]);
    let conversations: Vec<_> = seeds.iter().map(|seed| conversation(*seed)).collect();
    let run = |side| -> Vec<Vec<Vec<String>>> {
        let service = Service::start(&programs, side);
        let lives = conversations.iter();
        lives
            .map(|(about, steps)| what_is_told(&service, *about, steps))
            .collect()
    };
    let (upstream, ours) = std::thread::scope(|scope| {
        let upstream = scope.spawn(|| run(Side::Upstream));
        let ours = scope.spawn(|| run(Side::Ours));
        (upstream.join().unwrap(), ours.join().unwrap())
    });
    let mut differences = Vec::new();
    for (at, seed) in seeds.iter().enumerate() {
        let (about, steps) = &conversations[at];
        let (upstream, ours) = (&upstream[at], &ours[at]);
        // Upstream never answers a flush of a consumer without a session, or one whose session is freed meanwhile. If a session ends while it is
        // detached, upstream reports the end to nobody.
        let answered: Vec<&String> = upstream.iter().flatten().collect();
        let said = |at: usize, told: &&String| {
            let unanswered = told.ends_with(FLUSH_FAILED) && !answered.contains(told);
            let untold = matches!(steps[at], Step::Attach(..)) && told.ends_with("disabled");
            upstream[at].contains(told) || !(unanswered || untold)
        };
        let ours: Vec<Vec<&String>> = ours
            .iter()
            .enumerate()
            .map(|(at, told)| told.iter().filter(|told| said(at, told)).collect())
            .collect();
        let alike = |at: &usize| upstream[*at].iter().eq(ours[*at].iter().copied());
        let Some(number) = (0..steps.len()).find(|at| !alike(at)) else {
            continue;
        };
        // The steps before the difference.
        for (number, (step, told)) in steps.iter().zip(upstream).enumerate().take(number) {
            let step: String = format!("{step:?}").chars().take(60).collect();
            println!("seed {seed}, {number}: {step}: {}", told.join("; "));
        }
        differences.push(format!(
            "seed {seed} about {about:?}, step {number}: {:#?}\nupstream: {:#?}\nours:     {:#?}",
            steps[number], upstream[number], ours[number]
        ));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}
