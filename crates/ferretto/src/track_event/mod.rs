//! Track events: slices, instants, counters and states, by category.
//!
//! How an event comes into a trace: the macro ([`macros`]) looks at its call site's mask ([`call_site`]), which is 0 unless an
//! instance listens. If one does, the thread's sequence for it ([`thread`], [`sequence`]) writes the packet: in the usual case
//! by storing what the call site has prepared ([`emit`], [`ferretto_client::trace_writer::PreparedPacket`]), otherwise by encoding it
//! into the chunk. Who listens is decided by [`registry`], whenever an instance starts or stops.

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
    pub use super::dynamic_site::{Begun, EncodedAnnotations, anyone_listens, observe_sessions};
    pub use super::emit::{EventName, IntoEventName, Parts, Slice, emit, emit_plain};
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
