//! The outputs of the service: the messages and file operations that [`Service::poll`](crate::Service::poll) hands to its driver.
//!
//! The driver carries them out in order. They name only clients that are connected: the service takes back outputs for a client that disconnects.

use std::sync::Arc;

use ferretto_proto::messages::ObservableEvents;

use crate::boost::PriorityBoost;
use crate::clone::Cloned;
use crate::ids::{ConsumerId, DataSourceInstanceId, FlushRequestId, ProducerId, SessionId};

/// Something the driver of the service has to do.
#[derive(Debug)]
pub enum Output {
    /// Send this command to the producer.
    ToProducer(ProducerId, ProducerCommand),
    /// The producer broke a rule: close its connection, then call
    /// [`disconnect_producer`](crate::Service::disconnect_producer).
    DisconnectProducer {
        /// The producer to disconnect.
        producer: ProducerId,
        /// The rule it broke, for the log.
        rule: String,
    },
    /// Tell the consumer that its session stopped recording: the reply to `EnableTracing`.
    TracingDisabled {
        /// The consumer.
        consumer: ConsumerId,
        /// The session: the consumer may have another one by now.
        session: SessionId,
        /// Why, if it did not end as planned.
        error: Option<String>,
    },
    /// Answer the flush that this consumer asked for.
    FlushDone {
        /// The consumer.
        consumer: ConsumerId,
        /// The token that the driver passed with the request.
        token: u64,
        /// Whether every producer acknowledged in time.
        outcome: FlushOutcome,
    },
    /// Send these events to the consumer that observes them.
    Observed {
        /// The consumer.
        consumer: ConsumerId,
        /// The events since the last such output.
        events: Box<ObservableEvents>,
    },
    /// Data is due for the file of this session: call [`read_for_file`](crate::Service::read_for_file), write what it
    /// returns, and report with [`file_written`](crate::Service::file_written).
    FileDue(SessionId),
    /// Push all data written into the session's file down to the disk.
    SyncFile(SessionId),
    /// The session's file is complete: push it to the disk, close it, and report with
    /// [`file_closed`](crate::Service::file_closed).
    CloseFile(SessionId),
    /// Run the service at this priority, `None` for the usual one. If that cannot be done, say so with
    /// [`priority_not_set`](crate::Service::priority_not_set).
    SetPriority {
        /// The policy and priority.
        boost: Option<PriorityBoost>,
        /// The session that has just begun and wants it.
        on_behalf_of: Option<SessionId>,
    },
    /// Answer the clone that this consumer asked for.
    SessionCloned {
        /// The consumer.
        consumer: ConsumerId,
        /// The result of [`clone_session`](crate::Service::clone_session).
        clone: SessionId,
        /// The clone, which is the consumer's session now, or why there is none.
        result: Result<Cloned, String>,
    },
    /// Copy the contents of one session's file, once everything handed out for it so far is written, into the file that came with the request for
    /// this clone, and report with [`file_copied`](crate::Service::file_copied).
    CopyFile {
        /// The original.
        from: SessionId,
        /// The clone.
        to: SessionId,
    },
    /// The session's file is given up: stop writing into it and close it as soon as that can be done. No report is needed.
    AbandonFile(SessionId),
    /// A line for the log.
    Log(LogLevel, String),
}

impl Output {
    /// The producer that this output concerns.
    pub(crate) fn producer(&self) -> Option<ProducerId> {
        match self {
            Output::ToProducer(producer, _) | Output::DisconnectProducer { producer, .. } => Some(*producer),
            _ => None,
        }
    }

    /// The consumer that this output goes to.
    pub(crate) fn consumer(&self) -> Option<ConsumerId> {
        match self {
            Output::TracingDisabled { consumer, .. }
            | Output::FlushDone { consumer, .. }
            | Output::SessionCloned { consumer, .. }
            | Output::Observed { consumer, .. } => Some(*consumer),
            _ => None,
        }
    }
}

/// A command to a producer, as `GetAsyncCommand` carries them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProducerCommand {
    /// Make shared memory of this size, give it to [`attach_shared_memory`](crate::Service::attach_shared_memory)
    /// and send its descriptor to the producer.
    CreateSharedMemory {
        /// Bytes in all.
        size: usize,
        /// Bytes in a page.
        page_size: usize,
    },
    /// Tell the producer to make its own memory, with pages of this size, because no memory can be shared with it.
    EmulateSharedMemory {
        /// Bytes in a page.
        page_size: usize,
    },
    /// Tell the producer that the memory it offered is in use.
    SharedMemoryAdopted,
    /// Prepare an instance of a data source.
    SetupDataSource {
        /// Which.
        instance: DataSourceInstanceId,
        /// Encoded `DataSourceConfig`: the consumer's bytes followed by the fields that the service sets.
        config: Arc<[u8]>,
    },
    /// Start it.
    StartDataSource {
        /// Which.
        instance: DataSourceInstanceId,
        /// The same bytes as when it was set up.
        config: Arc<[u8]>,
    },
    /// Stop it.
    StopDataSource {
        /// Which.
        instance: DataSourceInstanceId,
    },
    /// Commit everything these instances hold, then acknowledge.
    Flush {
        /// The id for the acknowledgement.
        request: FlushRequestId,
        /// Which.
        instances: Vec<DataSourceInstanceId>,
        /// The initiator and the reason: `FlushFlags` of the schema.
        flags: u64,
    },
    /// Forget interned data and the bases of differences.
    ClearIncrementalState {
        /// Which.
        instances: Vec<DataSourceInstanceId>,
    },
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Every producer acknowledged in time.
    Succeeded,
    /// Some producer did not, or there was nothing to flush.
    Failed,
}

/// How loud a line in the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Ordinary events: a session began, ended.
    Info,
    /// Somebody will miss something.
    Warning,
}
