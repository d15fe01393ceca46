//! Track events: slices, instants, counters and states, by category.
//!
//! [`trace_event!`](crate::trace_event) records a slice to the end of the enclosing block, [`trace_slice!`](crate::trace_slice) one that ends with
//! a value, [`trace_event_begin!`](crate::trace_event_begin) and [`trace_event_end!`](crate::trace_event_end) one that begins and ends where they are,
//! [`trace_event_instant!`](crate::trace_event_instant) a moment, [`trace_counter!`](crate::trace_counter) a value,
//! [`trace_state!`](crate::trace_state) a state. [`trace_function`](macro@crate::trace_function) makes a slice of a function, and
//! [`future`](crate::future) slices of what is asynchronous.
//!
//! Macros of events take a category first, then a name, then in any order:
//!
//! | | |
//! |---|---|
//! | `"name" => value` | an argument ([`DebugAnnotation`](crate::debug_annotation::DebugAnnotation)) |
//! | `track = track` | the track that the event is on, if not the thread's ([`crate::track`]) |
//! | `timestamp = time` | when it happened, if not now ([`Timestamp`], or nanoseconds of trace time) |
//! | `flow = flow`, `terminating_flow = flow` | arrows between events ([`Flow`], or a number) |
//! | `correlation_id = id` | a number or text that events which belong together share |
//! | <code>&#124;event&#124; …</code> | anything else ([`EventContext`]) |
//!
//! Nothing but the category is evaluated while nobody records the event.

// How an event comes into a trace: the macro (`macros.rs`) looks at its call site's mask (`call_site.rs`), which is 0 unless an instance
// listens. If one does, the thread's sequence for it (`thread.rs`, `sequence.rs`) writes the packet: in the usual case by storing what
// the call site has prepared, otherwise by encoding it into the chunk (`emit.rs`). Who listens is decided by `registry.rs`, whenever an
// instance starts or stops.

mod call_site;
mod category;
mod config;
mod dynamic_site;
mod emit;
mod event;
mod interning;
mod local_strings;
mod macros;
mod registry;
mod sequence;
mod source;
#[cfg(test)]
pub(crate) mod tests;
mod thread;
mod wire;

pub use category::{Category, DynamicCategory};
pub use emit::{Slice, StaticName};
pub use event::{CounterValue, EventContext, Flow, LogPriority};
pub(crate) use registry::{hold_for_fork, release_after_fork};
pub use sequence::Timestamp;
pub(crate) use source::register;

/// By which configs know this data source.
pub(crate) const DATA_SOURCE_NAME: &str = "track_event";

/// What the macros expand to. No part of the interface.
#[doc(hidden)]
pub mod private {
    pub use super::call_site::{CallSite, EventCategory};
    pub use super::dynamic_site::{
        Begun, EncodedAnnotations, ForkLocks, KeptAnnotations, anyone_listens, hold_over_forks,
        observe_sessions,
    };
    pub use super::emit::{EventName, IntoEventName, OpenSlice, Parts, emit, emit_plain};
    pub use super::event::{Annotation, CorrelationField, Fill, FlowField, Sample, TerminatingFlowField};
    pub use super::sequence::Timestamp;
    pub use super::wire::EventType;
    pub use std::option::Option::{None, Some};
}

/// Tells services of categories before their first events, with what there is to know of them.
///
/// Without this a category is known once an event of it could have happened.
pub fn register_categories(categories: &[&'static Category]) {
    registry::register_categories(categories);
}

/// Keeps categories whose names begin with one of these from services: they can be recorded, but are not listed.
pub fn add_test_category_prefixes(prefixes: &[&'static str]) {
    registry::add_test_category_prefixes(prefixes);
}

/// Has this thread's sequences tell what tracks that they told of before are now. Those of other threads do so with their next events.
pub(crate) fn describe_changed_tracks() {
    thread::with_existing(sequence::ThreadState::describe_changed_tracks);
}

/// How many events were not recorded because they happened while another was being written on the same thread: from a
/// `Display` of the user's, say.
pub fn nested_events() -> u64 {
    thread::nested_events()
}
