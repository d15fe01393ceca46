//! Inputs from producers: they connect, offer data sources, bring shared memory, register writers, acknowledge, and disconnect.
//!
//! `commit` has their commits, `triggers` their triggers. Every input comes from a process that may be hostile.

use ferretto_proto::opaque::essence;
use ferretto_smb::ServiceSmb;

use crate::clock::Now;
use crate::ids::{BufferId, DataSourceInstanceId, FlushRequestId, ProducerId, SessionId};
use crate::limits;
use crate::output::{Output, ProducerCommand};
use crate::producers::{Credentials, Introduction, Producer, SmbOrigin, smb_sizes, writer_id};
use crate::service::Service;
use crate::session::absences::{Absence, AbsenceKind};
use crate::session::{Instance, State};
use crate::work_budget::WorkBudget;

impl Service {
    /// A producer connected. Returns its id, or `None` if it is turned away (lockdown, too many producers).
    pub fn connect_producer(&mut self, credentials: Credentials, who: Introduction) -> Option<ProducerId> {
        let common = &mut self.common;
        if common
            .producers
            .is_locked_out(&credentials, &who.machine, &common.identity)
        {
            common.outbox.warn(format!(
                "turned away producer {:?} of uid {}: the service is locked down",
                who.name, credentials.uid
            ));
            return None;
        }
        common.producers.add(Producer::new(credentials, who))
    }

    /// Whether the service would use memory of this size, offered by a producer with this hint for its pages. If so, the driver attaches it, with
    /// that page size, right after connecting.
    pub fn would_adopt(size: usize, page_size_hint: usize) -> bool {
        smb_sizes(size, page_size_hint) == (size, page_size_hint)
    }

    /// Whether this producer may bring this much shared memory, besides that of its user's other producers.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check_shared_memory(&self, producer: ProducerId, size: usize) -> Result<(), String> {
        let producers = &self.common.producers;
        let ram_bytes = self.common.identity.system.ram_bytes;
        let owner = producers.get(producer).map(Producer::owner);
        let owner = owner.ok_or("the producer has gone")?;
        if producers.affordable(owner, size, ram_bytes) == size {
            return Ok(());
        }
        Err(format!(
            "with its {size} bytes the producers of {owner} would have more than {}",
            limits::shared_memory_per_uid(ram_bytes)
        ))
    }

    /// The producer's shared memory is there: the memory that `CreateSharedMemory` asked for, or memory that the producer offered (then
    /// `SharedMemoryAdopted` follows).
    pub fn attach_shared_memory(&mut self, producer: ProducerId, smb: ServiceSmb, origin: SmbOrigin) {
        let common = &mut self.common;
        common.producers.set_shared_bytes(producer, smb.memory().size());
        let Some(entry) = common.producers.get_mut(producer) else {
            return;
        };
        entry.smb = Some(smb);
        if origin == SmbOrigin::Producer {
            common
                .outbox
                .command(producer, ProducerCommand::SharedMemoryAdopted);
        }
    }

    /// A producer disconnected: the data in its shared memory is saved, and its data sources end.
    pub fn disconnect_producer(&mut self, producer: ProducerId, now: &Now) {
        self.rescue(producer);
        self.strike_off(producer, FlushRequestId(u64::MAX), now);
        self.end_instances(producer, now, |_| true);
        self.common.producers.remove(producer);
        self.common.outbox.producer_gone(producer);
    }

    /// The producer offers a data source.
    pub fn register_data_source(&mut self, producer: ProducerId, descriptor: &[u8], now: &Now) {
        let Ok(decoded) = essence(descriptor) else {
            return self.violation(producer, "sent a data source descriptor that cannot be decoded");
        };
        let name = decoded.name.clone().unwrap_or_default();
        if name.is_empty() {
            return;
        }
        match self.common.producers.register(producer, decoded, descriptor) {
            Err(line) => self.common.outbox.warn(line),
            Ok(None) => {}
            Ok(Some(offer)) => {
                let budget = WorkBudget::new(limits::MAX_MATCHING_WORK);
                for session in self
                    .sessions
                    .iter_mut()
                    .filter(|session| session.takes_data_sources())
                {
                    session.set_up_late(offer, &name, &budget, &mut self.common, now);
                }
            }
        }
    }

    /// The producer changes the descriptor of a data source it registered with an id.
    pub fn update_data_source(&mut self, producer: ProducerId, descriptor: &[u8]) {
        let Ok(decoded) = essence(descriptor) else {
            return self.violation(producer, "sent a data source descriptor that cannot be decoded");
        };
        if let Err(line) = self.common.producers.update(producer, decoded, descriptor) {
            self.common.outbox.warn(line);
        }
    }

    /// The producer takes back a data source: its instances end.
    pub fn unregister_data_source(&mut self, producer: ProducerId, name: &str, now: &Now) {
        if self.common.producers.unregister(producer, name) {
            self.end_instances(producer, now, |instance| instance.name == name);
        }
    }

    /// Ends instances that their producer has taken back, or all of them because it has gone away, data source by data source.
    fn end_instances(&mut self, producer: ProducerId, now: &Now, ended: impl Fn(&Instance) -> bool) {
        let mut ending: Vec<(String, SessionId, DataSourceInstanceId)> = Vec::new();
        for session in self.sessions.iter_mut() {
            let of_producer = session.instances.of_producer(producer);
            let gone: Vec<_> = of_producer.filter(|(_, instance)| ended(instance)).collect();
            ending.extend(
                gone.iter()
                    .map(|(id, instance)| (instance.name.clone(), session.id, *id)),
            );
            if let (State::Started, Some((_, first))) = (session.state, gone.first()) {
                let kind = AbsenceKind::Gone(first.owner);
                let gone = gone.iter().map(|(_, instance)| *instance);
                let gone = Absence::new(kind, gone, &self.common.producers, now);
                session.notes.absences.note(gone);
            }
        }
        ending.sort_unstable();
        for (_, session, instance) in ending {
            self.on_session(session, now, |session, common| {
                session.end_instance(instance, common, now);
            });
        }
    }

    /// The producer says that an instance has started.
    pub fn data_source_started(&mut self, producer: ProducerId, instance: u64, now: &Now) {
        let id = DataSourceInstanceId(instance);
        if let Some(session) = self.sessions.of_instance(producer, id) {
            self.on_session(session, now, |session, common| {
                session.instance_started(id, common, now);
            });
        }
    }

    /// The producer says that an instance has stopped.
    pub fn data_source_stopped(&mut self, producer: ProducerId, instance: u64, now: &Now) {
        let id = DataSourceInstanceId(instance);
        if let Some(session) = self.sessions.of_instance(producer, id) {
            self.on_session(session, now, |session, common| {
                session.instance_stopped(id, common, now);
            });
        }
    }

    /// The producer says which buffer one of its writers writes into, so that its chunks can be scraped.
    pub fn register_trace_writer(&mut self, producer: ProducerId, writer: u32, buffer: u32) {
        if let Some(entry) = self.common.producers.get_mut(producer)
            && let (Some(writer), Ok(buffer)) = (writer_id(writer), u16::try_from(buffer))
        {
            entry.writers.insert(writer, BufferId(buffer));
        }
    }

    /// The producer gives up a writer.
    pub fn unregister_trace_writer(&mut self, producer: ProducerId, writer: u32) {
        if let Some(entry) = self.common.producers.get_mut(producer)
            && let Some(writer) = writer_id(writer)
        {
            entry.writers.remove(&writer);
        }
    }

    /// The producer broke a rule that no honest one can: it is cut off.
    fn violation(&mut self, producer: ProducerId, what: &str) {
        if let Some(entry) = self.common.producers.get(producer) {
            let rule = format!("producer {:?} {what}", entry.name);
            self.common
                .outbox
                .push(Output::DisconnectProducer { producer, rule });
        }
    }
}
