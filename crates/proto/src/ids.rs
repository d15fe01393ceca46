//! The numbers by which the messages of both ends name things, each a type of its own so that a buffer is never
//! passed where an instance is meant. The service gives them out, its clients give them back. As wide as what may
//! come in the fields that carry them, and without any other invariant.

/// A trace buffer of the service, unique across sessions: `DataSourceConfig.target_buffer` as producers get it, and as they
/// name it in `CommitDataRequest`. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u16);

/// An instance of a data source: one data source of one producer in one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataSourceInstanceId(pub u64);

/// A request to producers to flush; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlushRequestId(pub u64);
