//! `ferretto list categories`: the categories of track events that connected programs have registered with the service.
//!
//! [`run`](super::run) calls it. It asks the running service, and fails without one.

use std::collections::BTreeMap;

use ferretto_proto::messages::tracing_service_state::Producer;
use serde_json::json;

use super::Listing;
use super::pattern::Patterns;
use crate::figures::Counted;
use crate::running::ask_service;
use crate::service_state::json::producer as producer_json;
use crate::stdout::{Column, Table};

/// The most producers of a category whose names are shown; the others are counted.
const NAMED: usize = 2;

pub(super) fn list(patterns: &Patterns) -> Result<Listing, String> {
    let running = ask_service()?;
    // Several programs may describe the same category differently.
    let mut categories: BTreeMap<(&str, &[String], &str), Vec<&Producer>> = BTreeMap::new();
    for source in &running.state.data_sources {
        let producer = running.producer(source.producer_id);
        for category in &source.ds_descriptor.track_event_descriptor.available_categories {
            let name = category.name.as_deref().unwrap_or_default();
            let of_producer = producer.and_then(|producer| producer.name.as_deref());
            let tags = category.tags.iter().map(String::as_str);
            if patterns.want(std::iter::once(name).chain(tags).chain(of_producer)) {
                let description = category.description.as_deref().unwrap_or_default();
                let producers = categories
                    .entry((name, category.tags.as_slice(), description))
                    .or_default();
                producers.extend(producer);
            }
        }
    }
    let mut table = Table::new([
        Column::text("CATEGORY"),
        Column::text("TAGS"),
        Column::text("PRODUCER"),
        Column::text("DESCRIPTION"),
    ]);
    let mut objects = Vec::new();
    for ((name, tags, description), mut producers) in categories {
        // One program may have two data sources with the same categories.
        producers.sort_by_key(|producer| producer.id);
        producers.dedup_by_key(|producer| producer.id);
        table.row([name, &tags.join(","), &named(&producers), description]);
        objects.push(json!({
            "name": name,
            "tags": tags,
            "description": (!description.is_empty()).then_some(description),
            "producers": producers.iter().map(|producer| producer_json(producer)).collect::<Vec<_>>(),
        }));
    }
    let mut notes = Vec::new();
    if table.is_empty() && patterns.are_none() {
        notes.push(format!(
            "of {} none has told of a category; programs do when they are connected and have the data source track_event",
            Counted(running.state.producers.len() as u64, "connected producer")
        ));
    }
    Ok(Listing {
        table,
        below: None,
        json: json!({ "service": running.state.tracing_service_version, "categories": objects }),
        notes,
    })
}

fn named(producers: &[&Producer]) -> String {
    let name = |producer: &&Producer| {
        let name = producer.name.as_deref().unwrap_or_default();
        format!("{name} ({})", producer.pid.unwrap_or(0))
    };
    match producers {
        [] => "-".to_owned(),
        few if few.len() <= NAMED => few.iter().map(name).collect::<Vec<_>>().join(", "),
        [first, rest @ ..] => format!("{} and {} more", name(first), rest.len()),
    }
}
