//! The state of the runtime, which shows why nothing is recorded.

use super::Runtime;
use super::instances::{Phase, Running};
use crate::data_source::ConnectionId;

/// Whether there is a connection to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// There is.
    Connected,
    /// The service has not answered yet.
    Connecting,
    /// There is no connection.
    Waiting {
        /// Why.
        reason: String,
        /// The time of the next attempt, in monotonic nanoseconds.
        until: u64,
    },
}

/// A data source that records for a session that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupState {
    /// Its name.
    pub data_source: String,
    /// How the config of a session that asked for the data source differs from the one for startup, if it does.
    pub difference: Option<String>,
}

impl Runtime {
    /// The state of the connection, if there is one with this id.
    pub fn state(&self, id: ConnectionId) -> Option<ConnectionState> {
        Some(self.connections[self.index(id)?].state())
    }

    /// How many instances record for the connection.
    pub fn instances_of(&self, id: ConnectionId) -> usize {
        let index = self.index(id);
        self.count(|running| Some(running.connection) == index)
    }

    /// The offered data sources, with the number of recording instances of each.
    pub fn offered(&self) -> impl Iterator<Item = (&str, usize)> {
        let offered = self.sources.all.iter().filter(|state| state.is_offered);
        offered.map(|state| {
            let started = state.running().filter(|running| running.phase == Phase::Started);
            (state.name.as_str(), started.count())
        })
    }

    /// The data sources that record for startup, and which no session has asked for.
    pub fn startup_of(&self, id: ConnectionId) -> Vec<StartupState> {
        let index = self.index(id);
        let mut states = Vec::new();
        for state in &self.sources.all {
            let waiting = state.running().filter(|running| {
                Some(running.connection) == index && running.id.is_none() && running.phase == Phase::Started
            });
            states.extend(waiting.filter_map(|running| {
                Some(StartupState {
                    data_source: state.name.clone(),
                    difference: running.startup.as_ref()?.difference.clone(),
                })
            }));
        }
        states
    }

    fn count(&self, holds: impl Fn(&Running) -> bool) -> usize {
        let running = self.sources.all.iter().flat_map(|state| state.running());
        running
            .filter(|running| running.phase == Phase::Started && holds(running))
            .count()
    }
}
