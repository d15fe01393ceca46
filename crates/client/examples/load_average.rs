//! A whole daemon with one data source: `example.load_average` records how many threads want a processor.
//!
//! It connects to the tracing service, waits for one if there is none, and samples `/proc/loadavg` for each session that asks for it, as
//! often as the config says:
//!
//! ```text
//! buffers { size_kb: 1024 }
//! data_sources { config { name: "example.load_average" legacy_config: "100" } }
//! duration_ms: 5000
//! ```
//!
//! `legacy_config` is the period in milliseconds. A data source with more to say has a message of its own.

#![expect(clippy::disallowed_macros, reason = "an example is short")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ferretto_client::data_source::{ConnectionId, Instance};
use ferretto_client::runtime::daemon::ServiceSocket;
use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe, Probes, standalone};
use ferretto_client::runtime::{ConnectionOptions, Event, MemoryOptions, ProducerProgram, Runtime};
use ferretto_ipc::reactor::{Events, Token};
use ferretto_ipc::{Reactor, socket_names};
use ferretto_proto::messages::track_event::Type;
use ferretto_proto::write::TracePacket;
use ferretto_wire::Writer;

const NAME: &str = "example.load_average";

/// The connection to the machine's service, and its place in the event loop.
const SERVICE: ConnectionId = ConnectionId(0);
const SOCKET: Token = Token(0);

/// The counter's track: a number that no other producer is likely to have.
const TRACK: u64 = 0x6c6f_6164_2061_7667;

/// The instance of one session.
struct LoadAverage {
    /// In nanoseconds.
    period: u64,
    next: Option<BootTime>,
}

impl LoadAverage {
    fn new(instance: &Instance) -> Result<LoadAverage, String> {
        let milliseconds = match instance.config.legacy_config.as_deref() {
            None | Some("") => 1000,
            Some(text) => text
                .parse()
                .map_err(|_| format!("legacy_config: {text:?} is not a period in milliseconds"))?,
        };
        // More often than that would be of no use: the kernel computes it every five seconds.
        let period = Duration::from_millis(u64::clamp(milliseconds, 10, 60_000));
        Ok(LoadAverage {
            period: period.as_nanos() as u64,
            next: None,
        })
    }

    fn sample(&self, now: BootTime, sink: &mut dyn PacketSink) {
        // Without procfs there is nothing to record.
        let Some(load) = load_average() else { return };
        let mut packet = Writer::new();
        TracePacket::new(&mut packet).timestamp(now).track_event(|event| {
            event
                .r#type(Type::TYPE_COUNTER)
                .track_uuid(TRACK)
                .double_counter_value(load);
        });
        sink.write_packet(packet.as_slice());
    }
}

impl Probe for LoadAverage {
    fn start(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        let mut packet = Writer::new();
        TracePacket::new(&mut packet).track_descriptor(|track| {
            track.uuid(TRACK).name("load average").counter(|_| {});
        });
        sink.write_packet(packet.as_slice());
        self.next = Some(now);
    }

    fn next_deadline(&self) -> Option<BootTime> {
        self.next
    }

    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.sample(now, sink);
        // On multiples, so that everybody with this period shares a wake-up of the machine.
        self.next = Some(now - now % self.period + self.period);
    }

    fn stop(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.sample(now, sink);
    }
}

/// The first figure of the file: of the last minute.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

struct Daemon;

impl ProducerProgram for Daemon {
    fn info(&self, line: &str) {
        eprintln!("{line}");
    }

    fn warning(&self, line: &str) {
        eprintln!("warning: {line}");
    }

    fn is_own_thread(&self) -> bool {
        true
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let program: Arc<dyn ProducerProgram> = Arc::new(Daemon);
    let mut reactor = Reactor::new()?;
    let mut runtime = Runtime::new(program.clone(), reactor.waker());
    runtime.add_connection(ConnectionOptions {
        id: SERVICE,
        name: "the service".to_owned(),
        producer_name: NAME.to_owned(),
        sdk_version: concat!("ferretto-client ", env!("CARGO_PKG_VERSION")).to_owned(),
        // As the service likes.
        memory: MemoryOptions {
            size: 0,
            page_size: 0,
            batch_commits: Duration::ZERO,
        },
    });
    let load_average = Probes::new(standalone(NAME), program, LoadAverage::new);
    runtime.add_source(None, Arc::new(load_average));

    let mut service = ServiceSocket::new(SERVICE, socket_names::producer_address()?, SOCKET);
    let address = service.address().to_string();
    let mut events = Events::new();
    loop {
        service.turn(&mut runtime, &reactor, &events, |_, event| match event {
            Event::Connected(_) => eprintln!("connected to {address}"),
            Event::CannotConnect(_, reason) => eprintln!("waiting for the service at {address}: {reason}"),
            Event::Disconnected { .. } => eprintln!("the service at {address} is gone"),
            Event::Synced(..) | Event::StartupEnded(..) => {}
        });
        reactor.wait(&mut events, runtime.deadlines())?;
    }
}
