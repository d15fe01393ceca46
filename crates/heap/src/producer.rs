//! The producer of `heapprofd`.
//!
//! The daemon calls [`add_sources`] once. What drives it, and the connection to the service, is the [`Runtime`].

use std::sync::Arc;
use std::time::Duration;

use ferretto_client::data_source::ConnectionId;
use ferretto_client::runtime::{ConnectionOptions, MemoryOptions, ProducerProgram, Runtime};

use crate::sessions::Sessions;
use crate::source::HeapProfiles;

/// The name under which consumers find the data source, as upstream's.
pub const PRODUCER_NAME: &str = "android.heapprofd";

/// As the service likes, as upstream's asks.
const MEMORY: MemoryOptions = MemoryOptions {
    size: 0,
    page_size: 0,
    batch_commits: Duration::ZERO,
};

/// The connection to a service.
pub fn connection(id: ConnectionId, sdk_version: &str) -> ConnectionOptions {
    ConnectionOptions {
        id,
        name: "the service".to_owned(),
        producer_name: PRODUCER_NAME.to_owned(),
        sdk_version: sdk_version.to_owned(),
        memory: MEMORY,
    }
}

/// Offers `android.heapprofd`. Processes that connect are given to these sessions.
pub fn add_sources(runtime: &mut Runtime, program: &Arc<dyn ProducerProgram>, sessions: &Arc<Sessions>) {
    runtime.add_source(
        None,
        Arc::new(HeapProfiles::new(program.clone(), sessions.clone())),
    );
}
