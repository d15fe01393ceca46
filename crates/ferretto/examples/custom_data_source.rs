//! A data source of one's own: how much memory the process takes, sampled as often as the session wants.
//!
//! ```text
//! cargo run --example custom_data_source [FILE]
//! ```
//!
//! Records itself; open `custom_data_source.pftrace` at <https://ui.perfetto.dev>. With `Options::system()` any session of the machine's could
//! have it, too: by the data source's name, with the period in `legacy_config`.

use std::fs::File;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ferretto::data_source::{DataSource, DataSourceHandle, SetUp, Start, Stop};
use ferretto::proto::messages::counter_descriptor::Unit;
use ferretto::proto::messages::trace_packet::SequenceFlags;
use ferretto::proto::messages::track_event::Type;
use ferretto::proto::messages::{DataSourceConfig, Message};
use ferretto::session::{self, Session, TraceConfig};
use ferretto::{Options, clock};

static MEMORY: DataSourceHandle<Memory> = DataSourceHandle::new();

/// An instance: there is one for each session.
struct Memory {
    period: Duration,
    sampler: Mutex<Option<Sampler>>,
}

/// A thread that samples until it is told to end.
struct Sampler {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

/// The descriptions that a thread has written so far. The state begins anew whenever earlier packets may be lost.
#[derive(Default)]
struct Said {
    descriptor: bool,
}

impl DataSource for Memory {
    const NAME: &'static str = "com.example.memory";
    type Incremental = Said;
    type Thread = ();

    fn set_up(set_up: &SetUp<'_>) -> Self {
        let period_ms = set_up
            .config
            .legacy_config
            .as_deref()
            .and_then(|ms| ms.parse().ok());
        Memory {
            period: Duration::from_millis(period_ms.unwrap_or(100)),
            sampler: Mutex::new(None),
        }
    }

    fn start(&self, _: Start) {
        let (end, ends) = channel();
        let period = self.period;
        let thread = std::thread::spawn(move || {
            while ends.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                sample();
            }
        });
        *self.sampler.lock().expect("nothing panics with it") = Some(Sampler { end, thread });
    }

    fn stop(&self, stop: Stop<Self>) {
        let sampler = self.sampler.lock().expect("nothing panics with it").take();
        // This is the SDK's thread, which should not wait. Until `stop` is dropped there can be more samples.
        std::thread::spawn(move || {
            if let Some(Sampler { end, thread }) = sampler {
                drop(end);
                // Has ended, or panicked, which says so itself.
                let _ = thread.join();
            }
            drop(stop);
        });
    }
}

/// Writes how much memory there is now, for each session that records.
fn sample() {
    const TRACK: u64 = 0x6d65_6d6f_7279;
    let resident = resident_bytes();
    MEMORY.trace(|ctx| {
        if !std::mem::replace(&mut ctx.incremental.descriptor, true) {
            ctx.packet(|packet| {
                packet.timestamp(clock::now());
                packet.sequence_flags(SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32);
                packet.track_descriptor(|track| {
                    track.uuid(TRACK).name("Resident memory");
                    track.counter(|counter| {
                        counter.unit(Unit::UNIT_SIZE_BYTES);
                    });
                });
            });
        }
        ctx.packet(|packet| {
            packet.timestamp(clock::now());
            packet.sequence_flags(SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u32);
            packet.track_event(|event| {
                event
                    .r#type(Type::TYPE_COUNTER)
                    .track_uuid(TRACK)
                    .counter_value(resident);
            });
        });
    });
}

fn resident_bytes() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<i64>().ok());
    pages.unwrap_or(0) * 4096
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ferretto::initialize(Options::in_process());
    MEMORY.register();

    let every_five_ms = DataSourceConfig {
        legacy_config: Some("5".to_owned()),
        ..Default::default()
    };
    let source = session::DataSource::new(Memory::NAME).encoded_config(&every_five_ms.encode_to_vec());
    let session = Session::in_process();
    session.setup(&TraceConfig::new().buffer_kb(1024).data_source(source))?;
    session.start_blocking()?;

    let mut hoard = Vec::new();
    for _ in 0..20 {
        hoard.push(vec![1u8; 1 << 20]);
        std::thread::sleep(Duration::from_millis(10));
    }

    session.stop_blocking()?;
    let path = std::env::args().nth(1);
    let path = path.as_deref().unwrap_or("custom_data_source.pftrace");
    let bytes = session.write_to(&mut File::create(path)?)?;
    println!("{bytes} bytes in {path}, with {} MB hoarded", hoard.len());
    Ok(())
}
