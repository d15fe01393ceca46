//! The producer of `heapprofd`.
//!
//! The daemon calls [`add_sources`] once. The [`Runtime`] drives the data source and the connection to the service.

use std::sync::Arc;

use ferretto_client::runtime::instance_threads::ThreadPerInstance;
use ferretto_client::runtime::{ProducerProgram, Runtime};

use crate::sessions::Sessions;
use crate::source::HeapProfiles;

/// The name under which consumers find the data source, as upstream's.
pub const PRODUCER_NAME: &str = "android.heapprofd";

/// Offers `android.heapprofd`. Processes that connect are given to these sessions.
pub fn add_sources(runtime: &mut Runtime, program: &Arc<dyn ProducerProgram>, sessions: &Arc<Sessions>) {
    let profiles = HeapProfiles::new(program.clone(), sessions.clone());
    runtime.add_source(None, Arc::new(ThreadPerInstance::new(program.clone(), profiles)));
}
