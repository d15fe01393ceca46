//! Tasks: a track for each, with its life, its polls and its wakes.
//!
//! The executor's waker is wrapped while somebody records, and passed on as it is otherwise. A future may keep either for as long as it likes,
//! because both wake the task. When another session begins to record during a life, the life begins anew, so that each session has one.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use super::AsyncSlice;
use super::lanes::Numbers;
use crate::clock;
use crate::split_mix::scatter;
use crate::track::NamedTrack;
use crate::track_event::starts;
use crate::{Category, Flow};
use crate::{trace_async, trace_category_enabled, trace_event_instant, trace_slice};

#[cfg(test)]
mod tests;

static CATEGORY: Category = Category::new("task").description("Futures as tasks: their polls and wakes");

/// The parent of the tracks of all tasks.
static TASKS: NamedTrack<'static> =
    NamedTrack::new("Tasks").description("Futures that were given a name: when they were polled");

/// The numbers of live tasks. Tracks are used again, so that a trace does not have as many as there were tasks.
static NUMBERS: Numbers<16> = Numbers::new();

pin_project! {
    /// A future with a track of its own: see [`TraceFuture::in_task`](super::TraceFuture::in_task).
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Task<F> {
        // Dropped before the life, because its destructor is part of the life.
        #[pin]
        future: F,
        name: Cow<'static, str>,
        life: Option<Box<Life>>,
    }
}

impl<F> Task<F> {
    pub(super) fn new(future: F, name: Cow<'static, str>) -> Self {
        Self {
            future,
            name,
            life: None,
        }
    }
}

impl<F: Future> Future for Task<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if trace_category_enabled!(&CATEGORY) {
            return self.poll_recorded(context);
        }
        self.project().future.poll(context)
    }
}

impl<F: Future> Task<F> {
    #[inline(never)]
    fn poll_recorded(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if this.life.as_ref().is_some_and(|life| life.starts != starts()) {
            *this.life = None;
        }
        let life = this
            .life
            .get_or_insert_with(|| Box::new(Life::new(this.name.clone())));
        let waker = life.waker(context.waker());
        let polled = {
            let _poll = life.poll();
            this.future.poll(&mut Context::from_waker(&waker))
        };
        if polled.is_ready() {
            *this.life = None;
        }
        polled
    }
}

impl<F: fmt::Debug> fmt::Debug for Task<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("future", &self.future)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The recorded part of a task.
struct Life {
    slice: AsyncSlice,
    number: u32,
    /// The number of instances that had started when it began.
    starts: u32,
    wakes: Arc<Wakes>,
    /// The waker that was wrapped last. Futures that compare wakers find the same one as long as the executor's is the same.
    waker: Option<(Arc<TaskWaker>, Waker)>,
    polls: u64,
    busy: Duration,
    longest_poll: Duration,
}

impl Life {
    fn new(name: Cow<'static, str>) -> Self {
        let starts = starts();
        let number = NUMBERS.take();
        // Makes sure that the end of the track's last slice is earlier.
        clock::finish_earlier_instructions();
        let track = track(&name, number);
        let slice = trace_async!(&CATEGORY, &*name, track = track);
        Self {
            slice,
            number,
            starts,
            wakes: Arc::new(Wakes {
                task: name,
                flow: AtomicU64::new(0),
                count: AtomicU64::new(0),
                by_itself: AtomicU64::new(0),
            }),
            waker: None,
            polls: 0,
            busy: Duration::ZERO,
            longest_poll: Duration::ZERO,
        }
    }

    /// Returns the executor's waker, wrapped.
    fn waker(&mut self, inner: &Waker) -> Waker {
        match &self.waker {
            Some((wrapped, waker)) if wrapped.inner.will_wake(inner) => waker.clone(),
            _ => {
                let wrapped = Arc::new(TaskWaker {
                    inner: inner.clone(),
                    wakes: Arc::clone(&self.wakes),
                });
                let waker = Waker::from(Arc::clone(&wrapped));
                self.waker = Some((wrapped, waker.clone()));
                waker
            }
        }
    }

    /// Begins slices on the thread's track and on the task's, which last until the result is dropped.
    fn poll(&mut self) -> impl Drop + '_ {
        let flow = match self.wakes.flow.swap(0, Ordering::Relaxed) {
            0 => next_flow(),
            flow => flow,
        };
        let name = &*self.wakes.task;
        let on_thread = trace_slice!(&CATEGORY, name, flow = flow_of(flow));
        let on_task = trace_slice!(
            &CATEGORY,
            "poll",
            track = track(name, self.number),
            terminating_flow = flow_of(flow)
        );
        Polling {
            before: POLLED
                .try_with(|polled| polled.replace(Arc::as_ptr(&self.wakes)))
                .ok(),
            began: Instant::now(),
            life: self,
            _slices: (on_task, on_thread),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let slice = std::mem::replace(&mut self.slice, AsyncSlice::none());
        slice.end_with(|event| {
            event
                .annotation("polls", self.polls)
                .annotation("busy_ns", nanoseconds(self.busy))
                .annotation("longest_poll_ns", nanoseconds(self.longest_poll))
                .annotation("wakes", self.wakes.count.load(Ordering::Relaxed))
                .annotation("self_wakes", self.wakes.by_itself.load(Ordering::Relaxed));
        });
        NUMBERS.give_back(self.number);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn track(name: &str, number: u32) -> NamedTrack<'_> {
    NamedTrack::dynamic(name).id(u64::from(number)).child_of(&TASKS)
}

thread_local! {
    /// The task that this thread polls.
    static POLLED: Cell<*const Wakes> = const { Cell::new(ptr::null()) };
}

/// A poll under way.
struct Polling<'a, S> {
    life: &'a mut Life,
    began: Instant,
    /// The task that this thread polled before; `None` if the thread-local is gone.
    before: Option<*const Wakes>,
    _slices: S,
}

impl<S> Drop for Polling<'_, S> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.life.polls += 1;
        self.life.busy += took;
        self.life.longest_poll = self.life.longest_poll.max(took);
        if let Some(before) = self.before {
            let _ = POLLED.try_with(|polled| polled.set(before));
        }
    }
}

/// The wakes of a task.
struct Wakes {
    task: Cow<'static, str>,
    /// The flow from the wakes since the last poll to the next poll; 0 if there were none.
    flow: AtomicU64,
    count: AtomicU64,
    by_itself: AtomicU64,
}

/// Returns a number for a flow, different at each call; not 0.
fn next_flow() -> u64 {
    static FLOWS: AtomicU64 = AtomicU64::new(0);
    FLOWS.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns a flow with this number, different from the flows that users number.
fn flow_of(number: u64) -> Flow {
    Flow::process_scoped(scatter(number))
}

impl Wakes {
    #[inline(never)]
    fn record(&self) {
        let new = next_flow();
        // Several wakes lead to one poll.
        let flow = match self
            .flow
            .compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => new,
            Err(earlier) => earlier,
        };
        self.count.fetch_add(1, Ordering::Relaxed);
        let by_itself = POLLED.try_with(|polled| ptr::eq(polled.get(), self)) == Ok(true);
        if by_itself {
            self.by_itself.fetch_add(1, Ordering::Relaxed);
        }
        trace_event_instant!(
            &CATEGORY,
            "wake",
            flow = flow_of(flow),
            "task" => &*self.task,
            "by_itself" => by_itself
        );
    }
}

/// Wraps the executor's waker, and records each wake.
struct TaskWaker {
    inner: Waker,
    wakes: Arc<Wakes>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the executor is told, so that the poll comes after.
        if trace_category_enabled!(&CATEGORY) {
            self.wakes.record();
        }
        self.inner.wake_by_ref();
    }
}
