//! From a ring to packets, with clients that are honest, dying and hostile.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use ferretto_heap_client::layout::{Kind, MIN_RING_WORDS, REGISTERS, allocation, header};
use ferretto_heap_client::ring::Ring;
use ferretto_proto::messages::profile_packet::ProcessHeapSamples;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{HeapprofdConfig, Message, TracePacket};

use super::*;
use crate::client::{About, Arrived};
use crate::memory::RingMemory;

/// A client that writes, and the collector that reads it.
struct Bench {
    collector: Collector,
    feed: Feed,
    /// The client's own mapping of it.
    ring: &'static RingMemory,
    packets: Vec<Vec<u8>>,
    pid: i32,
}

/// No process has this id.
const NOBODY: i32 = i32::MAX;

impl Bench {
    fn new(change: impl FnOnce(&mut HeapprofdConfig)) -> Bench {
        let mut config = HeapprofdConfig {
            sampling_interval_bytes: Some(4096),
            all: Some(true),
            ..Default::default()
        };
        change(&mut config);
        let config = HeapConfig::of(&config).expect("it is good");
        let (memory, file) = RingMemory::new(1 << 16).expect("there is memory");
        let client = RingMemory::of(&file, 1 << 16).expect("it can be mapped");
        Bench {
            collector: Collector::new(&config),
            feed: Feed::new(memory),
            ring: Box::leak(Box::new(client)),
            packets: Vec::new(),
            pid: NOBODY,
        }
    }

    fn ring(&self) -> Ring<'static> {
        self.ring.ring().expect("it is one")
    }

    fn write(&self, kind: Kind, words: &[u64]) {
        let space = self.ring().take(kind, words.len()).expect("there is space");
        for (index, word) in words.iter().enumerate() {
            space.write(index, *word);
        }
        space.complete();
    }

    fn heap(&self, number: u64, interval: u64, name: &[u8; 8]) {
        let mut words = vec![number, interval, u64::from_ne_bytes(*name)];
        words.resize(10, 0);
        self.write(Kind::Heap, &words);
    }

    fn allocate(&self, address: u64, sample_bytes: u64, registers: [u64; REGISTERS], stack: &[u64]) {
        let mut words = vec![1000 + address, address, 1, sample_bytes, 1];
        words.push(8 * stack.len() as u64);
        words.extend(registers);
        words.extend(stack);
        assert_eq!(words.len(), allocation::STACK + stack.len());
        self.write(Kind::Allocation, &words);
    }

    fn free(&self, address: u64) {
        self.write(Kind::Free, &[address, 1]);
    }

    fn read(&mut self) -> Entered {
        self.read_as(Edition::default())
    }

    /// Reads the ring as one more process with the same id, so that it has other call stacks.
    fn read_as(&mut self, edition: Edition) -> Entered {
        let who = Who {
            pid: self.pid,
            edition,
        };
        loop {
            match self.collector.enter(who, &mut self.feed, &mut self.packets) {
                Entered::Record => {}
                other => return other,
            }
        }
    }

    /// The first heap of a dump of everything, and the names of its stacks' innermost functions.
    fn dump(&mut self) -> (ProcessHeapSamples, Vec<String>) {
        let about = About {
            pid: self.pid,
            arrived: Arrived(1),
            from_startup: true,
            ending: None,
        };
        let dumps = self.collector.dumps(&mut self.feed, |told, heap, until| {
            about.header(told, heap, until)
        });
        self.collector.clear_incremental_state();
        for mut dump in dumps {
            while self.collector.write(&mut dump, &mut self.packets) == Step::More {}
        }
        let packets = std::mem::take(&mut self.packets);
        let packets: Vec<TracePacket> = packets
            .iter()
            .map(|packet| TracePacket::decode_from_slice(packet).expect("it is a packet"))
            .collect();
        let mut data = packets
            .iter()
            .filter_map(|packet| packet.interned_data.as_option());
        let data = data.nth(1).expect("it has interned data");
        let samples = packets.iter().find_map(|packet| match &packet.data {
            Some(Data::ProfilePacket(profile)) => profile.process_dumps.first().cloned(),
            _ => None,
        });
        let samples = samples.expect("it has samples");
        let name = |stack: u64| -> Option<String> {
            let stack = data.callstacks.iter().find(|known| known.iid == Some(stack))?;
            let frame = stack.frame_ids.last()?;
            let frame = data.frames.iter().find(|known| known.iid == Some(*frame))?;
            let name = data
                .function_names
                .iter()
                .find(|known| known.iid == frame.function_name_id)?;
            Some(String::from_utf8_lossy(name.str.as_deref()?).into_owned())
        };
        let names = samples.samples.iter().map(|sample| {
            let name = name(sample.callstack_id.expect("it has a stack"));
            name.unwrap_or_default()
        });
        let names = names.collect();
        (samples, names)
    }
}

#[test]
fn what_a_client_writes_comes_out_of_a_dump() {
    let mut bench = Bench::new(|_| {});
    bench.heap(1, 4096, b"malloc\0\0");
    bench.allocate(10, 5000, [0; REGISTERS], &[0; 8]);
    bench.allocate(20, 6000, [0; REGISTERS], &[]);
    bench.free(10);
    bench.free(99);
    assert_eq!(bench.read(), Entered::Nothing);
    let (samples, names) = bench.dump();
    assert_eq!(samples.heap_name.as_deref(), Some("malloc"));
    assert_eq!(samples.sampling_interval_bytes, Some(4096));
    assert_eq!(samples.timestamp, Some(1020));
    // The process does not exist, so all samples are of the stack that says so.
    assert_eq!(names, [GONE]);
    let sample = &samples.samples[0];
    assert_eq!(
        (sample.self_allocated, sample.self_freed),
        (Some(11_000), Some(5000))
    );
    let stats = samples.stats.as_option().expect("it has statistics");
    assert_eq!((stats.heap_samples, stats.unwinding_errors), (Some(2), Some(2)));
    assert_eq!(samples.buffer_overran, Some(false));
}

#[inline(never)]
fn a_function_that_allocates() {
    std::hint::black_box(());
}

/// The registers of a thread that has just called [`a_function_that_allocates`], whose return address is the first word of the stack.
#[cfg(target_arch = "x86_64")]
fn registers_in_function() -> [u64; REGISTERS] {
    let mut registers = [0; REGISTERS];
    // AX, BX, CX, DX, SI, DI, BP, SP, IP and more.
    registers[7] = 0x7ffc_0000_0000;
    registers[8] = a_function_that_allocates as *const () as u64;
    registers
}

#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_are_those_of_the_process() {
    let mut bench = Bench::new(|_| {});
    bench.pid = std::process::id().cast_signed();
    bench.allocate(10, 5000, registers_in_function(), &[0; 4]);
    bench.read();
    let sequence = bench.collector.interning.take_pending();
    assert!(!sequence.is_empty());
    bench.collector.interning.forget_told();
    let (samples, _) = bench.dump();
    assert_eq!(samples.samples.len(), 1);
    let data =
        ferretto_proto::messages::InternedData::decode_from_slice(sequence.as_slice()).expect("it is data");
    let names: Vec<_> = data
        .function_names
        .iter()
        .filter_map(|name| name.str.clone())
        .collect();
    let names = names
        .iter()
        .map(|name| String::from_utf8_lossy(name).into_owned());
    assert!(
        names
            .clone()
            .any(|name| name.contains("a_function_that_allocates")),
        "{:?}",
        names.collect::<Vec<_>>()
    );
}

#[test]
#[cfg(target_arch = "x86_64")]
fn functions_of_files_that_the_config_names_have_no_names() {
    let mut bench = Bench::new(|config| config.skip_symbol_prefix = vec!["/".to_owned()]);
    bench.pid = std::process::id().cast_signed();
    bench.allocate(10, 5000, registers_in_function(), &[0; 4]);
    bench.read();
    let sequence = bench.collector.interning.take_pending();
    let data =
        ferretto_proto::messages::InternedData::decode_from_slice(sequence.as_slice()).expect("it is data");
    let names: Vec<_> = data
        .function_names
        .iter()
        .filter_map(|name| name.str.as_deref())
        .collect();
    assert!(names.contains(&&b"FILTERED"[..]));
}

#[test]
fn after_the_deadline_allocations_count_without_their_stacks() {
    let mut bench = Bench::new(|_| {});
    bench.pid = std::process::id().cast_signed();
    bench.collector.set_unwinding(Unwinding::TooLate);
    for address in 0..5 {
        bench.allocate(address, 100, [0; REGISTERS], &[0; 8]);
    }
    bench.read();
    let (samples, names) = bench.dump();
    assert_eq!(names, [NOT_UNWOUND]);
    assert_eq!(samples.samples[0].self_allocated, Some(500));
    let losses = samples.losses.as_option().expect("it has losses");
    assert_eq!(losses.not_unwound, Some(5));
    assert_eq!(samples.buffer_overran, Some(false));
}

#[test]
fn what_the_client_lost_is_told() {
    let mut bench = Bench::new(|_| {});
    bench.heap(1, 4096, b"malloc\0\0");
    let counts = [
        (header::LOST_SAMPLES, 3),
        (header::LOST_BYTES, 4000),
        (header::LOST_FREES, 5),
        (header::UNTRACKED, 6),
        (header::WAITED_US, 7),
    ];
    for (place, count) in counts {
        bench.ring().header(place).store(count, Relaxed);
    }
    bench.read();
    let (samples, _) = bench.dump();
    assert_eq!(samples.buffer_overran, Some(true));
    let losses = samples.losses.as_option().expect("it has losses");
    assert_eq!(
        (losses.samples, losses.bytes, losses.frees, losses.untracked),
        (Some(3), Some(4000), Some(5), Some(6))
    );
    let stats = samples.stats.as_option().expect("it has statistics");
    assert_eq!(stats.client_spinlock_blocked_us, Some(7));
}

#[test]
fn a_ring_that_makes_no_sense_is_read_no_further() {
    let mut bench = Bench::new(|_| {});
    bench.heap(1, 4096, b"malloc\0\0");
    bench.allocate(10, 5000, [0; REGISTERS], &[0; 8]);
    // A record that is shorter than any allocation's.
    bench.write(Kind::Allocation, &[1, 2, 3]);
    bench.allocate(20, 5000, [0; REGISTERS], &[0; 8]);
    assert_eq!(bench.read(), Entered::End);
    assert_eq!(bench.read(), Entered::End);
    let (samples, _) = bench.dump();
    assert_eq!(
        (samples.buffer_corrupted, samples.disconnected),
        (Some(true), Some(true))
    );
    assert_eq!(samples.samples[0].self_allocated, Some(5000));
}

#[test]
fn what_a_dead_process_had_begun_to_write_is_passed_over_and_what_comes_later_is_not_read() {
    let mut bench = Bench::new(|_| {});
    bench.allocate(10, 1, [0; REGISTERS], &[]);
    let _never_completed = bench.ring().take(Kind::Free, 2).expect("there is space");
    bench.allocate(20, 2, [0; REGISTERS], &[]);
    assert_eq!(bench.read(), Entered::Incomplete);
    bench.feed.end_here();
    bench.allocate(30, 4, [0; REGISTERS], &[]);
    bench.feed.pass_over();
    assert_eq!(bench.read(), Entered::End);
    let (samples, _) = bench.dump();
    assert_eq!(samples.samples[0].self_allocated, Some(3));
    assert_eq!(
        samples.losses.as_option().and_then(|losses| losses.samples),
        Some(1)
    );
}

#[test]
fn streamed_records_are_written_at_once_and_not_dumped() {
    let mut bench = Bench::new(|config| config.stream_allocations = Some(true));
    bench.heap(1, 4096, b"malloc\0\0");
    bench.allocate(10, 5000, [0; REGISTERS], &[]);
    bench.free(10);
    bench.read();
    assert_eq!(bench.packets.len(), 2);
    assert_eq!(bench.feed.profile.live(), 0);
}

#[test]
fn any_words_in_the_ring_leave_the_books_readable() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..200 {
        let mut bench = Bench::new(|_| {});
        bench.heap(1, 4096, b"malloc\0\0");
        let words = next() % MIN_RING_WORDS as u64;
        for _ in 0..words {
            let kind = [Kind::Allocation, Kind::Free, Kind::Heap][(next() % 3) as usize];
            let length = (next() % 40) as usize;
            let Some(space) = bench.ring().take(kind, length) else {
                break;
            };
            for index in 0..length {
                let small = next() % 4 != 0;
                space.write(index, if small { next() % 64 } else { next() });
            }
            space.complete();
        }
        // And space that no writer has taken.
        bench.ring().header(header::WRITE).fetch_add(next() % 64, Relaxed);
        bench.read();
        let (samples, _) = bench.dump();
        for sample in &samples.samples {
            assert!(sample.self_freed <= sample.self_allocated && sample.free_count <= sample.alloc_count);
        }
    }
}

#[test]
fn stacks_that_nobody_needs_are_forgotten_and_those_in_dumps_are_not() {
    let mut bench = Bench::new(|_| {});
    let ids: Vec<CallstackId> = ["a", "b", "c"].map(|name| bench.collector.named(name)).into();
    let account = |stack| crate::books::Account {
        stack,
        allocated: 1,
        freed: 0,
        allocations: 1,
        frees: 0,
        most: Default::default(),
    };
    let about = About {
        pid: 1,
        arrived: Arrived(0),
        from_startup: true,
        ending: None,
    };
    let header = about.header(&bench.feed.told(), &Heap::default(), 0);
    let waiting = Dump::new(header, vec![account(ids[1])]);
    let mut sample = Allocation {
        timestamp: 0,
        address: 1,
        bytes: 1,
        sample_bytes: 1,
        heap: 1,
        tid: 1,
        registers: &[],
        stack: &[],
        is_stack_cut: false,
    };
    bench.feed.profile.allocate(&sample, ids[2], 10);
    // This one has freed everything, and readers know it.
    sample.address = 2;
    bench.feed.profile.allocate(&sample, ids[0], 10);
    bench.feed.profile.free(1, 2);
    bench.dump();
    let Bench { collector, feed, .. } = &mut bench;
    let before = collector.interning.callstacks();
    collector.forget_stacks([feed].into_iter(), [&waiting].into_iter());
    assert_eq!(collector.interning.callstacks(), before - 1);
    assert_eq!(collector.named("b"), ids[1]);
    assert_eq!(collector.named("c"), ids[2]);
    assert_ne!(collector.named("a"), ids[0]);
}

/// A client with ever new call stacks. A dump tells of each hundred.
struct EverNew {
    bench: Bench,
    allocations: u64,
    /// The last account of each call stack that readers got.
    told: BTreeMap<u64, crate::books::Account>,
}

impl EverNew {
    const SHARE: usize = 200_000;

    fn new() -> EverNew {
        EverNew::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut HeapprofdConfig)) -> EverNew {
        let mut bench = Bench::new(change);
        bench.collector.most_interned_of_client = EverNew::SHARE;
        EverNew {
            bench,
            allocations: 0,
            told: BTreeMap::new(),
        }
    }

    /// A hundred new stacks, of which some keep their allocation, and a dump.
    fn round(&mut self, keeps: impl Fn(u64) -> bool) {
        self.allocate(keeps);
        self.dump();
    }

    /// A hundred new stacks, of which some keep their allocation.
    fn allocate(&mut self, keeps: impl Fn(u64) -> bool) {
        for _ in 0..100 {
            self.allocations += 1;
            let number = self.allocations;
            self.bench.allocate(number, 10, [0; REGISTERS], &[]);
            if !keeps(number) {
                self.bench.free(number);
            }
            self.bench.read_as(Edition(number as u32));
        }
    }

    fn dump(&mut self) {
        self.bench.packets.clear();
        let about = About {
            pid: NOBODY,
            arrived: Arrived(1),
            from_startup: true,
            ending: None,
        };
        let Bench {
            collector,
            feed,
            packets,
            ..
        } = &mut self.bench;
        let mut dumps = collector.dumps(feed, |told, heap, until| about.header(told, heap, until));
        for dump in &dumps {
            self.told
                .extend(dump.accounts.iter().map(|account| (account.stack.0, *account)));
        }
        // The stacks of a dump are kept until it is written.
        collector.make_room([&mut *feed].into_iter(), dumps.iter());
        for dump in &mut dumps {
            while collector.write(dump, packets) == Step::More {}
        }
        collector.make_room([feed].into_iter(), [].iter());
    }

    fn merged(&self) -> u64 {
        self.bench.feed.profile.losses.merged
    }
}

#[test]
fn a_client_with_ever_new_call_stacks_never_uses_up_its_share() {
    let mut client = EverNew::new();
    for round in 0..200 {
        client.round(|_| false);
        let bytes = client.bench.feed.interned_bytes;
        assert!(bytes < EverNew::SHARE, "round {round}: {bytes}");
        let all = client.bench.collector.interning.memory_bytes();
        assert!(all < 2 * EverNew::SHARE, "round {round}: {all}");
    }
    assert_eq!(client.merged(), 0);
    // Readers get everything exactly once.
    let told = client.told.values();
    let sums = told.fold((0, 0), |(allocated, freed), account| {
        (allocated + account.allocated, freed + account.freed)
    });
    assert_eq!(sums, (200_000, 200_000));
}

#[test]
fn a_client_with_ever_new_call_stacks_between_two_dumps_is_dumped_before_its_time() {
    let (mut client, mut dumps) = (EverNew::new(), 0);
    for _ in 0..200 {
        client.allocate(|_| false);
        if client.bench.collector.wants_dump(&mut client.bench.feed) {
            client.dump();
            dumps += 1;
        }
    }
    client.dump();
    assert_eq!(client.merged(), 0);
    assert!((2..50).contains(&dumps), "{dumps}");
    let bytes = client.told.values().map(|account| account.allocated);
    assert_eq!(bytes.sum::<u64>(), 200_000);
    // A dump would free nothing, or say something else than readers expect.
    let in_use = |number| number != 0;
    let mut client = EverNew::new();
    (0..50).for_each(|_| client.allocate(in_use));
    assert!(client.merged() > 0 && !client.bench.collector.wants_dump(&mut client.bench.feed));
    let mut client = EverNew::with(|config| config.dump_at_max = Some(true));
    (0..50).for_each(|_| client.allocate(|_| false));
    assert!(client.merged() > 0 && !client.bench.collector.wants_dump(&mut client.bench.feed));
}

#[test]
fn a_client_whose_call_stacks_are_all_in_use_keeps_to_its_share() {
    let mut client = EverNew::new();
    for _ in 0..50 {
        client.round(|_| true);
    }
    assert!(client.merged() > 0);
    let all = client.bench.collector.interning.memory_bytes();
    assert!(all < EverNew::SHARE + EverNew::SHARE / 8, "{all}");
    // All of them are given back, and there is room again once readers know it.
    (1..=client.allocations).for_each(|number| client.bench.free(number));
    client.bench.read();
    client.round(|_| false);
    let merged = client.merged();
    for _ in 0..50 {
        client.round(|_| false);
    }
    assert_eq!(client.merged(), merged);
}

#[test]
fn the_clients_of_one_user_leave_room_for_those_of_another() {
    let mut client = EverNew::new();
    client.bench.collector.most_interned_of_client = usize::MAX;
    let all = Share {
        live: 300,
        interned: Limits {
            callstacks: 200,
            ..Limits::HEAP_PROFILE
        },
    };
    client.bench.collector.shares = Shares::new(Users::Any, all);
    let losses = |client: &EverNew| {
        let losses = client.bench.feed.profile.losses;
        (losses.merged, losses.untracked)
    };
    // A second client of the same user finds nothing more.
    client.allocate(|_| true);
    assert_eq!(losses(&client), (0, 0));
    let mut next = |user: u32| {
        let other = Bench::new(|_| {});
        let before = std::mem::replace(&mut client.bench.feed, other.feed);
        client.bench.ring = other.ring;
        client.bench.feed.user = user;
        client.allocate(|_| true);
        (before, losses(&client))
    };
    assert_eq!(next(0).1, (100, 50));
    let (second, of_another) = next(7);
    assert_eq!(of_another, (0, 0));
    // What ends makes room again.
    client.bench.collector.forget(NOBODY, &second);
    let collector = &mut client.bench.collector;
    assert_eq!(collector.shares.room_for_live(0), 50);
    collector.forget_stacks([&mut client.bench.feed].into_iter(), [].iter());
    assert!(collector.shares.may_grow(0));
}
