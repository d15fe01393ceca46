//! Upstream's preloaded heap profiler, `libheapprofd_glibc_preload.so`, with our service. It forks a daemon from each program, and this daemon is a
//! producer. Its recorded conversation is played everywhere; the library itself records where somebody has built it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ferretto_ipc::ports::PRODUCER_PORT;
use ferretto_proto::messages::trace_packet::{Data, OptionalTrustedPacketSequenceId};
use ferretto_proto::messages::{Message, TracePacket};
use ferretto_wire::{Reader, Value};

use crate::support::address::free_address;
use crate::support::c_program::compile;
use crate::support::dialect::{self, Player};
use crate::support::heap_client;
use crate::support::heap_trace::HeapTrace;
use crate::support::trace::{LOSSES, TraceProcessor};
use crate::support::wire::over_network;
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};

/// Names the library.
const VARIABLE: &str = "FERRETTO_UPSTREAM_HEAP_PRELOAD";

/// The script of the library's daemon.
const SCRIPT: &str = "recorded-heapprofd-preload";

/// Blocks that are larger than the interval count exactly.
const CONFIG: &str = "
    buffers { size_kb: 16384 }
    data_sources { config { name: 'android.heapprofd' heapprofd_config {
        sampling_interval_bytes: 4096 all: true block_client: true } } }";

/// Keeps 100 blocks of 5000 bytes, and frees as many of 7000. Ends with its input.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <unistd.h>
#define KEEP(p) __asm__ volatile("" :: "r"(p) : "memory")
__attribute__((noinline)) void keeps(void) { char *p = malloc(5000); KEEP(p); }
__attribute__((noinline)) void frees(void) { char *p = malloc(7000); KEEP(p); free(p); KEEP(p); }
int main(void) {
    for (int i = 0; i < 100; i++) { keeps(); frees(); }
    char c;
    return write(1, "done\n", 5) != 5 || read(0, &c, 1) != 0;
}
"#;

/// The program's allocations: by function the bytes allocated, the bytes freed, and the number of allocations.
const EXPECTED: [(&str, [u64; 3]); 2] = [("frees", [700_000, 700_000, 100]), ("keeps", [500_000, 0, 100])];

fn upstreams_library() -> PathBuf {
    let library = std::env::var_os(VARIABLE);
    library.expect("the variable names upstream's library").into()
}

fn compile_program(folder: &Path) -> PathBuf {
    compile(
        folder,
        "program",
        PROGRAM,
        &["-g", "-O1", "-fno-optimize-sibling-calls"],
    )
    .expect("a C compiler")
}

/// Records the program with a library preloaded; returns the trace and the program's process id.
fn profile(system: &System<'_>, library: &Path, prepare: impl FnOnce(&mut Command)) -> (PathBuf, u32) {
    let program = compile_program(&system.path(""));
    let recording = system.record(Side::Ours, CONFIG);
    let mut command = system.command(&program, "program.log");
    command
        .env("LD_PRELOAD", library)
        .env("PERFETTO_HEAPPROFD_BLOCKING_INIT", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    prepare(&mut command);
    let mut child = command.spawn().unwrap();
    let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
    let mut running = Running(child);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n", "{}", system.log("program.log"));
    let trace = recording.interrupt();
    drop(input);
    let status = running.wait(PATIENCE);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    (trace, running.pid())
}

/// The program's functions, from the outermost to the innermost, and what they have allocated.
type Accounts = BTreeMap<Vec<String>, [u64; 3]>;

fn accounts(trace: &Path, pid: u32) -> Accounts {
    let heaps = HeapTrace::read(trace);
    let heap = heaps.of(pid);
    assert_eq!(heap.heap_name, "libc.malloc");
    assert!(heap.from_startup && !heap.buffer_overran && !heap.hit_guardrail && !heap.rejected);
    let mut accounts = Accounts::new();
    for account in heap.accounts.values() {
        let position = |names: &[&str]| {
            account
                .functions
                .iter()
                .position(|function| names.contains(&function.as_str()))
        };
        if let (Some(main), Some(innermost)) =
            (position(&["main"]), position(&EXPECTED.map(|(name, _)| name)))
        {
            let counts = accounts
                .entry(account.functions[main..=innermost].to_vec())
                .or_default();
            for (sum, more) in counts
                .iter_mut()
                .zip([account.allocated, account.freed, account.allocations])
            {
                *sum += more;
            }
        }
    }
    accounts
}

fn expected() -> Accounts {
    let stack = |function: &str| vec!["main".to_owned(), function.to_owned()];
    EXPECTED
        .map(|(function, counts)| (stack(function), counts))
        .into()
}

/// Has `ferretto` read the trace.
fn assert_tools_read(trace: &Path) {
    let ferretto = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ferretto"))
            .args(words)
            .arg(trace)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let info = ferretto(&["info"]);
    assert!(
        info.contains("NOTHING LOST") && info.contains("libc.malloc"),
        "{info}"
    );
    for (column, of) in [(0, "allocated"), (2, "allocated-count")] {
        let folded = ferretto(&["convert", "--to", "folded", "--of", of]);
        for (function, counts) in EXPECTED {
            let lines = folded
                .lines()
                .filter(|line| line.contains(&format!(";main;{function}")));
            let sum: u64 = lines
                .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
                .sum();
            assert_eq!(sum, counts[column], "{of} by {function}\n{folded}");
        }
    }
    if let Some(processor) = TraceProcessor::find() {
        let [losses] = processor.query(trace, [LOSSES]);
        assert!(losses.is_empty(), "{losses:?}");
    }
}

#[test]
#[ignore = "needs upstream's libheapprofd_glibc_preload.so, which FERRETTO_UPSTREAM_HEAP_PRELOAD names"]
fn upstreams_library_records_the_same_through_our_service_as_through_upstreams_and_as_our_library() {
    let library = upstreams_library();
    let programs = Programs::of_both().expect("upstream's binaries");
    for service in [Side::Ours, Side::Upstream] {
        let mut system = System::new(&programs);
        system.start(service, Program::Traced);
        let (trace, pid) = profile(&system, &library, |_| {});
        assert_eq!(
            accounts(&trace, pid),
            expected(),
            "upstream's library, service: {service}"
        );
        assert_tools_read(&trace);
    }
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    system.start(Side::Ours, Program::Heapprofd);
    let (trace, pid) = profile(&system, &heap_client::library(), |_| {});
    assert_eq!(accounts(&trace, pid), expected(), "our library");
    assert_tools_read(&trace);
}

/// A system whose service has an address for producers that share no memory with it, so that all that they write goes through the socket.
fn with_network<'a>(programs: &'a Programs, service: Side) -> (System<'a>, UnixStream) {
    let mut system = System::new(programs);
    let address = free_address();
    let sockets = format!("{},{address}", system.producer_socket().display());
    system.start_at(service, Program::Traced, &sockets);
    (system, over_network(&address))
}

#[test]
#[ignore = "writes tests/dialects; needs upstream's binaries, and its library in FERRETTO_UPSTREAM_HEAP_PRELOAD"]
fn record_upstreams_library() {
    let programs = Programs::of_both().expect("upstream's binaries");
    let (system, service) = with_network(&programs, Side::Upstream);
    // The traces of programs that are profiled have the paths of their files.
    let library = system.path("libheapprofd_glibc_preload.so");
    std::fs::copy(upstreams_library(), &library).unwrap();
    let here = &system.path("between");
    let script = std::thread::scope(|threads| {
        let recorder = threads.spawn(move || dialect::record(here, &service, &PRODUCER_PORT));
        while !here.exists() {
            std::thread::yield_now();
        }
        let (trace, _) = profile(&system, &library, |command| {
            command.env("PERFETTO_PRODUCER_SOCK_NAME", here);
        });
        recorder.join().unwrap() + &dialect::print_packets(&packets_of_profile(&trace))
    });
    let about = "# The daemon of libheapprofd_glibc_preload.so, over a network, and the packets that upstream's service made of it\n";
    dialect::save(SCRIPT, about, &script);
}

/// Returns the packets of the producer that writes heap profiles, without what the service adds to them.
fn packets_of_profile(trace: &Path) -> Vec<Vec<u8>> {
    let trace = std::fs::read(trace).unwrap();
    let packets = Reader::new(&trace).map(|field| match field.unwrap().value {
        Value::Bytes(packet) => TracePacket::decode_from_slice(packet).unwrap(),
        other => panic!("no packet: {other:?}"),
    });
    let packets: Vec<TracePacket> = packets.collect();
    let sequence = |packet: &TracePacket| match packet.optional_trusted_packet_sequence_id {
        Some(OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(id)) => Some(id),
        _ => None,
    };
    let is_profile = |packet: &&TracePacket| matches!(packet.data, Some(Data::ProfilePacket(_)));
    let profiles = sequence(packets.iter().find(is_profile).expect("a profile"));
    let of_profile = packets.into_iter().filter(|packet| sequence(packet) == profiles);
    let by_producer = of_profile.map(|packet| TracePacket {
        optional_trusted_uid: None,
        optional_trusted_packet_sequence_id: None,
        trusted_pid: None,
        first_packet_on_sequence: None,
        previous_packet_dropped: None,
        ..packet
    });
    by_producer.map(|packet| packet.encode_to_vec()).collect()
}

#[test]
fn the_recorded_daemon_of_upstreams_library_writes_the_same_profile_through_our_service() {
    let programs = Programs::ours();
    let (mut system, stream) = with_network(&programs, Side::Ours);
    let mut player = Player::over(stream, SCRIPT, &PRODUCER_PORT);
    let trace = std::thread::scope(|threads| {
        threads.spawn(|| player.play());
        system.await_state(|state| !state.data_sources.is_empty());
        system.record(Side::Ours, CONFIG).interrupt()
    });
    let (found, recorded) = (packets_of_profile(&trace), dialect::packets(SCRIPT));
    assert!(!recorded.is_empty());
    let decode = |packets: &[Vec<u8>]| -> Vec<TracePacket> {
        packets
            .iter()
            .map(|packet| TracePacket::decode_from_slice(packet).unwrap())
            .collect()
    };
    assert_eq!(
        found,
        recorded,
        "{:#?}\nupstream's service had\n{:#?}",
        decode(&found),
        decode(&recorded)
    );
    let heaps = HeapTrace::read(&trace);
    let [pid] = heaps.processes.keys().copied().collect::<Vec<_>>()[..] else {
        panic!("{heaps:?}")
    };
    assert_eq!(accounts(&trace, pid), expected());
    assert_tools_read(&trace);
    system.assert_running();
}
