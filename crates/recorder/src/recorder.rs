//! The recorder as a state machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use crate::counters::Counters;
use crate::limiter::Limiter;
use crate::name::{FileName, Reason, SessionName};
use crate::settings::Settings;
use crate::shelf::{Room, Shelf};
use crate::supervisor::Supervisor;

/// The most files that are written at the same time. Clones are copies of buffers in the service, so this bounds its memory too.
const MOST_AT_ONCE: usize = 4;
/// The most requests that wait for room.
const MOST_WAITING: usize = 64;
/// The state file is written at most once in this time.
const SAVE_PERIOD: Duration = Duration::from_secs(1);
/// How often to look whether a full disk has room again, and to try again to seal what is left of a ring.
const ROOM_PERIOD: Duration = Duration::from_secs(10);
/// How long the clock on the wall has to go on without a step forward before files are deleted for their age. A clock that is wrong for a moment, as it may
/// be after a start of the machine, costs no file then.
const STEADY: Duration = Duration::from_secs(600);
/// The clock on the wall is set forward if it gains so many milliseconds at once. Corrections without a step are smaller.
const STEP: i64 = 1000;

/// The time and the room on the disk, when something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Since any fixed moment, on a clock that never goes back.
    pub monotonic: Duration,
    /// Milliseconds since 1970.
    pub wall: i64,
    /// The bytes that the recorder may still put on the disk.
    pub free: u64,
}

/// The number of a request to seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SealId(pub u64);

/// The origin of a request to seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A trigger or a condition, whose number is limited.
    Machine,
    /// Somebody who waits for the file.
    Person,
}

/// A seal to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The request.
    pub id: SealId,
    /// The name of the file, which is free.
    pub file: FileName,
    /// The most bytes that the file may have.
    pub most: u64,
}

/// A written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its size.
    pub bytes: u64,
    /// Whether it ends before the last packet, because there was no room for more.
    pub is_cut: bool,
}

/// The reason why there is no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The same reason has had its share of files.
    Limited,
    /// The session is being sealed for this reason already.
    UnderWay,
    /// The session does not run.
    NotRunning,
    /// Neither the quota nor the disk has the room.
    NoRoom,
    /// Too many requests wait.
    Crowded,
    /// It was tried, and failed for this reason.
    Failed(String),
}

impl Refusal {
    /// Returns one word for it, for counters.
    pub fn word(&self) -> &'static str {
        match self {
            Refusal::Limited => "limited",
            Refusal::UnderWay => "under_way",
            Refusal::NotRunning => "not_running",
            Refusal::NoRoom => "no_room",
            Refusal::Crowded => "crowded",
            Refusal::Failed(_) => "failed",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Limited => "this reason has had its share of files (burst and period in the settings)",
            Refusal::UnderWay => "it is being sealed for this reason already",
            Refusal::NotRunning => "the session does not run",
            Refusal::NoRoom => {
                "its buffers have no room: raise quota in the settings, make the buffers smaller, or free some of the disk"
            }
            Refusal::Crowded => "too many requests wait already",
            Refusal::Failed(reason) => reason,
        })
    }
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There is a file.
    Sealed {
        /// Its name.
        file: FileName,
        /// Its contents.
        written: Written,
    },
    /// There is none.
    Refused(Refusal),
}

/// Something for the driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the session; report its end with [`Recorder::session_ended`].
    Start(SessionName),
    /// Stop the session, which has no place any more. Nothing is to be reported.
    Stop(SessionName),
    /// Seal; report the end with [`Recorder::seal_ended`] in any case, also if the session or the thread that seals ends before: until then the room is
    /// reserved, and further requests for the session wait.
    Seal(Order),
    /// Delete a file; report the end with [`Recorder::removed`].
    Remove(FileName),
    /// Tell the program that asked.
    Tell(SealId, Outcome),
    /// Write the state file.
    Save,
}

#[derive(Debug)]
struct Session {
    supervisor: Supervisor,
    /// The room that a file of it needs.
    room: u64,
    /// The room of its ring on the disk, if it has one.
    ring: u64,
}

/// A request without an outcome.
#[derive(Debug)]
struct Request {
    file: FileName,
    source: Source,
}

impl Request {
    /// Whether it is to seal this running session.
    fn is_of(&self, session: &SessionName) -> bool {
        self.source == Source::Session && self.file.session == *session
    }
}

/// The source of a file's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The running session.
    Session,
    /// The ring of an earlier run.
    Leftover {
        bytes: u64,
        /// When it may be sealed: later than now if that has failed.
        from: Duration,
    },
}

/// The recorder.
#[derive(Debug)]
pub struct Recorder {
    sessions: BTreeMap<SessionName, Session>,
    shelf: Shelf,
    keep: Option<Duration>,
    burst: u32,
    period: Duration,
    limiters: BTreeMap<(SessionName, Reason), Limiter>,
    counters: Counters,
    next: u64,
    waiting: VecDeque<(SealId, Request)>,
    under_way: BTreeMap<SealId, Request>,
    actions: VecDeque<Action>,
    is_changed: bool,
    /// When the state file may be written again.
    save_from: Duration,
    /// How far the clock on the wall was ahead of the other clock the last time.
    ahead: Option<i64>,
    /// Since when the clock on the wall has not been set forward.
    steady_since: Duration,
}

impl Recorder {
    /// A recorder without sessions, with these sealed files and the counters of the state file.
    pub fn new(
        settings: &Settings,
        files: impl IntoIterator<Item = (FileName, u64)>,
        counters: Counters,
    ) -> Recorder {
        Recorder {
            sessions: BTreeMap::new(),
            shelf: Shelf::new(settings.quota, files),
            keep: settings.keep,
            burst: settings.burst,
            period: settings.period,
            limiters: BTreeMap::new(),
            counters,
            next: 0,
            waiting: VecDeque::new(),
            under_way: BTreeMap::new(),
            actions: VecDeque::new(),
            is_changed: true,
            save_from: Duration::ZERO,
            ahead: None,
            steady_since: Duration::ZERO,
        }
    }

    /// Takes over changed settings.
    pub fn set_settings(&mut self, settings: &Settings) {
        self.shelf.set_quota(settings.quota);
        self.shelf.forgive();
        self.keep = settings.keep;
        if (self.burst, self.period) != (settings.burst, settings.period) {
            (self.burst, self.period) = (settings.burst, settings.period);
            self.limiters.clear();
        }
        self.is_changed = true;
    }

    /// Notes which files were uploaded. They make room before all others.
    pub fn set_uploaded(&mut self, files: BTreeSet<FileName>) {
        self.shelf.set_uploaded(files);
    }

    /// Adds a session, or starts it anew because its config has changed. Its files need up to `room` bytes, and its ring on the disk, if it has one, up
    /// to `ring`. The rings of all sessions may take a third of the quota at most, because what is left of them and the files made of that need the rest.
    pub fn add_session(&mut self, name: SessionName, room: u64, ring: u64, now: &Now) {
        self.remove_session(&name);
        self.shelf.set_ring(&name, ring);
        let supervisor = Supervisor::new(now.monotonic);
        let session = Session {
            supervisor,
            room,
            ring,
        };
        self.sessions.insert(name, session);
        self.is_changed = true;
    }

    /// Removes a session.
    pub fn remove_session(&mut self, name: &SessionName) {
        if let Some(session) = self.sessions.remove(name) {
            if session.supervisor.is_running() {
                self.actions.push_back(Action::Stop(name.clone()));
            }
            self.limiters.retain(|(session, _), _| session != name);
            self.shelf.set_ring(name, 0);
            self.is_changed = true;
        }
    }

    /// Notes that a started session has ended, or could not be started. Its seal that is under way stays so until the driver reports the end of that, as it
    /// does for each [`Action::Seal`].
    pub fn session_ended(&mut self, name: &SessionName, now: &Now) {
        if let Some(session) = self.sessions.get_mut(name) {
            session.supervisor.ended(now.monotonic);
            self.is_changed = true;
        }
    }

    /// Returns the sessions and their lives.
    pub fn sessions(&self) -> impl Iterator<Item = (&SessionName, &Supervisor)> {
        self.sessions
            .iter()
            .map(|(name, session)| (name, &session.supervisor))
    }

    /// Returns the sealed files.
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// Returns the outcomes so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of requests without an outcome.
    pub fn open_requests(&self) -> usize {
        self.waiting.len() + self.under_way.len()
    }

    /// Asks for a seal. An [`Action::Tell`] has the outcome.
    pub fn request(&mut self, session: &SessionName, reason: &Reason, asker: Asker, now: &Now) -> SealId {
        let id = SealId(self.next);
        self.next += 1;
        let file = self.free_name(session, reason, now.wall);
        let refusal = match self.sessions.get(session) {
            Some(known) if known.supervisor.is_running() => self.refusal(session, reason, asker, now),
            _ => Some(Refusal::NotRunning),
        };
        let request = Request {
            file,
            source: Source::Session,
        };
        match refusal {
            Some(refusal) => self.end(id, request, Outcome::Refused(refusal)),
            None => self.waiting.push_back((id, request)),
        }
        id
    }

    /// Asks for a seal of the remains of an earlier run's ring: `bytes`. An [`Action::Tell`] has the outcome. Their number is limited only when
    /// sealed files would have to go. The driver deletes the leftover before it reports a file, or after a refusal. A seal that fails is tried again.
    pub fn salvage(&mut self, session: &SessionName, reason: &Reason, bytes: u64, now: &Now) -> SealId {
        let id = SealId(self.next);
        self.next += 1;
        let request = Request {
            file: self.free_name(session, reason, now.wall),
            source: Source::Leftover {
                bytes,
                from: now.monotonic,
            },
        };
        let is_limited = !self.shelf.takes_leftover(bytes) && self.is_limited(session, reason, now);
        let refusal = match is_limited {
            true => Some(Refusal::Limited),
            false if self.waiting.len() >= MOST_WAITING => Some(Refusal::Crowded),
            false => (!self.shelf.add_leftover(id, bytes)).then_some(Refusal::NoRoom),
        };
        match refusal {
            Some(refusal) => self.end(id, request, Outcome::Refused(refusal)),
            None => self.waiting.push_back((id, request)),
        }
        id
    }

    /// Returns the reason why a running session cannot be sealed now.
    fn refusal(
        &mut self,
        session: &SessionName,
        reason: &Reason,
        asker: Asker,
        now: &Now,
    ) -> Option<Refusal> {
        let waiting = self.waiting.iter().map(|(_, request)| request);
        let mut open = waiting.chain(self.under_way.values());
        let is_same = |request: &Request| request.is_of(session) && request.file.reason == *reason;
        match asker {
            Asker::Machine if open.any(is_same) => Some(Refusal::UnderWay),
            // What is left of rings may wait for long.
            _ if self.waiting_sessions() >= MOST_WAITING => Some(Refusal::Crowded),
            Asker::Machine => self.is_limited(session, reason, now).then_some(Refusal::Limited),
            Asker::Person => None,
        }
    }

    /// How many requests for running sessions wait.
    fn waiting_sessions(&self) -> usize {
        let waiting = self.waiting.iter();
        waiting
            .filter(|(_, request)| request.source == Source::Session)
            .count()
    }

    /// Whether the reason has had its share. If not, that counts.
    fn is_limited(&mut self, session: &SessionName, reason: &Reason, now: &Now) -> bool {
        let key = (session.clone(), reason.clone());
        let (burst, period) = (self.burst, self.period);
        let limiter = || Limiter::new(burst, period, now.monotonic);
        !self
            .limiters
            .entry(key)
            .or_insert_with(limiter)
            .admit(now.monotonic)
    }

    /// Returns a name that no file has or will have.
    fn free_name(&self, session: &SessionName, reason: &Reason, time: i64) -> FileName {
        let mut name = FileName {
            time,
            session: session.clone(),
            reason: reason.clone(),
        };
        let waiting = self.waiting.iter().map(|(_, request)| &request.file);
        let open: BTreeSet<&FileName> = waiting
            .chain(self.under_way.values().map(|request| &request.file))
            .collect();
        while self.shelf.has(&name) || open.contains(&name) {
            name.time += 1;
        }
        name
    }

    /// Notes the end of a seal: the file, or the reason why there is none.
    pub fn seal_ended(&mut self, id: SealId, result: Result<Written, String>, now: &Now) {
        let Some(mut request) = self.under_way.remove(&id) else {
            return;
        };
        if let (Err(_), Source::Leftover { from, .. }) = (&result, &mut request.source) {
            *from = now.monotonic + ROOM_PERIOD;
            self.shelf.written(id, None);
            return self.waiting.push_front((id, request));
        }
        let outcome = match result {
            Ok(written) => Outcome::Sealed {
                file: request.file.clone(),
                written,
            },
            Err(reason) => Outcome::Refused(Refusal::Failed(reason)),
        };
        let file = match &outcome {
            Outcome::Sealed { file, written } => Some((file.clone(), written.bytes)),
            Outcome::Refused(_) => None,
        };
        self.shelf.written(id, file);
        self.end(id, request, outcome);
    }

    /// Notes that a file is gone, or could not be deleted.
    pub fn removed(&mut self, name: &FileName, is_gone: bool) {
        self.shelf.left(name, is_gone);
        self.is_changed = true;
    }

    fn end(&mut self, id: SealId, request: Request, outcome: Outcome) {
        self.shelf.end_leftover(id);
        self.counters
            .count(&request.file.session, &request.file.reason, &outcome);
        self.actions.push_back(Action::Tell(id, outcome));
        self.is_changed = true;
    }

    /// Returns the next thing to do, if any.
    pub fn poll(&mut self, now: &Now) -> Option<Action> {
        self.watch_clock(now);
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        // Before sessions start, because a ring needs its room.
        if let Some(name) = self.shelf.surplus(self.expired(now)) {
            self.shelf.leave(&name);
            return Some(Action::Remove(name));
        }
        let has_room = !self.shelf.is_over();
        for (name, session) in &mut self.sessions {
            if (session.ring == 0 || has_room) && session.supervisor.start(now.monotonic) {
                self.is_changed = true;
                return Some(Action::Start(name.clone()));
            }
        }
        if let Some(action) = self.next_seal(now) {
            return Some(action);
        }
        if self.is_changed && self.save_from <= now.monotonic {
            self.is_changed = false;
            self.save_from = now.monotonic + SAVE_PERIOD;
            return Some(Action::Save);
        }
        None
    }

    /// Returns the next step for the oldest request that can be carried out: a session is sealed for one request after the other. On a full disk leftovers
    /// wait: they are there already, and who refuses them deletes them.
    fn next_seal(&mut self, now: &Now) -> Option<Action> {
        if self.under_way.len() >= MOST_AT_ONCE {
            return None;
        }
        let is_busy = |request: &Request| {
            let mut others = self.under_way.values();
            request.source == Source::Session && others.any(|other| other.is_of(&request.file.session))
        };
        let mut index = 0;
        loop {
            let (id, request) = self.waiting.get(index)?;
            let is_early = matches!(request.source, Source::Leftover { from, .. } if now.monotonic < from);
            if is_early || is_busy(request) {
                index += 1;
                continue;
            }
            let (id, most) = match request.source {
                Source::Leftover { bytes, .. } => (*id, bytes),
                Source::Session => match self.sessions.get(&request.file.session) {
                    Some(session) if session.supervisor.is_running() => (*id, session.room),
                    _ => return self.refuse(index, Refusal::NotRunning),
                },
            };
            let may_wait = request.source != Source::Session;
            match self.shelf.reserve(id, most, now.free) {
                Room::Later => return None,
                Room::After(name) => {
                    self.shelf.leave(&name);
                    return Some(Action::Remove(name));
                }
                Room::DiskIsFull if may_wait => index += 1,
                Room::DiskIsFull | Room::Never => return self.refuse(index, Refusal::NoRoom),
                Room::Reserved => {
                    let (id, request) = self.waiting.remove(index)?;
                    let file = request.file.clone();
                    self.under_way.insert(id, request);
                    return Some(Action::Seal(Order { id, file, most }));
                }
            }
        }
    }

    /// Ends a request that waits.
    fn refuse(&mut self, index: usize, refusal: Refusal) -> Option<Action> {
        let (id, request) = self.waiting.remove(index)?;
        self.end(id, request, Outcome::Refused(refusal));
        self.actions.pop_front()
    }

    /// Notes when the clock on the wall is set forward. Set back, it makes files younger, which costs none.
    fn watch_clock(&mut self, now: &Now) {
        let ahead = now.wall.saturating_sub(millis(now.monotonic));
        if self
            .ahead
            .is_none_or(|before| ahead.saturating_sub(before) > STEP)
        {
            self.steady_since = now.monotonic;
        }
        self.ahead = Some(ahead);
    }

    /// Returns the time before which files are too old.
    fn expired(&self, now: &Now) -> i64 {
        match self.keep {
            Some(keep) if now.monotonic >= self.steady_since + STEADY => {
                now.wall.saturating_sub(millis(keep))
            }
            _ => i64::MIN,
        }
    }

    /// Returns the time at which to poll again even if nothing happens.
    pub fn next_deadline(&self, now: &Now) -> Option<Duration> {
        let has_room = !self.shelf.is_over();
        let ready = self
            .sessions
            .values()
            .filter(|session| session.ring == 0 || has_room);
        let starts = ready.filter_map(|session| session.supervisor.deadline());
        let save = self.is_changed.then_some(self.save_from);
        let expiry = self.keep.zip(self.shelf.oldest()).map(|(keep, oldest)| {
            let left = oldest.saturating_add(millis(keep)).saturating_sub(now.wall);
            // A file is too old one millisecond later.
            let too_old = now.monotonic + Duration::from_millis(u64::try_from(left).unwrap_or_default() + 1);
            too_old.max(self.steady_since + STEADY)
        });
        let is_leftover = |request: &Request| request.source != Source::Session;
        let waits = self.waiting.iter().any(|(_, request)| is_leftover(request));
        let room = waits.then(|| now.monotonic + ROOM_PERIOD);
        starts.chain(save).chain(expiry).chain(room).min()
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
