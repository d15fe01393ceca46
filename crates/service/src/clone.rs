//! Requests for clones of sessions, and their answers: data that the driver, the service and its sessions share.

use ferretto_proto::messages::trace_config::BufferConfig;

/// A consumer's request for a clone.
#[derive(Clone, Debug)]
pub struct CloneRequest {
    /// Which session.
    pub original: Original,
    /// The purpose of the clone.
    pub purpose: ClonePurpose,
    /// Whether the original's filter applies.
    pub filter: CloneFilter,
    /// The trigger that led to it, to be noted in the trace.
    pub trigger: Option<CloneTrigger>,
    /// The destination of the trace if the original streams into a file.
    pub file: CloneFile,
}

/// The session to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Original {
    /// The session with this id. [`Original::BUGREPORT`] stands for the one with the highest `bugreport_score`.
    Id(u64),
    /// The session with this `unique_session_name`, which no clone has.
    Name(String),
}

impl Original {
    /// The id by which older clients ask for the session for a bug report.
    pub const BUGREPORT: Original = Original::Id(u64::MAX);
}

/// The purpose of a clone. Producers get it with the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClonePurpose {
    /// No particular purpose.
    Snapshot,
    /// A bug report.
    Bugreport,
}

/// Whether the `trace_filter` of the original applies to the clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneFilter {
    /// It does.
    Applied,
    /// Bug reports want everything.
    Skipped,
}

/// A descriptor that came with the request. Command lines always pass one, because they do not know whether the session streams into a file. If it
/// does not, the descriptor is not used, and need not be writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloneFile {
    /// There was none.
    None,
    /// The driver has it. [`Output::CopyFile`](crate::Output::CopyFile) and later outputs tell the driver what to write into it.
    Passed,
    /// The driver cannot write into it, for this reason.
    Unusable(String),
}

/// The trigger that led to a clone, as the consumer reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloneTrigger {
    /// Its name.
    pub name: String,
    /// The producer that activated it.
    pub producer_name: String,
    /// The user of that producer.
    pub producer_uid: i32,
    /// When, in nanoseconds of boot time.
    pub boot_time_ns: u64,
    /// `stop_delay_ms` of the trigger's config.
    pub delay_ms: u64,
}

/// A clone that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cloned {
    /// Names its trace: new in the upper half, the original's in the lower.
    pub uuid: u128,
    /// The place of its packets.
    pub content: ClonedContent,
}

/// The place of a clone's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClonedContent {
    /// In its buffers, to be read.
    Buffers,
    /// In the file that came with the request, which is complete.
    File,
}

/// Buffers that are flushed and copied together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferGroup {
    /// The buffers of which the clone gets copies.
    Copied,
    /// The buffers with `transfer_on_clone`.
    Transferred,
}

impl BufferGroup {
    pub(crate) fn of(config: &BufferConfig) -> BufferGroup {
        match config.transfer_on_clone {
            Some(true) => BufferGroup::Transferred,
            _ => BufferGroup::Copied,
        }
    }
}
