//! The instances of all data sources: in which slot each one is, whose it is, and how far it has come.
//!
//! Kept by [`super::thread`] alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferretto_client::arbiter::{Arbiter, BufferId};
use ferretto_client::producer::DataSourceInstanceId;
use ferretto_proto::messages::DataSourceDescriptor;

use super::registry::{self, Entry};
use crate::options::Concurrency;
use crate::source::{Instance, MAX_INSTANCES, Slot};

/// How far an instance has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    SetUp,
    Started,
    Stopping,
}

/// An instance, and whose it is.
pub(super) struct Running {
    pub(super) instance: Instance,
    /// The index of its backend.
    pub(super) backend: usize,
    /// The backend's generation that it belongs to.
    pub(super) generation: u32,
    /// What the service calls it. None as long as it records for startup, and no session has asked for it.
    pub(super) id: Option<DataSourceInstanceId>,
    pub(super) phase: Phase,
    /// Until its session has started, an instance for startup records through this.
    pub(super) startup: Option<StartupInstance>,
}

/// What an instance that records for startup has more than others.
pub(super) struct StartupInstance {
    /// The startup session's number.
    pub(super) session: u64,
    pub(super) arbiter: Arc<Arbiter>,
}

impl Running {
    pub(super) fn target(&self) -> BufferId {
        // Services have no more buffers than fit; one that claims so gets the packets for no buffer.
        let target = self.instance.config.target_buffer.unwrap_or_default();
        BufferId(u16::try_from(target).unwrap_or_default())
    }
}

/// A data source with its instances.
pub(super) struct SourceState {
    pub(super) entry: &'static Entry,
    pub(super) name: String,
    /// As services are told.
    pub(super) descriptor: DataSourceDescriptor,
    pub(super) slots: [Option<Running>; MAX_INSTANCES],
    /// When services are to be told that the descriptor has changed.
    pub(super) update_at: Option<u64>,
}

impl SourceState {
    fn new(entry: &'static Entry) -> Self {
        let mut state = Self {
            entry,
            name: String::new(),
            descriptor: DataSourceDescriptor::default(),
            slots: Default::default(),
            update_at: None,
        };
        state.read_descriptor();
        state
    }

    /// Asks the data source for its descriptor, and completes it with what the SDK does for all.
    pub(super) fn read_descriptor(&mut self) {
        self.descriptor = self.entry.source.descriptor();
        self.name = self.descriptor.name.clone().unwrap_or_default();
        self.descriptor.id = Some(self.entry.id);
        self.descriptor.will_notify_on_start = Some(true);
        self.descriptor.will_notify_on_stop.get_or_insert(true);
        self.descriptor.handles_incremental_state_clear = Some(true);
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Running> {
        self.slots.iter().flatten()
    }

    fn free_slot(&self, concurrency: Concurrency) -> Result<Slot, &'static str> {
        let single = concurrency == Concurrency::One || self.entry.source.concurrency() == Concurrency::One;
        if single && self.running().next().is_some() {
            return Err("it records for one session at a time, and does so already");
        }
        Slot::all()
            .find(|slot| self.slots[slot.index()].is_none())
            .ok_or("it records for eight sessions already")
    }
}

/// Where an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) source: usize,
    pub(super) slot: Slot,
}

/// All data sources that the thread has taken notice of.
#[derive(Default)]
pub(super) struct Sources {
    pub(super) all: Vec<SourceState>,
}

impl Sources {
    /// Takes notice of data sources registered since. Whether there were any.
    pub(super) fn discover(&mut self) -> bool {
        let known = self.all.len();
        self.all
            .extend(registry::entries().skip(known).map(SourceState::new));
        self.all.len() > known
    }

    pub(super) fn at(&self, place: Place) -> Option<&Running> {
        self.all[place.source].slots[place.slot.index()].as_ref()
    }

    pub(super) fn at_mut(&mut self, place: Place) -> Option<&mut Running> {
        self.all[place.source].slots[place.slot.index()].as_mut()
    }

    pub(super) fn take(&mut self, place: Place) -> Option<Running> {
        self.all[place.source].slots[place.slot.index()].take()
    }

    /// Where the instances are of which this holds.
    pub(super) fn places(&self, holds: impl Fn(&Running) -> bool) -> Vec<Place> {
        let mut places = Vec::new();
        for (source, state) in self.all.iter().enumerate() {
            for slot in Slot::all() {
                if state.slots[slot.index()].as_ref().is_some_and(&holds) {
                    places.push(Place { source, slot });
                }
            }
        }
        places
    }

    /// The instance of this serial number.
    pub(super) fn by_serial(&self, serial: u32) -> Option<Place> {
        self.places(|running| running.instance.serial == serial).pop()
    }

    /// The instance that a service calls so.
    pub(super) fn by_id(&self, backend: usize, generation: u32, id: DataSourceInstanceId) -> Option<Place> {
        self.places(|running| {
            running.backend == backend && running.generation == generation && running.id == Some(id)
        })
        .pop()
    }

    /// A data source for a config. Of several with one name, each serves a config once: services ask for each of them.
    pub(super) fn for_config(
        &self,
        backend: usize,
        generation: u32,
        name: &str,
        encoded_config: &[u8],
    ) -> Result<usize, NoSource> {
        let mut found = Err(NoSource::Unknown);
        for (index, state) in self.all.iter().enumerate() {
            if state.name != name || !state.entry.is_offered() {
                continue;
            }
            let serves_it = state.running().any(|running| {
                running.backend == backend
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
        concurrency: Concurrency,
        make: impl FnOnce(Slot, u32) -> Running,
    ) -> Result<Place, &'static str> {
        let slot = self.all[source].free_slot(concurrency)?;
        self.all[source].slots[slot.index()] = Some(make(slot, next_serial()));
        Ok(Place { source, slot })
    }
}

/// The serial number of one more instance. A forked child goes on counting: what its threads still have of its parent's instances is
/// not to be mistaken for that of its own.
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
