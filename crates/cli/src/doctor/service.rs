//! Checks the tracing service: its sockets, the process that listens there, its state, and other services that may run.
//!
//! [`examine`](super::examine) calls it first, because other checks need the service's state. It asks only the service that recordings would use.

use ferretto_daemons::GROUP;
use ferretto_ipc::Address;
use ferretto_ipc::socket_names::{CONSUMER_SOCK_NAME, PRODUCER_SOCK_NAME};
use ferretto_ipc::transport::PeerCredentials;
use ferretto_proto::messages::TracingServiceState;

use super::finding::Finding;
use crate::figures::Counted;
use crate::machine::{Access, Answer, Machine, Owner};
use crate::machine::{Holder, all_processes, process_named, with_socket};
use crate::machine::{Identity, user_name};

/// The default sockets of services: for consumers and for producers.
const USUAL: [(&str, &str); 2] = [
    (
        "/run/perfetto/traced-consumer.sock",
        "/run/perfetto/traced-producer.sock",
    ),
    ("/tmp/perfetto-consumer", "/tmp/perfetto-producer"),
];
/// `__SO_ACCEPTCON` in `linux/net.h`: the socket listens.
const LISTENS: u32 = 1 << 16;
/// The most names that are listed.
const LISTED: usize = 6;

/// Asks the service that recordings would use. Returns its state, if it has one, and the findings.
pub(super) fn examine(
    machine: &dyn Machine,
    identity: &Identity,
) -> (Option<Box<TracingServiceState>>, Vec<Finding>) {
    let search = Search { machine, identity };
    let address = match machine.consumer_address() {
        Ok(address) => address,
        Err(error) => {
            let finding =
                Finding::problem("service", error.to_string()).mend(format!("unset {}", error.variable));
            return (None, vec![finding]);
        }
    };
    let (state, mut findings) = match machine.ask(&address) {
        Answer::Service { state, listener } => {
            let mut findings = vec![search.running(&address, &state, listener)];
            findings.extend(search.data_sources(&state));
            findings.extend(search.producer_sockets(&address));
            findings.extend(search.unconnected_probes(&state));
            (Some(state), findings)
        }
        Answer::Absent => {
            let mut findings = vec![search.none(&address, "")];
            findings.extend(search.private_service());
            (None, findings)
        }
        Answer::Stale => {
            let mut findings = vec![search.none(&address, ", only the socket of one that has ended")];
            findings.extend(search.immovable(&address));
            findings.extend(search.private_service());
            (None, findings)
        }
        Answer::Denied => (None, vec![search.denied(&address)]),
        Answer::Useless(reason) => (None, vec![search.useless(&address, &reason)]),
    };
    findings.extend(search.elsewhere(&address));
    (state, findings)
}

struct Search<'a> {
    machine: &'a dyn Machine,
    identity: &'a Identity,
}

impl Search<'_> {
    fn running(
        &self,
        address: &Address,
        state: &TracingServiceState,
        listener: Option<PeerCredentials>,
    ) -> Finding {
        let who = match listener {
            Some(PeerCredentials { uid, pid }) => {
                let process = pid.and_then(|pid| process_named(self.machine, pid));
                let process = process.map_or("somebody".to_owned(), |process| process.to_string());
                format!("{process} of {}", user_name(self.machine, uid))
            }
            None => "somebody".to_owned(),
        };
        let version = state.tracing_service_version.as_deref().unwrap_or("no version");
        let started = state.num_sessions_started.unwrap_or(0);
        let sessions = match started {
            0 => "records nothing now".to_owned(),
            _ => format!(
                "{} recording",
                Counted(u64::try_from(started).unwrap_or(0), "session")
            ),
        };
        Finding::ok("service", format!("{who} at {address}: {version}; {sessions}"))
    }

    /// Checks the data sources that the service offers.
    fn data_sources(&self, state: &TracingServiceState) -> Vec<Finding> {
        let mut names: Vec<&str> = state
            .data_sources
            .iter()
            .filter_map(|source| source.ds_descriptor.name.as_deref())
            .collect();
        names.sort_unstable();
        names.dedup();
        // Sources with checks of their own (`linux.…`) come first, because the end of the list may be cut.
        names.sort_by_key(|name| !name.starts_with("linux."));
        let more = if names.len() > LISTED { ", …" } else { "" };
        let shown: Vec<_> = names.iter().take(LISTED).copied().collect();
        let offered = format!(
            "{} with {}: {}{more}",
            Counted(state.producers.len() as u64, "producer"),
            Counted(names.len() as u64, "data source"),
            shown.join(", ")
        );
        if names.contains(&"linux.ftrace") {
            return vec![Finding::ok("sources", offered)];
        }
        let what = match names.is_empty() {
            true => "no producer is connected to the service".to_owned(),
            false => format!("{offered}; but not linux.ftrace"),
        };
        vec![
            Finding::note("sources", what)
                .costs("no kernel events, and no processes or counters unless they are listed here")
                .mend(self.ours_as_root("traced_probes")),
        ]
    }

    /// Returns the paths of listening sockets in the file system, with their inodes.
    fn listening(&self) -> Vec<(String, u64)> {
        // `Num RefCount Protocol Flags Type St Inode Path`, as net/unix/af_unix.c prints it.
        let table = self.machine.read("/proc/net/unix").unwrap_or_default();
        table
            .lines()
            .filter_map(|line| {
                let mut fields = line.split_ascii_whitespace();
                let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
                let inode = fields.nth(2)?.parse().ok()?;
                let path = fields.next()?.to_owned();
                (flags & LISTENS != 0).then_some((path, inode))
            })
            .collect()
    }

    fn listener_at(&self, path: &str) -> Option<u64> {
        let listening = self.listening();
        listening
            .into_iter()
            .find(|(at, _)| at == path)
            .map(|(_, inode)| inode)
    }

    /// Checks whether programs find the same service as consumers.
    fn producer_sockets(&self, consumers: &Address) -> Vec<Finding> {
        const COSTS: &str = "programs cannot bring their own events";
        let addresses = match self.machine.producer_addresses() {
            Ok(addresses) => addresses,
            Err(error) => {
                let finding = Finding::note("producers", error.to_string()).costs(COSTS);
                return vec![finding.mend(format!("unset {}", error.variable))];
            }
        };
        // The table covers only our network namespace. A service in another namespace answers, but the table lacks it.
        let listed = |path: &str| self.listener_at(path).is_some();
        let is_listed = listed(&consumers.to_string());
        let mut findings = Vec::new();
        for path in addresses
            .iter()
            .filter_map(Address::path)
            .map(|path| path.display().to_string())
        {
            if self.machine.owner(&path).is_err() || is_listed && !listed(&path) {
                let what = format!("the service is there, but nobody listens for producers at {path}");
                findings.push(Finding::note("producers", what).costs(COSTS).mend(format!(
                    "env | grep -e {CONSUMER_SOCK_NAME} -e {PRODUCER_SOCK_NAME}"
                )));
            } else if self.machine.allows(&path, Access::Write).is_err() {
                findings.push(
                    Finding::note("producers", format!("{path} is closed to this user"))
                        .costs("programs of this user cannot bring their own events")
                        .mend(self.opened_to_producers(&path)),
                );
            }
        }
        findings
    }

    /// Returns the command that lets this user join the group to which a socket is open.
    fn joined(&self, path: &str) -> Option<String> {
        const GROUP_WRITES: u32 = 0o020;
        self.identity.join_group(self.machine, path, GROUP_WRITES)
    }

    /// Returns the command that lets this user offer data. The service trusts no producer, so everybody may.
    fn opened_to_producers(&self, path: &str) -> String {
        self.joined(path)
            .unwrap_or_else(|| format!("sudo chmod o+rw {path}"))
    }

    /// Returns the commands that let this user record. A user who records sees the activity of all processes, so the socket is opened to a group.
    fn opened_to_consumers(&self, path: &str) -> Vec<String> {
        if let Some(join) = self.joined(path) {
            return vec![join];
        }
        vec![
            format!("sudo groupadd --system --force {GROUP}"),
            format!("sudo usermod -aG {GROUP} $USER"),
            format!("sudo chgrp {GROUP} {path}"),
            format!("sudo chmod 0660 {path}"),
        ]
    }

    /// Returns the command that starts an applet as root in the background.
    fn ours_as_root(&self, applet: &str) -> String {
        let command = format!("{} {applet} --background", self.machine.program());
        self.identity.as_root(&command)
    }

    /// Finds probes that are connected to another service or to none. Does nothing if the service already has `linux.ftrace`.
    fn unconnected_probes(&self, state: &TracingServiceState) -> Option<Finding> {
        let mut sources = state.data_sources.iter();
        if sources.any(|source| source.ds_descriptor.name.as_deref() == Some("linux.ftrace")) {
            return None;
        }
        let connected = |pid: i32| state.producers.iter().any(|producer| producer.pid == Some(pid));
        let stray = self.first_named("traced_probes", |pid| !connected(pid))?;
        let socket = self.machine.producer_addresses().ok()?.first()?.to_string();
        Some(
            Finding::note(
                "probes",
                format!("{stray} runs, but is not connected to this service"),
            )
            .costs("its data sources are not in recordings")
            .mend(format!(
                "kill {}; {}",
                stray.pid,
                self.identity.as_root(&format!(
                    "{PRODUCER_SOCK_NAME}={socket} {} traced_probes --background",
                    self.machine.program()
                ))
            )),
        )
    }

    /// Returns the first process of this name, except those that a recording has started for itself.
    fn first_named(&self, name: &str, wanted: impl Fn(i32) -> bool) -> Option<Holder> {
        let started_for_a_recording = |pid: i32| {
            let environment = self
                .machine
                .read(&format!("/proc/{pid}/environ"))
                .unwrap_or_default();
            environment
                .split('\0')
                .any(|variable| variable.starts_with(ferretto_daemons::starter::STARTED_BY))
        };
        all_processes(self.machine)
            .into_iter()
            .filter(|pid| wanted(*pid))
            .filter_map(|pid| process_named(self.machine, pid))
            .find(|process| process.name == name && !started_for_a_recording(process.pid))
    }

    /// Finds a service that listens at unusual sockets. Only root can see which process owns a socket.
    fn private_service(&self) -> Option<Finding> {
        let service = self.first_named("traced", |_| true)?;
        let folder = format!("/proc/{}/fd", service.pid);
        let open: Vec<String> = self
            .machine
            .list(&folder)
            .unwrap_or_default()
            .iter()
            .filter_map(|fd| self.machine.link(&format!("{folder}/{fd}")).ok())
            .collect();
        let sockets: Vec<String> = self
            .listening()
            .into_iter()
            .filter(|(_, inode)| open.contains(&format!("socket:[{inode}]")))
            .map(|(path, _)| path)
            .filter(|path| {
                USUAL
                    .iter()
                    .all(|(consumer, producer)| path != consumer && path != producer)
            })
            .collect();
        if sockets.is_empty() {
            return None;
        }
        let finding = Finding::note(
            "service",
            format!("{service} runs, but listens at {}", sockets.join(", ")),
        )
        .costs("nothing here asks it, and the data of its clients is not in recordings");
        let named = |what: &str| sockets.iter().find(|path| path.contains(what));
        Some(match (named("consumer"), named("producer")) {
            (Some(consumer), Some(producer)) => finding.mend(variables(consumer, producer)),
            _ => finding,
        })
    }

    fn none(&self, address: &Address, stale: &str) -> Finding {
        Finding::note(
            "service",
            format!(
                "none listens at {address}{stale}; `ferretto` starts its own for the time of a recording"
            ),
        )
        .costs("`perfetto`, and programs that bring their own events, need one that stays")
        .mend(self.ours_as_root("traced"))
        .mend(self.ours_as_root("traced_probes"))
    }

    /// Finds a socket file that a new service of this user cannot replace. In folders like `/tmp`, only its owner may remove it.
    fn immovable(&self, address: &Address) -> Option<Finding> {
        const STICKY: u32 = 0o1000;
        let path = address.path()?;
        let owner = self.machine.owner(&path.display().to_string()).ok()?;
        let folder = self.machine.owner(&path.parent()?.display().to_string()).ok()?;
        let may_remove = self.identity.is_root()
            || owner.uid == self.identity.uid
            || folder.uid == self.identity.uid
            || folder.mode & STICKY == 0;
        (!may_remove).then(|| {
            Finding::note(
                "sockets",
                format!(
                    "{} is left over from a service of {}",
                    path.display(),
                    user_name(self.machine, owner.uid)
                ),
            )
            .costs("this user cannot start a service there")
            .mend(format!("sudo rm {}", path.display()))
        })
    }

    fn denied(&self, address: &Address) -> Finding {
        let path = address.to_string();
        let whose = match self.machine.owner(&path) {
            Ok(Owner { uid, mode, .. }) => {
                format!("it belongs to {} (mode {mode:04o})", user_name(self.machine, uid))
            }
            Err(error) => error.to_string(),
        };
        let finding = Finding::problem("service", format!("this user may not connect to {path}: {whose}"));
        self.opened_to_consumers(&path)
            .into_iter()
            .fold(finding, Finding::mend)
    }

    fn useless(&self, address: &Address, reason: &str) -> Finding {
        let finding = Finding::problem(
            "service",
            format!("somebody listens at {address} but gave no answer that could be used: {reason}"),
        );
        let holder = self
            .listener_at(&address.to_string())
            .and_then(|inode| with_socket(self.machine, inode));
        match holder {
            Some(holder) => finding.mend(
                self.identity
                    .as_root(&format!("kill {}  # {}", holder.pid, holder.name)),
            ),
            None if self.machine.variable(CONSUMER_SOCK_NAME).is_some() => {
                finding.mend(format!("unset {CONSUMER_SOCK_NAME}"))
            }
            None => finding,
        }
    }

    /// Finds services at the other usual sockets, which recordings do not use.
    fn elsewhere(&self, address: &Address) -> Vec<Finding> {
        let asked = address.to_string();
        USUAL
            .iter()
            .filter(|(consumer, _)| *consumer != asked)
            .filter_map(|(consumer, producer)| {
                let inode = self.listener_at(consumer)?;
                let who = with_socket(self.machine, inode)
                    .map_or("a service".to_owned(), |holder| holder.to_string());
                let what = format!("{who} listens at {consumer}, too");
                let note = |what| {
                    Finding::note("service", what)
                        .costs("nothing here asks it, and the data of its clients is not in recordings")
                };
                Some(match self.machine.allows(consumer, Access::Write) {
                    Ok(()) => note(what).mend(variables(consumer, producer)),
                    Err(_) => note(format!("{what}, closed to this user")),
                })
            })
            .collect()
    }
}

/// Returns the command that makes programs use the service at these sockets.
fn variables(consumer: &str, producer: &str) -> String {
    format!("export {CONSUMER_SOCK_NAME}={consumer} {PRODUCER_SOCK_NAME}={producer}")
}
