//! The data sources of the runtime, and their registration with services.

use std::sync::Arc;
use std::time::Duration;

use ferretto_ipc::client::InvokeError;
use ferretto_ipc::reactor::monotonic_now;

use super::instances::SourceState;
use super::{Runtime, SourceId};
use crate::data_source::DataSource;
use crate::producer::ProducerEndpoint;

/// How long a changed descriptor waits for further changes before services are told.
const UPDATE_DELAY: Duration = Duration::from_millis(20);

impl Runtime {
    /// Adds a data source. [`Runtime::settle`] tells services of it at the latest. Its descriptor has a name. `id` tells data sources of the same
    /// name apart.
    pub fn add_source(&mut self, id: Option<u64>, source: Arc<dyn DataSource>) -> SourceId {
        self.changed = true;
        self.has_unregistered = true;
        self.sources.all.push(SourceState::new(id, source));
        SourceId(self.sources.all.len() - 1)
    }

    /// The descriptor of the data source has changed. Services are told a little later, because changes seldom come alone.
    pub fn source_changed(&mut self, id: SourceId) {
        self.changed = true;
        let later = monotonic_now() + UPDATE_DELAY.as_nanos() as u64;
        self.sources.all[id.0].update_at.get_or_insert(later);
    }

    /// Withdraws the data source. Its instances are stopped.
    pub fn withdraw_source(&mut self, id: SourceId) {
        let state = &mut self.sources.all[id.0];
        if !std::mem::replace(&mut state.is_offered, false) {
            return;
        }
        self.changed = true;
        for connection in &mut self.connections {
            if let Some(at) = connection.registered.iter().position(|other| *other == id.0) {
                connection.registered.swap_remove(at);
                connection
                    .link
                    .request(|producer| producer.unregister_data_source(&state.name));
            }
        }
        for place in self.sources.places(|_| true) {
            if place.source == id.0 {
                self.stop(place);
            }
        }
    }

    /// Tells services of data sources that they do not know. Data sources for which there is no room are registered later.
    pub fn register_sources(&mut self) {
        self.has_unregistered = false;
        for connection in &mut self.connections {
            if !connection.is_connected() {
                continue;
            }
            for (index, state) in self.sources.all.iter().enumerate() {
                if !state.is_offered || connection.registered.contains(&index) {
                    continue;
                }
                let register =
                    |producer: &mut ProducerEndpoint| producer.register_data_source(state.descriptor.clone());
                match connection.link.with(register) {
                    Some(Err(InvokeError::Full(_))) => {
                        self.has_unregistered = true;
                        break;
                    }
                    Some(Err(error)) => {
                        let (service, name) = (&connection.options.name, &state.name);
                        let line = format!("{service}: the data source {name} is not offered: {error}");
                        self.program.warning(&line);
                    }
                    Some(Ok(())) | None => {}
                }
                connection.registered.push(index);
            }
        }
    }

    /// Tells services of changed descriptors that are due.
    pub(super) fn update_sources(&mut self) {
        if self.has_unregistered {
            self.register_sources();
        }
        let now = monotonic_now();
        for (index, state) in self.sources.all.iter_mut().enumerate() {
            if state.update_at.is_none_or(|at| at > now) {
                continue;
            }
            state.update_at = None;
            state.read_descriptor();
            for connection in &mut self.connections {
                if connection.registered.contains(&index) {
                    let descriptor = &state.descriptor;
                    connection
                        .link
                        .request(|producer| producer.update_data_source(descriptor.clone()));
                }
            }
        }
    }
}
