//! Consumers that do everything that a consumer can do, in any order.

use std::collections::BTreeMap;

use ferretto_proto::messages::priority_boost_config::BoostPolicy;
use ferretto_proto::messages::trace_config::buffer_config::{ExperimentalMode, FillPolicy};
use ferretto_proto::messages::{DataSourceConfig, Message, PriorityBoostConfig, TraceConfig, trace_config};
use ferretto_service::{ConfigInput, ConsumerId, SessionId, StateScope};

use super::checks::Told;
use super::clones::forgets;
use super::triggers::{triggers_of, wait_for_triggers};
use super::{CONSUMERS, Owned, Simulation};
use crate::filter_bytecode::{Rule, bytecode};
use crate::world::expanded;

impl Simulation {
    pub(super) fn join_consumer(&mut self) {
        if self.consumers.len() < 6
            && let Some(uid) = self.random.pick(&CONSUMERS)
        {
            let id = self.world.consumer_of(uid);
            self.consumers.insert(id, None);
            self.users.insert(id, uid);
        }
    }

    pub(super) fn lose_consumer(&mut self) {
        let all: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        let Some(id) = self.random.pick(&all) else { return };
        let session = self.consumers.remove(&id).flatten();
        if let Some(session) = session.and_then(|session| self.sessions.get_mut(&session)) {
            session.owner = None;
        }
        self.world.lose_consumer(id);
    }

    pub(super) fn consumer_step(&mut self) {
        let all: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        let Some(id) = self.random.pick(&all) else { return };
        let now = self.world.now;
        match self.random.below(23) {
            0..5 => self.enable(id),
            5 => self.world.service.start_deferred(id, &now),
            6 if self.random.one_in(3) => self.world.service.disable_tracing(id, &now),
            7 if self.random.one_in(3) => {
                self.world.service.free_buffers(id, &now);
                self.consumers.insert(id, None);
            }
            8 | 9 => {
                let token = self.random.next();
                let (timeout, flags) = (self.random.below(300) as u32, self.random.below(64));
                self.world.service.flush(id, token, timeout, flags, &now);
            }
            10..15 => self.read(id),
            15 => self.detach_or_attach(id),
            16 => self
                .world
                .service
                .observe_events(id, self.random.below(8) as u32, &now),
            17 => {
                let config = self.config();
                let bytes = config.encode_to_vec().into();
                self.world
                    .service
                    .change_config(id, &ConfigInput { config, bytes }, &now);
            }
            18 => drop(self.world.state(id, StateScope::Everything)),
            19 => drop(self.world.service.trace_stats(id)),
            _ => self.clone_session(id),
        }
    }

    fn config(&mut self) -> TraceConfig {
        let random = &mut self.random;
        let buffers: Vec<trace_config::BufferConfig> = (0..random.below(4))
            .map(|_| trace_config::BufferConfig {
                size_kb: Some(4 << random.below(5)),
                fill_policy: Some(if random.one_in(3) {
                    FillPolicy::DISCARD
                } else {
                    FillPolicy::RING_BUFFER
                }),
                experimental_mode: random.one_in(4).then_some(ExperimentalMode::TRACE_BUFFER_V2),
                transfer_on_clone: random.one_in(16).then_some(true),
                clear_before_clone: random.one_in(16).then_some(true),
                ..Default::default()
            })
            .collect();
        let sources = if buffers.is_empty() {
            0
        } else {
            1 + random.below(5)
        };
        let data_sources = (0..sources)
            .map(|_| trace_config::DataSource {
                config: DataSourceConfig {
                    name: Some(format!("d{}", random.below(4))),
                    target_buffer: Some(random.below(buffers.len() as u64) as u32),
                    ..Default::default()
                }
                .into(),
                producer_name_filter: match random.below(4) {
                    0 => vec![format!("p{}", random.below(3))],
                    _ => Vec::new(),
                },
                ..Default::default()
            })
            .collect();
        let mut maybe = |most: u64| random.one_in(2).then(|| 20 + random.below(most) as u32);
        let durations = [
            maybe(20_000),
            maybe(500),
            maybe(500),
            maybe(1000),
            maybe(500),
            maybe(500),
        ];
        let [
            duration,
            flush_period,
            flush_timeout,
            stop_timeout,
            clear,
            interval,
        ] = durations;
        let streams = random.one_in(2);
        let mut config = TraceConfig {
            buffers,
            data_sources,
            duration_ms: duration,
            bugreport_score: Some(random.below(3) as i32),
            deferred_start: Some(random.one_in(4)),
            flush_period_ms: flush_period,
            flush_timeout_ms: flush_timeout,
            data_source_stop_timeout_ms: stop_timeout,
            write_into_file: streams.then_some(true),
            file_write_period_ms: streams.then(|| 100 + random.below(10_000) as u32),
            max_file_size_bytes: (streams && random.one_in(2)).then(|| 1 + random.below(20_000)),
            fflush_post_write: random
                .one_in(3)
                .then_some(trace_config::FFlushMode::FFLUSH_ENABLED),
            incremental_state_config: trace_config::IncrementalStateConfig {
                clear_period_ms: clear,
                ..Default::default()
            }
            .into(),
            builtin_data_sources: trace_config::BuiltinDataSource {
                snapshot_interval_ms: interval,
                disable_service_events: Some(random.one_in(4)),
                enable_concurrent_session_events: Some(random.one_in(3)),
                prefer_suspend_clock_for_snapshot: Some(random.one_in(3)),
                ..Default::default()
            }
            .into(),
            // The filter removes nothing, but all packets go through it.
            trace_filter: random.one_in(4).then(everything).into(),
            prefer_suspend_clock_for_duration: Some(random.one_in(3)),
            enable_extra_guardrails: Some(random.one_in(10)),
            exclusive_prio: random.one_in(30).then(|| random.below(5) as u32),
            session_semaphores: (0..random.below(8) / 6)
                .map(|_| trace_config::SessionSemaphore {
                    name: Some(format!("s{}", random.below(2))),
                    max_other_session_count: Some(random.below(4)),
                    ..Default::default()
                })
                .collect(),
            priority_boost: random
                .one_in(6)
                .then(|| PriorityBoostConfig {
                    policy: Some(BoostPolicy::POLICY_SCHED_FIFO),
                    priority: Some(1 + random.below(3) as u32),
                    ..Default::default()
                })
                .into(),
            compression_type: random
                .one_in(3)
                .then_some(trace_config::CompressionType::COMPRESSION_TYPE_DEFLATE),
            ..Default::default()
        };
        if random.one_in(5) {
            wait_for_triggers(&mut config, random);
        }
        self.pick_machines(&mut config);
        config
    }

    pub(super) fn enable(&mut self, id: ConsumerId) {
        let config = self.config();
        let Ok(session) = self.world.try_enable(id, &config) else {
            return;
        };
        self.consumers.insert(id, Some(session));
        let streams = config.write_into_file == Some(true);
        let owned = Owned {
            owner: Some(id),
            is_clone: false,
            forgets: forgets(&config),
            streams: streams.then(|| config.max_file_size_bytes.unwrap_or(u64::MAX)),
            file_failed: false,
            triggers: triggers_of(&config),
            is_triggered: false,
            trace: Told::default(),
            accounts: BTreeMap::default(),
        };
        self.sessions.insert(session, owned);
    }

    fn detach_or_attach(&mut self, id: ConsumerId) {
        let uid = self.users[&id];
        let waiting = self.detached.iter().position(|(_, _, of)| *of == uid);
        match (self.consumers[&id], waiting) {
            (Some(session), _) => {
                let key = format!("key {}", self.random.below(3));
                if self.world.service.detach(id, &key).is_ok() {
                    self.consumers.insert(id, None);
                    self.sessions.get_mut(&session).expect("known").owner = None;
                    self.detached.push((session, key, uid));
                }
            }
            (None, Some(position)) => {
                let (session, key, _) = self.detached.remove(position);
                // The session may have ended by itself.
                if self.world.service.attach(id, &key).is_ok() {
                    let attached = self.world.service.await_disabled(id).expect("a session");
                    // If the other session only completes its file, this session may have taken its key.
                    let same_key = |other: &(SessionId, String, u32)| *other == (attached, key.clone(), uid);
                    assert!(attached == session || self.detached.iter().any(same_key));
                    self.detached.retain(|(other, ..)| *other != attached);
                    self.consumers.insert(id, Some(attached));
                    self.sessions.get_mut(&attached).expect("known").owner = Some(id);
                }
            }
            (None, None) => {}
        }
    }

    pub(super) fn read(&mut self, id: ConsumerId) {
        // The consumer may already have its clone, and not have heard of it yet.
        if self.cloning.contains_key(&id) {
            self.world.run();
            self.check();
        }
        // The consumer cannot know yet whether it has a clone to read.
        if self.cloning.contains_key(&id) {
            return;
        }
        let budget = 1 << self.random.below(17);
        let packets = expanded(self.world.read_encoded(id, budget as usize));
        match self.consumers[&id] {
            Some(session) => {
                let owned = self.sessions.get_mut(&session).expect("known");
                // A file that failed or is full took packets with it. The rest can be read once the file is closed.
                if !packets.is_empty() && owned.streams.take().is_some() {
                    assert!(self.world.closed_files.contains(&session));
                    owned.trace.next.clear();
                    owned.file_failed = true;
                }
                self.check_packets(session, &packets);
            }
            None => assert!(packets.is_empty(), "there is nothing to read"),
        }
    }
}

/// A filter that keeps every field of a packet.
fn everything() -> trace_config::TraceFilter {
    let packet = &[Rule::KeepRange(1, 10_000)];
    trace_config::TraceFilter {
        bytecode_v2: Some(bytecode(&[&[Rule::Nested(1, 1)], packet])),
        ..Default::default()
    }
}
