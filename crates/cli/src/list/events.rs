//! `ferretto list events`: the kernel events in tracefs.
//!
//! [`run`](super::run) calls it. It needs no service, but access to tracefs.

use ferretto_probes::ftrace::tracefs::{Tracefs, TracefsError};
use ferretto_probes::ftrace::typed;
use serde_json::json;

use super::Listing;
use super::pattern::Patterns;
use crate::config::surroundings::events_of_kernel;
use crate::stdout::{Column, Table};

pub(super) fn list(patterns: &Patterns) -> Result<Listing, String> {
    let tracefs = Tracefs::find().map_err(explained)?;
    let kernel = events_of_kernel(&tracefs).map_err(explained)?;
    let mut table = Table::new([Column::text("EVENT"), Column::text("ENCODING")]);
    let mut events = Vec::new();
    for (group, names) in &kernel {
        for name in names.iter().filter(|name| patterns.want_event(group, name)) {
            let encoding = match typed::find(group, name) {
                Some(_) => "typed",
                None => "generic",
            };
            table.row([format!("{group}/{name}").as_str(), encoding]);
            events.push(json!({ "group": group, "name": name, "encoding": encoding }));
        }
    }
    Ok(Listing {
        table,
        below: None,
        json: json!({ "tracefs": tracefs.root().display().to_string(), "events": events }),
        notes: Vec::new(),
    })
}

/// Formats an error, with a command that may help.
fn explained(error: TracefsError) -> String {
    match error {
        TracefsError::Denied { .. } => format!("{error}\nAs root: `sudo ferretto list events`"),
        error => error.to_string(),
    }
}
