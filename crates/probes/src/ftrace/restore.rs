//! Leaves tracefs as it was found: on exit, and after a crash.
//!
//! Ftrace is global state of the machine. Upstream's probes reset it to fixed defaults when the last session ends. This
//! module puts back the state that it found. `super::control` makes all its changes through `Restorer`, which reads the
//! old value, writes it to a `journal`, and only then makes the change. The journal is deleted once everything is put back.
//! A journal without a living owner is therefore a crashed daemon's, and [`replay`] puts back its entries. The command line
//! calls `replay` when it starts `traced_probes`, and [`hard_reset`] after it for `--cleanup-after-crash` and
//! `--reset-ftrace`.
//!
//! Others may change the same files while a session runs, and are likely to after a crash. So a setting is put back only if
//! it still has the value that this program gave it. If somebody else is tracing by then, nothing is done that would cost
//! them events: the clock, the buffers' sizes and the tracer stay as they are, and recording may be switched on but not off.
//! After a crash the whole journal is discarded in that case.
//!
//! Two things cannot be put back: the events that were in the buffers (changing the clock or a size loses them in any
//! case), and the unexpanded state of a buffer that nobody had used yet.

pub(crate) mod journal;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use journal::{Journal, Record};
pub use journal::{JournalDir, JournalError};

use super::tracefs::{self, EventName, MOUNT_POINTS, Recording, Setting, Tracefs, TracefsError};
use super::watch::look::{FileUser, openers};

/// All changes that are not yet put back. The daemon builds it record by record, and [`replay`] does the same from a journal.
#[derive(Debug, Default)]
struct Changes {
    /// Values before the first change, in the order of first changes.
    found: Vec<(Setting, String)>,
    /// Values after the last change; `None` while a change is under way.
    left: BTreeMap<Setting, Option<String>>,
    /// Events that were recorded before the first change.
    events_there: BTreeSet<EventName>,
    /// The events of `events_there` that were switched off.
    events_found: BTreeSet<EventName>,
    /// Events that were switched on.
    events_on: BTreeSet<EventName>,
    /// Probes that were made, named `group/function`.
    kprobes: BTreeSet<EventName>,
}

impl Changes {
    fn apply(&mut self, record: Record) {
        match record {
            Record::Found(setting, value) => match self.found.iter_mut().find(|(found, _)| *found == setting)
            {
                // Somebody else gave the setting another value in between.
                Some(known) => known.1 = value,
                None => self.found.push((setting, value)),
            },
            Record::Changing(setting) => {
                self.left.insert(setting, None);
            }
            Record::Left(setting, value) => {
                self.left.insert(setting, Some(value));
            }
            Record::EventsThere(events) => self.events_there.extend(events),
            Record::EventsFound(events) => self.events_found.extend(events),
            Record::EventsOn(events) => self.events_on.extend(events),
            Record::EventOff(event) => {
                self.events_on.remove(&event);
            }
            Record::KprobeAdded(probe) => {
                self.kprobes.insert(probe);
            }
        }
    }

    fn found(&self, setting: &Setting) -> Option<&str> {
        self.found
            .iter()
            .find(|(found, _)| found == setting)
            .map(|(_, value)| value.as_str())
    }

    /// Whether `setting` still has the value that this program gave it. If the daemon died during a change, the change counts
    /// as made.
    fn looks_as_left(&self, tracefs: &Tracefs, setting: &Setting) -> bool {
        // With this option, the kernel itself keeps that list up to date.
        let fork = Setting::Option("event-fork".to_owned());
        let follows_forks = self
            .left
            .get(&fork)
            .is_some_and(|left| left.as_deref() == Some("1"));
        match self.left.get(setting) {
            _ if *setting == Setting::EventPids && follows_forks => true,
            None | Some(None) => true,
            Some(Some(left)) => tracefs.get(setting).is_ok_and(|now| now == *left),
        }
    }

    /// The sign that somebody else is tracing in the directory, if there is one.
    fn somebody_else(&self, tracefs: &Tracefs) -> Option<String> {
        let tracer = tracefs.get(&Setting::CurrentTracer).unwrap_or_default();
        let known = [
            self.found(&Setting::CurrentTracer),
            self.left.get(&Setting::CurrentTracer).and_then(Option::as_deref),
        ];
        if !tracer.is_empty() && tracer != "nop" && !known.contains(&Some(tracer.as_str())) {
            return Some(format!("current_tracer is `{tracer}`"));
        }
        let left_off = self.left.get(&Setting::TracingOn) == Some(&Some("0".to_owned()));
        if left_off && tracefs.recording().is_ok_and(|now| now == Recording::On) {
            return Some("recording is on again".to_owned());
        }
        let recorded = tracefs.enabled_events().unwrap_or_default();
        let is_known = |event: &EventName| {
            [&self.events_on, &self.events_there, &self.events_found]
                .iter()
                .any(|events| events.contains(event))
        };
        if let Some(event) = recorded.iter().find(|event| !is_known(event)) {
            return Some(format!("{event} is recorded"));
        }
        let taker = openers(tracefs.root()).into_iter().find(FileUser::takes_events)?;
        Some(format!("{} has {} open", taker.who(), taker.file))
    }

    fn is_empty(&self) -> bool {
        self.found.is_empty()
            && self.events_found.is_empty()
            && self.events_on.is_empty()
            && self.kprobes.is_empty()
    }
}

/// Changes one tracefs directory so that it can be put back.
#[derive(Debug)]
pub(crate) struct Restorer {
    tracefs: Tracefs,
    changes: Changes,
    journal_dir: Option<JournalDir>,
    journal: Option<Journal>,
    journal_error: Option<JournalError>,
    /// Whether the events that were on before the first change have been noted.
    knows_events_there: bool,
}

impl Restorer {
    /// Restores `tracefs` on exit, and with a `journal_dir` also after a crash.
    pub(crate) fn new(tracefs: Tracefs, journal_dir: Option<JournalDir>) -> Self {
        Restorer {
            tracefs,
            changes: Changes::default(),
            journal_dir,
            journal: None,
            journal_error: None,
            knows_events_there: false,
        }
    }

    /// The directory, for reading.
    pub(crate) fn tracefs(&self) -> &Tracefs {
        &self.tracefs
    }

    /// Why the last changes are not in a journal. Returned once; recording goes on without it.
    pub(crate) fn take_journal_error(&mut self) -> Option<JournalError> {
        self.journal_error.take()
    }

    /// The value that `setting` had before the first change.
    pub(crate) fn found(&self, setting: &Setting) -> Option<&str> {
        self.changes.found(setting)
    }

    /// The value that `setting` had after the last change; `None` if there was no change.
    pub(crate) fn left(&self, setting: &Setting) -> Option<&str> {
        self.changes.left.get(setting)?.as_deref()
    }

    /// Whether nobody else has changed `setting` since.
    pub(crate) fn looks_as_left(&self, setting: &Setting) -> bool {
        self.changes.looks_as_left(&self.tracefs, setting)
    }

    fn record(&mut self, record: Record) {
        if !std::mem::replace(&mut self.knows_events_there, true) {
            let there = self.tracefs.enabled_events().unwrap_or_default();
            if !there.is_empty() {
                self.record(Record::EventsThere(there.into_iter().collect()));
            }
        }
        if self.journal.is_none()
            && let Some(dir) = &self.journal_dir
        {
            match Journal::create(dir, self.tracefs.root()) {
                Ok(journal) => self.journal = Some(journal),
                Err(error) => {
                    self.journal_error = Some(error);
                    // Another attempt at each record would fail for the same reason.
                    self.journal_dir = None;
                }
            }
        }
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.append(&record)
        {
            self.journal_error = Some(error);
        }
        self.changes.apply(record);
    }

    /// Changes `setting` and remembers its old value.
    ///
    /// # Errors
    /// If the setting cannot be read or written.
    pub(crate) fn set(&mut self, setting: &Setting, value: &str) -> Result<(), TracefsError> {
        let remembered = self.remember(setting)?;
        for setting in &remembered {
            self.record(Record::Changing(setting.clone()));
        }
        let result = self.tracefs.set(setting, value);
        self.confirm(&remembered);
        result
    }

    /// Adds to the list of `setting` and remembers the old list.
    ///
    /// # Errors
    /// If the setting cannot be read or written.
    pub(crate) fn append(&mut self, setting: &Setting, value: &str) -> Result<(), TracefsError> {
        let remembered = self.remember(setting)?;
        self.record(Record::Changing(setting.clone()));
        let result = self.tracefs.append(&setting.file(), value);
        self.confirm(&remembered);
        result
    }

    /// Records the found value of `setting` at its first change. Returns the settings that the change affects.
    fn remember(&mut self, setting: &Setting) -> Result<Vec<Setting>, TracefsError> {
        let mut remembered = vec![setting.clone()];
        if *setting == Setting::BufferSizeKb {
            let per_cpu = |changes: &Changes| -> Vec<Setting> {
                let found = changes.found.iter().map(|(setting, _)| setting);
                found
                    .filter(|setting| matches!(setting, Setting::CpuBufferSizeKb(_)))
                    .cloned()
                    .collect()
            };
            remembered.extend(per_cpu(&self.changes));
            if remembered.len() > 1 {
                remembered.remove(0);
                return Ok(remembered);
            }
            let shown = self.tracefs.get(setting)?;
            if self.found(setting).is_none() && shown.parse::<u64>().is_err() {
                // `X`: the CPUs have different sizes.
                for cpu in self.tracefs.cpus()? {
                    let setting = Setting::CpuBufferSizeKb(cpu);
                    let value = self.tracefs.get(&setting)?;
                    self.record(Record::Found(setting, value));
                }
                return Ok(per_cpu(&self.changes));
            }
        }
        // Somebody else has set a new value meanwhile: this value is put back later.
        if self.found(setting).is_none() || !self.looks_as_left(setting) {
            let value = self.tracefs.get(setting)?;
            self.record(Record::Found(setting.clone(), value));
        }
        Ok(remembered)
    }

    /// Records the values that the kernel made of a change: it rounds sizes, for instance.
    fn confirm(&mut self, settings: &[Setting]) {
        for setting in settings {
            if let Ok(value) = self.tracefs.get(setting) {
                self.record(Record::Left(setting.clone(), value));
            }
        }
    }

    /// Switches off every event that somebody else had left on.
    ///
    /// # Errors
    /// If the list of events cannot be read, or an event cannot be switched off.
    pub(crate) fn disable_all_events(&mut self) -> Result<(), TracefsError> {
        let mut found = self.tracefs.enabled_events()?;
        found.retain(|event| !self.changes.events_on.contains(event));
        if !found.is_empty() {
            self.record(Record::EventsFound(found.into_iter().collect()));
        }
        self.tracefs.disable_all_events()
    }

    /// Starts recording `events`. Returns the events that could not be started, with the reason.
    pub(crate) fn enable_events(&mut self, events: &[EventName]) -> Vec<(EventName, TracefsError)> {
        let enabled = |event: &EventName| self.tracefs.event_enabled(event).unwrap_or(false);
        let to_start: Vec<EventName> = events.iter().filter(|event| !enabled(event)).cloned().collect();
        if to_start.is_empty() {
            return Vec::new();
        }
        self.record(Record::EventsOn(to_start.clone()));
        let mut failed = Vec::new();
        for event in to_start {
            if let Err(error) = self.tracefs.set_event(&event, Recording::On) {
                self.record(Record::EventOff(event.clone()));
                failed.push((event, error));
            }
        }
        failed
    }

    /// Stops recording `event`, if it was started here.
    ///
    /// # Errors
    /// If the event cannot be switched off.
    pub(crate) fn disable_event(&mut self, event: &EventName) -> Result<(), TracefsError> {
        if !self.changes.events_on.contains(event) {
            return Ok(());
        }
        self.tracefs.set_event(event, Recording::Off)?;
        self.record(Record::EventOff(event.clone()));
        Ok(())
    }

    /// The events that were started here and have not been stopped since.
    pub(crate) fn events_on(&self) -> impl Iterator<Item = &EventName> {
        self.changes.events_on.iter()
    }

    /// Makes the probe that `definition` describes (the syntax of `Documentation/trace/kprobetrace.rst`) as the event
    /// `probe`. Takes over an existing probe of that name.
    ///
    /// # Errors
    /// If the kernel refuses the probe.
    pub(crate) fn add_kprobe(&mut self, probe: &EventName, definition: &str) -> Result<(), TracefsError> {
        self.record(Record::KprobeAdded(probe.clone()));
        // All instances share one list, at the top.
        match self.tracefs.top().append("kprobe_events", definition) {
            Err(error) if error.kind() == Some(std::io::ErrorKind::AlreadyExists) => Ok(()),
            result => result,
        }
    }

    /// Puts everything back as it was found. Returns the errors. All raw buffers must be closed by now.
    pub(crate) fn restore(&mut self) -> Vec<TracefsError> {
        let errors = match self.changes.is_empty() {
            true => Vec::new(),
            false => {
                let changes = std::mem::take(&mut self.changes);
                let somebody_else = changes.somebody_else(&self.tracefs);
                put_back(&self.tracefs, &changes, somebody_else.as_deref())
            }
        };
        self.knows_events_there = false;
        // A journal exists even if all changes have been undone since.
        if let Some(journal) = self.journal.take() {
            journal.delete();
        }
        errors
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Puts back the settings that still look as this program left them. If there is `somebody_else`, skips the settings that
/// would cost them events.
fn put_back(tracefs: &Tracefs, changes: &Changes, somebody_else: Option<&str>) -> Vec<TracefsError> {
    let mut errors = Vec::new();
    let mut note = |result: Result<(), TracefsError>| {
        if let Err(error) = result {
            errors.push(error);
        }
    };
    let is_due = |setting: &Setting| {
        (somebody_else.is_none() || !costs_events(setting)) && changes.looks_as_left(tracefs, setting)
    };
    let tracing_on = changes
        .found(&Setting::TracingOn)
        .filter(|_| changes.looks_as_left(tracefs, &Setting::TracingOn));
    let may_pause = tracing_on.is_some() && somebody_else.is_none();
    // If somebody has changed these settings, the buffers hold that program's events.
    let buffers_are_ours = [Setting::TraceClock, Setting::BufferSizeKb]
        .iter()
        .all(|setting| changes.looks_as_left(tracefs, setting));

    // The order: recording stops, then the events go off, then the settings that decide how events are recorded change.
    // Changing current_tracer or the clock under a running recording would mix two kinds of data in one buffer.
    if may_pause {
        note(tracefs.set(&Setting::TracingOn, "0"));
    }
    for event in &changes.events_on {
        // A module that has been unloaded took its events along.
        if tracefs.has_event(event) {
            note(tracefs.set_event(event, Recording::Off));
        }
    }
    for (setting, value) in changes.found.iter().rev() {
        if *setting != Setting::TracingOn
            && is_due(setting)
            && tracefs.get(setting).ok().as_ref() != Some(value)
        {
            note(tracefs.set(setting, value));
        }
    }
    // The buffers still hold events that were recorded for sessions that have ended.
    if may_pause && buffers_are_ours {
        match tracefs.clear_buffers() {
            Ok(not_cleared) => not_cleared.into_iter().for_each(|error| note(Err(error))),
            Err(error) => note(Err(error)),
        }
    }
    for probe in &changes.kprobes {
        if tracefs.has_event(probe) {
            note(tracefs.top().append("kprobe_events", &format!("-:{probe}")));
        }
    }
    for event in &changes.events_found {
        if tracefs.has_event(event) {
            note(tracefs.set_event(event, Recording::On));
        }
    }
    // Switching on costs nobody events. Another program that records now may have found recording on, before it was switched
    // off here.
    if let Some(value) = tracing_on.filter(|found| may_pause || *found == "1") {
        note(tracefs.set(&Setting::TracingOn, value));
    }
    errors
}

/// Whether a change of `setting` loses events.
fn costs_events(setting: &Setting) -> bool {
    matches!(
        setting,
        Setting::TraceClock | Setting::BufferSizeKb | Setting::CpuBufferSizeKb(_) | Setting::CurrentTracer
    )
}

/// The result of [`replay`] for one journal.
#[derive(Debug)]
pub struct Replayed {
    /// The journal.
    pub journal: PathBuf,
    /// The tracefs directory of the journal.
    pub tracefs: PathBuf,
    /// Why nothing was put back: somebody else is tracing there.
    pub somebody_else: Option<String>,
    /// The errors. If tracefs itself was not reachable, the journal is kept for the next start.
    pub errors: Vec<TracefsError>,
}

/// How long [`replay`] waits for another daemon that puts back. That daemon may hang or be stopped.
const REPLAY_PATIENCE: Duration = Duration::from_secs(10);

/// Puts back the changes of crashed daemons, as their journals in `dir` list them. Afterwards no other daemon is still
/// putting back either: tracefs has its state from before the crash.
///
/// # Errors
/// If the journals cannot be listed, or another daemon has been putting back for too long.
pub fn replay(dir: &JournalDir) -> Result<Vec<Replayed>, JournalError> {
    let _one_at_a_time = dir.lock(REPLAY_PATIENCE)?;
    let mut replayed = Vec::new();
    for orphan in dir.orphans()? {
        if !orphan.is_of_this_boot() {
            orphan.delete();
            continue;
        }
        let mut changes = Changes::default();
        let root = orphan.root().to_owned();
        // An instance that was removed took all its settings along.
        let instances = root.parent().filter(|parent| parent.ends_with("instances"));
        if instances.is_some_and(Path::is_dir) && !root.exists() {
            orphan.delete();
            continue;
        }
        match Tracefs::at(&root) {
            Ok(tracefs) => {
                orphan.records().for_each(|record| changes.apply(record));
                let somebody_else = changes.somebody_else(&tracefs);
                let errors = match &somebody_else {
                    Some(_) => Vec::new(),
                    None => put_back(&tracefs, &changes, None),
                };
                replayed.push(Replayed {
                    journal: orphan.path().to_owned(),
                    tracefs: root,
                    somebody_else,
                    errors,
                });
                orphan.delete();
            }
            Err(error) => {
                replayed.push(Replayed {
                    journal: orphan.path().to_owned(),
                    tracefs: root,
                    somebody_else: None,
                    errors: vec![error],
                });
            }
        }
    }
    Ok(replayed)
}

/// The last resort: resets the top instance of tracefs to an idle state without knowing its earlier state. Returns the
/// directory that was reset.
///
/// # Errors
/// If tracefs is not mounted, or recording cannot be stopped.
pub fn hard_reset() -> Result<PathBuf, TracefsError> {
    let mut last_error = None;
    for mount_point in MOUNT_POINTS {
        match Tracefs::at(mount_point).and_then(|tracefs| reset_one(&tracefs)) {
            Ok(()) => return Ok(Path::new(mount_point).to_owned()),
            Err(TracefsError::NotMounted) => {}
            Err(error) => last_error = Some(error),
        }
    }
    Err(tracefs::absence(last_error))
}

fn reset_one(tracefs: &Tracefs) -> Result<(), TracefsError> {
    let required = [
        tracefs.write("tracing_on", "0"),
        tracefs.write("buffer_size_kb", "4"),
    ];
    // These files need not exist or be writable everywhere, and no failure is a reason to stop.
    for (file, value) in [
        ("events/enable", "0"),
        ("events/raw_syscalls/filter", "0"),
        ("current_tracer", "nop"),
    ] {
        let _ = tracefs.write(file, value);
    }
    required.into_iter().chain([tracefs.truncate("trace")]).collect()
}

#[cfg(test)]
mod tests;
