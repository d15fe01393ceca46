//! Tracks the data sources of a session while it records.
//!
//! The recording fills it with the changes of instances that it observes. When [`Watch::changed`] asks for it, the recording queries the service's
//! state and passes it to [`Watch::is_there`]. If an instance stops before the session was told to stop, and the state no longer has its producer,
//! the producer disconnected. The check is necessary because services also report "stopped" for an instance that was only set up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ferretto_proto::messages::TracingServiceState;
use ferretto_proto::messages::observable_events::{DataSourceInstanceState, DataSourceInstanceStateChange};

use super::evidence::{Departure, SourceOf};
use super::sources::comes_and_goes;

/// The most instances that are tracked.
const MAX_WATCHED: usize = 1 << 12;

/// The changes seen while one session records.
#[derive(Debug)]
pub(crate) struct Watch {
    span: Span,
    /// By producer and data source.
    instances: BTreeMap<(String, String), Instances>,
    /// Data sources that are offered, and the names of their producers.
    offers: BTreeMap<(i32, String), String>,
    departures: Vec<Departure>,
}

/// The instances of one data source in producers of one name.
#[derive(Debug, Default, Clone, Copy)]
struct Instances {
    running: usize,
    has_started: bool,
    /// The time at which an instance stopped or was set up, until the next query of the state.
    stopped: Option<Duration>,
}

/// The part of the session that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Span {
    /// All of it.
    All,
    /// The part from now on. Instances may have come and gone before.
    Rest,
}

/// Whether the recording should query the service's state now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// Yes: a producer may have connected or disconnected.
    WhoIsThere,
    None,
}

impl Watch {
    /// Watches a session that has not begun.
    pub(crate) fn from_the_start() -> Watch {
        Watch::over(Span::All)
    }

    /// Watches a session that somebody else has started.
    pub(crate) fn from_now_on() -> Watch {
        Watch::over(Span::Rest)
    }

    fn over(span: Span) -> Watch {
        Watch {
            span,
            instances: BTreeMap::new(),
            offers: BTreeMap::new(),
            departures: Vec::new(),
        }
    }

    /// Takes in a change of an instance, which came before anybody told the session to stop.
    pub(crate) fn changed(&mut self, change: &DataSourceInstanceStateChange, recorded: Duration) -> Question {
        let producer = change.producer_name.clone().unwrap_or_default();
        let source = change.data_source_name.clone().unwrap_or_default();
        let watched = !comes_and_goes(&source);
        let key = (producer, source);
        if self.instances.len() >= MAX_WATCHED && !self.instances.contains_key(&key) {
            return Question::None;
        }
        let is_known = self
            .offers
            .iter()
            .any(|((_, source), producer)| (producer, source) == (&key.0, &key.1));
        let instances = self.instances.entry(key.clone()).or_default();
        let started = change.state == Some(DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED);
        if started {
            instances.running += 1;
            instances.has_started = true;
            for departure in &mut self.departures {
                if departure.producer == key.0 && departure.sources.contains(&key.1) {
                    departure.back.get_or_insert(recorded);
                }
            }
        } else if instances.running > 0 {
            instances.stopped = Some(recorded);
        }
        let is_news = if started { !is_known } else { instances.running > 0 };
        match watched && is_news {
            true => Question::WhoIsThere,
            false => Question::None,
        }
    }

    /// Takes in the service's state; returns the producers that have disconnected since the last one.
    pub(crate) fn is_there(&mut self, state: &TracingServiceState) -> Vec<Departure> {
        let names: BTreeMap<i32, &str> = state
            .producers
            .iter()
            .filter_map(|producer| Some((producer.id?, producer.name.as_deref()?)))
            .collect();
        let offers: BTreeMap<(i32, String), String> = state
            .data_sources
            .iter()
            .filter_map(|offer| {
                let id = offer.producer_id?;
                let source = offer.ds_descriptor.name.clone()?;
                Some(((id, source), (*names.get(&id)?).to_owned()))
            })
            .filter(|((_, source), _)| !comes_and_goes(source))
            .take(MAX_WATCHED)
            .collect();
        let mut gone: Vec<Departure> = Vec::new();
        for ((id, source), producer) in &self.offers {
            let key = (producer.clone(), source.clone());
            let Some(instances) = self.instances.get_mut(&key) else {
                continue;
            };
            let Some(at) = instances
                .stopped
                .filter(|_| !offers.contains_key(&(*id, source.clone())))
            else {
                continue;
            };
            instances.running = instances.running.saturating_sub(1);
            match gone.iter_mut().find(|departure| departure.producer == *producer) {
                Some(departure) => departure.sources.push(source.clone()),
                None => gone.push(Departure {
                    producer: producer.clone(),
                    sources: vec![source.clone()],
                    after: Some(at),
                    back: None,
                }),
            }
        }
        for instances in self.instances.values_mut() {
            instances.stopped = None;
        }
        self.offers = offers;
        let room = MAX_WATCHED.saturating_sub(self.departures.len());
        self.departures.extend(gone.iter().take(room).cloned());
        gone
    }

    /// Whether an instance of this data source ever existed; `None` if it may have existed before the watch began.
    pub(super) fn was_offered(&self, source: &str) -> Option<bool> {
        let known = self.instances.keys().any(|(_, name)| name == source);
        (known || self.span == Span::All).then_some(known)
    }

    /// Whether an instance of this data source ever started; `None` if it may have started before the watch began.
    pub(super) fn has_started(&self, source: &str) -> Option<bool> {
        let mut all = self.instances.iter();
        let known = all.any(|((_, name), instances)| name == source && instances.has_started);
        (known || self.span == Span::All).then_some(known)
    }

    /// Returns the data sources with instances, none of which has started.
    pub(crate) fn not_started(&self) -> Vec<SourceOf> {
        let waiting = self
            .instances
            .iter()
            .filter(|(_, instances)| !instances.has_started);
        waiting
            .map(|((producer, source), _)| SourceOf {
                source: source.clone(),
                producer: producer.clone(),
            })
            .collect()
    }

    /// Returns the producers that disconnected while the session recorded them.
    pub(super) fn departures(&self) -> &[Departure] {
        &self.departures
    }
}

/// Returns the names of data sources in order, without repetitions.
pub(super) fn unique(names: impl IntoIterator<Item = String>) -> Vec<String> {
    names.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}
