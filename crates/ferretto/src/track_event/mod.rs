//! Track events: slices, instants, counters and states, by category.
//!
//! [`trace_event!`](crate::trace_event) records a slice to the end of the enclosing block, [`trace_slice!`](crate::trace_slice) one that ends with a
//! value, [`trace_event_begin!`](crate::trace_event_begin) and [`trace_event_end!`](crate::trace_event_end) one that begins and ends where they are,
//! [`trace_event_instant!`](crate::trace_event_instant) a moment, [`trace_counter!`](crate::trace_counter) a value,
//! [`trace_state!`](crate::trace_state) a state. [`trace_function`](macro@crate::trace_function) makes a slice of a function, and
//! [`future`](crate::future) makes slices of asynchronous code.
//!
//! Macros of events take a category first, then a name. A name that is part of the program costs two bytes in the trace; any other name costs its
//! length in each event:
//!
//! | name | |
//! |---|---|
//! | `"name"`, `concat!(…)`, `stringify!(…)`, `module_path!()` | part of the program |
//! | `NAME` | a constant or a `static` (of type `&'static str`), if it is written in capitals; variables written so are refused |
//! | `const { … }` | whatever can be computed when the program is compiled |
//! | `module::NAME`, `Self::NAME` | remembered by its address, as a [`StaticName`] |
//! | `name`, `format!(…)`, `&event.name`, … | any string, made when the event happens |
//!
//! Then follow in any order:
//!
//! | | |
//! |---|---|
//! | `"name" => value` | an argument ([`DebugAnnotation`](crate::debug_annotation::DebugAnnotation)); in SQL `extract_arg(arg_set_id, 'debug.name')` |
//! | `track = track` | the track that the event is on, if not the thread's ([`crate::track`]) |
//! | `timestamp = time` | when it happened, if not now ([`Timestamp`], `Instant`, `SystemTime`, or nanoseconds of trace time) |
//! | `flow = flow`, `terminating_flow = flow` | arrows between events ([`Flow`], or a number) |
//! | `correlation_id = id` | a number or text that events which belong together share |
//! | `callstack = stack` | the call stack that led to it ([`Callstack::capture`](crate::callstack::Callstack::capture), or [any other](crate::callstack)) |
//! | <code>&#124;event&#124; …</code> | anything else ([`EventContext`]) |
//!
//! While nobody records the event, only the category is evaluated.

// The path of an event into a trace: the macro (`macros.rs`) looks at its call site's mask (`call_site.rs`), which is 0 unless an instance listens.
// If one does, the thread's sequence for it (`thread.rs`, `sequence.rs`) writes the packet: in the usual case by storing bytes that the call site has
// prepared, otherwise by encoding it into the chunk (`emit.rs`). `registry.rs` updates the masks whenever an instance starts or stops.

mod call_site;
mod category;
mod config;
mod constant_name;
mod dynamic_site;
mod emit;
mod ends;
mod event;
mod interning;
mod local_strings;
mod macros;
pub(crate) mod observer;
mod open_slices;
mod registry;
mod sampling;
mod sequence;
mod source;
#[cfg(test)]
pub(crate) mod tests;
mod thread;
mod timestamp;
mod wire;
mod written_category;

use std::time::Duration;

use ferretto_ipc::channel::{Nothing, channel};

use crate::muxer;
use crate::off::OFF;
use crate::session::SessionError;
pub use category::{Category, DynamicCategory};
pub use emit::{Slice, StaticName};
pub use event::{CounterValue, EventContext, Flow, LogPriority};
pub use observer::{ObservedSession, Observing, SessionEvent, observe_category, observe_sessions};
pub(crate) use registry::{hold_for_fork, release_after_fork};
pub use sampling::SampledCategory;
pub(crate) use source::register;
pub(crate) use thread::{LockedConfined, confine, count_unrecorded, is_confined, lock_confined, unconfined};
pub use timestamp::Timestamp;

/// The name of this data source in configs.
pub(crate) const DATA_SOURCE_NAME: &str = "track_event";

/// The items that macros expand to. No part of the interface.
#[doc(hidden)]
pub mod private {
    pub use super::call_site::{CallSite, EventCategory, is_enabled, listeners, slice_listeners};
    pub use super::constant_name::{ConstantName, NameOfPath};
    pub use super::dynamic_site::{
        EncodedAnnotations, ForkLocks, KeptAnnotations, anyone_listens, hold_over_forks,
    };
    pub use super::emit::{BeginMark, Begun, EventName, IntoEventName, OpenSlice, Parts, emit, emit_plain};
    pub use super::ends::{call, mark_error};
    pub use super::event::{
        Annotation, CallstackField, CorrelationField, Fill, FlowField, IntoFlow, Sample,
        TerminatingFlowField, literal_id,
    };
    pub use super::timestamp::Timestamp;
    pub use super::wire::{AnnotationFront, EventType};
    pub use super::written_category::is_same_for_all;
    pub use ferretto_macros::if_constant;
    pub use std::option::Option::{None, Some};
}

/// Tells services of categories before their first events, with their descriptions and tags.
///
/// Without this, services learn of a category when the first call site with it is used; or, if the category is an expression that may be another each
/// time, when somebody records meanwhile.
pub fn register_categories(categories: &[&'static Category]) {
    if !OFF {
        registry::register_categories(categories);
    }
}

/// Hides categories whose names begin with one of these from services: they can be recorded, but are not listed.
pub fn add_test_category_prefixes(prefixes: &[&'static str]) {
    if !OFF {
        registry::add_test_category_prefixes(prefixes);
    }
}

/// Has this thread's sequences write the new descriptors of tracks that they have described and that have changed since. Other threads do so with
/// their next events.
pub(crate) fn describe_changed_tracks() {
    thread::with_existing(sequence::ThreadState::describe_changed_tracks);
}

/// How many instances have started so far.
pub(crate) fn starts() -> u32 {
    registry::starts()
}

/// Hands all events that this process has recorded so far to the services that record it, and waits until they have them, for `at_most` this long.
///
/// The calling thread's events are in the sessions' buffers then, and can be read. Of other threads' events, those in the chunk of shared memory that
/// each thread is filling (4 KB or less, usually) are not: the service takes them when a session is [flushed](crate::Session::flush) or stopped, or
/// when this process ends. So the machine's service loses no event if the process is killed right after. The service in this process ends with it;
/// the data that its sessions have written into files is safe.
///
/// It takes a round trip to each service, so use it at important moments, not for every event.
///
/// ```
/// # use std::time::Duration;
/// ferretto::trace_event_instant!("app", "About to do what may end badly");
/// if let Err(error) = ferretto::flush(Duration::from_secs(1)) {
///     eprintln!("{error}");
/// }
/// ```
///
/// Does nothing while nobody records.
///
/// # Errors
/// If a service has not answered in time or is gone, or if this is the SDK's thread, on which callbacks run: it would wait for itself.
pub fn flush(at_most: Duration) -> Result<(), SessionError> {
    const REQUEST: &str = "flush";
    if !registry::anyone_listens() {
        return Ok(());
    }
    thread::with_existing(sequence::ThreadState::commit);
    if muxer::on_own_thread() {
        return Err(SessionError::OnSdkThread { request: REQUEST });
    }
    let (done, is_done) = channel();
    muxer::post(muxer::Command::Sync(Box::new(move || {
        let _ = done.send(());
    })));
    is_done.receive_within(at_most).map_err(|nothing| match nothing {
        Nothing::SoFar => SessionError::TimedOut {
            request: REQUEST,
            after: at_most,
        },
        Nothing::EverAgain => {
            SessionError::Disconnected("the connection to a service that records was lost".into())
        }
    })
}

/// Calls `trace`. Events in it on this thread neither wait for a lock nor allocate or free memory nor change `errno`. Events that cannot be recorded
/// under these conditions are dropped, and [counted](nested_events).
///
/// For **signal handlers**: the code that a handler interrupts may be in `malloc`, or hold a lock. So a handler must record its events inside this
/// function, which makes them async-signal-safe. Also for **allocators**, and functions that an allocator calls, that trace while they hold a lock of
/// their own. Allocators that hold none need nothing, because the SDK knows where it allocates itself.
///
/// An event is recorded in here if
/// - its thread has recorded something outside, in this session and since the session last cleared its incremental state (by default, ring buffers
///   have that done every five seconds);
/// - this call site has done the same, on this thread;
/// - it is on the thread's own track, or on one that this thread has already used in the same way;
/// - its arguments are few: numbers, `bool`s, short strings;
/// - the thread's chunk of shared memory has room: it holds some kilobytes, and a new one is taken outside only;
/// - the session wants the usual timestamps, and no thread times.
///
/// Packets of [data sources](crate::data_source), and so [samples of stacks](crate::stack_sample), are not recorded in here.
///
/// So record something on each thread now and then. Slices on the thread's track stay nested, whichever events are dropped.
///
/// ```
/// extern "C" fn on_alarm(_signal: i32) {
///     ferretto::without_waiting(|| ferretto::trace_event_instant!("signals", "Alarm"));
/// }
/// ```
pub fn without_waiting<R>(trace: impl FnOnce() -> R) -> R {
    let _confined = thread::confine();
    trace()
}

/// How many events, and calls of data sources, were not recorded because of where they happened, since the process started:
/// - while another was being written on the same thread: in a `Display` of the user's, for example;
/// - in an allocator that the SDK itself has called, where they would have needed memory or a lock themselves;
/// - in [`without_waiting`], where they would have needed the same;
/// - while the process forked.
///
/// An event that two sessions would have recorded may count twice.
pub fn nested_events() -> u64 {
    thread::nested_events()
}

/// How many slices of this process have ended and stay open in traces, because their ends were lost for want of shared memory. Lost ends are normally
/// written as soon as there is memory again, with their times. This counts the exceptions: more than 4096 ends waited, or their thread ended before
/// there was memory.
pub fn slices_left_open() -> u64 {
    sequence::slices_left_open()
}
