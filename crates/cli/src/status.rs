//! `ferretto status`: reports the running tracing service, its clients and sessions, and the users of ftrace.
//!
//! [`applet`](crate::applet) calls it. It changes nothing and judges nothing; `ferretto doctor` does the latter. Exit codes are those of service
//! managers (LSB, `systemctl status`): 0 if a service runs, 3 if none does, 4 if that is unknown; 1 for other failures, 2 for a wrong command line.

use std::ffi::OsString;
use std::fmt::Write;

use clap::Command;
use ferretto_probes::ftrace::tracefs::Tracefs;
use ferretto_proto::messages::tracing_service_state::Producer;
use serde_json::{Value, json};

use crate::config::advice::known_sources::FTRACE;
use crate::figures::Counted;
use crate::list::{Listing, Patterns, sessions_of};
use crate::machine::{FtraceUse, Holder, ThisMachine, all_processes, process_named, user_name};
use crate::running::{Asked, Found, Running, ask};
use crate::service_state::json::producer as producer_json;
use crate::service_state::other_machine;
use crate::stderr;
use crate::stdout::{Column, Screen, Table, harmless, json_flag, print, print_json};
use crate::usage;

/// The name in its messages.
const NAME: &str = "ferretto status";
const RUNNING: u8 = 0;
const FAILURE: u8 = 1;
const NOT_RUNNING: u8 = 3;
const NOT_KNOWN: u8 = 4;

/// The width of the column of topics.
const TOPIC: usize = 11;

pub(crate) fn command() -> Command {
    Command::new("status")
        .bin_name(NAME)
        .about("Says whether a service runs, who is connected, what it records, who uses ftrace")
        .long_about(
            "Says on one screen whether a tracing service runs, which producers are connected to it, which sessions it runs, whether \
             the probes of this machine are there, and who uses ftrace at the moment. It changes nothing.",
        )
        .after_help(
            "Exit status:\n  0  a tracing service runs\n  1  it cannot be said\n  2  a flag makes no sense\n  3  none runs\n  4  \
             somebody listens but does not answer, or not to this user",
        )
        .arg(json_flag())
}

/// Runs the applet with the arguments after its name; returns the exit code.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let matches = match usage::matches(NAME, command(), words) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    let said = ask().and_then(|asked| {
        let status = Status::look(asked);
        match matches.get_flag("json") {
            true => print_json(&status.json()),
            false => print(status.text(Screen::look()).as_bytes()),
        }?;
        Ok(match status.asked.found {
            Found::Service(_) => RUNNING,
            Found::Nobody | Found::LeftOver => NOT_RUNNING,
            Found::Silent(_) => NOT_KNOWN,
        })
    });
    said.unwrap_or_else(|problem| {
        stderr::say(NAME, &problem);
        FAILURE
    })
}

/// Everything that is reported.
struct Status {
    asked: Asked,
    /// The sessions, if the service reports them.
    sessions: Option<Listing>,
    /// Daemons that do not belong to this service.
    strangers: Vec<Holder>,
    /// The folder of tracefs and the state of ftrace, or the reason why they are unknown.
    ftrace: Result<(String, FtraceUse), String>,
}

impl Status {
    fn look(asked: Asked) -> Status {
        let (sessions, known) = match &asked.found {
            Found::Service(running) => (
                sessions_of(&running.state, &Patterns::default()).ok(),
                known_processes(running),
            ),
            _ => (None, Vec::new()),
        };
        let daemons = all_processes(&ThisMachine)
            .into_iter()
            .filter_map(|pid| process_named(&ThisMachine, pid))
            .filter(|process| matches!(process.name.as_str(), "traced" | "traced_probes"));
        let ftrace = Tracefs::find().map_err(|error| error.to_string()).map(|tracefs| {
            let root = tracefs.root().display().to_string();
            let seen = FtraceUse::look(&ThisMachine, &root);
            (root, seen)
        });
        Status {
            sessions,
            strangers: daemons.filter(|daemon| !known.contains(&daemon.pid)).collect(),
            ftrace,
            asked,
        }
    }

    fn running(&self) -> Option<&Running> {
        match &self.asked.found {
            Found::Service(running) => Some(running),
            _ => None,
        }
    }

    /// Returns the producer that offers this machine's kernel events.
    fn probes(&self) -> Option<&Producer> {
        let running = self.running()?;
        let mut sources = running.state.data_sources.iter();
        sources
            .find(|source| source.ds_descriptor.name.as_deref() == Some(FTRACE))
            .and_then(|source| running.producer(source.producer_id))
    }

    fn json(&self) -> Value {
        let running = self.running();
        let producers = running.map_or(Vec::new(), |running| {
            let producers = running.state.producers.iter();
            producers
                .map(|producer| {
                    let mut told = producer_json(producer);
                    told["sources"] = json!(sources(running, producer));
                    told
                })
                .collect()
        });
        let problem = match &self.asked.found {
            Found::Silent(reason) => Some(reason),
            _ => None,
        };
        let process = |process: &Holder| json!({ "name": process.name, "pid": process.pid });
        json!({
            "running": match self.asked.found {
                Found::Service(_) => Some(true),
                Found::Nobody | Found::LeftOver => Some(false),
                Found::Silent(_) => None,
            },
            "address": self.asked.address.to_string(),
            "problem": problem,
            "service": running.map(|running| json!({
                "version": running.state.tracing_service_version,
                "pid": running.listener.and_then(|listener| listener.pid),
                "uid": running.listener.map(|listener| listener.uid),
            })),
            "probes": self.probes().map(|probes| json!({ "name": probes.name, "pid": probes.pid })),
            "producers": producers,
            "sessions": self.sessions.as_ref().map(|sessions| &sessions.json["sessions"]),
            "sessions_of_others": self.sessions.as_ref().map(|sessions| &sessions.json["sessions_of_others"]),
            "other_daemons": self.strangers.iter().map(process).collect::<Vec<_>>(),
            "ftrace": self.ftrace.as_ref().ok().map(|(root, seen)| json!({
                "tracefs": root,
                "tracer": seen.tracer,
                "events": seen.events,
                "instances": seen.instances,
                "readers": seen.readers.iter().map(|reader| json!({
                    "name": reader.process.name, "pid": reader.process.pid, "instance": reader.instance,
                })).collect::<Vec<_>>(),
            })),
            "ftrace_problem": self.ftrace.as_ref().err(),
        })
    }

    fn text(&self, screen: Screen) -> String {
        let mut page = Page::new(screen);
        let address = &self.asked.address;
        match &self.asked.found {
            Found::Service(running) => {
                page.topic("service", &format!("{} at {address}", listener(running)));
                let version = running.state.tracing_service_version.as_deref();
                page.more(version.unwrap_or("without a version"));
            }
            Found::Nobody => page.topic("service", &format!("none listens at {address}")),
            Found::LeftOver => page.topic(
                "service",
                &format!("none listens at {address}, only the socket of one that has ended"),
            ),
            Found::Silent(reason) => page.topic("service", reason),
        }
        match (self.probes(), self.running()) {
            (Some(probes), _) => page.topic("probes", &process_of(probes)),
            (None, Some(_)) => page.topic("probes", &format!("not connected: nobody offers {FTRACE}")),
            (None, None) => {}
        }
        if !self.strangers.is_empty() {
            let strangers: Vec<String> = self.strangers.iter().map(ToString::to_string).collect();
            page.topic("others", &strangers.join(", "));
            page.more("not of this service: of another one, or of a recording of `ferretto`");
        }
        match &self.ftrace {
            Ok((_, seen)) => page.ftrace(seen),
            Err(reason) => page.topic("ftrace", &format!("not known: {reason}")),
        }
        if let Some(running) = self.running() {
            page.producers(running);
        }
        if let Some(sessions) = &self.sessions {
            page.sessions(sessions);
        }
        page.text
    }
}

/// Returns the processes of a service and its producers.
fn known_processes(running: &Running) -> Vec<i32> {
    let producers = running.state.producers.iter().filter_map(|producer| producer.pid);
    let listener = running.listener.and_then(|listener| listener.pid);
    producers.chain(listener).collect()
}

/// Describes the process that listens.
fn listener(running: &Running) -> String {
    let Some(listener) = running.listener else {
        return "running".to_owned();
    };
    let user = user_name(&ThisMachine, listener.uid);
    let process = listener.pid.and_then(|pid| process_named(&ThisMachine, pid));
    match process {
        Some(process) => format!("{process} of {user}"),
        None => format!("running, of {user}"),
    }
}

fn process_of(producer: &Producer) -> String {
    let pid = producer.pid.unwrap_or(0);
    match process_named(&ThisMachine, pid) {
        Some(process) if other_machine(producer).is_none() => process.to_string(),
        _ => format!("{} (pid {pid})", producer.name.as_deref().unwrap_or_default()),
    }
}

/// Returns the names of a producer's data sources.
fn sources<'a>(running: &'a Running, producer: &Producer) -> Vec<&'a str> {
    let sources = running.state.data_sources.iter();
    let mut names: Vec<&str> = sources
        .filter(|source| source.producer_id == producer.id)
        .filter_map(|source| source.ds_descriptor.name.as_deref())
        .collect();
    names.sort_unstable();
    names
}

/// The output, as it is written.
struct Page {
    screen: Screen,
    text: String,
}

impl Page {
    fn new(screen: Screen) -> Page {
        Page {
            screen,
            text: String::new(),
        }
    }

    fn topic(&mut self, topic: &str, what: &str) {
        let _ = write!(self.text, "{}", self.screen.bold(&format!("{topic:<TOPIC$}")));
        let mut lines = what.lines();
        let _ = writeln!(self.text, "{}", harmless(lines.next().unwrap_or_default()));
        lines.for_each(|line| self.more(line));
    }

    /// Adds a line that continues the one before.
    fn more(&mut self, what: &str) {
        let _ = writeln!(self.text, "{:TOPIC$}{}", "", harmless(what));
    }

    fn ftrace(&mut self, seen: &FtraceUse) {
        let mut lines = Vec::new();
        for reader in &seen.readers {
            let whose = match &reader.instance {
                Some(instance) => format!("the buffers of the instance {instance}"),
                None => "the kernel's buffers".to_owned(),
            };
            lines.push(format!("{} reads {whose}", reader.process));
        }
        if let Some(tracer) = &seen.tracer {
            lines.push(format!("the tracer {tracer} is on"));
        }
        match seen.events.as_slice() {
            [] => {}
            [one] => lines.push(format!("{one} is on")),
            [first, rest @ ..] => lines.push(format!(
                "{first} and {} are on",
                Counted(rest.len() as u64, "more event")
            )),
        }
        if lines.is_empty() {
            lines.push("free".to_owned());
        }
        if !seen.instances.is_empty() {
            lines.push(format!("instances: {}", seen.instances.join(", ")));
        }
        self.topic("ftrace", &lines.join("\n"));
    }

    fn producers(&mut self, running: &Running) {
        let producers = &running.state.producers;
        self.topic(
            "producers",
            &match producers.len() {
                0 => "none is connected".to_owned(),
                count => format!("{} connected", Counted(count as u64, "process")),
            },
        );
        let mut table = Table::new([
            Column::number("PID"),
            Column::text("USER"),
            Column::text("PRODUCER"),
            Column::text("SOURCES"),
        ]);
        for producer in producers {
            let uid = producer.uid.and_then(|uid| u32::try_from(uid).ok());
            let mut name = producer.name.clone().unwrap_or_default();
            if let Some(machine) = other_machine(producer) {
                let _ = write!(name, " on {machine}");
            }
            table.row([
                producer.pid.unwrap_or(0).to_string(),
                uid.map_or("-".to_owned(), |uid| user_name(&ThisMachine, uid)),
                name,
                sources(running, producer).join(", "),
            ]);
        }
        self.table(&table);
    }

    fn sessions(&mut self, sessions: &Listing) {
        let none = sessions.table.is_empty();
        self.topic("sessions", if none { "none runs" } else { "these run:" });
        self.table(&sessions.table);
        for note in &sessions.notes {
            self.more(note);
        }
    }

    fn table(&mut self, table: &Table) {
        self.text.push_str(&table.print(self.screen));
        if !table.is_empty() {
            self.text.push('\n');
        }
    }
}
