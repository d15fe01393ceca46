//! The listing and opening of threads, against a model of a process that starts and ends threads meanwhile.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// The steps of the process between two calls of the profiler.
#[derive(Clone, Debug)]
enum Step {
    Nothing,
    /// One of its threads starts another.
    Start(prop::sample::Index),
    End(prop::sample::Index),
}

/// A process: its threads, each with the events that count it.
#[derive(Debug)]
struct World {
    threads: BTreeMap<i32, HashSet<u32>>,
    next_tid: i32,
    next_event: u32,
    steps: Vec<Step>,
    closed: Rc<RefCell<HashSet<u32>>>,
}

/// An open event.
#[derive(Debug)]
struct Event(u32, Rc<RefCell<HashSet<u32>>>);

impl Drop for Event {
    fn drop(&mut self) {
        self.1.borrow_mut().insert(self.0);
    }
}

impl World {
    fn go_on(&mut self) {
        match self.steps.pop() {
            Some(Step::Start(starter)) => {
                let inherited = starter
                    .get(&self.threads.keys().copied().collect::<Vec<_>>())
                    .to_owned();
                let inherited = self.threads[&inherited].clone();
                self.threads.insert(self.next_tid, inherited);
                self.next_tid += 1;
            }
            Some(Step::End(ended)) if self.threads.len() > 1 => {
                let ended = *ended.get(&self.threads.keys().copied().collect::<Vec<_>>());
                self.threads.remove(&ended);
            }
            Some(Step::End(_) | Step::Nothing) | None => {}
        }
    }

    fn open(&mut self, tid: i32) -> io::Result<Event> {
        let event = self.next_event;
        self.next_event += 1;
        let counting = self.threads.get_mut(&tid).ok_or(Errno::SRCH)?;
        counting.insert(event);
        Ok(Event(event, self.closed.clone()))
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Nothing),
        1 => any::<prop::sample::Index>().prop_map(Step::Start),
        1 => any::<prop::sample::Index>().prop_map(Step::End),
    ]
}

proptest! {
    #[test]
    fn each_thread_is_counted_once_whenever_it_started(
        threads in 1..5i32,
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let world = RefCell::new(World {
            threads: (0..threads).map(|tid| (tid, HashSet::new())).collect(),
            next_tid: threads,
            next_event: 0,
            steps,
            closed: Rc::default(),
        });
        let list = || {
            world.borrow_mut().go_on();
            Ok(world.borrow().threads.keys().copied().collect())
        };
        let open = |tid| {
            world.borrow_mut().go_on();
            world.borrow_mut().open(tid)
        };
        let opened = settle(list, open).unwrap();
        // A process that never rests is left to the others.
        if let Some(_events) = &opened {
            while !world.borrow().steps.is_empty() {
                world.borrow_mut().go_on();
            }
            let world = world.borrow();
            let closed = world.closed.borrow();
            for (tid, events) in &world.threads {
                prop_assert_eq!(events.difference(&closed).count(), 1, "thread {}: {:?}", tid, world);
            }
        }
    }
}

#[test]
fn a_process_that_starts_threads_all_the_time_is_given_up() {
    let mut tid = 0;
    let list = || {
        tid += 1;
        Ok([tid].into())
    };
    assert!(settle(list, Ok).unwrap().is_none());
}

#[test]
fn threads_are_listed_and_counted_up_to_a_bound() {
    let own = rustix::process::getpid().as_raw_pid();
    assert!(of(own).contains(&rustix::thread::gettid().as_raw_pid()));
    assert!(of(i32::MAX).is_empty());
    let too_many = open_all(&[own].into(), usize::MAX, Ok);
    assert!(
        matches!(too_many, Err(ThreadsError::TooMany { most: 0, .. })),
        "{too_many:?}"
    );
}
