//! Tracks as programs describe them: by a number, with a parent, as the track of a thread, a process or a counter.
//!
//! The tokenizer takes descriptions in as the file has them. When events use a track, its thread or process is looked up, and the track is made.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use hashbrown::HashMap;

use super::args::Value;
use super::groups::{Got, Use, track_of_number};
use super::processes::{Processes, Upid, Utid, Worth};
use super::tracks::{Dimension, Has, Key, TrackId, Tracks};
use crate::context::Context;
use crate::strings::StringId;
use crate::tokenizer::synthetic_tid;

/// The most descriptions. Further ones are passed over.
const MOST: usize = 1 << 20;
/// The longest chain of parents.
const MOST_ANCESTORS: usize = 100;

/// How tracks that have one parent become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Merge {
    #[default]
    ByName,
    Never,
    ByKey(Option<StringId>),
}

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counter {
    pub(crate) category: Option<StringId>,
    pub(crate) multiplier: i64,
    pub(crate) is_incremental: bool,
    pub(crate) builtin: Option<StringId>,
    pub(crate) share_key: Option<StringId>,
    pub(crate) unit: Option<StringId>,
}

/// What a program said about a track.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Descriptor {
    pub(crate) parent: u64,
    pub(crate) pid: Option<i64>,
    pub(crate) tid: Option<i64>,
    pub(crate) name: Option<StringId>,
    pub(crate) description: Option<StringId>,
    pub(crate) is_separate: bool,
    pub(crate) is_sandboxed: bool,
    pub(crate) counter: Option<Counter>,
    pub(crate) ordering: Option<&'static str>,
    pub(crate) rank: Option<i64>,
    pub(crate) merge: Merge,
}

impl Descriptor {
    /// Whether two descriptions may be of one track.
    fn agrees_with(&self, other: &Descriptor) -> bool {
        let counter = |it: &Descriptor| {
            it.counter.map(|counter| Counter {
                unit: None,
                ..counter
            })
        };
        (self.parent, self.pid, self.tid, self.merge) == (other.parent, other.pid, other.tid, other.merge)
            && counter(self) == counter(other)
    }
}

/// What a track belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Thread(Utid),
    Process(Upid),
    Global,
}

/// What a track turned out to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resolved {
    pub(crate) scope: Scope,
    /// Whether it describes the thread or process itself.
    is_root: bool,
}

/// Where events of a track go.
#[derive(Debug, Clone)]
enum Place {
    Track(TrackId),
    /// A group of tracks that are shown as one: each event goes to the one that is free.
    Group(Rc<Group>),
}

#[derive(Debug)]
struct Group {
    key: Key,
    /// Its number, from the first event on.
    number: OnceCell<usize>,
    name: Option<StringId>,
    is_root: bool,
    sequence: Option<u32>,
    parent: Option<TrackId>,
}

#[derive(Debug)]
struct State {
    descriptor: Descriptor,
    resolved: Option<Resolved>,
    place: Option<Place>,
}

/// Which kind of event a track is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Begin,
    End,
    Instant,
    Counter,
}

/// All descriptions.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    states: HashMap<u64, State>,
    of_threads: HashMap<Utid, u64>,
    of_processes: HashMap<Upid, u64>,
    with_first_packet: BTreeSet<u32>,
    /// Tracks whose names come after they were made.
    renamed: Vec<(TrackId, StringId)>,
}

impl Descriptors {
    /// Notes that the sequence's first packet is in the trace.
    pub(crate) fn first_packet(&mut self, sequence: u32) {
        if self.with_first_packet.len() < MOST {
            self.with_first_packet.insert(sequence);
        }
    }

    /// Takes in a description. Returns whether it counts.
    pub(crate) fn describe(&mut self, uuid: u64, descriptor: Descriptor) -> bool {
        if (uuid == 0 && descriptor.parent != 0)
            || (self.states.len() >= MOST && !self.states.contains_key(&uuid))
        {
            return false;
        }
        let Some(state) = self.states.get_mut(&uuid) else {
            let state = State {
                descriptor,
                resolved: None,
                place: None,
            };
            self.states.insert(uuid, state);
            return true;
        };
        if !state.descriptor.agrees_with(&descriptor) {
            return false;
        }
        if let Some(name) = descriptor.name {
            let never_merged = descriptor.merge == Merge::Never;
            if state.descriptor.name.is_none() || never_merged {
                state.descriptor.name = Some(name);
            }
            if let (true, Some(Place::Track(track))) = (never_merged, &state.place) {
                self.renamed.push((*track, name));
            }
        }
        true
    }

    /// Returns what the counter of a track is.
    pub(crate) fn counter(&self, uuid: u64) -> Option<Counter> {
        self.states.get(&uuid)?.descriptor.counter
    }

    fn is_valid(&self, uuid: u64) -> bool {
        let (mut current, mut seen) = (uuid, Vec::new());
        while current != 0 {
            let Some(state) = self.states.get(&current) else {
                return false;
            };
            if seen.contains(&current) || seen.len() >= MOST_ANCESTORS {
                return false;
            }
            seen.push(current);
            current = state.descriptor.parent;
        }
        true
    }

    /// Returns what a track belongs to; `None` if its parents are not known.
    pub(crate) fn resolve(
        &mut self,
        uuid: u64,
        processes: &mut Processes,
        context_names: &Names,
    ) -> Option<Resolved> {
        if let Some(resolved) = self.states.get(&uuid).and_then(|state| state.resolved) {
            return Some(resolved);
        }
        if !self.states.contains_key(&uuid) {
            let descriptor = Descriptor {
                name: (uuid == 0).then_some(context_names.default_track),
                ..Descriptor::default()
            };
            if !self.describe(uuid, descriptor) {
                return None;
            }
        }
        if !self.is_valid(uuid) {
            return None;
        }
        let state = self.states.get_mut(&uuid)?;
        let descriptor = &mut state.descriptor;
        if let (true, Some(tid), Some(pid)) = (descriptor.is_sandboxed, descriptor.tid, descriptor.pid) {
            descriptor.tid = Some(synthetic_tid(tid, pid));
        }
        let descriptor = *descriptor;
        let parent = match descriptor.parent {
            0 => None,
            parent => self.resolve(parent, processes, context_names),
        };
        let resolved = if let (Some(tid), Some(pid)) = (descriptor.tid, descriptor.pid) {
            let mut utid = processes.thread_of(tid, pid);
            if self.of_threads.insert(utid, uuid).is_some() {
                // Another track was of this thread: its number was used again.
                utid = processes.start_thread(None, tid);
                utid = processes.thread_of(tid, pid).max(utid);
            }
            Resolved {
                scope: Scope::Thread(utid),
                is_root: true,
            }
        } else if let Some(pid) = descriptor.pid {
            let mut upid = processes.process(pid);
            if self.of_processes.insert(upid, uuid).is_some() {
                upid = processes.start_process(None, None, pid, None, Worth::TrackDescriptor);
            }
            Resolved {
                scope: Scope::Process(upid),
                is_root: true,
            }
        } else {
            Resolved {
                scope: parent.map_or(Scope::Global, |parent| parent.scope),
                is_root: false,
            }
        };
        self.states.get_mut(&uuid)?.resolved = Some(resolved);
        Some(resolved)
    }
}

/// Strings that descriptions lead to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub(crate) default_track: StringId,
}

/// Returns the track for an event. `None` if its description is not known or contradicts itself.
pub(crate) fn track_of(
    uuid: u64,
    event: Event,
    name: Option<StringId>,
    sequence: Option<u32>,
    tracks: &mut Tracks,
    processes: &mut Processes,
    context: &mut Context<'_>,
) -> Option<TrackId> {
    for (track, name) in context.descriptors.renamed.drain(..) {
        tracks.set_name(track, name);
    }
    let place = |context: &Context<'_>| context.descriptors.states.get(&uuid)?.place.clone();
    let place = match place(context) {
        Some(place) => place,
        None => {
            ensure(uuid, name, sequence, tracks, processes, context)?;
            place(context)?
        }
    };
    match place {
        Place::Track(track) => Some(track),
        Place::Group(_) if event == Event::Counter => None,
        Place::Group(group) => Some(member_of(&group, uuid, event, uuid, tracks, context)),
    }
}

/// Makes a track, unless that was done before.
fn ensure(
    uuid: u64,
    event_name: Option<StringId>,
    sequence: Option<u32>,
    tracks: &mut Tracks,
    processes: &mut Processes,
    context: &mut Context<'_>,
) -> Option<()> {
    if context
        .descriptors
        .states
        .get(&uuid)
        .is_some_and(|state| state.place.is_some())
    {
        return Some(());
    }
    let names = Names {
        default_track: context.strings.intern("Default Track"),
    };
    let resolved = context.descriptors.resolve(uuid, processes, &names)?;
    let descriptor = context.descriptors.states.get(&uuid)?.descriptor;
    let (parent, parent_resolved) = match descriptor.parent {
        0 => (None, None),
        parent => (
            default_of(parent, sequence, tracks, processes, context),
            context.descriptors.resolve(parent, processes, &names),
        ),
    };
    let place = place(
        uuid,
        &descriptor,
        resolved,
        event_name,
        sequence,
        (parent, parent_resolved),
        tracks,
        context,
    );
    context.descriptors.states.get_mut(&uuid)?.place = Some(place);
    Some(())
}

/// Returns the track that children of a described track belong to.
fn default_of(
    uuid: u64,
    sequence: Option<u32>,
    tracks: &mut Tracks,
    processes: &mut Processes,
    context: &mut Context<'_>,
) -> Option<TrackId> {
    ensure(uuid, None, sequence, tracks, processes, context)?;
    match context.descriptors.states.get(&uuid)?.place.clone()? {
        Place::Track(track) => Some(track),
        Place::Group(group) => {
            match context.groups.first(&group.key) {
                Some(track) => Some(track),
                // As the trace processor does, the first track is for number 0, until events need it.
                None => Some(member_of(&group, 0, Event::Instant, uuid, tracks, context)),
            }
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn place(
    uuid: u64,
    descriptor: &Descriptor,
    resolved: Resolved,
    event_name: Option<StringId>,
    sequence: Option<u32>,
    (parent, parent_resolved): (Option<TrackId>, Option<Resolved>),
    tracks: &mut Tracks,
    context: &mut Context<'_>,
) -> Place {
    let of_uuid = ("track_uuid", Dimension::Int(uuid as i64));
    let counter = descriptor
        .counter
        .map(|counter| Has::Counter { unit: counter.unit });
    if resolved.is_root {
        let (kinds, of) = match resolved.scope {
            Scope::Thread(utid) => {
                if counter.is_none() && !descriptor.is_separate {
                    return Place::Track(thread_track(utid, tracks, context));
                }
                (
                    ["thread_counter_track_event", "thread_track_event"],
                    ("utid", Dimension::Int(utid.into())),
                )
            }
            Scope::Process(upid) => (
                ["process_counter_track_event", "process_track_event"],
                ("upid", Dimension::Int(upid.into())),
            ),
            Scope::Global => (["global_counter_track_event", "global_track_event"], of_uuid),
        };
        let kind = if counter.is_some() { kinds[0] } else { kinds[1] };
        let key = Key::new(kind, &[of, of_uuid]);
        let has = counter.unwrap_or(Has::Slices);
        return Place::Track(single(
            &key,
            has,
            descriptor.name,
            descriptor,
            uuid,
            (sequence, Level::Root),
            tracks,
            context,
        ));
    }
    let name = descriptor.name.or(event_name);
    let scope = parent
        .and(parent_resolved)
        .map_or(Scope::Global, |parent| parent.scope);
    let (kinds, of) = match scope {
        Scope::Thread(utid) => (
            [
                "thread_counter_track_event",
                "thread_track_event",
                "thread_merged_track_event",
            ],
            Some(("utid", Dimension::Int(utid.into()))),
        ),
        Scope::Process(upid) => (
            [
                "process_counter_track_event",
                "process_track_event",
                "process_merged_track_event",
            ],
            Some(("upid", Dimension::Int(upid.into()))),
        ),
        Scope::Global => (
            [
                "global_counter_track_event",
                "global_track_event",
                "global_merged_track_event",
            ],
            None,
        ),
    };
    // Tracks below the one of a thread or process belong to that, not to its track.
    let parent = match (scope, parent_resolved) {
        (Scope::Thread(_) | Scope::Process(_), Some(resolved)) if resolved.is_root => None,
        _ => parent,
    };
    let level = match scope {
        Scope::Global if uuid == 0 => Level::Root,
        _ => Level::Below,
    };
    let with = |last: &[(&'static str, Dimension)]| of.iter().chain(last).copied().collect::<Vec<_>>();
    if counter.is_some() || descriptor.merge == Merge::Never {
        let kind = if counter.is_some() { kinds[0] } else { kinds[1] };
        let own_name = if counter.is_some() { descriptor.name } else { name };
        let key = Key::new(kind, &with(&[of_uuid]));
        let has = counter.unwrap_or(Has::Slices);
        let track = single(
            &key,
            has,
            own_name,
            descriptor,
            uuid,
            (sequence, level),
            tracks,
            context,
        );
        tracks.set_parent(track, parent);
        return Place::Track(track);
    }
    let (kind, value) = match descriptor.merge {
        Merge::ByKey(key) => (2, key),
        Merge::ByName | Merge::Never => (0, name),
    };
    let value = value.unwrap_or_else(|| context.strings.intern(""));
    let key = Key::new(
        kinds[2],
        &with(&[
            ("parent_track_uuid", Dimension::Int(descriptor.parent as i64)),
            ("merge_key_type", Dimension::Int(kind)),
            ("merge_key_value", Dimension::Text(value)),
        ]),
    );
    Place::Group(Rc::new(Group {
        key,
        number: OnceCell::new(),
        name,
        is_root: level == Level::Root,
        sequence,
        parent,
    }))
}

/// Whether a track is the outermost of what it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Below,
}

/// Returns the track of a thread on which its functions run.
pub(crate) fn thread_track(utid: Utid, tracks: &mut Tracks, context: &mut Context<'_>) -> TrackId {
    let key = Key::new("thread_execution", &[("utid", Dimension::Int(utid.into()))]);
    tracks.intern(&key, Has::Slices, |_| None, context)
}

#[allow(clippy::too_many_arguments)]
fn single(
    key: &Key,
    has: Has,
    name: Option<StringId>,
    descriptor: &Descriptor,
    uuid: u64,
    (sequence, level): (Option<u32>, Level),
    tracks: &mut Tracks,
    context: &mut Context<'_>,
) -> TrackId {
    let track = tracks.intern(key, has, |_| name, context);
    if !tracks.is_described(track) {
        let source = source(uuid, descriptor, level == Level::Root, sequence, context);
        tracks.describe(track, source, descriptor.description);
    }
    track
}

/// Returns the track of a group that is free, or that events of this `cookie` used before. It is described as `uuid` is.
fn member_of(
    group: &Group,
    cookie: u64,
    event: Event,
    uuid: u64,
    tracks: &mut Tracks,
    context: &mut Context<'_>,
) -> TrackId {
    let used = match event {
        Event::Begin => Use::Begin(cookie),
        Event::End => Use::End(cookie),
        Event::Instant | Event::Counter => Use::Ask(cookie),
    };
    let number = *group.number.get_or_init(|| context.groups.number(&group.key));
    let Got { track, is_new } = track_of_number(number, &group.key, group.name, used, tracks, context);
    if !is_new {
        return track;
    }
    let descriptor = context
        .descriptors
        .states
        .get(&uuid)
        .map(|state| state.descriptor)
        .unwrap_or_default();
    let source = source(uuid, &descriptor, group.is_root, group.sequence, context);
    tracks.describe(track, source, descriptor.description);
    tracks.set_parent(track, group.parent);
    track
}

/// Returns the set of arguments that says where a track comes from.
fn source(
    uuid: u64,
    descriptor: &Descriptor,
    is_root: bool,
    sequence: Option<u32>,
    context: &mut Context<'_>,
) -> Option<i64> {
    let has_first =
        sequence.is_some_and(|sequence| context.descriptors.with_first_packet.contains(&sequence));
    let Context {
        strings,
        args,
        output,
        ..
    } = context;
    let word = strings.intern("descriptor");
    let mut add = |key: &str, value: Value| {
        let key = strings.intern(key);
        args.add(key, key, value);
    };
    add("source", Value::Text(word));
    add("trace_id", Value::Int(uuid as i64));
    add("is_root_in_scope", Value::Bool(is_root));
    if let Some(counter) = descriptor.counter {
        for (key, value) in [
            ("category", counter.category),
            ("builtin_counter_type", counter.builtin),
            ("y_axis_share_key", counter.share_key),
        ] {
            if let Some(value) = value {
                add(key, Value::Text(value));
            }
        }
    }
    if has_first {
        add("has_first_packet_on_sequence", Value::Bool(true));
    }
    if let Some(ordering) = descriptor.ordering {
        add("child_ordering", Value::Str(ordering.into()));
    }
    if let Some(rank) = descriptor.rank {
        add("sibling_order_rank", Value::Int(rank));
    }
    if let Some(description) = descriptor.description {
        add("description", Value::Text(description));
    }
    args.finish(strings, output)
}
