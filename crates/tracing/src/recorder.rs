//! The recorder of spans and events: the layer behind the [gate](crate::layer).
//!
//! Most spans need no state beyond that of their thread ([`crate::thread`]). A span has an account ([`Account`]), in its registry's extensions, if it
//! has fields, because `tracing` shows them before the slice begins; or if it may be entered more than once.

use ferretto::private::{EventName, Fill, KeptAnnotations, Parts, emit};
use ferretto::track::TrackLike;
use ferretto::{EventContext, Flow, LogPriority, clock};
use ferretto_proto::write::{SourceLocation, TrackEvent};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::SpanStyle;
use crate::fields::{self, Fields};
use crate::life::{LanePlace, Life};
use crate::sites::{Behaviour, LOG_SITES, SITES, Site};
use crate::thread::{self, Beginning, Location, SpanKey, SpanKind, What};

/// See the [module's documentation](self).
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Different for any two layers.
    pub(crate) number: u32,
    pub(crate) spans: SpanStyle,
    pub(crate) location: Location,
    pub(crate) messages: Messages,
}

/// Whether messages of events are messages of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Messages {
    Logged,
    Named,
}

/// When a thread enters a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// Right after it made it.
    AtOnce,
    Later,
}

/// The state that is kept for a span.
#[derive(Debug)]
struct Account {
    /// When it was made, on the trace clock.
    made: u64,
    times_entered: u32,
    /// Whether its maker entered it right away.
    entered_at_once: bool,
    /// Its fields.
    annotations: KeptAnnotations,
    /// Arrows that end where it is entered next.
    flows: Vec<Flow>,
    life: Option<Box<Life>>,
}

impl Account {
    fn new() -> Self {
        Self {
            made: clock::now(),
            times_entered: 0,
            entered_at_once: false,
            annotations: KeptAnnotations::default(),
            flows: Vec::new(),
            life: None,
        }
    }
}

/// The most arrows to a span that is not entered yet: it may be said to follow from others for as long as it is not entered.
const MAX_FLOWS: usize = 64;

/// Returns a number that marks events which belong together, or are connected.
fn unique_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5d8e_3b00_0000_0001);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Recorder {
    #[inline(always)]
    pub(crate) fn key(&self, id: &Id) -> SpanKey {
        SpanKey::new(self.number, id)
    }

    /// Whether the thread's knowledge suffices for a new span of this site.
    #[inline(always)]
    fn is_plain(&self, site: &Site) -> bool {
        !site.has_fields()
            && match self.spans {
                SpanStyle::Auto => site.behaviour() == Behaviour::Scoped,
                SpanStyle::Threads => true,
                SpanStyle::Lives => false,
            }
    }

    /// Begins the life of a span, whose account will hold it.
    fn begin_life(&self, site: &'static Site, place: LanePlace, account: &Account) -> Box<Life> {
        // Other processes count too.
        let correlation = Flow::process_scoped(unique_number()).id();
        let beginning = Beginning {
            annotations: account.annotations.as_bytes(),
            flows: &[],
            correlation: Some(correlation),
            location: self.location,
        };
        Box::new(Life::begin(site, place, account.made, correlation, &beginning))
    }
}

/// The place of a new span's life: above the nearest parent's that has one, if nothing stands there.
fn place_of_new<S>(site: &'static Site, id: &Id, time: u64, context: &Context<'_, S>) -> LanePlace
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let scope = context.span_scope(id).into_iter().flatten().skip(1);
    for parent in scope {
        let mut extensions = parent.extensions_mut();
        let life = extensions
            .get_mut::<Account>()
            .and_then(|account| account.life.as_mut());
        if let Some(life) = life {
            if life.has_tenant {
                break;
            }
            life.has_tenant = true;
            return life.place().above(parent.id());
        }
    }
    LanePlace::own(site, time)
}

/// Gives a life's place above its parent's back.
fn leave<S>(host: &Id, context: &Context<'_, S>)
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    if let Some(host) = context.span(host)
        && let Some(account) = host.extensions_mut().get_mut::<Account>()
        && let Some(life) = &mut account.life
    {
        life.has_tenant = false;
    }
}

impl<S> Layer<S> for Recorder
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    #[inline]
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let site = SITES.of(attributes.metadata());
        if !site.is_recorded() {
            return;
        }
        if self.is_plain(site) {
            thread::made(self.key(id), What::Plain(site));
        } else {
            self.open_account(site, attributes, id, &context);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.enter(id, &context, Entrance::Later);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.close(&id, &context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let site = SITES.of(span.metadata());
        if !site.is_recorded() {
            return;
        }
        fields::read(
            site,
            |visitor| values.record(visitor),
            |fields| {
                let annotations = &fields.annotations;
                let is_open = thread::keep_for_end(self.key(id), annotations);
                let mut extensions = span.extensions_mut();
                match extensions.get_mut::<Account>() {
                    Some(Account { life: Some(life), .. }) => life.late.keep(annotations),
                    // It may be entered again.
                    Some(account) if !is_open || account.times_entered > 0 => {
                        account.annotations.keep(annotations);
                    }
                    _ => {}
                }
            },
        );
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let (Some(span), Some(cause)) = (context.span(id), context.span(follows)) else {
            return;
        };
        let site = SITES.of(span.metadata());
        let listeners = site.instant().recorded_by();
        if listeners == 0 {
            return;
        }
        let waiting = span
            .extensions()
            .get::<Account>()
            .map_or(0, |account| account.flows.len());
        if waiting >= MAX_FLOWS {
            return;
        }
        // The arrow starts at an instant in the cause's slice: that itself has begun without it.
        let track = match thread::is_open(self.key(follows)) {
            true => None,
            false => match cause
                .extensions()
                .get::<Account>()
                .and_then(|account| account.life.as_ref())
            {
                Some(life) => Some(life.place().track()),
                None => return,
            },
        };
        let flow = Flow::process_scoped(unique_number());
        let parts = Parts {
            category: None,
            name: EventName::OfSite,
            track: track.as_ref().map(|track| track as &dyn TrackLike),
            timestamp: None,
        };
        let fill = Fill::new(|event: &mut EventContext<'_, '_>| {
            event.flow(flow);
        });
        emit(site.instant(), listeners, parts, &(fill, ()));
        thread::take_made(self.key(id));
        let mut extensions = span.extensions_mut();
        match extensions.get_mut::<Account>() {
            Some(account) => account.flows.push(flow),
            None => {
                extensions.insert(Account {
                    flows: vec![flow],
                    ..Account::new()
                });
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let site = SITES.of(event.metadata());
        if site.is_recorded() || site.is_log() {
            fields::read(
                site,
                |visitor| event.record(visitor),
                |fields| self.write_event(site, fields),
            );
        }
    }
}

impl Recorder {
    /// A thread enters a span of which it does not know all.
    pub(crate) fn enter<S>(&self, id: &Id, context: &Context<'_, S>, entrance: Entrance)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let key = self.key(id);
        let Some(span) = context.span(id) else { return };
        let site = SITES.of(span.metadata());
        let mut extensions = span.extensions_mut();
        let Some(account) = extensions.get_mut::<Account>() else {
            // The site's spans were as simple as can be, and this one is not.
            site.set_behaviour(Behaviour::Unknown);
            return thread::enter(key, site, SpanKind::Tracked, &Beginning::plain(self.location));
        };
        account.entered_at_once |= entrance == Entrance::AtOnce;
        account.times_entered = account.times_entered.saturating_add(1);
        if self.spans == SpanStyle::Auto && account.times_entered == 2 && account.life.is_none() {
            // The life begins when the span was made. It needs a lane of its own, because others may have been above the parent's since.
            site.set_behaviour(Behaviour::Resumed);
            account.life = Some(self.begin_life(site, LanePlace::own(site, account.made), account));
        }
        let life = account.life.as_ref();
        let is_told = life.is_some_and(|life| life.is_known_to(site.call_site.recorded_by()));
        let beginning = Beginning {
            annotations: if is_told {
                &[]
            } else {
                account.annotations.as_bytes()
            },
            flows: &account.flows,
            correlation: life.map(|life| life.correlation),
            location: self.location,
        };
        thread::enter(key, site, SpanKind::Tracked, &beginning);
        account.flows.clear();
    }

    /// A span is closed that may have an account.
    pub(crate) fn close<S>(&self, id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let Some(span) = context.span(id) else { return };
        let life = {
            // The rest goes with the span.
            let mut extensions = span.extensions_mut();
            let Some(account) = extensions.get_mut::<Account>() else {
                return;
            };
            if self.spans == SpanStyle::Auto {
                SITES.of(span.metadata()).set_behaviour(match account {
                    Account {
                        times_entered: 2.., ..
                    } => Behaviour::Resumed,
                    Account {
                        entered_at_once: true,
                        ..
                    } => Behaviour::Scoped,
                    _ => Behaviour::Unknown,
                });
            }
            account.life.take()
        };
        if let Some(host) = life.and_then(|life| life.end()) {
            leave(&host, context);
        }
    }

    #[inline(never)]
    fn open_account<S>(
        &self,
        site: &'static Site,
        attributes: &Attributes<'_>,
        id: &Id,
        context: &Context<'_, S>,
    ) where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let mut account = Account::new();
        if site.has_fields() {
            fields::read(
                site,
                |visitor| attributes.record(visitor),
                |fields| account.annotations.keep(&fields.annotations),
            );
        }
        let begins_to_live = match self.spans {
            SpanStyle::Auto => site.behaviour() == Behaviour::Resumed,
            SpanStyle::Threads => false,
            SpanStyle::Lives => true,
        };
        if begins_to_live {
            let place = place_of_new(site, id, account.made, context);
            account.life = Some(self.begin_life(site, place, &account));
        }
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(account);
        }
        // The filter has let it by.
        thread::made(self.key(id), What::Tracked);
    }

    fn write_event(&self, site: &'static Site, fields: &Fields) {
        for &(counter, number) in &fields.samples {
            if let Some(counter) = site.counters.get(counter) {
                counter.sample(number);
            }
        }
        let level = *site.metadata.level();
        let call_site = match site.is_log() && !fields.log.target.is_empty() {
            true => LOG_SITES.of(&fields.log.target, level),
            false => site.call_site,
        };
        let listeners = call_site.recorded_by();
        let message = fields.message.as_deref();
        let annotations = fields.annotations.as_bytes();
        let is_all_counters = !fields.samples.is_empty() && message.is_none() && annotations.is_empty();
        if listeners == 0 || is_all_counters {
            return;
        }
        let name = match message {
            _ if site.is_named => EventName::OfSite,
            Some(message) => EventName::Dynamic(message),
            None => EventName::Static(site.metadata.name()),
        };
        let parts = Parts {
            category: None,
            name,
            track: None,
            timestamp: None,
        };
        let fill = Fill::new(|event: &mut EventContext<'_, '_>| {
            event.encoded_annotations(annotations);
            if let Some(message) = message {
                self.write_message(site, message, event);
            }
            if self.location == Location::Told {
                match fields.log.file.as_str() {
                    "" => thread::tell_location(site, event),
                    file => {
                        event.message(TrackEvent::SOURCE_LOCATION, |location| {
                            SourceLocation::new(location)
                                .file_name(file)
                                .line_number(fields.log.line);
                        });
                    }
                }
            }
        });
        emit(call_site, listeners, parts, &(fill, ()));
    }

    fn write_message(&self, site: &Site, message: &str, event: &mut EventContext<'_, '_>) {
        // The log would tell what the config leaves out: the message is the name or, if the site has another, like an argument.
        if !event.has_dynamic_names() || site.is_named && !event.has_annotations() {
            return;
        }
        let place = (site.metadata.file(), site.metadata.line());
        match (self.messages, place) {
            (Messages::Logged, (Some(file), Some(line))) => {
                event.log_message_at(message, priority(*site.metadata.level()), file, line);
            }
            (Messages::Logged, _) => {
                event.log_message(message, priority(*site.metadata.level()));
            }
            // The name is another.
            (Messages::Named, _) if site.is_named => {
                event.annotation("message", message);
            }
            (Messages::Named, _) => {}
        }
    }
}

fn priority(level: Level) -> LogPriority {
    match level {
        Level::ERROR => LogPriority::Error,
        Level::WARN => LogPriority::Warning,
        Level::INFO => LogPriority::Info,
        Level::DEBUG => LogPriority::Debug,
        Level::TRACE => LogPriority::Verbose,
    }
}
