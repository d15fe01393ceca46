//! The whole service under random producers, consumers, sessions, losses and faults, replayed from a seed.
//!
//! Honest producers write numbered packets, each writer into one buffer, and acknowledge requests late, in any order, or never. Hostile producers send
//! anything that a request can hold. Consumers do everything that a consumer can do, in any order, and any client may vanish at any time. After every
//! step:
//!
//! - nothing has panicked, and the service has a bounded number of outputs;
//! - no deadline is in the past, and without a session there is none;
//! - outputs name only connected clients (the [`World`] checks this);
//! - the packets of a writer come out whole, in order and once, under one sequence id and the user who wrote them, and a packet after a loss
//!   says so;
//! - the owner of a session has heard of its end once, and a consumer that asked for a clone has heard the outcome once;
//! - a file stays below its limit and is a valid trace;
//! - packets carry the machine of their producer, and the clocks of another machine are compared once;
//! - a session that waits for a trigger returns no packets before a trigger was activated.
//!
//! When all clients have left, no buffer, session or deadline remains, and the next client finds the service as the first one did.
//!
//! `FERRETTO_SERVICE_SEED=n` runs one seed, `FERRETTO_SERVICE_SEEDS=n` that many, and `FERRETTO_SERVICE_STEPS=n` changes
//! the number of steps in each.

mod checks;
mod clones;
mod consumers;
mod honest;
mod hostile;
mod machines;
mod triggers;

use std::collections::{BTreeMap, BTreeSet};

use ferretto_service::{ConsumerId, MachineId, ProducerId, RelayId, Scraping, SessionId, StateScope, limits};

use crate::random::Random;
use crate::world::{Disk, World};
use checks::Told;
use honest::{Account, Honest};

const SEEDS: u64 = 100;
const STEPS: u64 = 1000;

/// The users of honest producers, of hostile producers, and of consumers.
const HONEST: u32 = 1000;
const HOSTILE: u32 = 666;
const CONSUMERS: [u32; 3] = [0, 1000, 1001];

struct Owned {
    owner: Option<ConsumerId>,
    is_clone: bool,
    /// Whether only its clones have packets.
    forgets: bool,
    /// The maximum size of its file, while it has one.
    streams: Option<u64>,
    /// Whether a file has failed, and took packets with it.
    file_failed: bool,
    /// The triggers it waits for.
    triggers: Vec<String>,
    /// Whether one of these triggers was activated, though perhaps not for this session.
    is_triggered: bool,
    trace: Told,
    /// The packets of honest writers in this session.
    accounts: BTreeMap<String, Account>,
}

struct Simulation {
    world: World,
    random: Random,
    honest: BTreeMap<ProducerId, Honest>,
    hostile: BTreeSet<ProducerId>,
    /// The machine of each producer that ever connected.
    machines: BTreeMap<ProducerId, MachineId>,
    relays: BTreeSet<RelayId>,
    consumers: BTreeMap<ConsumerId, Option<SessionId>>,
    detached: Vec<(SessionId, String, u32)>,
    /// The consumers that wait for clones, each with the clone, and whether only other clones have the packets before it.
    cloning: BTreeMap<ConsumerId, (SessionId, bool)>,
    users: BTreeMap<ConsumerId, u32>,
    sessions: BTreeMap<SessionId, Owned>,
    /// The number of ends of sessions that each consumer has heard of.
    heard: BTreeMap<ConsumerId, usize>,
    root: ConsumerId,
    /// Whether there are no hostile producers.
    peaceful: bool,
    packets: u64,
    losses: u64,
    /// The number of writers whose packets all came out.
    complete: u64,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut world = World::new();
        let root = world.consumer_of(0);
        Simulation {
            world,
            peaceful: seed.is_multiple_of(4),
            random: Random(seed),
            honest: BTreeMap::new(),
            hostile: BTreeSet::new(),
            machines: BTreeMap::new(),
            relays: BTreeSet::new(),
            consumers: BTreeMap::new(),
            detached: Vec::new(),
            cloning: BTreeMap::new(),
            users: BTreeMap::new(),
            sessions: BTreeMap::new(),
            heard: BTreeMap::new(),
            root,
            packets: 0,
            losses: 0,
            complete: 0,
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..4 | 5 => self.join_producer(),
            4 => self.lose_producer(),
            6..10 => self.join_consumer(),
            10..11 => self.lose_consumer(),
            11..61 => self.honest_step(),
            61..71 => self.hostile_step(),
            71..88 => self.consumer_step(),
            88..95 => self.time_step(),
            95 | 96 => self.relay_step(),
            _ => self.disk_step(),
        }
        // Sometimes several things happen before the service handles them.
        if !self.random.one_in(4) {
            self.world.run();
            self.check();
        }
    }

    fn time_step(&mut self) {
        match self.random.below(20) {
            0 => self.world.jump(self.random.below(100_000_000)),
            1 => self.world.suspend(self.random.below(100_000)),
            2 => self.world.set_wall_clock(self.random.below(1 << 60)),
            3..6 => self.world.advance(self.random.below(6000)),
            6 => self.world.may_boost = !self.random.one_in(3),
            _ => self.world.advance(self.random.below(150)),
        }
    }

    fn disk_step(&mut self) {
        self.world.disk_catches_up();
        self.world.disk = match self.random.below(5) {
            0 => Disk::Full,
            1 | 2 => Disk::Slow,
            _ => Disk::Fast,
        };
    }

    /// Has everybody finish, and then leave.
    fn end(mut self) -> [u64; 3] {
        self.world.disk = Disk::Fast;
        self.world.disk_catches_up();
        self.commit_everything();
        let now = self.world.now;
        let consumers: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        for id in &consumers {
            self.world.service.disable_tracing(*id, &now);
        }
        self.world.run();
        self.world.advance(10_000);
        self.check();
        for id in &consumers {
            self.read(*id);
            self.check_completeness(*id);
        }
        for (session, owned) in &self.sessions {
            if owned
                .owner
                .is_some_and(|owner| self.consumers.contains_key(&owner))
            {
                let times = u64::from(!owned.is_clone);
                assert_eq!(self.times_told(*session) as u64, times, "{session} has an owner");
            }
        }
        for id in consumers {
            self.world.lose_consumer(id);
        }
        let producers: Vec<ProducerId> = self.honest.keys().chain(&self.hostile).copied().collect();
        for id in producers {
            self.world.lose_producer(id);
        }
        self.lose_relays();
        let now = self.world.now;
        self.world.service.end_all_sessions(&now);
        self.world.run();
        let state = self.world.state(self.root, StateScope::Everything);
        assert!(state.tracing_sessions.is_empty() && state.producers.is_empty());
        assert!(state.data_sources.is_empty());
        assert_eq!(self.world.service.buffer_bytes(), 0);
        assert_eq!(self.world.service.next_deadline(), None);
        assert_eq!(self.world.service.next_boot_deadline(), None);
        for uid in [HONEST, HOSTILE] {
            let next = self.world.producer_of(uid, "next", Scraping::Disabled);
            let all = limits::MIN_SHARED_MEMORY_PER_UID;
            assert_eq!(
                self.world.service.check_shared_memory(next, all),
                Ok(()),
                "uid {uid}"
            );
            self.world.lose_producer(next);
        }
        let boosts = &self.world.boosts;
        assert!(matches!(boosts.last(), None | Some(None)), "it runs as usual");
        [self.packets, self.losses, self.complete]
    }
}

/// Prints the seed when a check fails.
struct SayWhich(u64);

impl Drop for SayWhich {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("failed with FERRETTO_SERVICE_SEED={}", self.0);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

#[test]
fn the_service_keeps_its_promises_with_random_clients() {
    let steps = setting("FERRETTO_SERVICE_STEPS").unwrap_or(STEPS);
    let seeds = match setting("FERRETTO_SERVICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("FERRETTO_SERVICE_SEEDS").unwrap_or(SEEDS),
    };
    let mut totals = [0; 3];
    for seed in seeds.clone() {
        let _which = SayWhich(seed);
        let mut simulation = Simulation::new(seed);
        for _ in 0..steps {
            simulation.step();
        }
        for (total, of_seed) in totals.iter_mut().zip(simulation.end()) {
            *total += of_seed;
        }
    }
    let [packets, losses, complete] = totals;
    println!("{packets} packets, {losses} marked losses, {complete} writers whose every packet came out");
    if seeds.count() > 10 {
        assert!(
            packets > 1000 && losses > 10 && complete > 10,
            "something was put to the test"
        );
    }
}
