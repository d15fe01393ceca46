use proptest::prelude::*;

use super::*;

#[test]
fn behind_the_last_id_of_a_producer_comes_the_first_that_is_not_in_use() {
    let mut producers = Producers::default();
    let mut connect = |last| {
        producers.last = ProducerId(last);
        producers.add(Producer::new(
            Credentials { uid: 1, pid: None },
            Introduction::default(),
        ))
    };
    assert_eq!(connect(0), Some(ProducerId(1)));
    assert_eq!(
        connect(limits::MAX_PRODUCER_ID - 1),
        Some(ProducerId(limits::MAX_PRODUCER_ID))
    );
    assert_eq!(connect(limits::MAX_PRODUCER_ID), Some(ProducerId(2)));
}

const KB: usize = 1024;

#[test]
fn no_wish_gives_the_default() {
    assert_eq!(smb_sizes(0, 0), (256 * KB, 4 * KB));
}

#[test]
fn wishes_within_the_limits_are_granted() {
    assert_eq!(smb_sizes(1024 * KB, 32 * KB), (1024 * KB, 32 * KB));
    assert_eq!(smb_sizes(4 * KB, 4 * KB), (4 * KB, 4 * KB));
}

#[test]
fn too_much_is_cut_to_the_limits() {
    assert_eq!(smb_sizes(4096 * KB * KB, 4096 * KB), (32 * KB * KB, 32 * KB));
}

#[test]
fn impossible_combinations_give_the_default() {
    for (size, page) in [
        (18 * KB, 0),
        (32 * KB, 2 * KB),
        (20 * KB, 8 * KB),
        (0, 28 * KB),
        (4 * KB, 8 * KB),
    ] {
        assert_eq!(
            smb_sizes(size, page),
            (256 * KB, 4 * KB),
            "size {size} page {page}"
        );
    }
}

#[test]
fn a_descriptor_may_take_the_room_of_the_one_that_it_replaces() {
    let credentials = Credentials { uid: 1, pid: None };
    let mut producer = Producer::new(credentials, Introduction::default());
    let fits = |producer: &Producer, of_owner: usize, new| {
        let mut of_owners = Ledger::new();
        of_owners.take(producer.owner(), of_owner);
        has_room_for_descriptor(producer, &of_owners, 10, new)
    };
    let of_owner = limits::MAX_DESCRIPTOR_BYTES_PER_UID;
    producer.descriptor_bytes = 10;
    assert!(fits(&producer, of_owner, 10) && !fits(&producer, of_owner, 11));
    let own = limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER;
    producer.descriptor_bytes = own;
    assert!(fits(&producer, own, 10) && !fits(&producer, own, 11));
}

/// An operation of a producer that changes the counts.
#[derive(Clone, Debug)]
enum Act {
    Connect(u32),
    Leave,
    TakePart,
    Attach(usize),
    Register { name: u8, id: u64, bytes: usize },
    Update { name: u8, id: u64, bytes: usize },
    Unregister(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let described = || (0..3u8, 0..4u64, 0..100usize);
    prop_oneof![
        (0..2u32).prop_map(Act::Connect),
        Just(Act::Leave),
        Just(Act::TakePart),
        (1..100usize).prop_map(Act::Attach),
        described().prop_map(|(name, id, bytes)| Act::Register { name, id, bytes }),
        described().prop_map(|(name, id, bytes)| Act::Update { name, id, bytes }),
        (0..3u8).prop_map(Act::Unregister),
    ]
}

fn perform(producers: &mut Producers, id: ProducerId, act: &Act) {
    let described = |name: u8, id: u64| DataSourceDescriptor {
        name: Some(name.to_string()),
        id: Some(id),
        ..Default::default()
    };
    // The service refuses some of these operations, and refused ones must not count.
    match *act {
        Act::Connect(uid) => {
            let credentials = Credentials { uid, pid: None };
            producers.add(Producer::new(credentials, Introduction::default()));
        }
        Act::Leave => producers.remove(id),
        Act::TakePart => {
            producers.takes_part(id, BufferId(1), &TraceConfig::default(), None);
        }
        Act::Attach(bytes) => producers.set_shared_bytes(id, bytes),
        Act::Register {
            name,
            id: number,
            bytes,
        } => {
            let _ = producers.register(id, described(name, number), &vec![0; bytes]);
        }
        Act::Update {
            name,
            id: number,
            bytes,
        } => {
            let _ = producers.update(id, described(name, number), &vec![0; bytes]);
        }
        Act::Unregister(name) => {
            producers.unregister(id, &name.to_string());
        }
    }
}

/// Checks that the accounts of the producers match a new count of everything.
fn check(producers: &Producers) {
    for owner in [0, 1].map(Owner::User) {
        let sum = |of: fn(&Producer) -> usize| {
            let own = producers.iter().filter(|(_, producer)| producer.owner() == owner);
            own.map(|(_, producer)| of(producer)).sum::<usize>()
        };
        let bytes = |producer: &Producer| {
            let sources = producer.data_sources.iter();
            sources.map(|source| source.descriptor_bytes.len()).sum()
        };
        assert_eq!(
            producers.data_sources.of(&owner),
            sum(|producer| producer.data_sources.len())
        );
        assert_eq!(producers.descriptor_bytes.of(&owner), sum(bytes));
        assert_eq!(sum(|producer| producer.descriptor_bytes), sum(bytes));
        assert_eq!(
            producers.shared_memory.of(&owner),
            sum(|producer| producer.shared_bytes)
        );
    }
    let mut offers = BTreeMap::<String, Vec<_>>::new();
    for (id, producer) in producers.iter() {
        // Memory counts as soon as it has been requested.
        assert!(producer.shared_bytes > 0 || !producer.smb_requested);
        for source in &producer.data_sources {
            let same = offers.entry(source.name().to_owned()).or_default();
            same.push((source.number, id));
            same.sort_unstable();
        }
    }
    let kept = producers.offers.iter().map(|(name, offers)| {
        let offers = offers.iter().map(|offer| (offer.registration, offer.producer));
        (name.clone(), offers.collect::<Vec<_>>())
    });
    assert!(kept.eq(offers));
}

proptest! {
    #[test]
    fn the_accounts_of_producers_match_a_recount(
        acts in proptest::collection::vec((1..6u32, act()), 0..60),
    ) {
        let mut producers = Producers::default();
        for (id, act) in &acts {
            perform(&mut producers, ProducerId(*id), act);
            check(&producers);
        }
    }
}
