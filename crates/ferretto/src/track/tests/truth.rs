//! The descriptors as upstream's trace processor reads them: a trace of events on all kinds of tracks, written by hand. (All but states, which are
//! newer than the trace processors at hand.)

use std::path::PathBuf;
use std::process::Command;

use ferretto_proto::messages::track_event::Type;

use super::*;

/// A trace of one sequence.
#[derive(Default)]
struct Trace {
    bytes: Writer,
    seen: SeenTracks,
    now: u64,
}

impl Trace {
    fn packet(&mut self, fill: impl FnOnce(&mut write::TracePacket<'_>)) {
        self.now += 10;
        self.bytes.nested(1, |writer| {
            let mut packet = write::TracePacket::new(writer);
            packet.timestamp(self.now).trusted_packet_sequence_id(1);
            fill(&mut packet);
        });
    }

    fn event(&mut self, track: &impl TrackLike, r#type: Type, fill: impl FnOnce(&mut write::TrackEvent<'_>)) {
        describe(track, self);
        self.packet(|packet| {
            packet.track_event(|event| {
                fill(event.r#type(r#type).track_uuid(track.uuid()));
            });
        });
    }

    fn slice(&mut self, track: &impl TrackLike, name: &str) {
        self.event(track, Type::TYPE_SLICE_BEGIN, |event| {
            event.name(name);
        });
        self.event(track, Type::TYPE_SLICE_END, |_| {});
    }

    fn count(&mut self, track: &impl TrackLike, value: i64) {
        self.event(track, Type::TYPE_COUNTER, |event| {
            event.counter_value(value);
        });
    }
}

impl DescriptorSink for Trace {
    fn note(&mut self, uuid: u64, _: Values) {
        self.seen.insert(uuid);
    }

    fn has_described(&self, uuid: u64) -> bool {
        self.seen.contains(uuid)
    }

    fn emit(&mut self, fill: &mut dyn FnMut(&mut write::TrackDescriptor<'_>)) {
        self.packet(|packet| {
            packet.track_descriptor(|descriptor| fill(descriptor));
        });
    }
}

/// The place of each slice: its name, the names of its track and of the tracks above it, the thread's and the process's numbers.
const SLICES: &str = "
    select slice.name, track.name, up.name, upper.name,
        coalesce(thread.tid, ''), coalesce(process.pid, thread_process.pid, '')
    from slice join track on track.id = slice.track_id
    left join track up on up.id = track.parent_id left join track upper on upper.id = up.parent_id
    left join thread_track on thread_track.id = track.id left join thread using (utid)
    left join process thread_process on thread_process.upid = thread.upid
    left join process_track on process_track.id = track.id left join process on process.upid = process_track.upid
    order by slice.ts";
const COUNTERS: &str = "
    select track.name, track.unit, value
    from counter join counter_track track on track.id = counter.track_id order by ts";
#[test]
fn the_trace_processor_sees_the_hierarchy_that_was_described() {
    let Some(tpq) = std::env::var_os("FERRETTO_TPQ")
        .map(PathBuf::from)
        .filter(|path| path.exists())
    else {
        println!("skipped: no trace processor; name the program tpq in FERRETTO_TPQ");
        return;
    };
    const TREE: NamedTrack = NamedTrack::new("tree");
    const BRANCH: NamedTrack = NamedTrack::new("branch").child_of(&TREE);
    let mut trace = Trace::default();
    trace.slice(&Track::thread(), "on the thread");
    trace.slice(&Track::process(), "on the process");
    trace.slice(&NamedTrack::new("leaf").child_of(&BRANCH), "on a leaf");
    trace.slice(&NamedTrack::new("scoped").thread_scoped(), "below the thread");
    trace.slice(&NamedTrack::dynamic("everybody's").global(), "below nothing");
    let heap = CounterTrack::new("heap")
        .unit(CounterUnit::SizeBytes)
        .unit_multiplier(1024);
    trace.count(&heap, 3);
    trace.count(&heap, 5);
    trace.count(&CounterTrack::new("heat").unit_name("degrees").incremental(), 7);
    trace.count(
        &CounterTrack::new("cpu")
            .builtin(BuiltinCounter::ThreadTimeNs)
            .thread_scoped(),
        9,
    );

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    std::fs::write(&path, trace.bytes.as_slice()).unwrap();
    let stats = Command::new(&tpq).arg("--stats").arg(&path).output().unwrap();
    assert!(
        stats.status.success(),
        "{}",
        String::from_utf8_lossy(&stats.stdout)
    );
    let output = Command::new(&tpq)
        .arg("--no-header")
        .arg(&path)
        .args([SLICES, COUNTERS])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    // \N is NULL: threads' and processes' tracks are named by their thread and process, and are no parents of tracks.
    let (tid, pid) = (Track::thread().uuid() ^ process_uuid(), std::process::id());
    let expected = format!(
        "on the thread\t\\N\t\\N\t\\N\t{tid}\t{pid}\n\
         on the process\t\\N\t\\N\t\\N\t\t{pid}\n\
         on a leaf\tleaf\tbranch\ttree\t\t{pid}\n\
         below the thread\tscoped\t\\N\t\\N\t{tid}\t{pid}\n\
         below nothing\teverybody's\t\\N\t\\N\t\t\n\
         \n\
         heap\tbytes\t3072.0\n\
         heap\tbytes\t5120.0\n\
         heat\tdegrees\t7.0\n\
         cpu\tns\t9.0\n"
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
