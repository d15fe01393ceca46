//! The services' commands, and how data sources carry them out: instances are set up, started, flushed and stopped.

use std::sync::Arc;

use ferretto_ipc::reactor::boot_now;

use super::Runtime;
use super::connection::Connection;
use super::inbox::Done;
use super::instances::{InstancePlace, NoSource, Phase, Running, SourceState};
use crate::arbiter::Arbiter;
use crate::data_source::{Instance, Output, Trouble};
use crate::producer::{DataSourceInstanceId, DataSourceSetup, Flush, ProducerCommand};

impl Runtime {
    pub(super) fn obey(&mut self, index: usize, command: ProducerCommand) -> Result<(), String> {
        match command {
            ProducerCommand::SetupTracing(offer) => {
                self.connections[index].set_up_memory(offer).map_err(|reason| {
                    format!("the shared memory that the service sent cannot be used: {reason}")
                })?
            }
            ProducerCommand::SetupDataSource(setup) => self.set_up(index, setup),
            ProducerCommand::StartDataSource(setup) => self.start(index, setup.instance),
            ProducerCommand::StopDataSource(id) => match self.place(index, id) {
                Some(place) => self.stop(place),
                // The service should not wait for an instance that does not exist.
                None => {
                    let link = &self.connections[index].link;
                    link.request(|producer| producer.notify_data_source_stopped(id));
                }
            },
            ProducerCommand::Flush(flush) => self.flush(index, &flush),
            ProducerCommand::ClearIncrementalState(ids) => {
                for id in ids {
                    if let Some(place) = self.place(index, id)
                        && self.sources.is_driven(place)
                    {
                        let source = &self.sources.all[place.source].source;
                        source.clear_incremental_state(place.slot);
                    }
                }
            }
        }
        Ok(())
    }

    fn place(&self, index: usize, id: DataSourceInstanceId) -> Option<InstancePlace> {
        self.sources.by_id(index, self.connections[index].generation, id)
    }

    fn set_up(&mut self, index: usize, setup: DataSourceSetup) {
        let generation = self.connections[index].generation;
        if self.adopt(index, &setup) {
            return;
        }
        let config = Arc::new(*setup.config);
        let name = config.name.as_deref().unwrap_or_default();
        let found = self
            .sources
            .for_config(index, generation, name, &setup.encoded_config);
        let source = match found {
            Ok(source) => source,
            Err(NoSource::ServedAlready) => return,
            Err(NoSource::Unknown) => {
                let line = format!("asked to record {name:?}, of which there is none");
                return self.program.warning(&line);
            }
        };
        let connection = self.connections[index].id();
        let encoded_config = setup.encoded_config.into();
        let placed = self.sources.insert(source, |slot, serial| Running {
            instance: Instance {
                slot,
                serial,
                connection,
                config,
                encoded_config,
            },
            connection: index,
            generation,
            id: Some(setup.instance),
            phase: Phase::SetUp,
            trouble: None,
            startup: None,
        });
        self.tell_set_up(source, placed);
    }

    /// Has the data source set up the instance that was put into its place. Logs the reason if there was no slot.
    pub(super) fn tell_set_up(
        &mut self,
        source: usize,
        placed: Result<InstancePlace, String>,
    ) -> Option<InstancePlace> {
        let name = &self.sources.all[source].name;
        let place = match placed {
            Ok(place) => place,
            Err(reason) => {
                let line = format!("a session does not get {name:?}: {reason}");
                self.program.warning(&line);
                return None;
            }
        };
        let instance = self.sources.at(place)?.instance.clone();
        match self.sources.all[source].source.set_up(&instance) {
            Ok(()) => self.raise_priority(&instance),
            Err(error) => {
                let trouble = Trouble {
                    source: self.sources.all[source].name.clone(),
                    failure: format!("could not be set up: {error}"),
                    noticed: boot_now(),
                };
                self.program.warning(&trouble.to_string());
                let running = self.sources.at_mut(place)?;
                running.phase = Phase::Failed;
                running.trouble = Some(trouble);
            }
        }
        Some(place)
    }

    fn raise_priority(&self, instance: &Instance) {
        let boost = &instance.config.priority_boost;
        if boost.is_set()
            && let Err(error) = self.program.raise_priority(instance.serial, boost)
        {
            let name = instance.config.name.as_deref().unwrap_or_default();
            let line = format!("{name} is recorded at the usual priority: {error}");
            self.program.warning(&line);
        }
    }

    fn start(&mut self, index: usize, id: DataSourceInstanceId) {
        let Some(place) = self.place(index, id) else {
            // There may have been no room for it, for example. The service should not wait for it.
            self.notify_started(index, id);
            return;
        };
        let Some(running) = self.sources.at_mut(place) else {
            return;
        };
        if let Some(startup) = running.startup.take() {
            let (target, serial) = (running.target(), running.instance.serial);
            startup.arbiter.bind(target);
            self.no_longer_unbound(startup.session, serial);
            self.notify_started(index, id);
            return;
        }
        if matches!(running.phase, Phase::Started | Phase::Stopping) {
            return;
        }
        let Some(arbiter) = self.connections[index].arbiter.clone() else {
            return self
                .program
                .warning("the service starts a data source without having set up shared memory");
        };
        let Some(output) = self.output(place, arbiter) else {
            return;
        };
        let source = self.sources.all[place.source].source.clone();
        let Some(running) = self.sources.at_mut(place) else {
            return;
        };
        match running.phase {
            Phase::Failed => {
                if let Some(trouble) = running.trouble.take() {
                    source.tell_trouble(&output, &trouble);
                }
            }
            Phase::SetUp | Phase::Started | Phase::Stopping => self.start_with(place, output),
        }
    }

    /// The output of an instance whose chunks come from `arbiter`.
    pub(super) fn output(&self, place: InstancePlace, arbiter: Arc<Arbiter>) -> Option<Output> {
        let running = self.sources.at(place)?;
        let source = &self.sources.all[place.source].source;
        Some(Output {
            arbiter,
            target: running.target(),
            policy: source.exhausted_policy(&running.instance.config),
        })
    }

    fn notify_started(&self, index: usize, id: DataSourceInstanceId) {
        let link = &self.connections[index].link;
        link.request(|producer| producer.notify_data_source_started(id));
    }

    pub(super) fn start_with(&mut self, place: InstancePlace, output: Output) {
        let Some(running) = self.sources.at_mut(place) else {
            return;
        };
        running.phase = Phase::Started;
        let instance = running.instance.clone();
        let connection = running.connection;
        self.changed = true;
        self.connections[connection].populate_memory();
        let SourceState { source, name, .. } = &self.sources.all[place.source];
        let started = self.inbox.acknowledge(Done::Started(instance.serial));
        if let Err(error) = source.start(&instance, output.clone(), started) {
            // The data source has dropped the acknowledgement while it failed. The service must not take a failed instance for a running one.
            self.inbox.retract(Done::Started(instance.serial));
            let trouble = Trouble {
                source: name.clone(),
                failure: format!("could not be started: {error}"),
                noticed: boot_now(),
            };
            self.program.warning(&trouble.to_string());
            source.tell_trouble(&output, &trouble);
            self.program.lower_priority(instance.serial);
            if let Some(running) = self.sources.at_mut(place) {
                running.phase = Phase::Failed;
            }
        }
    }

    pub(super) fn stop(&mut self, place: InstancePlace) {
        let Some(running) = self.sources.at_mut(place) else {
            return;
        };
        // The stop is under way, and is acknowledged once.
        if running.phase == Phase::Stopping {
            return;
        }
        let before = std::mem::replace(&mut running.phase, Phase::Stopping);
        let stopped = self.inbox.acknowledge(Done::Stopped(running.instance.serial));
        self.changed = true;
        // The data source does not know an instance that has failed.
        if before != Phase::Failed {
            let source = &self.sources.all[place.source].source;
            source.stop(place.slot, stopped);
        }
    }

    fn flush(&mut self, index: usize, flush: &Flush) {
        let places: Vec<InstancePlace> = flush
            .instances
            .iter()
            .filter_map(|&id| self.place(index, id))
            .filter(|place| self.sources.is_driven(*place))
            .collect();
        let serial = |place: &InstancePlace| self.sources.at(*place).map(|running| running.instance.serial);
        let serials = places.iter().filter_map(serial).collect();
        self.connections[index].begin_flush(flush.id, serials);
        for place in places {
            if let Some(running) = self.sources.at(place) {
                let flushed = Done::Flushed(running.instance.serial, flush.id);
                let source = &self.sources.all[place.source].source;
                source.flush(place.slot, flush.flags, self.inbox.acknowledge(flushed));
            }
        }
    }

    pub(super) fn started(&mut self, serial: u32) {
        let Some(place) = self.sources.by_serial(serial) else {
            return;
        };
        let id = self.sources.at(place).and_then(|running| running.id);
        if let (Some(id), Some(connection)) = (id, self.live_connection_of(serial)) {
            connection
                .link
                .request(|producer| producer.notify_data_source_started(id));
        }
    }

    pub(super) fn stopped(&mut self, serial: u32) {
        let Some(place) = self.sources.by_serial(serial) else {
            return;
        };
        self.program.lower_priority(serial);
        let notify = self.sources.all[place.source].descriptor.will_notify_on_stop;
        let id = self.sources.at(place).and_then(|running| running.id);
        if let Some(connection) = self.live_connection_of(serial) {
            connection.flushed(serial, None);
            if let (Some(id), Some(true)) = (id, notify) {
                // The last packets of the instance come before the notification.
                connection.link.pump_now();
                connection
                    .link
                    .request(|producer| producer.notify_data_source_stopped(id));
            }
        }
        let Some(running) = self.sources.take(place) else {
            return;
        };
        if let Some(startup) = running.startup {
            startup.arbiter.discard();
            self.no_longer_unbound(startup.session, serial);
            for session in &mut self.startup {
                if session.number == startup.session {
                    session.aborting = true;
                }
            }
        }
    }

    /// The connection of an instance, if the generation that the instance belongs to has not ended.
    pub(super) fn live_connection_of(&mut self, serial: u32) -> Option<&mut Connection> {
        let running = self.sources.at(self.sources.by_serial(serial)?)?;
        let connection = &mut self.connections[running.connection];
        (connection.is_connected() && connection.generation == running.generation).then_some(connection)
    }
}
