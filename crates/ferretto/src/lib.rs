//! Perfetto tracing for Rust programs.

#![deny(unsafe_code)]

// What procedural macros generate names this crate as its users do.
#[cfg(test)]
extern crate self as ferretto;

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
