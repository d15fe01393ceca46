//! Setting up the data sources of a session on producers: when the session is configured, when a data source is registered later, and when the
//! config changes.

use std::fmt::Display;
use std::sync::Arc;

use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor, Message, TraceConfig, trace_config};
use ferretto_wire::Writer;

use super::instances::NoRoom;
use super::{Instance, InstanceState, Session, State};
use crate::clock::Now;
use crate::ids::{BufferId, DataSourceInstanceId, ProducerId};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::ProducerCommand;
use crate::producers::{Offer, Owner, RegistrationId};
use crate::session::common::Common;
use crate::session::config::{adopted_filters, exchange_filters, only_filters_differ, resolve_targets};
use crate::trace_buffer::TraceBuffer;
use crate::wanted::{Wanted, WantedSource};
use crate::work_budget::WorkBudget;

impl Session {
    /// Whether data sources are set up that are registered from now on.
    pub(crate) fn takes_data_sources(&self) -> bool {
        matches!(self.state, State::Configured | State::Started)
    }

    /// Sets up all data sources of the config that are not set up, wherever they are wanted and on offer.
    pub(crate) fn set_up_data_sources(&mut self, common: &mut Common, now: &Now) {
        let instances = self.instances.values();
        let mut already: Vec<_> = instances.map(|i| (i.source, i.registration)).collect();
        already.sort_unstable();
        let mut attention = Attention::new();
        for index in 0..self.config.data_sources.len() {
            self.set_up_data_source(index, &already, &mut attention, common, now);
        }
    }

    /// Sets up one data source of the config on every producer that offers it and passes the filters, except where it is
    /// `already`, which is sorted, and starts it there if the session has started.
    fn set_up_data_source(
        &mut self,
        index: usize,
        already: &[(usize, RegistrationId)],
        attention: &mut Attention,
        common: &mut Common,
        now: &Now,
    ) {
        let name = self.name_of(index).to_owned();
        let Some(wanted) = self.wanted.source(&name, index) else {
            return;
        };
        let target = wanted.target;
        let offers = common.producers.offers(&name);
        if offers.is_empty() {
            return;
        }
        let compared = offers.len().min(attention.offers);
        attention.offers -= compared;
        if compared < offers.len() && !std::mem::replace(&mut attention.told, true) {
            common.outbox.warn(format!(
                "tracing session {}: more is on offer under the names of its data sources than can be looked at: data source \
                 {name:?} is not set up everywhere",
                self.id
            ));
        }
        let size = self.size_of_instance(index);
        let mut full: OrderedSet<Owner> = OrderedSet::new();
        let matching: Vec<Offer> = offers[..compared]
            .iter()
            .copied()
            .filter(|offer| is_wanted(wanted, offer.producer, attention.budget_for(offer.owner), common))
            .filter(|offer| already.binary_search(&(index, offer.registration)).is_err())
            .filter(|offer| {
                let is_full = self.instances.is_full(offer.owner, size);
                if is_full {
                    full.insert(offer.owner);
                }
                !is_full
            })
            .collect();
        let is_cut_short = compared < offers.len() || !attention.after.is_empty();
        if attention.ran_out() {
            common.outbox.warn(format!(
                "tracing session {}: the names of producers take too much work to be matched: data source {name:?} and others may not be set up \
                 everywhere",
                self.id
            ));
        }
        for owner in &full {
            self.tell_of_full(*owner, &name, common);
        }
        if is_cut_short || !full.is_empty() {
            self.note_offer(index);
        }
        for offer in matching {
            self.set_up_and_start(index, target, offer, common, now);
        }
    }

    /// A data source was registered while the session was there: sets it up wherever the config wants it.
    pub(crate) fn set_up_late(
        &mut self,
        offer: Offer,
        name: &str,
        budget: &WorkBudget,
        common: &mut Common,
        now: &Now,
    ) {
        let sources = self.wanted.named(name).iter();
        let wanted = sources.filter(|source| is_wanted(source, offer.producer, budget, common));
        let wanted: Vec<_> = wanted.map(|source| (source.index, source.target)).collect();
        for (index, target) in wanted {
            self.set_up_and_start(index, target, offer, common, now);
        }
    }

    /// The consumer changes the config of its running session. Only the producer filters may differ: data sources of
    /// producers that newly pass are set up and started.
    pub(crate) fn change_config(&mut self, new: &TraceConfig, common: &mut Common, now: &Now) {
        if !self.takes_data_sources() {
            return common
                .outbox
                .warn("cannot change the config of a session that is not running");
        }
        let surplus = !only_filters_differ(&self.config, new);
        let mut filters = adopted_filters(&self.config, new);
        exchange_filters(&mut self.config, &mut filters);
        let wanted = resolve_targets(&self.config)
            .and_then(|targets| Wanted::new(&self.config, &targets, &common.identity.machine_name));
        match wanted {
            Ok(wanted) => self.wanted = wanted,
            Err(error) => {
                exchange_filters(&mut self.config, &mut filters);
                return common.outbox.warn(format!("config not changed: {error}"));
            }
        }
        self.config_bytes = self.config.encode_to_vec().into();
        if surplus {
            common
                .outbox
                .warn("a changed config differs in more than producer filters: only those take effect");
        }
        self.set_up_data_sources(common, now);
    }

    /// Keeps the trace from saying that no producer offered this data source of the config: it had an instance, or it was the service that wanted no
    /// more of it.
    pub(super) fn note_offer(&mut self, index: usize) {
        if let Some(was_offered) = self.was_offered.get_mut(index) {
            *was_offered = true;
        }
    }

    /// Logs, once, that the producers of this owner would have more instances in the session than they may.
    fn tell_of_full(&mut self, owner: Owner, source: &str, common: &mut Common) {
        if self.instances.is_first_refusal(owner) {
            common.outbox.warn(format!(
                "tracing session {}: the producers of {owner} may not take part with more than {} data sources, nor more than {} \
                 bytes of their configs: {source:?} and others are not set up everywhere",
                self.id,
                limits::MAX_INSTANCES_PER_UID,
                limits::MAX_INSTANCE_BYTES_PER_UID,
            ));
        }
    }

    /// Sets up an instance, and starts it if the session has started.
    fn set_up_and_start(
        &mut self,
        index: usize,
        target: usize,
        offer: Offer,
        common: &mut Common,
        now: &Now,
    ) {
        let instance = self.set_up_instance(index, target, offer, common);
        if let (State::Started, Some(instance)) = (self.state, instance) {
            self.start_instance(instance, common, now);
        }
    }

    /// Sets up one instance; `None` if it may not be.
    fn set_up_instance(
        &mut self,
        index: usize,
        target: usize,
        offer: Offer,
        common: &mut Common,
    ) -> Option<DataSourceInstanceId> {
        let producer = offer.producer;
        let name = self.name_of(index).to_owned();
        let size = self.size_of_instance(index);
        if let Err(why) = self.instances.admit(producer, offer.owner, size) {
            match why {
                NoRoom::OfOwner => self.tell_of_full(offer.owner, &name, common),
                NoRoom::OfProducer => tell_of_many_instances(producer, common),
            }
            self.note_offer(index);
            return None;
        }
        let (buffer_id, buffer) = (*self.buffer_ids.get(target)?, self.buffers.get_mut(target)?);
        let descriptor = &common.producers.registration(offer)?.descriptor;
        let protovm = set_up_protovm(
            &self.config.data_sources[index],
            &name,
            descriptor,
            producer,
            buffer,
        );
        let (notifies_start, notifies_stop) =
            (descriptor.will_notify_on_start, descriptor.will_notify_on_stop);
        let clears_state = descriptor.handles_incremental_state_clear;
        let no_flush = descriptor.no_flush;
        let config: Arc<[u8]> = self.instance_config(index, buffer_id).into();
        let id = common.next_instance_id();
        self.instances.insert(
            id,
            Instance {
                producer,
                owner: offer.owner,
                size,
                registration: offer.registration,
                source: index,
                name,
                config: config.clone(),
                state: InstanceState::Configured,
                will_notify_on_start: notifies_start.unwrap_or_default(),
                will_notify_on_stop: notifies_stop.unwrap_or_default(),
                handles_incremental_state_clear: clears_state.unwrap_or_default(),
                no_flush: no_flush.unwrap_or_default(),
                buffer: buffer_id,
            },
        );
        let ram_bytes = common.identity.system.ram_bytes;
        let memory = common
            .producers
            .takes_part(producer, buffer_id, &self.config, ram_bytes);
        if let Some(command) = memory {
            common.outbox.command(producer, command);
        }
        if let Err(line) = protovm {
            common.outbox.warn(line);
        }
        self.observe_instance(id, common);
        let command = ProducerCommand::SetupDataSource { instance: id, config };
        common.outbox.command(producer, command);
        Some(id)
    }

    /// The name of a data source of the config.
    fn name_of(&self, index: usize) -> &str {
        let source = &self.config.data_sources[index];
        source.config.name.as_deref().unwrap_or_default()
    }

    /// Bytes that an instance of a data source of the config counts.
    fn size_of_instance(&self, index: usize) -> usize {
        self.name_of(index).len() + self.data_source_configs.get(index).map_or(0, Vec::len)
    }

    /// The config that a producer gets: the consumer's bytes untouched, then the fields that the service sets. A field that comes again replaces the
    /// earlier one, so the consumer cannot set these.
    fn instance_config(&self, index: usize, buffer: BufferId) -> Vec<u8> {
        let mut config = Writer::new();
        if let Some(bytes) = self.data_source_configs.get(index) {
            config.raw(bytes);
        }
        config.varint_field(DataSourceConfig::TARGET_BUFFER, buffer.0.into());
        config.varint_field(
            DataSourceConfig::TRACE_DURATION_MS,
            self.config.duration_ms.unwrap_or_default().into(),
        );
        config.varint_field(DataSourceConfig::TRACING_SESSION_ID, self.id.0);
        config.varint_field(
            DataSourceConfig::STOP_TIMEOUT_MS,
            self.stop_timeout().as_millis() as u64,
        );
        config.varint_field(
            DataSourceConfig::ENABLE_EXTRA_GUARDRAILS,
            self.config.enable_extra_guardrails.unwrap_or_default().into(),
        );
        config.varint_field(DataSourceConfig::SESSION_INITIATOR, 0);
        // Only if it is set, because older clients compare hashes of the config and do not know this field.
        if self.config.prefer_suspend_clock_for_duration.unwrap_or_default() {
            config.varint_field(DataSourceConfig::PREFER_SUSPEND_CLOCK_FOR_DURATION, 1);
        }
        config.as_slice().to_vec()
    }
}

/// Logs, once, that a producer would have more instances than it may.
fn tell_of_many_instances(producer: ProducerId, common: &mut Common) {
    let Some(producer) = common.producers.get_mut(producer) else {
        return;
    };
    if !std::mem::replace(&mut producer.instances_told, true) {
        common.outbox.warn(format!(
            "producer {:?} takes part in a session with {} data sources already, by registering names more than once: \
             the others are not set up",
            producer.name,
            limits::MAX_INSTANCES_PER_PRODUCER
        ));
    }
}

/// Whether a data source of the config is wanted of this producer.
fn is_wanted(source: &WantedSource, producer: ProducerId, budget: &WorkBudget, common: &Common) -> bool {
    common.producers.get(producer).is_some_and(|producer| {
        let (credentials, machine) = (&producer.credentials, &producer.machine);
        let locked_out = common
            .producers
            .is_locked_out(credentials, machine, &common.identity);
        !locked_out && source.is_wanted_of(&producer.name, machine, budget)
    })
}

/// Has overwritten packets of this data source merged, if the producer has a program for that and the config wants it.
///
/// # Errors
/// The reason why not; the data source is set up all the same.
fn set_up_protovm(
    source: &trace_config::DataSource,
    name: &str,
    descriptor: &DataSourceDescriptor,
    producer: ProducerId,
    buffer: &mut TraceBuffer,
) -> Result<(), String> {
    let config = source.config.protovm_config.as_option();
    let in_vain = |why: &dyn Display| {
        let line = format!(
            "data source {name:?} of producer {producer}: what is overwritten in its trace buffer is lost and not merged by a \
             ProtoVM: {why}"
        );
        Err(line)
    };
    match (config, descriptor.protovm_program.as_option()) {
        (None, _) => Ok(()),
        (Some(_), None) => {
            in_vain(&"the config has a protovm_config, but the producer offers no protovm_program")
        }
        (Some(config), Some(program)) => match config.memory_limit_kb {
            None => in_vain(&"the protovm_config has no memory_limit_kb"),
            Some(kb) => buffer
                .protovms_mut()
                .set_up(name, program, kb, producer)
                .or_else(|error| in_vain(&error)),
        },
    }
}

/// The work that may still be done to find the producers that a config wants. A config can want one name thousands of times, and thousands of
/// producers can offer it.
struct Attention {
    /// Offers of data sources that may be held against it.
    offers: usize,
    /// The log knows that there are more.
    told: bool,
    /// For matching the names of all their producers.
    budget: WorkBudget,
    /// For each owner after that was used up: one user's names must not keep another's from being matched.
    after: OrderedMap<Owner, WorkBudget>,
    /// The log knows that it was.
    told_of_work: bool,
}

impl Attention {
    fn new() -> Attention {
        Attention {
            offers: limits::MAX_OFFERS_COMPARED,
            told: false,
            budget: WorkBudget::new(limits::MAX_MATCHING_WORK),
            after: OrderedMap::new(),
            told_of_work: false,
        }
    }

    /// Returns the budget for matching a name of this owner's producers.
    fn budget_for(&mut self, owner: Owner) -> &WorkBudget {
        if !self.budget.is_used_up() {
            return &self.budget;
        }
        self.after
            .get_or_insert_with(owner, || WorkBudget::new(limits::MAX_NAME_WORK))
    }

    /// Whether to log that names were not matched because it would have taken too much work.
    fn ran_out(&mut self) -> bool {
        !self.after.is_empty() && !std::mem::replace(&mut self.told_of_work, true)
    }
}
