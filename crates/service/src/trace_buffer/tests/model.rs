//! The trace buffer against a naive model: for each writer the list of packets it wrote and the list of its chunks
//! that should be in the buffer.
//!
//! A run makes random writers write packets into chunks, commits, scrapes, loses and patches the chunks in random
//! orders, and reads now and then. After every packet the model says which packet that sequence had to give next
//! and whether a loss had to be marked; after every read cycle it says that nothing readable was withheld.
//!
//! `FERRETTO_TRACE_BUFFER_SEED=n` runs one seed, `FERRETTO_TRACE_BUFFER_SEEDS=n` that many, and
//! `FERRETTO_TRACE_BUFFER_STEPS=n` changes the number of operations in each.

mod writer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;
use crate::trace_buffer::record::outer_size;
use writer::{Fragment, Held, Next, SharedChunk, Writer, prefix_size};

const SEEDS: u64 = 150;
const STEPS: u64 = 600;

/// A packet with everything that a reader learns of it.
type Plain = (SequenceInfo, LossReasons, Vec<u8>);

struct Model {
    seed: u64,
    random: Random,
    buffer: TraceBuffer,
    /// The size of the pieces of its memory.
    piece: u32,
    /// A clone that was made some time ago, and the packets that it had then.
    kept: Option<(TraceBuffer, Vec<Plain>)>,
    /// Packets that were kept, with their bytes.
    kept_packets: Vec<(KeptPacket, Vec<u8>)>,
    policy: FillPolicy,
    /// Whether it discards, and has refused a chunk because it was full.
    full: bool,
    write_at: u32,
    writers: Vec<Writer>,
    delivered: usize,
    marked: usize,
    /// Chunks that were not written behind the chunk before, though the buffer had not come to its end.
    moves: usize,
    /// Of the buffer's statistics, before the last chunk was given to it.
    padding: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let size = 4096 * (1 + random.below(8) as u64);
        let policy = match random.below(6) {
            0 | 1 => FillPolicy::Discard,
            2 => FillPolicy::DiscardAtEnd,
            3 => FillPolicy::StreamedRing,
            _ => FillPolicy::RingBuffer,
        };
        let writers = (0..1 + random.below(6))
            .map(|index| Writer {
                producer: 1 + index as u32 / 2,
                writer: 1 + index as u16 % 2,
                base: 0u32.wrapping_sub(random.below(60) as u32),
                next_number: 0,
                packets: Vec::new(),
                open_packet: None,
                in_flight: VecDeque::new(),
                unpatched: Vec::new(),
                held: BTreeMap::new(),
                evicted_incomplete: BTreeMap::new(),
                completed: BTreeSet::new(),
                gone: None,
                next_packet: 0,
                is_gone: false,
                refused_empty: None,
            })
            .collect();
        let piece = [4096, 8192, memory::PIECE][random.below(3)];
        let buffer = TraceBuffer::with_pieces_of(piece, size, policy).unwrap();
        Self {
            seed,
            random,
            buffer,
            piece,
            kept: None,
            kept_packets: Vec::new(),
            policy,
            full: false,
            write_at: 0,
            writers,
            delivered: 0,
            marked: 0,
            moves: 0,
            padding: 0,
        }
    }

    /// Gives one chunk to the buffer and follows it in the model.
    fn copy(&mut self, index: usize, shared: &SharedChunk) {
        let writer = &self.writers[index];
        let (payload, hole) = shared.encode();
        let complete = !shared.open;
        let info = ChunkInfo {
            producer: ProducerId(writer.producer),
            identity: ProducerIdentity::default(),
            writer: WriterId(writer.writer),
            chunk_id: writer.id(shared.number),
            num_fragments: (shared.fragments.len() + usize::from(shared.aborted)) as u16,
            flags: shared.flags(),
            state: if complete {
                ChunkState::Complete
            } else {
                ChunkState::Incomplete
            },
        };
        let mut memory = payload.clone();
        memory.resize(shared.room.max(payload.len()), 0);
        self.padding = self.buffer.stats().padding_bytes_written;
        let relocated = self.buffer.stats().chunks_relocated;
        let outcome = self.buffer.copy_chunk(&info, &memory);
        let relocated = self.buffer.stats().chunks_relocated > relocated;

        let mut visible = shared.fragments.clone();
        if !complete {
            visible.pop();
        }
        let number = shared.number;
        let reserved = if complete {
            payload.len() - if shared.aborted { 4 } else { 0 }
        } else {
            memory.len()
        };
        let writer = &mut self.writers[index];
        if complete && shared.hole.is_some() && !writer.completed.contains(&number) {
            let hole = hole.unwrap();
            writer.unpatched.push((number, hole));
        }
        let duplicate = writer.completed.contains(&number);
        if complete {
            writer.completed.insert(number);
        }
        if duplicate {
            assert_ne!(
                outcome,
                CopyOutcome::Violation(AbiViolation::BadRecommit),
                "duplicate of chunk {number}"
            );
            return;
        }
        let seen_before = writer.evicted_incomplete.get(&number).copied();
        match outcome {
            CopyOutcome::Violation(violation) => panic!("chunk {number}: {violation}"),
            CopyOutcome::Discarded(why) => {
                if shared.fragments.is_empty() {
                    // The reader cannot know that the gap it leaves costs no packet.
                    writer.refused_empty = writer.refused_empty.max(Some(number));
                }
                match why {
                    Discard::Full => self.refuse_for_want_of_room(reserved),
                    Discard::TooLate => assert!(
                        writer.gone.is_some_and(|gone| gone > number)
                            || seen_before.is_some_and(|seen| seen == visible.len()),
                        "chunk {number} was refused for no reason"
                    ),
                    Discard::Overtaken => {
                        // The room is there, perhaps behind the end of the buffer, and stays empty.
                        (self.write_at, _) = self.make_room(reserved, self.buffer.write_at);
                        assert!(
                            self.writers[index].gone > Some(number),
                            "nothing overtook chunk {number}"
                        );
                    }
                    Discard::ReadOnly => panic!("the buffer is not read-only"),
                }
                return;
            }
            CopyOutcome::Stored => {}
        }
        let mut taken = seen_before.unwrap_or(0);
        if let Some(held) = writer.held.get_mut(&number) {
            if !relocated {
                held.fragments = visible;
                held.incomplete = !complete;
                held.awaits_patch = complete && shared.hole.is_some();
                return;
            }
            // The reader may have passed over the end of a lost packet before the model did.
            let mut unread = held.fragments[held.taken..].iter();
            assert!(
                unread.all(|fragment| fragment.index > 0),
                "moved a chunk with unread fragments"
            );
            taken = held.fragments.len();
            writer.held.remove(&number);
        }
        let (start, end) = self.make_room(reserved, self.buffer.write_at - outer_size(reserved));
        self.write_at = end;
        let awaits_patch = complete && shared.hole.is_some();
        let held = Held {
            fragments: visible,
            taken,
            incomplete: !complete,
            awaits_patch,
            start,
            end,
        };
        self.writers[index].evicted_incomplete.remove(&number);
        self.writers[index].held.insert(number, held);
    }

    /// The buffer said that it is full, to a chunk with `reserved` bytes: it was before, or is now with reason.
    fn refuse_for_want_of_room(&mut self, reserved: usize) {
        assert!(!self.policy.overwrites());
        if std::mem::replace(&mut self.full, true) {
            return;
        }
        let needed = self.way(reserved);
        if self.policy == FillPolicy::DiscardAtEnd {
            let place = needed.last().map(|(start, _)| *start);
            assert!(place < Some(self.write_at), "there is room");
            return;
        }
        let unread = |held: &Held| held.taken < held.fragments.len();
        let in_the_way = self.writers.iter().any(|writer| {
            let meets = |held: &Held| {
                needed
                    .iter()
                    .any(|(start, end)| held.start < *end && *start < held.end)
            };
            let last = writer.held.iter().rev().find(|(_, held)| meets(held));
            last.is_some_and(|(last, _)| writer.held.range(..=last).any(|(_, held)| unread(held)))
        });
        assert!(in_the_way, "what is in the way was read");
    }

    /// The parts of the buffer that a chunk with `reserved` bytes goes past, and the one that it takes.
    fn way(&self, reserved: usize) -> Vec<(u32, u32)> {
        let size = outer_size(reserved);
        let capacity = self.buffer.size() as u32;
        let mut at = self.write_at;
        let mut parts = Vec::new();
        loop {
            let border = (at / self.piece + 1).saturating_mul(self.piece).min(capacity);
            if at + size <= border {
                parts.push((at, at + size));
                return parts;
            }
            parts.push((at, border));
            at = border % capacity;
        }
    }

    /// Overwrites the records in the way of a chunk with `reserved` bytes, which the buffer has at `start`. Returns the place of the chunk.
    fn make_room(&mut self, reserved: usize, start: u32) -> (u32, u32) {
        let way = self.way(reserved);
        let (&place, left_out) = way.split_last().unwrap();
        let capacity = self.buffer.size() as u32;
        let bytes_left_out = left_out.iter().filter(|(_, end)| *end < capacity);
        let bytes_left_out: u32 = bytes_left_out.map(|(start, end)| end - start).sum();
        let padding = self.buffer.stats().padding_bytes_written - self.padding;
        // If it left out fewer bytes, it had gone behind the used memory before it came to the end of a piece.
        if start == place.0 && padding >= u64::from(bytes_left_out) {
            for (start, end) in &way {
                self.evict(*start, *end);
            }
            return place;
        }
        assert_eq!(self.policy, FillPolicy::StreamedRing);
        // It started over, or had to leave the used memory again. Neither may cost anything.
        let place = (start, start + outer_size(reserved));
        self.assert_read(place.0, place.1);
        self.evict(place.0, place.1);
        self.write_at = start;
        self.moves += 1;
        place
    }

    /// The last chunk of the writer that these bytes of the buffer hold a part of.
    fn hit(writer: &Writer, start: u32, end: u32) -> Option<u64> {
        let mut held = writer.held.iter().rev();
        held.find(|(_, held)| held.start < end && start < held.end)
            .map(|(&number, _)| number)
    }

    fn assert_read(&self, start: u32, end: u32) {
        // The reader may have passed the rest of a lost packet before the model did.
        let is_whole = |fragment: &Fragment| fragment.index == 0 && fragment.ends_packet;
        let unread = |held: &Held| held.fragments[held.taken..].iter().any(is_whole);
        for writer in &self.writers {
            if let Some(hit) = Model::hit(writer, start, end) {
                let mut given_up = writer.held.range(..=hit);
                assert!(
                    !given_up.any(|(_, held)| unread(held)),
                    "something unread made room"
                );
            }
        }
    }

    fn evict(&mut self, start: u32, end: u32) {
        if !self.policy.overwrites() {
            self.assert_read(start, end);
        }
        for writer in &mut self.writers {
            if let Some(hit) = Model::hit(writer, start, end) {
                writer.evict(hit);
            }
        }
    }

    fn commit(&mut self, index: usize) {
        let writer = &mut self.writers[index];
        let complete = writer.in_flight.iter().take_while(|chunk| !chunk.open).count();
        let count = self.random.below(complete + 1);
        let mut batch: Vec<SharedChunk> = writer.in_flight.drain(..count).collect();
        if self.random.one_in(3) {
            self.random.shuffle(&mut batch);
        }
        for chunk in &batch {
            self.copy(index, chunk);
        }
    }

    fn scrape(&mut self, index: usize) {
        let mut batch: Vec<SharedChunk> = self.writers[index].in_flight.iter().cloned().collect();
        self.random.shuffle(&mut batch);
        for chunk in &batch {
            self.copy(index, chunk);
        }
    }

    /// A chunk never arrives, for example because its producer disconnected.
    fn lose(&mut self, index: usize) {
        let writer = &mut self.writers[index];
        // The first chunks of a sequence cannot be missed: ids may start anywhere.
        let known = !writer.completed.is_empty();
        if known
            && writer
                .in_flight
                .front()
                .is_some_and(|chunk| !chunk.open && !chunk.fragments.is_empty())
        {
            let chunk = writer.in_flight.pop_front().unwrap();
            if writer.completed.contains(&chunk.number) || writer.held.contains_key(&chunk.number) {
                // It was scraped: the commit comes after all.
                self.copy(index, &chunk);
            }
        }
    }

    /// The writer's producer dies: the contents of its shared memory are scraped, and patches that it has not sent never come.
    fn die(&mut self, index: usize) {
        let producer = self.writers[index].producer;
        for index in 0..self.writers.len() {
            if self.writers[index].producer == producer {
                self.scrape(index);
                let writer = &mut self.writers[index];
                writer.is_gone = true;
                writer.in_flight.clear();
                writer.unpatched.clear();
            }
        }
        self.buffer.producer_gone(ProducerId(producer));
    }

    fn patch(&mut self, index: usize) {
        let writer = &mut self.writers[index];
        if writer.unpatched.is_empty() {
            return;
        }
        let which = self.random.below(writer.unpatched.len());
        let (number, offset) = writer.unpatched.swap_remove(which);
        let id = writer.id(number);
        let (producer, id_writer) = (ProducerId(writer.producer), WriterId(writer.writer));
        let Some(held) = writer.held.get_mut(&number) else {
            // Lost, or passed over as part of a lost packet.
            return;
        };
        let hole = held.fragments.split_last().and_then(|(fragment, before)| {
            let before: usize = before.iter().map(|f| prefix_size(f) + f.bytes.len()).sum();
            let start = (offset as usize).checked_sub(before + prefix_size(fragment))?;
            fragment.bytes.get(start..start + 4)?.try_into().ok()
        });
        let Some(hole) = hole else {
            // The commit came too late, and the scraped copy has no such fragment.
            return;
        };
        let patches = [Patch { offset, data: hole }];
        // Refused is right when the reader has passed over the fragment already, as part of a lost packet. Were it
        // wrong, the packet would be missing at the end of the next read cycle.
        let more = [MorePatches::Pending, MorePatches::Done];
        for more in &more[self.random.below(2)..] {
            self.buffer
                .apply_patches(producer, id_writer, id, &patches, *more);
        }
        held.awaits_patch = false;
    }

    fn read(&mut self, limit: usize) {
        // A clone must give the same packets as the buffer would have given.
        let mut clone = self
            .random
            .one_in(4)
            .then(|| self.buffer.clone_read_only().unwrap());
        self.buffer.begin_read();
        if let Some(clone) = &mut clone {
            clone.begin_read();
        }
        for _ in 0..limit {
            let packet = self.buffer.read_next_packet();
            if let Some(clone) = &mut clone {
                assert_eq!(clone.read_next_packet().map(plain), packet.map(plain));
            }
            let Some(packet) = packet else {
                for writer in &mut self.writers {
                    assert_eq!(
                        writer.take_next(),
                        Next::Nothing,
                        "a packet of {} was withheld",
                        writer.writer
                    );
                }
                self.buffer.check_invariants();
                return;
            };
            let bytes = packet.fragments().collect::<Vec<_>>().concat();
            let (sequence, losses) = (packet.sequence, packet.losses);
            if self.random.one_in(8) {
                let packet = self.buffer.keep_packet().unwrap();
                self.kept_packets.push((packet, bytes.clone()));
            }
            let writer = self
                .writers
                .iter_mut()
                .find(|w| (w.producer, w.writer) == (sequence.producer.0, sequence.writer.0))
                .expect("a packet of a writer that does not exist");
            let Next::Packet(number, chunk) = writer.take_next() else {
                panic!("{sequence:?} gave a packet though it should wait");
            };
            assert!(
                bytes == writer.packets[number],
                "{sequence:?}: packet {number} is damaged or another"
            );
            assert!(
                number >= writer.next_packet,
                "{sequence:?}: packet {number} came twice or out of order"
            );
            if number > writer.next_packet {
                assert!(
                    losses.any(),
                    "{sequence:?}: {}..{number} are lost without a mark",
                    writer.next_packet
                );
            } else if losses.any() {
                assert!(
                    writer.refused_empty.is_some(),
                    "{sequence:?}: {losses:?} before {number}, but nothing is lost"
                );
            }
            writer.refused_empty = writer.refused_empty.filter(|&refused| chunk <= refused);
            writer.next_packet = number + 1;
            self.delivered += 1;
            self.marked += usize::from(losses.any());
        }
    }

    /// Compares the clone that was kept, and the packets that were kept, with their first contents; and keeps others.
    fn read_the_clone(&mut self) {
        for (packet, was) in self.kept_packets.drain(..) {
            let bytes = packet.fragments(0).collect::<Vec<_>>().concat();
            assert!(bytes == was, "a kept packet has changed");
        }
        if let Some((mut clone, had)) = self.kept.take() {
            // Reading may take several cycles.
            let mut packets = Vec::new();
            let some = self.random.below(had.len() + 1);
            for limit in [some, usize::MAX] {
                clone.begin_read();
                packets.extend(std::iter::from_fn(|| clone.read_next_packet().map(plain)).take(limit));
            }
            clone.check_invariants();
            assert_eq!(by_sequence(packets), by_sequence(had), "a clone has changed");
        }
        let mut clones = [(); 2].map(|()| self.buffer.clone_read_only().unwrap());
        clones[0].begin_read();
        let had = std::iter::from_fn(|| clones[0].read_next_packet().map(plain)).collect();
        let [_, kept] = clones;
        self.kept = Some((kept, had));
    }

    fn step(&mut self) {
        if self.random.one_in(20) {
            self.read_the_clone();
        }
        let index = self.random.below(self.writers.len());
        match self.random.below(20) {
            0..8 => self.writers[index].write(&mut self.random, 200),
            8..12 => self.commit(index),
            12 => self.scrape(index),
            13 => {
                if let Some(chunk) = self.writers[index].in_flight.back_mut() {
                    chunk.open = false;
                }
            }
            14 if self.random.one_in(4) => self.lose(index),
            15 if self.random.one_in(40) => self.die(index),
            14..17 => self.patch(index),
            17 => {
                let limit = self.random.below(6);
                self.read(limit);
            }
            _ => self.read(usize::MAX),
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step();
        }
        for index in 0..self.writers.len() {
            for chunk in &mut self.writers[index].in_flight {
                chunk.open = false;
            }
            for chunk in std::mem::take(&mut self.writers[index].in_flight) {
                self.copy(index, &chunk);
            }
            while !self.writers[index].unpatched.is_empty() {
                self.patch(index);
            }
        }
        self.read(usize::MAX);
        for writer in &self.writers {
            assert!(
                writer
                    .held
                    .values()
                    .all(|held| !held.incomplete || writer.is_gone || self.full),
                "seed {}: a scraped chunk was never completed",
                self.seed
            );
        }
    }
}

/// A second cycle may begin with another sequence than the first would have gone on with.
fn by_sequence(mut packets: Vec<Plain>) -> Vec<Plain> {
    packets.sort_by_key(|(sequence, ..)| (sequence.producer, sequence.writer));
    packets
}

fn plain(packet: ReadPacket<'_>) -> Plain {
    (
        packet.sequence,
        packet.losses,
        packet.fragments().collect::<Vec<_>>().concat(),
    )
}

#[test]
fn packets_come_out_in_order_whole_and_once_and_every_loss_is_marked() {
    let steps = number_from_env("FERRETTO_TRACE_BUFFER_STEPS").unwrap_or(STEPS);
    let seeds = match number_from_env("FERRETTO_TRACE_BUFFER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from_env("FERRETTO_TRACE_BUFFER_SEEDS").unwrap_or(SEEDS),
    };
    let (mut delivered, mut marked, mut moves, mut total) = (0, 0, 0, BufferStats::default());
    let single = seeds.end - seeds.start == 1;
    for seed in seeds {
        let mut model = Model::new(seed);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.run(steps)));
        if let Err(panic) = run {
            println!("reproduce with FERRETTO_TRACE_BUFFER_SEED={seed} FERRETTO_TRACE_BUFFER_STEPS={steps}");
            std::panic::resume_unwind(panic);
        }
        delivered += model.delivered;
        moves += model.moves;
        marked += model.marked;
        let stats = model.buffer.stats();
        total.chunks_rewritten += stats.chunks_rewritten;
        total.chunks_relocated += stats.chunks_relocated;
        total.chunks_overwritten += stats.chunks_overwritten;
        total.chunks_discarded += stats.chunks_discarded;
        total.chunks_committed_out_of_order += stats.chunks_committed_out_of_order;
        total.write_wrap_count += stats.write_wrap_count;
        total.patches_succeeded += stats.patches_succeeded;
        total.readaheads_succeeded += stats.readaheads_succeeded;
        total.trace_writer_packet_loss += stats.trace_writer_packet_loss;
        total.padding_bytes_written += stats.padding_bytes_written;
    }
    println!("{delivered} packets delivered, {marked} after a loss; {total:?}");
    if !single {
        // A generator that no longer reaches these states would prove nothing.
        let reached = [
            delivered,
            marked,
            total.chunks_rewritten as usize,
            total.chunks_relocated as usize,
            total.chunks_overwritten as usize,
            total.chunks_discarded as usize,
            total.chunks_committed_out_of_order as usize,
            total.write_wrap_count as usize,
            total.patches_succeeded as usize,
            total.readaheads_succeeded as usize,
            total.trace_writer_packet_loss as usize,
            moves,
        ];
        assert!(reached.iter().all(|count| *count > 0), "{reached:?}");
    }
}
