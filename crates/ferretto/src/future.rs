//! Slices that are not bound to a thread: slices of futures, and of anything else that begins and ends in different places.
//!
//! Whichever thread has time polls a future, and polls other futures in between, so the future's slice fits on no thread's track.
//! [`trace_async!`](crate::trace_async) begins a slice on a track that no other slice uses at that time. It returns a value that stands for the
//! slice. The slice ends when this value is dropped, on any thread. The rest of the module builds on it:
//!
//! - [`#[trace_function]`](macro@crate::trace_function) on an `async fn` is such a slice from the first poll to the end.
//! - [`in_slice`](TraceFuture::in_slice) is the same for any future.
//! - [`polls_in`](TraceFuture::polls_in) shows when a future is polled, and on which thread.
//! - [`in_task`](TraceFuture::in_task) gives a future a track of its own, with its polls, and arrows from its wakes.
//!
//! ```
//! use ferretto::future::TraceFuture;
//! use ferretto::{trace_async, trace_function, trace_slice};
//!
//! #[trace_function("net", args(url))]
//! async fn fetch(url: &str) -> Vec<u8> {
//!     // …
//! #   url.as_bytes().to_vec()
//! }
//!
//! async fn fetch_both(first: &str, second: &str) -> (Vec<u8>, Vec<u8>) {
//!     let first = fetch(first)
//!         .polls_in(|| trace_slice!("net", "polling the first"))
//!         .in_slice(|| trace_async!("net", "first", "url" => first));
//!     (first.await, fetch(second).await)
//! }
//! ```
//!
//! # Children
//! A slice that begins while a future in another's slice is polled is a child of that slice. So the trace shows which query belongs to which request.
//! The child stands on the same line, within the other, through all awaits and on whatever threads. Children that are under way at the same time, as
//! of `join!` or `select!`, have a line each, below that of the parent.
//!
//! The executor polls a spawned future on its own, so the future's slices have no parent, unless the program gives them one with
//! [`in_current_slice`](TraceFuture::in_current_slice) or [`child_of`](TraceFuture::child_of).
//!
//! ```
//! use ferretto::future::TraceFuture;
//! use ferretto::trace_function;
//!
//! # fn spawn<F: Future + Send + 'static>(_: F) {}
//! #[trace_function("net", args(number))]
//! async fn serve(number: u64) {
//!     query("select …").await; // on the request's line, within it
//!     spawn(query("insert …").in_current_slice()); // on a line below
//! }
//!
//! #[trace_function("db", args)]
//! async fn query(sql: &str) {
//!     // …
//! }
//! # drop(serve(1));
//! ```
//!
//! A slice can outlive its parent, if a future or an [`AsyncSlice`] was moved out of it. When the parent ends, it goes on on a line of its own, under
//! its name but without its arguments.
//!
//! # How they look
//! The tracks are below one named `Async`, below that of the process. Each is named after the slice at its bottom and drawn on a line of its own,
//! with its children's lines right below it. A track is used again when its slices have ended. Each place in the code has such tracks for up to 512
//! slices at a time, and for up to 64 children of one slice. Of further slices, viewers draw the tracks with the same name as one.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ferretto_wire::Writer;
use pin_project_lite::pin_project;

use crate::trace_context::{InContext, TraceContext};
use crate::track::{Parent, Track, TrackLike};
use crate::track_event::EventContext;
use crate::track_event::private::OpenSlice;

mod current;
mod lanes;
mod task;
mod turn;

#[cfg(test)]
mod tests;

use current::Entered;
use lanes::{At, Children, ParentSlice};
#[doc(hidden)]
pub use lanes::{Lane, Lanes, Taken};
pub use task::Task;

/// Begins a slice that is bound to no thread, and returns a value that ends the slice when it is dropped, on any thread.
///
/// If the thread is polling a future in another slice, the new slice is within that one (see [`future`](crate::future#children)). Otherwise it is on
/// a track of its own. The macro takes the arguments of [`trace_slice!`](crate::trace_slice). With `track = track` the slice is on that track, and so
/// are children of it that end before it; then keep the track free of other slices. A name that is not a constant comes too late to name the track, which then has the name of the module.
///
/// ```
/// let request = ferretto::trace_async!("net", "Request", "url" => "/index.html");
/// std::thread::spawn(move || {
///     // …
///     drop(request);
/// });
/// ```
#[macro_export]
macro_rules! trace_async {
    ($($event:tt)*) => {
        $crate::__event!(@called "trace_async!" [async_slice SliceBegin] $($event)*)
    };
}

/// A slice that began and has not ended: see [`trace_async!`](crate::trace_async).
///
/// It is a track for other events, which are drawn with the slice:
///
/// ```
/// use ferretto::{trace_async, trace_event_instant};
///
/// let request = trace_async!("net", "Request");
/// trace_event_instant!("net", "Retry", track = request);
/// // A slice within that one, which has to end before it.
/// let reply = trace_async!("net", "Reply", track = request);
/// # drop(reply);
/// ```
///
/// That is the track that `track = …` chose, if any did. While nobody records the slice, it is the track of the process.
#[must_use = "the slice ends when this is dropped"]
#[derive(Debug)]
// Two words, which move in registers: functions that nobody records pass it on as a constant. `None` if nobody records the slice, and also while its
// future is polled.
pub struct AsyncSlice(Option<At>);

impl AsyncSlice {
    /// A slice that nobody records.
    #[doc(hidden)]
    #[inline(always)]
    pub const fn none() -> Self {
        Self(None)
    }

    /// A slice that began in `place`.
    #[doc(hidden)]
    #[inline(never)]
    pub fn begun(slice: OpenSlice, place: Option<Taken>) -> Self {
        let recorded = place.filter(|_| slice.is_recorded());
        Self(recorded.map(|place| place.filled(slice)))
    }

    /// A slice that began on a track that was chosen.
    #[doc(hidden)]
    #[inline(never)]
    pub fn begun_on(slice: OpenSlice, track: Option<&dyn TrackLike>) -> Self {
        let recorded = track.filter(|_| slice.is_recorded());
        Self(recorded.map(|track| Taken::on(track).filled(slice)))
    }

    /// Whether anybody records it.
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Ends the slice with the arguments that `fill` adds to the event, as [`Slice::end_with`](crate::Slice::end_with) does.
    ///
    /// If another thread ends or begins a slice on the same line at this very moment, the arguments are left out.
    pub fn end_with(mut self, fill: impl Fn(&mut EventContext<'_, '_>)) {
        if let Some(at) = self.0.take() {
            at.end(|slice| slice.end_by(fill));
        }
    }

    /// The lane that the slice is drawn on.
    fn lane(&self) -> Option<&Lane> {
        self.0.as_ref().map(|at| &*at.lane)
    }

    /// Returns a parent for slices that run beside this one.
    fn beside(&self) -> Option<ParentSlice> {
        self.0.clone().map(|at| ParentSlice {
            at,
            children: Children::Beside,
        })
    }
}

impl Drop for AsyncSlice {
    #[inline(always)]
    fn drop(&mut self) {
        // Nothing is left for the compiler to drop: this is one branch while nobody records.
        if let Some(at) = self.0.take() {
            at.end_plainly();
        }
    }
}

impl TrackLike for AsyncSlice {
    fn track(&self) -> Track {
        self.lane().map_or(Track::process(), Lane::track)
    }

    fn write_descriptor(&self, descriptor: &mut Writer) {
        match self.lane() {
            Some(lane) => lane.write_descriptor(descriptor),
            None => Track::process().write_descriptor(descriptor),
        }
    }

    fn known_parent(&self) -> Option<Parent<'_>> {
        self.lane().and_then(Lane::known_parent)
    }
}

/// Puts `future` in `slice`, which has begun. `#[trace_function]` expands to this.
#[doc(hidden)]
#[inline]
pub fn in_slice<F: Future>(slice: AsyncSlice, future: F) -> InSlice<F, fn() -> AsyncSlice> {
    InSlice {
        future,
        begin: None,
        slice,
        end: Some(()),
    }
}

/// Slices for any future.
pub trait TraceFuture: Future + Sized {
    /// Keeps the slice of [`trace_async!`](crate::trace_async) that `begin` returns from the future's first poll until the future is ready or
    /// dropped. Slices that begin while the future is polled are [children](self#children) of it.
    ///
    /// For a slice that begins right away, begin it before: `let slice = trace_async!(…); future.in_slice(move || slice)`.
    fn in_slice<B: FnOnce() -> AsyncSlice>(self, begin: B) -> InSlice<Self, B> {
        InSlice {
            future: self,
            begin: Some(begin),
            slice: AsyncSlice::none(),
            end: Some(()),
        }
    }

    /// Calls `begin` at each poll, and keeps the slice of [`trace_slice!`](crate::trace_slice) that it returns until the poll ends.
    fn polls_in<S, B: FnMut() -> S>(self, begin: B) -> PollsIn<Self, B> {
        PollsIn { future: self, begin }
    }

    /// Gives the future a track of this name, below one named `Tasks`. The track shows the task's life, from the first poll that is recorded to the
    /// end, and within it the polls. Between polls the task is idle.
    ///
    /// Each poll is also on the track of its thread, under the task's name. Arrows lead to it from each `wake`: an instant on the thread that woke
    /// the task. The end of the life has as arguments how often the task was polled (`polls`) and woken (`wakes`), how often it woke itself while it
    /// was polled (`self_wakes`), how long all polls took, and the longest (`busy_ns`, `longest_poll_ns`: a long one keeps the thread from other
    /// tasks). All are of the category `task`.
    ///
    /// ```
    /// use ferretto::future::TraceFuture;
    ///
    /// # fn spawn<F: Future + Send + 'static>(_: F) {}
    /// # async fn serve(_: u64) {}
    /// for number in 0..4 {
    ///     spawn(serve(number).in_task("connection"));
    /// }
    /// ```
    ///
    /// While somebody records, the future gets a waker of ours, which wakes the executor's. So futures that look for their executor in the waker, as
    /// those of embassy do, do not find it there.
    fn in_task(self, name: impl Into<Cow<'static, str>>) -> Task<Self> {
        Task::new(self, name.into())
    }

    /// Sets [`TraceContext::current`] to `context` while the future is polled.
    fn in_context(self, context: TraceContext) -> InContext<Self> {
        InContext::new(self, context)
    }

    /// Makes slices that begin in the future children of the current slice, wherever the future is polled. For futures that are spawned: their slices
    /// are drawn on lines of their own, below that of the slice.
    fn in_current_slice(self) -> ChildOf<Self> {
        ChildOf {
            future: self,
            parent: current::parent().as_ref().map(ParentSlice::beside),
        }
    }

    /// Makes slices that begin in the future children of `parent`, as [`in_current_slice`](Self::in_current_slice) does. The parent may end first.
    fn child_of(self, parent: &AsyncSlice) -> ChildOf<Self> {
        ChildOf {
            future: self,
            parent: parent.beside(),
        }
    }
}

impl<F: Future> TraceFuture for F {}

/// Ends the slice of a future, given its `output`.
#[doc(hidden)]
pub trait EndSlice<T> {
    fn end(self, slice: AsyncSlice, output: &T);
}

impl<T> EndSlice<T> for () {
    #[inline]
    fn end(self, slice: AsyncSlice, _: &T) {
        drop(slice);
    }
}

/// See [`InSlice::with_output`].
#[doc(hidden)]
#[derive(Debug)]
pub struct WithOutput<E>(E);

impl<T, E: Fn(&T, &mut EventContext<'_, '_>)> EndSlice<T> for WithOutput<E> {
    fn end(self, slice: AsyncSlice, output: &T) {
        slice.end_with(|event| (self.0)(output, event));
    }
}

pin_project! {
    /// A future in a slice: see [`TraceFuture::in_slice`].
    #[must_use = "futures do nothing unless they are polled"]
    pub struct InSlice<F, B, E = ()> {
        // Dropped before the slice, because its destructor is part of the slice.
        #[pin]
        future: F,
        begin: Option<B>,
        slice: AsyncSlice,
        end: Option<E>,
    }
}

impl<F: Future, B: FnOnce() -> AsyncSlice> InSlice<F, B> {
    /// Has `fill` add arguments made from the future's output to the end of the slice. If the future is dropped before it is ready, `fill` is not
    /// called.
    ///
    /// ```
    /// use ferretto::future::TraceFuture;
    /// use ferretto::trace_async;
    ///
    /// # async fn fetch() -> Vec<u8> { vec![] }
    /// let fetched = fetch()
    ///     .in_slice(|| trace_async!("net", "Fetch"))
    ///     .with_output(|bytes, event| {
    ///         event.annotation("bytes", bytes.len());
    ///     });
    /// # drop(fetched);
    /// ```
    pub fn with_output<E>(self, fill: E) -> InSlice<F, B, WithOutput<E>>
    where
        E: Fn(&F::Output, &mut EventContext<'_, '_>),
    {
        InSlice {
            future: self.future,
            begin: self.begin,
            slice: self.slice,
            end: Some(WithOutput(fill)),
        }
    }
}

impl<F: Future, B: FnOnce() -> AsyncSlice, E: EndSlice<F::Output>> Future for InSlice<F, B, E> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if let Some(begin) = this.begin.take() {
            *this.slice = begin();
        }
        let polled = {
            let _entered = Entered::new(&mut this.slice.0);
            this.future.poll(context)
        };
        if let Poll::Ready(output) = &polled
            && let Some(at) = this.slice.0.take()
            && let Some(end) = this.end.take()
        {
            end.end(AsyncSlice(Some(at)), output);
        }
        polled
    }
}

impl<F: fmt::Debug, B, E> fmt::Debug for InSlice<F, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InSlice")
            .field("future", &self.future)
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// A future whose slices are children of a slice that it is not polled in: see [`TraceFuture::in_current_slice`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct ChildOf<F> {
        #[pin]
        future: F,
        parent: Option<ParentSlice>,
    }
}

impl<F: Future> Future for ChildOf<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = Entered::new(this.parent);
        this.future.poll(context)
    }
}

pin_project! {
    /// A future whose polls are slices: see [`TraceFuture::polls_in`].
    #[must_use = "futures do nothing unless they are polled"]
    pub struct PollsIn<F, B> {
        #[pin]
        future: F,
        begin: B,
    }
}

impl<F: Future, B: FnMut() -> S, S> Future for PollsIn<F, B> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _slice = (this.begin)();
        this.future.poll(context)
    }
}

impl<F: fmt::Debug, B> fmt::Debug for PollsIn<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollsIn")
            .field("future", &self.future)
            .finish_non_exhaustive()
    }
}
