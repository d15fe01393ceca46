//! The data source `track_event`, as the SDK's thread drives it.

use std::sync::{Arc, OnceLock};

use ferretto_client::arbiter::BufferExhaustedPolicy;
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor, MessageField, TrackEventConfig};

use super::config::{self, CategoryFilter, TrackEventOptions};
use super::{DATA_SOURCE_NAME, observer, registry};
use crate::muxer;
use crate::options::Concurrency;
use crate::source::{self, Acknowledge, DataSource, Instance, Output, Slot, Source, policy_of};

static ENTRY: OnceLock<&'static muxer::Entry> = OnceLock::new();

/// Offers the data source to all services.
pub(crate) fn register() {
    muxer::once(&ENTRY, || muxer::register(Arc::new(TrackEventSource)));
}

/// The list of categories has changed.
pub(super) fn changed() {
    if let Some(entry) = ENTRY.get() {
        muxer::source_changed(entry);
    }
}

/// See the [module's documentation](self). Its state is [`registry`]'s.
#[derive(Debug)]
struct TrackEventSource;

impl Source for TrackEventSource {
    fn forget(&self) {
        observer::forget();
        registry::forget();
    }
}

impl DataSource for TrackEventSource {
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

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        observer::set_up(instance);
        Ok(())
    }

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String> {
        let config = instance
            .config
            .track_event_config
            .as_option()
            .cloned()
            .unwrap_or_default();
        registry::start(
            instance.slot,
            instance.serial,
            output,
            CategoryFilter::new(&config),
            TrackEventOptions::new(&config),
        );
        observer::started(instance.slot);
        drop(started);
        Ok(())
    }

    fn stop(&self, slot: Slot, stopped: Acknowledge) {
        observer::stopping(slot);
        registry::stop(slot);
        observer::stopped(slot);
        drop(stopped);
    }

    /// The service scrapes the open chunks of threads, which has the same result as a flush.
    fn flush(&self, _: Slot, _: u64, flushed: Acknowledge) {
        drop(flushed);
    }

    fn clear_incremental_state(&self, slot: Slot) {
        registry::clear_incremental_state(slot);
        observer::clears_incremental_state(slot);
    }

    fn exhausted_policy(&self, config: &DataSourceConfig) -> BufferExhaustedPolicy {
        let usual = muxer::settings().map_or(BufferExhaustedPolicy::Drop, |settings| {
            settings.track_event_policy
        });
        policy_of(config, usual)
    }

    fn max_instances(&self) -> usize {
        source::max_instances(Concurrency::Many)
    }

    fn difference(&self, startup: &DataSourceConfig, session: &DataSourceConfig) -> Option<String> {
        let nothing = TrackEventConfig::default();
        config::difference(
            startup.track_event_config.as_option().unwrap_or(&nothing),
            session.track_event_config.as_option().unwrap_or(&nothing),
        )
    }
}
