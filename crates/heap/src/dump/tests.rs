//! Packets as readers expect them.

use ferretto_client::runtime::probe::LossySink;
use ferretto_profile::interning::{CallstackId, Limits, Mapping};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, TracePacket as Packet};

use super::*;
use crate::books::Books;

fn take(sink: &mut LossySink) -> Vec<Packet> {
    let packets = std::mem::take(&mut sink.packets);
    let decode = |packet: &Vec<u8>| Packet::decode_from_slice(packet).expect("it is a packet");
    packets.iter().map(decode).collect()
}

fn header() -> Header {
    Header {
        pid: 7,
        from_startup: true,
        disconnected: false,
        buffer_corrupted: false,
        hit_guardrail: false,
        timed_out: false,
        out_of_reach: false,
        heap_name: "libc.malloc".to_owned(),
        interval: 8192,
        first_interval: 4096,
        covers: 100..200,
        stats: Stats::default(),
        waited: Duration::from_micros(9),
        losses: Losses::default(),
    }
}

fn interning() -> Interning {
    Interning::with_overflow(Limits::HEAP_PROFILE, "too many")
}

fn stack(interning: &mut Interning, pc: u64) -> CallstackId {
    let file = interning.mapping(&Mapping {
        path: b"/bin/app",
        ..Mapping::default()
    });
    let frame = interning.frame(file, format!("function {pc}").as_bytes(), pc);
    interning.callstack(&[frame])
}

/// A dump of this many stacks, which have allocated as many bytes as their place says.
fn dump(interning: &mut Interning, stacks: u64) -> Dump {
    let mut books = Books::default();
    for pc in 1..=stacks {
        books.allocate(pc, pc, stack(interning, pc), 150);
    }
    Dump::new(header(), books.tell(Recorded::Totals))
}

#[test]
fn a_dump_says_what_upstreams_says() {
    let (mut output, mut interning, mut sink) =
        (Output::new(Recorded::Totals), interning(), LossySink::default());
    let mut books = Books::default();
    let id = stack(&mut interning, 1);
    books.allocate(1, 10, id, 150);
    books.allocate(2, 20, id, 160);
    books.free(1);
    output.write(
        &mut Dump::new(header(), books.tell(Recorded::Totals)),
        &mut interning,
        &mut sink,
    );
    let packets = take(&mut sink);
    assert_eq!(packets.len(), 3);
    // The empty string, then what the dump refers to.
    assert_eq!(packets[0].sequence_flags, Some(1));
    // Readers take it although packets before it are lost: its numbers never change.
    assert_eq!(packets[1].sequence_flags, None);
    let data = packets[1]
        .interned_data
        .as_option()
        .expect("it has interned data");
    assert!(data.callstacks.iter().any(|stack| stack.iid == Some(id.0)));
    let Some(Data::ProfilePacket(profile)) = &packets[2].data else {
        panic!("it is a profile")
    };
    assert_eq!((profile.index, profile.continued), (Some(0), None));
    let process = &profile.process_dumps[0];
    assert_eq!((process.pid, process.from_startup), (Some(7), Some(true)));
    assert_eq!(
        (process.start_timestamp, process.timestamp),
        (Some(100), Some(200))
    );
    assert_eq!(process.heap_name.as_deref(), Some("libc.malloc"));
    assert_eq!(
        (
            process.sampling_interval_bytes,
            process.orig_sampling_interval_bytes
        ),
        (Some(8192), Some(4096))
    );
    assert_eq!(
        (process.disconnected, process.buffer_overran),
        (Some(false), Some(false))
    );
    assert_eq!(process.client_error, Some(ClientError::CLIENT_ERROR_NONE));
    assert!(!process.losses.is_set());
    let stats = process.stats.as_option().expect("it has statistics");
    assert_eq!(stats.client_spinlock_blocked_us, Some(9));
    let buckets = &stats
        .unwinding_time_us
        .as_option()
        .expect("it has a histogram")
        .buckets;
    assert_eq!((buckets.len(), buckets[3].upper_limit), (20, Some(8)));
    assert_eq!(buckets[19].max_bucket, Some(true));
    let sample = &process.samples[0];
    assert_eq!(
        (sample.callstack_id, sample.self_allocated, sample.self_freed),
        (Some(id.0), Some(30), Some(10))
    );
    assert_eq!((sample.alloc_count, sample.free_count), (Some(2), Some(1)));
    assert_eq!((sample.self_max, sample.self_max_count), (None, None));
}

#[test]
fn the_maximum_is_told_in_its_own_fields() {
    let (mut output, mut interning, mut sink) =
        (Output::new(Recorded::Maximum), interning(), LossySink::default());
    output.write(&mut dump(&mut interning, 1), &mut interning, &mut sink);
    let packets = take(&mut sink);
    let Some(Data::ProfilePacket(profile)) = &packets[2].data else {
        panic!("it is a profile")
    };
    let sample = &profile.process_dumps[0].samples[0];
    assert_eq!((sample.self_max, sample.self_max_count), (Some(1), Some(1)));
    assert_eq!((sample.self_allocated, sample.alloc_count), (None, None));
}

#[test]
fn a_large_dump_is_cut_into_packets_of_bounded_size_that_belong_together() {
    let (mut output, mut interning, mut sink) =
        (Output::new(Recorded::Totals), interning(), LossySink::default());
    let mut large = dump(&mut interning, 10_000);
    output.write(&mut large, &mut interning, &mut sink);
    output.write(&mut dump(&mut interning, 1), &mut interning, &mut sink);
    let largest = sink.packets.iter().map(Vec::len).max();
    assert!(largest < Some(150_000), "{largest:?}");
    let (mut known, mut index, mut samples) = (0, 0, 0);
    let mut continued = Vec::new();
    for packet in take(&mut sink) {
        if let Some(data) = packet.interned_data.as_option() {
            known += data.callstacks.len();
        }
        if let Some(Data::ProfilePacket(profile)) = &packet.data {
            // With one for the stacks without room.
            assert_eq!(known, 10_001);
            assert_eq!(profile.index, Some(index));
            index += 1;
            samples += profile.process_dumps[0].samples.len();
            continued.push(profile.continued.unwrap_or(false));
        }
    }
    assert_eq!(samples, 10_001);
    assert_eq!(continued, [true, true, false, false]);
}

#[test]
fn interned_data_is_repeated_with_its_numbers_after_a_loss_and_on_request() {
    let (mut output, mut interning, mut sink) =
        (Output::new(Recorded::Totals), interning(), LossySink::default());
    let interned = |packets: Vec<Packet>| -> Vec<u64> {
        let data = packets
            .iter()
            .filter_map(|packet| packet.interned_data.as_option());
        data.flat_map(|data| &data.callstacks)
            .filter_map(|stack| stack.iid)
            .collect()
    };
    let mut again = |output: &mut Output, sink: &mut LossySink| {
        output.write(&mut dump(&mut interning, 5), &mut interning, sink);
        interned(take(sink))
    };
    let first = again(&mut output, &mut sink);
    assert_eq!(first.len(), 6);
    assert!(again(&mut output, &mut sink).is_empty());
    sink.losses += 1;
    assert_eq!(again(&mut output, &mut sink), first);
    assert!(again(&mut output, &mut sink).is_empty());
    output.clear_incremental_state();
    assert_eq!(again(&mut output, &mut sink), first);
}

#[test]
fn losses_are_told_as_upstreams_readers_know_it_and_exactly() {
    let (mut output, mut interning, mut sink) =
        (Output::new(Recorded::Totals), interning(), LossySink::default());
    let mut process = |losses: Losses, timed_out: bool| {
        let header = Header {
            losses,
            timed_out,
            ..header()
        };
        output.write(&mut Dump::new(header, Vec::new()), &mut interning, &mut sink);
        let Some(Data::ProfilePacket(profile)) = take(&mut sink).pop().and_then(|packet| packet.data) else {
            panic!("it is a profile")
        };
        profile.process_dumps[0].clone()
    };
    let lost = Losses {
        samples: 3,
        bytes: 4000,
        frees: 2,
        untracked: 1,
        merged: 5,
        not_unwound: 6,
    };
    let told = process(lost, false);
    assert_eq!(told.buffer_overran, Some(true));
    assert_eq!(told.client_error, Some(ClientError::CLIENT_ERROR_NONE));
    let losses = told.losses.as_option().expect("it has losses");
    assert_eq!(
        (losses.samples, losses.bytes, losses.frees),
        (Some(3), Some(4000), Some(2))
    );
    assert_eq!(
        (losses.untracked, losses.merged, losses.not_unwound),
        (Some(1), Some(5), Some(6))
    );
    // Nothing but call stacks is missing.
    let merged = process(
        Losses {
            merged: 5,
            ..Losses::default()
        },
        false,
    );
    assert_eq!(merged.buffer_overran, Some(false));
    assert!(merged.losses.is_set());
    assert_eq!(process(Losses::default(), true).buffer_overran, Some(true));
}

#[test]
fn processes_of_other_sessions_are_told_by_their_ids() {
    let (mut output, mut interning, mut sink) =
        (Output::new(Recorded::Totals), interning(), LossySink::default());
    output.rejected([7, 8], &mut interning, &mut sink);
    let Some(Data::ProfilePacket(profile)) = take(&mut sink).pop().and_then(|packet| packet.data) else {
        panic!("it is a profile")
    };
    let pids: Vec<_> = profile.process_dumps.iter().map(|dump| dump.pid).collect();
    assert_eq!(pids, [Some(7), Some(8)]);
    assert!(
        profile
            .process_dumps
            .iter()
            .all(|dump| dump.rejected_concurrent == Some(true))
    );
    assert_eq!(profile.index, Some(0));
}

#[test]
fn what_is_streamed_is_told_one_by_one() {
    let (mut output, mut sink) = (Output::new(Recorded::Stream), LossySink::default());
    let allocation = Allocation {
        timestamp: 5,
        address: 6,
        bytes: 7,
        sample_bytes: 8,
        heap: 9,
        tid: 10,
        registers: &[],
        stack: &[],
        is_stack_cut: false,
    };
    output.stream_allocation(&allocation, &mut sink);
    output.stream_free(9, 6, &mut sink);
    let packets = take(&mut sink);
    let (Some(Data::StreamingAllocation(allocated)), Some(Data::StreamingFree(freed))) =
        (&packets[0].data, &packets[1].data)
    else {
        panic!("they are streamed")
    };
    assert_eq!((allocated.address[0], allocated.size[0]), (6, 7));
    assert_eq!((allocated.sample_size[0], allocated.heap_id[0]), (8, 9));
    assert_eq!(allocated.clock_monotonic_coarse_timestamp[0], 5);
    assert_eq!((freed.address[0], freed.heap_id[0]), (6, 9));
    assert_eq!((allocated.sequence_number[0], freed.sequence_number[0]), (1, 2));
}

#[test]
fn a_client_that_cannot_reach_the_daemon_has_not_timed_out() {
    let (mut output, mut interning, mut sink) =
        (Output::new(Recorded::Totals), interning(), LossySink::default());
    let header = Header {
        out_of_reach: true,
        disconnected: true,
        ..header()
    };
    output.write(&mut Dump::new(header, Vec::new()), &mut interning, &mut sink);
    let Some(Data::ProfilePacket(profile)) = take(&mut sink).pop().and_then(|packet| packet.data) else {
        panic!("it is a profile")
    };
    let told = &profile.process_dumps[0];
    assert_eq!(told.client_error, Some(ClientError::CLIENT_ERROR_NONE));
    // Upstream's readers know that something is missing.
    assert_eq!((told.buffer_overran, told.disconnected), (Some(true), Some(true)));
    let losses = told.losses.as_option().expect("it has losses");
    assert_eq!((losses.out_of_reach, losses.samples), (Some(true), Some(0)));
}
