//! Spans and events of the crate `tracing` in Perfetto traces.
//!
//! ```no_run
//! use tracing_subscriber::prelude::*;
//!
//! // Records for the tracing service of this machine, whenever it has a session for this process.
//! ferretto::initialize(ferretto::Options::system());
//! tracing_subscriber::registry().with(ferretto_tracing::layer()).init();
//!
//! let _span = tracing::info_span!("render", frame = 7).entered();
//! tracing::info!(triangles = 1_000_000, "drawn");
//! ```
//!
//! # Spans and events in traces
//!
//! | `tracing` | Perfetto |
//! |---|---|
//! | a span, while a thread is in it | a slice on the thread's track |
//! | a span that is entered more than once, as those of futures are | besides, one slice from when it is made until it is closed, on a track of the span's name; both are coloured alike |
//! | an event | an instant on the thread's track, by the name of its message, or by its own if it was given one; and a line of the trace's log |
//! | fields | arguments: `debug.NAME` in SQL; those recorded later too |
//! | the target | the category |
//! | the level | a tag, in lower case |
//! | `follows_from` | an arrow to where the span is entered next |
//! | fields `counter.NAME` and `gauge.NAME` of an event | a sample of the counter `NAME` of the process |
//! | a field `monotonic_counter.NAME` of an event | is added to a sum since the process started recording, which is a sample of the counter `NAME` |
//! | a record of the crate `log`, through `tracing-log` | as an event of its own target |
//!
//! An event that has only samples is no instant. Spans that enclose one another and are entered more than once are drawn above one another, like
//! calls, as long as one of them at a time is at work.
//!
//! # What is recorded
//!
//! A session's config chooses by categories and tags, so by targets and levels:
//!
//! ```text
//! data_sources { config { name: "track_event" track_event_config {
//!     enabled_categories: "my_crate*"
//!     disabled_categories: "*"
//! } } }
//! ```
//!
//! Where a config says nothing of tags, Perfetto leaves out everything tagged `debug`: the levels DEBUG and TRACE (which is tagged `trace` too).
//! `enabled_tags: "debug"` records both; to have DEBUG without TRACE, add `disabled_tags: "trace"`.
//!
//! While no session records a call site, this layer turns it off: `tracing` keeps that in the call site itself. The layer is a filter for itself
//! alone, and does not change the events and spans of other layers. To filter further, use `with_filter`, though then `tracing` asks that filter for
//! each span, also while nothing is recorded.
//!
//! # Notes
//!
//! Whether spans of a call site are entered more than once is learned from the spans themselves: see [`SpanStyle`], which also says how to choose.
//!
//! A guard of [`Span::enter`](https://docs.rs/tracing/latest/tracing/struct.Span.html#in-asynchronous-code) that is held over an `await` makes spans
//! overlap, which cannot be drawn on one thread: of two, the one entered later is cut in two where the earlier one is exited.
//!
//! One process may have several subscribers with a layer each, but a second layer of this kind on one subscriber finds its spans taken.

#![deny(unsafe_code)]

mod counters;
mod fields;
mod fork;
mod interest;
mod lanes;
mod layer;
mod life;
mod recorder;
mod sites;
mod thread;

pub use layer::{TrackEventLayer, layer};

/// How spans are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpanStyle {
    /// Slices show where spans run and, for spans that are entered more than once, how long they take.
    ///
    /// A second slice lasts for the whole life of such a span. If the span of a call site that was closed last had been entered more than once, the
    /// next one's second slice begins when the span is made, otherwise when it is entered for the second time: with the right time, but where a trace
    /// is written into a file while it is recorded, readers may have passed it by then. And a span without fields of a call site that has made only
    /// simple ones so far never has a second slice.
    #[default]
    Auto,
    /// Only where they run: slices on the tracks of threads.
    Threads,
    /// Only how long they take: one slice from when the span is made until it is closed, on tracks by the names of spans.
    Lives,
}
