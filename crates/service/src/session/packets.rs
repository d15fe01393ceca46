//! The packets that the service itself writes into every trace: clocks, config, system info, life of the session; and the fields that it adds
//! to the packets of producers. `session/reading` writes the statistics.

use ferretto_proto::messages::{BuiltinClock, Message};
use ferretto_proto::write;
use ferretto_wire::Writer;

use super::machines::Machines;
use crate::clock::{Now, clock_id};
use crate::clone::CloneTrigger;
use crate::identity::{DescriptorEncoding, ExtensionDescriptor, Identity};
use crate::ids::MachineId;
use crate::limits;
use crate::protovm::{self, ProtoVms};
use crate::session::absences::{AbsenceKind, Absent};
use crate::session::concurrent::write_other_sessions;
use crate::session::readout::Readout;
use crate::session::{LifecycleEvent, SERVICE_SEQUENCE_ID, Session};
use crate::trace_buffer::{LossReasons, SequenceInfo, TraceBuffer};

/// Content of `TracePacket.synchronization_marker`, by which readers find packet borders in a damaged file.
const SYNC_MARKER: [u8; 16] = [
    0x82, 0x47, 0x7a, 0x76, 0xb2, 0x8d, 0x42, 0xba, 0x81, 0xdc, 0x33, 0x32, 0x6d, 0x57, 0xa0, 0x79,
];

/// Writes everything that has to stand before the data of a read-back.
pub(crate) fn write_leading_packets(
    session: &mut Session,
    identity: &Identity,
    machines: &Machines,
    flushes: u64,
    now: &Now,
    out: &mut Readout,
) {
    let author = identity.author();
    let notes = &mut session.notes;
    let initial = notes.initial_clocks.take().into_iter();
    let snapshots = initial.chain(notes.clock_snapshots.drain(..));
    let primary = session.config.builtin_data_sources.primary_trace_clock;
    let primary = primary.filter(|clock| *clock != BuiltinClock::BUILTIN_CLOCK_UNKNOWN);
    let primary = primary.unwrap_or(BuiltinClock::BUILTIN_CLOCK_BOOTTIME);
    for snapshot in snapshots {
        out.own_packet(|packet| {
            let mut packet = write::TracePacket::new(packet);
            packet.clock_snapshot(|message| {
                message.primary_trace_clock(primary);
                for (id, reading) in snapshot.readings() {
                    message.clocks(|clock| {
                        clock.clock_id(id).timestamp(reading);
                    });
                }
            });
            service_header(&mut packet, author);
        });
    }
    if std::mem::take(&mut session.notes.sync_marker_due) {
        // The marker comes last, right after the trusted fields: readers rely on that order.
        out.own_packet(|packet| {
            write::TracePacket::new(packet)
                .trusted_uid(author.uid as i32)
                .trusted_packet_sequence_id(SERVICE_SEQUENCE_ID)
                .synchronization_marker(SYNC_MARKER);
        });
    }
    let is_first = !std::mem::replace(&mut session.notes.initial_packets_written, true);
    if !session.builtin().disable_trace_config.unwrap_or_default() {
        if is_first {
            write_trace_config(session, author, out);
            if let Some(trigger) = session.notes.clone_trigger.take() {
                out.own_packet(|packet| write_clone_trigger(packet, &trigger, author));
            }
        }
        write_triggers(session, author, out);
    }
    if is_first {
        write_initial_packets(session, identity, now, out);
    }
    if !session.builtin().disable_system_info.unwrap_or_default() {
        machines.write_systems(session, author.uid, out);
    }
    write_lifecycle_events(session, author, flushes, out);
    write_other_sessions(session, author, out);
    if !session.builtin().disable_clock_snapshotting.unwrap_or_default() {
        machines.write_clocks(session, author.uid, now, out);
    }
    if is_first {
        write_protovms(session, author, out);
    }
}

/// Writes the merged states of overwritten packets.
fn write_protovms(session: &Session, author: Author, out: &mut Readout) {
    let mut instances = session
        .buffers
        .iter()
        .filter_map(TraceBuffer::protovms)
        .flat_map(ProtoVms::instances)
        .peekable();
    while instances.peek().is_some() {
        out.own_packet(|packet| {
            packet.nested(write::TracePacket::PROTOVMS, |message| {
                protovm::write_instances(&mut instances, limits::PROTOVMS_PACKET, message);
            });
            service_header(&mut write::TracePacket::new(packet), author);
        });
    }
}

fn write_trace_config(session: &Session, author: Author, out: &mut Readout) {
    out.own_packet(|packet| {
        service_header(&mut write::TracePacket::new(packet), author);
        packet.bytes_field(write::TracePacket::TRACE_CONFIG, &session.config_bytes);
    });
}

/// Writes the triggers that came since the last read-back.
fn write_triggers(session: &mut Session, author: Author, out: &mut Readout) {
    for hit in session.triggers.take_unwritten() {
        out.own_packet(|packet| {
            let mut packet = write::TracePacket::new(packet);
            packet.timestamp(hit.at).trigger(|trigger| {
                trigger
                    .trigger_name(&*hit.trigger)
                    .producer_name(&*hit.producer)
                    .trusted_producer_uid(hit.producer_uid as i32)
                    .stop_delay_ms(hit.delay_ms.into());
            });
            service_header(&mut packet, author);
        });
    }
}

fn write_initial_packets(session: &mut Session, identity: &Identity, now: &Now, out: &mut Readout) {
    let author = identity.author();
    let uuid = session.uuid;
    out.own_packet(|packet| {
        let mut packet = write::TracePacket::new(packet);
        service_header(&mut packet, author);
        packet.trace_uuid(|message| {
            message.msb((uuid >> 64) as i64).lsb(uuid as i64);
        });
    });
    if !session
        .builtin()
        .disable_extension_descriptors
        .unwrap_or_default()
    {
        for descriptor in &identity.extension_descriptors {
            out.own_packet(|packet| write_extension_descriptor(packet, descriptor, author));
        }
    }
    // The writers of producers that have filled each buffer so far.
    let (buffers, sequence_ids) = (&session.buffers, &mut session.sequence_ids);
    let writers_of = |buffer: &TraceBuffer| {
        let writers = buffer.writer_stats();
        let ids = writers.map(|(producer, writer, _)| (sequence_ids.of(producer, writer), producer.0 as i32));
        ids.collect()
    };
    let writers: Vec<Vec<(u32, i32)>> = buffers.iter().map(writers_of).collect();
    out.own_packet(|packet| {
        let mut packet = write::TracePacket::new(packet);
        packet.timestamp(now.boot).trace_provenance(|provenance| {
            for buffer in &writers {
                provenance.buffers(|message| {
                    for (sequence, producer) in buffer {
                        message.sequences(|entry| {
                            entry.id(*sequence).producer_id(*producer);
                        });
                    }
                });
            }
        });
        service_header(&mut packet, author);
    });
    if !session.builtin().disable_system_info.unwrap_or_default() {
        out.own_packet(|packet| write_system_info(packet, identity));
    }
}

fn write_extension_descriptor(packet: &mut Writer, descriptor: &ExtensionDescriptor, author: Author) {
    let mut packet = write::TracePacket::new(packet);
    service_header(&mut packet, author);
    packet.extension_descriptor(|message| {
        let field = match descriptor.encoding {
            DescriptorEncoding::Plain => write::ExtensionDescriptor::EXTENSION_SET,
            DescriptorEncoding::Gzip => write::ExtensionDescriptor::EXTENSION_SET_GZIP,
        };
        message.writer().bytes_field(field, &descriptor.bytes);
        if !descriptor.name.is_empty() {
            message.file_name(&descriptor.name);
        }
    });
}

fn write_clone_trigger(packet: &mut Writer, trigger: &CloneTrigger, author: Author) {
    let mut packet = write::TracePacket::new(packet);
    packet
        .timestamp(trigger.boot_time_ns)
        .clone_snapshot_trigger(|message| {
            message
                .trigger_name(&trigger.name)
                .producer_name(&trigger.producer_name)
                .trusted_producer_uid(trigger.producer_uid)
                .stop_delay_ms(trigger.delay_ms);
        });
    service_header(&mut packet, author);
}

fn write_system_info(packet: &mut Writer, identity: &Identity) {
    packet.bytes_field(
        write::TracePacket::SYSTEM_INFO,
        &identity.system_info().encode_to_vec(),
    );
    let mut packet = write::TracePacket::new(packet);
    service_header(&mut packet, identity.author());
}

/// Writes the session's events since the last read-back, in the order in which they happened; of the ends of flushes, those of the first `flushes`.
pub(crate) fn write_lifecycle_events(session: &mut Session, author: Author, flushes: u64, out: &mut Readout) {
    if session.builtin().disable_service_events.unwrap_or_default() {
        session.notes.lifecycle_events.clear();
        session.notes.absences.take();
        session.notes.buffers_cloned.clear();
        return;
    }
    enum Event {
        Plain(LifecycleEvent),
        Absence(AbsenceKind, Vec<Absent>),
        BufferCloned(u32),
    }
    // A missing data source is known before the work that waited for it goes on, in the same turn.
    let notes = &mut session.notes;
    let absences = notes.absences.take().into_iter();
    let absences = absences.map(|absence| (absence.at, Event::Absence(absence.kind, absence.who)));
    let noted = notes.take_events(flushes).into_iter();
    let noted = noted.map(|(kind, at)| (at, Event::Plain(kind)));
    let cloned = std::mem::take(&mut notes.buffers_cloned).into_iter().zip(0..);
    let cloned = cloned.map(|(at, index)| (at, Event::BufferCloned(index)));
    let mut events: Vec<(u64, Event)> = absences.chain(noted).chain(cloned).collect();
    // A clone is over when its buffers are there, which may be at the same time.
    let ends = |event: &Event| matches!(event, Event::Plain(LifecycleEvent::TracingDisabled));
    events.sort_by_key(|(at, event)| (*at, ends(event)));
    for (at, event) in events {
        out.own_packet(|packet| {
            let mut packet = write::TracePacket::new(packet);
            packet.timestamp(at);
            service_header(&mut packet, author);
            packet.service_event(|message| match &event {
                Event::Plain(kind) => message.writer().varint_field(*kind as u32, 1),
                Event::BufferCloned(index) => {
                    message.buffer_cloned(*index);
                }
                Event::Absence(kind, who) => {
                    let list = |sources: &mut write::tracing_service_event::DataSources<'_>| {
                        for Absent { producer, source } in who {
                            sources.data_source(|entry| {
                                if let Some(producer) = producer {
                                    entry.producer_name(producer);
                                }
                                entry.data_source_name(source);
                            });
                        }
                    };
                    match kind {
                        AbsenceKind::SlowToStart => message.slow_starting_data_sources(list),
                        AbsenceKind::SlowToFlush => message.last_flush_slow_data_sources(list),
                        AbsenceKind::Gone(_) => message.data_sources_gone(list),
                        AbsenceKind::NotOffered => message.data_sources_not_offered(list),
                    };
                }
            });
        });
    }
}

/// The service's identity in the packets of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author {
    uid: u32,
    machine: MachineId,
}

impl Identity {
    pub(crate) fn author(&self) -> Author {
        Author {
            uid: self.uid,
            machine: self.machine,
        }
    }
}

/// Writes the fields that mark a packet as the service's own. Its timestamps are boot time whatever the trace's primary clock is.
pub(crate) fn service_header(packet: &mut write::TracePacket<'_>, author: Author) {
    packet
        .trusted_uid(author.uid as i32)
        .trusted_packet_sequence_id(SERVICE_SEQUENCE_ID)
        .timestamp_clock_id(clock_id::BOOTTIME);
    if author.machine != MachineId::HOST {
        packet.machine_id(author.machine.0);
    }
}

/// Appends the service's fields to a producer's packet: the fields that only the service can vouch for. They come last, so that they win over
/// anything before them in every decoder.
pub(crate) fn write_trusted_fields(
    out: &mut Writer,
    sequence: &SequenceInfo,
    sequence_id: u32,
    losses: LossReasons,
) {
    let mut packet = write::TracePacket::new(out);
    packet
        .trusted_uid(sequence.identity.uid as i32)
        .trusted_packet_sequence_id(sequence_id);
    if let Some(pid) = sequence.identity.pid {
        packet.trusted_pid(pid);
    }
    if sequence.identity.machine != MachineId::HOST {
        packet.machine_id(sequence.identity.machine.0);
    }
    if losses.any() {
        packet.previous_packet_dropped(losses.bits());
    }
}
