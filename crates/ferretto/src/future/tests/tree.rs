//! Random trees of futures, on two threads: the trace shows readers the actual trees.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The steps of a future in a slice.
#[derive(Clone, Debug)]
struct Tree(Vec<Step>);

#[derive(Clone, Debug)]
enum Step {
    Pause,
    Await(Tree),
    /// Until all are done.
    Join(Vec<Tree>),
    /// Until one is done; the others are dropped.
    Race(Vec<Tree>),
    /// Begins a slice that lasts as long as the future.
    Guard,
    /// Begins a slice that others end.
    LetGuardOut,
    /// Polls a future this often, and leaves it to others.
    LetOut(Tree, u8),
    Spawn(Tree, Parentage),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parentage {
    None,
    Said,
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![Just(Step::Pause), Just(Step::Guard), Just(Step::LetGuardOut)];
    let leaf = prop::collection::vec(leaf, 0..3).prop_map(Tree);
    leaf.prop_recursive(4, 24, 4, |inner| {
        let some = || prop::collection::vec(inner.clone(), 1..4);
        let step = prop_oneof![
            3 => Just(Step::Pause),
            4 => inner.clone().prop_map(Step::Await),
            2 => some().prop_map(Step::Join),
            2 => some().prop_map(Step::Race),
            1 => Just(Step::Guard),
            1 => Just(Step::LetGuardOut),
            1 => (inner.clone(), 0..3u8).prop_map(|(tree, polls)| Step::LetOut(tree, polls)),
            1 => (inner.clone(), any::<bool>())
                .prop_map(|(tree, said)| Step::Spawn(tree, if said { Parentage::Said } else { Parentage::None })),
        ];
        prop::collection::vec(step, 1..5).prop_map(Tree)
    })
}

/// The facts about a slice.
#[derive(Clone, Copy, Debug)]
struct Truth {
    parent: Option<u64>,
    /// Whether it began while its parent was polled.
    in_poll: bool,
    ended: Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Itself,
    /// Its future was dropped.
    Dropped,
}

#[derive(Default)]
struct World {
    slices: Mutex<BTreeMap<u64, Truth>>,
    ready: Mutex<VecDeque<Boxed>>,
    guards: Mutex<Vec<Guard>>,
    /// The number of futures that are not done.
    alive: AtomicUsize,
    /// Whether slices may end on two threads at a time, and after their parents.
    strays: AtomicUsize,
}

impl World {
    fn begin(&self, parent: Option<u64>, in_poll: bool) -> u64 {
        let mut slices = self.slices.lock().unwrap();
        let id = slices.len() as u64;
        let ended = Ended::Dropped;
        slices.insert(
            id,
            Truth {
                parent,
                in_poll,
                ended,
            },
        );
        id
    }

    fn end(&self, id: u64) {
        self.slices.lock().unwrap().get_mut(&id).unwrap().ended = Ended::Itself;
    }

    fn leave(&self, future: Boxed) {
        self.strays.fetch_add(1, Ordering::Relaxed);
        self.alive.fetch_add(1, Ordering::Relaxed);
        self.ready.lock().unwrap().push_back(future);
    }

    /// Polls the futures in any order; drops some.
    fn work(&self, mut random: u64) {
        while self.alive.load(Ordering::Relaxed) > 0 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let chance = (random >> 33) as usize;
            let next = {
                let mut ready = self.ready.lock().unwrap();
                let len = ready.len();
                if len == 0 {
                    None
                } else {
                    ready.remove(chance % len)
                }
            };
            if chance.is_multiple_of(5) {
                let guard = self.guards.lock().unwrap().pop();
                drop(guard);
            }
            let Some(mut future) = next else {
                thread::yield_now();
                continue;
            };
            if chance.is_multiple_of(32) || poll(future.as_mut()).is_ready() {
                drop(future);
                self.alive.fetch_sub(1, Ordering::Relaxed);
            } else {
                self.ready.lock().unwrap().push_back(future);
            }
        }
    }
}

/// A slice that records its number at its end.
struct Guard {
    slice: Option<AsyncSlice>,
    id: u64,
    world: Arc<World>,
}

impl Guard {
    fn begin(world: &Arc<World>, parent: u64) -> Self {
        let id = world.begin(Some(parent), true);
        Self {
            slice: Some(trace_async!("trees", "guard", "id" => id)),
            id,
            world: Arc::clone(world),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.world.end(self.id);
        let id = self.id;
        self.slice.take().unwrap().end_with(|event| {
            event.annotation("id", id);
        });
    }
}

/// The slice that a future will begin when it is polled.
fn grow(tree: Tree, world: &Arc<World>, parent: Arc<Mutex<(Option<u64>, bool)>>) -> Boxed {
    let own = Arc::new(Mutex::new(u64::MAX));
    let begin = {
        let (world, own) = (Arc::clone(world), Arc::clone(&own));
        move || {
            let (parent, in_poll) = *parent.lock().unwrap();
            let id = world.begin(parent, in_poll);
            *own.lock().unwrap() = id;
            trace_async!("trees", "future", "id" => id)
        }
    };
    let world = Arc::clone(world);
    let body = {
        let own = Arc::clone(&own);
        async move {
            let id = *own.lock().unwrap();
            let mut guards = Vec::new();
            for step in tree.0 {
                take(step, id, &world, &mut guards).await;
            }
            drop(guards);
            world.end(id);
        }
    };
    let whole = body.in_slice(begin).with_output(move |(), event| {
        event.annotation("id", *own.lock().unwrap());
    });
    Box::pin(whole)
}

async fn take(step: Step, id: u64, world: &Arc<World>, guards: &mut Vec<Guard>) {
    let child = |tree| grow(tree, world, Arc::new(Mutex::new((Some(id), true))));
    match step {
        Step::Pause => pauses(1).await,
        Step::Await(tree) => child(tree).await,
        Step::Join(trees) => {
            let mut futures: Vec<_> = trees.into_iter().map(child).collect();
            poll_fn(|context| {
                futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
                match futures.is_empty() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
        }
        Step::Race(trees) => {
            let mut futures: Vec<_> = trees.into_iter().map(child).collect();
            poll_fn(|context| {
                let mut polled = futures.iter_mut().map(|future| future.as_mut().poll(context));
                match polled.any(|polled| polled.is_ready()) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
        }
        Step::Guard => guards.push(Guard::begin(world, id)),
        Step::LetGuardOut => {
            world.strays.fetch_add(1, Ordering::Relaxed);
            let guard = Guard::begin(world, id);
            world.guards.lock().unwrap().push(guard);
        }
        Step::LetOut(tree, polls) => {
            let parent = Arc::new(Mutex::new((Some(id), true)));
            let mut future = grow(tree, world, Arc::clone(&parent));
            let is_done = (0..polls).any(|_| poll(future.as_mut()).is_ready());
            *parent.lock().unwrap() = (None, false);
            if !is_done {
                world.leave(future);
            }
        }
        Step::Spawn(tree, Parentage::None) => {
            world.leave(grow(tree, world, Arc::new(Mutex::new((None, false)))));
        }
        Step::Spawn(tree, Parentage::Said) => {
            let future = grow(tree, world, Arc::new(Mutex::new((Some(id), false))));
            world.leave(Box::pin(future.in_current_slice()));
        }
    }
}

/// The number of a slice as a reader sees it; `None` where a slice resumes, because events there have no number.
type Seen = Option<u64>;

fn id_of(event: &ferretto_proto::messages::TrackEvent) -> Seen {
    use ferretto_proto::messages::debug_annotation::Value;
    let annotation = event.debug_annotations.first()?;
    match annotation.value {
        Some(Value::UintValue(id)) => Some(id),
        Some(Value::IntValue(id)) => Some(id as u64),
        _ => panic!("{annotation:?}"),
    }
}

/// Reads the trace as a viewer does, and compares.
fn check(events: &Events, world: &World) {
    let slices = world.slices.lock().unwrap();
    let has_strays = world.strays.load(Ordering::Relaxed) > 0;
    let mut all: Vec<_> = events.events.iter().collect();
    all.sort_by_key(|(time, _)| *time);
    let mut stacks: BTreeMap<u64, Vec<Seen>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    // The slices that ended with their parents and have to resume.
    let mut cut: Vec<u64> = Vec::new();
    let mut resumed = 0;
    for (_, event) in all {
        let uuid = event.track_uuid.expect("all are on lanes");
        let track = events.track(uuid);
        let group = track.parent_uuid.unwrap();
        let is_root = events.track(group).parent_uuid == Some(Track::process().uuid());
        let id = id_of(event);
        if event.r#type == Some(END) {
            let open = stacks
                .get_mut(&uuid)
                .and_then(Vec::pop)
                .expect("an end has a beginning");
            match (open, id) {
                (Some(open), Some(id)) => assert_eq!(open, id, "an end is of the slice on top"),
                (None, Some(id)) => {
                    let place = cut.iter().position(|&cut| cut == id);
                    cut.remove(place.expect("what goes on was cut"));
                }
                // The slice was dropped or cut, or another thread wrote its end.
                (Some(open), None) if slices[&open].ended == Ended::Itself => {
                    assert!(has_strays, "{open} ended itself");
                    cut.push(open);
                }
                (Some(_) | None, None) => {}
            }
            continue;
        }
        let Some(id) = id else {
            assert!(has_strays);
            resumed += 1;
            stacks.entry(uuid).or_default().push(None);
            continue;
        };
        assert!(seen.insert(id));
        let truth = slices[&id];
        let below = stacks.get(&uuid).and_then(|stack| stack.last().copied());
        match (truth.parent, below) {
            (None, None) => assert!(is_root, "{id} has no parent"),
            (Some(parent), Some(below)) => {
                assert!(
                    below.is_none_or(|below| below == parent),
                    "{id} is {parent}'s, and on {below:?}"
                );
                assert!(truth.in_poll);
            }
            (Some(parent), None) => {
                assert!(!is_root, "{id} is below {parent}");
                let beside = stacks.get(&group).map_or(&[][..], Vec::as_slice);
                if !has_strays {
                    assert!(beside.contains(&Some(parent)), "{id} is {parent}'s");
                    assert_ne!(beside.last(), Some(&Some(parent)), "{id} could be on {parent}");
                }
            }
            (None, Some(below)) => panic!("{id} is nobody's, and on {below:?}"),
        }
        stacks.entry(uuid).or_default().push(Some(id));
    }
    assert!(stacks.values().all(Vec::is_empty), "all have ended");
    assert_eq!(seen.len(), slices.len(), "all are there");
    assert!(resumed == 0 || has_strays);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_reader_sees_the_tree_that_there_was(trees in prop::collection::vec(trees(), 1..4), seed: u64) {
        let world = Arc::new(World::default());
        // The recording leaves out the events of other tests.
        let config = TrackEventConfig {
            enabled_categories: vec!["trees".to_owned()],
            disabled_categories: vec!["*".to_owned()],
            ..Default::default()
        };
        let events = Events::of(&Recording::of(config, || {
            for tree in trees {
                let root = grow(tree, &world, Arc::new(Mutex::new((None, false))));
                world.alive.fetch_add(1, Ordering::Relaxed);
                world.ready.lock().unwrap().push_back(root);
            }
            thread::scope(|scope| {
                // The threads' events are committed once the threads have been joined.
                let threads = [0, 1].map(|thread| scope.spawn({
                    let world = &world;
                    move || world.work(seed ^ thread)
                }));
                for thread in threads {
                    thread.join().unwrap();
                }
            });
            let guards = std::mem::take(&mut *world.guards.lock().unwrap());
            drop(guards);
        }));
        check(&events, &world);
    }
}
