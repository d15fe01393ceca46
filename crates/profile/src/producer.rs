//! The producer of `traced_perf`.
//!
//! The daemon calls [`add_sources`] once. The [`Runtime`] drives the data source and the connection to the service.

use std::sync::Arc;

use ferretto_client::runtime::instance_threads::ThreadPerInstance;
use ferretto_client::runtime::{ProducerProgram, Runtime};

use crate::source::LinuxPerf;

/// The name under which consumers find the data source.
pub const PRODUCER_NAME: &str = "perfetto.traced_perf";

/// Offers `linux.perf`.
pub fn add_sources(runtime: &mut Runtime, program: &Arc<dyn ProducerProgram>) {
    let perf = LinuxPerf::new(program.clone());
    runtime.add_source(None, Arc::new(ThreadPerInstance::new(program.clone(), perf)));
}
