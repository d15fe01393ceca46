//! A thread's state for each instance that it writes for: a sequence of packets, and the data source's own state.
//!
//! A thread-local holds the states by the number of the data source and the slot of the instance. A state ends with the thread, or when the thread
//! writes again and finds that the instance has ended. `trace` takes the states out of the thread-local while it uses them, so that nothing is
//! borrowed while the application's code runs.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use ferretto_client::trace_writer::TraceWriter;

use super::{DataSource, DataSourceHandle, PacketWriter, TraceContext};
use crate::muxer;
use crate::options::LogLevel;
use crate::process_hooks;
use crate::source::{MAX_INSTANCES, Slot, slots};
use crate::track_event;

thread_local! {
    static STATES: RefCell<States> = const { RefCell::new(States::Idle(Vec::new())) };
}

/// All states of a thread, by the number of the data source.
enum States {
    Idle(Vec<Option<Box<dyn Any>>>),
    /// The thread is writing. Packets that it traces meanwhile are not recorded.
    Writing,
}

/// Returns the number for a new data source.
pub(super) fn next_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A thread's state for the instances of a data source.
type OfSource<D> = [Option<OfInstance<D>>; MAX_INSTANCES];

/// A thread's state for one instance.
struct OfInstance<D: DataSource> {
    serial: u32,
    /// `Some` until this is dropped.
    writer: Option<TraceWriter>,
    incremental: D::Incremental,
    thread: D::Thread,
    instance: Arc<D>,
    /// The count of clears when the incremental state began.
    clears: u32,
    losses: u64,
    /// The process in which it was made: see [`process_hooks::generation`].
    generation: u32,
}

impl<D: DataSource> Drop for OfInstance<D> {
    fn drop(&mut self) {
        if self.generation != process_hooks::generation() {
            // The writer's memory belongs to the process which this one was forked from.
            std::mem::forget(self.writer.take());
        }
        // Dropping the writer takes locks, under which the allocator may be called, and an event of the allocator would wait for them.
        let _confined = track_event::confine();
        drop(self.writer.take());
    }
}

/// All of a thread's states, while it writes.
struct Taken(Vec<Option<Box<dyn Any>>>);

impl Taken {
    /// Takes this thread's states. `None` while the thread writes, or after its thread-locals were destroyed.
    fn take() -> Option<Taken> {
        let taken = STATES.try_with(|states| {
            let mut states = states.borrow_mut();
            match std::mem::replace(&mut *states, States::Writing) {
                States::Idle(all) => Some(Taken(all)),
                States::Writing => None,
            }
        });
        taken.ok().flatten()
    }

    fn of<D: DataSource>(&mut self, index: usize) -> Option<&mut OfSource<D>> {
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index]
            .get_or_insert_with(|| Box::new(<OfSource<D>>::default()))
            .downcast_mut()
    }
}

impl Drop for Taken {
    /// Puts the states back, also when the application's code has panicked.
    fn drop(&mut self) {
        let all = std::mem::take(&mut self.0);
        // A thread that has ended meanwhile needs them no more.
        let _ = STATES.try_with(|states| *states.borrow_mut() = States::Idle(all));
    }
}

/// Calls `write` for each active instance.
#[cold]
pub(super) fn trace<D: DataSource>(
    handle: &'static DataSourceHandle<D>,
    active: u32,
    mut write: impl FnMut(&mut TraceContext<'_, D>),
) {
    // The states are in a thread-local that a signal handler may find in use, and the application's code may allocate.
    if track_event::is_confined() {
        return track_event::count_unrecorded();
    }
    // A thread that sees the bit of an active instance also sees the instance.
    fence(Ordering::Acquire);
    let (Some(registration), Some(mut taken)) = (handle.registered.get(), Taken::take()) else {
        return;
    };
    let Some(states) = taken.of::<D>(registration.index) else {
        return;
    };
    for slot in slots() {
        let state = &mut states[slot.index()];
        if active & slot.bit() == 0 {
            // If the instance has ended, this returns its writer.
            *state = None;
            continue;
        }
        if let Some(state) = renew(handle, slot, state) {
            let Some(writer) = &mut state.writer else { continue };
            write(&mut TraceContext {
                writer: PacketWriter(writer),
                incremental: &mut state.incremental,
                thread: &mut state.thread,
                instance: &state.instance,
            });
        }
    }
}

/// Returns the state of the slot's current instance, made or updated if need be.
fn renew<'s, D: DataSource>(
    handle: &'static DataSourceHandle<D>,
    slot: Slot,
    state: &'s mut Option<OfInstance<D>>,
) -> Option<&'s mut OfInstance<D>> {
    let place = &handle.slots[slot.index()];
    let serial = place.serial.load(Ordering::Relaxed);
    let clears = place.clears.load(Ordering::Relaxed);
    if state.as_ref().is_none_or(|state| state.serial != serial) {
        // Returns the writer of the ended instance before a new one is made.
        *state = None;
        let current = place.current()?;
        let made = {
            // As in `drop`.
            let _confined = track_event::confine();
            current.output?.create_trace_writer()
        };
        match made {
            Ok(writer) => {
                *state = Some(OfInstance {
                    serial: current.serial,
                    losses: writer.losses(),
                    writer: Some(writer),
                    incremental: D::Incremental::default(),
                    thread: D::Thread::default(),
                    instance: current.instance,
                    clears,
                    generation: process_hooks::generation(),
                });
            }
            Err(error) => {
                if !place.complained.swap(true, Ordering::Relaxed) {
                    let line = format!("the data source {:?} loses packets: {error}", D::NAME);
                    muxer::log(LogLevel::Warning, &line);
                }
            }
        }
        return state.as_mut();
    }
    let state = state.as_mut()?;
    let losses = state.writer.as_ref()?.losses();
    if state.clears != clears || state.losses != losses {
        // Earlier packets may be lost, and with them the state that readers have.
        (state.clears, state.losses) = (clears, losses);
        state.incremental = D::Incremental::default();
    }
    Some(state)
}

/// Releases this thread's state for an instance that has ended.
pub(super) fn release<D: DataSource>(handle: &'static DataSourceHandle<D>, slot: Slot) {
    // If the thread is writing, its next use does it.
    if let (Some(registration), Some(mut taken)) = (handle.registered.get(), Taken::take())
        && let Some(states) = taken.of::<D>(registration.index)
    {
        states[slot.index()] = None;
    }
}
