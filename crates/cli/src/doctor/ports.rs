//! Checks whether the TCP ports that the UI uses are free, and otherwise names the processes that use them.
//!
//! [`examine`](super::examine) calls it. It reads the kernel's tables, and opens no port.

use super::System;
use super::finding::Finding;
use crate::machine::{Listening, listening, user_name, with_socket};
use crate::websocket_bridge::UI_PORT;

/// Returns the findings about both ports.
pub(super) fn examine(system: &System<'_>) -> Vec<Finding> {
    let mut free = Vec::new();
    let mut findings = Vec::new();
    for port in [crate::open::PORT, UI_PORT] {
        match listening(system.machine, port) {
            None => free.push(port.to_string()),
            Some(listening) => findings.push(taken(system, port, &listening)),
        }
    }
    if !free.is_empty() {
        let ports = match free.len() {
            1 => format!("port {} is free", free[0]),
            _ => format!("ports {} are free", free.join(" and ")),
        };
        findings.insert(
            0,
            Finding::ok("ui", format!("{ports} for the UI's pages to talk to")),
        );
    }
    findings
}

fn taken(system: &System<'_>, port: u16, listening: &Listening) -> Finding {
    let holder = with_socket(system.machine, listening.inode);
    let by = match &holder {
        Some(holder) => holder.to_string(),
        None => format!("a process of {}", user_name(system.machine, listening.uid)),
    };
    // The kernel cuts names of processes off after fifteen bytes.
    if port == UI_PORT
        && holder
            .as_ref()
            .is_some_and(|holder| "websocket_bridge".starts_with(&holder.name))
    {
        return Finding::ok(
            "ui",
            format!("{by} listens on port {port}: the UI can record on this machine"),
        );
    }
    let costs = match port {
        UI_PORT => "the UI cannot record here: it looks for websocket_bridge at that port",
        _ => "`ferretto open` has to wait: the UI fetches traces from that port only",
    };
    let finding = Finding::note("ui", format!("port {port} is taken by {by}")).costs(costs);
    match holder {
        Some(holder) => {
            let command = format!("kill {}", holder.pid);
            finding.mend(match listening.uid == system.identity.uid {
                true => command,
                false => system.identity.as_root(&command),
            })
        }
        None => finding.mend(system.identity.as_root(&format!("ss -ltnp 'sport = :{port}'"))),
    }
}
