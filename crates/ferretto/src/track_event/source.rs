//! The data source `track_event`, as the SDK's thread drives it.

use ferretto_proto::messages::{DataSourceDescriptor, MessageField};

use super::config::{CategoryFilter, TrackEventOptions};
use super::{DATA_SOURCE_NAME, registry};
use crate::source::{Acknowledge, Instance, Output, Slot, Source};

/// See the [module's documentation](self). Its state is [`registry`]'s.
#[derive(Debug)]
pub(crate) struct TrackEventSource;

impl Source for TrackEventSource {
    fn descriptor(&self) -> DataSourceDescriptor {
        DataSourceDescriptor {
            name: Some(DATA_SOURCE_NAME.to_owned()),
            will_notify_on_start: Some(true),
            will_notify_on_stop: Some(true),
            handles_incremental_state_clear: Some(true),
            track_event_descriptor: MessageField::some(registry::descriptor()),
            ..Default::default()
        }
    }

    fn set_up(&self, _: &Instance) {}

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) {
        let config = instance.config.track_event_config.as_option().cloned().unwrap_or_default();
        registry::start(
            instance.slot,
            instance.serial,
            output,
            CategoryFilter::new(&config),
            TrackEventOptions::new(&config),
        );
        drop(started);
    }

    fn stop(&self, slot: Slot, stopped: Acknowledge) {
        registry::stop(slot);
        drop(stopped);
    }

    /// Threads' open chunks are scraped by the service, which cannot be told from their having been flushed.
    fn flush(&self, _: Slot, _: u64, flushed: Acknowledge) {
        drop(flushed);
    }

    fn clear_incremental_state(&self, slot: Slot) {
        registry::clear_incremental_state(slot);
    }
}
