//! The processes that each session profiles.
//!
//! Instances open their sessions here. A process that connects is claimed by the first session that means it, and
//! belongs to this session until its `Claim` is dropped; the others are told that they were too late. A claim also takes `room`, of which there is so
//! much for each user and for all together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_client::data_source::Slot;
use ferretto_heap_client::handshake::Reason;
use ferretto_ipc::channel::Sender;
use ferretto_ipc::reactor::Waker;
use ferretto_profile::scope::cmdline_of;

use crate::client::Client;
use crate::config::{Ages, HeapConfig};
use crate::room::{Room, Users};

/// Processes of which a session is told that another one profiles them.
pub(crate) const MOST_REJECTED: usize = 1 << 12;

/// See the [module](self).
#[derive(Default)]
pub struct Sessions(Mutex<Inner>);

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

struct Inner {
    open: BTreeMap<Slot, Session>,
    /// By process: the session, and the claim's serial number.
    claims: HashMap<i32, (Slot, u64)>,
    /// The last serial number of a claim or a session.
    serial: u64,
    room: Room,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            open: BTreeMap::new(),
            claims: HashMap::new(),
            serial: 0,
            room: Room::new(Users::of_this_daemon()),
        }
    }
}

struct Session {
    /// Sessions come in the order in which they were opened.
    serial: u64,
    config: Arc<HeapConfig>,
    news: Sender<News>,
    waker: Waker,
    /// Processes of which it was told that another session profiles them, so that it is told each once.
    rejected: BTreeSet<i32>,
}

/// A process that has connected.
pub(crate) struct Applicant<'a> {
    /// Its id.
    pub pid: i32,
    /// Its user.
    pub user: u32,
    /// Why it has connected.
    pub reason: Reason,
    /// Whether the id is its own still.
    pub is_there: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Applicant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Applicant");
        out.field("pid", &self.pid).field("reason", &self.reason);
        out.finish_non_exhaustive()
    }
}

/// A message to an instance's thread.
#[derive(Debug)]
pub(crate) enum News {
    /// A process is profiled from now on.
    Arrived(Box<Client>),
    /// The process with this id runs another program, or has gone, so nothing more comes from its client.
    Replaced(i32),
    /// Another session profiles this process.
    Rejected(i32),
}

impl Session {
    fn tell(&self, news: News) {
        // If the thread is gone, the session is about to be closed.
        if self.news.send(news).is_ok() {
            self.waker.wake();
        }
    }

    fn reject(&mut self, pid: i32) {
        if self.rejected.len() < MOST_REJECTED && self.rejected.insert(pid) {
            self.tell(News::Rejected(pid));
        }
    }
}

/// A process that is profiled. It belongs to no session any more when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    sessions: Arc<Sessions>,
    slot: Slot,
    serial: u64,
    pid: i32,
    /// The room that it takes.
    user: u32,
    ring_bytes: usize,
    /// The session's config.
    pub config: Arc<HeapConfig>,
}

impl Claim {
    /// The process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// The user whose room it takes.
    pub(crate) fn user(&self) -> u32 {
        self.user
    }

    /// Different for any two claims.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut inner = self.sessions.inner();
        inner.room.give_back(self.user, self.ring_bytes);
        if inner.claims.get(&self.pid) == Some(&(self.slot, self.serial)) {
            inner.claims.remove(&self.pid);
        }
    }
}

impl Sessions {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session, whose thread is told `news` and woken.
    pub(crate) fn open(&self, slot: Slot, config: Arc<HeapConfig>, news: Sender<News>, waker: Waker) {
        let mut inner = self.inner();
        inner.serial += 1;
        let session = Session {
            serial: inner.serial,
            config,
            news,
            waker,
            rejected: BTreeSet::new(),
        };
        inner.open.insert(slot, session);
    }

    /// Closes a session: it gets no more clients.
    pub(crate) fn close(&self, slot: Slot) {
        self.inner().open.remove(&slot);
    }

    /// Whether a process is profiled.
    pub(crate) fn is_claimed(&self, pid: i32) -> bool {
        self.inner().claims.contains_key(&pid)
    }

    /// The session that a process belongs to from now on; `None` if no session means it, or it is gone. Its command line may have to be read.
    ///
    /// # Errors
    /// If there is no room for it: a clause.
    pub(crate) fn claim(self: &Arc<Self>, applicant: &Applicant<'_>) -> Result<Option<Claim>, String> {
        let &Applicant {
            pid, user, reason, ..
        } = applicant;
        let mut open: Vec<(u64, Slot, Arc<HeapConfig>)> = Vec::new();
        for (slot, session) in &self.inner().open {
            open.push((session.serial, *slot, session.config.clone()));
        }
        open.sort_unstable_by_key(|(serial, ..)| *serial);
        let mut cmdline = None;
        open.retain(|(_, _, config)| {
            let is_of_age = match config.ages {
                Ages::Any => true,
                Ages::New => reason != Reason::Signal,
                Ages::Running => reason == Reason::Signal,
            };
            let mut cmdline = || cmdline.get_or_insert_with(|| cmdline_of(pid)).clone();
            is_of_age && config.targets.include(pid, &mut cmdline)
        });
        let mut inner = self.inner();
        // A session may have been closed meanwhile, and its slot be another's.
        open.retain(|(serial, slot, _)| {
            let session = inner.open.get(slot);
            session.is_some_and(|session| session.serial == *serial)
        });
        let Some((_, slot, config)) = open.first() else {
            return Ok(None);
        };
        let before = inner.claims.get(&pid).map(|(before, _)| *before);
        // It has a ring already; or its program had, and it has started another one.
        if before.is_some() && reason == Reason::Signal {
            return Ok(None);
        }
        // While it is there, nobody else claims anything under its id. So the command line was its own, and so is a claim that is there.
        if !(applicant.is_there)() {
            return Ok(None);
        }
        let ring_bytes = 8 * config.ring_words;
        inner.room.take(user, ring_bytes)?;
        if let Some(session) = before.and_then(|before| inner.open.get(&before)) {
            session.tell(News::Replaced(pid));
        }
        for (_, slot, _) in &open[1..] {
            if let Some(session) = inner.open.get_mut(slot) {
                session.reject(pid);
            }
        }
        inner.serial += 1;
        let serial = inner.serial;
        inner.claims.insert(pid, (*slot, serial));
        Ok(Some(Claim {
            sessions: self.clone(),
            slot: *slot,
            serial,
            pid,
            user,
            ring_bytes,
            config: config.clone(),
        }))
    }

    /// Hands a client over to the session that has claimed it, which it returns. If that was closed meanwhile, the client is dropped.
    pub(crate) fn deliver(&self, client: Client) -> Slot {
        let slot = client.claim().slot;
        let inner = self.inner();
        let session = inner
            .open
            .get(&slot)
            .map(|session| (session.news.clone(), session.waker.clone()));
        // Dropping a claim takes the lock.
        drop(inner);
        if let Some((news, waker)) = session
            && news.send(News::Arrived(Box::new(client))).is_ok()
        {
            waker.wake();
        }
        slot
    }

    /// Says that nothing comes from a client that was handed over: it has gone before it got its ring.
    pub(crate) fn revoke(&self, slot: Slot, pid: i32) {
        if let Some(session) = self.inner().open.get(&slot) {
            session.tell(News::Replaced(pid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_ipc::channel::{Receiver, channel};
    use ferretto_ipc::reactor::Reactor;
    use ferretto_proto::messages::HeapprofdConfig;

    fn open(sessions: &Sessions, slot: usize, config: HeapprofdConfig) -> Receiver<News> {
        let config = HeapprofdConfig {
            sampling_interval_bytes: Some(4096),
            ..config
        };
        let config = HeapConfig::of(&config).expect("it is good");
        let (news, receiver) = channel();
        let slot = Slot::first(slot + 1).last().expect("it is one");
        let waker = Reactor::new().expect("a reactor").waker();
        sessions.open(slot, Arc::new(config), news, waker);
        receiver
    }

    fn pid(pid: i32) -> HeapprofdConfig {
        HeapprofdConfig {
            pid: vec![pid as u64],
            ..Default::default()
        }
    }

    fn applicant(pid: i32, reason: Reason) -> Applicant<'static> {
        Applicant {
            pid,
            user: 1000,
            reason,
            is_there: &|| true,
        }
    }

    /// Claims process 7.
    fn claim_7(sessions: &Arc<Sessions>, reason: Reason) -> Option<Claim> {
        let claim = sessions.claim(&applicant(7, reason));
        claim.expect("there is room")
    }

    #[test]
    fn a_process_belongs_to_the_first_session_that_means_it_and_the_others_are_told() {
        let sessions = Arc::new(Sessions::default());
        assert!(claim_7(&sessions, Reason::Startup).is_none());
        let _other = open(&sessions, 1, pid(8));
        let first = open(&sessions, 2, pid(7));
        let second = open(&sessions, 0, pid(7));
        let claim = claim_7(&sessions, Reason::Startup).expect("it is meant");
        assert!(claim.config.targets.pids.contains(&7));
        assert!(first.try_receive().is_err());
        assert!(matches!(second.try_receive(), Ok(News::Rejected(7))));
        assert!(sessions.is_claimed(7));
        assert!(claim_7(&sessions, Reason::Signal).is_none());
        drop(claim);
        assert!(!sessions.is_claimed(7));
    }

    #[test]
    fn a_process_that_starts_another_program_replaces_itself() {
        let sessions = Arc::new(Sessions::default());
        let news = open(&sessions, 0, pid(7));
        let before = claim_7(&sessions, Reason::Startup).expect("it is meant");
        let after = claim_7(&sessions, Reason::Startup).expect("it is meant");
        assert!(matches!(news.try_receive(), Ok(News::Replaced(7))));
        drop(before);
        assert!(sessions.is_claimed(7));
        drop(after);
        assert!(!sessions.is_claimed(7));
    }

    #[test]
    fn a_session_means_processes_of_its_age() {
        let sessions = Arc::new(Sessions::default());
        let new = HeapprofdConfig {
            no_running: Some(true),
            ..pid(7)
        };
        let _new = open(&sessions, 0, new);
        assert!(claim_7(&sessions, Reason::Signal).is_none());
        assert!(claim_7(&sessions, Reason::Startup).is_some());
        assert!(claim_7(&sessions, Reason::Fork).is_some());
        sessions.close(Slot::first(1).last().expect("it is one"));
        let running = HeapprofdConfig {
            no_startup: Some(true),
            ..pid(7)
        };
        let _running = open(&sessions, 0, running);
        assert!(claim_7(&sessions, Reason::Startup).is_none());
        assert!(claim_7(&sessions, Reason::Signal).is_some());
    }

    #[test]
    fn a_process_that_is_gone_changes_nothing_for_the_one_that_has_its_id() {
        let sessions = Arc::new(Sessions::default());
        let news = open(&sessions, 0, pid(7));
        let _claim = claim_7(&sessions, Reason::Startup).expect("it is meant");
        let gone = Applicant {
            is_there: &|| false,
            ..applicant(7, Reason::Startup)
        };
        assert!(sessions.claim(&gone).is_ok_and(|claim| claim.is_none()));
        assert!(news.try_receive().is_err());
    }

    #[test]
    fn clients_that_wait_for_the_thread_of_their_session_take_room_like_others() {
        let sessions = Arc::new(Sessions::default());
        let all = HeapprofdConfig {
            all: Some(true),
            shmem_size_bytes: Some(256 << 20),
            ..Default::default()
        };
        // Nobody receives its news.
        let _news = open(&sessions, 0, all);
        let mut claims: Vec<Claim> = Vec::new();
        let refused = loop {
            let pid = 1 + claims.len() as i32;
            match sessions.claim(&applicant(pid, Reason::Startup)) {
                Ok(claim) => claims.push(claim.expect("it is meant")),
                Err(refused) => break refused,
            }
            assert!(claims.len() <= 64);
        };
        assert!(refused.contains("a smaller shmem_size_bytes"), "{refused}");
        // A process that starts one program after the other takes room for each that is not yet let go of.
        assert!(sessions.claim(&applicant(1, Reason::Startup)).is_err());
        claims.pop();
        assert!(sessions.claim(&applicant(1, Reason::Startup)).is_ok());
    }

    #[test]
    fn a_session_hears_once_of_a_process_that_another_one_profiles() {
        let sessions = Arc::new(Sessions::default());
        let _first = open(&sessions, 0, pid(7));
        let second = open(&sessions, 1, pid(7));
        for _ in 0..3 {
            drop(claim_7(&sessions, Reason::Startup).expect("it is meant"));
        }
        assert!(matches!(second.try_receive(), Ok(News::Rejected(7))));
        assert!(second.try_receive().is_err());
    }
}
