//! The TCP ports that the UI knows: whether they are free, and who has them.
//!
//! `/proc/net/tcp` and `tcp6` list sockets as `sl local_address rem_address st … uid timeout inode`, with addresses in hexadecimal
//! (`Documentation/networking/proc_net_tcp.rst`).

use super::System;
use super::finding::Finding;
use super::identity::user_name;
use super::machine::Machine;
use super::processes::{Holder, with_socket};
use crate::websocket_bridge::UI_PORT;

/// `TCP_LISTEN` in `net/tcp_states.h`.
const LISTENING: &str = "0A";

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listening {
    uid: u32,
    inode: u64,
}

/// Who listens on this port of 127.0.0.1, or of all addresses.
pub(super) fn listening(machine: &dyn Machine, port: u16) -> Option<Listening> {
    const LOOPBACK: [&str; 2] = ["0100007F", "7F000001"];
    let serves_loopback = |address: &str| {
        // 127.0.0.1 in either byte order, also as an IPv6 address, or any address.
        address.bytes().all(|digit| digit == b'0')
            || LOOPBACK.iter().any(|loopback| {
                address == *loopback
                    || address.len() == 32 && address.ends_with(loopback) && address.contains("FFFF")
            })
    };
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let table = machine.read(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (address, at) = fields.get(1)?.split_once(':')?;
            let here = u16::from_str_radix(at, 16).ok()? == port && serves_loopback(address);
            (here && *fields.get(3)? == LISTENING).then_some(())?;
            Some(Listening {
                uid: fields.get(7)?.parse().ok()?,
                inode: fields.get(9)?.parse().ok()?,
            })
        })
    })
}

/// Who has this port of 127.0.0.1, if we may know.
pub(super) fn holder(machine: &dyn Machine, port: u16) -> Option<Holder> {
    with_socket(machine, listening(machine, port)?.inode)
}

/// Both ports.
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
    // Which cuts names after fifteen bytes.
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
