//! Producers: their data sources, shared memory and trace writers.
//!
//! Everything here comes from a process that may be hostile. Ids are looked up, sizes are checked, and chunks are
//! copied out of shared memory before they are looked at.

use std::collections::HashMap;
use std::fmt;

use ferretto_proto::messages::DataSourceDescriptor;
use ferretto_proto::opaque::essence;
use ferretto_smb::{ChunkHeader, MAX_WRITER_ID, ServiceSmb};

use crate::absences::{Absence, AbsenceKind};
use crate::clock::Now;
use crate::effort::Effort;
use crate::ids::{BufferId, DataSourceInstanceId, IdHasher, ProducerId, SessionId, WriterId};
use crate::limits;
use crate::machines::Machine;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::{LogLevel, Output, ProducerCommand};
use crate::service::Service;
use crate::session::{Instance, State};
use crate::trace_buffer::{ChunkInfo, ChunkState, ProducerIdentity, TraceBuffer};
use crate::triggers::{TriggerBudget, beginning};

/// Whom the transport says a producer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Process id, where the transport knows it.
    pub pid: Option<i32>,
}

/// Whose budgets a producer uses up: its user's, if the kernel vouches for that. Those who come over a network share one, whatever users
/// they say they are: nobody is to use up what is another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A user of this machine.
    User(u32),
    /// Whoever is not known to be one.
    Network,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::User(uid) => write!(f, "uid {uid}"),
            Owner::Network => f.write_str("other machines"),
        }
    }
}

/// What a producer says of itself when it connects.
#[derive(Debug, Default)]
pub struct Introduction {
    /// Name of the process or program.
    pub name: String,
    /// Version of its client library.
    pub sdk_version: String,
    /// Bytes of shared memory it would like; 0 for no wish.
    pub smb_size_hint: usize,
    /// Bytes per page it would like; 0 for no wish.
    pub smb_page_size_hint: usize,
    /// Whether chunks it did not return may be taken out of its shared memory.
    pub scraping: Scraping,
    /// Whether memory can be shared with it at all.
    pub sharing: MemorySharing,
    /// Where it runs, as its connection tells.
    pub machine: Machine,
}

/// Whether a producer can be sent memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySharing {
    /// It is on this machine, and its socket passes descriptors.
    #[default]
    Possible,
    /// It came over a network: it plays the service's part on memory of its own, and its commits carry the chunks' bytes.
    Impossible,
}

/// Whether chunks that a producer did not return may be taken out of its shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scraping {
    /// They are left there. Only when the producer goes away while a session records are they copied.
    #[default]
    Disabled,
    /// At a flush, a stop and when the producer goes away, whatever its registered writers have finished is copied.
    Enabled,
}

/// Names a registration among all that the service has seen. The ids of producers do not: old ones send none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegistrationId(u64);

impl RegistrationId {
    /// Less than any.
    pub(crate) const NONE: RegistrationId = RegistrationId(0);
}

/// A registration of a data source, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) producer: ProducerId,
    /// Whose producer that is.
    pub(crate) owner: Owner,
    pub(crate) registration: RegistrationId,
}

/// A data source that a producer offers.
pub(crate) struct Registration {
    pub(crate) number: RegistrationId,
    /// As the producer numbers it; 0 if it does not.
    pub(crate) id: u64,
    /// Without the fields that the service passes on undecoded.
    pub(crate) descriptor: DataSourceDescriptor,
    /// As the producer sent it.
    pub(crate) descriptor_bytes: Vec<u8>,
}

impl Registration {
    pub(crate) fn name(&self) -> &str {
        self.descriptor.name.as_deref().unwrap_or_default()
    }
}

pub(crate) struct Producer {
    pub(crate) name: String,
    pub(crate) sdk_version: String,
    pub(crate) credentials: Credentials,
    pub(crate) smb_size_hint: usize,
    pub(crate) smb_page_size_hint: usize,
    pub(crate) scraping: Scraping,
    pub(crate) sharing: MemorySharing,
    pub(crate) machine: Machine,
    pub(crate) smb: Option<ServiceSmb>,
    /// Bytes of it, or of what the driver was asked to make: they count as its owner's.
    shared_bytes: usize,
    /// The driver was asked to make shared memory and has not yet answered.
    pub(crate) smb_requested: bool,
    /// In the order of registration, and so of their numbers.
    pub(crate) data_sources: Vec<Registration>,
    /// Bytes of their descriptors.
    descriptor_bytes: usize,
    /// Where each registered writer writes.
    pub(crate) writers: HashMap<WriterId, BufferId, IdHasher>,
    /// Buffers of the sessions it takes part in; it may write into no other.
    pub(crate) allowed_buffers: OrderedSet<BufferId>,
    pub(crate) trigger_budget: TriggerBudget,
    /// The log knows that it would have more instances in a session than it may.
    pub(crate) instances_told: bool,
}

impl Producer {
    /// Whose it is.
    pub(crate) fn owner(&self) -> Owner {
        match self.machine {
            Machine::Host => Owner::User(self.credentials.uid),
            Machine::Undeclared | Machine::Other(_) => Owner::Network,
        }
    }

    /// Whether a flush may find anything to be scraped.
    pub(crate) fn may_be_scraped(&self) -> bool {
        self.scraping == Scraping::Enabled && !self.writers.is_empty() && self.smb.is_some()
    }

    /// Whether its chunks may be scraped and only it can do that.
    pub(crate) fn scrapes_itself(&self) -> bool {
        self.sharing == MemorySharing::Impossible && self.scraping == Scraping::Enabled
    }

    /// Whether it may register this many bytes of descriptors in place of others, when its owner's producers have these.
    fn has_room_for(&self, new: usize, replaced: usize, of_owner: Offered) -> bool {
        self.descriptor_bytes - replaced + new <= limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER
            && of_owner.bytes - replaced + new <= limits::MAX_DESCRIPTOR_BYTES_PER_UID
    }
}

/// What the producers of one owner have registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offered {
    data_sources: usize,
    /// Of descriptors.
    bytes: usize,
}

impl Service {
    /// A producer connected. Returns its id, or `None` if it is turned away (lockdown, too many producers).
    pub fn connect_producer(&mut self, credentials: Credentials, who: Introduction) -> Option<ProducerId> {
        if self.is_locked_out(&credentials, &who.machine) {
            self.log(
                LogLevel::Warning,
                format!(
                    "turned away producer {:?} of uid {}: the service is locked down",
                    who.name, credentials.uid
                ),
            );
            return None;
        }
        let id = self.next_producer_id()?;
        let producer = Producer {
            name: beginning(&who.name, limits::MAX_PRODUCER_NAME).to_owned(),
            sdk_version: beginning(&who.sdk_version, limits::MAX_PRODUCER_NAME).to_owned(),
            credentials,
            smb_size_hint: who.smb_size_hint,
            smb_page_size_hint: who.smb_page_size_hint,
            scraping: who.scraping,
            sharing: who.sharing,
            machine: who.machine,
            smb: None,
            shared_bytes: 0,
            smb_requested: false,
            data_sources: Vec::new(),
            descriptor_bytes: 0,
            writers: HashMap::default(),
            allowed_buffers: OrderedSet::new(),
            trigger_budget: TriggerBudget::default(),
            instances_told: false,
        };
        self.producers.insert(id, producer);
        Some(id)
    }

    /// Whether the service deals with no such producer: when it is locked down, with those of its own user only. Users of other
    /// machines are others, whatever their numbers.
    pub(crate) fn is_locked_out(&self, credentials: &Credentials, machine: &Machine) -> bool {
        let is_here = match machine {
            Machine::Host => true,
            Machine::Undeclared => false,
            Machine::Other(machine) => machine.id == self.identity.machine,
        };
        let is_own = credentials.uid == self.identity.uid && is_here;
        self.lockdown && !is_own
    }

    /// Whether memory of this size, offered by a producer with this hint for its pages, is one the service would use.
    /// If so the driver attaches it, with that page size, right after connecting.
    pub fn would_adopt(size: usize, page_size_hint: usize) -> bool {
        smb_sizes(size, page_size_hint) == (size, page_size_hint)
    }

    /// Whether this producer may bring as much shared memory, beside what others of its user have.
    ///
    /// # Errors
    /// Why not.
    pub fn check_shared_memory(&self, producer: ProducerId, size: usize) -> Result<(), String> {
        let owner = self.producers.get(&producer).map(Producer::owner);
        let owner = owner.ok_or("the producer has gone")?;
        if self.affordable(owner, size) == size {
            return Ok(());
        }
        Err(format!(
            "with its {size} bytes the producers of {owner} would have more than {}",
            limits::shared_memory_per_uid(self.identity.system.ram_bytes)
        ))
    }

    /// What a producer of this owner gets of the memory that it would: no more than the usual if those of its owner have much already.
    fn affordable(&self, owner: Owner, size: usize) -> usize {
        let taken = self.shared.get(&owner).copied().unwrap_or_default();
        if taken + size <= limits::shared_memory_per_uid(self.identity.system.ram_bytes) {
            size
        } else {
            size.min(limits::DEFAULT_SMB_SIZE)
        }
    }

    /// The memory that a producer gets if it, or the config, would like this much, and its pages. It counts from now on.
    pub(crate) fn grant_shared_memory(
        &mut self,
        producer: ProducerId,
        wish: (usize, usize),
    ) -> (usize, usize) {
        let (mut size, page_size) = smb_sizes(wish.0, wish.1);
        if let Some(owner) = self.producers.get(&producer).map(Producer::owner) {
            size = self.affordable(owner, size);
            if let Some(entry) = self.producers.get_mut(&producer) {
                entry.shared_bytes = size;
                self.count_shared(owner, 0, size);
            }
        }
        (size, page_size)
    }

    /// A producer of this owner has so many bytes of shared memory less, and so many more.
    fn count_shared(&mut self, owner: Owner, less: usize, more: usize) {
        let shared = self.shared.get_or_insert_with(owner, usize::default);
        *shared = *shared - less + more;
        if *shared == 0 {
            self.shared.remove(&owner);
        }
    }

    /// The producer's shared memory is there: what `CreateSharedMemory` asked for, or what the producer offered
    /// (then `SharedMemoryAdopted` follows).
    pub fn attach_shared_memory(&mut self, producer: ProducerId, smb: ServiceSmb, origin: SmbOrigin) {
        let Some(entry) = self.producers.get_mut(&producer) else {
            return;
        };
        let (before, now) = (entry.shared_bytes, smb.memory().size());
        let owner = entry.owner();
        entry.shared_bytes = now;
        entry.smb = Some(smb);
        self.count_shared(owner, before, now);
        if origin == SmbOrigin::Producer {
            self.command(producer, ProducerCommand::SharedMemoryAdopted);
        }
    }

    /// A producer is gone: what it left in shared memory is saved, its data sources end.
    pub fn disconnect_producer(&mut self, producer: ProducerId, now: &Now) {
        if !self.producers.contains_key(&producer) {
            return;
        }
        self.rescue(producer);
        self.forget_in_flushes(producer, now);
        self.end_instances(producer, now, |_| true);
        if let Some(gone) = self.producers.remove(&producer) {
            self.count_shared(gone.owner(), gone.shared_bytes, 0);
            let count = gone.data_sources.len();
            self.count_offered(gone.owner(), (count, gone.descriptor_bytes), (0, 0));
            for source in &gone.data_sources {
                self.withdraw_offer(source.number, source.name());
            }
        }
        self.outputs.retain(|output| output.producer() != Some(producer));
    }

    /// The producer offers a data source.
    pub fn register_data_source(&mut self, producer: ProducerId, descriptor: &[u8], now: &Now) {
        let Some(entry) = self.producers.get_mut(&producer) else {
            return;
        };
        let Ok(decoded) = essence(descriptor) else {
            return self.violation(producer, "sent a data source descriptor that cannot be decoded");
        };
        let number = RegistrationId(self.last_registration + 1);
        let registration = Registration {
            number,
            id: decoded.id.unwrap_or_default(),
            descriptor: decoded,
            descriptor_bytes: descriptor.to_vec(),
        };
        if registration.name().is_empty() {
            return;
        }
        let owner = entry.owner();
        let of_owner = self.offered.get(&owner).copied().unwrap_or_default();
        let too_many = entry.data_sources.len() >= limits::MAX_DATA_SOURCES_PER_PRODUCER
            || of_owner.data_sources >= limits::MAX_DATA_SOURCES_PER_UID;
        if too_many || !entry.has_room_for(descriptor.len(), 0, of_owner) {
            let line = format!(
                "producer {:?} may not register more than {} data sources, nor {} bytes of descriptors, nor with the others of \
                 {owner} more than {} and {}: {:?} is ignored",
                entry.name,
                limits::MAX_DATA_SOURCES_PER_PRODUCER,
                limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER,
                limits::MAX_DATA_SOURCES_PER_UID,
                limits::MAX_DESCRIPTOR_BYTES_PER_UID,
                beginning(registration.name(), limits::MAX_LISTED_NAME)
            );
            return self.log(LogLevel::Warning, line);
        }
        // Clients before v22 sent no id.
        if registration.id != 0 && entry.data_sources.iter().any(|known| known.id == registration.id) {
            let line = format!(
                "producer {:?} registered data source {:?} under the id {} that another one has: ignored",
                entry.name,
                registration.name(),
                registration.id
            );
            return self.log(LogLevel::Warning, line);
        }
        let name = registration.name().to_owned();
        entry.descriptor_bytes += descriptor.len();
        entry.data_sources.push(registration);
        self.count_offered(owner, (0, 0), (1, descriptor.len()));
        self.last_registration = number.0;
        let offer = Offer {
            producer,
            owner,
            registration: number,
        };
        self.offers.entry(name.clone()).or_default().push(offer);

        let wanting: Vec<SessionId> = self
            .sessions
            .values()
            .filter(|session| matches!(session.state, State::Configured | State::Started))
            .map(|session| session.id)
            .collect();
        let effort = Effort::new(self.processor_clock);
        for session in wanting {
            self.set_up_late(session, offer, &name, &effort, now);
        }
    }

    /// The producer changes the descriptor of a data source it registered with an id.
    pub fn update_data_source(&mut self, producer: ProducerId, descriptor: &[u8]) {
        let Some(entry) = self.producers.get_mut(&producer) else {
            return;
        };
        let Ok(decoded) = essence(descriptor) else {
            return self.violation(producer, "sent a data source descriptor that cannot be decoded");
        };
        let id = decoded.id.unwrap_or_default();
        let position = entry
            .data_sources
            .iter()
            .position(|known| id != 0 && known.id == id && known.descriptor.name == decoded.name)
            .filter(|at| {
                let replaced = entry.data_sources[*at].descriptor_bytes.len();
                let of_owner = self.offered.get(&entry.owner()).copied();
                entry.has_room_for(descriptor.len(), replaced, of_owner.unwrap_or_default())
            });
        match position {
            Some(at) => {
                let owner = entry.owner();
                let known = &mut entry.data_sources[at];
                let replaced = known.descriptor_bytes.len();
                entry.descriptor_bytes -= replaced;
                entry.descriptor_bytes += descriptor.len();
                known.descriptor = decoded;
                known.descriptor_bytes = descriptor.to_vec();
                self.count_offered(owner, (0, replaced), (0, descriptor.len()));
            }
            None => {
                let line = format!(
                    "producer {:?} updated data source {:?} with id {id}, which it has not registered or has no room \
                     for: ignored",
                    entry.name,
                    decoded.name.unwrap_or_default()
                );
                self.log(LogLevel::Warning, line);
            }
        }
    }

    /// The producer takes back a data source: its instances end.
    pub fn unregister_data_source(&mut self, producer: ProducerId, name: &str, now: &Now) {
        let Some(entry) = self.producers.get_mut(&producer) else {
            return;
        };
        let Some(position) = entry.data_sources.iter().position(|known| known.name() == name) else {
            return;
        };
        let removed = entry.data_sources.remove(position);
        entry.descriptor_bytes -= removed.descriptor_bytes.len();
        let owner = entry.owner();
        self.count_offered(owner, (1, removed.descriptor_bytes.len()), (0, 0));
        self.withdraw_offer(removed.number, name);
        self.end_instances(producer, now, |instance| instance.name == name);
    }

    /// A producer of this owner has so many data sources and bytes of descriptors less, and so many more.
    fn count_offered(&mut self, owner: Owner, less: (usize, usize), more: (usize, usize)) {
        let offered = self.offered.get_or_insert_with(owner, Offered::default);
        offered.data_sources = offered.data_sources - less.0 + more.0;
        offered.bytes = offered.bytes - less.1 + more.1;
        if *offered == Offered::default() {
            self.offered.remove(&owner);
        }
    }

    /// A data source of this name is offered no more.
    fn withdraw_offer(&mut self, registration: RegistrationId, name: &str) {
        let Some(offers) = self.offers.get_mut(name) else {
            return;
        };
        // Later ones have greater numbers.
        if let Ok(place) = offers.binary_search_by_key(&registration, |offer| offer.registration) {
            offers.remove(place);
        }
        if offers.is_empty() {
            self.offers.remove(name);
        }
    }

    /// Ends instances that their producer has taken back, or all of them because it has gone away, data source by data source.
    fn end_instances(&mut self, producer: ProducerId, now: &Now, ended: impl Fn(&Instance) -> bool) {
        let mut ending: Vec<(String, SessionId, DataSourceInstanceId)> = Vec::new();
        for session in self.sessions.values_mut() {
            let mut gone: Vec<&Instance> = Vec::new();
            for id in session.instances.of(producer) {
                let instance = session.instances.get(*id).filter(|instance| ended(instance));
                gone.extend(instance);
                ending.extend(instance.map(|instance| (instance.name.clone(), session.id, *id)));
            }
            if session.state == State::Started
                && let Some(first) = gone.first()
            {
                let kind = AbsenceKind::Gone(first.owner);
                let gone = Absence::new(kind, gone.into_iter(), &self.producers, now);
                session.note_absence(gone);
            }
        }
        ending.sort_unstable();
        for (_, session, instance) in ending {
            self.end_instance(session, instance, now);
        }
    }

    /// The producer says which buffer one of its writers writes into, so that its chunks can be scraped.
    pub fn register_trace_writer(&mut self, producer: ProducerId, writer: u32, buffer: u32) {
        let Some(entry) = self.producers.get_mut(&producer) else {
            return;
        };
        if let (Some(writer), Ok(buffer)) = (writer_id(writer), u16::try_from(buffer)) {
            entry.writers.insert(writer, BufferId(buffer));
        }
    }

    /// The producer gives up a writer.
    pub fn unregister_trace_writer(&mut self, producer: ProducerId, writer: u32) {
        let Some(entry) = self.producers.get_mut(&producer) else {
            return;
        };
        if let Some(writer) = writer_id(writer) {
            entry.writers.remove(&writer);
        }
    }

    /// The producer broke a rule that no honest one can: it is cut off.
    pub(crate) fn violation(&mut self, producer: ProducerId, what: &str) {
        let name = self
            .producers
            .get(&producer)
            .map(|entry| entry.name.clone())
            .unwrap_or_default();
        self.output(Output::DisconnectProducer {
            producer,
            rule: format!("producer {name:?} {what}"),
        });
    }
}

/// Where the chunks of one producer go.
pub(crate) struct Target<'a> {
    pub(crate) entry: &'a Producer,
    pub(crate) producer: ProducerId,
    pub(crate) buffers: &'a mut OrderedMap<BufferId, TraceBuffer>,
    /// Work that may still be done to merge what is overwritten.
    pub(crate) protovm_work: &'a mut u64,
}

/// Whether a chunk reached the buffer it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Placed {
    InBuffer,
    /// Usually it was on its way when its session ended.
    Nowhere,
}

impl Target<'_> {
    /// Copies a chunk, by now in private memory, into the buffer it is for.
    pub(crate) fn copy_chunk(
        &mut self,
        target: BufferId,
        header: &ChunkHeader,
        state: ChunkState,
        payload: &[u8],
    ) -> Placed {
        let registered_elsewhere = self
            .entry
            .writers
            .get(&header.writer)
            .is_some_and(|buffer| *buffer != target);
        if !self.entry.allowed_buffers.contains(&target) || registered_elsewhere {
            return Placed::Nowhere;
        }
        let Some(buffer) = self.buffers.get_mut(&target) else {
            return Placed::Nowhere;
        };
        let info = ChunkInfo {
            producer: self.producer,
            identity: ProducerIdentity {
                uid: self.entry.credentials.uid,
                pid: self.entry.credentials.pid,
                machine: self.entry.machine.id(),
            },
            writer: header.writer,
            chunk_id: header.chunk,
            num_fragments: header.packet_count,
            flags: header.flags.bits(),
            state,
        };
        buffer.restrict_protovm_work(*self.protovm_work);
        // Chunks that break a rule are counted in the statistics of the buffer and cost the producer its data.
        let _ = buffer.copy_chunk(&info, payload);
        if let Some(left) = buffer.protovm_work_left() {
            *self.protovm_work = left;
        }
        Placed::InBuffer
    }
}

/// Where shared memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmbOrigin {
    /// Made for the service.
    Service,
    /// Offered by the producer.
    Producer,
}

/// A writer id, if it is one: 0 is none.
pub(crate) fn writer_id(raw: u32) -> Option<WriterId> {
    u16::try_from(raw)
        .ok()
        .filter(|id| (1..=MAX_WRITER_ID).contains(id))
        .map(WriterId)
}

/// The sizes of shared memory and its pages that a producer gets if it asks for these; 0 means no wish. Anything
/// impossible gives the default of both.
pub(crate) fn smb_sizes(size: usize, page_size: usize) -> (usize, usize) {
    let page_size = if page_size == 0 {
        limits::DEFAULT_SMB_PAGE_SIZE
    } else {
        page_size
    };
    let size = if size == 0 { limits::DEFAULT_SMB_SIZE } else { size };
    let page_size = page_size.min(limits::MAX_SMB_PAGE_SIZE);
    let size = size.min(limits::MAX_SMB_SIZE);
    let pages_of_4k = page_size / limits::MIN_SMB_PAGE_SIZE;
    let valid = page_size % limits::MIN_SMB_PAGE_SIZE == 0
        && pages_of_4k.is_power_of_two()
        && size >= page_size
        && size % page_size == 0;
    if valid {
        (size, page_size)
    } else {
        (limits::DEFAULT_SMB_SIZE, limits::DEFAULT_SMB_PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::smb_sizes;

    const KB: usize = 1024;

    #[test]
    fn no_wish_gives_the_default() {
        assert_eq!(smb_sizes(0, 0), (256 * KB, 4 * KB));
    }

    #[test]
    fn wishes_within_the_limits_are_granted() {
        assert_eq!(smb_sizes(1024 * KB, 32 * KB), (1024 * KB, 32 * KB));
        assert_eq!(smb_sizes(4 * KB, 4 * KB), (4 * KB, 4 * KB));
    }

    #[test]
    fn too_much_is_cut_to_the_limits() {
        assert_eq!(smb_sizes(4096 * KB * KB, 4096 * KB), (32 * KB * KB, 32 * KB));
    }

    #[test]
    fn impossible_combinations_give_the_default() {
        for (size, page) in [
            (18 * KB, 0),
            (32 * KB, 2 * KB),
            (20 * KB, 8 * KB),
            (0, 28 * KB),
            (4 * KB, 8 * KB),
        ] {
            assert_eq!(
                smb_sizes(size, page),
                (256 * KB, 4 * KB),
                "size {size} page {page}"
            );
        }
    }
}
