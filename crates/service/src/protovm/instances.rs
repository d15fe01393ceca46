//! The programs of one trace buffer, and the packets that go through each.
//!
//! The trace buffer calls this with each packet that is overwritten unread ([`ProtoVms::apply`]), the service when a data source is set up
//! ([`ProtoVms::set_up`]), and read-back.
//!
//! Producers that offer a data source with the same program share an instance. Each different program has an instance of its own. A packet goes to
//! the instances that know its producer, in the order in which they were made, until one merges it.

use std::fmt;

use ferretto_proto::messages::{Message, VmProgram};
use ferretto_proto::write::trace_packet::{self, proto_vms};
use ferretto_wire::Writer;

use super::machine::{Outcome, ProtoVm};
use super::program::ProgramError;
use crate::ids::ProducerId;
use crate::limits;
use crate::ordered::OrderedSet;
use crate::packet_validator::PacketValidator;

/// Why a program was not set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetUpError {
    /// The program is too large.
    Program(ProgramError),
    /// The buffer has as many instances as it may.
    TooMany,
    /// There are too many different programs for this data source.
    TooManyVersions,
    /// Too many producers have brought this program.
    TooManyProducers,
    /// With it all of them could take more memory than they may.
    TooMuchMemory,
}

impl fmt::Display for SetUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetUpError::Program(error) => error.fmt(f),
            SetUpError::TooMany => write!(
                f,
                "its trace buffer has {} programs already, which is the limit",
                limits::MAX_PROTOVMS_PER_BUFFER
            ),
            SetUpError::TooMuchMemory => write!(
                f,
                "the states of the programs of its trace buffer could come to more than {} KB",
                limits::MAX_PROTOVM_MEMORY_KB_PER_BUFFER
            ),
            SetUpError::TooManyVersions => write!(
                f,
                "producers have brought {} different programs for it already, which is the limit",
                limits::MAX_PROTOVM_VERSIONS
            ),
            SetUpError::TooManyProducers => write!(
                f,
                "{} producers have brought the same program already, which is the limit",
                limits::MAX_PROTOVM_PRODUCERS
            ),
        }
    }
}

impl std::error::Error for SetUpError {}

/// The state of an instance.
#[derive(Debug)]
enum State {
    Running(Box<ProtoVm>),
    /// The encoded state, in a copy of a buffer.
    Frozen(Vec<u8>),
}

/// A program with its state, and the producers whose packets it takes.
#[derive(Debug)]
pub struct Instance {
    data_source: String,
    /// Encoded.
    program: Vec<u8>,
    memory_limit_kb: u32,
    producers: OrderedSet<ProducerId>,
    state: State,
    /// Packets over which the program was aborted, and why it was first.
    aborted: u64,
    first_abort: Option<String>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct ProtoVms {
    instances: Vec<Instance>,
    /// Work that may be used until `restrict_work` is called again.
    work_left: u64,
    /// A packet that lies in more than one piece; kept for its memory.
    packet: Vec<u8>,
}

impl Default for ProtoVms {
    fn default() -> ProtoVms {
        ProtoVms {
            instances: Vec::new(),
            work_left: u64::MAX,
            packet: Vec::new(),
        }
    }
}

impl ProtoVms {
    /// Limits the work of all instances together until the next call: packets that are overwritten by thousands at once may have earned more than
    /// there is time for.
    pub(crate) fn restrict_work(&mut self, left: u64) {
        self.work_left = left;
    }

    /// The rest of the restricted work.
    pub(crate) fn work_left(&self) -> u64 {
        self.work_left
    }

    /// Prepares for a producer that starts to write packets for this program. If there is no instance for it yet one is made, with this limit to the
    /// memory of its state.
    ///
    /// # Errors
    /// If there can be no such instance; the producer's packets are then overwritten as those of others.
    pub fn set_up(
        &mut self,
        data_source: &str,
        program: &VmProgram,
        memory_limit_kb: u32,
        producer: ProducerId,
    ) -> Result<(), SetUpError> {
        let encoded = program.encode_to_vec();
        let known = self
            .instances
            .iter_mut()
            .find(|instance| instance.data_source == data_source && instance.program == encoded);
        if let Some(instance) = known {
            let is_full = instance.producers.len() >= limits::MAX_PROTOVM_PRODUCERS;
            if is_full && !instance.producers.contains(&producer) {
                return Err(SetUpError::TooManyProducers);
            }
            instance.producers.insert(producer);
            return Ok(());
        }
        if self.instances.len() >= limits::MAX_PROTOVMS_PER_BUFFER {
            return Err(SetUpError::TooMany);
        }
        let versions = self
            .instances
            .iter()
            .filter(|instance| instance.data_source == data_source);
        if versions.count() >= limits::MAX_PROTOVM_VERSIONS {
            return Err(SetUpError::TooManyVersions);
        }
        let others = self.instances.iter().map(|instance| instance.memory_limit_kb);
        if others.fold(memory_limit_kb, u32::saturating_add) > limits::MAX_PROTOVM_MEMORY_KB_PER_BUFFER {
            return Err(SetUpError::TooMuchMemory);
        }
        let vm = ProtoVm::new(program, u64::from(memory_limit_kb) * 1024).map_err(SetUpError::Program)?;
        let mut producers = OrderedSet::new();
        producers.insert(producer);
        self.instances.push(Instance {
            data_source: data_source.to_owned(),
            program: encoded,
            memory_limit_kb,
            producers,
            state: State::Running(Box::new(vm)),
            aborted: 0,
            first_abort: None,
        });
        Ok(())
    }

    /// Whether [`ProtoVms::apply`] has to be called for packets of this producer.
    pub(crate) fn want(&self, producer: ProducerId) -> bool {
        self.instances
            .iter()
            .any(|instance| instance.producers.contains(&producer))
    }

    /// Offers a packet of this producer, in these pieces, which is being overwritten. A packet that read-back would drop, because it is not valid, is
    /// dropped.
    pub fn apply<'p>(&mut self, producer: ProducerId, pieces: impl Iterator<Item = &'p [u8]> + Clone) {
        if PacketValidator::check(pieces.clone()).is_err() {
            return;
        }
        let mut rest = pieces.clone();
        let (first, more) = (rest.next().unwrap_or_default(), rest.next().is_some());
        let mut gathered = std::mem::take(&mut self.packet);
        let packet = if more {
            if pieces.clone().map(<[u8]>::len).sum::<usize>() > limits::MAX_PROTOVM_PACKET {
                self.too_large(producer);
                return;
            }
            gathered.clear();
            pieces.for_each(|piece| gathered.extend_from_slice(piece));
            gathered.as_slice()
        } else {
            first
        };
        for instance in &mut self.instances {
            if instance.producers.contains(&producer) && instance.apply(packet, &mut self.work_left) {
                break;
            }
        }
        if gathered.capacity() <= MAX_KEPT_PACKET {
            self.packet = gathered;
        }
    }

    fn too_large(&mut self, producer: ProducerId) {
        for instance in &mut self.instances {
            if instance.producers.contains(&producer) {
                instance.note_abort(|| {
                    format!(
                        "a packet of more than {} bytes is not merged",
                        limits::MAX_PROTOVM_PACKET
                    )
                });
            }
        }
    }

    /// A copy that stays as it is.
    pub fn clone_read_only(&self) -> Self {
        let instances = self.instances.iter().map(|instance| Instance {
            data_source: instance.data_source.clone(),
            program: instance.program.clone(),
            memory_limit_kb: instance.memory_limit_kb,
            producers: instance.producers.clone(),
            state: State::Frozen(instance.encoded_state()),
            aborted: instance.aborted,
            first_abort: instance.first_abort.clone(),
        });
        Self {
            instances: instances.collect(),
            ..Self::default()
        }
    }

    /// Bytes of memory that count for programs and states.
    pub(crate) fn memory_used(&self) -> u64 {
        self.instances.iter().map(Instance::memory_used).sum()
    }

    /// In the order in which they were made.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter()
    }

    /// The errors of the instances, one line for each instance with errors.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        self.instances.iter().filter_map(|instance| {
            let first = instance.first_abort.as_ref()?;
            Some(format!(
                "ProtoVM of data source {:?}: {} packets that were overwritten could not be merged; the first at {first}",
                instance.data_source, instance.aborted
            ))
        })
    }
}

/// Writes instances as fields of a `TracePacket.ProtoVms`, at least one, and no more once they have come to `enough` bytes.
pub(crate) fn write_instances<'v>(
    instances: &mut impl Iterator<Item = &'v Instance>,
    enough: usize,
    out: &mut Writer,
) {
    let end = out.len() + enough;
    for instance in instances {
        out.nested(trace_packet::ProtoVms::INSTANCE, |out| instance.write(out));
        if out.len() >= end {
            return;
        }
    }
}

/// Bytes of memory that are kept for packets that have to be put together: most are smaller.
const MAX_KEPT_PACKET: usize = 64 * 1024;

impl Instance {
    /// Whether it merged the packet.
    fn apply(&mut self, packet: &[u8], work_left: &mut u64) -> bool {
        let State::Running(vm) = &mut self.state else {
            return false;
        };
        match vm.apply_within(packet, work_left) {
            Outcome::Merged => true,
            Outcome::Failed => false,
            Outcome::Aborted(abort) => {
                self.note_abort(|| abort.to_string());
                false
            }
        }
    }

    fn note_abort(&mut self, why: impl FnOnce() -> String) {
        self.aborted += 1;
        self.first_abort.get_or_insert_with(why);
    }

    fn memory_used(&self) -> u64 {
        let state = match &self.state {
            State::Running(vm) => vm.memory_used(),
            State::Frozen(state) => state.len() as u64,
        };
        self.program.len() as u64 + state
    }

    fn encoded_state(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.write_state(&mut out);
        out.into_vec()
    }

    fn write_state(&self, out: &mut Writer) {
        match &self.state {
            State::Running(vm) => vm.write_state(out),
            State::Frozen(state) => out.raw(state),
        }
    }

    /// Writes it as the fields of a `TracePacket.ProtoVms.Instance`.
    pub fn write(&self, out: &mut Writer) {
        out.bytes_field(proto_vms::Instance::PROGRAM, &self.program);
        out.nested(proto_vms::Instance::STATE, |out| self.write_state(out));
        out.varint_field(proto_vms::Instance::MEMORY_LIMIT_KB, self.memory_limit_kb.into());
        for producer in &self.producers {
            out.varint_field(proto_vms::Instance::PRODUCER_ID, producer.0.into());
        }
    }
}
