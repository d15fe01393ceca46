//! The thread of an instance: reads the rings of its clients in turns, dumps their books when it is time, and does what the runtime says.
//!
//! [`HeapProfiles`](crate::source::HeapProfiles) starts it. Clients do not tell when they have written, because that would cost a system call: their rings are
//! looked at every millisecond while they fill, less often while little comes, and least while nothing does. The kernel tells when a process has ended. A client has some
//! milliseconds in each round, so that none holds up the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferretto_client::data_source::{Acknowledge, Slot};
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{Command, Inbox, What};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_ipc::channel::{Nothing, Receiver, Sender};
use ferretto_ipc::reactor::{Deadline, Events, Interest, Reactor, ReactorError, Token, boot_now};
use ferretto_probes::lru::LruMap;
use ferretto_profile::guardrails::{daemon_cpu_time, daemon_exceeds};
use ferretto_profile::interning::Edition;

use crate::client::{Client, Ending};
use crate::collector::{Collector, Entered, Unwinding};
use crate::config::{Ages, HeapConfig};
use crate::dump::{Dump, Header, Step};
use crate::feed::Came;
use crate::marked;
use crate::reading::{self, SHORTEST_PAUSE, TURN, Until};
use crate::sessions::{MOST_REJECTED, News, Sessions};
use crate::source::NAME;
use crate::successions::Successions;

/// Between two looks at rings in which little comes. A program that ends waits so long for its last look, and each look costs as much as some samples.
const USUAL_PAUSE: Duration = Duration::from_millis(4);

/// Between two looks at rings in which nothing comes.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How often the daemon's needs, and the programs of idle clients, are looked at.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// How much longer rings are read at the end when there is no more time to unwind.
const GRACE: Duration = Duration::from_secs(1);

/// Dumps that wait before clients are read on.
const MOST_DUMPS: usize = 64;

/// Ids of processes that are remembered, so that a later process with the same id is told apart.
const MOST_REMEMBERED: usize = 1 << 16;

/// See the [module](self).
pub(crate) struct HeapThread {
    pub(crate) program: Arc<dyn ProducerProgram>,
    /// The instance's serial number, and its slot.
    pub(crate) instance: (u32, Slot),
    pub(crate) config: Arc<HeapConfig>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) news: (Sender<News>, Receiver<News>),
    pub(crate) writer: TraceWriter,
    /// The final dump has to be written in this time.
    pub(crate) stop_timeout: Duration,
}

/// Why the loop has ended.
enum Ended {
    /// The runtime wants it, and is told by dropping this.
    Stopped(Acknowledge),
    /// The data source is gone.
    Abandoned,
    /// The daemon has used more than the config allows.
    Guardrail(&'static str),
}

/// Whether another dump of a client follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Comes,
    Never,
}

/// The thread's clients, and the means to profile them.
struct Work {
    collector: Collector,
    clients: BTreeMap<Token, Client>,
    /// The token of the last client.
    token: u64,
    dumps: VecDeque<Dump>,
    /// Packets of dumps were lost.
    has_lost: bool,
    rejected: BTreeSet<i32>,
    remembered: LruMap<i32, ()>,
    successions: Successions,
    writer: TraceWriter,
    hit_guardrail: bool,
}

impl HeapThread {
    /// Works until it is told to stop. Drops `started` once processes may connect.
    pub(crate) fn run(self, mut inbox: Inbox, started: Acknowledge) {
        let (serial, slot) = self.instance;
        self.program.join_instance(serial);
        let config = self.config.clone();
        self.sessions
            .open(slot, config, self.news.0.clone(), inbox.reactor.waker());
        let mut work = Work {
            collector: Collector::new(&self.config),
            clients: BTreeMap::new(),
            token: 0,
            dumps: VecDeque::new(),
            has_lost: false,
            rejected: BTreeSet::new(),
            remembered: LruMap::new(MOST_REMEMBERED),
            successions: Successions::default(),
            writer: self.writer,
            hit_guardrail: false,
        };
        if self.config.ages != Ages::New {
            let rejected = marked::ask(&self.config, &self.sessions);
            work.rejected.extend(rejected.into_iter().take(MOST_REJECTED));
        }
        drop(started);
        let follow = Follow {
            program: &self.program,
            config: &self.config,
            news: &self.news.1,
            stop_timeout: self.stop_timeout,
        };
        let ended = follow.until_end(&mut work, &mut inbox);
        self.sessions.close(slot);
        match ended {
            Ok(Ended::Stopped(stopped)) => {
                follow.finish(work, &inbox.reactor);
                // With the writer went the last chunk, before the service hears that the instance has stopped.
                drop(stopped);
            }
            Ok(Ended::Abandoned) => {}
            Ok(Ended::Guardrail(field)) => {
                self.program.warning(&format!(
                    "{NAME}: the daemon has used more than {field}; the profile ends"
                ));
                work.hit_guardrail = true;
                follow.finish(work, &inbox.reactor);
                drop(inbox.await_stop());
            }
            Err(error) => {
                self.program
                    .warning(&format!("{NAME}: nothing more is sampled: {error}"));
                follow.finish(work, &inbox.reactor);
                drop(inbox.await_stop());
            }
        }
    }
}

/// The loop of the thread.
struct Follow<'a> {
    program: &'a Arc<dyn ProducerProgram>,
    config: &'a HeapConfig,
    news: &'a Receiver<News>,
    stop_timeout: Duration,
}

impl Follow<'_> {
    fn until_end(&self, work: &mut Work, inbox: &mut Inbox) -> Result<Ended, ReactorError> {
        let began = Instant::now();
        let cpu_before = daemon_cpu_time();
        let mut next_dump = self.config.continuous.map(|continuous| began + continuous.phase);
        let mut next_check = began + CHECK_PERIOD;
        let mut pause = SHORTEST_PAUSE;
        let mut events = Events::new();
        loop {
            loop {
                match inbox.try_receive() {
                    Ok(Command { what, done }) => match what {
                        What::ClearIncrementalState => work.collector.clear_incremental_state(),
                        What::Flush => {
                            work.write_dumps();
                            work.writer.flush();
                            drop(done);
                        }
                        What::Stop => return Ok(Ended::Stopped(done)),
                    },
                    Err(Nothing::SoFar) => break,
                    Err(Nothing::EverAgain) => return Ok(Ended::Abandoned),
                }
            }
            // One at a time, because it may take long: commands come in between.
            let has_heard = match self.news.try_receive() {
                Ok(news) => {
                    self.hear(news, work, &inbox.reactor)?;
                    true
                }
                Err(_) => false,
            };
            for event in events.ready() {
                if let Some(client) = work.clients.get_mut(&event.token) {
                    client.end(Ending::Dead);
                }
            }
            let came = work.read_all(&inbox.reactor)?;
            let now = Instant::now();
            if let (Some(due), Some(continuous)) = (next_dump, self.config.continuous)
                && now >= due
            {
                work.dump_all(More::Comes);
                // A dump that came late does not bring others closer together.
                next_dump = Some((due + continuous.interval).max(now));
            }
            if now >= next_check {
                next_check = now + CHECK_PERIOD;
                if let Some(field) = self.guardrail(cpu_before) {
                    return Ok(Ended::Guardrail(field));
                }
                work.check();
            }
            if let Some(mut dump) = work.dumps.pop_front() {
                match work.write_some(&mut dump) {
                    Step::More => work.dumps.push_front(dump),
                    Step::Done => work.heed_losses(),
                }
                if work.dumps.is_empty() {
                    // Otherwise the end of a dump waits for the next one.
                    work.writer.flush();
                }
                continue_with(&mut inbox.reactor, &mut events, Some(Duration::ZERO))?;
                continue;
            }
            pause = match came {
                _ if has_heard => SHORTEST_PAUSE,
                Came::Much => SHORTEST_PAUSE,
                Came::Little => (pause * 2).min(USUAL_PAUSE),
                Came::Nothing => (pause * 2).min(LONGEST_PAUSE),
            };
            let until_check = next_check.saturating_duration_since(now);
            let mut wait = match (has_heard, work.clients.is_empty()) {
                (true, _) => Duration::ZERO,
                (false, true) => until_check,
                (false, false) => pause.min(until_check),
            };
            if let Some(due) = next_dump {
                wait = wait.min(due.saturating_duration_since(now));
            }
            continue_with(&mut inbox.reactor, &mut events, Some(wait))?;
        }
    }

    fn guardrail(&self, cpu_before: Duration) -> Option<&'static str> {
        if self.config.most_daemon_memory_kb.is_some_and(daemon_exceeds) {
            return Some("max_heapprofd_memory_kb");
        }
        let most_cpu = self.config.most_daemon_cpu;
        if most_cpu.is_some_and(|most| daemon_cpu_time().saturating_sub(cpu_before) > most) {
            return Some("max_heapprofd_cpu_secs");
        }
        None
    }

    fn hear(&self, news: News, work: &mut Work, reactor: &Reactor) -> Result<(), ReactorError> {
        match news {
            News::Rejected(pid) => {
                if work.rejected.len() < MOST_REJECTED {
                    work.rejected.insert(pid);
                }
            }
            News::Replaced(pid) => work.succeed(pid, reactor)?,
            News::Arrived(client) => {
                work.succeed(client.pid(), reactor)?;
                work.take_in(*client, reactor)?;
            }
        }
        Ok(())
    }

    /// Reads what clients had written by now, writes all dumps and ends the profile.
    fn finish(&self, mut work: Work, reactor: &Reactor) {
        let began = Instant::now();
        work.successions.end_at(began + self.stop_timeout / 2);
        // Some may have written already.
        while let Ok(news) = self.news.try_receive() {
            if began.elapsed() > self.stop_timeout / 4 {
                work.collector.set_unwinding(Unwinding::TooLate);
            }
            if let Err(error) = self.hear(news, &mut work, reactor) {
                self.program.warning(&format!("{NAME}: {error}"));
            }
        }
        for client in work.clients.values_mut() {
            client.feed.tell_end();
            client.feed.end_here();
        }
        // The rest of the time is for writing.
        let unwinding = began + self.stop_timeout / 2;
        let until = Until {
            unwinding,
            reading: unwinding.max(Instant::now()) + GRACE,
        };
        reading::to_the_end(
            &mut work.collector,
            work.clients.values_mut(),
            &mut work.writer,
            until,
        );
        work.dump_all(More::Never);
        work.write_dumps();
        if !work.rejected.is_empty() {
            let rejected = std::mem::take(&mut work.rejected);
            work.collector.write_rejected(rejected, &mut work.writer);
        }
        work.writer.flush();
    }
}

fn continue_with(
    reactor: &mut Reactor,
    events: &mut Events,
    wait: Option<Duration>,
) -> Result<(), ReactorError> {
    let deadline = wait.map(|wait| {
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Deadline::Boot(boot_now().saturating_add(wait))
    });
    reactor.wait(events, deadline)
}

impl Work {
    fn take_in(&mut self, mut client: Client, reactor: &Reactor) -> Result<(), ReactorError> {
        let pid = client.pid();
        if let Some(met) = client.met.take() {
            self.collector.meet(pid, met);
        }
        if self.remembered.get(&pid).is_some() {
            // Serial numbers are far fewer.
            client.edition = Edition(client.claim().serial() as u32);
        }
        self.remembered.get_or_insert_with(pid, || ());
        self.token += 1;
        let token = Token(self.token);
        let registered = reactor.register(&client, token, Interest::Readable);
        self.clients.insert(token, client);
        registered
    }

    /// The process with this id, if there is one, is about to be followed by another one.
    fn succeed(&mut self, pid: i32, reactor: &Reactor) -> Result<(), ReactorError> {
        let before = self.clients.iter().find(|(_, client)| client.pid() == pid);
        let Some(&token) = before.map(|(token, _)| token) else {
            return Ok(());
        };
        let Some(mut client) = self.clients.remove(&token) else {
            return Ok(());
        };
        client.end(Ending::Replaced);
        let (user, began) = (client.claim().user(), Instant::now());
        let until = self.successions.until(user, began);
        let clients = std::iter::once(&mut client);
        reading::to_the_end(&mut self.collector, clients, &mut self.writer, until);
        self.successions.charge(user, began, Instant::now());
        self.let_go(token, client, reactor)
    }

    /// Gives each client a turn, and lets go of those that have ended. Returns how much has come to the client to which most has.
    fn read_all(&mut self, reactor: &Reactor) -> Result<Came, ReactorError> {
        let mut most = Came::Nothing;
        let tokens: Vec<Token> = self.clients.keys().copied().collect();
        for token in tokens {
            let Some(mut client) = self.clients.remove(&token) else {
                continue;
            };
            let came = client.feed.came();
            let until = Instant::now() + TURN;
            let last = reading::turn(&mut self.collector, &mut client, &mut self.writer, until);
            if last == Entered::Record {
                most = most.max(came);
            }
            match last {
                Entered::End => self.let_go(token, client, reactor)?,
                _ => {
                    self.clients.insert(token, client);
                }
            }
            while self.dumps.len() > MOST_DUMPS {
                self.write_dump();
            }
            self.heed_losses();
        }
        Ok(most)
    }

    /// A client has ended: its books are dumped, and it is forgotten.
    fn let_go(&mut self, token: Token, mut client: Client, reactor: &Reactor) -> Result<(), ReactorError> {
        reactor.deregister(&client, token)?;
        self.dump(&mut client, More::Never);
        self.collector.forget(client.pid(), &client.feed);
        if self.collector.should_forget_stacks() {
            self.forget_stacks();
        }
        Ok(())
    }

    fn forget_stacks(&mut self) {
        let feeds = self.clients.values_mut().map(|client| &mut client.feed);
        self.collector.forget_stacks(feeds, self.dumps.iter());
    }

    fn dump(&mut self, client: &mut Client, more: More) {
        let Client { feed, about, .. } = client;
        let hit_guardrail = self.hit_guardrail;
        let dumps = self.collector.dumps(feed, |told, heap, until| {
            let header = about.header(told, heap, until);
            Header {
                hit_guardrail,
                // Readers take what comes later for another process.
                disconnected: header.disconnected && more == More::Never,
                ..header
            }
        });
        self.dumps.extend(dumps);
    }

    fn dump_all(&mut self, more: More) {
        let mut clients = std::mem::take(&mut self.clients);
        for client in clients.values_mut() {
            self.dump(client, more);
        }
        self.clients = clients;
    }

    /// Dumps clients that would run out of room for new call stacks otherwise. Stacks that they free then are forgotten at a later look.
    fn dump_those_that_need_room(&mut self) {
        let mut clients = std::mem::take(&mut self.clients);
        for client in clients.values_mut() {
            if self.collector.wants_dump(&mut client.feed) {
                self.dump(client, More::Comes);
            }
        }
        self.clients = clients;
    }

    fn write_dump(&mut self) {
        if let Some(mut dump) = self.dumps.pop_front() {
            while self.write_some(&mut dump) == Step::More {}
        }
    }

    fn write_some(&mut self, dump: &mut Dump) -> Step {
        let before = self.writer.losses();
        let step = self.collector.write(dump, &mut self.writer);
        // Packets that follow a lost one in a row are lost, too, and do not count as another loss.
        self.has_lost |= self.writer.losses() != before || self.writer.is_losing();
        step
    }

    /// If packets of dumps were lost, the next dumps tell everything again. To be called before books forget what was told.
    fn heed_losses(&mut self) {
        if std::mem::take(&mut self.has_lost) {
            let feeds = self.clients.values_mut().map(|client| &mut client.feed);
            self.collector.tell_again(feeds);
        }
    }

    fn write_dumps(&mut self) {
        while !self.dumps.is_empty() {
            self.write_dump();
        }
        self.heed_losses();
    }

    /// Does the checks that are due from time to time.
    fn check(&mut self) {
        self.collector.distrust_mappings();
        for client in self.clients.values_mut() {
            if client.is_replaced() {
                client.end(Ending::Replaced);
            }
        }
        let feeds = self.clients.values_mut().map(|client| &mut client.feed);
        self.collector.make_room(feeds, self.dumps.iter());
        self.dump_those_that_need_room();
    }
}
