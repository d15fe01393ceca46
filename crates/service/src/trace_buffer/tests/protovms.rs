//! Packets that are overwritten unread go through the programs of the buffer: whole, in order and once. Nothing else
//! changes.

use super::*;
use ferretto_proto::messages::vm_instruction::Operation;
use ferretto_proto::messages::vm_op_select::PathComponent;
use ferretto_proto::messages::vm_op_select::path_component::Field;
use ferretto_proto::messages::{VmCursorEnum, VmInstruction, VmOpSelect, VmProgram};
use ferretto_wire::{Reader, Writer};

/// Number of the field by which packets are told apart, and of the one that makes them as long as they should be.
const NUMBER: u32 = 4;
const FILLER: u32 = 5;

/// Keeps the number of each packet that it sees, in a list that is ordered by them, and the last of them.
fn collects() -> VmProgram {
    let component = |field| PathComponent {
        field: Some(field),
        ..Default::default()
    };
    let instruction = |operation, nested_instructions| VmInstruction {
        operation: Some(operation),
        nested_instructions,
        ..Default::default()
    };
    let select = |cursor, path: Vec<PathComponent>, nested| {
        let select = VmOpSelect {
            cursor: Some(cursor),
            relative_path: path,
            create_if_not_exist: (cursor == VmCursorEnum::VM_CURSOR_DST).then_some(true),
            ..Default::default()
        };
        instruction(Operation::Select(Box::new(select)), nested)
    };
    let keyed = PathComponent {
        register_to_match: Some(0),
        ..component(Field::MapKeyFieldId(NUMBER))
    };
    let set = || instruction(Operation::Set(Box::default()), Vec::new());
    let load = instruction(Operation::RegLoad(Box::default()), Vec::new());
    let list = vec![component(Field::FieldId(1)), keyed];
    let last = vec![component(Field::FieldId(2))];
    let nested = vec![
        load,
        select(VmCursorEnum::VM_CURSOR_DST, list, vec![set()]),
        select(VmCursorEnum::VM_CURSOR_DST, last, vec![set()]),
    ];
    let path = vec![component(Field::FieldId(NUMBER))];
    VmProgram {
        instructions: vec![select(VmCursorEnum::VM_CURSOR_SRC, path, nested)],
        ..Default::default()
    }
}

impl Fixture {
    fn with_vm(mut self, producers: &[u32]) -> Self {
        for producer in producers {
            let vms = self.0.protovms_mut();
            vms.set_up("test", &collects(), 64, ProducerId(*producer))
                .expect("a good program");
        }
        self
    }

    /// The numbers of the packets that were merged, in ascending order, and the last.
    fn merged(&self) -> (Vec<u64>, Option<u64>) {
        let vms = self.0.protovms().expect("there are programs");
        let mut out = Writer::new();
        vms.instances().next().expect("one").write(&mut out);
        let fields = |message: Vec<u8>, number: u32| -> Vec<Vec<u8>> {
            let fields = Reader::new(&message).map(|field| field.expect("a field"));
            let fields = fields.filter(|field| field.number == number);
            fields
                .filter_map(|field| field.value.as_bytes().map(<[u8]>::to_vec))
                .collect()
        };
        let state = fields(out.into_vec(), 2).remove(0);
        let numbers = |number: u32| -> Vec<u64> {
            let fields = Reader::new(&state).map(|field| field.expect("a field"));
            let fields = fields.filter(|field| field.number == number);
            fields.filter_map(|field| field.value.as_varint()).collect()
        };
        (numbers(1), numbers(2).last().copied())
    }
}

/// A packet with this number, of about `size` bytes.
fn packet(number: u64, size: usize) -> Vec<u8> {
    let mut out = Writer::new();
    out.varint_field(NUMBER, number);
    out.bytes_field(FILLER, &vec![7; size - 8]);
    out.into_vec()
}

impl TestChunk {
    /// A fragment of these bytes.
    fn bytes(self, bytes: &[u8]) -> Self {
        let mut fragment = vec![0; 2];
        put_padded_varint(&mut fragment, bytes.len() as u64);
        fragment.extend_from_slice(bytes);
        self.raw(&fragment)
    }

    fn packet(self, number: u64, size: usize) -> Self {
        self.bytes(&packet(number, size))
    }
}

/// Overwrites everything there is with chunks of another producer, which has no program.
fn overwrite_all(buffer: &mut Fixture) {
    for id in 0..2 {
        buffer.commit(chunk(9, 9, id).whole('z', 2032));
    }
}

/// The memory that a buffer takes.
fn footprint(buffer: &Fixture) -> u64 {
    let mut footprint = Footprint::default();
    footprint.add(&buffer.0);
    footprint.bytes()
}

#[test]
fn packets_are_merged_exactly_when_they_are_overwritten() {
    let mut buffer = ring(4096).with_vm(&[1]);
    for id in 0..4 {
        buffer.commit(chunk(1, 1, id).packet(u64::from(id), 900));
    }
    assert_eq!(buffer.merged(), (vec![], None));
    for id in 4..6 {
        buffer.commit(chunk(1, 1, id).packet(u64::from(id), 900));
    }
    assert_eq!(buffer.merged(), (vec![0, 1], Some(1)));
    overwrite_all(&mut buffer);
    assert_eq!(buffer.merged(), (vec![0, 1, 2, 3, 4, 5], Some(5)));
}

#[test]
fn read_packets_are_not_merged() {
    let mut buffer = ring(4096).with_vm(&[1]);
    buffer.commit(chunk(1, 1, 0).packet(0, 100).packet(1, 100).packet(2, 100));
    buffer.0.begin_read();
    for _ in 0..2 {
        assert!(buffer.0.read_next_packet().is_some());
    }
    overwrite_all(&mut buffer);
    assert_eq!(buffer.merged(), (vec![2], Some(2)));
}

#[test]
fn only_packets_of_the_programs_producers_are_merged() {
    let mut buffer = ring(4096).with_vm(&[1, 3]);
    for producer in 1..4 {
        buffer.commit(chunk(producer, 1, 0).packet(producer.into(), 100));
    }
    overwrite_all(&mut buffer);
    assert_eq!(buffer.merged(), (vec![1, 3], Some(3)));
}

#[test]
fn a_packet_in_several_chunks_is_merged_whole_when_its_first_is_overwritten() {
    let mut buffer = ring(4096).with_vm(&[1]);
    let long = packet(1, 1500);
    let long = long.as_slice();
    buffer.commit(chunk(1, 1, 0).packet(0, 100).bytes(&long[..500]).flag(2));
    buffer.commit(chunk(1, 1, 1).bytes(&long[500..1000]).flag(1 | 2));
    buffer.commit(chunk(1, 1, 2).bytes(&long[1000..]).flag(1).packet(2, 100));
    buffer.commit(chunk(9, 8, 0).whole('y', 2000));
    assert_eq!(buffer.merged(), (vec![], None));
    buffer.commit(chunk(9, 8, 1).whole('z', 500));
    assert_eq!(buffer.merged(), (vec![0, 1], Some(1)));
    let overwritten = buffer.0.stats().chunks_overwritten;
    assert_eq!(overwritten, 2, "the middle of the packet goes with its start");
    overwrite_all(&mut buffer);
    assert_eq!(buffer.merged(), (vec![0, 1, 2], Some(2)));
}

#[test]
fn packets_that_are_not_whole_are_not_merged() {
    let long = packet(7, 600);
    let (start, end) = long.split_at(300);
    // The end is not there, the start is not, the one between them is not, patches are to come.
    let mut lost: [Vec<TestChunk>; 4] = [
        vec![chunk(1, 1, 0).packet(0, 50).bytes(start).flag(2)],
        vec![chunk(1, 1, 1).bytes(end).flag(1).packet(0, 50)],
        vec![
            chunk(1, 1, 0).packet(0, 50).bytes(start).flag(2),
            chunk(1, 1, 2).bytes(end).flag(1),
        ],
        vec![
            chunk(1, 1, 0).packet(0, 50).bytes(start).flag(2).needs_patching(),
            chunk(1, 1, 1).bytes(end).flag(1),
        ],
    ];
    for chunks in &mut lost {
        let mut buffer = ring(4096).with_vm(&[1]);
        chunks.drain(..).for_each(|chunk| buffer.commit(chunk));
        overwrite_all(&mut buffer);
        assert_eq!(buffer.merged(), (vec![0], Some(0)));
    }
}

#[test]
fn a_patched_packet_is_merged_as_patched() {
    let mut buffer = ring(4096).with_vm(&[1]);
    let whole = packet(1, 600);
    let mut holes = whole.clone();
    holes[..4].fill(0);
    buffer.commit(chunk(1, 1, 0).bytes(&holes[..300]).flag(2).needs_patching());
    buffer.commit(chunk(1, 1, 1).bytes(&holes[300..]).flag(1));
    let patch = whole[..4].try_into().expect("four");
    assert!(buffer.patch((1, 1, 0), 2, patch, MorePatches::Done));
    overwrite_all(&mut buffer);
    assert_eq!(buffer.merged(), (vec![1], Some(1)));
}

#[test]
fn a_scraped_chunk_is_merged_once_even_if_its_rest_comes_later() {
    let mut buffer = ring(4096).with_vm(&[1]);
    let growing = || chunk(1, 1, 0).packet(0, 50).packet(1, 50).packet(2, 50);
    buffer.scrape(growing().padded_to(1024));
    overwrite_all(&mut buffer);
    assert_eq!(buffer.merged(), (vec![0, 1], Some(1)));
    buffer.commit(growing().packet(3, 50));
    overwrite_all_again(&mut buffer);
    assert_eq!(buffer.merged(), (vec![0, 1, 2, 3], Some(3)));
}

fn overwrite_all_again(buffer: &mut Fixture) {
    for id in 2..5 {
        buffer.commit(chunk(9, 9, id).whole('z', 2032));
    }
}

#[test]
fn chunks_that_came_out_of_order_are_merged_in_order() {
    let mut buffer = ring(4096).with_vm(&[1]);
    for id in [2, 0, 1] {
        buffer.commit(chunk(1, 1, id).packet(10 - u64::from(id), 50));
    }
    overwrite_all(&mut buffer);
    assert_eq!(buffer.merged(), (vec![8, 9, 10], Some(8)));
}

#[test]
fn a_copy_has_programs_with_the_state_of_its_time() {
    let mut buffer = ring(4096).with_vm(&[1]);
    let before = footprint(&buffer);
    buffer.commit(chunk(1, 1, 0).packet(0, 900));
    buffer.commit(chunk(1, 1, 1).packet(1, 900));
    overwrite_all(&mut buffer);
    assert!(footprint(&buffer) > before + buffer.0.used_size());
    buffer.commit(chunk(1, 1, 2).packet(2, 900));
    let copy = Fixture(buffer.0.clone_read_only().expect("memory"));
    overwrite_all_again(&mut buffer);
    assert_eq!(copy.merged(), (vec![0, 1], Some(1)));
    assert_eq!(buffer.merged(), (vec![0, 1, 2], Some(2)));
    assert!(footprint(&copy) > copy.0.used_size());
}

/// A writer of the test below.
#[derive(Default)]
struct RandomWriter {
    next_chunk: u32,
    /// The fragments of a packet that the writer still has to write.
    rest: Vec<u8>,
    /// The step in which the packet was begun.
    begun: usize,
}

impl RandomWriter {
    /// Its next chunk. Numbers of the packets that it completes go into `written`.
    fn chunk(
        &mut self,
        random: &mut Random,
        writer: usize,
        number: &mut u64,
        written: &mut Vec<u64>,
    ) -> TestChunk {
        let mut next = chunk(1 + writer as u32 / 2, writer as u16, self.next_chunk);
        self.next_chunk += 1;
        if !self.rest.is_empty() {
            let size = self.rest.len().min(1 + random.below(400));
            let later = self.rest.split_off(size);
            next = next.bytes(&std::mem::replace(&mut self.rest, later)).flag(1);
            if !self.rest.is_empty() {
                return next.flag(2);
            }
            written.push(*number);
        }
        for _ in 0..random.below(4) {
            *number += 4;
            let whole = packet(*number, 20 + random.below(300));
            if random.one_in(3) {
                let (start, end) = whole.split_at(1 + random.below(whole.len() - 1));
                self.rest = end.to_vec();
                return next.bytes(start).flag(2);
            }
            next = next.bytes(&whole);
            written.push(*number);
        }
        next
    }
}

/// Every packet is either read or merged, unless it is still there. The packets that are read or marked as lost, and the counters, are the same
/// without programs.
#[test]
fn programs_see_all_that_is_not_read_and_change_nothing() {
    let first = number_from_env("FERRETTO_TRACE_BUFFER_SEED").unwrap_or(1);
    let seeds = number_from_env("FERRETTO_TRACE_BUFFER_SEEDS").unwrap_or(100);
    let mut merged_in_all = 0;
    for seed in first..first + seeds {
        let mut random = Random(seed);
        let mut with = ring(32 * 1024).with_vm(&[1, 2]);
        let mut without = ring(32 * 1024);
        let mut writers: [RandomWriter; 4] = Default::default();
        let mut numbers = [0, 1, 2, 3];
        let (mut written, mut read) = (Vec::new(), Vec::new());
        for step in 0..400 {
            // No packet waits until its start is overwritten, because it would not be whole then.
            let waiting = (0..4).filter(|writer| !writers[*writer].rest.is_empty());
            let writer = match waiting.min_by_key(|writer| writers[*writer].begun) {
                Some(writer) if writers[writer].begun + 3 < step => writer,
                _ => random.below(4),
            };
            let had_rest = !writers[writer].rest.is_empty();
            let chunk = writers[writer].chunk(&mut random, writer, &mut numbers[writer], &mut written);
            if !had_rest {
                writers[writer].begun = step;
            }
            assert_eq!(with.try_commit(&chunk), without.try_commit(&chunk), "seed {seed}");
            if random.one_in(60) {
                with.0.begin_read();
                without.0.begin_read();
                for _ in 0..random.below(30) {
                    let ours = with.0.read_next_packet().map(|packet| contents(&packet));
                    let theirs = without.0.read_next_packet().map(|packet| contents(&packet));
                    assert_eq!(ours, theirs, "seed {seed}");
                    read.extend(ours.map(|(bytes, ..)| number_of(&bytes)));
                }
            }
            assert_eq!(with.stats(), without.stats(), "seed {seed}");
        }
        let (merged, _) = with.merged();
        merged_in_all += merged.len();
        with.0.begin_read();
        while let Some(packet) = with.0.read_next_packet() {
            read.push(number_of(&contents(&packet).0));
        }
        let mut seen = [merged, read].concat();
        seen.sort_unstable();
        written.sort_unstable();
        assert_eq!(seen, written, "seed {seed}");
    }
    assert!(
        merged_in_all > 50 * seeds as usize,
        "only {merged_in_all} packets"
    );
}

/// The bytes of a packet, its losses and its sequence.
fn contents(packet: &ReadPacket<'_>) -> (Vec<u8>, LossReasons, SequenceInfo) {
    let bytes = packet.fragments().flatten().copied().collect();
    (bytes, packet.losses, packet.sequence)
}

fn number_of(packet: &[u8]) -> u64 {
    let mut fields = Reader::new(packet).map_while(Result::ok);
    let number = fields.find(|field| field.number == NUMBER);
    let number = number.and_then(|field| field.value.as_varint());
    number.expect("packets have numbers")
}
