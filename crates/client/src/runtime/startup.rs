//! Startup tracing: instances that no session has asked for, their takeover by sessions, and their end without one.

use std::sync::Arc;
use std::time::Duration;

use ferretto_ipc::reactor::monotonic_now;
use ferretto_proto::messages::DataSourceConfig;

use super::connection::OwnMemory;
use super::instances::{Phase, Running, SourceState, StartupInstance};
use super::{Event, Runtime};
use crate::arbiter::BufferId;
use crate::data_source::{ConnectionId, Instance, Output};
use crate::producer::DataSourceSetup;

/// A request to record before a session asks for it.
#[derive(Clone, Debug)]
pub struct StartupRequest {
    /// The number of the startup session, which the program chooses. No two sessions have the same.
    pub number: u64,
    /// The connection of the expected session.
    pub connection: ConnectionId,
    /// The time after which it is given up.
    pub timeout: Option<Duration>,
    /// The configs of data sources, decoded and byte for byte.
    pub configs: Vec<(Arc<DataSourceConfig>, Arc<[u8]>)>,
}

/// How startup tracing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupOutcome {
    /// Sessions have taken over all instances.
    Adopted,
    /// Some instances were discarded.
    Aborted,
}

/// A startup session that no session has taken over as a whole.
pub(super) struct StartupSession {
    pub(super) number: u64,
    /// The index of its connection.
    pub(super) connection: usize,
    /// By serial number, the instances that no session has started yet.
    unbound: Vec<u32>,
    /// The time at which it is given up, in monotonic nanoseconds.
    pub(super) deadline: Option<u64>,
    pub(super) aborting: bool,
}

impl Runtime {
    /// Starts the data sources of `request`, in memory that is offered to the service when it is connected to. Returns the number of instances. If
    /// there are any, [`Event::StartupEnded`] comes once.
    ///
    /// # Errors
    /// Why nothing can be recorded.
    pub fn start_up(&mut self, request: StartupRequest) -> Result<usize, String> {
        let Some(index) = self.index(request.connection) else {
            return Err("there is no such connection".to_owned());
        };
        if self.connections[index].arbiter.is_none() {
            if self.connections[index].own_memory == OwnMemory::Refused {
                return Err("the service would not use this process's memory".to_owned());
            }
            if self.connections[index].retry_at().is_none() {
                // Memory can only be offered while connecting.
                let (_, closed) = self.give_up(index, "connecting again, for startup tracing".to_owned());
                self.tell_disconnected(index, None, closed);
                self.connections[index].retry_soon();
            }
            self.connections[index].make_own_memory()?;
        }
        let timeout = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut session = StartupSession {
            number: request.number,
            connection: index,
            unbound: Vec::new(),
            deadline: request
                .timeout
                .map(|time| monotonic_now().saturating_add(timeout(time))),
            aborting: false,
        };
        for (config, encoded) in &request.configs {
            for source in 0..self.sources.all.len() {
                let state = &self.sources.all[source];
                if config.name.as_deref() == Some(&*state.name) && state.is_offered {
                    let serial = self.start_for_startup(index, source, session.number, config, encoded);
                    session.unbound.extend(serial);
                }
            }
        }
        let count = session.unbound.len();
        if count > 0 {
            self.startup.push(session);
        }
        Ok(count)
    }

    /// Starts an instance that no session asks for yet. Returns its serial number.
    fn start_for_startup(
        &mut self,
        index: usize,
        source: usize,
        session: u64,
        config: &Arc<DataSourceConfig>,
        encoded: &Arc<[u8]>,
    ) -> Option<u32> {
        let connection = &self.connections[index];
        let arbiter = connection.arbiter.as_ref()?.for_startup();
        connection.link.add_startup(&arbiter);
        let (id, generation) = (connection.id(), connection.generation);
        let placed = self.sources.insert(source, |slot, serial| Running {
            instance: Instance {
                slot,
                serial,
                connection: id,
                config: config.clone(),
                encoded_config: encoded.clone(),
            },
            connection: index,
            generation,
            id: None,
            phase: Phase::SetUp,
            trouble: None,
            startup: Some(StartupInstance {
                session,
                arbiter: arbiter.clone(),
                difference: None,
            }),
        });
        let place = self.tell_set_up(source, placed)?;
        // The buffer is known when a session asks for it.
        let output = Output {
            target: BufferId(0),
            ..self.output(place, arbiter)?
        };
        if self.sources.at(place)?.phase == Phase::SetUp {
            self.start_with(place, output);
        }
        let running = self.sources.at_mut(place)?;
        let serial = running.instance.serial;
        if running.phase == Phase::Failed {
            // It has no recording that a session could take over or that could be discarded.
            running.startup = None;
            self.stop(place);
            return None;
        }
        Some(serial)
    }

    /// Whether this connection is expected to bring a session that takes over what is recorded for startup.
    pub(super) fn has_startup(&self, index: usize) -> bool {
        let mut sessions = self.startup.iter();
        sessions.any(|session| session.connection == index && !session.aborting)
    }

    /// Removes an instance from those that its startup session waits for.
    pub(super) fn no_longer_unbound(&mut self, number: u64, serial: u32) {
        for session in &mut self.startup {
            if session.number == number {
                session.unbound.retain(|unbound| *unbound != serial);
            }
        }
    }

    /// Lets a session that asks for the same take over an instance that records for startup. Returns whether there was one. If all candidates differ,
    /// the differences are reported.
    pub(super) fn adopt(&mut self, index: usize, setup: &DataSourceSetup) -> bool {
        let generation = self.connections[index].generation;
        let candidates = self.sources.places(|running| {
            running.connection == index
                && running.generation == generation
                && running.id.is_none()
                && running.phase == Phase::Started
        });
        let mut others = Vec::new();
        for place in candidates {
            let state = &mut self.sources.all[place.source];
            let Some(Some(running)) = state.slots.get_mut(place.slot.index()) else {
                continue;
            };
            if setup.config.name.as_deref() != Some(&*state.name) {
                continue;
            }
            let source = &state.source;
            let Some(difference) = source.difference(&running.instance.config, &setup.config) else {
                running.id = Some(setup.instance);
                running.instance.config = Arc::new((*setup.config).clone());
                running.instance.encoded_config = setup.encoded_config.as_slice().into();
                self.changed = true;
                return true;
            };
            others.push((place, difference));
        }
        for (place, difference) in others {
            let state = &mut self.sources.all[place.source];
            // This may be another session than the expected one.
            self.program.info(&format!(
                "what is recorded for startup stays apart from a session that wants {:?}: {difference}",
                state.name
            ));
            let running = state.slots.get_mut(place.slot.index());
            let startup = running.and_then(|running| running.as_mut()?.startup.as_mut());
            if let Some(startup) = startup {
                startup.difference = Some(difference);
                self.changed = true;
            }
        }
        false
    }

    /// Returns how the configs of sessions differ from that of a startup session.
    fn differences(&self, number: u64) -> Vec<String> {
        let of = |state: &SourceState, running: &Running| {
            let startup = running
                .startup
                .as_ref()
                .filter(|startup| startup.session == number)?;
            let difference = startup.difference.as_ref()?;
            Some(format!("{:?}: {difference}", state.name))
        };
        let all = self.sources.all.iter();
        all.flat_map(|state| state.running().filter_map(move |running| of(state, running)))
            .collect()
    }

    /// Gives up the startup session of this number: discards the recordings that no session has asked for.
    pub fn abort_startup(&mut self, number: u64) {
        for session in &mut self.startup {
            if session.number == number {
                session.aborting = true;
            }
        }
        // Instances that a session has already asked for belong to that session.
        for place in self.sources.places(|running| {
            let startup = running.startup.as_ref();
            running.id.is_none() && startup.is_some_and(|startup| startup.session == number)
        }) {
            self.stop(place);
        }
    }

    /// Gives up startup sessions whose time is up, and reports sessions that are over.
    pub(super) fn end_startup_sessions(&mut self) {
        let now = monotonic_now();
        let late: Vec<u64> = self
            .startup
            .iter()
            .filter(|session| !session.aborting && session.deadline.is_some_and(|at| at <= now))
            .map(|session| session.number)
            .collect();
        for number in late {
            let mut line = "startup tracing is given up: no session has asked for it".to_owned();
            let differences = self.differences(number);
            if !differences.is_empty() {
                line.push_str(" with the config for startup; of the last one that came, ");
                line.push_str(&differences.join("; "));
            }
            self.program.warning(&line);
            self.abort_startup(number);
        }
        let (over, left) = std::mem::take(&mut self.startup)
            .into_iter()
            .partition(|session| session.unbound.is_empty());
        self.startup = left;
        for session in over {
            let outcome = match session.aborting {
                true => StartupOutcome::Aborted,
                false => StartupOutcome::Adopted,
            };
            self.events
                .push_back(Event::StartupEnded(session.number, outcome));
        }
    }
}
