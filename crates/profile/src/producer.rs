//! The producer of `traced_perf`.
//!
//! The daemon calls [`add_sources`] once. What drives it, and the connection to the service, is the [`Runtime`].

use std::sync::Arc;
use std::time::Duration;

use ferretto_client::data_source::ConnectionId;
use ferretto_client::runtime::{ConnectionOptions, MemoryOptions, ProducerProgram, Runtime};

use crate::source::LinuxPerf;

/// The name under which consumers find the data source.
pub const PRODUCER_NAME: &str = "perfetto.traced_perf";

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

/// Offers `linux.perf`.
pub fn add_sources(runtime: &mut Runtime, program: &Arc<dyn ProducerProgram>) {
    runtime.add_source(None, Arc::new(LinuxPerf::new(program.clone())));
}
