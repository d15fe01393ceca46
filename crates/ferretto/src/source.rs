//! Data sources in the SDK.
//!
//! The runtime ([`ferretto_client::runtime`]) drives them on the SDK's thread. Other threads of the application look up by [`Slot`] which instances
//! record, with a bit or an array element for each. So there are few slots.

pub(crate) use ferretto_client::data_source::{
    Acknowledge, DataSource, Instance, Output, Slot, difference, policy_of,
};

use crate::muxer;
use crate::options::Concurrency;

/// Instances of one data source that may be active at once, over all backends; upstream's number.
pub(crate) const MAX_INSTANCES: usize = 8;

/// All slots.
pub(crate) fn slots() -> impl Iterator<Item = Slot> {
    Slot::first(MAX_INSTANCES)
}

/// A data source of this process.
pub(crate) trait Source: DataSource {
    /// This is a forked child, on its only thread: there are no instances here, their memory is the parent's, and locks that other
    /// threads held are held for ever. After this nothing may be written there.
    fn forget(&self);
}

/// Returns the number of instances of a data source with this concurrency, within the limit of the process's options.
pub(crate) fn max_instances(concurrency: Concurrency) -> usize {
    let settings = muxer::settings().map(|settings| settings.concurrency);
    match (concurrency, settings) {
        (Concurrency::One, _) | (_, Some(Concurrency::One)) => 1,
        (Concurrency::Many, Some(Concurrency::Many) | None) => MAX_INSTANCES,
    }
}
