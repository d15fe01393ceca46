//! The recorder in a machine of its own: sessions, a disk, and a clock, all from random events.

use proptest::prelude::*;

use super::*;

/// An event outside of the recorder.
#[derive(Debug, Clone)]
enum Event {
    Pass(u64),
    /// A session with the room that its files and its ring need.
    Add(u8, u64, u64),
    /// The ring of a session takes this share of its room.
    Fill(u8, u8),
    Leave(u8),
    End(u8),
    Request(u8, u8, bool),
    /// A seal that is under way ends: with this share of its room, or with a failure.
    Finish(usize, Option<u8>),
    /// One of the files, or of those that will be there, is uploaded.
    Upload(usize),
    /// Files can be deleted, or not, from now on.
    Deletable(bool),
    /// The other users of the disk take so much.
    Others(u64),
    Quota(u64),
    Keep(Option<u64>),
    /// The clock on the wall is set.
    ClockSet(i64),
    /// The recorder is killed and starts again.
    Kill,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..5000u64).prop_map(Event::Pass),
        2 => (0..3u8, 1..400u64, prop_oneof![Just(0), 0..200u64]).prop_map(|(name, room, ring)| Event::Add(name, room, ring)),
        4 => (0..3u8, 0..=100u8).prop_map(|(name, share)| Event::Fill(name, share)),
        1 => (0..3u8).prop_map(Event::Leave),
        1 => (0..3u8).prop_map(Event::End),
        8 => (0..4u8, 0..3u8, any::<bool>()).prop_map(|(name, reason, person)| Event::Request(name, reason, person)),
        6 => (0..4usize, prop::option::weighted(0.8, 0..=100u8)).prop_map(|(which, share)| Event::Finish(which, share)),
        3 => (0..8usize).prop_map(Event::Upload),
        1 => any::<bool>().prop_map(Event::Deletable),
        1 => (0..900u64).prop_map(Event::Others),
        1 => (0..1500u64).prop_map(Event::Quota),
        1 => prop::option::of(0..20_000u64).prop_map(Event::Keep),
        1 => (-100_000..100_000i64).prop_map(Event::ClockSet),
        1 => Just(Event::Kill),
    ]
}

const DISK: u64 = 1000;

struct Machine {
    recorder: Recorder,
    settings: Settings,
    now: Duration,
    wall: i64,
    /// The disk. Files that are being written count with all that they may take.
    files: BTreeMap<FileName, u64>,
    writing: BTreeMap<SealId, Order>,
    uploaded: BTreeSet<FileName>,
    /// Files that could not be deleted since the settings were read last.
    stuck: BTreeSet<FileName>,
    others: u64,
    deletable: bool,
    /// The sessions that were started and have not ended.
    running: BTreeSet<SessionName>,
    known: BTreeSet<SessionName>,
    /// The rooms of rings, and their contents.
    rings: BTreeMap<SessionName, (u64, u64)>,
    leftovers: BTreeMap<SealId, u64>,
    asked: BTreeSet<SealId>,
    requests: u64,
    told: u64,
    /// After the quota was lowered, the disk may have more than it until files are deleted.
    is_settled: bool,
}

impl Machine {
    fn new() -> Machine {
        let settings = Settings {
            quota: 700,
            burst: 2,
            period: Duration::from_secs(3),
            ..Settings::default()
        };
        Machine {
            recorder: Recorder::new(&settings, [], Counters::default()),
            settings,
            now: Duration::ZERO,
            wall: 1_000_000_000,
            files: BTreeMap::new(),
            writing: BTreeMap::new(),
            uploaded: BTreeSet::new(),
            stuck: BTreeSet::new(),
            others: 0,
            deletable: true,
            running: BTreeSet::new(),
            known: BTreeSet::new(),
            rings: BTreeMap::new(),
            leftovers: BTreeMap::new(),
            asked: BTreeSet::new(),
            requests: 0,
            told: 0,
            is_settled: true,
        }
    }

    fn now(&self) -> Now {
        let taken = self.others + self.files.values().sum::<u64>() + self.in_rings();
        Now {
            monotonic: self.now,
            wall: self.wall,
            free: DISK.saturating_sub(taken),
        }
    }

    fn occupied(&self) -> u64 {
        let writing: u64 = self.writing.values().map(|order| order.most).sum();
        self.files.values().sum::<u64>() + writing + self.in_rings()
    }

    /// The same, with the rings at their largest.
    fn accounted(&self) -> u64 {
        let running = self.rings.iter().filter(|(name, _)| self.running.contains(*name));
        let rings = running.map(|(_, (room, bytes))| room - bytes);
        self.occupied() + rings.sum::<u64>()
    }

    fn in_rings(&self) -> u64 {
        let rings: u64 = self.rings.values().map(|(_, bytes)| bytes).sum();
        rings + self.leftovers.values().sum::<u64>()
    }

    fn salvage(&mut self, name: &SessionName, bytes: u64) {
        let now = self.now();
        let id = self.recorder.salvage(name, &Reason::new("crash"), bytes, &now);
        self.leftovers.insert(id, bytes);
        assert!(self.asked.insert(id));
        self.requests += 1;
    }

    fn rings_fit(&self, quota: u64) -> bool {
        3 * self.rings.values().map(|(room, _)| room).sum::<u64>() <= quota
    }

    fn happen(&mut self, event: Event) {
        let name = |number: u8| SessionName::new(&format!("s{number}")).unwrap();
        let now = self.now();
        match event {
            Event::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                self.wall += ms as i64;
            }
            Event::Add(number, room, ring) => {
                self.happen(Event::Leave(number));
                self.settle();
                self.rings.insert(name(number), (ring, 0));
                if !self.rings_fit(self.settings.quota) {
                    self.rings.remove(&name(number));
                }
                let ring = self.rings.get(&name(number)).map_or(0, |(room, _)| *room);
                self.recorder.add_session(name(number), room, ring, &now);
                self.known.insert(name(number));
            }
            Event::Leave(number) => {
                self.recorder.remove_session(&name(number));
                self.known.remove(&name(number));
                self.settle();
                self.rings.remove(&name(number));
            }
            Event::End(number) => {
                if self.running.remove(&name(number)) {
                    let ring = self.rings.get_mut(&name(number));
                    let bytes = ring.map_or(0, |(_, bytes)| std::mem::take(bytes));
                    self.recorder.session_ended(&name(number), &now);
                    if bytes > 0 {
                        self.salvage(&name(number), bytes);
                    }
                }
            }
            Event::Fill(number, share) => {
                let left = DISK - self.others - self.occupied();
                if self.running.contains(&name(number))
                    && let Some((room, bytes)) = self.rings.get_mut(&name(number))
                {
                    *bytes = (*room * u64::from(share) / 100).min(*bytes + left);
                }
            }
            Event::Request(number, reason, person) => {
                let asker = if person { Asker::Person } else { Asker::Machine };
                let reason = Reason::new(&format!("r{reason}"));
                let id = self.recorder.request(&name(number), &reason, asker, &now);
                assert!(self.asked.insert(id));
                self.requests += 1;
            }
            Event::Finish(which, share) => {
                let Some(id) = self.writing.keys().nth(which).copied() else {
                    return;
                };
                let order = self.writing.remove(&id).unwrap();
                let result = share.map(|share| Written {
                    bytes: order.most * u64::from(share) / 100,
                    is_cut: false,
                });
                if let Some(written) = result {
                    assert!(
                        self.files.insert(order.file.clone(), written.bytes).is_none(),
                        "a name twice"
                    );
                }
                // What could not be sealed stays.
                if result.is_some() {
                    self.leftovers.remove(&id);
                }
                self.recorder
                    .seal_ended(id, result.ok_or_else(|| "no".to_owned()), &now);
            }
            Event::Upload(which) => {
                self.uploaded.extend(self.files.keys().nth(which).cloned());
                self.recorder.set_uploaded(self.uploaded.clone());
            }
            Event::Deletable(deletable) => self.deletable = deletable,
            Event::Others(bytes) => {
                let ours = self.occupied();
                self.others = bytes.min(DISK.saturating_sub(ours));
            }
            Event::Quota(quota) => {
                // The driver refuses a quota that is too small for the rings.
                if !self.rings_fit(quota) {
                    return;
                }
                self.is_settled &= quota >= self.accounted();
                self.settings.quota = quota;
                self.set_settings();
            }
            Event::Keep(ms) => {
                self.settings.keep = ms.map(Duration::from_millis);
                self.set_settings();
            }
            Event::ClockSet(by) => self.wall += by,
            Event::Kill => {
                // Files under way are swept away at the start; the programs that asked are gone.
                self.writing.clear();
                self.asked.clear();
                self.running.clear();
                self.known.clear();
                let files: Vec<_> = self
                    .files
                    .iter()
                    .map(|(name, size)| (name.clone(), *size))
                    .collect();
                let counters = self.recorder.counters().clone();
                self.requests = counters.total();
                self.told = self.requests;
                self.recorder = Recorder::new(&self.settings, files, counters);
                self.recorder.set_uploaded(self.uploaded.clone());
                self.stuck.clear();
                let rings = std::mem::take(&mut self.rings)
                    .into_values()
                    .map(|(_, bytes)| bytes);
                let left: Vec<u64> = rings
                    .chain(std::mem::take(&mut self.leftovers).into_values())
                    .collect();
                for bytes in left.into_iter().filter(|bytes| *bytes > 0) {
                    self.salvage(&name(0), bytes);
                }
            }
        }
    }

    /// Does all that the recorder wants, and checks each step.
    fn settle(&mut self) {
        for step in 0.. {
            assert!(step < 10_000, "it never ends");
            let now = self.now();
            let Some(action) = self.recorder.poll(&now) else {
                break;
            };
            match action {
                Action::Start(name) => {
                    assert!(self.known.contains(&name));
                    assert!(self.running.insert(name), "it runs already");
                }
                Action::Stop(name) => {
                    assert!(self.running.remove(&name), "it does not run");
                    if let Some((_, bytes)) = self.rings.get_mut(&name) {
                        *bytes = 0;
                    }
                }
                Action::Seal(order) => {
                    let is_salvaged = self.leftovers.contains_key(&order.id);
                    assert!(is_salvaged || self.running.contains(&order.file.session));
                    let mut writing = self.writing.values();
                    assert!(
                        is_salvaged
                            || writing.all(|other| {
                                other.file.session != order.file.session
                                    || self.leftovers.contains_key(&other.id)
                            })
                    );
                    assert!(!self.files.contains_key(&order.file));
                    let most = self.occupied() + order.most;
                    assert!(most <= self.settings.quota, "{most} of {}", self.settings.quota);
                    assert!(most + self.others <= DISK, "the disk would be full");
                    self.writing.insert(order.id, order);
                }
                Action::Remove(name) => {
                    assert!(self.files.contains_key(&name), "it is not there");
                    let deletable = || self.files.keys().filter(|name| !self.stuck.contains(*name));
                    let oldest = deletable().next();
                    let dispensable = deletable().find(|name| self.uploaded.contains(*name)).or(oldest);
                    let is_old = |name: &FileName| {
                        let keep = self.settings.keep.map(|keep| keep.as_millis() as i64);
                        keep.is_some_and(|keep| name.time < self.wall - keep)
                    };
                    assert!(
                        dispensable == Some(&name) || oldest == Some(&name) && is_old(&name),
                        "{name} goes before {dispensable:?}"
                    );
                    match self.deletable {
                        true => drop(self.files.remove(&name)),
                        false => drop(self.stuck.insert(name.clone())),
                    }
                    self.recorder.removed(&name, self.deletable);
                }
                Action::Tell(id, outcome) => {
                    assert!(self.asked.remove(&id), "nobody asked, or it was told before");
                    self.told += 1;
                    self.leftovers.remove(&id);
                    if let Outcome::Sealed { file, written } = outcome {
                        // Unless it had to go at once.
                        assert!(self.files.get(&file).is_none_or(|size| *size == written.bytes));
                    }
                }
                Action::Save => {}
            }
        }
        if self.accounted() <= self.settings.quota {
            self.is_settled = true;
        }
        if self.is_settled {
            assert!(self.occupied() <= self.settings.quota);
        }
        let on_shelf: Vec<_> = self
            .recorder
            .shelf()
            .files()
            .map(|(name, size)| (name.clone(), size))
            .collect();
        let on_disk: Vec<_> = self
            .files
            .iter()
            .map(|(name, size)| (name.clone(), *size))
            .collect();
        assert_eq!(on_shelf, on_disk);
        assert_eq!(self.recorder.counters().total(), self.told);
        assert_eq!(self.requests, self.told + self.recorder.open_requests() as u64);
        assert_eq!(self.recorder.open_requests(), self.asked.len());
    }

    fn set_settings(&mut self) {
        self.recorder.set_settings(&self.settings);
        self.stuck.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_quota_holds_and_each_request_has_one_outcome(events in prop::collection::vec(event(), 1..150)) {
        let mut machine = Machine::new();
        for event in events {
            machine.happen(event);
            machine.settle();
        }
        // Once all seals have ended and nothing stands in the way, nobody is left without an answer.
        machine.happen(Event::Deletable(true));
        machine.happen(Event::Others(0));
        machine.set_settings();
        machine.happen(Event::Pass(ROOM_PERIOD.as_millis() as u64));
        machine.settle();
        while !machine.writing.is_empty() {
            machine.happen(Event::Finish(0, Some(50)));
            machine.settle();
        }
        prop_assert_eq!(machine.recorder.open_requests(), 0);
        // Files that are too old are gone, once the clock is believed.
        machine.happen(Event::Pass(STEADY.as_millis() as u64));
        machine.settle();
        if let Some(keep) = machine.settings.keep {
            let now = machine.now();
            let oldest = machine.files.keys().next().map_or(i64::MAX, |name| name.time);
            prop_assert!(oldest >= now.wall - keep.as_millis() as i64);
            if oldest < i64::MAX {
                prop_assert!(machine.recorder.next_deadline(&now).is_some());
            }
        }
    }
}

#[test]
fn a_clock_that_is_set_forward_costs_no_file_until_it_has_gone_on_for_a_while() {
    let settings = Settings {
        keep: Some(Duration::from_secs(3600)),
        ..Settings::default()
    };
    let (mut recorder, mut now, name) = running(&settings);
    recorder.request(&name, &Reason::new("r"), Asker::Person, &now);
    let file = sealed(&mut recorder, &now).unwrap();
    while recorder.poll(&now).is_some() {}
    let mut pass = |now: &mut Now, seconds: u64, set: i64| {
        now.monotonic += Duration::from_secs(seconds);
        now.wall += (seconds as i64 + set) * 1000;
        std::iter::from_fn(|| recorder.poll(now)).find(|action| matches!(action, Action::Remove(_)))
    };
    let year = 365 * 86_400;
    assert_eq!(pass(&mut now, 900, year), None, "it is set forward");
    assert_eq!(pass(&mut now, 300, -year), None, "and back");
    assert_eq!(pass(&mut now, 900, 0), None);
    assert_eq!(pass(&mut now, 0, year), None, "and forward again");
    assert_eq!(pass(&mut now, 599, 0), None);
    assert_eq!(
        pass(&mut now, 1, 0),
        Some(Action::Remove(file)),
        "that seems to be right"
    );
}

fn running(settings: &Settings) -> (Recorder, Now, SessionName) {
    let mut recorder = Recorder::new(settings, [], Counters::default());
    let now = Now {
        monotonic: Duration::from_secs(1),
        wall: 1_000_000,
        free: u64::MAX,
    };
    let name = SessionName::new("a").unwrap();
    recorder.add_session(name.clone(), 100, 0, &now);
    assert_eq!(recorder.poll(&now), Some(Action::Start(name.clone())));
    assert_eq!(recorder.poll(&now), Some(Action::Save));
    (recorder, now, name)
}

fn sealed(recorder: &mut Recorder, now: &Now) -> Option<FileName> {
    let Some(Action::Seal(order)) = recorder.poll(now) else {
        return None;
    };
    let written = Written {
        bytes: 100,
        is_cut: false,
    };
    recorder.seal_ended(order.id, Ok(written), now);
    assert!(matches!(recorder.poll(now), Some(Action::Tell(id, _)) if id == order.id));
    Some(order.file)
}

#[test]
fn a_storm_of_one_reason_leaves_the_files_of_others_and_a_person_is_never_limited() {
    let settings = Settings {
        quota: 1000,
        burst: 2,
        ..Settings::default()
    };
    let (mut recorder, now, name) = running(&settings);
    let (storm, other) = (Reason::new("storm"), Reason::new("other"));
    let mut files = 0;
    for _ in 0..100 {
        recorder.request(&name, &storm, Asker::Machine, &now);
        files += usize::from(sealed(&mut recorder, &now).is_some());
        while recorder.poll(&now).is_some() {}
    }
    assert_eq!(files, 2);
    for (reason, asker) in [(&other, Asker::Machine), (&storm, Asker::Person)] {
        recorder.request(&name, reason, asker, &now);
        assert!(sealed(&mut recorder, &now).is_some());
    }
    let tallies: Vec<_> = recorder
        .counters()
        .iter()
        .map(|(key, tally)| (key, tally.sealed))
        .collect();
    assert_eq!(tallies, [("a/other", 1), ("a/storm", 3)]);
}

#[test]
fn the_oldest_file_makes_room_and_a_file_larger_than_the_quota_costs_no_other() {
    let settings = Settings {
        quota: 250,
        ..Settings::default()
    };
    let (mut recorder, mut now, name) = running(&settings);
    let reason = Reason::new("r");
    let mut files = Vec::new();
    for _ in 0..2 {
        now.wall += 1000;
        recorder.request(&name, &reason, Asker::Person, &now);
        files.push(sealed(&mut recorder, &now).unwrap());
    }
    recorder.request(&name, &reason, Asker::Person, &now);
    assert_eq!(recorder.poll(&now), Some(Action::Remove(files[0].clone())));
    // Until it is gone there is no room.
    assert_eq!(recorder.poll(&now), None);
    recorder.removed(&files[0], true);
    assert!(sealed(&mut recorder, &now).is_some());

    let big = SessionName::new("big").unwrap();
    recorder.add_session(big.clone(), 251, 0, &now);
    assert_eq!(recorder.poll(&now), Some(Action::Start(big.clone())));
    let id = recorder.request(&big, &reason, Asker::Person, &now);
    assert_eq!(
        recorder.poll(&now),
        Some(Action::Tell(id, Outcome::Refused(Refusal::NoRoom)))
    );
    assert_eq!(recorder.shelf().used(), 200);
}

#[test]
fn a_full_disk_refuses_seals_and_nothing_else() {
    let (mut recorder, mut now, name) = running(&Settings::default());
    now.free = 99;
    let id = recorder.request(&name, &Reason::new("r"), Asker::Machine, &now);
    assert_eq!(
        recorder.poll(&now),
        Some(Action::Tell(id, Outcome::Refused(Refusal::NoRoom)))
    );
    assert!(recorder.sessions().all(|(_, life)| life.is_running()));
}

#[test]
fn on_a_full_disk_leftovers_wait_for_room_and_hold_up_no_other_seal() {
    let settings = Settings {
        quota: 1000,
        ..Settings::default()
    };
    let (mut recorder, mut now, name) = running(&settings);
    now.free = 99;
    let crash = Reason::new("crash");
    let first = recorder.salvage(&name, &crash, 150, &now);
    assert_eq!(recorder.poll(&now), None, "it waits, because it would be deleted");
    let due = recorder.next_deadline(&now);
    assert!(
        due.is_some_and(|due| due > now.monotonic && due <= now.monotonic + ROOM_PERIOD),
        "it is looked at again: {due:?}"
    );
    let second = recorder.salvage(&name, &crash, 120, &now);
    assert_eq!(recorder.poll(&now), None, "and so do those behind it");
    // A smaller file has room.
    now.free = 100;
    recorder.request(&name, &Reason::new("r"), Asker::Person, &now);
    assert!(sealed(&mut recorder, &now).is_some());
    // The quota bounds them, with the file that is to be made of one.
    let third = recorder.salvage(&name, &crash, 366, &now);
    let refused = std::iter::from_fn(|| recorder.poll(&now)).collect::<Vec<_>>();
    assert!(
        refused.contains(&Action::Tell(third, Outcome::Refused(Refusal::NoRoom))),
        "{refused:?}"
    );
    now.free = 300;
    for id in [first, second] {
        let Some(Action::Seal(order)) = recorder.poll(&now) else {
            panic!("{id:?} has room")
        };
        assert_eq!(order.id, id);
        let written = Written {
            bytes: 1,
            is_cut: false,
        };
        recorder.seal_ended(id, Ok(written), &now);
        assert!(matches!(recorder.poll(&now), Some(Action::Tell(told, _)) if told == id));
    }
}

#[test]
fn what_is_left_of_a_ring_stays_until_a_copy_is_complete() {
    let (mut recorder, mut now, name) = running(&Settings::default());
    let id = recorder.salvage(&name, &Reason::new("crash"), 100, &now);
    for _ in 0..3 {
        let Some(Action::Seal(order)) = recorder.poll(&now) else {
            panic!("it is tried again")
        };
        assert_eq!(order.id, id);
        recorder.seal_ended(id, Err("the disk is full".to_owned()), &now);
        assert_eq!(recorder.poll(&now), None, "not at once, and nothing is refused");
        assert_eq!(recorder.shelf().reserved(), 0);
        let due = recorder.next_deadline(&now);
        assert_eq!(due, Some(now.monotonic + ROOM_PERIOD));
        now.monotonic += ROOM_PERIOD;
    }
    assert!(sealed(&mut recorder, &now).is_some());
}

#[test]
fn what_is_left_of_a_ring_takes_its_room_until_it_is_sealed() {
    let settings = Settings {
        quota: 300,
        ..Settings::default()
    };
    let (mut recorder, now, name) = running(&settings);
    let crash = Reason::new("crash");
    let id = recorder.salvage(&name, &crash, 100, &now);
    // Two such and a third one: there is no room for both the leftovers and a file.
    let second = recorder.salvage(&name, &crash, 100, &now);
    let third = recorder.salvage(&name, &crash, 101, &now);
    let no_room = Outcome::Refused(Refusal::NoRoom);
    assert_eq!(recorder.poll(&now), Some(Action::Tell(third, no_room)));
    for expected in [id, second] {
        let Some(Action::Seal(order)) = recorder.poll(&now) else {
            panic!("{expected:?} has room")
        };
        assert_eq!((order.id, order.most), (expected, 100));
        // With both leftovers, the first file has all the room that is left.
        let written = Written {
            bytes: 50,
            is_cut: false,
        };
        recorder.seal_ended(order.id, Ok(written), &now);
        assert!(matches!(recorder.poll(&now), Some(Action::Tell(..))));
    }
    assert_eq!(recorder.shelf().used(), 100);
    // The leftovers are gone, so two hundred are free.
    recorder.add_session(SessionName::new("b").unwrap(), 200, 0, &now);
    while recorder.poll(&now).is_some() {}
    recorder.request(&SessionName::new("b").unwrap(), &crash, Asker::Person, &now);
    assert!(matches!(recorder.poll(&now), Some(Action::Seal(order)) if order.most == 200));
}

#[test]
fn what_is_left_of_rings_is_limited_only_when_files_would_have_to_go() {
    let settings = Settings {
        quota: 1000,
        burst: 1,
        ..Settings::default()
    };
    let (mut recorder, now, name) = running(&settings);
    let crash = Reason::new("crash");
    let mut files = 0;
    for _ in 0..20 {
        recorder.salvage(&name, &crash, 100, &now);
        files += usize::from(sealed(&mut recorder, &now).is_some());
        while recorder.poll(&now).is_some() {}
    }
    // There is room for nine beside the next leftover. The one after them may have the room of an old file, and waits for it.
    assert_eq!((files, recorder.open_requests()), (9, 1));
    let limited = recorder
        .counters()
        .iter()
        .map(|(_, tally)| tally.refused["limited"]);
    assert_eq!(limited.sum::<u64>(), 10);
}

#[test]
fn a_session_that_ends_while_it_is_sealed_can_be_sealed_again_once_the_driver_has_ended_that() {
    let (mut recorder, mut now, name) = running(&Settings::default());
    let reason = Reason::new("r");
    recorder.request(&name, &reason, Asker::Person, &now);
    let Some(Action::Seal(order)) = recorder.poll(&now) else {
        panic!("there is room")
    };
    recorder.session_ended(&name, &now);
    now.monotonic += Duration::from_secs(1);
    while recorder.poll(&now).is_some() {}
    let id = recorder.request(&name, &reason, Asker::Machine, &now);
    let under_way = Outcome::Refused(Refusal::UnderWay);
    assert_eq!(recorder.poll(&now), Some(Action::Tell(id, under_way)));
    recorder.seal_ended(order.id, Err("the session has ended".to_owned()), &now);
    assert!(matches!(recorder.poll(&now), Some(Action::Tell(id, _)) if id == order.id));
    assert_eq!((recorder.open_requests(), recorder.shelf().reserved()), (0, 0));
    recorder.request(&name, &reason, Asker::Person, &now);
    assert!(sealed(&mut recorder, &now).is_some());
}

#[test]
fn requests_for_one_session_are_carried_out_one_after_the_other_and_hold_up_no_other_session() {
    let (mut recorder, now, name) = running(&Settings::default());
    let other = SessionName::new("other").unwrap();
    recorder.add_session(other.clone(), 1, 0, &now);
    while recorder.poll(&now).is_some() {}
    let (slow, fast) = (Reason::new("slow"), Reason::new("fast"));
    let first = recorder.request(&name, &slow, Asker::Machine, &now);
    let second = recorder.request(&name, &fast, Asker::Machine, &now);
    let third = recorder.request(&name, &slow, Asker::Person, &now);
    let elsewhere = recorder.request(&other, &slow, Asker::Machine, &now);
    let orders = |recorder: &mut Recorder| -> Vec<SealId> {
        let actions = std::iter::from_fn(|| recorder.poll(&now));
        actions
            .filter_map(|action| match action {
                Action::Seal(order) => Some(order.id),
                _ => None,
            })
            .collect()
    };
    assert_eq!(orders(&mut recorder), [first, elsewhere]);
    // The first one may fail: the next ones do not depend on it.
    recorder.seal_ended(first, Err("the disk is full".to_owned()), &now);
    assert_eq!(orders(&mut recorder), [second]);
    let written = Written {
        bytes: 1,
        is_cut: false,
    };
    recorder.seal_ended(second, Ok(written), &now);
    assert_eq!(orders(&mut recorder), [third]);
}

#[test]
fn what_was_uploaded_makes_room_before_what_exists_only_here() {
    let settings = Settings {
        quota: 300,
        ..Settings::default()
    };
    let (mut recorder, mut now, name) = running(&settings);
    let reason = Reason::new("r");
    let mut files = Vec::new();
    for _ in 0..3 {
        now.wall += 1;
        recorder.request(&name, &reason, Asker::Person, &now);
        files.push(sealed(&mut recorder, &now).unwrap());
    }
    recorder.set_uploaded(BTreeSet::from([files[1].clone()]));
    for number in [1, 0, 2] {
        now.wall += 1;
        recorder.request(&name, &reason, Asker::Person, &now);
        assert_eq!(recorder.poll(&now), Some(Action::Remove(files[number].clone())));
        recorder.removed(&files[number], true);
        sealed(&mut recorder, &now).unwrap();
    }
}
