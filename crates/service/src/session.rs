//! A tracing session: its config, buffers and data source instances, and what the service still has to write into
//! its trace. Only data and questions about it; what happens to a session is in `enable`, `lifecycle`, `flush` and
//! `readback`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::{TraceConfig, trace_config, trace_stats};
use ferretto_proto::write::TracingServiceEvent;
use ferretto_wire::Writer;

use crate::absences::{Absence, Absent, slow_to_start};
use crate::boost::PriorityBoost;
use crate::clock::Now;
use crate::clone::{BufferGroup, CloneTrigger};
use crate::compression::{Codec, Compressor};
use crate::concurrent::OtherSessions;
use crate::ids::{BufferId, ConsumerId, FlushRequestId, ProducerId, SessionId};
use crate::instances::Instances;
use crate::limits;
use crate::machines::MachinesTold;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::producer::{Owner, RegistrationId};
use crate::sequence_ids::SequenceIds;
use crate::timers::Clock;
use crate::trace_filter::SessionFilter;
use crate::triggers::Triggers;
use crate::wanted::Wanted;

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Buffers exist, data sources are set up, nothing records yet.
    Configured,
    /// Recording.
    Started,
    /// Producers were told to stop, some have not acknowledged.
    DisablingWaitingStopAcks,
    /// Nothing records any more; the buffers can be read.
    Disabled,
    /// A clone: nothing ever recorded into it; the buffers can be read.
    ClonedReadOnly,
}

impl State {
    /// The name in `TracingServiceState`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Configured => "CONFIGURED",
            State::Started => "STARTED",
            State::DisablingWaitingStopAcks => "STOP_WAIT",
            State::Disabled => "DISABLED",
            State::ClonedReadOnly => "CLONED_READ_ONLY",
        }
    }
}

/// Where an instance of a data source is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstanceState {
    Configured,
    Starting,
    Started,
    Stopping,
    Stopped,
}

/// One data source of one producer inside one session.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) producer: ProducerId,
    /// Whose producer that is.
    pub(crate) owner: Owner,
    /// Bytes that it counts: of its name, and of its config as it came.
    pub(crate) size: usize,
    /// Which of the producer's registrations it is of.
    pub(crate) registration: RegistrationId,
    /// Which of the config's data sources it is of.
    pub(crate) source: usize,
    pub(crate) name: String,
    pub(crate) config: Arc<[u8]>,
    pub(crate) state: InstanceState,
    pub(crate) will_notify_on_start: bool,
    pub(crate) will_notify_on_stop: bool,
    pub(crate) handles_incremental_state_clear: bool,
    pub(crate) no_flush: bool,
    /// Where it writes.
    pub(crate) buffer: BufferId,
}

/// Why a flush was asked for, and so what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushPurpose {
    /// A consumer wants an answer.
    Consumer { consumer: ConsumerId, token: u64 },
    /// `flush_period_ms`, or the default while streaming into a file.
    Periodic,
    /// The file is due, and the config wants everything flushed first.
    BeforeFileWrite,
    /// The session ends.
    Final,
    /// A group of buffers is about to be cloned.
    Clone { clone: SessionId, group: BufferGroup },
}

/// A flush that waits for acknowledgements.
#[derive(Debug)]
pub(crate) struct PendingFlush {
    pub(crate) waiting_for: OrderedSet<ProducerId>,
    pub(crate) purpose: FlushPurpose,
    /// Who asked and why: `FlushFlags` of the schema.
    pub(crate) flags: u64,
}

/// Kinds of events in the life of a session that are written into its trace; the values are field numbers of
/// `TracingServiceEvent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LifecycleEvent {
    AllDataSourcesStarted = TracingServiceEvent::ALL_DATA_SOURCES_STARTED,
    TracingStarted = TracingServiceEvent::TRACING_STARTED,
    AllDataSourcesFlushed = TracingServiceEvent::ALL_DATA_SOURCES_FLUSHED,
    ReadTracingBuffersCompleted = TracingServiceEvent::READ_TRACING_BUFFERS_COMPLETED,
    TracingDisabled = TracingServiceEvent::TRACING_DISABLED,
    FlushStarted = TracingServiceEvent::FLUSH_STARTED,
    CloneStarted = TracingServiceEvent::CLONE_STARTED,
    /// Ours, see the schema.
    ServiceEnded = TracingServiceEvent::SERVICE_ENDED,
}

impl LifecycleEvent {
    /// How many of a kind wait for the next read-back; older ones make room.
    fn kept(self) -> usize {
        match self {
            LifecycleEvent::AllDataSourcesFlushed | LifecycleEvent::FlushStarted => 64,
            _ => 1,
        }
    }
}

/// When producers are flushed without anybody asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushStrategy {
    Never,
    Every(Duration),
    BeforeEachFileWrite,
}

/// The output file of a session, as far as the service is concerned with it.
#[derive(Debug)]
pub(crate) struct FileSink {
    pub(crate) write_period: Duration,
    pub(crate) max_size: u64,
    pub(crate) written: u64,
    pub(crate) sync_after_write: bool,
    pub(crate) drain: Drain,
    /// How the batch ended that the driver has and did not yet report as written.
    pub(crate) handed_out: Option<BatchEnd>,
    /// When the driver last reported something (ns, monotonic).
    pub(crate) progress: u64,
}

/// Whether data is on its way from the buffers into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Drain {
    Idle,
    /// A periodic write is under way.
    Periodic,
    /// The session is over: everything left is written, then the file is closed.
    Final,
    /// Nothing is written any more; the driver is closing the file.
    Closing,
}

/// What the batch last handed out for the file left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchEnd {
    /// There is more to read.
    More,
    /// The buffers are empty.
    Drained,
    /// The file has reached its size.
    Full,
}

/// What is known of a session when it begins.
pub(crate) struct Beginning {
    pub(crate) id: SessionId,
    pub(crate) consumer: ConsumerId,
    pub(crate) uid: u32,
    pub(crate) config: TraceConfig,
    pub(crate) config_bytes: Arc<[u8]>,
    pub(crate) data_source_configs: Vec<Vec<u8>>,
    pub(crate) wanted: Wanted,
    pub(crate) uuid: u128,
    pub(crate) buffers: Vec<BufferId>,
    pub(crate) flush_strategy: FlushStrategy,
    pub(crate) file: Option<FileSink>,
    pub(crate) triggers: Triggers,
    pub(crate) filter: Option<Box<SessionFilter>>,
    pub(crate) boost: Option<PriorityBoost>,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// The session that recorded what it holds: itself, or of which it is a clone.
    pub(crate) recorded_by: SessionId,
    /// None while detached.
    pub(crate) consumer: Option<ConsumerId>,
    pub(crate) uid: u32,
    pub(crate) detach_key: Option<String>,
    pub(crate) state: State,
    /// The session ended while nobody was attached: whoever attaches is still to be told.
    pub(crate) end_untold: bool,

    pub(crate) config: TraceConfig,
    /// The config as the consumer sent it, with what was changed since, which goes into the trace.
    pub(crate) config_bytes: Arc<[u8]>,
    /// `data_sources[i].config` as the consumer sent it, which goes to producers.
    pub(crate) data_source_configs: Vec<Vec<u8>>,
    /// What is wanted of producers that are yet to come.
    pub(crate) wanted: Wanted,
    pub(crate) uuid: u128,

    /// Buffer ids in the order of the config.
    pub(crate) buffers: Vec<BufferId>,
    pub(crate) instances: Instances,

    pub(crate) pending_flushes: OrderedMap<FlushRequestId, PendingFlush>,
    pub(crate) flush_strategy: FlushStrategy,
    pub(crate) flushes_requested: u64,
    pub(crate) flushes_succeeded: u64,
    pub(crate) flushes_failed: u64,
    pub(crate) final_flush_outcome: trace_stats::FinalFlushOutcome,
    pub(crate) all_started_notified: bool,

    pub(crate) triggers: Triggers,

    /// How packets are compressed on their way out.
    pub(crate) codec: Option<Codec>,
    /// While the consumer reads, if that is with compression.
    pub(crate) compressor: Option<Compressor>,
    pub(crate) file: Option<FileSink>,
    /// Error to be reported with `TracingDisabled` once the file is complete.
    pub(crate) disabled_error: Option<String>,
    /// The buffers are to be freed as soon as the file is complete.
    pub(crate) free_when_drained: bool,

    pub(crate) sequence_ids: SequenceIds,
    pub(crate) invalid_packets: u64,
    /// Chunks and patches of its producers that went nowhere.
    pub(crate) chunks_discarded: u64,
    pub(crate) patches_discarded: u64,
    /// What leaves the service goes through this. Only absent while a batch is put together.
    pub(crate) filter: Option<Box<SessionFilter>>,

    pub(crate) initial_clocks: Option<Now>,
    /// Wall clock at the start, kept for `QueryServiceState`.
    pub(crate) start_realtime: Option<u64>,
    pub(crate) clock_snapshots: VecDeque<Now>,
    /// What happened and when, in boot time, as it happened: much of it within one turn, at the same time.
    pub(crate) lifecycle_events: VecDeque<(LifecycleEvent, u64)>,
    /// Data sources that the trace still has to name, because some of their data may be missing.
    pub(crate) absences: Vec<Absence>,
    /// For each data source of the config, whether it had an instance since the start, or was refused one.
    pub(crate) was_offered: Vec<bool>,
    /// Who was slow to start, as its trace tells already.
    pub(crate) slow_told: Vec<Absent>,
    /// The log knows that not all was scraped that there was.
    pub(crate) scrape_told: bool,
    pub(crate) stats_due: bool,
    pub(crate) sync_marker_due: bool,
    pub(crate) initial_packets_written: bool,
    pub(crate) machines_told: MachinesTold,

    /// Boot time at which it came into its state, in nanoseconds.
    pub(crate) state_since: u64,
    /// What its trace is still to tell of other sessions.
    pub(crate) other_sessions: OtherSessions,
    /// At what priority the service is to run while the session is there.
    pub(crate) boost: Option<PriorityBoost>,
    /// For a clone: when each buffer was copied, in boot time, to be written at the next read-back.
    pub(crate) buffers_cloned: Vec<u64>,
    /// For a clone: what it was made for, to be written at the first read-back.
    pub(crate) clone_trigger: Option<CloneTrigger>,
}

impl Session {
    /// A session whose buffers exist and whose data sources are about to be set up.
    pub(crate) fn new(beginning: Beginning) -> Session {
        Session {
            id: beginning.id,
            recorded_by: beginning.id,
            consumer: Some(beginning.consumer),
            uid: beginning.uid,
            detach_key: None,
            state: State::Configured,
            end_untold: false,
            config_bytes: beginning.config_bytes,
            data_source_configs: beginning.data_source_configs,
            wanted: beginning.wanted,
            uuid: beginning.uuid,
            buffers: beginning.buffers,
            instances: Instances::default(),
            pending_flushes: OrderedMap::new(),
            flush_strategy: beginning.flush_strategy,
            flushes_requested: 0,
            flushes_succeeded: 0,
            flushes_failed: 0,
            final_flush_outcome: trace_stats::FinalFlushOutcome::FINAL_FLUSH_UNSPECIFIED,
            all_started_notified: false,
            codec: Codec::of(&beginning.config),
            compressor: None,
            triggers: beginning.triggers,
            file: beginning.file,
            disabled_error: None,
            free_when_drained: false,
            sequence_ids: SequenceIds::default(),
            invalid_packets: 0,
            chunks_discarded: 0,
            patches_discarded: 0,
            filter: beginning.filter,
            initial_clocks: None,
            start_realtime: None,
            clock_snapshots: VecDeque::new(),
            lifecycle_events: VecDeque::new(),
            absences: Vec::new(),
            was_offered: vec![false; beginning.config.data_sources.len()],
            slow_told: Vec::new(),
            scrape_told: false,
            stats_due: false,
            sync_marker_due: false,
            initial_packets_written: false,
            machines_told: MachinesTold::default(),
            state_since: 0,
            other_sessions: OtherSessions::default(),
            boost: beginning.boost,
            buffers_cloned: Vec::new(),
            clone_trigger: None,
            config: beginning.config,
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

    /// A clone: it takes over what is still to be written into a trace, and nothing that runs. The two number writers
    /// alike, because the file of a clone begins with packets of the original.
    pub(crate) fn clone_of(original: &mut Session, beginning: Beginning) -> Session {
        Session {
            state: State::ClonedReadOnly,
            recorded_by: original.recorded_by,
            // Those that came since the last clone.
            triggers: original.triggers.for_clone(),
            flushes_requested: original.flushes_requested,
            flushes_succeeded: original.flushes_succeeded,
            flushes_failed: original.flushes_failed,
            sequence_ids: original.sequence_ids.clone(),
            invalid_packets: original.invalid_packets,
            chunks_discarded: original.chunks_discarded,
            patches_discarded: original.patches_discarded,
            initial_clocks: original.initial_clocks,
            start_realtime: original.start_realtime,
            clock_snapshots: original.clock_snapshots.clone(),
            // A clone is complete when it is made. That the service later ended the original is no news about the clone.
            lifecycle_events: original
                .lifecycle_events
                .iter()
                .filter(|(event, _)| *event != LifecycleEvent::ServiceEnded)
                .copied()
                .collect(),
            slow_told: slow_to_start(&original.absences).cloned().collect(),
            absences: original.absences.clone(),
            scrape_told: false,
            stats_due: true,
            ..Session::new(beginning)
        }
    }

    /// Whether it is there for what this producer writes now.
    pub(crate) fn records(&self, producer: ProducerId) -> bool {
        let is_running = matches!(self.state, State::Started | State::DisablingWaitingStopAcks);
        is_running && !self.instances.of(producer).is_empty()
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
        self.file
            .as_ref()
            .is_some_and(|file| file.drain != Drain::Closing)
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

    /// Notes that something happened, to be written at the next read-back.
    pub(crate) fn note(&mut self, event: LifecycleEvent, now: &Now) {
        self.note_at(event, now.boot);
    }

    /// The same of an earlier moment of boot time.
    pub(crate) fn note_at(&mut self, event: LifecycleEvent, at: u64) {
        let events = &mut self.lifecycle_events;
        let of_kind = |(kind, _): &(LifecycleEvent, u64)| *kind == event;
        if events.iter().filter(|noted| of_kind(noted)).count() >= event.kept()
            && let Some(oldest) = events.iter().position(of_kind)
        {
            events.remove(oldest);
        }
        events.push_back((event, at));
    }

    /// Takes a clock snapshot for the next read-back, unless the last one still describes all clocks well.
    pub(crate) fn snapshot_clocks(&mut self, now: &Now) {
        if self.builtin().disable_clock_snapshotting.unwrap_or_default() {
            return;
        }
        if self
            .clock_snapshots
            .back()
            .is_some_and(|last| !now.drifted_since(last))
        {
            return;
        }
        if self.clock_snapshots.len() >= limits::MAX_PENDING_CLOCK_SNAPSHOTS {
            self.clock_snapshots.pop_front();
        }
        self.clock_snapshots.push_back(*now);
    }
}

/// A setting in milliseconds, where absent and 0 mean the default.
pub(crate) fn millis_or(setting: Option<u32>, default: Duration) -> Duration {
    match setting {
        None | Some(0) => default,
        Some(ms) => Duration::from_millis(ms.into()),
    }
}
