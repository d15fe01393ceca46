//! Reports the findings of [`crate::ftrace::watch`] to every session of the directory, and to the producer.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use super::{FtraceController, Instance, Session};
use crate::ftrace::control::FtraceSessionId;
use crate::ftrace::reader::CpuBuffer;
use crate::ftrace::tracefs::Setting;
use crate::ftrace::watch::look::{
    describe_openers, describe_writers, events_read, look, openers, traceoff_trigger, watched_files,
    watched_settings,
};
use crate::ftrace::watch::writers::Writers;
use crate::ftrace::watch::{Depth, Finding};
use ferretto_client::runtime::probe::BootTime;

/// Time between regular looks, at least.
const LOOK_PERIOD: BootTime = 1_000_000_000;
/// Sentences that a session is told at most: somebody may flip a switch any number of times.
pub(super) const MOST_TOLD: usize = 40;
/// Events whose filters are watched, at most: each filter is a file to read when a session starts and ends.
const MOST_FILTERS: usize = 200;

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// The session asked for something that is now missing.
    Trouble,
    /// Something changed because somebody configured it that way.
    Remark,
}

/// The changes that others made to ftrace while a session recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incident {
    /// The session whose recording it concerns.
    pub session: FtraceSessionId,
    /// When it was noticed.
    pub noticed: BootTime,
    /// See [`Weight`].
    pub weight: Weight,
    /// A sentence for the trace.
    pub text: String,
}

impl Instance {
    /// Watches for writes. To be called before recording starts. The switches of events follow right after the start: a
    /// change that is made and undone in between is not noticed.
    pub(super) fn watch_writers(&mut self) {
        if self.writers.is_none() {
            let tracefs = self.control.tracefs();
            let files = watched_files(tracefs, self.control.exclusive_settings());
            self.writers = Writers::new(tracefs.root(), files);
        }
    }

    /// Takes the present state as the expected one. Called after changes by this program, and when the first session
    /// starts. Changes that others made before stay findings.
    pub(super) fn expect_what_is_there(&mut self, now: BootTime) {
        let is_first = self.watch.is_none();
        let watch = self.watch.get_or_insert_default();
        let tracefs = self.control.tracefs();
        let events = self.control.switchable_events();
        let mut settings = watched_settings();
        settings.extend_from_slice(self.control.exclusive_settings());
        settings.extend(
            events
                .iter()
                .take(MOST_FILTERS)
                .cloned()
                .map(Setting::EventFilter),
        );
        // An event that the kernel does not list, although it could be switched on, cannot be watched.
        let listed = tracefs.listed_events().unwrap_or_default();
        let is_watchable = |event: &_| watch.expects_event(event) || listed.contains(event);
        if let Some(writers) = &mut self.writers {
            writers.follow_events(&events);
        }
        watch.expect_events(events.into_iter().filter(is_watchable).collect(), now);
        // With this option the kernel itself adds and removes threads.
        let follows_forks = tracefs
            .get(&Setting::Option("event-fork".to_owned()))
            .is_ok_and(|value| value == "1");
        if follows_forks {
            settings.retain(|setting| !matches!(setting, Setting::EventPids | Setting::UnwantedPids));
        }
        for setting in settings {
            match self.control.left(&setting) {
                Some(value) if watch.expected(&setting) == Some(value) => {}
                Some(value) => watch.expect(setting.clone(), value.to_owned(), now),
                None if watch.expected(&setting).is_some() => {}
                None => {
                    if let Ok(value) = tracefs.get(&setting) {
                        watch.expect(setting, value, now);
                    }
                }
            }
        }
        if is_first {
            let counted = events_read(tracefs, self.buffers.iter().map(CpuBuffer::cpu));
            watch.expect_buffers(&counted, now);
            self.next_look = now + LOOK_PERIOD;
        }
    }

    /// How much a drain looks at.
    pub(super) fn depth_of_drain(&mut self, now: BootTime) -> Depth {
        if now < self.next_look {
            return Depth::Quick;
        }
        self.next_look = now + LOOK_PERIOD;
        Depth::Regular
    }
}

impl FtraceController {
    /// The changes to ftrace since the last call.
    pub(crate) fn take_incidents(&mut self) -> Vec<Incident> {
        std::mem::take(&mut self.incidents)
    }

    /// Looks at the settings, before the buffers are read.
    pub(super) fn look_at_settings(&mut self, name: &str, depth: Depth, now: BootTime) {
        let Some(instance) = self.instances.get_mut(name) else {
            return;
        };
        let Some(watch) = &mut instance.watch else { return };
        if let Some(writers) = &mut instance.writers {
            watch.wrote(writers.written());
        }
        let tracefs = instance.control.tracefs();
        let settings = watch.settings_to_look_at(depth);
        let mut shown = look(tracefs, &settings, depth);
        if let Some(recorded) = &shown.events {
            let off = watch.newly_off(recorded);
            shown.gone = off
                .into_iter()
                .filter(|event| !tracefs.has_event(event))
                .collect();
        }
        let findings = watch.see(&shown, now);
        self.report(name, findings, now);
    }

    /// Looks at the buffers' counters, after the buffers were read.
    pub(super) fn look_at_buffers(&mut self, name: &str, depth: Depth, now: BootTime) {
        let Some(instance) = self.instances.get_mut(name) else {
            return;
        };
        let Some(watch) = &mut instance.watch else { return };
        if depth != Depth::Quick {
            let cpus = instance.buffers.iter().map(CpuBuffer::cpu);
            let counted: BTreeMap<u32, u64> = events_read(instance.control.tracefs(), cpus);
            let findings = watch.see_buffers(&counted, depth, now);
            self.report(name, findings, now);
        }
    }

    fn report(&mut self, name: &str, findings: Vec<Finding>, now: BootTime) {
        let Some(instance) = self.instances.get_mut(name).filter(|_| !findings.is_empty()) else {
            return;
        };
        let root = instance.control.tracefs().root().to_owned();
        // Others may have written between the last question and the look that found this.
        if let (Some(watch), Some(writers)) = (&mut instance.watch, &mut instance.writers) {
            watch.wrote(writers.written());
        }
        let guess = LazyCell::new(|| describe_openers(&openers(&root)));
        for finding in findings {
            let writers = instance.watch.as_mut().map(|watch| watch.writers(&finding));
            let writers = writers.unwrap_or_default();
            let who = LazyCell::new(|| match describe_writers(&writers) {
                _ if finding.is_complete() => String::new(),
                known if known.is_empty() => guess.clone(),
                known => known,
            });
            let somebody_listens = instance
                .started
                .iter()
                .filter_map(|id| self.sessions.get(id))
                .any(|session| session.told < MOST_TOLD);
            let mut trigger = None;
            match &finding {
                Finding::Changed {
                    setting: setting @ Setting::TracingOn,
                    ..
                } if writers.is_empty() && somebody_listens => {
                    trigger = traceoff_trigger(instance.control.tracefs());
                    if let (Some(_), Some(watch)) = (&trigger, &mut instance.watch) {
                        watch.excuse(setting);
                    }
                }
                Finding::Changed {
                    setting: Setting::TraceClock,
                    ..
                }
                | Finding::ChangedBack {
                    setting: Setting::TraceClock,
                    ..
                } => instance.control.follow_clock(),
                _ => {}
            }
            for id in &instance.started {
                let Some(session) = self.sessions.get_mut(id) else {
                    continue;
                };
                let Some(sentence) = finding.sentence(session.started, &session.recorded, &root) else {
                    continue;
                };
                // Finding out who did it takes time, so it is done only if somebody is told.
                session.tell(*id, now, &mut self.incidents, || match &trigger {
                    Some(file) => (
                        Weight::Remark,
                        format!("{sentence}; the command traceoff in {file} may have done it"),
                    ),
                    None => (Weight::Trouble, format!("{sentence}{}.", *who)),
                });
            }
        }
    }

    /// Tells every session that records from the instance.
    pub(super) fn tell_sessions(&mut self, name: &str, now: BootTime, weight: Weight, text: &str) {
        let Some(instance) = self.instances.get(name) else {
            return;
        };
        for id in &instance.started {
            if let Some(session) = self.sessions.get_mut(id) {
                session.tell(*id, now, &mut self.incidents, || (weight, text.to_owned()));
            }
        }
    }
}

impl Session {
    /// Tells the producer, and also the trace if it is a trouble. Does not call `what` if the session has been told enough.
    pub(super) fn tell(
        &mut self,
        id: FtraceSessionId,
        now: BootTime,
        incidents: &mut Vec<Incident>,
        what: impl FnOnce() -> (Weight, String),
    ) {
        if self.told == MOST_TOLD {
            return;
        }
        self.told += 1;
        let (weight, text) = match self.told {
            MOST_TOLD => (
                Weight::Trouble,
                "More happened to ftrace than is told here.".to_owned(),
            ),
            _ => what(),
        };
        if weight == Weight::Trouble {
            self.troubles.push(text.clone());
        }
        incidents.push(Incident {
            session: id,
            noticed: now,
            weight,
            text,
        });
    }
}
