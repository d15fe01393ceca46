//! A writer that writes packets and an arbiter that takes the chunk, in all orders. Loom does not know the asymmetric barrier, so both sides use a fence.
//! Loom reports if both touch the chunk at once.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, fence};
use loom::sync::{Arc, Mutex};

/// The barrier on the writer's side.
trait Light: 'static {
    fn pass();
}

struct Fence;

impl Light for Fence {
    fn pass() {
        fence(Ordering::SeqCst);
    }
}

/// No barrier.
struct NoFence;

impl Light for NoFence {
    fn pass() {}
}

struct Modelled<L> {
    word: AtomicU32,
    light: std::marker::PhantomData<fn() -> L>,
}

impl<L> Default for Modelled<L> {
    fn default() -> Self {
        Self {
            word: AtomicU32::new(0),
            light: std::marker::PhantomData,
        }
    }
}

impl<L: Light> Word for Modelled<L> {
    fn load(&self, ordering: Ordering) -> u32 {
        self.word.load(ordering)
    }

    fn store(&self, value: u32, ordering: Ordering) {
        self.word.store(value, ordering);
    }

    fn light_barrier() {
        L::pass();
    }
}

/// Like the real `Holder`, but a chunk is a count of packets.
struct Holder<L> {
    turns: Turns<Modelled<L>>,
    chunk: std::sync::Mutex<Option<u32>>,
    /// Accessed together with the chunk. Loom panics if another thread accesses it at the same time.
    touched: UnsafeCell<()>,
    arbiter: Mutex<()>,
}

impl<L: Light> Holder<L> {
    /// Writes a packet; returns whether there was a chunk and it was the writer's turn.
    fn write(&self) -> bool {
        if !self.turns.begin() {
            return false;
        }
        let packets = self.change(|chunk| {
            *chunk = chunk.map(|packets| packets + 1);
            *chunk
        });
        self.turns.end(packets.unwrap_or(0));
        packets.is_some()
    }

    /// Takes the chunk, and puts another one there.
    fn replace(&self) -> Option<u32> {
        let lock = (!self.turns.begin()).then(|| self.arbiter.lock().expect("no panic"));
        let taken = self.change(|chunk| chunk.replace(1));
        self.turns.end(1);
        drop(lock);
        taken
    }

    fn take_back(&self) -> Option<u32> {
        let _lock = self.arbiter.lock().expect("no panic");
        self.turns.want();
        fence(Ordering::SeqCst);
        let taken = if self.turns.is_granted() {
            self.change(Option::take)
        } else {
            None
        };
        self.turns.done();
        taken
    }

    fn change<R>(&self, change: impl FnOnce(&mut Option<u32>) -> R) -> R {
        self.touched
            .with_mut(|_| change(&mut self.chunk.lock().expect("no panic")))
    }
}

/// Three packets of a writer, and an arbiter that takes back twice: how many packets each has in the end.
fn model<L: Light>() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let holder = Arc::new(Holder::<L> {
            turns: Turns::default(),
            chunk: std::sync::Mutex::new(Some(0)),
            touched: UnsafeCell::new(()),
            arbiter: Mutex::new(()),
        });
        let arbiter = loom::thread::spawn({
            let holder = holder.clone();
            move || holder.take_back().unwrap_or(0) + holder.take_back().unwrap_or(0)
        });
        let mut returned = 0;
        for _ in 0..3 {
            if !holder.write() {
                returned += holder.replace().unwrap_or(0);
            }
        }
        let taken = arbiter.join().expect("an arbiter");
        let left = holder.replace().unwrap_or(0);
        assert_eq!(taken + returned + left, 3, "each packet is in one chunk");
    });
}

#[test]
fn in_any_order_one_side_at_a_time_uses_a_chunk() {
    model::<Fence>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn in_any_order_the_model_finds_a_missing_barrier() {
    model::<NoFence>();
}
