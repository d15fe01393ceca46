//! The data source instances of a session: by id, by producer, and how many are in each state.
//!
//! One hostile producer can make thousands of them. So no input from a producer looks through all instances of a session: counters tell whether all
//! have started, and a producer that disconnects finds its own. Work that does look at all instances is bounded by the limits for each user's
//! producers ([`Instances::admit`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::ids::{BufferId, DataSourceInstanceId, IdHasher, ProducerId};
use crate::ledger::Ledger;
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::producers::{Owner, RegistrationId};

/// The states of an instance of a data source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstanceState {
    Configured,
    Starting,
    Started,
    Stopping,
    Stopped,
}

/// One data source of one producer inside one session.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) producer: ProducerId,
    /// The owner of the producer.
    pub(crate) owner: Owner,
    /// Bytes that it counts: of its name, and of its config as it came.
    pub(crate) size: usize,
    /// Which of the producer's registrations it is of.
    pub(crate) registration: RegistrationId,
    /// Which of the config's data sources it is of.
    pub(crate) source: usize,
    pub(crate) name: String,
    pub(crate) config: Arc<[u8]>,
    pub(crate) state: InstanceState,
    pub(crate) will_notify_on_start: bool,
    pub(crate) will_notify_on_stop: bool,
    pub(crate) handles_incremental_state_clear: bool,
    pub(crate) no_flush: bool,
    /// The buffer that it writes into.
    pub(crate) buffer: BufferId,
}

/// All instances of one session.
#[derive(Debug, Default)]
pub(crate) struct Instances {
    by_id: HashMap<DataSourceInstanceId, Instance, IdHasher>,
    /// In the order of the ids.
    by_producer: HashMap<ProducerId, Vec<DataSourceInstanceId>, IdHasher>,
    /// How many are in each state.
    count: [usize; InstanceState::Stopped as usize + 1],
    of_owners: Ledger<Owner>,
    bytes_of_owners: Ledger<Owner>,
    /// The log knows that the producers of these would have more than they may.
    refused: OrderedSet<Owner>,
}

/// Why there is no instance of a data source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Its producer has as many as it may have.
    OfProducer,
    /// The producers of its user have.
    OfOwner,
}

impl Instances {
    /// Whether the producers of this owner may have none more of this size.
    pub(crate) fn is_full(&self, owner: Owner, size: usize) -> bool {
        let (count, bytes) = (limits::MAX_INSTANCES_PER_UID, limits::MAX_INSTANCE_BYTES_PER_UID);
        !self.of_owners.has_room(&owner, 1, count) || !self.bytes_of_owners.has_room(&owner, size, bytes)
    }

    /// Whether there may be one more, of this producer and this size.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn admit(&self, producer: ProducerId, owner: Owner, size: usize) -> Result<(), NoRoom> {
        let of_producer = self.by_producer.get(&producer).map_or(0, Vec::len);
        if of_producer >= limits::MAX_INSTANCES_PER_PRODUCER {
            Err(NoRoom::OfProducer)
        } else if self.is_full(owner, size) {
            Err(NoRoom::OfOwner)
        } else {
            Ok(())
        }
    }

    /// Whether to log that the producers of this owner would have more than they may, which is done once.
    pub(crate) fn is_first_refusal(&mut self, owner: Owner) -> bool {
        self.refused.insert(owner)
    }

    /// Adds one. Ids ascend and are never used again.
    pub(crate) fn insert(&mut self, id: DataSourceInstanceId, instance: Instance) {
        self.count[instance.state as usize] += 1;
        self.of_owners.take(instance.owner, 1);
        self.bytes_of_owners.take(instance.owner, instance.size);
        self.by_producer.entry(instance.producer).or_default().push(id);
        self.by_id.insert(id, instance);
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, id: DataSourceInstanceId) {
        let Some(removed) = self.by_id.remove(&id) else {
            return;
        };
        self.count[removed.state as usize] -= 1;
        self.of_owners.give_back(removed.owner, 1);
        self.bytes_of_owners.give_back(removed.owner, removed.size);
        if self.of_owners.of(&removed.owner) == 0 {
            self.refused.remove(&removed.owner);
        }
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

    pub(crate) fn state(&self, id: DataSourceInstanceId) -> Option<InstanceState> {
        Some(self.get(id)?.state)
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

    /// Whether this producer has any.
    pub(crate) fn has_any_of(&self, producer: ProducerId) -> bool {
        self.by_producer.contains_key(&producer)
    }

    /// The instances of one producer, in the order in which they were set up.
    pub(crate) fn of_producer(
        &self,
        producer: ProducerId,
    ) -> impl Iterator<Item = (DataSourceInstanceId, &Instance)> {
        let ids = self.by_producer.get(&producer).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.by_id.get(id)?)))
    }

    /// All instances in the order of their events, which consumers can observe: producer by producer.
    pub(crate) fn ids(&self) -> Vec<DataSourceInstanceId> {
        self.in_order()
            .into_iter()
            .flat_map(|(_, ids)| ids)
            .copied()
            .collect()
    }

    /// Each producer with its instances.
    fn in_order(&self) -> Vec<(&ProducerId, &Vec<DataSourceInstanceId>)> {
        let mut producers: Vec<_> = self.by_producer.iter().collect();
        producers.sort_unstable_by_key(|(producer, _)| **producer);
        producers
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The instances that a condition picks, for each producer that has some.
    pub(crate) fn grouped(
        &self,
        picks: impl Fn(&Instance) -> bool,
    ) -> OrderedMap<ProducerId, Vec<DataSourceInstanceId>> {
        let mut map = OrderedMap::<ProducerId, Vec<DataSourceInstanceId>>::new();
        for (producer, ids) in self.in_order() {
            let picked = ids.iter().copied();
            let picked: Vec<_> = picked
                .filter(|id| self.by_id.get(id).is_some_and(&picks))
                .collect();
            if !picked.is_empty() {
                map.insert(*producer, picked);
            }
        }
        map
    }

    /// All instances, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Instance> {
        self.by_id.values()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STATES: [InstanceState; 5] = [
        InstanceState::Configured,
        InstanceState::Starting,
        InstanceState::Started,
        InstanceState::Stopping,
        InstanceState::Stopped,
    ];

    /// A change of the instances.
    #[derive(Clone, Debug)]
    enum Event {
        Insert { producer: u32, size: usize },
        Enter(u64, usize),
        Remove(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            2 => (1..20u32, 0..100usize).prop_map(|(producer, size)| Event::Insert { producer, size }),
            1 => (1..40u64, 0..STATES.len()).prop_map(|(id, state)| Event::Enter(id, state)),
            1 => (1..40u64).prop_map(Event::Remove),
        ]
    }

    fn instance(producer: u32, size: usize) -> Instance {
        Instance {
            producer: ProducerId(producer),
            owner: Owner::User(producer % 3),
            size,
            registration: RegistrationId::NONE,
            source: 0,
            name: String::new(),
            config: Arc::new([]),
            state: InstanceState::Configured,
            will_notify_on_start: false,
            will_notify_on_stop: false,
            handles_incremental_state_clear: false,
            no_flush: false,
            buffer: BufferId(1),
        }
    }

    #[test]
    fn an_owner_gets_its_limit_of_bytes_and_not_one_more() {
        let mut instances = Instances::default();
        instances.insert(DataSourceInstanceId(1), instance(3, 10));
        let left = limits::MAX_INSTANCE_BYTES_PER_UID - 10;
        let is_full = |size| instances.is_full(Owner::User(0), size);
        assert!(!is_full(left) && is_full(left + 1));
        assert!(instances.is_first_refusal(Owner::User(0)) && !instances.is_first_refusal(Owner::User(0)));
        instances.remove(DataSourceInstanceId(1));
        assert!(
            instances.is_first_refusal(Owner::User(0)),
            "nothing is kept of it"
        );
    }

    proptest! {
        #[test]
        fn counts_match_the_instances(events in proptest::collection::vec(event(), 0..60)) {
            let mut instances = Instances::default();
            let mut last = 0;
            for event in events {
                match event {
                    Event::Insert { producer, size } => {
                        last += 1;
                        instances.insert(DataSourceInstanceId(last), instance(producer, size));
                    }
                    Event::Enter(id, state) => instances.set_state(DataSourceInstanceId(id), STATES[state]),
                    Event::Remove(id) => instances.remove(DataSourceInstanceId(id)),
                }
                for owner in [0, 1, 2].map(Owner::User) {
                    let own = || instances.values().filter(|instance| instance.owner == owner);
                    prop_assert_eq!(instances.of_owners.of(&owner), own().count());
                    let bytes = own().map(|instance| instance.size).sum::<usize>();
                    prop_assert_eq!(instances.bytes_of_owners.of(&owner), bytes);
                }
                let in_state = |state| instances.values().filter(|instance| instance.state == state).count();
                prop_assert_eq!(instances.count, STATES.map(in_state));
                let mut in_order: Vec<_> = instances.by_id.iter().collect();
                in_order.sort_by_key(|(id, instance)| (instance.producer, **id));
                let in_order: Vec<_> = in_order.into_iter().map(|(id, _)| *id).collect();
                prop_assert_eq!(instances.ids(), in_order);
                prop_assert!(instances.by_producer.values().all(|ids| !ids.is_empty()));
            }
        }
    }
}
