//! Random writers: chunks of several sequences, packets that continue in the next chunk, chunks that come late or never, in a buffer that is too
//! small. The packets that are read, the marks of losses and the counters are compared.
//!
//! `FERRETTO_CONFORMANCE_SEED=n` runs one seed.

use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;

use crate::conformance::chosen_seed;
use crate::conformance::data::{Chunk, Outcome, Step, buffer, chunk, counters, packet, what_comes_out};
use crate::conformance::parties::Service;
use crate::support::random::Random;
use crate::support::{Programs, Side};

const SEEDS: std::ops::Range<u64> = 1..25;
const CHUNKS: usize = 120;

/// A writer of numbered packets.
struct Writer {
    id: u16,
    next_chunk: u32,
    packets: u32,
    /// The rest of a packet that did not fit into the last chunk.
    rest: Vec<u8>,
}

impl Writer {
    /// Returns the next chunk, with a few packets. The last one may continue in the chunk after it.
    fn chunk(&mut self, random: &mut Random) -> Chunk {
        let mut chunk = chunk(self.id, self.next_chunk);
        self.next_chunk = self.next_chunk.wrapping_add(1);
        if !self.rest.is_empty() {
            chunk = chunk.flags(1);
            let more = self.rest.len() > 20 && random.one_in(3);
            let part = if more {
                self.rest.len() / 2
            } else {
                self.rest.len()
            };
            let rest = self.rest.split_off(part);
            chunk = chunk.fragment(&self.rest);
            self.rest = rest;
            if more {
                return chunk.flags(2);
            }
        }
        for _ in 0..1 + random.below(4) {
            self.packets += 1;
            let filler = "x".repeat(random.below(600));
            let packet = packet(&format!("{} {filler}", self.packets));
            chunk = chunk.fragment(&packet);
        }
        if random.one_in(3) {
            self.packets += 1;
            let mut packet = packet(&format!("{} {}", self.packets, "y".repeat(200)));
            self.rest = packet.split_off(100);
            chunk = chunk.fragment(&packet).flags(2);
        }
        chunk
    }
}

/// Returns a conversation for a seed, and the policy of its buffer.
fn conversation(seed: u64) -> (FillPolicy, Vec<Step>) {
    let mut random = Random(seed);
    let policy = if random.one_in(6) {
        FillPolicy::DISCARD
    } else {
        FillPolicy::RING_BUFFER
    };
    let mut writers: Vec<Writer> = (1..=1 + random.below(4) as u16)
        .map(|id| Writer {
            id,
            // Some writers begin close to the largest id.
            next_chunk: if random.one_in(3) { u32::MAX - 5 } else { 0 },
            packets: 0,
            rest: Vec::new(),
        })
        .collect();
    // Chunks are either lost or late, not both: after a late chunk, upstream overlooks a gap and drops a complete packet.
    let lossy = random.one_in(2);
    let mut steps = Vec::new();
    let mut late: Vec<Chunk> = Vec::new();
    for _ in 0..CHUNKS {
        let index = random.below(writers.len());
        let chunk = writers[index].chunk(&mut random);
        match random.below(20) {
            // The chunk is lost.
            0 if lossy => {}
            1 | 2 if !lossy => late.push(chunk),
            _ => steps.push(Step::Chunk(chunk)),
        }
        if !late.is_empty() && random.one_in(3) {
            steps.push(Step::Chunk(late.remove(0)));
        }
        if random.one_in(9) {
            // Upstream accepts a chunk after its successor has been partly read, and reads it later; ours keeps the order.
            steps.extend(late.drain(..).map(Step::Chunk));
            steps.push(Step::Read);
        }
    }
    steps.push(Step::Read);
    (policy, steps)
}

/// Returns the lines that have to be the same.
fn comparable(outcome: Outcome) -> Vec<String> {
    let mut lines = outcome.read;
    let mut counters = counters(&outcome.stats);
    // Upstream counts padding that was cleared but never written.
    counters.retain(|name, _| !name.starts_with("padding"));
    lines.push(format!("{counters:?}"));
    lines.push(format!("{:?} discarded", outcome.discarded));
    let mut sizes: Vec<String> = outcome
        .stats
        .writer_stats
        .iter()
        .map(|writer| {
            let (counts, sums) = (
                &writer.chunk_payload_histogram_counts,
                &writer.chunk_payload_histogram_sum,
            );
            format!("{counts:?} {sums:?}")
        })
        .collect();
    sizes.sort();
    lines.push(sizes.join(", "));
    // Upstream numbers writers from before the first read in the order of a hash table.
    let mut names: Vec<String> = Vec::new();
    let rename = |line: &String| {
        let mut renamed = Vec::new();
        for packet in line.split("; ") {
            let Some((text, sequence)) = packet.split_once(" by ") else {
                renamed.push(packet.to_owned());
                continue;
            };
            let (id, rest) = sequence.split_at(sequence.find(',').unwrap_or(sequence.len()));
            let position = names.iter().position(|name| name == id).unwrap_or_else(|| {
                names.push(id.to_owned());
                names.len() - 1
            });
            renamed.push(format!("{text} by writer {position}{rest}"));
        }
        renamed.join("; ")
    };
    lines.iter().map(rename).collect()
}

/// Whether two reads have the same result. Upstream marks a gap again in every read that begins at the chunk after it, until that chunk has been read
/// to its end; ours marks it once.
fn same(upstream: &str, ours: &str) -> bool {
    let (upstream, ours): (Vec<&str>, Vec<&str>) =
        (upstream.split("; ").collect(), ours.split("; ").collect());
    let writer = |packet: &str| {
        packet
            .rsplit(" by writer ")
            .next()
            .and_then(|rest| rest.chars().next())
    };
    let mut begun = Vec::new();
    upstream.len() == ours.len()
        && upstream.iter().zip(&ours).all(|(upstream, ours)| {
            let first_of_its_writer = !begun.contains(&writer(ours));
            begun.push(writer(ours));
            upstream == ours || first_of_its_writer && **upstream == format!("{ours}, after a loss")
        })
}

#[test]
fn random_writers_come_out_alike() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let seeds = chosen_seed().map_or_else(|| SEEDS.collect(), |seed| vec![seed]);
    let run = |side| -> Vec<Vec<String>> {
        let service = Service::start(&programs, side);
        let outcome = |seed: &u64| {
            let (policy, steps) = conversation(*seed);
            comparable(what_comes_out(&service, &buffer(16, policy), &steps))
        };
        seeds.iter().map(outcome).collect()
    };
    let (upstream, ours) = std::thread::scope(|scope| {
        let upstream = scope.spawn(|| run(Side::Upstream));
        let ours = scope.spawn(|| run(Side::Ours));
        (upstream.join().unwrap(), ours.join().unwrap())
    });
    for (seed, (upstream, ours)) in seeds.iter().zip(upstream.iter().zip(&ours)) {
        for (number, (upstream, ours)) in upstream.iter().zip(ours).enumerate() {
            assert!(
                same(upstream, ours),
                "seed {seed}, line {number}\nupstream: {upstream}\nours:     {ours}"
            );
        }
    }
}
