//! Uuids and descriptors against upstream's, the descriptors that sequences have to emit, and the set of tracks they have seen.

use std::collections::HashSet;
use std::process::Command;

use ferretto_proto::messages::track_descriptor::{
    ChildTracksOrdering, ProcessOrdering, SiblingMergeBehavior, SiblingMergeKeyField, StaticOrDynamicName,
};
use ferretto_proto::messages::{Message, ProcessDescriptor, TrackDescriptor, counter_descriptor};
use ferretto_proto::write;
use ferretto_wire::Writer;
use proptest::prelude::*;

use super::*;

mod truth;

/// Runs `body`, of the test `name`, in a process of its own: for effects that other tests would see.
pub(super) fn in_a_process_of_its_own(name: &str, body: impl FnOnce()) {
    const CHILD: &str = "FERRETTO_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(stdout.contains("1 passed"), "no test {name}");
}

/// The descriptor that `track` writes.
fn written(track: &impl TrackLike) -> TrackDescriptor {
    let mut writer = Writer::new();
    track.write_descriptor(&mut writer);
    TrackDescriptor::decode_from_slice(writer.as_slice()).unwrap()
}

fn static_name(name: &str) -> Option<StaticOrDynamicName> {
    Some(StaticOrDynamicName::StaticName(name.to_owned()))
}

fn dynamic_name(name: &str) -> Option<StaticOrDynamicName> {
    Some(StaticOrDynamicName::Name(name.to_owned()))
}

fn decode_hex(hex: &str) -> TrackDescriptor {
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    TrackDescriptor::decode_from_slice(&bytes).unwrap()
}

/// Checks `track` against the descriptor that upstream's library serialised for the same, hexadecimal here.
///
/// All of them come from a C++ program with upstream's library as in the crate `perfetto-sdk-sys` 1.4.0, in which the
/// process's uuid was set to 0x0123456789abcdef (`TrackRegistry::InitializeInstance`). As uuids below the process
/// differ from its own by an exclusive or, they are carried over to this process.
#[track_caller]
fn assert_upstreams(track: impl TrackLike, hex: &str) {
    const THEIR_PROCESS: u64 = 0x0123_4567_89ab_cdef;
    let mut expected = decode_hex(hex);
    if let Some(parent) = expected.parent_uuid {
        let ours = THEIR_PROCESS ^ process_uuid();
        expected.parent_uuid = Some(parent ^ ours);
        expected.uuid = expected.uuid.map(|uuid| uuid ^ ours);
    }
    assert_eq!(written(&track), expected);
    assert_eq!(track.uuid(), expected.uuid.unwrap());
    assert_eq!(track.parent_uuid(), expected.parent_uuid.unwrap_or(0));
}

#[test]
fn tracks_with_numbers_are_upstreams() {
    assert_upstreams(Track::new(8086), "08f9a4afcdf8acd1910128ef9bafcdf8acd19101");
    assert_upstreams(Track::global(8086), "08963f");
    assert_upstreams(Track::new(0), "08ef9bafcdf8acd1910128ef9bafcdf8acd19101");
    assert_upstreams(
        Track::with_parent(7, Track::for_thread(4243)),
        "08fbbaafcdf8acd1910128fcbaafcdf8acd19101",
    );
}

#[test]
fn tracks_with_names_are_upstreams() {
    const THREAD: Track = Track::for_thread(4243);
    const RENDERING: NamedTrack = NamedTrack::new("rendering");
    let named = NamedTrack::new;
    assert_upstreams(
        RENDERING,
        "08f8f09abed7aed7a0900128ef9bafcdf8acd19101520972656e646572696e67",
    );
    assert_upstreams(
        NamedTrack::dynamic("rendering"),
        "08f8f09abed7aed7a0900128ef9bafcdf8acd19101120972656e646572696e67",
    );
    assert_upstreams(
        RENDERING.id(5),
        "08fdf09abed7aed7a0900128ef9bafcdf8acd19101520972656e646572696e67",
    );
    assert_upstreams(
        RENDERING.parent(THREAD).id(5),
        "08eed19abed7aed7a0900128fcbaafcdf8acd19101520972656e646572696e67",
    );
    assert_upstreams(RENDERING.global(), "0897ebb5f3af8286b19101520972656e646572696e67");
    assert_upstreams(
        RENDERING.global().id(5),
        "0892ebb5f3af8286b19101520972656e646572696e67",
    );
    assert_upstreams(
        named("child").child_of(&RENDERING),
        "08c181d6c0ebf89d993f28f8f09abed7aed7a0900152056368696c64",
    );
    assert_upstreams(
        RENDERING.sibling_merge(SiblingMerge::Never),
        "08f8f09abed7aed7a0900128ef9bafcdf8acd19101520972656e646572696e677802",
    );
    assert_upstreams(
        RENDERING.sibling_merge(SiblingMerge::ByKey("key")),
        "08f8f09abed7aed7a0900128ef9bafcdf8acd19101520972656e646572696e6778038201036b6579",
    );
    assert_upstreams(
        RENDERING.sibling_merge(SiblingMerge::ByNumber(77)),
        "08f8f09abed7aed7a0900128ef9bafcdf8acd19101520972656e646572696e67780388014d",
    );
    assert_upstreams(
        named("été"),
        "089ccbb6dece95b5f7cc0128ef9bafcdf8acd191015205c3a974c3a9",
    );
    assert_upstreams(named(""), "08eebdeabaeee8b1c30728ef9bafcdf8acd191015200");
}

#[test]
fn states_are_upstreams() {
    assert_upstreams(
        StateTrack::new("power"),
        "08b1d0938de997c3fcc10128ef9bafcdf8acd191015205706f776572920100",
    );
    assert_upstreams(
        StateTrack::dynamic("power").id(3),
        "08b2d0938de997c3fcc10128ef9bafcdf8acd191011205706f776572920100",
    );
    assert_upstreams(
        StateTrack::new("power").id(3).global(),
        "08ddcbbcc091bb92edc0015205706f776572920100",
    );
}

#[test]
fn counters_are_upstreams() {
    const MEMORY: CounterTrack = CounterTrack::new("memory");
    assert_upstreams(
        MEMORY,
        "089fc3e98db590c2ff9e0128ef9bafcdf8acd1910152066d656d6f72794200",
    );
    assert_upstreams(
        CounterTrack::dynamic("memory"),
        "089fc3e98db590c2ff9e0128ef9bafcdf8acd1910112066d656d6f72794200",
    );
    assert_upstreams(
        MEMORY.id(9),
        "0896c3e98db590c2ff9e0128ef9bafcdf8acd1910152066d656d6f72794200",
    );
    assert_upstreams(
        MEMORY.unit_name("pages"),
        "089fc3e98db590c2ff9e0128ef9bafcdf8acd1910152066d656d6f7279420732057061676573",
    );
    assert_upstreams(
        MEMORY.unit_name("pages").parent(Track::for_thread(4243)),
        "088ce2e98db590c2ff9e0128fcbaafcdf8acd1910152066d656d6f7279420732057061676573",
    );
    assert_upstreams(
        MEMORY.global().unit(CounterUnit::SizeBytes),
        "08f0d8c6c0cdbc93ee9f0152066d656d6f727942021803",
    );
    assert_upstreams(
        MEMORY
            .unit(CounterUnit::SizeBytes)
            .unit_multiplier(1024)
            .category("gfx")
            .incremental(),
        "089fc3e98db590c2ff9e0128ef9bafcdf8acd1910152066d656d6f7279420c120367667818032080082801",
    );
    assert_upstreams(
        CounterTrack::new("thread_time")
            .parent(Track::for_thread(4243))
            .incremental()
            .unit_multiplier(1000)
            .builtin(BuiltinCounter::ThreadTimeNs),
        "08e9d4cffd989e8bb44428fcbaafcdf8acd19101520b7468726561645f74696d654207080120e8072801",
    );
    assert_upstreams(
        MEMORY
            .unit_name("ignored")
            .builtin(BuiltinCounter::ThreadInstructionCount),
        "089fc3e98db590c2ff9e0128ef9bafcdf8acd1910152066d656d6f727942020802",
    );
}

#[test]
fn every_option_of_a_track_is_in_its_descriptor() {
    let named = NamedTrack::dynamic("n")
        .description("what it is")
        .sibling_order_rank(-3)
        .child_ordering(ChildOrdering::Chronological)
        .sibling_merge(SiblingMerge::ByName);
    let descriptor = written(&named);
    assert_eq!(descriptor.static_or_dynamic_name, dynamic_name("n"));
    assert_eq!(descriptor.description.as_deref(), Some("what it is"));
    assert_eq!(descriptor.sibling_order_rank, Some(-3));
    assert_eq!(
        descriptor.child_ordering,
        Some(ChildTracksOrdering::CHRONOLOGICAL)
    );
    assert_eq!(
        descriptor.sibling_merge_behavior,
        Some(SiblingMergeBehavior::SIBLING_MERGE_BEHAVIOR_BY_TRACK_NAME)
    );
    for (ordering, expected) in [
        (ChildOrdering::Lexicographic, ChildTracksOrdering::LEXICOGRAPHIC),
        (ChildOrdering::Explicit, ChildTracksOrdering::EXPLICIT),
    ] {
        assert_eq!(
            written(&StateTrack::new("s").child_ordering(ordering)).child_ordering,
            Some(expected)
        );
    }

    let counter = CounterTrack::new("c")
        .sibling_merge(SiblingMerge::ByKey("k"))
        .y_axis_share_key("axis");
    let descriptor = written(&counter);
    assert_eq!(
        descriptor.sibling_merge_key_field,
        Some(SiblingMergeKeyField::SiblingMergeKey("k".to_owned()))
    );
    assert_eq!(descriptor.counter.y_axis_share_key.as_deref(), Some("axis"));
    for (unit, expected) in [
        (CounterUnit::TimeNs, counter_descriptor::Unit::UNIT_TIME_NS),
        (CounterUnit::Count, counter_descriptor::Unit::UNIT_COUNT),
    ] {
        assert_eq!(
            written(&CounterTrack::new("c").unit(unit)).counter.unit,
            Some(expected)
        );
    }
}

#[test]
fn the_track_of_the_process_describes_the_process() {
    let descriptor = written(&Track::process());
    assert_eq!(descriptor.uuid, Some(process_uuid()));
    assert_eq!(descriptor.parent_uuid, None);
    assert_eq!(descriptor.process.pid, Some(std::process::id() as i32));
    let arguments: Vec<String> = std::env::args().filter(|argument| !argument.is_empty()).collect();
    assert_eq!(descriptor.process.cmdline, arguments);
    assert_eq!(descriptor.process.process_name.as_ref(), arguments.first());
}

#[test]
fn command_lines_are_split_at_zeros_and_made_text() {
    let of = |cmdline: &[u8]| {
        let mut writer = Writer::new();
        descriptor::write_cmdline(cmdline, &mut write::ProcessDescriptor::new(&mut writer));
        let process = ProcessDescriptor::decode_from_slice(writer.as_slice()).unwrap();
        (process.process_name, process.cmdline)
    };
    assert_eq!(of(b""), (None, vec![]));
    assert_eq!(
        of(b"/bin/x\0\0-v\0"),
        (
            Some("/bin/x".to_owned()),
            vec!["/bin/x".to_owned(), "-v".to_owned()]
        )
    );
    assert_eq!(of(b"\0-v\0"), (None, vec!["-v".to_owned()]));
    assert_eq!(
        of(b"title without end"),
        (
            Some("title without end".to_owned()),
            vec!["title without end".to_owned()]
        )
    );
    assert_eq!(
        of(b"a\xffb\0"),
        (Some("a\u{fffd}b".to_owned()), vec!["a\u{fffd}b".to_owned()])
    );
}

#[test]
fn the_track_of_a_thread_describes_it_on_any_thread() {
    let (track, own, done) = {
        let (send, receive) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            // Cut by the kernel after 15 bytes, within the last character.
            .name("a rather longé".to_owned() + "é")
            .spawn(move || {
                send.send((Track::thread(), written(&Track::thread()))).unwrap();
                wait.recv().unwrap_err();
            })
            .unwrap();
        let (track, own) = receive.recv().unwrap();
        (track, own, move || {
            drop(done);
            thread.join().unwrap();
        })
    };
    let tid = own.thread.tid.unwrap();
    assert_eq!(own.uuid, Some(tid as u64 ^ process_uuid()));
    assert_eq!(own.parent_uuid, Some(process_uuid()));
    assert_eq!(own.thread.pid, Some(std::process::id() as i32));
    assert_eq!(own.thread.thread_name.as_deref(), Some("a rather long\u{e9}"));
    assert_eq!(own.disallow_merging_with_system_tracks, None);
    assert_eq!(written(&track), own, "as seen by another thread");
    done();
    // A joined thread may still be on its way out.
    let began = std::time::Instant::now();
    while written(&track).thread.thread_name.is_some() {
        let waited = began.elapsed();
        assert!(waited.as_secs() < 20, "of a thread that is gone");
        std::thread::yield_now();
    }
}

#[test]
fn thread_scoped_tracks_belong_to_the_thread_that_uses_them() {
    static SCOPED: NamedTrack = NamedTrack::new("scoped").thread_scoped();
    let here = (SCOPED.uuid(), Track::thread_scoped(4).uuid());
    assert_eq!(here.0, NamedTrack::new("scoped").parent(Track::thread()).uuid());
    assert_eq!(here.1, Track::with_parent(4, Track::thread()).uuid());
    assert_eq!(SCOPED.parent_uuid(), Track::thread().uuid());
    assert_eq!(written(&SCOPED).parent_uuid, Some(Track::thread().uuid()));
    let there = std::thread::spawn(|| (SCOPED.uuid(), Track::thread_scoped(4).uuid()))
        .join()
        .unwrap();
    assert_ne!(here.0, there.0);
    assert_ne!(here.1, there.1);
}

#[test]
fn addresses_are_numbers() {
    let thing = 5_u8;
    let pointer = &raw const thing;
    assert_eq!(
        Track::from_pointer(pointer).uuid(),
        Track::new(pointer as u64).uuid()
    );
    assert_eq!(
        NamedTrack::new("t").pointer(pointer).uuid(),
        NamedTrack::new("t").id(pointer as u64).uuid()
    );
}

/// A sequence that collects the descriptors that it has to emit.
#[derive(Default)]
struct Emitted {
    seen: SeenTracks,
    descriptors: Vec<TrackDescriptor>,
}

impl Emitted {
    /// Uuids of the tracks described since the last call.
    fn take(&mut self) -> Vec<u64> {
        self.descriptors
            .drain(..)
            .map(|descriptor| descriptor.uuid.unwrap())
            .collect()
    }
}

impl DescriptorSink for Emitted {
    fn has_described(&self, uuid: u64) -> bool {
        self.seen.contains(uuid)
    }

    fn note(&mut self, uuid: u64, _: Values) {
        self.seen.insert(uuid);
    }

    fn emit(&mut self, fill: &mut dyn FnMut(&mut write::TrackDescriptor<'_>)) {
        let mut writer = Writer::new();
        fill(&mut write::TrackDescriptor::new(&mut writer));
        self.descriptors
            .push(TrackDescriptor::decode_from_slice(writer.as_slice()).unwrap());
    }
}

#[test]
fn a_track_is_described_once_with_its_parents() {
    let thread = Track::for_thread(77);
    let root = NamedTrack::new("a tree").parent(thread);
    let branch = NamedTrack::new("branch").child_of(&root);
    let leaf = CounterTrack::new("leaf").child_of(&branch);
    let mut sequence = Emitted::default();
    describe(&leaf, &mut sequence);
    let chain = [
        leaf.uuid(),
        branch.uuid(),
        root.uuid(),
        thread.uuid(),
        process_uuid(),
    ];
    assert_eq!(sequence.take(), chain);
    describe(&leaf, &mut sequence);
    describe(&branch, &mut sequence);
    assert!(sequence.take().is_empty());
    let other = StateTrack::new("other leaf").child_of(&branch);
    describe(&other, &mut sequence);
    assert_eq!(sequence.take(), [other.uuid()]);
    sequence.seen.clear();
    describe(&leaf, &mut sequence);
    assert_eq!(sequence.take(), chain);
}

#[test]
fn the_root_is_described_if_it_is_registered() {
    in_a_process_of_its_own("track::tests::the_root_is_described_if_it_is_registered", || {
        let (mut early, mut late) = (Emitted::default(), Emitted::default());
        let start = descriptors_version();
        describe(&Track::root(), &mut early);
        describe(&NamedTrack::new("n").global().id(1), &mut early);
        describe(&Track::process(), &mut early);
        assert_eq!(
            early.take(),
            [NamedTrack::new("n").global().id(1).uuid(), process_uuid()]
        );

        let ordered = TrackDescriptor {
            process_ordering: Some(ProcessOrdering::PROCESS_ORDERING_EXPLICIT),
            ..Default::default()
        };
        set_track_descriptor(&Track::root(), ordered.clone());
        let root = TrackDescriptor {
            uuid: Some(0),
            ..ordered
        };
        describe_changes(start, &mut early);
        assert_eq!(early.descriptors, std::slice::from_ref(&root));
        describe(&Track::thread_scoped(3), &mut late);
        assert_eq!(late.descriptors.pop(), Some(root));
        assert_eq!(
            late.take(),
            [
                Track::thread_scoped(3).uuid(),
                Track::thread().uuid(),
                process_uuid()
            ]
        );
        describe(&Track::global(12), &mut late);
        describe(&Track::root(), &mut late);
        assert_eq!(late.take(), [12]);
    });
}

#[test]
fn a_parent_of_which_nothing_is_known_is_described_when_it_is_used() {
    let request = Track::new(0x1001);
    let step = Track::with_parent(1, request);
    let mut sequence = Emitted::default();
    describe(&step, &mut sequence);
    assert_eq!(sequence.take(), [step.uuid()]);
    describe(&request, &mut sequence);
    assert_eq!(sequence.take(), [request.uuid(), process_uuid()]);
    // A child with a name describes its parent itself.
    let named = NamedTrack::new("step").parent(Track::new(0x1002));
    describe(&named, &mut sequence);
    assert_eq!(sequence.take(), [named.uuid(), Track::new(0x1002).uuid()]);
}

#[test]
fn a_registered_descriptor_takes_the_place_of_the_tracks_own() {
    let request = Track::new(0x2001);
    let step = Track::with_parent(1, request);
    let mut descriptor = track_descriptor(&request);
    assert_eq!(descriptor, written(&request));
    descriptor.static_or_dynamic_name = dynamic_name("request");
    // The SDK fills these in.
    descriptor.uuid = None;
    descriptor.parent_uuid = None;
    set_track_descriptor(&request, descriptor);

    let mut expected = written(&request);
    expected.static_or_dynamic_name = dynamic_name("request");
    assert_eq!(track_descriptor(&request), expected);
    let mut sequence = Emitted::default();
    describe(&step, &mut sequence);
    assert_eq!(sequence.descriptors, [written(&step), expected]);

    erase_track_descriptor(&request);
    let mut sequence = Emitted::default();
    describe(&request, &mut sequence);
    assert_eq!(sequence.descriptors[0], written(&request));
}

#[test]
fn a_thread_keeps_its_name_until_it_ends_and_another_can_have_its_number() {
    let thread = std::thread::spawn(|| {
        let track = Track::thread();
        let name = || track_descriptor(&track).thread.thread_name.clone();
        for chosen in ["first", "second"] {
            set_thread_name(chosen);
            assert_eq!(name().as_deref(), Some(chosen));
        }
        track
    });
    let track = thread.join().unwrap();
    assert!(registry::find(track.uuid()).is_none());
}

#[test]
fn a_registered_descriptor_may_move_its_track() {
    let old = NamedTrack::new("old home").global().id(0x3001);
    let new = NamedTrack::new("new home").global().id(0x3001);
    let track = NamedTrack::new("moves").child_of(&old).id(0x3001);
    set_track_descriptor(
        &track,
        TrackDescriptor {
            parent_uuid: Some(new.uuid()),
            ..Default::default()
        },
    );
    let mut sequence = Emitted::default();
    describe(&track, &mut sequence);
    assert_eq!(sequence.take(), [track.uuid()], "the new one is not known");
    set_track_descriptor(&new, TrackDescriptor::default());
    sequence.seen.clear();
    describe(&track, &mut sequence);
    assert_eq!(sequence.take(), [track.uuid(), new.uuid()]);
    set_track_descriptor(
        &track,
        TrackDescriptor {
            parent_uuid: Some(0),
            ..Default::default()
        },
    );
    assert_eq!(track_descriptor(&track).parent_uuid, None);
    sequence.seen.clear();
    describe(&track, &mut sequence);
    assert_eq!(sequence.take(), [track.uuid()], "a root");
    erase_track_descriptor(&track);
    erase_track_descriptor(&new);
}

#[test]
fn sequences_that_have_described_a_track_get_its_last_change_once() {
    let tracks: Vec<Track> = (0..4).map(|n| Track::new(0x4000 + n)).collect();
    let set = |track: &Track, description: &str| {
        let description = Some(description.to_owned());
        set_track_descriptor(
            track,
            TrackDescriptor {
                description,
                ..Default::default()
            },
        );
    };
    let told = |sequence: &mut Emitted| -> Vec<(u64, String)> {
        let descriptors = sequence.descriptors.drain(..);
        descriptors
            .map(|told| (told.uuid.unwrap(), told.description.unwrap()))
            .collect()
    };
    let mut sequence = Emitted::default();
    let version = descriptors_version();
    for track in &tracks[..3] {
        describe(track, &mut sequence);
    }
    sequence.descriptors.clear();
    set(&tracks[0], "first");
    set(&tracks[1], "second");
    set(&tracks[3], "of a track not described");
    set(&tracks[0], "third");
    let later = describe_changes(version, &mut sequence);
    assert!(later > version);
    assert_eq!(
        told(&mut sequence),
        [
            (tracks[1].uuid(), "second".into()),
            (tracks[0].uuid(), "third".into())
        ]
    );
    set(&tracks[2], "fourth");
    let latest = describe_changes(later, &mut sequence);
    assert_eq!(told(&mut sequence), [(tracks[2].uuid(), "fourth".into())]);
    describe_changes(latest, &mut sequence);
    assert_eq!(told(&mut sequence), []);
    erase_track_descriptor(&tracks[0]);
    erase_track_descriptor(&tracks[0]);
    describe_changes(version, &mut sequence);
    assert_eq!(
        told(&mut sequence),
        [
            (tracks[1].uuid(), "second".into()),
            (tracks[2].uuid(), "fourth".into())
        ]
    );
    describe(&tracks[3], &mut sequence);
    assert_eq!(
        told(&mut sequence),
        [(tracks[3].uuid(), "of a track not described".into())]
    );
}

#[test]
fn threads_can_be_kept_apart_from_the_systems_events() {
    in_a_process_of_its_own(
        "track::tests::threads_can_be_kept_apart_from_the_systems_events",
        || {
            set_system_tracks(SystemTracks::Separate);
            assert_eq!(
                written(&Track::thread()).disallow_merging_with_system_tracks,
                Some(true)
            );
            assert_eq!(
                written(&Track::process()).disallow_merging_with_system_tracks,
                None
            );
            set_system_tracks(SystemTracks::Merged);
            assert_eq!(
                written(&Track::thread()).disallow_merging_with_system_tracks,
                None
            );
        },
    );
}

#[test]
fn types_of_users_are_tracks_and_cannot_break_the_registry() {
    struct Connection(u64);
    impl TrackLike for Connection {
        fn track(&self) -> Track {
            Track::new(self.0)
        }
        fn write_descriptor(&self, descriptor: &mut Writer) {
            write::TrackDescriptor::new(descriptor).name(b"\xff");
        }
    }
    let connection = Connection(0x5001);
    assert_eq!(connection.uuid(), Track::new(0x5001).uuid());
    assert_eq!(
        track_descriptor(&connection),
        TrackDescriptor {
            uuid: Some(connection.uuid()),
            ..Default::default()
        }
    );
}

/// Returns the uuid of a track, whose type and place the arguments choose.
fn any_uuid(kind: u8, name: &str, id: u64, below: u8) -> u64 {
    let branch = NamedTrack::dynamic("branch");
    let parent = match below {
        0 => Track::process(),
        1 => Track::root(),
        2 => Track::for_thread(7),
        _ => branch.track(),
    };
    match kind {
        0 => NamedTrack::dynamic(name).id(id).parent(parent).uuid(),
        1 => CounterTrack::dynamic(name).id(id).parent(parent).uuid(),
        _ => StateTrack::dynamic(name).id(id).parent(parent).uuid(),
    }
}

proptest! {
    /// Collisions of 64 bits are possible: of tracks with numbers below different threads, if the numbers differ as the thread ids do.
    #[test]
    fn different_tracks_have_different_uuids(
        tracks in prop::collection::hash_set((0_u8..3, "[a-c]{0,3}", (0_u64..8).prop_map(|n| n * 8), 0_u8..4), 1..64)
    ) {
        let uuids: HashSet<u64> =
            tracks.iter().map(|(kind, name, id, below)| any_uuid(*kind, name, *id, *below)).collect();
        prop_assert_eq!(uuids.len(), tracks.len());
    }

    #[test]
    fn ids_below_one_parent_never_collide(first: u64, second: u64) {
        prop_assert_eq!(Track::new(first).uuid() == Track::new(second).uuid(), first == second);
    }

    #[test]
    fn the_kind_of_string_does_not_matter_for_the_uuid(name: String, id: u64) {
        let leaked: &'static str = name.clone().leak();
        let (fixed, dynamic) = (NamedTrack::new(leaked).id(id), NamedTrack::dynamic(&name).id(id));
        prop_assert_eq!(fixed.uuid(), dynamic.uuid());
        prop_assert_eq!(written(&fixed).static_or_dynamic_name, static_name(&name));
        prop_assert_eq!(written(&dynamic).static_or_dynamic_name, dynamic_name(&name));
    }

    #[test]
    fn seen_tracks_are_a_set(
        steps in prop::collection::vec(
            prop_oneof![
                20 => (0_u64..200).prop_map(|n| Some(n.wrapping_mul(0x1_0000_0001))),
                20 => (0_u64..200).prop_map(|n| Some(n << 12)),
                1 => Just(None),
            ],
            0..600,
        )
    ) {
        let (mut seen, mut model) = (SeenTracks::default(), HashSet::new());
        for step in steps {
            match step {
                Some(uuid) => {
                    prop_assert_eq!(seen.contains(uuid), model.contains(&uuid));
                    prop_assert_eq!(seen.insert(uuid), model.insert(uuid));
                    prop_assert!(seen.contains(uuid));
                }
                None => {
                    seen.clear();
                    model.clear();
                }
            }
        }
    }
}

#[test]
fn seen_tracks_forget_rather_than_grow_for_ever() {
    let mut seen = SeenTracks::default();
    for uuid in 1..=seen::MAX_TRACKS as u64 {
        assert!(seen.insert(uuid));
    }
    assert!(seen.contains(1) && !seen.insert(seen::MAX_TRACKS as u64));
    let memory = seen.places();
    let extra = seen::MAX_TRACKS as u64 + 1;
    assert!(seen.insert(extra));
    assert!(!seen.contains(1) && seen.contains(extra));
    assert_eq!(seen.places(), memory);
}
