//! A data source's instances, as the SDK's thread drives them, and as other threads find them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_client::arbiter::BufferExhaustedPolicy;
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor};

use super::{DataSource, DataSourceHandle, Flush, PolicySource, SetUp, Start, Stop, thread_state};
use crate::muxer;
use crate::options::{Backend, LogLevel};
use crate::source::{self, Acknowledge, Instance, Output, Slot, Source};

/// A place for an instance.
pub(super) struct InstanceSlot<D> {
    /// The serial number of the instance that is here. Threads see by it that their state belongs to an earlier one.
    pub(super) serial: AtomicU32,
    /// How often its incremental state was cleared.
    pub(super) clears: AtomicU32,
    /// Whether the log already knows that no writer could be made for it.
    pub(super) complained: AtomicBool,
    current: Mutex<Option<Current<D>>>,
    /// The lock is held for ever, by a thread of the process that this one was forked from.
    stuck: AtomicBool,
}

/// An instance.
pub(super) struct Current<D> {
    pub(super) serial: u32,
    pub(super) instance: Arc<D>,
    /// `Some` once it was started.
    pub(super) output: Option<Output>,
}

impl<D> Clone for Current<D> {
    fn clone(&self) -> Self {
        Self {
            serial: self.serial,
            instance: self.instance.clone(),
            output: self.output.clone(),
        }
    }
}

impl<D> InstanceSlot<D> {
    pub(super) const fn new() -> Self {
        Self {
            serial: AtomicU32::new(0),
            clears: AtomicU32::new(0),
            complained: AtomicBool::new(false),
            current: Mutex::new(None),
            stuck: AtomicBool::new(false),
        }
    }

    /// The instance that is here, if any.
    pub(super) fn current(&self) -> Option<Current<D>> {
        self.lock()?.clone()
    }

    fn lock(&self) -> Option<MutexGuard<'_, Option<Current<D>>>> {
        if self.stuck.load(Ordering::Relaxed) {
            return None;
        }
        // Nothing panics while it holds the lock.
        Some(self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The data source, as the SDK's thread sees it.
pub(super) struct Bridge<D: DataSource>(pub(super) &'static DataSourceHandle<D>);

impl<D: DataSource> Bridge<D> {
    fn slot(&self, slot: Slot) -> &'static InstanceSlot<D> {
        &self.0.slots[slot.index()]
    }
}

/// Ends an instance when it is dropped: nothing is written for it any more.
pub(super) struct End<D: DataSource> {
    handle: &'static DataSourceHandle<D>,
    slot: Slot,
}

impl<D: DataSource> Drop for End<D> {
    fn drop(&mut self) {
        self.handle.active.fetch_and(!self.slot.bit(), Ordering::AcqRel);
        let slot = &self.handle.slots[self.slot.index()];
        let current = slot.lock().and_then(|mut current| current.take());
        // Other threads release their state the next time they trace. The service takes the packets that they have not handed over out of the shared
        // memory.
        thread_state::release(self.handle, self.slot);
        drop(current);
    }
}

impl<D: DataSource> Source for Bridge<D> {
    fn forget(&self) {
        self.0.active.store(0, Ordering::Relaxed);
        for slot in &self.0.slots {
            match slot.current.try_lock() {
                // Its destructor might have effects, which would then happen twice.
                Ok(mut current) => std::mem::forget(current.take()),
                Err(_) => slot.stuck.store(true, Ordering::Relaxed),
            }
        }
    }
}

impl<D: DataSource> source::DataSource for Bridge<D> {
    fn descriptor(&self) -> DataSourceDescriptor {
        #[cfg(feature = "unstable-proto")]
        let told = guarded::<D, _>(D::descriptor).unwrap_or_default();
        #[cfg(not(feature = "unstable-proto"))]
        let told = DataSourceDescriptor::default();
        DataSourceDescriptor {
            // Services find the data source by its name.
            name: Some(D::NAME.to_owned()),
            handles_incremental_state_clear: Some(true),
            ..told
        }
    }

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        let set_up = SetUp {
            backend: Backend::of(instance.connection),
            #[cfg(feature = "unstable-proto")]
            config: &instance.config,
            encoded_config: &instance.encoded_config,
        };
        let Some(made) = guarded::<D, _>(|| D::set_up(&set_up)) else {
            return Ok(());
        };
        let slot = self.slot(instance.slot);
        slot.complained.store(false, Ordering::Relaxed);
        if let Some(mut current) = slot.lock() {
            *current = Some(Current {
                serial: instance.serial,
                instance: Arc::new(made),
                output: None,
            });
        }
        Ok(())
    }

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String> {
        let slot = self.slot(instance.slot);
        let current = slot.lock().and_then(|mut current| {
            let current = current.as_mut()?;
            current.output = Some(output);
            Some(current.instance.clone())
        });
        if let Some(current) = current {
            slot.serial.store(instance.serial, Ordering::Relaxed);
            self.0.active.fetch_or(instance.slot.bit(), Ordering::Release);
            guarded::<D, _>(|| current.start(Start(started)));
        }
        Ok(())
    }

    fn stop(&self, slot: Slot, stopped: Acknowledge) {
        let stop = Stop {
            _acknowledge: stopped,
            end: Some(End { handle: self.0, slot }),
        };
        match self.slot(slot).current() {
            Some(current) => drop(guarded::<D, _>(|| current.instance.stop(stop))),
            None => drop(stop),
        }
    }

    fn flush(&self, slot: Slot, flags: u64, flushed: Acknowledge) {
        let flush = Flush {
            _acknowledge: flushed,
            flags,
        };
        if let Some(current) = self.slot(slot).current() {
            guarded::<D, _>(|| current.instance.flush(flush));
        }
    }

    fn clear_incremental_state(&self, slot: Slot) {
        if let Some(current) = self.slot(slot).current() {
            guarded::<D, _>(|| current.instance.will_clear_incremental_state());
        }
        self.slot(slot).clears.fetch_add(1, Ordering::Relaxed);
    }

    fn exhausted_policy(&self, config: &DataSourceConfig) -> BufferExhaustedPolicy {
        match D::POLICY_SOURCE {
            PolicySource::DataSource => D::EXHAUSTED,
            PolicySource::Config => source::policy_of(config, D::EXHAUSTED),
        }
    }

    fn max_instances(&self) -> usize {
        source::max_instances(D::CONCURRENCY)
    }

    fn difference(&self, startup: &DataSourceConfig, session: &DataSourceConfig) -> Option<String> {
        #[cfg(feature = "unstable-proto")]
        match guarded::<D, _>(|| D::can_adopt(startup, session)) {
            Some(true) => None,
            _ => Some(
                source::difference(startup, session)
                    .unwrap_or_else(|| "the data source's `can_adopt` says no".to_owned()),
            ),
        }
        #[cfg(not(feature = "unstable-proto"))]
        source::difference(startup, session)
    }
}

/// Calls the data source's code.
fn guarded<D: DataSource, R>(call: impl FnOnce() -> R) -> Option<R> {
    let result = muxer::guarded(call);
    if result.is_none() {
        let line = format!("the data source {:?} has panicked", D::NAME);
        muxer::log(LogLevel::Warning, &line);
    }
    result
}
