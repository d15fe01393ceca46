//! `ferretto list sources`: the data sources that producers offer to the running service.
//!
//! [`run`](super::run) calls it. Without a service it lists the sources that a service of our own would have.

use ferretto_proto::messages::tracing_service_state::{DataSource, Producer};
use serde_json::json;

use super::Listing;
use super::pattern::Patterns;
use crate::config::surroundings::Offers;
use crate::machine::{ThisMachine, user_name};
use crate::running::{Asked, Found, Running, ask};
use crate::service_state::json::producer as producer_json;
use crate::service_state::other_machine;
use crate::stdout::{Column, Table};

pub(super) fn list(patterns: &Patterns) -> Result<Listing, String> {
    let Asked { address, found } = ask()?;
    match found {
        Found::Service(running) => Ok(sources_of(&running, patterns)),
        Found::Silent(reason) => Err(reason),
        Found::Nobody | Found::LeftOver => {
            let mut listing = of_own_probes(patterns);
            listing.notes.push(format!(
                "no tracing service listens at {address}; these are the data sources of the one that `ferretto` starts for a \
                 recording"
            ));
            Ok(listing)
        }
    }
}

/// Lists the data sources of a running service.
fn sources_of(running: &Running, patterns: &Patterns) -> Listing {
    let mut wanted: Vec<(&DataSource, Option<&Producer>)> = running
        .state
        .data_sources
        .iter()
        .map(|source| (source, running.producer(source.producer_id)))
        .filter(|(source, producer)| {
            let of_producer = producer.and_then(|producer| producer.name.as_deref());
            patterns.want(
                source
                    .ds_descriptor
                    .name
                    .as_deref()
                    .into_iter()
                    .chain(of_producer),
            )
        })
        .collect();
    wanted.sort_by_key(|(source, producer)| {
        let pid = producer.and_then(|producer| producer.pid);
        (source.ds_descriptor.name.clone(), pid)
    });
    let mut table = table(
        wanted
            .iter()
            .any(|(_, producer)| producer.and_then(other_machine).is_some()),
    );
    let mut sources = Vec::new();
    for (source, producer) in wanted {
        let name = source.ds_descriptor.name.as_deref().unwrap_or_default();
        table.of(name, producer);
        let descriptor = &source.ds_descriptor;
        sources.push(json!({
            "name": name,
            "producer": producer.map(producer_json),
            "will_notify_on_start": descriptor.will_notify_on_start.unwrap_or(false),
            "will_notify_on_stop": descriptor.will_notify_on_stop.unwrap_or(false),
            "handles_incremental_state_clear": descriptor.handles_incremental_state_clear.unwrap_or(false),
            "track_event_categories": descriptor.track_event_descriptor.available_categories.len(),
        }));
    }
    Listing {
        table: table.table,
        below: None,
        json: json!({ "service": running.state.tracing_service_version, "sources": sources }),
        notes: Vec::new(),
    }
}

/// Lists the data sources that a service of our own would have.
fn of_own_probes(patterns: &Patterns) -> Listing {
    let mut table = table(false);
    let mut sources = Vec::new();
    for source in Offers::of_own_probes().sources {
        if patterns.want([source.name.as_str()]) {
            table.of(&source.name, None);
            sources.push(json!({
                "name": source.name,
                "producer": null,
                "will_notify_on_start": null,
                "will_notify_on_stop": null,
                "handles_incremental_state_clear": null,
                "track_event_categories": null,
            }));
        }
    }
    Listing {
        table: table.table,
        below: None,
        json: json!({ "service": null, "sources": sources }),
        notes: Vec::new(),
    }
}

struct Sources {
    table: Table,
    machines: bool,
}

/// Makes the table. It has a column of machines only if there are others than this one.
fn table(machines: bool) -> Sources {
    let mut columns = vec![
        Column::text("SOURCE"),
        Column::text("PRODUCER"),
        Column::number("PID"),
        Column::text("USER"),
    ];
    if machines {
        columns.push(Column::text("MACHINE"));
    }
    Sources {
        table: Table::new(columns),
        machines,
    }
}

impl Sources {
    fn of(&mut self, name: &str, producer: Option<&Producer>) {
        let none = || "-".to_owned();
        let of = |told: fn(&Producer) -> Option<String>| producer.and_then(told).unwrap_or_else(none);
        let mut cells = vec![
            name.to_owned(),
            of(|producer| producer.name.clone()),
            of(|producer| producer.pid.map(|pid| pid.to_string())),
            of(|producer| {
                let uid = u32::try_from(producer.uid?).ok()?;
                Some(user_name(&ThisMachine, uid))
            }),
        ];
        if self.machines {
            cells.push(of(other_machine));
        }
        self.table.row(cells);
    }
}
