//! Categories of which only a part of the events is recorded: a random sample, or a limited number per second.
//!
//! The macros ask it ([`EventCategory`]) after a call site's mask has said that somebody listens. So sampled categories cost no more than others
//! while nobody listens, and other categories cost nothing more. Events that are left out are counted, and the count is a counter in the trace.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::call_site::{CallSite, EventCategory, UNREGISTERED};
use super::category::Category;
use super::emit::{EventName, Parts, emit};
use super::event::Sample;
use super::observer::{self, SessionEvent};
use super::registry;
use super::thread;
use super::wire::EventType;
use crate::clock;
use crate::split_mix;
use crate::track::{CounterTrack, CounterUnit, NamedTrack};

/// The parent of the counters of events that were left out, one for each category.
const LEFT_OUT: &NamedTrack<'static> = &NamedTrack::new("Left out");

/// Draws below the probability times this are recorded.
const ALL_DRAWS: u64 = 1 << 32;

/// A category of which not all events are recorded, made by [`Category::sample`] or [`Category::rate_limit`]. Make it a `static`, which stands for
/// the category in all macros.
///
/// ```
/// use ferretto::{Category, SampledCategory, trace_event, trace_event_instant};
///
/// /// One request of a hundred.
/// static REQUESTS: SampledCategory = Category::new("requests").sample(0.01);
/// /// At most a thousand a second.
/// static RETRIES: SampledCategory = Category::new("retries").description("What was tried again").rate_limit(1000);
///
/// fn answer(path: &str) {
///     trace_event!(&REQUESTS, "Answer", "path" => path);
///     // …
///     trace_event_instant!(&RETRIES, "Retry");
/// }
/// # answer("/");
/// ```
///
/// - **Slices** that are values or last for a block ([`trace_event!`](crate::trace_event), [`trace_slice!`](crate::trace_slice),
///   [`trace_async!`](crate::trace_async), `#[trace_function]`) are recorded with their ends or not at all.
/// - **Instants** are left out one by one.
/// - **All other events are always recorded**, because leaving some out would falsify the rest: [`trace_event_begin!`](crate::trace_event_begin) and
///   its end, which may be on another thread; counters; states.
///
/// Each event is decided on by itself, when it happens: a slice that is left out may contain others that are recorded. The arguments of events that
/// are left out are not evaluated.
///
/// The trace has a counter of the events that were left out while a session recorded the category. It is named after the category, is below a track
/// "Left out", and counts since the process began. Its value is written right before an event that is recorded, if it has changed, and when a session
/// starts and stops or the category is first used. So an event stands for itself and for as many others as the counter has risen right before it, and
/// rates can be computed. (This costs one more event for each recorded event that follows others which were left out.)
#[derive(Debug)]
pub struct SampledCategory {
    category: Category,
    /// The part of [`ALL_DRAWS`] that is recorded.
    kept_draws: u64,
    limit: Option<RateLimit>,
    left_out: AtomicU64,
    /// The last value of the counter in the trace.
    told: AtomicU64,
    is_observing: AtomicBool,
    counter: CallSite,
    track: CounterTrack<'static>,
}

impl Category {
    /// Records each event of the category with this probability: 0 is never, 1 always. See [`SampledCategory`].
    ///
    /// # Panics
    /// If it is not a probability. In a `static` that is an error of the compiler.
    pub const fn sample(self, probability: f64) -> SampledCategory {
        SampledCategory::new(self).sample(probability)
    }

    /// Records no more than this many events of the category per second, on average; a tenth of them (at least one) may come at once. See
    /// [`SampledCategory`].
    ///
    /// # Panics
    /// If it is 0. In a `static` that is an error of the compiler.
    pub const fn rate_limit(self, per_second: u32) -> SampledCategory {
        SampledCategory::new(self).rate_limit(per_second)
    }
}

impl SampledCategory {
    const fn new(category: Category) -> Self {
        Self {
            category,
            kept_draws: ALL_DRAWS,
            limit: None,
            left_out: AtomicU64::new(0),
            told: AtomicU64::new(0),
            is_observing: AtomicBool::new(false),
            counter: CallSite::new(EventType::Counter, "", &[]),
            track: CounterTrack::new(category.name)
                .unit(CounterUnit::Count)
                .child_of(LEFT_OUT),
        }
    }

    /// As [`Category::sample`]. Sampling comes before the rate limit.
    ///
    /// # Panics
    /// As [`Category::sample`].
    #[must_use]
    pub const fn sample(mut self, probability: f64) -> Self {
        assert!(
            probability >= 0.0 && probability <= 1.0,
            "a probability is between 0 and 1"
        );
        self.kept_draws = (probability * ALL_DRAWS as f64) as u64;
        self
    }

    /// As [`Category::rate_limit`], for the events that are left after sampling.
    ///
    /// # Panics
    /// As [`Category::rate_limit`].
    #[must_use]
    pub const fn rate_limit(mut self, per_second: u32) -> Self {
        self.limit = Some(RateLimit::new(per_second));
        self
    }

    /// The category itself, for [`register_categories`](crate::register_categories).
    pub const fn category(&self) -> &Category {
        &self.category
    }

    /// How many of its events were left out in this process while some session recorded the category.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// The instances that record the category.
    #[inline(always)]
    fn all_listeners(&'static self, site: &'static CallSite) -> u32 {
        match site.listeners() {
            0 => 0,
            listeners if listeners & UNREGISTERED == 0 => listeners,
            _ => self.register(site),
        }
    }

    #[cold]
    fn register(&'static self, site: &'static CallSite) -> u32 {
        if !thread::is_confined() {
            // Before any site of the category, so that the counter can tell of all events that are left out.
            registry::register_site(&self.counter, &self.category);
            // Not a `Once`: observing allocates, and an allocator that traces this category calls this again from inside.
            if !self.is_observing.swap(true, Ordering::Relaxed) {
                observer::observe_sessions(move |event| match event {
                    SessionEvent::Started(_) | SessionEvent::Stopping(_) => self.tell(),
                    _ => {}
                })
                .forever();
                // The start of the counter, for sessions that have started before this.
                self.tell();
            }
        }
        registry::register_site(site, &self.category)
    }

    /// Returns the listeners that are to record an event that has happened, all or none of `listeners`.
    #[inline(never)]
    fn admit(&'static self, listeners: u32) -> u32 {
        if !self.is_admitted() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        if self.left_out.load(Ordering::Relaxed) != self.told.load(Ordering::Relaxed) {
            self.tell();
        }
        listeners
    }

    fn is_admitted(&self) -> bool {
        (self.kept_draws == ALL_DRAWS || draw() < self.kept_draws)
            && self.limit.as_ref().is_none_or(|limit| limit.admits(clock::now()))
    }

    /// Writes the count of events that were left out, for all listeners.
    #[cold]
    fn tell(&'static self) {
        let listeners = self.counter.recorded_by();
        if listeners != 0 {
            let left_out = self.left_out.load(Ordering::Relaxed);
            let told = self.told.swap(left_out, Ordering::Relaxed);
            let parts = Parts {
                category: None,
                name: EventName::OfSite,
                track: Some(&self.track),
                timestamp: None,
            };
            if emit(&self.counter, listeners, parts, &(Sample(left_out), ())) == 0 {
                // It could not be written here, so it stays due.
                self.told.store(told, Ordering::Relaxed);
            }
        }
    }
}

impl EventCategory for &'static SampledCategory {
    #[inline(always)]
    fn listeners(self, site: &'static CallSite) -> u32 {
        match self.all_listeners(site) {
            0 => 0,
            listeners if site.event == EventType::Instant => self.admit(listeners),
            listeners => listeners,
        }
    }

    #[inline(always)]
    fn slice_listeners(self, site: &'static CallSite) -> u32 {
        match self.all_listeners(site) {
            0 => 0,
            listeners => self.admit(listeners),
        }
    }

    #[inline(always)]
    fn is_enabled(self, site: &'static CallSite) -> bool {
        self.all_listeners(site) != 0
    }

    #[inline]
    fn variant(self, site: &'static CallSite) -> Option<&'static CallSite> {
        // Of two with the same category, each has to register its counter.
        site.variant_for(&self.category, ptr::from_ref(self).addr())
    }
}

/// Admits events at a steady rate, and some at once after a pause: the generic cell rate algorithm, whose state is one number.
#[derive(Debug)]
struct RateLimit {
    /// Nanoseconds from one to the next.
    interval: u64,
    /// How much earlier events may come: as many at once as the burst allows.
    tolerance: u64,
    /// The time of the next event if all had come at the steady rate.
    next: AtomicU64,
}

impl RateLimit {
    const fn new(per_second: u32) -> Self {
        assert!(
            per_second > 0,
            "a rate limit of 0 records nothing: leave the events out, or sample(0.0)"
        );
        let interval = 1_000_000_000 / per_second as u64;
        Self {
            interval,
            tolerance: interval * (per_second / 10).saturating_sub(1) as u64,
            next: AtomicU64::new(0),
        }
    }

    /// Whether an event of this time, in nanoseconds, is admitted.
    fn admits(&self, now: u64) -> bool {
        let admit = |next: u64| {
            let in_time = next <= now.saturating_add(self.tolerance);
            in_time.then(|| next.max(now).saturating_add(self.interval))
        };
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit)
            .is_ok()
    }
}

/// Returns a random number below [`ALL_DRAWS`].
#[inline]
fn draw() -> u64 {
    thread_local! {
        /// 0: none yet.
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    STATE.with(|state| {
        let before = match state.get() {
            0 => split_mix::seed(),
            before => before,
        };
        let now = before.wrapping_add(split_mix::STEP);
        state.set(now);
        split_mix::scatter(now) >> 32
    })
}

#[cfg(test)]
mod tests;
