//! Perfetto tracing for Rust programs: see your code's work on a timeline, beside the kernel's view of it.
//!
//! Slices, instants, counters and more cost tens of nanoseconds while somebody records them, and a load and a branch while nobody does: they are made
//! to be left in. Traces open in the [Perfetto UI](https://ui.perfetto.dev) and can be queried with SQL. Pure Rust. No daemon is needed; if one runs,
//! ours or upstream's, it records this program together with all others.
//!
//! # From nothing to a picture
//!
//! ```toml
//! [dependencies]
//! ferretto = "0.1"
//! ```
//!
//! A program that records itself, into a file:
//!
//! ```no_run
//! use ferretto::{trace_counter, trace_event};
//!
//! # #[cfg(feature = "in-process")]
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let _trace = ferretto::record_to("trace.pftrace")?;
//!
//!     for number in 0..3 {
//!         bake(number);
//!     }
//!     Ok(())
//! }
//! # #[cfg(not(feature = "in-process"))]
//! # fn main() {}
//!
//! fn bake(number: u32) {
//!     // A slice from here to the end of the block, with an argument.
//!     trace_event!("kitchen", "Bake", "number" => number);
//!     {
//!         trace_event!("kitchen", "Knead");
//!         std::thread::sleep(std::time::Duration::from_millis(2));
//!     }
//!     trace_counter!("kitchen", "Loaves", number + 1);
//! }
//! ```
//!
//! `cargo run`, then open `trace.pftrace` at <https://ui.perfetto.dev>: three slices on the main thread's track, a shorter one in each, and a
//! counter. The file is complete however the program ends, except that a killed program loses the last 0.3 s or so: see [`record_to`]. With
//! [`RecordingOptions::system`] the same line records events of the kernel beside the program's, through a daemon.
//!
//! The [cookbook] goes on from here: eleven questions, such as why one request was slow, or where memory is allocated, each with a program that answers
//! it.
//!
//! # Beside the kernel, and other programs
//!
//! With `Options::system()` in place of `Options::in_process()`, and without the session, other programs on this machine can record the program.
//! Start the daemons once, `traced` and (as root, for events of the kernel) `traced_probes`; then, while the program runs,
//!
//! ```text
//! cat > trace.cfg <<'CONFIG'
//! buffers { size_kb: 65536 }
//! data_sources { config { name: "track_event" } }
//! data_sources { config {
//!   name: "linux.ftrace"
//!   ftrace_config { ftrace_events: "sched/sched_switch" ftrace_events: "sched/sched_waking" }
//! } }
//! data_sources { config { name: "linux.process_stats" process_stats_config { scan_all_processes_on_start: true } } }
//! duration_ms: 5000
//! CONFIG
//! perfetto --txt -c trace.cfg -o trace.pftrace
//! ```
//!
//! and the trace has the slices of each thread below the kernel's view of it: on which CPU it ran, and which thread woke it.
//!
//! # What there is
//!
//! | to record | |
//! |---|---|
//! | the work of a block | [`trace_event!`]; as a value [`trace_slice!`]; a function [`#[trace_function]`](macro@trace_function) |
//! | work that begins here and ends elsewhere | [`trace_event_begin!`], [`trace_event_end!`]; [`trace_async!`] and the rest of [`future`] |
//! | the polls of a task, with their threads, and its wakes | [`in_task`](future::TraceFuture::in_task), with any executor |
//! | a moment | [`trace_event_instant!`] |
//! | a value over time | [`trace_counter!`] with [`track::CounterTrack`] |
//! | one state at a time | [`trace_state!`] with [`track::StateTrack`] |
//! | causes and consequences | `flow = …`, `correlation_id = …`: see [`track_event`] |
//! | consequences of a request in other processes | [`TraceContext`], W3C's headers `traceparent` and `tracestate` |
//! | the call stack that led to an event | `callstack = …`: see [`callstack`] |
//! | samples of call stacks, of threads or scripts | [`stack_sample`] |
//! | names of threads and of the process | [`set_thread_name`](track::set_thread_name), [`set_process_name`](track::set_process_name) |
//! | arguments | `"name" => value` of any type that is [`DebugAnnotation`], which can be derived |
//! | packets of your own making | [`data_source`] |
//! | spans and events of the crate `tracing` | the crate `ferretto-tracing`, a layer for its subscribers |
//!
//! **Categories** are the names by which sessions choose events: a literal, or a [`Category`] with a description and tags. Categories tagged `slow`
//! or `debug` are only recorded when a config asks for them. **Tracks** are the lines of the timeline: the thread's unless you name another
//! ([`track`]). **Sessions** are recordings: by command lines, by other programs, or by this one ([`session`]); [`observe_sessions`] and
//! [`observe_category`] tell the program of them. Before the service can be reached, [`startup_tracing`] records the events that a session will ask
//! for. [`activate_triggers`] tells sessions that wait for a trigger that it has occurred. Of categories with very many events some can be
//! [sampled](Category::sample), or [limited in their rate](Category::rate_limit).
//!
//! # Why is nothing recorded?
//!
//! Ask [`status()`]; its text says, for each service that the program records for, whether there is a connection and a session, or why
//! not:
//!
//! ```text
//! system service: not connected: cannot connect to /run/perfetto/traced-producer.sock: Permission denied (os error 13)
//! ```
//!
//! The first time, the same goes to standard error, or to [`Options::log`], which also gets messages about successes. If the status is `recording`,
//! the session may have left out the category: configs leave out slow and debug categories by default, and those that they disable.
//! [`trace_category_enabled!`] tells.
//!
//! Where events are missing in the middle, there was no room: the trace's statistics say so, and [`Session::losses`]. More shared memory
//! ([`Options::shared_memory_size`]) bridges longer bursts, a larger buffer in the config keeps more, and [`Options::track_event_policy`] can make
//! events wait instead of being dropped.
//!
//! # Features
//!
//! | feature | | |
//! |---|---|---|
//! | `in-process` | on | a tracing service in this process: [`Options::in_process`], [`Session::in_process`] |
//! | `compression` | off | compressed traces of sessions in this process |
//! | `trace-filter` | off | filters (`trace_filter`) in the configs of sessions in this process |
//! | `regex` | off | regular expressions in these configs; turns `trace-filter` on |
//! | `text-config` | off | `TraceConfig::from_text`: configs in protobuf's text format |
//! | `serde_json` | off | values of the crate `serde_json` as arguments of events |
//! | `unstable-proto` | off | the schema's messages and writers as types, see below |
//! | `off` | off | nothing is ever recorded, see below |
//!
//! # Where nothing is recorded
//!
//! Linux is recorded, with any C library, on little-endian machines. Android should work too: the crate compiles for it in full, but has never been
//! run there. Everywhere else the crate compiles and does nothing, with the same types, so that a library may depend on it without asking where it is
//! used. The feature `off` does the same on every system. Cargo unifies features: if any package turns `off` on, it is on for all packages of the
//! program. So leave it to the package of the program. Then:
//!
//! - The compiler knows that no event is recorded. It removes each macro except for its category, which is still evaluated. Its warnings and errors
//!   stay the same.
//! - [`initialize`] does nothing, [`is_initialized`] says so, and the text of [`status()`] says why.
//! - A [`Session`] is set up, starts, stops, and its trace is empty, so that a program which records itself comes to its end. Questions about a
//!   session or a service give [`SessionError::Off`](session::SessionError::Off).
//! - [`startup_tracing`] ends at once; a data source has no instances.
//! - [`clock::now`] begins at about 0 on systems other than Linux and Android, and stays there where the standard library has no clock.
//! - Functions that take descriptors of files and sockets on Unix take `OwnedHandle` and `OwnedSocket` on Windows.
//!
//! # Stability
//!
//! Version numbers follow semver as Cargo reads it: before 1.0, only a change of the second number breaks programs. The feature `unstable-proto`
//! is excepted: the module `proto`, and all functions and fields with its types, follow Perfetto's schema and may change in any version. Without
//! it, programs read and write encoded messages, whose meaning Perfetto keeps: [`TraceConfig::from_encoded`],
//! [`SetUp::encoded_config`](data_source::SetUp::encoded_config), [`PacketWriter::encode`](data_source::PacketWriter::encode),
//! [`TrackLike::write_descriptor`](track::TrackLike::write_descriptor) and [`EventContext::writer`] with [`wire`].
//!
//! # Limits
//!
//! - The processor has atomic operations on 64 bits; otherwise the crate does not compile.
//! - Eight sessions can record a data source of this process at the same time.
//! - The memory shared with a service is 2 MiB unless the program or the trace config asks for another size, 32 MiB at most.
//! - An event within another event of the same thread, from the `Display` of an argument for example, is not recorded. Allocators may trace, but
//!   allocations of the SDK itself are recorded only in part. Signal handlers may trace in [`without_waiting`]. [`nested_events`] counts the events
//!   that are not recorded for these reasons.
//! - A forked child records nothing until it calls [`initialize`] itself.

#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Many functions are only called by modules that record, and some only with the feature.
#![cfg_attr(
    not(all(
        feature = "unstable-proto",
        not(feature = "off"),
        target_endian = "little",
        any(target_os = "linux", target_os = "android")
    )),
    allow(dead_code, unused_imports)
)]

// The code that procedural macros generate names this crate as users do.
#[cfg(test)]
extern crate self as ferretto;

pub mod callstack;
pub mod clock;
// Text alone. Its programs are examples, which are built and run as such, not as tests of the documentation.
#[cfg(all(doc, not(doctest)))]
pub mod cookbook;
pub mod data_source;
pub mod debug_annotation;
pub mod future;
mod handles;
#[cfg(all(
    feature = "in-process",
    all(
        not(feature = "off"),
        target_endian = "little",
        any(target_os = "linux", target_os = "android")
    )
))]
mod in_process;
#[cfg_attr(
    not(all(
        not(feature = "off"),
        target_endian = "little",
        any(target_os = "linux", target_os = "android")
    )),
    path = "elsewhere/muxer.rs"
)]
mod muxer;
mod off;
pub mod options;
#[cfg_attr(
    not(all(
        not(feature = "off"),
        target_endian = "little",
        any(target_os = "linux", target_os = "android")
    )),
    path = "elsewhere/process_hooks.rs"
)]
mod process_hooks;
pub mod session;
mod source;
mod split_mix;
pub mod stack_sample;
mod starting_over;
pub mod startup;
pub mod status;
#[cfg_attr(
    not(all(
        not(feature = "off"),
        target_endian = "little",
        any(target_os = "linux", target_os = "android")
    )),
    path = "elsewhere/system.rs"
)]
mod system;
pub mod trace_context;
pub mod track;
pub mod track_event;

/// Protobuf's wire format: the writer that closures fill messages with, field by number, and a reader.
pub mod wire {
    pub use ferretto_wire::{Field, Reader, Value, WireError, Writer};
}

pub use debug_annotation::DebugAnnotation;
/// ```
/// use ferretto::DebugAnnotation;
///
/// #[derive(DebugAnnotation)]
/// struct Request<'a> {
///     url: &'a str,
///     #[annotation(rename = "bytes")]
///     length: Option<u64>,
///     #[annotation(debug)]
///     method: Method,
///     #[annotation(skip)]
///     body: Vec<u8>,
/// }
///
/// #[derive(Debug)]
/// enum Method { Get, Post }
/// # let request = Request { url: "", length: None, method: Method::Get, body: vec![] };
/// # fn annotate(_: impl DebugAnnotation) {}
/// # annotate(&request);
/// # let (_, _) = (Method::Post, request.body);
/// ```
pub use ferretto_macros::DebugAnnotation;
/// ```
/// use ferretto::trace_function;
///
/// #[trace_function("net", args(url, "bytes" => body.len()))]
/// async fn send(url: &str, body: Vec<u8>) -> std::io::Result<()> {
///     // …
///     Ok(())
/// }
///
/// struct Cache { hits: u64 }
///
/// impl Cache {
///     #[trace_function("net", name = "Cache::get", args(key, self.hits))]
///     fn get(&mut self, key: u32) -> Option<&str> {
///         // …
/// #       let _ = key;
///         None
///     }
/// }
/// # Cache { hits: 0 }.get(1);
/// # let _ = send("", vec![]);
/// ```
pub use ferretto_macros::trace_function;
/// Perfetto's schema: messages of configs, and writers of packets. It follows upstream's schema and is [not part of the stable
/// interface](crate#stability).
#[cfg(feature = "unstable-proto")]
pub use ferretto_proto as proto;
pub use muxer::{activate_triggers, initialize, is_initialized};
pub use options::{Backend, BufferExhaustedPolicy, Options};
#[cfg(feature = "in-process")]
pub use session::record_to;
pub use session::{Recording, RecordingOptions, Session, TraceConfig};
pub use startup::startup_tracing;
pub use status::{Status, status};
pub use trace_context::TraceContext;
#[doc(hidden)]
pub use track_event::private;
pub use track_event::{
    Category, CounterValue, DynamicCategory, EventContext, Flow, LogPriority, ObservedSession, Observing,
    SampledCategory, SessionEvent, Slice, StaticName, Timestamp, add_test_category_prefixes, flush,
    nested_events, observe_category, observe_sessions, register_categories, slices_left_open,
    without_waiting,
};
