//! Slices of two threads through memory that is full again and again, as a reader sees them, against the actual ones.
//!
//! `FERRETTO_NESTING_SEED` is the first of the seeds, each of which is a different story, and `FERRETTO_NESTING_STORIES` is the number of stories.

use std::collections::HashMap;
use std::sync::mpsc;

use ferretto_client::arbiter::Partitioning;
use ferretto_proto::messages::commit_data_request::ChunksToMove;
use ferretto_smb::{ProducerSmb, ServiceSmb, SharedMemory};

use super::super::slices_left_open;
use super::*;
use crate::future::AsyncSlice;
use crate::trace_async;

/// The shortest duration of a step. It exceeds the disagreement of clocks, so that the time of an event shows its step.
const STEP_NS: u64 = 20_000;
/// The most by which clocks may disagree.
const TOLERANCE_NS: u64 = 5_000;

const PAGES: usize = 2;

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % limit as u64) as usize
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// A service that takes its time: chunks stay in the memory until it is told to read them.
struct Service {
    arbiter: Arc<Arbiter>,
    end: ServiceSmb,
    unread: std::collections::VecDeque<ChunksToMove>,
    /// Packets of each writer, in chunks that it has read.
    sequences: BTreeMap<u16, Vec<Vec<u8>>>,
}

impl Service {
    fn new(layout: PageLayout) -> Self {
        let memory = Arc::new(SharedMemory::create(PAGES * PageSize::MIN.bytes()).unwrap());
        let producer_end = ProducerSmb::new(memory.clone(), PageSize::MIN).unwrap();
        Self {
            arbiter: Arbiter::new(producer_end, Partitioning::Fixed(layout), Silent),
            end: ServiceSmb::new(memory, PageSize::MIN).unwrap(),
            unread: std::collections::VecDeque::new(),
            sequences: BTreeMap::new(),
        }
    }

    /// Reads so many chunks, which are free then.
    fn read(&mut self, chunks: usize) {
        for request in self.arbiter.take_requests() {
            if let Request::CommitData(commit) = request {
                self.unread.extend(commit.chunks_to_move);
            }
        }
        let mut payload = Vec::new();
        for chunk in self.unread.drain(..chunks.min(self.unread.len())) {
            let (page, chunk) = (chunk.page.unwrap() as usize, chunk.chunk.unwrap() as usize);
            payload.clear();
            let header = self.end.copy_chunk(page, chunk, &mut payload).unwrap();
            let packets = self.sequences.entry(header.writer.0).or_default();
            let mut rest = &payload[..];
            for index in 0..header.packet_count {
                let size = take_varint(&mut rest).unwrap();
                let continues = index == 0 && header.flags.bits() & 1 != 0;
                if size == DROPPED_PACKET_SIZE.into() {
                    packets.pop_if(|_| continues);
                    break;
                }
                let packet = rest.split_off(..size as usize).unwrap();
                match packets.last_mut() {
                    Some(last) if continues => last.extend(packet),
                    _ => packets.push(packet.to_vec()),
                }
            }
        }
    }
}

/// How a slice is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// With a handle that stays on its thread.
    Handle,
    /// With a handle that any thread may have.
    Async,
    /// Without a handle.
    Loose,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Thread,
    Named,
    Numbered,
}

static NAMED: NamedTrack = NamedTrack::new("Of both threads");

/// Literal names. There are enough of them that slices of one name are far apart.
macro_rules! with_literal {
    ($number:expr, $macro:ident!($($rest:tt)*)) => {
        with_literal!(@arms $number, $macro [$($rest)*] 0 "L0" 1 "L1" 2 "L2" 3 "L3" 4 "L4" 5 "L5" 6 "L6" 7 "L7")
    };
    (@arms $number:expr, $macro:ident $rest:tt $($literal:literal $name:literal)*) => {
        match $number % LITERALS {
            $($literal => with_literal!(@call $macro $name $rest),)*
            _ => unreachable!(),
        }
    };
    (@call $macro:ident $name:literal [$($rest:tt)*]) => { $macro!("c", $name $($rest)*) };
}

const LITERALS: usize = 8;

/// A step of a thread.
enum Step {
    Begin {
        number: usize,
        how: How,
        place: Place,
        dynamic: bool,
    },
    End {
        number: usize,
        how: How,
        place: Place,
        with_arguments: bool,
    },
    Instant {
        bytes: usize,
    },
    Pause,
}

/// Handles that any thread may have.
type Shared = Arc<Mutex<HashMap<usize, AsyncSlice>>>;

/// Does a step, on the thread that has these handles. Returns the track of a slice that begins.
fn take_step(step: Step, handles: &mut HashMap<usize, crate::Slice>, shared: &Shared) -> u64 {
    let numbered = Track::new(1234);
    let mut track = match step {
        Step::Begin {
            place: Place::Named, ..
        } => NAMED.uuid(),
        Step::Begin {
            place: Place::Numbered,
            ..
        } => numbered.uuid(),
        _ => Track::thread().uuid(),
    };
    match step {
        Step::Begin {
            number,
            how: How::Handle,
            place,
            dynamic,
        } => {
            let name = format!("D{number}");
            let slice = match (place, dynamic) {
                (Place::Thread, false) => with_literal!(number, trace_slice!()),
                (Place::Thread, true) => trace_slice!("c", name, "number" => number),
                (Place::Named, false) => with_literal!(number, trace_slice!(, track = &NAMED)),
                (Place::Named, true) => trace_slice!("c", name, track = &NAMED, |event| {
                    event.annotation("number", number);
                }),
                (Place::Numbered, false) => with_literal!(number, trace_slice!(, track = numbered)),
                (Place::Numbered, true) => trace_slice!("c", name, track = numbered),
            };
            handles.insert(number, slice);
        }
        Step::Begin {
            number,
            how: How::Loose,
            place,
            dynamic,
        } => {
            let name = format!("D{number}");
            match (place, dynamic) {
                (Place::Thread, false) => with_literal!(number, trace_event_begin!()),
                (Place::Thread, true) => trace_event_begin!("c", name, "number" => number),
                (Place::Named, false) => with_literal!(number, trace_event_begin!(, track = &NAMED)),
                (Place::Named, true) => trace_event_begin!("c", name, track = &NAMED),
                (Place::Numbered, false) => {
                    with_literal!(
                        number,
                        trace_event_begin!(, track = numbered, |event| {
                            event.annotation("number", number);
                        })
                    )
                }
                (Place::Numbered, true) => trace_event_begin!("c", name, track = numbered),
            }
        }
        Step::Begin {
            number,
            how: How::Async,
            ..
        } => {
            let slice = with_literal!(number, trace_async!());
            track = slice.uuid();
            shared.lock().unwrap().insert(number, slice);
        }
        Step::End {
            number,
            how: How::Handle,
            ..
        } => drop(handles.remove(&number).unwrap()),
        Step::End {
            number,
            how: How::Async,
            ..
        } => {
            let slice = shared.lock().unwrap().remove(&number);
            drop(slice.unwrap());
        }
        Step::End {
            number,
            how: How::Loose,
            place,
            with_arguments,
        } => match (place, with_arguments) {
            (Place::Thread, false) => trace_event_end!("c"),
            (Place::Thread, true) => trace_event_end!("c", "number" => number),
            (Place::Named, false) => trace_event_end!("c", track = &NAMED),
            (Place::Named, true) => trace_event_end!("c", track = &NAMED, "number" => number),
            (Place::Numbered, _) => trace_event_end!("c", track = numbered),
        },
        Step::Instant { bytes } => {
            let text = "x".repeat(bytes);
            trace_event_instant!("c", "Instant", "text" => text.as_str());
        }
        Step::Pause => {}
    }
    track
}

/// A thread that takes steps when it is told to.
struct Stepper<'scope> {
    steps: mpsc::Sender<Step>,
    done: mpsc::Receiver<(u64, u64, u64)>,
    thread: std::thread::ScopedJoinHandle<'scope, ()>,
}

impl<'scope> Stepper<'scope> {
    fn new<'env>(scope: &'scope std::thread::Scope<'scope, 'env>, shared: Shared) -> Self {
        let (steps, to_do) = mpsc::channel();
        let (tell, done) = mpsc::channel();
        let thread = scope.spawn(move || {
            let mut handles = HashMap::new();
            for step in to_do {
                let before = crate::clock::now();
                let track = take_step(step, &mut handles, &shared);
                let after = crate::clock::now();
                while crate::clock::now() < after + STEP_NS {}
                tell.send((before, after, track)).unwrap();
            }
            // These slices have not ended.
            handles.into_values().for_each(std::mem::forget);
        });
        Self { steps, done, thread }
    }

    /// Makes the thread take a step; returns the times of its beginning and end, and the track of a slice that begins.
    fn take(&self, step: Step) -> ((u64, u64), u64) {
        self.steps.send(step).unwrap();
        let (before, after, track) = self.done.recv().unwrap();
        ((before, after), track)
    }

    fn end(self) {
        drop(self.steps);
        self.thread.join().unwrap();
    }
}

/// A slice as it was.
#[derive(Debug)]
struct Slice {
    name: String,
    track: u64,
    how: How,
    /// The thread on which it began.
    thread: usize,
    place: Place,
    /// The slice around it on its track, when it began.
    parent: Option<usize>,
    begun: (u64, u64),
    ended: Option<(u64, u64)>,
}

/// A slice as readers see it.
#[derive(Debug)]
struct Seen {
    name: String,
    track: u64,
    parent: Option<usize>,
    begun: u64,
    ended: Option<u64>,
}

/// The slices in packets of several sequences, and how many ends were told late; as upstream's trace processor reads them.
fn read(sequences: &BTreeMap<u16, Vec<Vec<u8>>>, multiplier: u64) -> (Vec<Seen>, usize, usize) {
    let mut events = Vec::new();
    let mut late = 0;
    for packets in sequences.values() {
        let mut is_valid = false;
        let mut names = HashMap::new();
        let (mut incremental, mut default_clock, mut default_track) = (0, 0, 0);
        for packet in packets.iter().filter(|packet| !packet.is_empty()) {
            let packet = TracePacket::decode_from_slice(packet).unwrap();
            let flags = packet.sequence_flags.unwrap_or(0);
            if flags & 1 != 0 {
                is_valid = true;
                names.clear();
                let defaults = packet.trace_packet_defaults.as_option().unwrap();
                default_clock = defaults.timestamp_clock_id.unwrap();
                default_track = defaults.track_event_defaults.track_uuid.unwrap();
            } else if packet.previous_packet_dropped.unwrap_or(0) != 0 {
                is_valid = false;
            }
            if let Some(trace_packet::Data::ClockSnapshot(snapshot)) = &packet.data {
                for clock in &snapshot.clocks {
                    if clock.clock_id == Some(64) {
                        incremental = clock.timestamp.unwrap() * multiplier;
                    }
                }
            }
            let told = packet.timestamp.unwrap_or(0);
            let time = match packet.timestamp_clock_id.unwrap_or(default_clock) {
                64 if flags & 1 != 0 => incremental,
                64 => {
                    incremental += told * multiplier;
                    incremental
                }
                65 => told * multiplier,
                _ => told,
            };
            if !is_valid {
                continue;
            }
            if let Some(interned) = packet.interned_data.as_option() {
                for entry in &interned.event_names {
                    names.insert(entry.iid.unwrap(), entry.name.clone().unwrap());
                }
            }
            if let Some(trace_packet::Data::TrackEvent(event)) = packet.data {
                let name = match &event.name_field {
                    Some(track_event::NameField::Name(name)) => name.clone(),
                    Some(track_event::NameField::NameIid(id)) => names[id].clone(),
                    _ => String::new(),
                };
                let kind = event.r#type.unwrap();
                late += usize::from(kind == END && packet.timestamp_clock_id.is_some());
                events.push((time, kind, event.track_uuid.unwrap_or(default_track), name));
            }
        }
    }
    events.sort_by_key(|&(time, ..)| time);
    let mut seen: Vec<Seen> = Vec::new();
    let mut open: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut ends_of_nothing = 0;
    for (time, kind, track, name) in events {
        let open = open.entry(track).or_default();
        match kind {
            BEGIN => {
                let parent = open.last().copied();
                open.push(seen.len());
                seen.push(Seen {
                    name,
                    track,
                    parent,
                    begun: time,
                    ended: None,
                });
            }
            END => match open.pop() {
                Some(slice) => seen[slice].ended = Some(time),
                None => ends_of_nothing += 1,
            },
            _ => {}
        }
    }
    (seen, late, ends_of_nothing)
}

/// How often each kind of thing was seen, over all stories.
#[derive(Debug, Default)]
struct Visited {
    handles_lost: usize,
    asyncs_lost: usize,
    loose_lost: usize,
    recorded_in_lost: usize,
    ended_elsewhere_after_a_lost_beginning: usize,
    late_ends: usize,
    late_ends_of_ending_threads: usize,
    left_open: usize,
    cleared: usize,
}

/// How a story ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Each thread has memory again and records something.
    Events,
    /// Each has memory again and ends.
    Threads,
    /// There is no memory.
    Loss,
}

#[test]
fn slices_keep_their_nesting_through_any_loss() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let first = number("FERRETTO_NESTING_SEED").unwrap_or_else(crate::clock::now);
    let stories = number("FERRETTO_NESTING_STORIES").unwrap_or(150);
    let mut visited = Visited::default();
    for seed in first..first + stories {
        println!("FERRETTO_NESTING_SEED={seed}");
        tell(seed, &mut visited);
    }
    println!("{visited:?}");
    if stories >= 150 {
        let Visited {
            handles_lost,
            asyncs_lost,
            loose_lost,
            recorded_in_lost,
            ended_elsewhere_after_a_lost_beginning,
            late_ends,
            late_ends_of_ending_threads,
            left_open,
            cleared,
        } = visited;
        let all = [
            handles_lost,
            asyncs_lost,
            loose_lost,
            recorded_in_lost,
            ended_elsewhere_after_a_lost_beginning,
            late_ends,
            late_ends_of_ending_threads,
            left_open,
            cleared,
        ];
        assert!(all.iter().all(|&times| times > 0), "{all:?}");
    }
}

fn tell(seed: u64, visited: &mut Visited) {
    let mut random = Random(seed);
    let layout = [PageLayout::Div14, PageLayout::Div7, PageLayout::Div4][random.below(3)];
    let multiplier = [1, 1, 1000][random.below(3)];
    let config = TrackEventConfig {
        timestamp_unit_multiplier: Some(multiplier),
        disable_incremental_timestamps: Some(random.one_in(6)),
        enable_thread_time_sampling: Some(random.one_in(6)),
        ..Default::default()
    };
    let incremental = config.disable_incremental_timestamps == Some(false);
    let mut service = Service::new(layout);
    let recording = Recording {
        slot: slots().next().unwrap(),
        arbiter: service.arbiter.clone(),
        _alone: Some(alone()),
    };
    recording.listen(&config);
    let mut slices: Vec<Slice> = Vec::new();
    // The open slices of each track, from the outermost on.
    let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let left_open_before = slices_left_open();
    let ending = [Ending::Events, Ending::Threads, Ending::Loss][random.below(3)];
    let shared = Shared::default();
    let mut ended_on = HashMap::new();
    std::thread::scope(|scope| {
        let steppers = [0, 1].map(|_| Stepper::new(scope, shared.clone()));
        // Now and then the service reads nothing for a while.
        let mut generosity = 8;
        for _ in 0..100 + random.below(300) {
            if random.one_in(15) {
                generosity = [0, 0, 0, 1, 2, 5, 50][random.below(7)];
            }
            if generosity > 0 && random.one_in(3) {
                service.read(random.below(generosity + 1));
            }
            if random.one_in(100) {
                registry::clear_incremental_state(recording.slot);
                visited.cleared += 1;
            }
            let thread = random.below(2);
            match random.below(9) {
                0..4 => {
                    let how = [How::Handle, How::Handle, How::Loose, How::Loose, How::Async][random.below(5)];
                    let place =
                        [Place::Thread, Place::Thread, Place::Named, Place::Numbered][random.below(4)];
                    let dynamic = how != How::Async && random.one_in(2);
                    let number = slices.len();
                    let name = match dynamic {
                        true => format!("D{number}"),
                        false => format!("L{}", number % LITERALS),
                    };
                    // The depth is limited, because deeper nesting shows nothing new.
                    let depth = open.values().map(Vec::len).max().unwrap_or(0);
                    if depth > 5 {
                        continue;
                    }
                    let (begun, track) = steppers[thread].take(Step::Begin {
                        number,
                        how,
                        place,
                        dynamic,
                    });
                    let stack = open.entry(track).or_default();
                    slices.push(Slice {
                        name,
                        track,
                        how,
                        thread,
                        place,
                        parent: stack.last().copied(),
                        begun,
                        ended: None,
                    });
                    stack.push(number);
                }
                4..7 => {
                    let stacks: Vec<_> = open.values_mut().filter(|stack| !stack.is_empty()).collect();
                    if stacks.is_empty() {
                        continue;
                    }
                    let chosen = random.below(stacks.len());
                    let stack = stacks.into_iter().nth(chosen).unwrap();
                    let number = stack.pop().unwrap();
                    let Slice {
                        how,
                        place,
                        thread: began_on,
                        ..
                    } = slices[number];
                    // A slice on a thread's track, or with a handle that stays on its thread, ends on the thread where it began.
                    let of_thread =
                        how == How::Handle || (how == How::Loose && matches!(place, Place::Thread));
                    let thread = if of_thread { began_on } else { thread };
                    let with_arguments = random.one_in(3);
                    let (ended, _) = steppers[thread].take(Step::End {
                        number,
                        how,
                        place,
                        with_arguments,
                    });
                    slices[number].ended = Some(ended);
                    ended_on.insert(number, thread);
                }
                7 => drop(steppers[thread].take(Step::Instant {
                    bytes: random.below(1500),
                })),
                _ => drop(steppers[thread].take(Step::Pause)),
            }
        }
        if ending == Ending::Loss {
            // Both threads write until they have lost something, or until no memory is left.
            for stepper in &steppers {
                for _ in 0..PAGES * 14 {
                    stepper.take(Step::Instant { bytes: 600 });
                }
            }
            let numbers: Vec<usize> = open.values().flatten().copied().collect();
            for number in numbers.into_iter().rev() {
                let Slice {
                    how, place, thread, ..
                } = slices[number];
                let (ended, _) = steppers[thread].take(Step::End {
                    number,
                    how,
                    place,
                    with_arguments: false,
                });
                slices[number].ended = Some(ended);
                ended_on.insert(number, thread);
            }
        } else {
            service.read(usize::MAX);
        }
        if ending == Ending::Events {
            for stepper in &steppers {
                stepper.take(Step::Instant { bytes: 0 });
                service.read(usize::MAX);
            }
        }
        for stepper in steppers {
            stepper.end();
        }
        shared
            .lock()
            .unwrap()
            .drain()
            .for_each(|(_, slice)| std::mem::forget(slice));
    });
    service.read(usize::MAX);
    registry::stop(recording.slot);
    drop(recording);

    let (seen, late, ends_of_nothing) = read(&service.sequences, multiplier);
    let left_open = slices_left_open() - left_open_before;
    assert_eq!(ends_of_nothing, 0, "ends of slices that did not begin");
    // The recorded slice for each seen one, and the other way round.
    let mut which = Vec::new();
    let mut recorded = vec![None; slices.len()];
    let tolerance = TOLERANCE_NS + multiplier;
    let is_within = |time: u64, (from, to): (u64, u64)| from <= time + tolerance && time <= to + tolerance;
    for (index, seen) in seen.iter().enumerate() {
        let is_it = |slice: &Slice| {
            slice.name == seen.name && slice.track == seen.track && is_within(seen.begun, slice.begun)
        };
        let matching: Vec<usize> = (0..slices.len())
            .filter(|&number| is_it(&slices[number]))
            .collect();
        let [number] = matching[..] else {
            panic!("{seen:?} is each of {matching:?}");
        };
        assert_eq!(recorded[number].replace(index), None, "{seen:?} is there twice");
        which.push(number);
    }
    let mut unended = 0;
    for (index, seen) in seen.iter().enumerate() {
        let slice = &slices[which[index]];
        let mut parent = slice.parent;
        while let Some(outer) = parent
            && recorded[outer].is_none()
        {
            parent = slices[outer].parent;
        }
        assert_eq!(
            seen.parent.map(|parent| which[parent]),
            parent,
            "the slice around {seen:?}, which is {slice:?}"
        );
        match (seen.ended, slice.ended) {
            (Some(seen_ended), Some(ended)) => {
                assert!(is_within(seen_ended, ended), "{seen:?} is {slice:?}");
            }
            (None, Some(_)) => {
                unended += 1;
                assert!(ending == Ending::Loss, "{seen:?} has ended, for it is {slice:?}");
            }
            (None, None) => {}
            (Some(_), None) => panic!("{seen:?} has not ended, for it is {slice:?}"),
        }
        visited.recorded_in_lost += usize::from(parent != slice.parent);
    }
    // Ends on shared tracks wait for a thread that records there.
    assert!(unended >= left_open, "{unended}, but {left_open} are told of");
    for (number, slice) in slices.iter().enumerate() {
        if recorded[number].is_none() {
            match slice.how {
                How::Handle => visited.handles_lost += 1,
                How::Async => visited.asyncs_lost += 1,
                How::Loose => visited.loose_lost += 1,
            }
            visited.ended_elsewhere_after_a_lost_beginning += usize::from(
                slice.how == How::Loose
                    && ended_on
                        .get(&number)
                        .is_some_and(|&thread| thread != slice.thread),
            );
        }
    }
    if incremental {
        visited.late_ends += late;
        if ending == Ending::Threads {
            visited.late_ends_of_ending_threads += late;
        }
    }
    visited.left_open += unended as usize;
}
