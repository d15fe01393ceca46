//! Perfetto tracing for Rust programs: see what your code does on a timeline, beside what the kernel did with it.
//!
//! Slices, instants, counters and more cost tens of nanoseconds while somebody records them, and a load and a branch while nobody does: they
//! are made to be left in. Traces open in the [Perfetto UI](https://ui.perfetto.dev) and answer SQL. Pure Rust; no daemon is needed, and
//! where there is one, ours or upstream's, it records this program together with all others.
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
//! # #[cfg(feature = "in-process")]
//! use ferretto::session::{DataSource, Session, TraceConfig};
//! use ferretto::{Options, trace_counter, trace_event};
//!
//! # #[cfg(feature = "in-process")]
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     ferretto::initialize(Options::in_process());
//!     let session = Session::in_process();
//!     session.setup(&TraceConfig::new().buffer_kb(4096).data_source(DataSource::track_event()))?;
//!     session.start_blocking()?;
//!
//!     for number in 0..3 {
//!         bake(number);
//!     }
//!
//!     session.stop_blocking()?;
//!     session.write_to(&mut std::fs::File::create("trace.pftrace")?)?;
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
//! `cargo run`, then open `trace.pftrace` at <https://ui.perfetto.dev>: three slices on the main thread's track, a shorter one in
//! each, and a counter.
//!
//! # Beside the kernel, and other programs
//!
//! With `Options::system()` in place of `Options::in_process()`, and without the session, the program is recorded by whoever records on this
//! machine. Start the daemons once, `traced` and (as root, for events of the kernel) `traced_probes`; then, while the program runs,
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
//! and the slices of each thread are below what the kernel says of it: running on which CPU, woken by whom.
//!
//! # What there is
//!
//! | to record | |
//! |---|---|
//! | what this block does | [`trace_event!`]; as a value [`trace_slice!`]; a function [`#[trace_function]`](macro@trace_function) |
//! | what begins here and ends there | [`trace_event_begin!`], [`trace_event_end!`]; [`trace_async!`] and the rest of [`future`] |
//! | a moment | [`trace_event_instant!`] |
//! | a value over time | [`trace_counter!`] with [`track::CounterTrack`] |
//! | one state at a time | [`trace_state!`] with [`track::StateTrack`] |
//! | what led to what | `flow = …`, `correlation_id = …`: see [`track_event`] |
//! | arguments | `"name" => value` of any type that is [`DebugAnnotation`], which can be derived |
//! | packets of your own making | [`data_source`] |
//! | spans and events of the crate `tracing` | the crate `ferretto-tracing`, a layer for its subscribers |
//!
//! **Categories** are what sessions choose events by: a literal, or a [`Category`] with a description and tags. Those tagged `slow` or
//! `debug` are only recorded when a config asks for them. **Tracks** are the lines of the timeline: the thread's unless you name
//! another ([`track`]). **Sessions** are recordings: by command lines, by other programs, or by this one ([`session`]). Before the service
//! can be reached, [`startup_tracing`] records what it will ask for; [`activate_triggers`] tells sessions in waiting that it happened.
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
//! The first time, the same goes to standard error, or to [`Options::log`]. If it says `recording`, the session may have left out the category: slow and
//! debug ones by themselves, and whatever its config disables. [`trace_category_enabled!`] tells.
//!
//! Where events are missing in the middle, there was no room: the trace's statistics say so. More shared memory
//! ([`Options::shared_memory_size`]) bridges longer bursts, a larger buffer in the config keeps more, and
//! [`Options::track_event_policy`] has events wait rather than be dropped.
//!
//! # Features
//!
//! | feature | | |
//! |---|---|---|
//! | `in-process` | on | a tracing service in this process: [`Options::in_process`], [`Session::in_process`] |
//! | `compression` | off | compressed traces of sessions in this process |
//! | `regex` | off | regular expressions in the configs of sessions in this process |
//! | `text-config` | off | `TraceConfig::from_text`: configs in protobuf's text format |
//!
//! # Limits
//!
//! - Linux, on little-endian machines.
//! - Eight sessions can record a data source of this process at the same time.
//! - The memory shared with a service is 256 KiB unless somebody asks for more, 32 MiB at most.
//! - An event in the middle of another of the same thread, from the `Display` of an argument say, is not recorded; [`nested_events`] counts them.
//! - A forked child records nothing until it calls [`initialize`] itself.

#![deny(unsafe_code)]

// What procedural macros generate names this crate as its users do.
#[cfg(test)]
extern crate self as ferretto;

mod atomic_word;
mod channel;
pub mod clock;
pub mod data_source;
pub mod debug_annotation;
pub mod future;
#[cfg(feature = "in-process")]
mod in_process;
mod muxer;
pub mod options;
mod process_hooks;
pub mod session;
mod source;
pub mod startup;
pub mod status;
mod system;
pub mod track;
pub mod track_event;

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
/// Perfetto's schema: messages of configs, and writers of packets.
pub use ferretto_proto as proto;
pub use muxer::{activate_triggers, initialize, is_initialized};
pub use options::{Backend, BufferExhaustedPolicy, Options};
pub use session::{Session, TraceConfig};
pub use startup::startup_tracing;
pub use status::{Status, status};
#[doc(hidden)]
pub use track_event::private;
pub use track_event::{
    Category, CounterValue, DynamicCategory, EventContext, Flow, LogPriority, Slice, StaticName, Timestamp,
    add_test_category_prefixes, nested_events, register_categories,
};
