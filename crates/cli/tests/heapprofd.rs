//! `android.heapprofd` in whole systems: the daemon with our service, clients that a test controls, and upstream's trace processor as the reader.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ferretto_heap_client::handshake::{Reason, WhenFull};
use ferretto_heap_client::layout::header;

use crate::support::heap_client::HeapClient;
use crate::support::trace::{LOSSES, TraceProcessor, numbers};
use crate::support::{Program, Programs, Side, System, await_that};

fn system(programs: &Programs) -> System<'_> {
    let mut system = System::new(programs);
    system.start(Side::Ours, Program::Traced);
    system.start(Side::Ours, Program::Heapprofd);
    system
}

fn config(heap: &str) -> String {
    format!(
        "buffers {{ size_kb: 16384 }} data_sources {{ config {{ name: 'android.heapprofd' heapprofd_config {{ {heap} }} }} }}"
    )
}

const ALL: &str = "all: true sampling_interval_bytes: 4096";

fn connect(system: &System<'_>) -> HeapClient {
    HeapClient::connect(&system.heap_socket(), Reason::Startup).expect("this process is profiled")
}

fn await_end(client: &HeapClient) {
    await_that("the client is told the end", || client.has_ended());
}

#[inline(never)]
fn this_function_allocates() -> u64 {
    std::hint::black_box(1)
}

#[inline(never)]
fn this_one_frees_what_it_allocates() -> u64 {
    std::hint::black_box(2)
}

const LEAKS: fn() -> u64 = this_function_allocates;
const FREES: fn() -> u64 = this_one_frees_what_it_allocates;

#[test]
fn what_a_program_allocates_is_in_the_trace_with_its_functions_and_without_losses() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs);
    let recording = system.record(Side::Ours, &config(ALL));
    let client = connect(&system);
    assert_eq!(client.welcome.interval_of(b"libc.malloc"), 4096);
    assert_eq!(client.welcome.when_full, WhenFull::Lose);
    client.heap(1, 4096, "libc.malloc");
    for address in 0..100 {
        client.allocate(1, address, 5000, LEAKS as usize);
        client.allocate(1, 1000 + address, 7000, FREES as usize);
        client.free(1, 1000 + address);
    }
    let trace = recording.interrupt();
    await_end(&client);
    let rows = "select f.name, heap_name, sum(size), sum(max(size, 0)), sum(max(count, 0)) from heap_profile_allocation a
        join stack_profile_callsite c on c.id = a.callsite_id join stack_profile_frame f on f.id = c.frame_id
        group by 1 order by 3";
    let of_process = format!(
        "select count(*) from heap_profile_allocation join process using (upid) where pid != {}",
        std::process::id()
    );
    let [rows, others, losses] = processor.query(&trace, [rows, &of_process, LOSSES]);
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert!(names[0].contains("this_one_frees_what_it_allocates"), "{rows:?}");
    assert!(names[1].contains("this_function_allocates"), "{rows:?}");
    assert_eq!(rows[0][1..], ["libc.malloc", "0", "700000", "100"]);
    assert_eq!(rows[1][1..], ["libc.malloc", "500000", "500000", "100"]);
    assert_eq!(numbers(&others), [0]);
    assert!(losses.is_empty(), "{losses:?}");
}

#[test]
fn a_process_that_is_not_meant_gets_no_ring() {
    let programs = Programs::ours();
    let system = system(&programs);
    let nobody = HeapClient::connect(&system.heap_socket(), Reason::Startup);
    assert!(nobody.is_none(), "nothing is recorded");
    let recording = system.record(Side::Ours, &config("pid: 1 sampling_interval_bytes: 4096"));
    let other = HeapClient::connect(&system.heap_socket(), Reason::Startup);
    assert!(other.is_none());
    recording.interrupt();
    let running = config(&format!("{ALL} no_startup: true"));
    let recording = system.record(Side::Ours, &running);
    assert!(HeapClient::connect(&system.heap_socket(), Reason::Startup).is_none());
    assert!(HeapClient::connect(&system.heap_socket(), Reason::Signal).is_some());
    recording.interrupt();
}

#[test]
fn losses_are_told_to_upstreams_readers() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs);
    let recording = system.record(Side::Ours, &config(ALL));
    let client = connect(&system);
    client.heap(1, 4096, "libc.malloc");
    client.allocate(1, 1, 5000, LEAKS as usize);
    client.header(header::LOST_SAMPLES).store(3, Ordering::Relaxed);
    client.header(header::LOST_BYTES).store(9000, Ordering::Relaxed);
    let trace = recording.interrupt();
    let overrun = "select name, value from stats where name like 'heapprofd_buffer_overran' and value != 0";
    let [overrun] = processor.query(&trace, [overrun]);
    assert_eq!(overrun.len(), 1, "{overrun:?}");
}

#[test]
fn a_program_that_is_replaced_is_dumped_and_its_successor_is_profiled_apart() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs);
    let recording = system.record(Side::Ours, &config(ALL));
    let first = connect(&system);
    first.heap(1, 4096, "libc.malloc");
    first.allocate(1, 1, 5000, LEAKS as usize);
    let second = connect(&system);
    await_end(&first);
    assert!(!second.has_ended());
    second.heap(1, 4096, "libc.malloc");
    second.allocate(1, 1, 300, LEAKS as usize);
    let trace = recording.interrupt();
    let sizes = "select sum(size) from heap_profile_allocation";
    let stats = "select value from stats where name = 'heapprofd_client_disconnected' and value != 0";
    let bad = "select count(*) from stats where name in ('heapprofd_malformed_packet', 'heapprofd_missing_packet') and value != 0";
    let [sizes, disconnected, bad] = processor.query(&trace, [sizes, stats, bad]);
    assert_eq!(numbers(&sizes), [5300]);
    assert_eq!(numbers(&disconnected), [1]);
    assert_eq!(numbers(&bad), [0]);
}

#[test]
fn two_sessions_do_not_share_a_process_and_the_second_is_told_so() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs);
    let first = system.record(Side::Ours, &config(ALL));
    let second = system.record(Side::Ours, &config(ALL));
    let client = connect(&system);
    client.heap(1, 4096, "libc.malloc");
    client.allocate(1, 1, 5000, LEAKS as usize);
    let second = second.interrupt();
    assert!(!client.has_ended());
    let first = first.interrupt();
    let rejected = "select sum(name = 'heapprofd_rejected_concurrent' and value != 0), sum(name = 'heapprofd_missing_packet' and value != 0) from stats";
    let sizes = "select sum(size) from heap_profile_allocation";
    let [of_first, size] = processor.query(&first, [rejected, sizes]);
    assert_eq!((numbers(&of_first), numbers(&size)), ([0, 0], [5000]));
    let [of_second, size] = processor.query(&second, [rejected, sizes]);
    assert_eq!((numbers(&of_second), numbers(&size)), ([1, 0], [0]));
}

#[test]
fn books_are_dumped_at_intervals_and_each_dump_tells_what_is_new() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs);
    let often = format!("{ALL} continuous_dump_config {{ dump_phase_ms: 5 dump_interval_ms: 5 }}");
    let recording = system.record(Side::Ours, &config(&often));
    let client = connect(&system);
    client.heap(1, 4096, "libc.malloc");
    let mut address = 0;
    let mut read_one = || {
        address += 1;
        client.allocate(1, address, 10, LEAKS as usize);
        client.await_read();
    };
    for _ in 0..8 {
        let began = Instant::now();
        // The clock that the daemon uses for dumps advances in steps of some milliseconds.
        while began.elapsed().as_millis() < 15 {
            read_one();
        }
        // By now a dump is due. The daemon makes it in the same turn in which it reads this sample, even on a slow machine.
        read_one();
    }
    let trace = recording.interrupt();
    let sizes = "select sum(size), count(distinct ts) > 3 from heap_profile_allocation";
    let [sizes, losses] = processor.query(&trace, [sizes, LOSSES]);
    assert_eq!(numbers(&sizes), [10 * address as i64, 1]);
    assert!(losses.is_empty(), "{losses:?}");
}

#[test]
fn the_maximum_is_what_was_live_when_most_was() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let programs = Programs::ours();
    let system = system(&programs);
    let recording = system.record(Side::Ours, &config(&format!("{ALL} dump_at_max: true")));
    let client = connect(&system);
    client.heap(1, 4096, "libc.malloc");
    client.allocate(1, 1, 5000, LEAKS as usize);
    client.allocate(1, 2, 7000, FREES as usize);
    client.free(1, 1);
    client.free(1, 2);
    client.allocate(1, 3, 100, LEAKS as usize);
    let trace = recording.interrupt();
    let sizes = "select sum(size), sum(count) from heap_profile_allocation";
    let [sizes, losses] = processor.query(&trace, [sizes, LOSSES]);
    assert_eq!(numbers(&sizes), [12_000, 2]);
    assert!(losses.is_empty(), "{losses:?}");
}

#[test]
fn a_config_that_cannot_be_carried_out_is_refused_with_the_field_in_the_log() {
    let programs = Programs::ours();
    let system = system(&programs);
    // The service waits for a data source that cannot start until the recording ends.
    let config = format!("duration_ms: 500 {}", config("all: true"));
    let (mut recording, _) = system.begin(&system.program(Side::Ours, Program::Perfetto), &[], &config);
    recording.wait();
    await_that("the log says it", || {
        let log = system.log("heapprofd.log");
        log.contains("sampling_interval_bytes is not set")
    });
}
