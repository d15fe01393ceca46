//! The instances of all data sources: the slot, the owner and the phase of each.
//!
//! Kept by [`super::Runtime`] alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferretto_proto::messages::DataSourceDescriptor;

use crate::arbiter::{Arbiter, BufferId};
use crate::data_source::{DataSource, Instance, Slot, Trouble};
use crate::producer::DataSourceInstanceId;

/// The phases of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    SetUp,
    Started,
    Stopping,
    /// It does nothing: it could not be set up or started.
    Failed,
}

/// An instance, with its connection and its session.
pub(super) struct Running {
    pub(super) instance: Instance,
    /// The index of its connection.
    pub(super) connection: usize,
    /// The connection's generation that it belongs to.
    pub(super) generation: u32,
    /// The service's id of the instance. `None` while it records for startup, and no session has asked for it.
    pub(super) id: Option<DataSourceInstanceId>,
    pub(super) phase: Phase,
    /// Why it could not be set up, until the data source has been told.
    pub(super) trouble: Option<Trouble>,
    /// Until its session has started, an instance for startup records through this.
    pub(super) startup: Option<StartupInstance>,
}

/// The additional state of an instance that records for startup.
pub(super) struct StartupInstance {
    /// The startup session's number.
    pub(super) session: u64,
    pub(super) arbiter: Arc<Arbiter>,
    /// How the config of the last session that asked for the data source in vain differs from this one.
    pub(super) difference: Option<String>,
}

impl Running {
    pub(super) fn target(&self) -> BufferId {
        // Services have no more buffers than fit; a larger number means no buffer.
        let target = self.instance.config.target_buffer.unwrap_or_default();
        BufferId(u16::try_from(target).unwrap_or_default())
    }
}

/// A data source with its instances.
pub(super) struct SourceState {
    /// Tells data sources of the same name apart.
    pub(super) id: Option<u64>,
    pub(super) source: Arc<dyn DataSource>,
    /// Whether services are told of it.
    pub(super) is_offered: bool,
    pub(super) name: String,
    /// As services are told.
    pub(super) descriptor: DataSourceDescriptor,
    pub(super) slots: Vec<Option<Running>>,
    /// When services are to be told that the descriptor has changed.
    pub(super) update_at: Option<u64>,
}

impl SourceState {
    pub(super) fn new(id: Option<u64>, source: Arc<dyn DataSource>) -> Self {
        let mut state = Self {
            id,
            source,
            is_offered: true,
            name: String::new(),
            descriptor: DataSourceDescriptor::default(),
            slots: Vec::new(),
            update_at: None,
        };
        state.read_descriptor();
        state
    }

    /// Asks the data source for its descriptor, and fills in the fields that the runtime sets for all.
    pub(super) fn read_descriptor(&mut self) {
        self.descriptor = self.source.descriptor();
        self.name = self.descriptor.name.clone().unwrap_or_default();
        self.descriptor.id = self.id.or(self.descriptor.id);
        self.descriptor.will_notify_on_start = Some(true);
        self.descriptor.will_notify_on_stop.get_or_insert(true);
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Running> {
        self.slots.iter().flatten()
    }

    /// A slot that no instance is in.
    fn free_slot(&mut self) -> Result<Slot, String> {
        let most = self.source.max_instances();
        if self.running().count() >= most {
            return Err(match most {
                1 => "it records for one session at a time, and does so already".to_owned(),
                _ => format!("it records for {most} sessions already"),
            });
        }
        let free = self.slots.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        Ok(Slot::at(index))
    }
}

/// Where an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InstancePlace {
    pub(super) source: usize,
    pub(super) slot: Slot,
}

/// All data sources that were added.
#[derive(Default)]
pub(super) struct Sources {
    pub(super) all: Vec<SourceState>,
}

impl Sources {
    pub(super) fn at(&self, place: InstancePlace) -> Option<&Running> {
        self.all[place.source].slots.get(place.slot.index())?.as_ref()
    }

    pub(super) fn at_mut(&mut self, place: InstancePlace) -> Option<&mut Running> {
        self.all[place.source].slots.get_mut(place.slot.index())?.as_mut()
    }

    pub(super) fn take(&mut self, place: InstancePlace) -> Option<Running> {
        self.all[place.source].slots.get_mut(place.slot.index())?.take()
    }

    /// The places of all instances that satisfy `holds`.
    pub(super) fn places(&self, holds: impl Fn(&Running) -> bool) -> Vec<InstancePlace> {
        let mut places = Vec::new();
        for (source, state) in self.all.iter().enumerate() {
            for (index, running) in state.slots.iter().enumerate() {
                if running.as_ref().is_some_and(&holds) {
                    let slot = Slot::at(index);
                    places.push(InstancePlace { source, slot });
                }
            }
        }
        places
    }

    /// Whether the instance has been set up, and its data source is to be told of flushes.
    pub(super) fn is_driven(&self, place: InstancePlace) -> bool {
        self.at(place)
            .is_some_and(|running| running.phase != Phase::Failed)
    }

    /// The instance of this serial number.
    pub(super) fn by_serial(&self, serial: u32) -> Option<InstancePlace> {
        self.places(|running| running.instance.serial == serial).pop()
    }

    /// The instance with this id, of this connection and generation.
    pub(super) fn by_id(
        &self,
        connection: usize,
        generation: u32,
        id: DataSourceInstanceId,
    ) -> Option<InstancePlace> {
        self.places(|running| {
            running.connection == connection && running.generation == generation && running.id == Some(id)
        })
        .pop()
    }

    /// Returns a data source for a config. One of several with the same name, which services tell apart by id, serves a config once: services send
    /// the config once for each of them.
    pub(super) fn for_config(
        &self,
        connection: usize,
        generation: u32,
        name: &str,
        encoded_config: &[u8],
    ) -> Result<usize, NoSource> {
        let mut found = Err(NoSource::Unknown);
        for (index, state) in self.all.iter().enumerate() {
            if state.name != name || !state.is_offered {
                continue;
            }
            let is_one_of_several = state.descriptor.id.is_some();
            let serves_it = state.running().any(|running| {
                is_one_of_several
                    && running.connection == connection
                    && running.generation == generation
                    && running.phase != Phase::Stopping
                    && *running.instance.encoded_config == *encoded_config
            });
            if !serves_it {
                return Ok(index);
            }
            found = Err(NoSource::ServedAlready);
        }
        found
    }

    /// Puts an instance into a free slot. `make` is given the slot and a new serial number.
    pub(super) fn insert(
        &mut self,
        source: usize,
        make: impl FnOnce(Slot, u32) -> Running,
    ) -> Result<InstancePlace, String> {
        let slot = self.all[source].free_slot()?;
        self.all[source].slots[slot.index()] = Some(make(slot, next_serial()));
        Ok(InstancePlace { source, slot })
    }
}

/// Returns the serial number of a new instance. A forked child goes on counting, so that its threads do not mistake the state of a parent's instance
/// for that of their own.
fn next_serial() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
}

/// Why no data source was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSource {
    /// There is none of that name.
    Unknown,
    /// They all serve exactly this config already.
    ServedAlready,
}
