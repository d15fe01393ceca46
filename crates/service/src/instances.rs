//! The instances of data sources that a session has: by id, by producer, and how many are in each state.
//!
//! Kept by the session. One hostile producer can make thousands of them, so nothing here, and nothing that a producer does, looks
//! through all of a session's: whether all have started is a matter of counting, and who goes away finds its own.

use std::collections::{BTreeMap, HashMap};

use crate::ids::{DataSourceInstanceId, IdHasher, ProducerId};
use crate::session::{Instance, InstanceState};

/// All instances of one session.
#[derive(Debug, Default)]
pub(crate) struct Instances {
    by_id: BTreeMap<DataSourceInstanceId, Instance>,
    /// In the order of the ids.
    by_producer: HashMap<ProducerId, Vec<DataSourceInstanceId>, IdHasher>,
    /// How many are in each state.
    count: [usize; InstanceState::Stopped as usize + 1],
}

impl Instances {
    /// Adds one. Ids ascend and are never used again.
    pub(crate) fn insert(&mut self, id: DataSourceInstanceId, instance: Instance) {
        self.count[instance.state as usize] += 1;
        self.by_producer.entry(instance.producer).or_default().push(id);
        self.by_id.insert(id, instance);
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, id: DataSourceInstanceId) {
        let Some(removed) = self.by_id.remove(&id) else {
            return;
        };
        self.count[removed.state as usize] -= 1;
        let Some(siblings) = self.by_producer.get_mut(&removed.producer) else {
            return;
        };
        if let Ok(place) = siblings.binary_search(&id) {
            siblings.remove(place);
        }
        if siblings.is_empty() {
            self.by_producer.remove(&removed.producer);
        }
    }

    pub(crate) fn get(&self, id: DataSourceInstanceId) -> Option<&Instance> {
        self.by_id.get(&id)
    }

    pub(crate) fn set_state(&mut self, id: DataSourceInstanceId, state: InstanceState) {
        if let Some(instance) = self.by_id.get_mut(&id) {
            self.count[instance.state as usize] -= 1;
            self.count[state as usize] += 1;
            instance.state = state;
        }
    }

    /// Whether all are in this state, if there are any.
    pub(crate) fn all(&self, state: InstanceState) -> bool {
        self.count[state as usize] == self.by_id.len()
    }

    /// Those of one producer, in the order in which they were set up.
    pub(crate) fn of(&self, producer: ProducerId) -> &[DataSourceInstanceId] {
        self.by_producer.get(&producer).map_or(&[], Vec::as_slice)
    }

    /// All of them, producer by producer.
    pub(crate) fn by_producer(&self) -> Vec<DataSourceInstanceId> {
        let mut producers: Vec<_> = self.by_producer.iter().collect();
        producers.sort_unstable_by_key(|(producer, _)| **producer);
        producers.into_iter().flat_map(|(_, ids)| ids).copied().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (DataSourceInstanceId, &Instance)> {
        self.by_id.iter().map(|(id, instance)| (*id, instance))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = DataSourceInstanceId> {
        self.by_id.keys().copied()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Instance> {
        self.by_id.values()
    }
}
