//! From a config to a session: every check that a config must pass, then its buffers and data source instances.
//!
//! A config is refused with a reason before anything exists, so there is nothing to undo. What this service does not
//! do yet is refused as well: a trace without what was asked for is a wrong one.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor, Message, TraceConfig, trace_config};
use ferretto_wire::{Reader, Value, Writer};

use crate::admission;
use crate::boost::PriorityBoost;
use crate::clock::Now;
use crate::compression;
use crate::effort::{Effort, ProcessorClock};
use crate::ids::{BufferId, ConsumerId, DataSourceInstanceId, ProducerId, SessionId};
use crate::instances::NoRoom;
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::{LogLevel, Output, ProducerCommand};
use crate::producer::{MemorySharing, Offer, Owner, RegistrationId, smb_sizes};
use crate::service::Service;
use crate::session::{
    Beginning, Drain, FileSink, FlushStrategy, Instance, InstanceState, Session, State, millis_or,
};
use crate::trace_buffer::{FillPolicy, TraceBuffer};
use crate::trace_filter::{SessionFilter, TraceFilter};
use crate::triggers::{TriggerConfig, Triggers};
use crate::wanted::{Wanted, WantedSource};

/// A config as it came and as it was decoded.
#[derive(Clone, Debug)]
pub struct ConfigInput {
    /// Decoded.
    pub config: TraceConfig,
    /// The bytes it was decoded from.
    pub bytes: Arc<[u8]>,
}

/// What the driver has for a config with `write_into_file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputFile {
    /// The consumer passed no descriptor.
    None,
    /// The consumer passed a descriptor.
    Passed,
    /// The driver made the file that `output_path` names.
    Created,
    /// The driver could not make it, or cannot write into it, for this reason.
    Unusable(String),
}

impl Service {
    /// A consumer wants to trace. Unless the config asks for `deferred_start`, data sources start at once.
    ///
    /// `uuid` names the trace, if the config does not. On success the outputs end, some time later, with
    /// [`TracingDisabled`](crate::Output::TracingDisabled).
    ///
    /// # Errors
    /// The reason why the config is refused. Nothing has happened then, but for a change of `lockdown_mode`, which upstream
    /// makes first too.
    pub fn enable_tracing(
        &mut self,
        consumer: ConsumerId,
        input: ConfigInput,
        file: &OutputFile,
        uuid: u128,
        now: &Now,
    ) -> Result<SessionId, String> {
        self.check_not_ending()?;
        let ConfigInput { config, bytes } = input;
        let uid = self
            .consumers
            .get(&consumer)
            .ok_or("the consumer is not connected")?
            .uid;
        self.change_lockdown(&config);
        if self
            .session_of(consumer)
            .is_some_and(|session| self.sessions.contains_key(&session))
        {
            return Err("this consumer has a tracing session already; free its buffers first".into());
        }
        admission::check_config(&config)?;
        let triggers = TriggerConfig::check(&config, &bytes, admission::max_duration(&config))?;
        check_bugreport_filename(&config)?;
        let targets = resolve_targets(&config)?;
        let wanted = Wanted::new(&config, &targets, &self.identity.machine_name)?;
        let filter = trace_filter(&config)?;
        let boost = config
            .priority_boost
            .as_option()
            .map(PriorityBoost::requested)
            .transpose()?;
        let data_source_configs = data_source_configs(&bytes);
        check_config_sizes(&config, &data_source_configs)?;
        self.admit(&config, uid, now)?;
        let file = file_sink(&config, file)?;
        let buffers = make_buffers(&config)?;
        let ids = self.allocate_buffer_ids(buffers.len())?;
        self.make_way(&config, uid, now);

        self.last_session += 1;
        let id = SessionId(self.last_session);
        let configured_uuid = (config.trace_uuid_msb.unwrap_or_default() as u64 as u128) << 64
            | config.trace_uuid_lsb.unwrap_or_default() as u64 as u128;
        let uuid = if configured_uuid == 0 {
            uuid
        } else {
            configured_uuid
        };
        let mut buffer_kb: u64 = 0;
        for (buffer_id, buffer) in ids.iter().zip(buffers) {
            buffer_kb += buffer.size() / 1024;
            self.buffers.insert(*buffer_id, buffer);
        }
        if compression::is_unmet(&config) {
            let line =
                "the config names no kind of compression that this service has: the trace is not compressed";
            self.log(LogLevel::Warning, line.into());
        }
        let session = Session::new(Beginning {
            id,
            consumer,
            uid,
            flush_strategy: flush_strategy(&config, file.as_ref()),
            config,
            data_source_configs,
            wanted,
            config_bytes: bytes,
            uuid,
            buffers: ids,
            file,
            triggers: Triggers::new(triggers),
            filter,
            boost,
        });
        let line = format!(
            "configured tracing session {}: {} data sources, duration {} ms, {} buffers of {} KB in all, uid {}, \
             name {:?}, {} sessions now",
            id.0,
            session.config.data_sources.len(),
            session.config.duration_ms.unwrap_or_default(),
            session.buffers.len(),
            buffer_kb,
            uid,
            session.config.unique_session_name.as_deref().unwrap_or_default(),
            self.sessions.len() + 1,
        );
        let deferred = session.config.deferred_start.unwrap_or_default();
        let surplus = surplus_flush_period(&session.config);
        // A config that says nothing of the mode may be meant for services that do not have it, as that of `perfetto -s` is.
        let level = match session.config.write_flush_mode {
            None => LogLevel::Info,
            Some(_) => LogLevel::Warning,
        };
        self.sessions.insert(id, session);
        self.record_other_sessions(id);
        // First of all: if it cannot be done, the session does not begin.
        self.adjust_boost(Some(id));
        if let Some(consumer) = self.consumers.get_mut(&consumer) {
            consumer.session = Some(id);
        }
        let mut attention = Attention::new(self.processor_clock);
        for (index, target) in targets.into_iter().enumerate() {
            self.set_up_data_source(id, index, target, &OrderedSet::new(), &mut attention, now);
        }
        self.enter_state(id, State::Configured, now);
        self.log(LogLevel::Info, line);
        if surplus {
            let line = "flush_period_ms is ignored: write_flush_mode decides when producers are flushed; set it to \
                        WRITE_FLUSH_DISABLED to use flush_period_ms";
            self.log(level, line.into());
        }
        let starts_with_trigger = self.await_triggers(id, now);
        if !deferred && !starts_with_trigger {
            self.start_tracing(id, now);
        }
        Ok(id)
    }

    fn change_lockdown(&mut self, config: &TraceConfig) {
        match config.lockdown_mode {
            Some(trace_config::LockdownModeOperation::LOCKDOWN_SET) => self.lockdown = true,
            Some(trace_config::LockdownModeOperation::LOCKDOWN_CLEAR) => self.lockdown = false,
            _ => {}
        }
    }

    pub(crate) fn allocate_buffer_ids(&mut self, count: usize) -> Result<Vec<BufferId>, String> {
        let mut ids = Vec::with_capacity(count);
        while ids.len() < count {
            // Ids go round, so none comes twice before all others were tried.
            match self.allocate_buffer_id() {
                Some(id) if !ids.contains(&id) => ids.push(id),
                _ => return Err("cannot allocate trace buffers: all buffer ids are in use".into()),
            }
        }
        Ok(ids)
    }

    /// Sets up one data source of the config on every producer that offers it and passes the filters, except where it is
    /// `already`, and starts it there if the session has started.
    pub(crate) fn set_up_data_source(
        &mut self,
        session: SessionId,
        index: usize,
        target: usize,
        already: &OrderedSet<(usize, RegistrationId)>,
        attention: &mut Attention,
        now: &Now,
    ) {
        let Some(entry) = self.sessions.get(&session) else {
            return;
        };
        let Some(source) = entry.config.data_sources.get(index) else {
            return;
        };
        let name = source.config.name.as_deref().unwrap_or_default();
        let Some(offers) = self.offers.get(name) else {
            return;
        };
        let named = entry.wanted.named(name);
        let Ok(place) = named.binary_search_by_key(&index, |wanted| wanted.index) else {
            return;
        };
        let wanted = &named[place];
        let compared = offers.len().min(attention.offers);
        attention.offers -= compared;
        if compared < offers.len() && !std::mem::replace(&mut attention.told, true) {
            let line = format!(
                "tracing session {}: more is on offer under the names of its data sources than can be looked at: data source \
                 {name:?} is not set up everywhere",
                session.0
            );
            self.outputs.push_back(Output::Log(LogLevel::Warning, line));
        }
        let size = size_of_instance(entry, index);
        let mut full: OrderedSet<Owner> = OrderedSet::new();
        let matching: Vec<Offer> = offers[..compared]
            .iter()
            .copied()
            .filter(|offer| self.is_wanted(wanted, offer.producer, attention.effort_for(offer.owner)))
            .filter(|offer| !already.contains(&(index, offer.registration)))
            .filter(|offer| {
                let is_full = entry.instances.is_full(offer.owner, size);
                if is_full {
                    full.insert(offer.owner);
                }
                !is_full
            })
            .collect();
        let name = name.to_owned();
        let is_cut_short = compared < offers.len() || !attention.after.is_empty();
        if attention.ran_out_of_time() {
            let line = format!(
                "tracing session {}: the names of producers took long to be matched: data source {name:?} and others may not be set up \
                 everywhere",
                session.0
            );
            self.log(LogLevel::Warning, line);
        }
        for owner in &full {
            self.tell_of_full(session, *owner, &name);
        }
        if is_cut_short || !full.is_empty() {
            self.note_refusal(session, index);
        }
        for offer in matching {
            self.set_up_and_start(session, index, target, offer, now);
        }
    }

    /// The trace does not say that nobody offered this data source: it may be the service that wanted no more of it.
    fn note_refusal(&mut self, session: SessionId, index: usize) {
        let session = self.sessions.get_mut(&session);
        if let Some(was_offered) = session.and_then(|session| session.was_offered.get_mut(index)) {
            *was_offered = true;
        }
    }

    /// Tells the log, once, that the producers of this owner would take part in a session with more than they may.
    fn tell_of_full(&mut self, session: SessionId, owner: Owner, source: &str) {
        let entry = self.sessions.get_mut(&session);
        if entry.is_some_and(|session| session.instances.is_first_refusal(owner)) {
            let line = format!(
                "tracing session {}: the producers of {owner} may not take part with more than {} data sources, nor more than {} \
                 bytes of their configs: {source:?} and others are not set up everywhere",
                session.0,
                limits::MAX_INSTANCES_PER_UID,
                limits::MAX_INSTANCE_BYTES_PER_UID,
            );
            self.log(LogLevel::Warning, line);
        }
    }

    /// A data source was registered while the session was there: sets it up wherever the config wants it.
    pub(crate) fn set_up_late(
        &mut self,
        session: SessionId,
        offer: Offer,
        name: &str,
        effort: &Effort,
        now: &Now,
    ) {
        let Some(entry) = self.sessions.get(&session) else {
            return;
        };
        let wanted: Vec<(usize, usize)> = entry
            .wanted
            .named(name)
            .iter()
            .filter(|wanted| self.is_wanted(wanted, offer.producer, effort))
            .map(|wanted| (wanted.index, wanted.target))
            .collect();
        for (index, target) in wanted {
            self.set_up_and_start(session, index, target, offer, now);
        }
    }

    /// Sets up an instance, and starts it if the session has started.
    fn set_up_and_start(&mut self, session: SessionId, index: usize, target: usize, offer: Offer, now: &Now) {
        let instance = self.set_up_instance(session, index, target, offer);
        let entry = self.sessions.get(&session);
        let started = entry.is_some_and(|session| session.state == State::Started);
        if let (true, Some(instance)) = (started, instance) {
            self.start_instance(session, instance, now);
        }
    }

    fn is_wanted(&self, source: &WantedSource, producer: ProducerId, effort: &Effort) -> bool {
        self.producers.get(&producer).is_some_and(|producer| {
            let locked_out = self.is_locked_out(&producer.credentials, &producer.machine);
            !locked_out && source.is_wanted_of(&producer.name, &producer.machine, effort)
        })
    }

    fn set_up_instance(
        &mut self,
        session_id: SessionId,
        index: usize,
        target: usize,
        offer: Offer,
    ) -> Option<DataSourceInstanceId> {
        let producer_id = offer.producer;
        let session = self.sessions.get_mut(&session_id)?;
        let producer = self.producers.get_mut(&producer_id)?;
        let buffer = *session.buffers.get(target)?;
        let name = session
            .config
            .data_sources
            .get(index)?
            .config
            .name
            .clone()
            .unwrap_or_default();
        let place = producer
            .data_sources
            .binary_search_by_key(&offer.registration, |registration| registration.number)
            .ok()?;
        let registration = &producer.data_sources[place];
        let owner = producer.owner();
        let size = size_of_instance(session, index);
        if let Err(why) = session.instances.admit(producer_id, owner, size) {
            if why == NoRoom::OfOwner {
                self.tell_of_full(session_id, owner, &name);
            } else if !std::mem::replace(&mut producer.instances_told, true) {
                let line = format!(
                    "producer {:?} takes part in a session with {} data sources already, by registering names more than once: \
                     the others are not set up",
                    producer.name,
                    limits::MAX_INSTANCES_PER_PRODUCER
                );
                self.log(LogLevel::Warning, line);
            }
            self.note_refusal(session_id, index);
            return None;
        }
        self.last_instance += 1;
        let instance_id = DataSourceInstanceId(self.last_instance);
        let config: Arc<[u8]> = instance_config(session, index, buffer).into();
        let descriptor = &registration.descriptor;
        let instance = Instance {
            producer: producer_id,
            owner,
            size,
            registration: offer.registration,
            source: index,
            name,
            config: config.clone(),
            state: InstanceState::Configured,
            will_notify_on_start: descriptor.will_notify_on_start.unwrap_or_default(),
            will_notify_on_stop: descriptor.will_notify_on_stop.unwrap_or_default(),
            handles_incremental_state_clear: descriptor.handles_incremental_state_clear.unwrap_or_default(),
            no_flush: descriptor.no_flush.unwrap_or_default(),
            buffer,
        };
        let protovm = match self.buffers.get_mut(&buffer) {
            Some(entry) => set_up_protovm(session, index, &instance.name, descriptor, producer_id, entry),
            None => Ok(()),
        };
        session.instances.insert(instance_id, instance);
        self.instances.insert(instance_id, session_id);
        producer.allowed_buffers.insert(buffer);
        if producer.smb.is_none() && !producer.smb_requested {
            producer.smb_requested = true;
            let wish = session
                .config
                .producers
                .iter()
                .find(|wish| wish.producer_name.as_deref() == Some(producer.name.as_str()));
            let kb = |setting: Option<u32>| setting.unwrap_or_default() as usize * 1024;
            let or_hint = |setting: usize, hint: usize| if setting == 0 { hint } else { setting };
            let wish = (
                or_hint(
                    wish.map_or(0, |wish| kb(wish.shm_size_kb)),
                    producer.smb_size_hint,
                ),
                or_hint(
                    wish.map_or(0, |wish| kb(wish.page_size_kb)),
                    producer.smb_page_size_hint,
                ),
            );
            let command = match producer.sharing {
                MemorySharing::Possible => {
                    let (size, page_size) = self.grant_shared_memory(producer_id, wish);
                    ProducerCommand::CreateSharedMemory { size, page_size }
                }
                MemorySharing::Impossible => {
                    let (_, page_size) = smb_sizes(wish.0, wish.1);
                    ProducerCommand::EmulateSharedMemory { page_size }
                }
            };
            self.command(producer_id, command);
        }
        if let Err(line) = protovm {
            self.log(LogLevel::Warning, line);
        }
        self.observe_instance(session_id, instance_id);
        self.command(
            producer_id,
            ProducerCommand::SetupDataSource {
                instance: instance_id,
                config,
            },
        );
        Some(instance_id)
    }
}

/// What a producer writes for this data source is merged when it is overwritten, if the producer has a program for that and
/// the config wants it.
///
/// # Errors
/// Why it is not; the data source is set up all the same.
fn set_up_protovm(
    session: &Session,
    index: usize,
    name: &str,
    descriptor: &DataSourceDescriptor,
    producer: ProducerId,
    buffer: &mut TraceBuffer,
) -> Result<(), String> {
    let source = session.config.data_sources.get(index);
    let config = source.and_then(|source| source.config.protovm_config.as_option());
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

/// The filter that the config asks for.
fn trace_filter(config: &TraceConfig) -> Result<Option<Box<SessionFilter>>, String> {
    let Some(config) = config.trace_filter.as_option() else {
        return Ok(None);
    };
    let filter = TraceFilter::new(config).map_err(|error| error.to_string())?;
    Ok(Some(Box::new(SessionFilter::new(filter.into()))))
}

fn check_bugreport_filename(config: &TraceConfig) -> Result<(), String> {
    let name = config.bugreport_filename.as_deref().unwrap_or_default();
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.chars().all(harmless) {
        return Ok(());
    }
    Err(format!(
        "bugreport_filename {name:?} contains invalid characters: use letters, digits and any of `-_.`"
    ))
}

fn check_config_sizes(config: &TraceConfig, encoded: &[Vec<u8>]) -> Result<(), String> {
    let too_large = |encoded: &&Vec<u8>| encoded.len() > limits::MAX_DATA_SOURCE_CONFIG_SIZE;
    let Some(index) = encoded.iter().position(|encoded| too_large(&encoded)) else {
        return Ok(());
    };
    let source = config.data_sources.get(index);
    let name = source.and_then(|source| source.config.name.as_deref());
    Err(format!(
        "data source {:?}: its config is {} bytes long, the limit is {}: producers could not be sent it",
        name.unwrap_or_default(),
        encoded[index].len(),
        limits::MAX_DATA_SOURCE_CONFIG_SIZE
    ))
}

/// Index of the buffer that each data source of the config writes into.
pub(crate) fn resolve_targets(config: &TraceConfig) -> Result<Vec<usize>, String> {
    let count = config.buffers.len();
    if count > limits::MAX_BUFFERS_PER_SESSION {
        return Err(format!(
            "too many buffers: {count}, the limit is {}",
            limits::MAX_BUFFERS_PER_SESSION
        ));
    }
    if config.data_sources.len() > limits::MAX_DATA_SOURCES_PER_CONFIG {
        return Err(format!(
            "too many data sources: {}, the limit is {}",
            config.data_sources.len(),
            limits::MAX_DATA_SOURCES_PER_CONFIG
        ));
    }
    let mut named = OrderedMap::new();
    for (index, buffer) in config.buffers.iter().enumerate() {
        let name = buffer.name.as_deref().unwrap_or_default();
        if !name.is_empty()
            && let Some(first) = named.insert(name, index)
        {
            return Err(format!(
                "duplicate buffer name {name:?} at index {index}, first at index {first}"
            ));
        }
    }
    let target = |source: &trace_config::DataSource| {
        let name = source.config.name.as_deref().unwrap_or_default();
        let mut index = source.config.target_buffer.unwrap_or_default() as usize;
        let wanted = source.config.target_buffer_name.as_deref().unwrap_or_default();
        if !wanted.is_empty() {
            let found = *named.get(wanted).ok_or_else(|| {
                format!("data source {name:?}: target_buffer_name {wanted:?} is the name of no buffer")
            })?;
            // An absent target_buffer reads as 0, so 0 says nothing.
            if index > 0 && index != found {
                return Err(format!(
                    "data source {name:?}: target_buffer {index} and target_buffer_name {wanted:?} (index {found}) \
                     name different buffers"
                ));
            }
            index = found;
        }
        if index >= count {
            return Err(format!(
                "data source {name:?}: target_buffer {index} is out of bounds ({count} buffers)"
            ));
        }
        Ok(index)
    };
    config.data_sources.iter().map(target).collect()
}

fn file_sink(config: &TraceConfig, file: &OutputFile) -> Result<Option<FileSink>, String> {
    if !config.write_into_file.unwrap_or_default() {
        return Ok(None);
    }
    match file {
        OutputFile::Passed | OutputFile::Created => {}
        OutputFile::None => {
            return Err(
                "write_into_file needs either a file descriptor or an output_path, and has neither".into(),
            );
        }
        OutputFile::Unusable(error) => return Err(error.clone()),
    }
    Ok(Some(FileSink {
        write_period: millis_or(config.file_write_period_ms, limits::DEFAULT_FILE_WRITE_PERIOD)
            .max(limits::MIN_FILE_WRITE_PERIOD),
        max_size: config
            .max_file_size_bytes
            .filter(|size| *size != 0)
            .unwrap_or(u64::MAX),
        written: 0,
        sync_after_write: config.fflush_post_write == Some(trace_config::FFlushMode::FFLUSH_ENABLED),
        drain: Drain::Idle,
        handed_out: None,
        progress: 0,
    }))
}

fn flush_strategy(config: &TraceConfig, file: Option<&FileSink>) -> FlushStrategy {
    let configured = match config.flush_period_ms {
        None | Some(0) => FlushStrategy::Never,
        Some(ms) => FlushStrategy::Every(Duration::from_millis(ms.into())),
    };
    let Some(file) = file else { return configured };
    match config.write_flush_mode {
        Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED) => configured,
        Some(trace_config::WriteFlushMode::WRITE_FLUSH_ENABLED) => FlushStrategy::BeforeEachFileWrite,
        _ if file.write_period <= limits::DEFAULT_FILE_WRITE_PERIOD => {
            FlushStrategy::Every(limits::DEFAULT_FILE_WRITE_PERIOD)
        }
        _ => FlushStrategy::BeforeEachFileWrite,
    }
}

/// Whether `flush_period_ms` is set and does nothing: `write_flush_mode` has its own idea.
fn surplus_flush_period(config: &TraceConfig) -> bool {
    config.flush_period_ms.unwrap_or_default() != 0
        && config.write_into_file.unwrap_or_default()
        && config.write_flush_mode != Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED)
}

fn make_buffers(config: &TraceConfig) -> Result<Vec<TraceBuffer>, String> {
    let make = |(index, buffer): (usize, &trace_config::BufferConfig)| {
        let kb = buffer.size_kb.unwrap_or_default();
        let size = u64::from(kb) * 1024;
        if size == 0 || size > u64::from(u32::MAX) {
            return Err(format!(
                "buffers[{index}].size_kb: {kb} KB is not a valid size (1 KB to 4 GB)"
            ));
        }
        let discards = buffer.fill_policy == Some(trace_config::buffer_config::FillPolicy::DISCARD);
        let policy = match buffer.experimental_mode {
            Some(trace_config::buffer_config::ExperimentalMode::TRACE_BUFFER_V2) if discards => {
                FillPolicy::DiscardAtEnd
            }
            _ if discards => FillPolicy::Discard,
            _ => FillPolicy::RingBuffer,
        };
        TraceBuffer::new(size, policy).map_err(|error| format!("buffers[{index}]: {error}"))
    };
    config.buffers.iter().enumerate().map(make).collect()
}

/// `TraceConfig.data_sources[i].config` as it was sent. Where the field comes more than once its parts follow each
/// other, which means the same to every decoder.
fn data_source_configs(trace_config: &[u8]) -> Vec<Vec<u8>> {
    let bytes_of = |message, number| {
        Reader::new(message)
            .filter_map(Result::ok)
            .filter_map(move |field| match field.value {
                Value::Bytes(bytes) if field.number == number => Some(bytes),
                _ => None,
            })
    };
    bytes_of(trace_config, TraceConfig::DATA_SOURCES)
        .map(|source| {
            bytes_of(source, trace_config::DataSource::CONFIG)
                .flatten()
                .copied()
                .collect()
        })
        .collect()
}

/// How much may still be done to find out whom a config wants: it can want a name thousands of times, and thousands of producers offer it.
pub(crate) struct Attention {
    /// Offers of data sources that may be held against it.
    offers: usize,
    /// The log knows that there are more.
    told: bool,
    /// What matching the names of all their producers has taken.
    effort: Effort,
    /// What it has taken since that was enough: one user's names are not to keep another's from being looked at.
    after: OrderedMap<Owner, Effort>,
    /// The log knows that it was.
    told_of_time: bool,
}

impl Attention {
    pub(crate) fn new(clock: Option<ProcessorClock>) -> Attention {
        Attention {
            offers: limits::MAX_OFFERS_COMPARED,
            told: false,
            effort: Effort::new(clock),
            after: OrderedMap::new(),
            told_of_time: false,
        }
    }

    /// What matching the name of a producer of this owner is to be counted with.
    fn effort_for(&mut self, owner: Owner) -> &Effort {
        if self.effort.taken() < limits::MAX_MATCHING_TIME {
            return &self.effort;
        }
        self.after
            .get_or_insert_with(owner, || Effort::of_units(limits::MAX_NAME_WORK))
    }

    /// Whether the log is to be told that names were not matched for want of time.
    fn ran_out_of_time(&mut self) -> bool {
        !self.after.is_empty() && !std::mem::replace(&mut self.told_of_time, true)
    }
}

/// Bytes that an instance of a data source of this config counts.
fn size_of_instance(session: &Session, index: usize) -> usize {
    let source = session.config.data_sources.get(index);
    let name = source.and_then(|source| source.config.name.as_deref());
    name.map_or(0, str::len) + session.data_source_configs.get(index).map_or(0, Vec::len)
}

/// The config that a producer gets: the consumer's bytes untouched, then what the service sets. A field that comes
/// again replaces the earlier one, so the consumer cannot set these.
fn instance_config(session: &Session, index: usize, buffer: BufferId) -> Vec<u8> {
    let mut config = Writer::new();
    if let Some(bytes) = session.data_source_configs.get(index) {
        config.raw(bytes);
    }
    config.varint_field(DataSourceConfig::TARGET_BUFFER, buffer.0.into());
    config.varint_field(
        DataSourceConfig::TRACE_DURATION_MS,
        session.config.duration_ms.unwrap_or_default().into(),
    );
    config.varint_field(DataSourceConfig::TRACING_SESSION_ID, session.id.0);
    config.varint_field(
        DataSourceConfig::STOP_TIMEOUT_MS,
        session.stop_timeout().as_millis() as u64,
    );
    config.varint_field(
        DataSourceConfig::ENABLE_EXTRA_GUARDRAILS,
        session.config.enable_extra_guardrails.unwrap_or_default().into(),
    );
    config.varint_field(DataSourceConfig::SESSION_INITIATOR, 0);
    // Only if set: older clients compare hashes of the config and do not know this field.
    if session
        .config
        .prefer_suspend_clock_for_duration
        .unwrap_or_default()
    {
        config.varint_field(DataSourceConfig::PREFER_SUSPEND_CLOCK_FOR_DURATION, 1);
    }
    config.as_slice().to_vec()
}

/// Whether two configs are the same but for the producer filters of their data sources. They are compared as they encode: to
/// copy and compare messages field by field is a lot of code.
pub(crate) fn only_filters_differ(old: &TraceConfig, new: &TraceConfig) -> bool {
    without_filters(old) == without_filters(new)
}

/// The encoded config without the producer filters of its data sources.
fn without_filters(config: &TraceConfig) -> Vec<u8> {
    const FILTERS: [u32; 2] = [
        trace_config::DataSource::PRODUCER_NAME_FILTER,
        trace_config::DataSource::PRODUCER_NAME_REGEX_FILTER,
    ];
    let encoded = config.encode_to_vec();
    let mut rest = Writer::new();
    for field in Reader::new(&encoded).map_while(Result::ok) {
        match (field.number, field.value) {
            (TraceConfig::DATA_SOURCES, Value::Bytes(source)) => {
                rest.nested(TraceConfig::DATA_SOURCES, |rest| {
                    for field in Reader::new(source).map_while(Result::ok) {
                        if !FILTERS.contains(&field.number) {
                            rest.raw(field.raw);
                        }
                    }
                })
            }
            // Triggers set the duration of a session, whose config has none.
            (TraceConfig::DURATION_MS, _) if config.trigger_config.is_set() => {}
            _ => rest.raw(field.raw),
        }
    }
    rest.into_vec()
}
