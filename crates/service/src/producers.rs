//! The connected producers: their identity, their data sources, and their share of the service's memory.
//!
//! `producer` has their inputs. Everything here comes from processes that may be hostile, so ids are looked up, and sizes are checked against the
//! limits of each producer and of all producers of its owner.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;

use ferretto_proto::messages::{DataSourceDescriptor, TraceConfig};
use ferretto_smb::{ChunkHeader, MAX_WRITER_ID, ServiceSmb};

use crate::identity::Identity;
use crate::ids::{BufferId, IdHasher, ProducerId, WriterId};
use crate::ledger::Ledger;
use crate::limits;
use crate::machines::Machine;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::ProducerCommand;
use crate::trace_buffer::{ChunkInfo, ChunkState, ProducerIdentity, TraceBuffer};
use crate::triggers::{TriggerBudget, beginning};

/// The identity of a producer, from its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Process id, where the transport knows it.
    pub pid: Option<i32>,
}

/// The owner of the budgets that a producer uses: its user, if the kernel vouches for that. All producers from a network share one owner,
/// whichever users they claim to be, so that they cannot use up the budgets of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A user of this machine.
    User(u32),
    /// Anyone who is not known to be a user of this machine.
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

/// A producer's description of itself when it connects.
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
    /// Its machine, as far as its connection shows.
    pub machine: Machine,
}

/// Whether a producer can be sent memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySharing {
    /// It is on this machine, and its socket passes descriptors.
    #[default]
    Possible,
    /// It came over a network: it plays the service's part on private memory, and its commits carry the chunks' bytes.
    Impossible,
}

/// Whether chunks that a producer did not return may be taken out of its shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scraping {
    /// They are left there, and copied only when the producer goes away while a session records.
    #[default]
    Disabled,
    /// At a flush, a stop and when the producer goes away, finished packets of its registered writers are copied.
    Enabled,
}

/// Names a registration among all that the service has seen. The ids of producers do not: old ones send none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegistrationId(u64);

impl RegistrationId {
    /// Less than any.
    pub(crate) const NONE: RegistrationId = RegistrationId(0);
}

/// A registration of a data source, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) producer: ProducerId,
    /// The owner of the producer.
    pub(crate) owner: Owner,
    pub(crate) registration: RegistrationId,
}

/// A data source that a producer offers.
pub(crate) struct Registration {
    pub(crate) number: RegistrationId,
    /// The producer's number for it; 0 if it has none.
    pub(crate) id: u64,
    /// Without the fields that the service passes on undecoded.
    pub(crate) descriptor: DataSourceDescriptor,
    /// The descriptor as the producer sent it.
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
    /// Bytes of the shared memory, or of the memory that the driver was asked to make: they count as its owner's.
    shared_bytes: usize,
    /// The driver was asked to make shared memory and has not yet answered.
    pub(crate) smb_requested: bool,
    /// In the order of registration, and so of their numbers.
    pub(crate) data_sources: Vec<Registration>,
    /// Bytes of their descriptors.
    descriptor_bytes: usize,
    /// The buffers of registered writers.
    pub(crate) writers: HashMap<WriterId, BufferId, IdHasher>,
    /// Buffers of the sessions it takes part in; it may write into no other.
    pub(crate) allowed_buffers: OrderedSet<BufferId>,
    pub(crate) trigger_budget: TriggerBudget,
    /// The log knows that it would have more instances in a session than it may.
    pub(crate) instances_told: bool,
}

impl Producer {
    /// A producer that has just connected.
    pub(crate) fn new(credentials: Credentials, who: Introduction) -> Producer {
        Producer {
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
        }
    }

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

    /// Copies a chunk, by now in private memory, into its target buffer, if this producer may write there. `id` is the producer's own; `protovm_work`
    /// is the work that may still be done to merge overwritten packets.
    pub(crate) fn copy_chunk(
        &self,
        id: ProducerId,
        target: BufferId,
        buffer: Option<&mut TraceBuffer>,
        (header, state, payload): (&ChunkHeader, ChunkState, &[u8]),
        protovm_work: &mut u64,
    ) -> Placed {
        let registered_elsewhere = self
            .writers
            .get(&header.writer)
            .is_some_and(|buffer| *buffer != target);
        if !self.allowed_buffers.contains(&target) || registered_elsewhere {
            return Placed::Nowhere;
        }
        let Some(buffer) = buffer else {
            return Placed::Nowhere;
        };
        let info = ChunkInfo {
            producer: id,
            identity: ProducerIdentity {
                uid: self.credentials.uid,
                pid: self.credentials.pid,
                machine: self.machine.id(),
            },
            writer: header.writer,
            chunk_id: header.chunk,
            num_fragments: header.packet_count,
            flags: header.flags.bits(),
            state,
        };
        buffer.restrict_protovm_work(*protovm_work);
        // Chunks that break a rule are counted in the statistics of the buffer and cost the producer its data.
        let _ = buffer.copy_chunk(&info, payload);
        if let Some(left) = buffer.protovm_work_left() {
            *protovm_work = left;
        }
        Placed::InBuffer
    }
}

/// All producers that are connected, and their data sources.
#[derive(Default)]
pub(crate) struct Producers {
    by_id: OrderedMap<ProducerId, Producer>,
    /// The offers of each data source name, in the order of registration: a producer may register a name more than once.
    offers: BTreeMap<String, Vec<Offer>>,
    data_sources: Ledger<Owner>,
    descriptor_bytes: Ledger<Owner>,
    /// In bytes.
    shared_memory: Ledger<Owner>,
    pub(crate) lockdown: bool,
    last: ProducerId,
    seen: u32,
    last_registration: RegistrationId,
}

impl Producers {
    pub(crate) fn get(&self, id: ProducerId) -> Option<&Producer> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ProducerId) -> Option<&mut Producer> {
        self.by_id.get_mut(&id)
    }

    /// The producer behind this one.
    pub(crate) fn after(&self, id: ProducerId) -> Option<(ProducerId, &Producer)> {
        self.by_id.after(&id).map(|(id, producer)| (*id, producer))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ProducerId, &Producer)> {
        self.by_id.iter().map(|(id, producer)| (*id, producer))
    }

    /// The number of producers that have connected so far.
    pub(crate) fn seen(&self) -> u32 {
        self.seen
    }

    /// How many data sources are registered.
    pub(crate) fn data_sources(&self) -> usize {
        self.data_sources.total()
    }

    /// Adds one under an id of its own; `None` if there are as many as may be.
    pub(crate) fn add(&mut self, producer: Producer) -> Option<ProducerId> {
        if self.by_id.len() >= limits::MAX_PRODUCERS {
            return None;
        }
        loop {
            self.last = ProducerId(self.last.0 % limits::MAX_PRODUCER_ID + 1);
            if !self.by_id.contains_key(&self.last) {
                break;
            }
        }
        self.seen += 1;
        self.by_id.insert(self.last, producer);
        Some(self.last)
    }

    /// Takes one out, with all that it offers.
    pub(crate) fn remove(&mut self, id: ProducerId) {
        let Some(gone) = self.by_id.remove(&id) else {
            return;
        };
        let owner = gone.owner();
        self.shared_memory.give_back(owner, gone.shared_bytes);
        self.data_sources.give_back(owner, gone.data_sources.len());
        self.descriptor_bytes.give_back(owner, gone.descriptor_bytes);
        for source in &gone.data_sources {
            self.withdraw_offer(source.number, source.name());
        }
    }

    /// Whether the service refuses such a producer: in lockdown it accepts only producers of its own user. Users of other machines are
    /// different users, whatever their numbers.
    pub(crate) fn is_locked_out(
        &self,
        credentials: &Credentials,
        machine: &Machine,
        service: &Identity,
    ) -> bool {
        let is_here = match machine {
            Machine::Host => true,
            Machine::Undeclared => false,
            Machine::Other(machine) => machine.id == service.machine,
        };
        let is_own = credentials.uid == service.uid && is_here;
        self.lockdown && !is_own
    }

    /// How much of the memory that it wants a producer of this owner gets: at most the default size if the owner's producers have much already.
    pub(crate) fn affordable(&self, owner: Owner, size: usize, ram_bytes: Option<u64>) -> usize {
        let limit = limits::shared_memory_per_uid(ram_bytes);
        if self.shared_memory.has_room(&owner, size, limit) {
            size
        } else {
            size.min(limits::DEFAULT_SMB_SIZE)
        }
    }

    /// Lets a producer take part in a session of this config, and write into this buffer of it. Returns the command for its shared memory, if it has
    /// none yet: the config's sizes for the producer, or else the producer's own. Memory that is to be made counts from now on.
    pub(crate) fn takes_part(
        &mut self,
        id: ProducerId,
        buffer: BufferId,
        config: &TraceConfig,
        ram_bytes: Option<u64>,
    ) -> Option<ProducerCommand> {
        let producer = self.by_id.get_mut(&id)?;
        producer.allowed_buffers.insert(buffer);
        if producer.smb.is_some() || std::mem::replace(&mut producer.smb_requested, true) {
            return None;
        }
        let mut wishes = config.producers.iter();
        let wish = wishes.find(|wish| wish.producer_name.as_deref() == Some(producer.name.as_str()));
        let or_hint = |kb: Option<u32>, hint: usize| match kb.unwrap_or_default() as usize * 1024 {
            0 => hint,
            bytes => bytes,
        };
        let (size, page_size) = smb_sizes(
            or_hint(wish.and_then(|wish| wish.shm_size_kb), producer.smb_size_hint),
            or_hint(
                wish.and_then(|wish| wish.page_size_kb),
                producer.smb_page_size_hint,
            ),
        );
        if producer.sharing == MemorySharing::Impossible {
            return Some(ProducerCommand::EmulateSharedMemory { page_size });
        }
        let owner = producer.owner();
        let size = self.affordable(owner, size, ram_bytes);
        self.set_shared_bytes(id, size);
        Some(ProducerCommand::CreateSharedMemory { size, page_size })
    }

    /// Sets the size of this producer's shared memory.
    pub(crate) fn set_shared_bytes(&mut self, id: ProducerId, size: usize) {
        if let Some(producer) = self.by_id.get_mut(&id) {
            let before = std::mem::replace(&mut producer.shared_bytes, size);
            self.shared_memory.replace(producer.owner(), before, size);
        }
    }

    /// The offers of data sources of this name.
    pub(crate) fn offers(&self, name: &str) -> &[Offer] {
        self.offers.get(name).map_or(&[], Vec::as_slice)
    }

    /// The offer that comes behind this one, in the order of names and registrations.
    pub(crate) fn offer_after(&self, name: &str, last: RegistrationId) -> Option<(&str, Offer)> {
        let names = (Bound::Included(name), Bound::Unbounded);
        // There may be no data source of the same name left; of the next name there is at least one.
        let mut two = self.offers.range::<str, _>(names).take(2);
        two.find_map(|(other, offers)| {
            let told = offers.partition_point(|offer| other == name && offer.registration <= last);
            Some((other.as_str(), *offers.get(told)?))
        })
    }

    /// The registration that made an offer.
    pub(crate) fn registration(&self, offer: Offer) -> Option<&Registration> {
        let sources = &self.by_id.get(&offer.producer)?.data_sources;
        let place = sources.binary_search_by_key(&offer.registration, |source| source.number);
        sources.get(place.ok()?)
    }

    /// Registers a data source of a producer.
    ///
    /// # Errors
    /// A line for the log with the reason why it may not.
    pub(crate) fn register(
        &mut self,
        producer: ProducerId,
        descriptor: DataSourceDescriptor,
        encoded: &[u8],
    ) -> Result<Option<Offer>, String> {
        let Some(entry) = self.by_id.get_mut(&producer) else {
            return Ok(None);
        };
        let number = RegistrationId(self.last_registration.0 + 1);
        let registration = Registration {
            number,
            id: descriptor.id.unwrap_or_default(),
            descriptor,
            descriptor_bytes: encoded.to_vec(),
        };
        let owner = entry.owner();
        let has_room = entry.data_sources.len() < limits::MAX_DATA_SOURCES_PER_PRODUCER
            && self
                .data_sources
                .has_room(&owner, 1, limits::MAX_DATA_SOURCES_PER_UID)
            && has_room_for_descriptor(entry, &self.descriptor_bytes, 0, encoded.len());
        if !has_room {
            return Err(format!(
                "producer {:?} may not register more than {} data sources, nor {} bytes of descriptors, nor with the others of \
                 {owner} more than {} and {}: {:?} is ignored",
                entry.name,
                limits::MAX_DATA_SOURCES_PER_PRODUCER,
                limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER,
                limits::MAX_DATA_SOURCES_PER_UID,
                limits::MAX_DESCRIPTOR_BYTES_PER_UID,
                beginning(registration.name(), limits::MAX_LISTED_NAME)
            ));
        }
        // Clients before v22 sent no id.
        if registration.id != 0 && entry.data_sources.iter().any(|known| known.id == registration.id) {
            return Err(format!(
                "producer {:?} registered data source {:?} under the id {} that another one has: ignored",
                entry.name,
                registration.name(),
                registration.id
            ));
        }
        let offer = Offer {
            producer,
            owner,
            registration: number,
        };
        let name = registration.name().to_owned();
        self.offers.entry(name).or_default().push(offer);
        entry.descriptor_bytes += encoded.len();
        entry.data_sources.push(registration);
        self.data_sources.take(owner, 1);
        self.descriptor_bytes.take(owner, encoded.len());
        self.last_registration = number;
        Ok(Some(offer))
    }

    /// Changes the descriptor of a data source that a producer registered with an id.
    ///
    /// # Errors
    /// A line for the log with the reason why it may not.
    pub(crate) fn update(
        &mut self,
        producer: ProducerId,
        descriptor: DataSourceDescriptor,
        encoded: &[u8],
    ) -> Result<(), String> {
        let Some(entry) = self.by_id.get_mut(&producer) else {
            return Ok(());
        };
        let owner = entry.owner();
        let id = descriptor.id.unwrap_or_default();
        let mut sources = entry.data_sources.iter();
        let known =
            sources.position(|known| id != 0 && known.id == id && known.descriptor.name == descriptor.name);
        let with_room = known.filter(|at| {
            let replaced = entry.data_sources[*at].descriptor_bytes.len();
            has_room_for_descriptor(entry, &self.descriptor_bytes, replaced, encoded.len())
        });
        let Some(at) = with_room else {
            return Err(format!(
                "producer {:?} updated data source {:?} with id {id}, which it has not registered or has no room for: ignored",
                entry.name,
                descriptor.name.unwrap_or_default()
            ));
        };
        let known = &mut entry.data_sources[at];
        let replaced = known.descriptor_bytes.len();
        entry.descriptor_bytes -= replaced;
        entry.descriptor_bytes += encoded.len();
        known.descriptor = descriptor;
        known.descriptor_bytes = encoded.to_vec();
        self.descriptor_bytes.replace(owner, replaced, encoded.len());
        Ok(())
    }

    /// A producer takes back a data source. Whether it had offered one of this name.
    pub(crate) fn unregister(&mut self, producer: ProducerId, name: &str) -> bool {
        let Some(entry) = self.by_id.get_mut(&producer) else {
            return false;
        };
        let Some(position) = entry.data_sources.iter().position(|known| known.name() == name) else {
            return false;
        };
        let removed = entry.data_sources.remove(position);
        entry.descriptor_bytes -= removed.descriptor_bytes.len();
        let owner = entry.owner();
        self.data_sources.give_back(owner, 1);
        self.descriptor_bytes
            .give_back(owner, removed.descriptor_bytes.len());
        self.withdraw_offer(removed.number, name);
        true
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

    /// Lets no producer write into these buffers any more: they are gone.
    pub(crate) fn forget_buffers(&mut self, buffers: &[BufferId]) {
        for producer in self.by_id.values_mut() {
            for buffer in buffers {
                producer.allowed_buffers.remove(buffer);
            }
        }
    }
}

/// Whether a producer may register a descriptor of `new` bytes in place of one of `replaced`. The ledger is of all descriptors.
fn has_room_for_descriptor(
    producer: &Producer,
    of_owners: &Ledger<Owner>,
    replaced: usize,
    new: usize,
) -> bool {
    let own = producer.descriptor_bytes - replaced + new;
    let of_owner = of_owners.of(&producer.owner()) - replaced + new;
    own <= limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER && of_owner <= limits::MAX_DESCRIPTOR_BYTES_PER_UID
}

/// Whether a chunk reached the buffer it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Placed {
    InBuffer,
    /// Usually it was on its way when its session ended.
    Nowhere,
}

/// The origin of shared memory.
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
mod tests;
