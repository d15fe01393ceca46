//! The layer that users add: a per-layer filter around the recorder, which skips everything that no session records.
//!
//! `tracing-subscriber` takes a layer's answer about a call site for the whole stack, unless the layer has a filter of its own. Only with one may a
//! layer say that it needs a call site no more while others still do. So this is a `Filtered`, to which it forwards. But a `Filtered` looks each span
//! up on every enter, exit and close, to see whether the span was enabled for it. The recorder knows that by itself of the spans that it has seen
//! made, so those calls go right to it.
#![allow(unsafe_code)]

use std::any::TypeId;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Event, Interest, LevelFilter, Metadata, Subscriber};
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::SpanStyle;
use crate::interest;
use crate::recorder::{Entrance, Messages, Recorder};
use crate::sites::{LOG_SITES, SITES};
use crate::thread::{self, Beginning, Location, SpanKind, What};

/// A layer that records spans and events as track events: see the [crate's documentation](crate).
pub struct TrackEventLayer<S> {
    gate: Filtered<Recorder, Recorded, S>,
}

/// A [`TrackEventLayer`] with nothing special about it.
///
/// ```
/// use tracing_subscriber::prelude::*;
///
/// let _ = tracing_subscriber::registry().with(ferretto_tracing::layer()).try_init();
/// ```
pub fn layer<S>() -> TrackEventLayer<S> {
    TrackEventLayer::default()
}

impl<S> Default for TrackEventLayer<S> {
    fn default() -> Self {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        let recorder = Recorder {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            spans: SpanStyle::Auto,
            location: Location::Untold,
            messages: Messages::Logged,
        };
        Self {
            gate: Filtered::new(recorder, Recorded),
        }
    }
}

impl<S> TrackEventLayer<S> {
    /// How spans are drawn.
    #[must_use]
    pub fn spans(mut self, style: SpanStyle) -> Self {
        self.gate.inner_mut().spans = style;
        self
    }

    /// Adds their place in the source to slices and instants. Makes a span's slice some 100 ns slower.
    #[must_use]
    pub fn with_source_locations(mut self) -> Self {
        self.gate.inner_mut().location = Location::Told;
        self
    }

    /// Leaves events out of the trace's log: their messages are names of instants only.
    #[must_use]
    pub fn without_log_messages(mut self) -> Self {
        self.gate.inner_mut().messages = Messages::Named;
        self
    }

    fn recorder(&self) -> &Recorder {
        self.gate.inner()
    }
}

impl<S> fmt::Debug for TrackEventLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TrackEventLayer").field(self.recorder()).finish()
    }
}

/// The filter: lets through everything that sessions record.
#[derive(Debug)]
struct Recorded;

impl<S> Filter<S> for Recorded {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        match SITES.find(metadata) {
            Some(site) if !site.is_log() => site.is_recorded(),
            // The crate `log` asks with metadata of each record, which has its target.
            None if metadata.name() == "log record" => {
                ferretto::private::anyone_listens()
                    && LOG_SITES.of(metadata.target(), *metadata.level()).recorded_by() != 0
            }
            // The decision is made when the event or record itself comes.
            _ => ferretto::private::anyone_listens(),
        }
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        let site = SITES.of(metadata);
        if site.is_recorded() || (site.is_log() && ferretto::private::anyone_listens()) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        match ferretto::private::anyone_listens() {
            true => Some(LevelFilter::TRACE),
            false => Some(LevelFilter::OFF),
        }
    }
}

impl<S> Layer<S> for TrackEventLayer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a> + 'static,
{
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        interest::register(dispatch);
        self.gate.on_register_dispatch(dispatch);
    }

    fn on_layer(&mut self, subscriber: &mut S) {
        self.gate.on_layer(subscriber);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.gate.register_callsite(metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.gate.enabled(metadata, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.gate.max_level_hint()
    }

    #[inline]
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.gate.on_new_span(attributes, id, context);
    }

    #[inline]
    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let recorder = self.recorder();
        if recorder.spans == SpanStyle::Lives {
            return;
        }
        let key = recorder.key(id);
        match thread::take_made(key) {
            Some(What::Plain(site)) => {
                thread::enter(key, site, SpanKind::Plain, &Beginning::plain(recorder.location));
            }
            Some(What::Tracked) => recorder.enter(id, &context, Entrance::AtOnce),
            None => self.gate.on_enter(id, context),
        }
    }

    #[inline]
    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        // Whether the thread has a slice of it says everything.
        thread::exit(self.recorder().key(id));
    }

    #[inline]
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let recorder = self.recorder();
        match thread::take_exited(recorder.key(&id)) {
            Some(SpanKind::Plain) => {}
            Some(SpanKind::Tracked) => recorder.close(&id, &context),
            None => self.gate.on_close(id, context),
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.gate.on_record(id, values, context);
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        self.gate.on_follows_from(id, follows, context);
    }

    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        self.gate.event_enabled(event, context)
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        self.gate.on_event(event, context);
    }

    // SAFETY: the pointer is to `self` for this type, and the gate's own answer otherwise; both live as long as `self`. Through this the stack sees a
    // layer with a filter of its own.
    unsafe fn downcast_raw(&self, id: TypeId) -> Option<*const ()> {
        if id == TypeId::of::<Self>() {
            return Some(std::ptr::from_ref(self).cast());
        }
        // SAFETY: as of this method.
        unsafe { self.gate.downcast_raw(id) }
    }
}
