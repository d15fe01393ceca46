//! A producer made with upstream's C++ client library, for interop tests: connects to the system's tracing service, waits for a
//! session, writes numbered track events and packets of 1 MiB, and leaves when the service has all of them.
//!
//! Called by the test `cxx_producer` of `ferretto-cli` (and by hand). It loses nothing unless the service does: track events,
//! which the library drops when shared memory is full, are paced by flushes that the service acknowledges; large packets, which
//! do not fit in shared memory at once, wait for free chunks.
//!
//! A trace holds then:
//! - category `interop`: for each number below `--events` one event of the debug annotation `number`: an instant `instant`
//!   if it is even, a slice `slice` if it is odd;
//! - data source `ferretto.interop.large`: for each number below `--packets` an instant `large` with the debug annotations
//!   `number` and `payload`, 65,536 times the 16 digits `printf("%08x%08x", number, number * 2654435761 % 2^32)`.
//!
//! With the argument `common-program` it is the common program in C++ instead: see `common_program`.
//!
//! Exit code 0 if the service acknowledged everything, 1 with a reason on stderr otherwise.

#![allow(clippy::disallowed_macros, reason = "a tool of the developers, who have a terminal")]

mod common_program;

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use perfetto_sdk::data_source::{DataSource, DataSourceArgsBuilder, DataSourceBufferExhaustedPolicy};
use perfetto_sdk::pb_msg::PbMsg;
use perfetto_sdk::producer::{Backends, Producer, ProducerInitArgsBuilder};
use perfetto_sdk::protos::trace::trace_packet::TracePacket;
use perfetto_sdk::track_event::{EventContext, TrackEvent, TrackEventDebugArg};
use perfetto_sdk::{
    track_event_begin, track_event_categories, track_event_end, track_event_instant,
    track_event_set_category_callback,
};

track_event_categories! {
    pub mod categories {
        ("interop", "Numbered events", []),
    }
}
use categories as perfetto_te_ns;

/// The data source of large packets.
const LARGE_PACKETS: &str = "ferretto.interop.large";
/// Of track events between two flushes, by one thread. At some 60 bytes a packet and three packets for two events, all
/// threads together stay below half of a shared memory of 512 KB.
const EVENTS_PER_FLUSH: u64 = 500;
/// How long a session or an acknowledgement may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The data to write.
struct Plan {
    events: u64,
    packets: u32,
    threads: u64,
    shared_memory_kb: u32,
}

impl Plan {
    fn from_arguments(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let mut plan = Plan {
            events: 100_000,
            packets: 20,
            threads: 4,
            shared_memory_kb: 1024,
        };
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} wants a number"))?;
            let number: u32 = value
                .parse()
                .map_err(|error| format!("{flag} {value}: {error}"))?;
            match flag.as_str() {
                "--events" => plan.events = number.into(),
                "--packets" => plan.packets = number,
                "--threads" => plan.threads = number.max(1).into(),
                "--shmem-kb" => plan.shared_memory_kb = number,
                _ => {
                    return Err(format!(
                        "no flag {flag}: --events, --packets, --threads, --shmem-kb"
                    ));
                }
            }
        }
        Ok(plan)
    }
}

/// Something that becomes true on one of the library's threads.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        let (open, changed) = &*self.0;
        *open.lock().unwrap() = true;
        changed.notify_all();
    }

    fn wait(&self, until: Instant, what: &str) -> Result<(), String> {
        let (open, changed) = &*self.0;
        let patience = until.saturating_duration_since(Instant::now());
        let (open, _) = changed
            .wait_timeout_while(open.lock().unwrap(), patience, |open| !*open)
            .unwrap();
        if *open {
            Ok(())
        } else {
            Err(format!("no session started {what} in {PATIENCE:?}"))
        }
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    let outcome = if words.next_if_eq("common-program").is_some() {
        common_program::run(words)
    } else {
        Plan::from_arguments(words).and_then(|plan| run(&plan))
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("cxx-producer: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(plan: &Plan) -> Result<(), String> {
    Producer::init(
        ProducerInitArgsBuilder::new()
            .backends(Backends::SYSTEM)
            .shmem_size_hint_kb(plan.shared_memory_kb)
            .build(),
    );
    TrackEvent::init();
    let category_enabled = Gate::default();
    let gate = category_enabled.clone();
    track_event_set_category_callback!("interop", move |_instance, enabled, _global| {
        if enabled {
            gate.open();
        }
    });
    categories::register().map_err(|error| error.to_string())?;

    let source_started = Gate::default();
    let gate = source_started.clone();
    let mut large_packets = DataSource::new();
    large_packets
        .register(
            LARGE_PACKETS,
            DataSourceArgsBuilder::new()
                .buffer_exhausted_policy(DataSourceBufferExhaustedPolicy::StallAndAbort)
                .on_start(move |_instance, _| gate.open())
                .build(),
        )
        .map_err(|error| error.to_string())?;

    let until = Instant::now() + PATIENCE;
    if plan.events > 0 {
        category_enabled.wait(until, "the category `interop`")?;
        write_events(plan)?;
    }
    if plan.packets > 0 {
        source_started.wait(until, LARGE_PACKETS)?;
        write_large_packets(&large_packets, plan.packets)?;
    }
    Ok(())
}

/// Numbers dealt to the threads in turn, so that the sequences interleave.
fn write_events(plan: &Plan) -> Result<(), String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|first| {
                scope.spawn(move || write_numbers((first..plan.events).step_by(plan.threads as usize)))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a writing thread panicked".into()))
        })
    })
}

fn write_numbers(numbers: impl Iterator<Item = u64>) -> Result<(), String> {
    let mut unacknowledged = 0;
    for number in numbers {
        let annotate = |event: &mut EventContext| {
            event.add_debug_arg("number", TrackEventDebugArg::Uint64(number));
        };
        if number % 2 == 0 {
            track_event_instant!("interop", "instant", annotate);
        } else {
            track_event_begin!("interop", "slice", annotate);
            track_event_end!("interop");
        }
        unacknowledged += 1;
        if unacknowledged == EVENTS_PER_FLUSH {
            flush_events()?;
            unacknowledged = 0;
        }
    }
    flush_events()
}

fn flush_events() -> Result<(), String> {
    let (acknowledged, acknowledgement) = channel();
    categories::trace(categories::category_index("interop"), |context| {
        context.flush(acknowledge(acknowledged.clone()));
    });
    await_acknowledgement(&acknowledgement)
}

fn write_large_packets(source: &DataSource<'static>, count: u32) -> Result<(), String> {
    for number in 0..count {
        source.trace(|context| context.add_packet(|packet| write_large_packet(packet, number)));
    }
    let (acknowledged, acknowledgement) = channel();
    source.trace(|context| context.flush(acknowledge(acknowledged.clone())));
    await_acknowledgement(&acknowledgement)
}

/// An instant of 1 MiB with all its names in it, which upstream's trace processor reads without any interned data.
fn write_large_packet(packet: &mut TracePacket, number: u32) {
    // Field numbers of perfetto/trace/track_event/{track_event,debug_annotation}.proto.
    const TRACE_PACKET_TRACK_EVENT: u32 = 11;
    const TYPE: u32 = 9;
    const TYPE_INSTANT: u64 = 3;
    const TRACK_UUID: u32 = 11;
    const NAME: u32 = 23;
    const DEBUG_ANNOTATIONS: u32 = 4;
    const ANNOTATION_NAME: u32 = 10;
    const ANNOTATION_UINT: u32 = 3;
    const ANNOTATION_STRING: u32 = 6;
    const WORDS: usize = 65_536;

    let word = format!("{number:08x}{:08x}", number.wrapping_mul(2_654_435_761));
    let clock = perfetto_sdk::data_source::DataSourceTimestamp::now();
    packet.set_timestamp(clock.timestamp());
    packet.set_timestamp_clock_id(clock.clock_id());
    packet
        .msg
        .append_nested(TRACE_PACKET_TRACK_EVENT, |event: &mut PbMsg| {
            event.append_type0_field(TYPE, TYPE_INSTANT);
            event.append_type0_field(TRACK_UUID, 1);
            event.append_cstr_field(NAME, "large");
            event.append_nested(DEBUG_ANNOTATIONS, |annotation| {
                annotation.append_cstr_field(ANNOTATION_NAME, "number");
                annotation.append_type0_field(ANNOTATION_UINT, number.into());
            });
            event.append_nested(DEBUG_ANNOTATIONS, |annotation| {
                annotation.append_cstr_field(ANNOTATION_NAME, "payload");
                annotation.append_type2_field(ANNOTATION_STRING, word.repeat(WORDS).as_bytes());
            });
        });
}

fn acknowledge(sender: Sender<()>) -> impl FnMut() + Send + Sync + 'static {
    let sender = Mutex::new(sender);
    // The receiver is gone only when it has stopped waiting.
    move || {
        let _ = sender.lock().unwrap().send(());
    }
}

fn await_acknowledgement(acknowledgement: &Receiver<()>) -> Result<(), String> {
    acknowledgement
        .recv_timeout(PATIENCE)
        .map_err(|_| format!("the service did not acknowledge a flush in {PATIENCE:?}"))
}
