//! Loads upstream's service and ours in turn with the same producers, and prints the CPU time of an event and of a megabyte.
//!
//! Run it with `bench/service-throughput`. It needs upstream's binaries (`$PERFETTO_REFERENCE`, or the cache). The service runs on one CPU, its
//! clients on another. Times are of the whole process, including the threads that write files. Compare the minima.

mod sched;
mod service;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fmt;
use std::fs::File;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use ferretto_proto::text;
use sched::process::{cpu_time, pin};
use service::{Clients, Commits, DATA_SOURCE, Pace, address, is_event};
use support::{Program, Programs, Side, System};

/// Compares the CPU time that upstream's service and ours take for the same events.
#[derive(Debug, Parser)]
struct Args {
    /// Runs of each service with each load.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Numbers of producers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    producers: Vec<usize>,
    /// The fate of the events.
    #[arg(long, value_delimiter = ',', default_values_t = [Session::Ring, Session::Stream, Session::Read])]
    sessions: Vec<Session>,
    /// Events in each run, of 100 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
    /// Events a second, by all producers together.
    #[arg(long, default_value_t = 1_000_000)]
    rate: u64,
    /// Microseconds between two bursts of events.
    #[arg(long, default_value_t = 1_000)]
    tick_us: u64,
    /// When producers tell the service of chunks.
    #[arg(long, default_value = "each-chunk")]
    commits: Commits,
    /// Whose services.
    #[arg(long, value_delimiter = ',', default_values_t = [Service::Upstream, Service::Ours])]
    services: Vec<Service>,
    /// The CPU of the service.
    #[arg(long, default_value_t = 0)]
    service_cpu: usize,
    /// The CPU of its clients.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Service {
    Upstream,
    Ours,
}

impl Service {
    fn side(self) -> Side {
        match self {
            Service::Upstream => Side::Upstream,
            Service::Ours => Side::Ours,
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.side().fmt(out)
    }
}

/// The fate of the events, which decides which part of the service's work is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Session {
    /// They overwrite each other in a ring buffer: commits alone.
    Ring,
    /// They are written into a file meanwhile: commits, read-back and writing.
    Stream,
    /// They are read over the socket when all are there: that alone, without the commits.
    Read,
}

impl fmt::Display for Session {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Session::Ring => "ring",
            Session::Stream => "stream",
            Session::Read => "read",
        })
    }
}

/// The service's CPU time for some events, and their bytes.
#[derive(Debug, Clone, Copy)]
struct Cost {
    time: Duration,
    events: u64,
    bytes: u64,
}

impl Cost {
    fn ns_per_event(&self) -> f64 {
        self.time.as_nanos() as f64 / self.events as f64
    }

    fn us_per_mb(&self) -> f64 {
        self.time.as_nanos() as f64 / 1e3 / (self.bytes as f64 / 1e6)
    }
}

fn main() {
    let args = Args::parse();
    let Some(programs) = Programs::of_both() else {
        return;
    };
    pin(std::process::id(), args.client_cpu);
    println!(
        "{} events of 100 bytes, {} a second in bursts each {} us; CPU time of the service",
        args.events, args.rate, args.tick_us
    );
    println!(
        "{:<8}{:>10}  {:<9}{:>20}{:>20}{:>18}",
        "session", "producers", "service", "ns per event", "us per MB", "ours / upstream"
    );
    println!(
        "{:<29}{:>20}{:>20}{:>18}",
        "", "min    median", "min    median", "min   median"
    );
    for &session in &args.sessions {
        for &producers in &args.producers {
            compare(&args, &programs, session, producers);
        }
    }
}

fn compare(args: &Args, programs: &Programs, session: Session, producers: usize) {
    let mut costs = vec![Vec::new(); args.services.len()];
    for _ in 0..args.runs {
        for (service, costs) in args.services.iter().zip(&mut costs) {
            costs.push(run(args, programs, service.side(), session, producers));
        }
    }
    let mut first = None;
    for (service, costs) in args.services.iter().zip(&mut costs) {
        costs.sort_by_key(|cost| cost.time);
        let of = |figure: fn(&Cost) -> f64| (figure(&costs[0]), figure(&costs[costs.len() / 2]));
        let (event, megabyte) = (of(Cost::ns_per_event), of(Cost::us_per_mb));
        let pair = |(min, median): (f64, f64)| format!("{min:.1}{median:>10.1}");
        let ratio = first.map_or(String::new(), |first: (f64, f64)| {
            format!("{:.2}{:>9.2}", event.0 / first.0, event.1 / first.1)
        });
        println!(
            "{session:<8}{producers:>10}  {service:<9}{:>20}{:>20}{ratio:>18}",
            pair(event),
            pair(megabyte)
        );
        first.get_or_insert(event);
    }
}

fn run(args: &Args, programs: &Programs, side: Side, session: Session, producers: usize) -> Cost {
    let mut system = System::new(programs);
    let service = system.start(side, Program::Traced);
    pin(service, args.service_cpu);
    let path = system.path("trace");
    let file = (session == Session::Stream).then(|| File::create_new(&path).expect("a trace file").into());

    let mut clients = Clients::new();
    clients.add_producers(&address(&system.producer_socket()), producers, args.commits);
    let enabled = clients.enable(
        &address(&system.consumer_socket()),
        &config(session, args.events),
        file,
    );
    clients.await_producers(1);
    let tick = Duration::from_micros(args.tick_us);
    let pace = Pace {
        events: (args.rate as f64 * tick.as_secs_f64()).max(1.0) as u64,
        tick,
    };
    let before = cpu_time(service);
    clients.write(args.events, pace);
    let written = cpu_time(service);
    let stats = clients.stats(enabled.0);
    let buffer = &stats.buffer_stats[0];
    let lost = [
        buffer.chunks_discarded,
        buffer.abi_violations,
        buffer.trace_writer_packet_loss,
    ]
    .map(Option::unwrap_or_default);
    assert_eq!(lost, [0; 3], "{session}, {producers} producers: {buffer:?}");
    let events = args.events;
    let cost = |time, bytes| Cost { time, events, bytes };
    match session {
        Session::Ring => cost(written - before, buffer.bytes_written.unwrap_or_default()),
        Session::Stream => {
            clients.disable(enabled);
            let time = cpu_time(service) - before;
            let trace = std::fs::read(&path).expect("a trace");
            let packets = ferretto_wire::Reader::new(&trace).map(|field| field.expect("a trace").value);
            let found = packets.filter(|packet| packet.as_bytes().is_some_and(is_event));
            assert_eq!(found.count() as u64, events, "events in the file");
            cost(time, trace.len() as u64)
        }
        Session::Read => {
            let before = cpu_time(service);
            let (mut found, mut bytes) = (0, 0);
            clients.read(enabled.0, |packet| {
                found += u64::from(is_event(packet));
                bytes += packet.len() as u64;
            });
            assert_eq!(found, events, "events read");
            cost(cpu_time(service) - before, bytes)
        }
    }
}

fn config(session: Session, events: u64) -> Vec<u8> {
    let (size_kb, output) = match session {
        Session::Ring => (16 * 1024, ""),
        Session::Stream => (64 * 1024, "write_into_file: true file_write_period_ms: 250"),
        // Room for all events, with 16 bytes for each chunk and a part of one for each producer.
        Session::Read => (events / 1024 * 128 + 16 * 1024, ""),
    };
    let config = format!(
        r#"
        buffers {{ size_kb: {size_kb} fill_policy: RING_BUFFER }}
        data_sources {{ config {{ name: "{DATA_SOURCE}" }} }}
        {output}
        "#
    );
    text::encode(&config, text::TRACE_CONFIG).expect("a config")
}
