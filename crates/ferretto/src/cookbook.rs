//! Questions about programs, and for each a program that answers it with a trace.
//!
//! Each program is an example of this crate: `cargo run -p ferretto --example NAME` in a checkout records `trace.pftrace`, unless the text
//! says otherwise. It opens at <https://ui.perfetto.dev>. The queries are for the UI's page "Query (SQL)", or for
//! Perfetto's `trace_processor_shell`. CI runs the programs and the queries, and compares the answers.
//!
//! | question | example |
//! |---|---|
//! | [What does my program do?](#what-does-my-program-do) | `first_trace` |
//! | [Why was this one request slow?](#why-was-this-one-request-slow) | `flight_recorder` |
//! | [Which query belongs to which request?](#which-query-belongs-to-which-request) | `tokio` |
//! | [Which service took the time?](#which-service-took-the-time) | `two_services` |
//! | [Where is memory allocated?](#where-is-memory-allocated) | `allocations` |
//! | [What is my connection doing?](#what-is-my-connection-doing) | `connection` |
//! | [What does my interpreter spend its time on?](#what-does-my-interpreter-spend-its-time-on) | `interpreter` |
//! | [How do I trace a hot loop?](#how-do-i-trace-a-hot-loop) | `hot_loop` |
//! | [How does a library trace?](#how-does-a-library-trace) | `library` |
//! | [How does a test count queries?](#how-does-a-test-count-queries) | `query_budget` |
//! | [Was my thread running, or waiting?](#was-my-thread-running-or-waiting) | `beside_the_kernel` |
//!
//! Two more examples are longer. Others record `track_events`, with the command line; it has tracks, counters, states and flows. `custom_data_source`
//! writes packets of its own.
//!
//! # What does my program do?
//!
//! [`record_to`](crate::record_to()) in `main` records everything until its result is dropped. Slices nest as the calls do.
#![doc = concat!("```rust\n", include_str!("../examples/first_trace.rs"), "```")]
//! The two threads are below the process, by their names. Each has a slice `Count primes`, a hundred slices `Hundred` within that, and a
//! counter `Primes`. Click on a slice for its arguments. Which slices took how long in total:
#![doc = concat!("```sql\n", include_str!("../examples/first_trace.sql"), "```")]
//!
//! # Why was this one request slow?
//!
//! Once in a day a request takes long, but a trace of the whole day would be too large. A [`Session`](crate::Session) with a ring buffer keeps the
//! latest events in memory. A [clone](crate::Session::clone_session) of it is a snapshot: the recording goes on. If other code or another process notices
//! that something was slow, it activates a trigger, and the session [asks for the clone](crate::Session::on_clone_trigger).
#![doc = concat!("```rust\n", include_str!("../examples/flight_recorder.rs"), "```")]
//! The last slice `handle` is the slow one. The slices within it show where it waited, and earlier events are on its left. Choose the size of the
//! buffer by how far back you want to see. This query shows where the slowest request spent its time:
#![doc = concat!("```sql\n", include_str!("../examples/flight_recorder.sql"), "```")]
//!
//! # Which query belongs to which request?
//!
//! `#[trace_function]` on an `async fn` is a slice from the first poll to the end. The slices of awaited functions are within that slice, whichever
//! threads run them. [`future`](crate::future) has the details.
#![doc = concat!("```rust\n", include_str!("../examples/tokio.rs"), "```")]
//! Below the process there is a group `Async` with the slices `serve`, and within each the queries that it awaits. When queries run
//! at the same time, the first is drawn inside the request's slice. The others, and the spawned task, get lines of their own below the request's
//! line. The threads of tokio show `Poll page` while they run it. The queries of each request:
#![doc = concat!("```sql\n", include_str!("../examples/tokio.sql"), "```")]
//!
//! # Which service took the time?
//!
//! The sender gives its slice a flow, and the receiver its slice the same one. W3C's header `traceparent` carries it: see
//! [`TraceContext`](crate::TraceContext). The receiver [enters](crate::TraceContext::enter) it, so that its own requests to others belong to the same
//! trace. Both record for the machine's service: start `traced`, then this for some seconds (`cargo run --example
//! two_services 30`), and record them with [`perfetto`](crate#beside-the-kernel-and-other-programs).
#![doc = concat!("```rust\n", include_str!("../examples/two_services.rs"), "```")]
//! Click on a slice `ask` of one process: an arrow leads to `answer` in the other. This query splits the time of each request into the other service
//! and the way there and back:
#![doc = concat!("```sql\n", include_str!("../examples/two_services.sql"), "```")]
//!
//! # Where is memory allocated?
//!
//! Allocators may trace. The SDK's own allocations are recorded only in part. An allocator that holds a lock of its own while it traces does so in
//! [`without_waiting`](crate::without_waiting()).
#![doc = concat!("```rust\n", include_str!("../examples/allocations.rs"), "```")]
//! The counter `Live memory` of the process rises and falls below the slices of the functions. It includes the buffer of the recording, 32 MB. Large
//! allocations are marks within the slices. This query shows which functions allocate, by the slice that an allocation is within:
#![doc = concat!("```sql\n", include_str!("../examples/allocations.sql"), "```")]
//!
//! # What is my connection doing?
//!
//! A [`StateTrack`](crate::track::StateTrack) is in one state at a time. `err` in `#[trace_function]` records errors that are returned.
#![doc = concat!("```rust\n", include_str!("../examples/connection.rs"), "```")]
//! A line `Connection` shows the states one after the other, in the UI of version 57 or later. The slices `connect` that failed have an argument
//! `error`. The same text and other messages are in the UI's panel "Android Logs", and in the table `android_logs`, whatever the system. Which attempt
//! failed, and why:
#![doc = concat!("```sql\n", include_str!("../examples/connection.sql"), "```")]
//!
//! # What does my interpreter spend its time on?
//!
//! A profiler outside of the program sees the functions of the interpreter, but not those of the scripts. The program knows these, so it can
//! take the [samples](crate::stack_sample) itself: here a thread does it every millisecond.
#![doc = concat!("```rust\n", include_str!("../examples/interpreter.rs"), "```")]
//! The UI of version 58 or later shows the samples below the thread, and a flame graph of those that are selected. `ferretto convert --to
//! folded trace.pftrace` prints how many nanoseconds each stack took, also as a flame graph or for `pprof`.
//!
//! For the stacks of the program's own functions there is `ferretto profile`. To see which calls led to one rare event, give it its stack: [`callstack =
//! Callstack::capture()`](crate::callstack).
//!
//! # How do I trace a hot loop?
//!
//! Each recorded event takes time and room. Where that is too much, record only some of the events: [a random part](crate::Category::sample) or [a
//! number per second](crate::Category::rate_limit). The trace counts the others.
#![doc = concat!("```rust\n", include_str!("../examples/hot_loop.rs"), "```")]
//! Below the process there is a group `Left out` with a counter for each category, which rises by the number of events that are not recorded. The
//! recorded events and this counter add up to the exact number of events, not to an estimate. For each category:
#![doc = concat!("```sql\n", include_str!("../examples/hot_loop.sql"), "```")]
//!
//! # How does a library trace?
//!
//! It defines categories, and leaves recording to the program. Categories with very many events get the tag `debug` or `slow`: sessions record those
//! only on request.
#![doc = concat!("```rust\n", include_str!("../examples/library.rs"), "```")]
//! `cargo run --example library trace.pftrace cache.entries` records the questions as well. This query shows how often each answer was in the cache:
#![doc = concat!("```sql\n", include_str!("../examples/library.sql"), "```")]
//! The library needs no service in the process:
//!
//! ```toml
//! [dependencies]
//! ferretto = { version = "0.1", default-features = false }
//! ```
//!
//! Programs that do not want tracing turn the [feature `off`](crate#where-nothing-is-recorded) on, which removes all events:
//!
//! ```toml
//! [dependencies]
//! ferretto = { version = "0.1", default-features = false, features = ["off"] }
//! ```
//!
//! # How does a test count queries?
//!
//! A test can record the function that it tests, in its own process, and read the packets. `cargo add --dev ferretto-proto --features trace` adds the
//! types that decode them. `cargo test --example query_budget` runs this one.
#![doc = concat!("```rust\n", include_str!("../examples/query_budget.rs"), "```")]
//! A session records all threads of the process. Other tests that call the same functions at the same time are counted too, even if they record
//! nothing. So put such a test into a file of its own under `tests/`, which is a process of its own.
//!
//! # Was my thread running, or waiting?
//!
//! With [`RecordingOptions::system`](crate::RecordingOptions::system) the machine's service records, so the trace can have the kernel's events beside
//! the program's. Start `traced` and, as root, `traced_probes` first.
#![doc = concat!("```rust\n", include_str!("../examples/beside_the_kernel.rs"), "```")]
//! Above the slices of each thread a line shows its states. This query adds up the times of the states during the slices (`Running`; `R`, ready but
//! without a processor; `S`, asleep):
#![doc = concat!("```sql\n", include_str!("../examples/beside_the_kernel.sql"), "```")]
