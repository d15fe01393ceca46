//! The identity of a request across processes, which joins their slices: W3C's Trace Context.
//!
//! A [`TraceContext`] is the value of the header `traceparent` (<https://www.w3.org/TR/trace-context/>). Sender and receiver each give their slice
//! the flow of this value, and in a trace of both processes an arrow leads from one slice to the other.
//!
//! ```
//! use ferretto::{TraceContext, trace_function};
//!
//! // The sender: one slice for each request, with an id of its own.
//! fn call(url: &str) {
//!     send(url, &TraceContext::outgoing());
//! }
//!
//! #[trace_function("net", args(url), flow = context)]
//! fn send(url: &str, context: &TraceContext) {
//!     let header = context.to_string();
//!     assert_eq!(header.len(), 55);
//!     // … traceparent: {header} …
//! }
//!
//! // The receiver.
//! fn receive(header: &str) {
//!     // A header that is wrong is as none: another trace begins.
//!     let context: TraceContext = header.parse().unwrap_or_else(|_| TraceContext::start());
//!     // Functions called here belong to the same trace, until the value is dropped.
//!     let _entered = context.clone().enter();
//!     serve(&context);
//! }
//!
//! #[trace_function("net", terminating_flow = context)]
//! fn serve(context: &TraceContext) {
//!     call("http://other");
//! }
//! # receive("");
//! ```
//!
//! A thread that polls futures works for many requests. So asynchronous code names the future that works for one, with
//! [`in_context`](crate::future::TraceFuture::in_context):
//!
//! ```
//! use ferretto::future::TraceFuture;
//! use ferretto::{TraceContext, trace_function};
//!
//! async fn receive(header: &str) {
//!     let context: TraceContext = header.parse().unwrap_or_else(|_| TraceContext::start());
//!     serve(&context).in_context(context.clone()).await;
//! }
//!
//! #[trace_function("net", terminating_flow = context)]
//! async fn serve(context: &TraceContext) {
//!     // …
//! }
//! # drop(receive(""));
//! ```
//!
//! # The header `tracestate`
//!
//! Others on the way may send data of their own with the context, in a second header. Receivers hand them over with
//! [`with_tracestate`](TraceContext::with_tracestate). The contexts of all requests made for it have them too, and senders pass them on:
//!
//! ```
//! use ferretto::TraceContext;
//!
//! # let (traceparent, tracestate) = ("", "vendor=1");
//! // The receiver.
//! let context: TraceContext = traceparent.parse().unwrap_or_else(|_| TraceContext::start());
//! let _entered = context.with_tracestate(tracestate).enter();
//! // The sender.
//! let context = TraceContext::outgoing();
//! let traceparent = context.to_string();
//! if let Some(tracestate) = context.tracestate() {
//!     // … tracestate: {tracestate} …
//! #   assert_eq!(tracestate, "vendor=1");
//! }
//! ```
//!
//! All this is about the program's requests, not about its recording. So it works the same where [nothing is
//! recorded](crate#where-nothing-is-recorded).

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::num::{NonZeroU64, NonZeroU128};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::Flow;
use crate::split_mix::{self, scatter};
use crate::track::{Track, TrackLike};

mod current;
mod state;
#[cfg(test)]
mod tests;

pub use current::EnteredContext;

/// Bytes in a header of version 00, the only one so far.
const LEN: usize = 55;
/// The flags that the standard defines (level 2): sampled, and that the trace's id is random. Others are not passed on.
const KNOWN_FLAGS: u8 = 0b11;
const SAMPLED: u8 = 0b01;

/// A request in a distributed trace: see the [module's documentation](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: NonZeroU128,
    parent_id: NonZeroU64,
    flags: u8,
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// The first request of a new trace, which is sampled.
    pub fn start() -> Self {
        let trace_id = u128::from(random().get()) << 64 | u128::from(random().get());
        Self {
            // Neither half is 0.
            trace_id: NonZeroU128::new(trace_id).unwrap_or(NonZeroU128::MIN),
            parent_id: random(),
            flags: SAMPLED,
            state: None,
        }
    }

    /// Another request of the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            parent_id: random(),
            ..self.clone()
        }
    }

    /// The same request with this value of the header `tracestate`, which replaces the one before. Several such headers are one, with commas between
    /// their values.
    ///
    /// The value is passed on as it is, if the standard allows it; a value that it forbids is left out. Of more than 512 bytes, members of the list
    /// are left out from its end, those of more than 128 bytes first.
    #[must_use]
    pub fn with_tracestate(self, header: &str) -> Self {
        Self {
            state: state::passed_on(header),
            ..self
        }
    }

    /// The value of the header `tracestate` to send beside this one, if there is any.
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Makes this the [current](Self::current) context of the thread until the returned value is dropped. Then the one before is current again.
    ///
    /// Keep it in a variable with a name: with `let _ = …` it ends at once. It must not be kept over an `await`, because the thread polls other
    /// futures meanwhile; [`in_context`](crate::future::TraceFuture::in_context) is for those.
    ///
    /// ```
    /// use ferretto::TraceContext;
    ///
    /// let context = TraceContext::start();
    /// let entered = context.clone().enter();
    /// assert_eq!(TraceContext::current(), Some(context));
    /// drop(entered);
    /// assert_eq!(TraceContext::current(), None);
    /// ```
    pub fn enter(self) -> EnteredContext {
        EnteredContext::new(self)
    }

    /// The request that the thread is working for: the context that it has [entered](Self::enter) last, or that of the future in
    /// [`in_context`](crate::future::TraceFuture::in_context) that it is polling.
    pub fn current() -> Option<Self> {
        current::current()
    }

    /// Returns the context to send with a request: a child of the current one, or the start of a trace.
    pub fn outgoing() -> Self {
        Self::current().map_or_else(Self::start, |current| current.child())
    }

    /// The number of the trace, 32 digits in hexadecimal; never 0.
    pub const fn trace_id(&self) -> u128 {
        self.trace_id.get()
    }

    /// The number of the request, 16 digits in hexadecimal; never 0. The receiver calls it its parent.
    pub const fn parent_id(&self) -> u64 {
        self.parent_id.get()
    }

    /// Whether the sender may have recorded the request. Recording here does not depend on it.
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The flow from the sender's slice to the receiver's: the same in both processes.
    pub const fn flow(&self) -> Flow {
        let trace_id = self.trace_id.get();
        let trace = scatter(trace_id as u64 ^ scatter((trace_id >> 64) as u64));
        Flow::global(scatter(self.parent_id.get() ^ trace))
    }
}

impl From<TraceContext> for Flow {
    fn from(context: TraceContext) -> Flow {
        context.flow()
    }
}

impl From<&TraceContext> for Flow {
    fn from(context: &TraceContext) -> Flow {
        context.flow()
    }
}

/// The header's value: `00-` trace `-` request `-` flags, 55 bytes.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace_id, self.parent_id, self.flags
        )
    }
}

/// Parses the header's value, without spaces around it.
///
/// From headers of later versions it takes the part that version 00 has, as the standard asks.
impl FromStr for TraceContext {
    type Err = TraceContextError;

    fn from_str(header: &str) -> Result<Self, TraceContextError> {
        let wrong = |what| Err(TraceContextError(what));
        let header = header.as_bytes();
        if header.len() < LEN {
            return wrong("it is shorter than 55 bytes");
        }
        if [header[2], header[35], header[52]] != *b"---" {
            return wrong("it is not four numbers of 2, 32, 16 and 2 digits with `-` between them");
        }
        let numbers = (
            hexadecimal(&header[..2]),
            hexadecimal(&header[3..35]),
            hexadecimal(&header[36..52]),
            hexadecimal(&header[53..LEN]),
        );
        let (Some(version), Some(trace_id), Some(parent_id), Some(flags)) = numbers else {
            return wrong("a number has other digits than 0 to 9 and a to f");
        };
        match (version, &header[LEN..]) {
            (0xff, _) => return wrong("there is no version ff"),
            (_, []) => {}
            (0, _) => return wrong("it is longer than 55 bytes, which version 00 is not"),
            (_, [b'-', ..]) => {}
            _ => return wrong("the flags have more than two digits"),
        }
        let Some(trace_id) = NonZeroU128::new(trace_id) else {
            return wrong("the number of the trace is 0");
        };
        // It has 16 digits.
        let Some(parent_id) = NonZeroU64::new(parent_id as u64) else {
            return wrong("the number of the parent is 0");
        };
        // Of a later version only the sampled flag is known.
        let known = if version == 0 { KNOWN_FLAGS } else { SAMPLED };
        Ok(Self {
            trace_id,
            parent_id,
            flags: flags as u8 & known,
            state: None,
        })
    }
}

/// Parses at most 32 digits in lower case.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, &digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// Why a header is no [`TraceContext`]. The standard tells the receiver to begin another trace then ([`TraceContext::start`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContextError(&'static str);

impl fmt::Display for TraceContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read the header `traceparent`: {}", self.0)
    }
}

impl Error for TraceContextError {}

/// Returns a number that most likely no other process on any machine has, by [`split_mix`].
fn random() -> NonZeroU64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let seed = *SEED.get_or_init(split_mix::seed);
    loop {
        let steps = STEPS.fetch_add(split_mix::STEP, Ordering::Relaxed);
        // A forked child has the same seed and steps, but another uuid.
        let number = scatter(seed.wrapping_add(steps) ^ scatter(Track::process().uuid()));
        if let Some(number) = NonZeroU64::new(number) {
            return number;
        }
    }
}

pin_project! {
    /// A future that works for a request: see [`in_context`](crate::future::TraceFuture::in_context).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct InContext<F> {
        #[pin]
        future: F,
        context: TraceContext,
    }
}

impl<F> InContext<F> {
    pub(crate) fn new(future: F, context: TraceContext) -> Self {
        Self { future, context }
    }
}

impl<F: Future> Future for InContext<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.context.clone().enter();
        this.future.poll(context)
    }
}
