//! A tracing session: a state machine that records from its start to its stop, and holds the data until it is read.
//!
//! A session owns its trace buffers. It is made of smaller machines: the instances of its data sources, its flushes, its file, and the notes for its
//! trace. `Service` finds the session for an input and calls it with the state that all sessions share ([`Common`]). The methods are in
//! `data_sources` (set-up), `lifecycle` (start, stop, end), `flush`, `file` and `reading`. The modules `triggers`, `clone`, `scrape` and `concurrent`
//! add theirs.

pub(crate) mod absences;
pub(crate) mod cloning;
pub(crate) mod common;
pub(crate) mod concurrent;
pub(crate) mod config;
mod data_sources;
mod file;
pub(crate) mod flush;
mod instances;
mod large_packet;
mod lifecycle;
pub(crate) mod machines;
mod notes;
pub(crate) mod packets;
mod reading;
pub(crate) mod readout;
pub(crate) mod scrape;
mod sequence_ids;
mod stop;
mod triggers;

use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::{TraceConfig, trace_config};
use ferretto_wire::Writer;

use crate::boost::PriorityBoost;
use crate::clock::Clock;
use crate::clock::Now;
use crate::compression::{Codec, Compressor};
use crate::ids::{BufferId, ConsumerId, ProducerId, SessionId};
use crate::limits;
use crate::session::common::{Common, Effect};
use crate::trace_buffer::TraceBuffer;
use crate::trace_filter::SessionFilter;
use crate::triggers::Triggers;
use crate::wanted::Wanted;

pub(crate) use file::{AfterWrite, BatchEnd, Drain, FileSink};
pub(crate) use flush::{FlushPurpose, FlushStrategy, Flushes};
pub(crate) use instances::{Instance, InstanceState, Instances};
use large_packet::LargePacket;
pub(crate) use notes::{LifecycleEvent, Notes};
pub(crate) use reading::{Census, Surroundings};
pub(crate) use sequence_ids::{SERVICE_SEQUENCE_ID, SequenceIds};
pub(crate) use stop::{State, Stop};

/// The properties of a session when it begins.
pub(crate) struct Beginning {
    pub(crate) id: SessionId,
    pub(crate) consumer: ConsumerId,
    pub(crate) uid: u32,
    pub(crate) config: TraceConfig,
    pub(crate) config_bytes: Arc<[u8]>,
    pub(crate) data_source_configs: Vec<Vec<u8>>,
    pub(crate) wanted: Wanted,
    pub(crate) uuid: u128,
    pub(crate) buffer_ids: Vec<BufferId>,
    pub(crate) buffers: Vec<TraceBuffer>,
    pub(crate) flush_strategy: FlushStrategy,
    pub(crate) file: Option<FileSink>,
    pub(crate) triggers: Triggers,
    pub(crate) filter: Option<Box<SessionFilter>>,
    pub(crate) boost: Option<PriorityBoost>,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// The session that recorded the data: this one, or the original of this clone.
    pub(crate) recorded_by: SessionId,
    /// `None` while detached.
    pub(crate) consumer: Option<ConsumerId>,
    pub(crate) uid: u32,
    pub(crate) uuid: u128,
    pub(crate) detach_key: Option<String>,
    /// Its `unique_session_name`, or nothing.
    pub(crate) name: Arc<str>,

    pub(crate) config: TraceConfig,
    /// The config for the trace: as the consumer sent it, with later changes.
    pub(crate) config_bytes: Arc<[u8]>,
    /// `data_sources[i].config` as the consumer sent it, which goes to producers.
    data_source_configs: Vec<Vec<u8>>,
    /// The data sources that future producers may offer.
    wanted: Wanted,
    /// For each data source of the config, whether it had an instance since the start, or was refused one.
    was_offered: Vec<bool>,

    pub(crate) state: State,
    /// Boot time at which it came into its state, in nanoseconds.
    pub(crate) state_since: u64,
    /// Wall clock at the start, kept for `QueryServiceState`.
    pub(crate) start_realtime: Option<u64>,
    pub(crate) instances: Instances,
    all_started_notified: bool,
    pub(crate) flushes: Flushes,
    pub(crate) triggers: Triggers,
    /// The priority of the service while the session exists.
    pub(crate) boost: Option<PriorityBoost>,
    /// The session ended while no consumer was attached. The next consumer that attaches is told.
    pub(crate) end_untold: bool,
    /// Error to be reported with `TracingDisabled` once the file is complete.
    pub(crate) disabled_error: Option<String>,
    /// The session is given up: it is removed as soon as its file is complete.
    pub(crate) is_freed: bool,

    /// The ids by which producers know its buffers, in the order of the config.
    pub(crate) buffer_ids: Vec<BufferId>,
    /// In the order of the config.
    pub(crate) buffers: Vec<TraceBuffer>,
    /// The packet that is being read, if one turn is not enough for it.
    pub(crate) large_packet: Option<Box<LargePacket>>,
    pub(crate) sequence_ids: SequenceIds,
    pub(crate) notes: Notes,
    pub(crate) losses: Losses,
    /// The log knows that not all was scraped that there was.
    pub(crate) scrape_told: bool,
    /// The filter for all data that leaves the service. Only absent while a batch is put together.
    pub(crate) filter: Option<Box<SessionFilter>>,
    /// How packets are compressed on their way out.
    pub(crate) codec: Option<Codec>,
    /// While the consumer reads, if that is with compression.
    pub(crate) compressor: Option<Compressor>,
    pub(crate) file: Option<FileSink>,
}

/// A session's losses, except those that its buffers and flushes count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    pub(crate) invalid_packets: u64,
    /// Chunks and patches of its producers that went nowhere.
    pub(crate) chunks_discarded: u64,
    pub(crate) patches_discarded: u64,
}

impl Session {
    /// A session whose data sources are about to be set up.
    pub(crate) fn new(beginning: Beginning) -> Session {
        Session {
            id: beginning.id,
            recorded_by: beginning.id,
            consumer: Some(beginning.consumer),
            uid: beginning.uid,
            uuid: beginning.uuid,
            detach_key: None,
            name: beginning
                .config
                .unique_session_name
                .as_deref()
                .unwrap_or_default()
                .into(),
            config_bytes: beginning.config_bytes,
            data_source_configs: beginning.data_source_configs,
            wanted: beginning.wanted,
            was_offered: vec![false; beginning.config.data_sources.len()],
            state: State::Configured,
            state_since: 0,
            start_realtime: None,
            instances: Instances::default(),
            all_started_notified: false,
            flushes: Flushes::new(beginning.flush_strategy),
            triggers: beginning.triggers,
            boost: beginning.boost,
            end_untold: false,
            disabled_error: None,
            is_freed: false,
            buffer_ids: beginning.buffer_ids,
            buffers: beginning.buffers,
            large_packet: None,
            sequence_ids: SequenceIds::default(),
            notes: Notes::default(),
            losses: Losses::default(),
            scrape_told: false,
            filter: beginning.filter,
            codec: Codec::of(&beginning.config),
            compressor: None,
            file: beginning.file,
            config: beginning.config,
        }
    }

    /// Makes a clone: it takes over the notes for its trace, and nothing that runs. Both number writers alike, because the file of a clone begins
    /// with packets of the original.
    pub(crate) fn clone_of(original: &mut Session, beginning: Beginning) -> Session {
        Session {
            state: State::ClonedReadOnly,
            recorded_by: original.recorded_by,
            // The triggers that came since the last clone.
            triggers: original.triggers.for_clone(),
            flushes: original.flushes.for_clone(),
            large_packet: None,
            sequence_ids: original.sequence_ids.clone(),
            losses: original.losses,
            start_realtime: original.start_realtime,
            notes: original.notes.for_clone(),
            ..Session::new(beginning)
        }
    }

    /// Changes `duration_ms`, for producers that come from now on and in the config that the trace holds.
    pub(crate) fn set_duration(&mut self, ms: u32) {
        self.config.duration_ms = Some(ms);
        let mut config = Writer::new();
        config.raw(&self.config_bytes);
        // A field that comes again replaces the earlier one.
        config.varint_field(TraceConfig::DURATION_MS, ms.into());
        self.config_bytes = config.as_slice().into();
    }

    /// Enters this state, and tells the other sessions that want to know.
    pub(crate) fn enter(&mut self, state: State, common: &mut Common, now: &Now) {
        (self.state, self.state_since) = (state, now.boot);
        common.effects.push_back(Effect::StateChanged(self.change()));
    }

    /// Whether it records packets that this producer writes now.
    pub(crate) fn records(&self, producer: ProducerId) -> bool {
        self.state.is_running() && self.instances.has_any_of(producer)
    }

    /// Whether it is a clone of another.
    pub(crate) fn is_clone(&self) -> bool {
        self.state == State::ClonedReadOnly
    }

    /// Whether this is its `unique_session_name`. A clone has none, though its config says so.
    pub(crate) fn has_unique_name(&self, name: &str) -> bool {
        !self.is_clone() && self.config.unique_session_name.as_deref() == Some(name)
    }

    /// Whether its packets go into a file that is not complete.
    pub(crate) fn streams_into_file(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.is_complete())
    }

    /// Its buffer that producers know by this id.
    pub(crate) fn buffer_mut(&mut self, id: BufferId) -> Option<&mut TraceBuffer> {
        let index = self.buffer_ids.iter().position(|known| *known == id)?;
        self.buffers.get_mut(index)
    }

    pub(crate) fn builtin(&self) -> &trace_config::BuiltinDataSource {
        &self.config.builtin_data_sources
    }

    pub(crate) fn flush_timeout(&self) -> Duration {
        millis_or(self.config.flush_timeout_ms, limits::DEFAULT_FLUSH_TIMEOUT)
    }

    pub(crate) fn stop_timeout(&self) -> Duration {
        millis_or(
            self.config.data_source_stop_timeout_ms,
            limits::DEFAULT_STOP_TIMEOUT,
        )
    }

    pub(crate) fn snapshot_interval(&self) -> Duration {
        millis_or(
            self.builtin().snapshot_interval_ms,
            limits::DEFAULT_SNAPSHOT_INTERVAL,
        )
    }

    /// The clock that counts `duration_ms`.
    pub(crate) fn duration_clock(&self) -> Clock {
        if self.config.prefer_suspend_clock_for_duration.unwrap_or_default() {
            Clock::Boot
        } else {
            Clock::Monotonic
        }
    }

    /// The clock that counts the interval of snapshots.
    pub(crate) fn snapshot_clock(&self) -> Clock {
        if self
            .builtin()
            .prefer_suspend_clock_for_snapshot
            .unwrap_or_default()
        {
            Clock::Boot
        } else {
            Clock::Monotonic
        }
    }

    /// Takes a clock snapshot for the next read-back, if the config wants any.
    pub(crate) fn snapshot_clocks(&mut self, now: &Now) {
        if !self.builtin().disable_clock_snapshotting.unwrap_or_default() {
            self.notes.snapshot_clocks(now);
        }
    }
}

/// A setting in milliseconds, where absent and 0 mean the default.
pub(crate) fn millis_or(setting: Option<u32>, default: Duration) -> Duration {
    match setting {
        None | Some(0) => default,
        Some(ms) => Duration::from_millis(ms.into()),
    }
}
