//! The loop of the recorder: reports to [`Recorder`] what happens, and carries out its actions.
//!
//! [`recorder`](super) calls it. Everything that may take long happens elsewhere: the tracing service has the buffers, and each seal has a thread.

mod reading;
mod telling;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferretto_daemons::inherited::{ServiceManager, named_by};
use ferretto_daemons::log;
use ferretto_ipc::reactor::{
    Deadline, Event as Ready, Events, Interest, Reactor, ReactorError, Signal, Token, monotonic_now,
};
use ferretto_ipc::socket_names::consumer_address;
use ferretto_proto::messages::observable_events::CloneTriggerHit;
use ferretto_proto::messages::{CloneSessionRequest, TraceStats, clone_session_request};
use ferretto_recorder::{
    Action, Asker, Condition, Conditions, Counters, Lines, Now, Order, Outcome, Reason, Recorder, SealId,
    SessionName, Settings, Written,
};
use rustix::fs::inotify;

use super::configs::{self, Configs, CrashSafe};
use super::control::{self, Client, Heard, MOST_CLIENTS};
use super::folder::{self, Disk, Folder};
use super::journal::{self, Answer, Journal, Reports};
use super::listener::Listener;
use super::live::{Event, LiveSession};
use super::metrics::{self, Board, Page};
use super::report::{self, SessionState};
use super::ring::{self, Leftover, Ring};
use super::upload::Uploaded;
use super::{FAILURE, NAME, SUCCESS, read_settings, seal, sensors};
use crate::figures::Counted;

/// The variable with the number of a descriptor that gets a byte once the recorder is ready.
const NOTIFY: &str = "FERRETTO_RECORDER_NOTIFY_FD";
/// The reason for the files of sessions that ended unexpectedly.
const RECOVERED: &str = "recovered";
const LISTENER: Token = Token(0);
const CONFIGS: Token = Token(1);
const FIRST_TOKEN: u64 = 16;
/// How often the machine is looked at for conditions.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// How often sessions are asked for their statistics, for metrics.
const STATS_PERIOD: Duration = Duration::from_secs(10);
/// Changes of files within this time are read together.
const SETTLING: Duration = Duration::from_millis(100);
/// How long seals that are under way may take after a signal to end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs until a signal ends it; returns the exit code. An error is the last line of its log.
pub(super) fn run(settings_file: &Path) -> u8 {
    let mut notify = None;
    let served = named_by(NOTIFY)
        .map_err(|error| error.to_string())
        .and_then(|named| {
            notify = named;
            Daemon::start(settings_file)
        })
        .and_then(|mut daemon| {
            daemon.report_start(notify.as_ref());
            daemon.serve().map_err(|error| error.to_string())
        });
    // `notify` lives until the error is logged: a process that waits for the start sees its descriptor close, and may kill the recorder then.
    match served {
        Ok(()) => SUCCESS,
        Err(error) => {
            log::error(format_args!("{NAME}: {error}"));
            FAILURE
        }
    }
}

/// A running recorder.
struct Daemon {
    settings_file: PathBuf,
    settings: Settings,
    /// Which files were uploaded.
    uploaded: Uploaded,
    folder: Folder,
    disk: Disk,
    recorder: Recorder,
    reactor: Reactor,
    listener: UnixListener,
    /// Reports changes in the folder of configs.
    changes: OwnedFd,
    /// When changed configs are read.
    reload_at: Option<u64>,
    configs: Configs,
    /// Why sessions have ended, or were not started, the last time.
    reasons: BTreeMap<String, String>,
    live: BTreeMap<SessionName, Live>,
    clients: BTreeMap<Token, Client>,
    next_token: u64,
    conditions: Conditions,
    look_at: Option<u64>,
    /// Listens to the journal, if a condition is about its entries.
    listener_to_journal: Option<Listener>,
    /// The conditions that the journal's entries meet.
    met: (Sender<Condition>, Receiver<Condition>),
    /// The session and the reason of each request without an outcome, for the log.
    requests: HashMap<SealId, String>,
    /// The triggers that asked for seals.
    hits: HashMap<SealId, CloneTriggerHit>,
    /// The clients who asked for seals, and the session of each.
    askers: HashMap<SealId, (Token, SessionName)>,
    results: (Sender<SealResult>, Receiver<SealResult>),
    /// The ends of crash-safe sessions, by their tokens.
    ends: (Sender<SessionEnd>, Receiver<SessionEnd>),
    /// The remains of the rings of earlier runs, until they are sealed.
    salvages: HashMap<SealId, Leftover>,
    /// Why sealing some of them has failed the last time.
    failures: HashMap<SealId, String>,
    board: Board,
    /// When sessions are asked for their statistics, if there are metrics.
    ask_stats_at: Option<u64>,
    /// The latest statistics of sessions in memory.
    stats: BTreeMap<String, TraceStats>,
    /// When the recorder ends even if seals are under way.
    ends_at: Option<u64>,
}

type SealResult = (SealId, Result<Written, String>);
/// The token of a session, and the reason of its end.
type SessionEnd = (u64, String);

/// A session that runs.
#[derive(Debug)]
enum Live {
    InMemory(LiveSession),
    CrashSafe {
        token: u64,
        journal: Journal,
        /// Hears its triggers, if it has some.
        ears: Option<LiveSession>,
    },
}

impl Live {
    /// Returns the connection whose events come to the loop.
    fn session(&mut self) -> Option<&mut LiveSession> {
        match self {
            Live::InMemory(session) => Some(session),
            Live::CrashSafe { ears, .. } => ears.as_mut(),
        }
    }
}

impl Daemon {
    fn start(settings_file: &Path) -> Result<Daemon, String> {
        let settings = read_settings(settings_file)?;
        let folder = Folder::open(&settings.folder)?;
        let unreadable =
            |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", settings.folder.display());
        let files = folder::sealed_files(&settings.folder).map_err(|error| unreadable(&error))?;
        let state = folder::state(&settings.folder).map_err(|error| unreadable(&error))?;
        let counters = state.map_or(Ok(Counters::default()), |state| report::counters(&state));
        let counters = counters.unwrap_or_else(|error| {
            log::warning(format_args!(
                "the state file is of no use, so counting begins anew: {error}"
            ));
            Counters::default()
        });
        let listener = control::listen(&settings.socket)?;
        let changes = watch_folder(&settings.sessions).map_err(|error| {
            format!(
                "cannot watch the folder of sessions {}: {error}",
                settings.sessions.display()
            )
        })?;
        let mut reactor = Reactor::new().map_err(|error| error.to_string())?;
        let prepared = reactor
            .watch_signals(&[Signal::Interrupt, Signal::Terminate, Signal::HangUp])
            .and_then(|()| reactor.register(&listener, LISTENER, Interest::Readable))
            .and_then(|()| reactor.register(&changes, CONFIGS, Interest::Readable));
        prepared.map_err(|error| error.to_string())?;
        let conditions = Conditions::new(settings.conditions.clone());
        let disk = Disk::of(&settings.folder, settings.leave_free);
        let mut daemon = Daemon {
            settings_file: settings_file.to_owned(),
            recorder: Recorder::new(&settings, files, counters),
            look_at: (conditions.all().count() > 0).then(monotonic_now),
            conditions,
            listener_to_journal: None,
            met: channel(),
            settings,
            uploaded: Uploaded::default(),
            folder,
            disk,
            reactor,
            listener,
            changes,
            reload_at: None,
            configs: Configs::new(),
            reasons: BTreeMap::new(),
            live: BTreeMap::new(),
            clients: BTreeMap::new(),
            next_token: FIRST_TOKEN,
            requests: HashMap::new(),
            hits: HashMap::new(),
            askers: HashMap::new(),
            results: channel(),
            ends: channel(),
            salvages: HashMap::new(),
            failures: HashMap::new(),
            ends_at: None,
            board: Board::default(),
            ask_stats_at: None,
            stats: BTreeMap::new(),
        };
        if let Some(port) = daemon.settings.metrics {
            let served = daemon.board.serve(port);
            served.map_err(|error| format!("cannot serve metrics on port {port}: {error}"))?;
            daemon.ask_stats_at = Some(monotonic_now());
        }
        daemon.salvage();
        daemon.read_configs();
        daemon.listen_to_journal();
        Ok(daemon)
    }

    /// Tells the program that waits for it that sessions are being started.
    fn report_start(&self, notify: Option<&OwnedFd>) {
        let count = self.recorder.sessions().count();
        log::info(format_args!(
            "records {}; sealed files go into {}",
            Counted(count as u64, "session"),
            self.settings.folder.display()
        ));
        let told = ServiceManager::of_this_process()
            .and_then(|manager| manager.map_or(Ok(()), |manager| manager.ready("records")));
        if let Err(error) = told {
            log::warning(format_args!("cannot tell systemd that all is ready: {error}"));
        }
        if let Some(notify) = notify {
            // A starter that is gone needs no word.
            let _ = rustix::io::write(notify, b"1");
        }
    }

    fn now(&self) -> Now {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            monotonic: Duration::from_nanos(monotonic_now()),
            wall: i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX),
            free: self.disk.free(),
        }
    }

    fn serve(&mut self) -> Result<(), ReactorError> {
        let mut events = Events::new();
        loop {
            self.carry_out();
            if let Some(ends_at) = self.ends_at
                && (self.recorder.open_requests() == 0 || ends_at <= monotonic_now())
            {
                // What happened since the last time waits for its turn, which does not come.
                self.save();
                return Ok(());
            }
            for session in self.live.values_mut().filter_map(Live::session) {
                session.watch(&self.reactor);
            }
            for client in self.clients.values_mut() {
                client.watch(&self.reactor);
            }
            let next = self.recorder.next_deadline(&self.now());
            let next = next.map(|at| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
            let deadlines = [
                next,
                self.look_at,
                self.reload_at,
                self.ask_stats_at,
                self.ends_at,
                self.silences().map(|(due, _)| due).min(),
            ];
            let deadline = deadlines.into_iter().flatten().min();
            self.reactor
                .wait(&mut events, deadline.map(Deadline::Monotonic))?;
            for signal in events.signals() {
                match signal {
                    Signal::HangUp => self.reload(),
                    _ => self.ends_at = Some(monotonic_now() + FAREWELL.as_nanos() as u64),
                }
            }
            for ready in events.ready() {
                self.hear(ready);
            }
            let now = monotonic_now();
            let silent = self.silences().filter(|(due, _)| *due <= now);
            for (_, token) in silent.collect::<Vec<_>>() {
                self.hear_session(token);
            }
            while let Ok((id, result)) = self.results.1.try_recv() {
                self.seal_ended(id, result);
            }
            while let Ok((token, reason)) = self.ends.1.try_recv() {
                let is_it = |live: &Live| matches!(live, Live::CrashSafe { token: of, .. } if *of == token);
                let name = self
                    .live
                    .iter()
                    .find(|(_, live)| is_it(live))
                    .map(|(name, _)| name.clone());
                if let Some(name) = name {
                    self.session_ended(&name, reason);
                }
            }
            while let Ok(condition) = self.met.1.try_recv() {
                self.seal_for(condition);
            }
            self.keep_time();
        }
    }

    fn keep_time(&mut self) {
        let now = monotonic_now();
        if self.reload_at.is_some_and(|at| at <= now) {
            self.read_configs();
        }
        if self.ask_stats_at.is_some_and(|at| at <= now) {
            self.ask_stats_at = Some(now + STATS_PERIOD.as_nanos() as u64);
            for live in self.live.values_mut() {
                if let Live::InMemory(session) = live {
                    session.ask_for_stats();
                }
            }
            self.publish();
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = Some(now + LOOK_PERIOD.as_nanos() as u64);
            let observed = sensors::look(&self.conditions);
            for condition in self.conditions.observe(Duration::from_nanos(now), &observed) {
                self.seal_for(condition);
            }
        }
    }

    /// Asks for seals because a condition is met.
    fn seal_for(&mut self, condition: Condition) {
        let sessions = match condition.sessions.is_empty() {
            true => self.session_names(),
            false => condition.sessions,
        };
        for session in sessions {
            self.request(&session, &condition.name, Asker::Machine);
        }
    }

    fn request(&mut self, session: &SessionName, reason: &Reason, asker: Asker) -> SealId {
        let now = self.now();
        let id = self.recorder.request(session, reason, asker, &now);
        self.requests.insert(id, format!("{session}/{reason}"));
        id
    }

    /// Listens to the journal if the settings have such conditions, and only then.
    fn listen_to_journal(&mut self) {
        let lines = Lines::new(std::process::id(), &self.settings.conditions);
        match &self.listener_to_journal {
            _ if lines.is_empty() => self.listener_to_journal = None,
            Some(listener) => listener.replace(&self.settings.conditions),
            None => match Listener::start(lines, self.met.0.clone(), self.reactor.waker()) {
                Ok(listener) => self.listener_to_journal = Some(listener),
                Err(problem) => log::warning(format_args!("{problem}")),
            },
        }
    }

    fn session_names(&self) -> Vec<SessionName> {
        self.recorder.sessions().map(|(name, _)| name.clone()).collect()
    }

    /// Does all that the recorder wants.
    fn carry_out(&mut self) {
        if let Some(files) = self.uploaded.news(self.settings.upload.as_ref()) {
            self.recorder.set_uploaded(files);
        }
        while let Some(action) = self.recorder.poll(&self.now()) {
            match action {
                Action::Start(name) => self.start_session(&name),
                Action::Stop(name) => self.stop_session(&name),
                Action::Seal(order) => self.seal(order),
                Action::Remove(file) => {
                    let removed = std::fs::remove_file(self.folder.path(&file));
                    let is_gone = match removed {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                            log::warning(format_args!(
                                "cannot delete {file}, so it keeps its room: {error}"
                            ));
                            false
                        }
                        _ => {
                            log::info(format_args!("deleted {file}"));
                            true
                        }
                    };
                    self.recorder.removed(&file, is_gone);
                }
                Action::Tell(id, outcome) => self.tell(id, &outcome),
                Action::Save => self.save(),
            }
        }
    }

    fn start_session(&mut self, name: &SessionName) {
        let token = self.next_token();
        match self.started(name, token) {
            Ok(session) => {
                log::info(format_args!("{name}: starts"));
                self.live.insert(name.clone(), session);
            }
            Err(reason) => self.session_ended(name, reason),
        }
    }

    fn started(&self, name: &SessionName, token: Token) -> Result<Live, String> {
        let Some(Ok((_, config))) = self.configs.get(name.as_str()) else {
            return Err("its config is gone".to_owned());
        };
        let socket = consumer_address().map_err(|error| error.to_string())?;
        let Some(CrashSafe { ring, ears }) = &config.crash_safe else {
            return LiveSession::start(&socket, &config.encoded, token).map(Live::InMemory);
        };
        let ears = ears.as_ref().map(|ears| LiveSession::start(&socket, ears, token));
        let ring = Ring::new(&self.disk, name, self.now().wall, *ring);
        Ok(Live::CrashSafe {
            token: token.0,
            ears: ears.transpose()?,
            journal: Journal::start(&socket, &config.encoded, ring, token.0, self.reports())?,
        })
    }

    /// Returns where threads report.
    fn reports(&self) -> Reports {
        Reports {
            seals: self.results.0.clone(),
            ends: self.ends.0.clone(),
            waker: self.reactor.waker(),
        }
    }

    /// Starts the session anew that hears the triggers of a crash-safe one, because the service has ended it by its time. Returns whether it runs.
    fn renew_ears(&mut self, name: &SessionName) -> bool {
        let Some(Live::CrashSafe { ears, .. }) = self.live.get_mut(name) else {
            return false;
        };
        let Some(session) = ears.as_mut() else {
            return false;
        };
        let Some(Ok((_, config))) = self.configs.get(name.as_str()) else {
            return false;
        };
        let Some(CrashSafe { ears, .. }) = &config.crash_safe else {
            return false;
        };
        ears.as_ref().is_some_and(|ears| session.renew(ears))
    }

    fn session_ended(&mut self, name: &SessionName, reason: String) {
        self.live.remove(name);
        self.stats.remove(name.as_str());
        let now = self.now();
        self.recorder.session_ended(name, &now);
        self.salvage();
        if self.reasons.get(name.as_str()) != Some(&reason) {
            log::warning(format_args!("{name}: {reason}; it will be started again"));
            self.reasons.insert(name.to_string(), reason);
        }
    }

    /// Ends a session. The contents of its ring go with it, like the buffers of others.
    fn stop_session(&mut self, name: &SessionName) {
        self.live.remove(name);
        self.stats.remove(name.as_str());
        for leftover in self.leftovers() {
            if leftover.session == *name {
                leftover.delete();
            }
        }
    }

    /// Returns the leftovers of rings that the recorder does not know yet.
    fn leftovers(&self) -> Vec<Leftover> {
        let is_known = |path: &Path| {
            self.salvages
                .values()
                .any(|leftover| leftover.segments.iter().any(|it| it.path == path))
        };
        let found = ring::leftovers(&self.settings.folder, is_known);
        let mut found = found.unwrap_or_else(|error| {
            log::warning(format_args!("cannot look for rings: {error}"));
            Vec::new()
        });
        let is_live = |name: &SessionName| matches!(self.live.get(name), Some(Live::CrashSafe { .. }));
        found.retain(|leftover| !is_live(&leftover.session));
        found
    }

    /// Asks for a seal of each ring of a session that has ended.
    fn salvage(&mut self) {
        for leftover in self.leftovers() {
            log::info(format_args!(
                "{}: seals what is left of its ring, up to {} bytes, once the disk has room",
                leftover.session,
                leftover.room()
            ));
            let now = self.now();
            let id = self
                .recorder
                .salvage(&leftover.session, &Reason::new(RECOVERED), leftover.room(), &now);
            self.requests
                .insert(id, format!("{}/{RECOVERED}", leftover.session));
            self.salvages.insert(id, leftover);
        }
    }

    fn seal_ended(&mut self, id: SealId, result: Result<Written, String>) {
        match &result {
            Ok(_) => {
                if let Some(leftover) = self.salvages.remove(&id) {
                    leftover.delete();
                }
            }
            Err(reason) => {
                if let Some(leftover) = self.salvages.get(&id)
                    && self.failures.insert(id, reason.clone()).as_ref() != Some(reason)
                {
                    log::warning(format_args!(
                        "{}: what is left of its ring stays and is tried again: {reason}",
                        leftover.session
                    ));
                }
            }
        }
        let now = self.now();
        self.recorder.seal_ended(id, result, &now);
    }

    fn seal(&mut self, order: Order) {
        let id = order.id;
        if let Err(reason) = self.begin_seal(order) {
            self.seal_ended(id, Err(reason));
        }
    }

    /// Has another thread write the file.
    fn begin_seal(&mut self, order: Order) -> Result<(), String> {
        let hit = self.hits.remove(&order.id);
        let draft = self.folder.draft(&order.file.to_string());
        let draft = draft.map_err(|error| format!("cannot create the file: {error}"))?;
        if let Some(leftover) = self.salvages.get(&order.id) {
            let segments = journal::open(&leftover.segments)?;
            return self.spawn(order.id, move || journal::copy(segments, draft, order.most));
        }
        if let Some(Live::CrashSafe { journal, .. }) = self.live.get(&order.file.session) {
            journal.seal(order.id, draft, order.most);
            return Ok(());
        }
        let Some(Ok((_, config))) = self.configs.get(order.file.session.as_str()) else {
            return Err("its config is gone".to_owned());
        };
        let request = clone_request(&config.session_name, hit);
        let socket = consumer_address().map_err(|error| error.to_string())?;
        self.spawn(order.id, move || seal::seal(&socket, &request, draft, order.most))
    }

    fn spawn(
        &self,
        id: SealId,
        seal: impl FnOnce() -> Result<Written, String> + Send + 'static,
    ) -> Result<(), String> {
        let answer = Answer::new(id, self.reports());
        let spawned = std::thread::Builder::new()
            .name("seal".to_owned())
            .spawn(move || answer.give(seal()));
        spawned
            .map(drop)
            .map_err(|error| format!("cannot start a thread: {error}"))
    }

    fn hear(&mut self, ready: &Ready) {
        match ready.token {
            LISTENER => self.accept(),
            CONFIGS => {
                let mut buffer = [0u8; 4096];
                while rustix::io::read(&self.changes, &mut buffer).is_ok_and(|count| count > 0) {}
                self.reload_at = Some(monotonic_now() + SETTLING.as_nanos() as u64);
            }
            token if self.clients.contains_key(&token) => self.hear_client(token),
            token => self.hear_session(token),
        }
    }

    /// Until when the services of sessions have to answer, with the tokens of those sessions.
    fn silences(&self) -> impl Iterator<Item = (u64, Token)> {
        let sessions = self.live.values().filter_map(|live| match live {
            Live::InMemory(session) => Some(session),
            Live::CrashSafe { ears, .. } => ears.as_ref(),
        });
        sessions.filter_map(|session| Some((session.answer_due()?, session.token())))
    }

    fn hear_session(&mut self, token: Token) {
        let mut sessions = self
            .live
            .iter_mut()
            .filter_map(|(name, live)| Some((name, live.session()?)));
        let Some((name, session)) = sessions.find(|(_, session)| session.token() == token) else {
            return;
        };
        let name = name.clone();
        for event in session.on_ready() {
            match event {
                Event::Triggered(hit) => {
                    let reason = Reason::new(hit.trigger_name.as_deref().unwrap_or_default());
                    let id = self.request(&name, &reason, Asker::Machine);
                    self.hits.insert(id, hit);
                }
                Event::Stats(stats) => drop(self.stats.insert(name.to_string(), *stats)),
                Event::Disabled(reason) => {
                    if !self.renew_ears(&name) {
                        self.session_ended(&name, reason);
                    }
                }
                Event::Ended(reason) => self.session_ended(&name, reason),
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let token = self.next_token();
            // Clients beyond the limit see the connection end.
            if self.clients.len() < MOST_CLIENTS
                && let Some(client) = Client::new(stream, token)
            {
                self.clients.insert(client.token(), client);
            }
        }
    }

    fn hear_client(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let request = match client.on_ready() {
            Heard::Nothing => return,
            // One that waits for an answer may have closed its end.
            Heard::Over => return drop(self.clients.remove(&token)),
            Heard::Request(request) => request,
        };
        let sessions = match request.session {
            Some(session) => vec![session],
            None => self.session_names(),
        };
        if sessions.is_empty() {
            self.clients.remove(&token);
        }
        for session in sessions {
            let id = self.request(&session, &request.reason, Asker::Person);
            self.askers.insert(id, (token, session));
        }
    }

    fn next_token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }
}

/// Has the kernel report changes in a folder.
fn watch_folder(folder: &Path) -> rustix::io::Result<OwnedFd> {
    use inotify::CreateFlags;
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    watch_by_name(&changes, folder)?;
    Ok(changes)
}

/// Has the kernel report changes in the folder that has this name now, and the end of that. A folder that is watched already is not watched twice.
fn watch_by_name(changes: &OwnedFd, folder: &Path) -> rustix::io::Result<()> {
    use inotify::WatchFlags;
    // A link is created and never written.
    let wanted = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(changes.as_fd(), folder, wanted)?;
    Ok(())
}

/// Makes the request for a clone, with the trigger that was activated, if one was.
fn clone_request(session_name: &str, hit: Option<CloneTriggerHit>) -> CloneSessionRequest {
    let by_name = || clone_session_request::Selector::UniqueSessionName(session_name.to_owned());
    let Some(hit) = hit else {
        return CloneSessionRequest {
            selector: Some(by_name()),
            ..Default::default()
        };
    };
    let id = hit.tracing_session_id.and_then(|id| u64::try_from(id).ok());
    CloneSessionRequest {
        selector: Some(id.map_or_else(by_name, clone_session_request::Selector::SessionId)),
        clone_trigger_name: hit.trigger_name,
        clone_trigger_producer_name: hit.producer_name,
        clone_trigger_trusted_producer_uid: hit.producer_uid.map(|uid| uid as i32),
        clone_trigger_boot_time_ns: hit.boot_time_ns,
        clone_trigger_delay_ms: hit.trigger_delay_ms,
        ..Default::default()
    }
}
