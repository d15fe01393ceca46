//! The conditions that hold after every step.

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::trace_packet::{Data, OptionalTrustedPacketSequenceId, OptionalTrustedUid};
use ferretto_proto::messages::trace_stats::BufferStats;
use ferretto_proto::messages::{Message, TracePacket};
use ferretto_service::{ConsumerId, ProducerId, SessionId, StateScope};
use ferretto_wire::{Reader, Value};

use super::honest::content;
use super::machines::compares_clocks;
use super::{HONEST, HOSTILE, Simulation};
use crate::world::{expanded, packets_of, texts};

/// The output of a session so far.
#[derive(Default)]
pub(super) struct Told {
    /// The number of the next packet of each writer, by producer and writer.
    pub(super) next: BTreeMap<String, u64>,
    /// The writer of each sequence id.
    sequences: BTreeMap<u32, String>,
    /// The number of bytes of the file that have been checked.
    file_checked: usize,
    /// Boot time of the last clock snapshot.
    last_snapshot: u64,
    /// The trace has a comparison of clocks with another machine.
    compared_clocks: bool,
}

impl Simulation {
    pub(super) fn check(&mut self) {
        let due = self.world.service.next_deadline();
        self.world.service.handle_timeout(&self.world.now);
        self.world.run();
        let now = self.world.now.monotonic;
        assert!(
            self.world.service.next_deadline().is_none_or(|due| due > now),
            "{due:?} at {now}"
        );
        let boot = self.world.now.boot;
        assert!(
            self.world
                .service
                .next_boot_deadline()
                .is_none_or(|due| due > boot)
        );
        let state = self.world.state(self.root, StateScope::Sessions);
        if state.tracing_sessions.is_empty() {
            assert_eq!(self.world.service.buffer_bytes(), 0);
            assert_eq!(self.world.service.next_deadline(), None);
            assert_eq!(self.world.service.next_boot_deadline(), None);
        }
        let alive: BTreeSet<u64> = state
            .tracing_sessions
            .iter()
            .filter_map(|session| session.id)
            .collect();
        self.check_clones(&alive);
        for session in self.consumers.values_mut() {
            session.take_if(|session| !alive.contains(&session.0));
        }
        self.detached.retain(|(session, ..)| alive.contains(&session.0));
        for (id, consumer) in &self.world.consumers {
            let heard = self.heard.entry(*id).or_default();
            for session in &consumer.ended[*heard..] {
                let owner = self.sessions[session].owner;
                assert!(
                    owner == Some(*id) || owner.is_none(),
                    "the end of {session} was told to a stranger"
                );
            }
            *heard = consumer.ended.len();
        }
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            let told = self.times_told(session);
            assert!(told <= 1, "the end of {session} was told {told} times");
            self.check_file(session);
        }
    }

    pub(super) fn times_told(&self, session: SessionId) -> usize {
        let consumers = self.world.consumers.values();
        consumers
            .flat_map(|consumer| &consumer.ended)
            .filter(|ended| **ended == session)
            .count()
    }

    pub(super) fn check_file(&mut self, session: SessionId) {
        let owned = self.sessions.get_mut(&session).expect("known");
        let (Some(limit), Some(file)) = (owned.streams, self.world.files.get(&session)) else {
            return;
        };
        assert!((file.len() as u64) < limit);
        let new = expanded(packets_of(&file[owned.trace.file_checked..]));
        owned.trace.file_checked = file.len();
        self.check_packets(session, &new);
    }

    /// Checks the packets of honest producers: they are whole, in order, and not repeated, and losses are marked.
    pub(super) fn check_packets(&mut self, session: SessionId, packets: &[Vec<u8>]) {
        let owned = self.sessions.get_mut(&session).expect("known");
        assert!(
            owned.triggers.is_empty() || owned.is_triggered || packets.is_empty(),
            "{session} waits for a trigger"
        );
        let (trace, forgets) = (&mut owned.trace, owned.forgets);
        for packet in packets.iter().filter_map(|packet| decode(packet)) {
            if compares_clocks(&packet) {
                // The file of a clone begins with the packets of the original.
                let again = std::mem::replace(&mut trace.compared_clocks, true);
                assert!(!again || owned.is_clone, "{session} compares clocks twice");
            }
            if let Some(Data::ClockSnapshot(snapshot)) = &packet.data {
                let boot = snapshot.clocks[0].timestamp.unwrap_or_default();
                assert!(boot >= trace.last_snapshot, "clock snapshots come in order");
                trace.last_snapshot = boot;
            }
            let [text] = &texts(std::slice::from_ref(&packet))[..] else {
                continue;
            };
            let mut parts = text.split(' ');
            let (Some(writer), Some(number)) = (parts.next(), parts.next()) else {
                panic!("{text:?}");
            };
            let number: u64 = number.parse().expect("a number");
            let producer = writer.split('/').next().expect("its producer").parse();
            let machine = self.machines[&ProducerId(producer.expect("an id"))];
            assert_eq!(packet.machine_id.unwrap_or_default(), machine.0, "{writer}");
            assert_eq!(*text, content(writer, number));
            let user = OptionalTrustedUid::TrustedUid(HONEST as i32);
            assert_eq!(packet.optional_trusted_uid, Some(user));
            let Some(OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(sequence)) =
                packet.optional_trusted_packet_sequence_id
            else {
                panic!("{text:?} has no sequence id");
            };
            let of = trace
                .sequences
                .entry(sequence)
                .or_insert_with(|| writer.to_owned());
            assert_eq!(of, writer, "two writers under sequence id {sequence}");
            // The number of the first packet is not known. Chunks missing at the beginning are marked when they come too late.
            let expected = trace.next.insert(writer.to_owned(), number + 1);
            let expected = expected.unwrap_or(number);
            // After a buffer was emptied for a clone, a chunk that was read in part may come again as a whole.
            assert!(
                forgets || number >= expected,
                "{writer}: {number} after {expected} was due"
            );
            if number > expected {
                let mark = packet.previous_packet_dropped.unwrap_or_default();
                assert!(
                    mark != 0,
                    "{writer}: {expected} to {number} are missing, and nothing says so"
                );
                self.losses += 1;
            }
            self.packets += 1;
        }
    }

    /// Checks that all committed packets have been read, or are counted as lost.
    pub(super) fn check_completeness(&mut self, consumer: ConsumerId) {
        let Some(Some(session)) = self.consumers.get(&consumer) else {
            return;
        };
        let owned = &self.sessions[session];
        let Some(stats) = self.world.service.trace_stats(consumer) else {
            return;
        };
        let blameless = |buffer: &BufferStats| {
            [
                buffer.chunks_overwritten,
                buffer.chunks_discarded,
                buffer.patches_failed,
                buffer.abi_violations,
                buffer.trace_writer_packet_loss,
            ]
            .iter()
            .all(|count| count.unwrap_or_default() == 0)
        };
        if owned.is_clone || owned.forgets || !owned.triggers.is_empty() {
            return;
        }
        if owned.streams.is_some() || owned.file_failed || !stats.buffer_stats.iter().all(blameless) {
            return;
        }
        for (writer, account) in owned.accounts.iter().filter(|(_, account)| !account.blemished) {
            let read = owned.trace.next.get(writer).copied().unwrap_or_default();
            assert_eq!(
                read, account.whole,
                "{writer} committed {} packets to {session}, {read} came out",
                account.whole
            );
            self.complete += 1;
        }
    }
}

/// Decodes a packet. Returns `None` for a hostile producer's packet whose fields have other types than in the schema: readers of the trace have to
/// detect that.
fn decode(packet: &[u8]) -> Option<TracePacket> {
    const TRUSTED_UID: u32 = 3;
    let decoded = TracePacket::decode_from_slice(packet).ok();
    if decoded.is_none() {
        let uid = Reader::new(packet)
            .map(|field| field.expect("a field"))
            .find(|field| field.number == TRUSTED_UID)
            .map(|field| field.value);
        assert_eq!(uid, Some(Value::Varint(HOSTILE.into())), "it is hostile");
    }
    decoded
}
