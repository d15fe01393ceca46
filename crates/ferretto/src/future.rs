//! Slices that are not bound to a thread: those of futures, and of whatever else begins here and ends there.
//!
//! A future is polled by whatever thread has time, and others are polled in between, so its slice can be on no thread's track.
//! [`trace_async!`](crate::trace_async) begins a slice on a track that nobody else has at that time; it ends when the value is
//! dropped that stands for it, wherever that is. From that all the rest follows:
//!
//! - [`#[trace_function]`](macro@crate::trace_function) on an `async fn` is such a slice from the first poll to the end.
//! - [`in_slice`](TraceFuture::in_slice) is the same for any future.
//! - [`polls_in`](TraceFuture::polls_in) shows when a future has a thread, and which.
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
//! # How they look
//! The tracks are below one named `Async`, below that of the process. Each is named after its slices, and viewers draw tracks of
//! one name as one, with slices that overlap below each other. A track is used again when its slice has ended.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ferretto_proto::write::TrackDescriptor;
use pin_project_lite::pin_project;

use crate::track::{Parent, Track, TrackLike};
use crate::track_event::Slice;
use crate::track_event::private::OpenSlice;

mod lanes;

#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use lanes::{Lane, Lanes};

/// Begins a slice on a track of its own; the value ends it when it is dropped, on whatever thread.
///
/// Takes what [`trace_slice!`](crate::trace_slice) takes. With `track = track` the slice is on that one, which is then for you to keep
/// free of others. If the name is not a literal, it is not known in time to be that of the track, which is named after
/// the module.
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
    // What is allowed here is for tracks that are given: they come after the one here and take its place.
    ($category:expr, $name:literal $(, $($rest:tt)*)?) => {{
        #[allow(dead_code)]
        static LANES: $crate::future::Lanes = $crate::future::Lanes::new($name);
        #[allow(unused_mut)]
        let mut lane = $crate::private::None;
        let slice = $crate::trace_slice!($category, $name, track = LANES.take_for(&mut lane) $(, $($rest)*)?);
        $crate::future::AsyncSlice::new(slice, lane)
    }};
    ($category:expr, $name:expr $(, $($rest:tt)*)?) => {{
        #[allow(dead_code)]
        static LANES: $crate::future::Lanes = $crate::future::Lanes::new(::core::module_path!());
        #[allow(unused_mut)]
        let mut lane = $crate::private::None;
        let slice = $crate::trace_slice!($category, $name, track = LANES.take_for(&mut lane) $(, $($rest)*)?);
        $crate::future::AsyncSlice::new(slice, lane)
    }};
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
/// While nobody records it, and with a track that was chosen, that is the track of the process.
#[must_use = "the slice ends when this is dropped"]
#[derive(Debug)]
pub struct AsyncSlice {
    // Dropped in this order: the lane may be another's once it is free.
    slice: OpenSlice,
    lane: Option<Lane>,
}

impl AsyncSlice {
    #[doc(hidden)]
    #[inline]
    pub fn new(slice: Slice, lane: Option<Lane>) -> Self {
        Self {
            slice: slice.into_open(),
            lane,
        }
    }

    /// Whether anybody records it.
    pub fn is_recorded(&self) -> bool {
        self.slice.is_recorded()
    }
}

impl TrackLike for AsyncSlice {
    fn track(&self) -> Track {
        self.lane.as_ref().map_or(Track::process(), Lane::track)
    }

    fn write_descriptor(&self, descriptor: &mut TrackDescriptor<'_>) {
        match &self.lane {
            Some(lane) => lane.write_descriptor(descriptor),
            None => Track::process().write_descriptor(descriptor),
        }
    }

    fn known_parent(&self) -> Option<Parent<'_>> {
        self.lane.as_ref().and_then(Lane::known_parent)
    }
}

/// Slices for any future.
pub trait TraceFuture: Future + Sized {
    /// Keeps what `begin` returns, a slice of [`trace_async!`](crate::trace_async), from when the future is first polled until it is ready
    /// or dropped.
    ///
    /// For a slice that begins right away, begin it before: `let slice = trace_async!(…); future.in_slice(move || slice)`.
    fn in_slice<S, B: FnOnce() -> S>(self, begin: B) -> InSlice<Self, B, S> {
        InSlice {
            future: self,
            begin: Some(begin),
            slice: None,
        }
    }

    /// Keeps what `begin` returns, a slice of [`trace_slice!`](crate::trace_slice), while the future is polled, each time.
    fn polls_in<S, B: FnMut() -> S>(self, begin: B) -> PollsIn<Self, B> {
        PollsIn { future: self, begin }
    }
}

impl<F: Future> TraceFuture for F {}

pin_project! {
    /// A future in a slice: see [`TraceFuture::in_slice`].
    #[must_use = "futures do nothing unless they are polled"]
    pub struct InSlice<F, B, S> {
        // Dropped before the slice, for what that does is part of it.
        #[pin]
        future: F,
        begin: Option<B>,
        slice: Option<S>,
    }
}

impl<F: Future, B: FnOnce() -> S, S> Future for InSlice<F, B, S> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if let Some(begin) = this.begin.take() {
            *this.slice = Some(begin());
        }
        let polled = this.future.poll(context);
        if polled.is_ready() {
            *this.slice = None;
        }
        polled
    }
}

impl<F: fmt::Debug, B, S> fmt::Debug for InSlice<F, B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InSlice")
            .field("future", &self.future)
            .finish_non_exhaustive()
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
