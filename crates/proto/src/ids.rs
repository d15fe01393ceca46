//! The numbers by which the messages of both ends name things. Each is a type of its own, so that a buffer is never passed
//! where an instance is meant. The service gives the numbers out, and its clients give them back. Each type can hold any
//! value of the fields that carry it, and has no other invariant.

/// A trace buffer of the service, unique across sessions: `DataSourceConfig.target_buffer` as producers get it and name it
/// in `CommitDataRequest`. 0 stands for no buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u16);

/// An instance of a data source: one data source of one producer in one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataSourceInstanceId(pub u64);

/// A request to producers to flush; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlushRequestId(pub u64);
