//! The trace processor's view of the common program, as lines of text that are the same for each run: without times, and with names in place of
//! numbers that the system assigns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ferretto_proto::messages::trace_packet::{Data, OptionalTrustedPacketSequenceId};
use ferretto_proto::messages::track_event::{NameField, Type};
use ferretto_proto::messages::{Message, Trace};

use crate::support::trace::{LOSSES, Rows, TraceProcessor};

/// The lines, by subject.
#[derive(Debug, PartialEq)]
pub(crate) struct Dump(BTreeMap<&'static str, BTreeSet<String>>);

/// Arguments as the processor lists them, by set.
struct Arguments(BTreeMap<String, Vec<(String, String)>>);

impl Arguments {
    /// Returns the keys and values of a set, in one line.
    fn line(&self, set: &str, names: &Names) -> String {
        let mut line = String::new();
        for (key, value) in self.0.get(set).into_iter().flatten() {
            let value = match (&**key, value.split_once(':')) {
                // The id of a track, which is compared separately.
                ("trace_id", _) => continue,
                (key, Some((_, number))) if key.ends_with("utid") => {
                    names.threads.get(number).map_or("?", |name| name.as_str())
                }
                _ => value,
            };
            line += &format!("{key}={value} ");
        }
        line
    }

    fn number(&self, set: &str, key: &str) -> Option<u64> {
        let (_, value) = self.0.get(set)?.iter().find(|(name, _)| name == key)?;
        // SQL has signed numbers.
        let (_, number) = value.split_once(':')?;
        number.parse::<i64>().ok().map(i64::cast_unsigned)
    }
}

/// The names of tracks and threads for other lines.
struct Names {
    /// By the processor's id. Names are unique in a dump, and the same for each run.
    tracks: BTreeMap<String, String>,
    /// By `utid`.
    threads: BTreeMap<String, String>,
}

/// Whether times distinguish all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    Distinct,
    /// Several events may have the same time. On one track, the processor makes the later ones children of the earlier ones.
    Coarse,
}

impl Dump {
    pub(crate) fn of(processor: &TraceProcessor, trace: &Path, times: Times) -> Dump {
        let [losses, arguments, tracks, slices, counters, flows, logs, threads, processes] = processor.query(
            trace,
            [
                LOSSES,
                "select arg_set_id, key, value_type, display_value from args order by arg_set_id, key, id",
                "select t.id, t.parent_id, t.name, t.type, t.source_arg_set_id, c.unit, c.description,
                    utid, thread.tid, process.name
                from (select *, extract_arg(dimension_arg_set_id, 'utid') utid,
                        extract_arg(dimension_arg_set_id, 'upid') upid from track) t
                    left join counter_track c using (id)
                    left join thread using (utid) left join process on process.upid = t.upid
                order by t.id",
                // The length of a slice is compared only where the program supplies the times.
                "select id, track_id, depth, parent_id, category, name,
                    case when dur < 0 then 'open'
                        when name like 'timed%' or name = 'on another clock' then 'takes ' || dur else 'ends' end,
                    thread_ts is not null, thread_dur is not null, arg_set_id
                from slice order by track_id, ts, id",
                "select track_id, value, arg_set_id from counter order by track_id, ts, id",
                "select slice_out, slice_in, arg_set_id from flow order by id",
                "select utid, prio, tag, msg from android_logs order by ts, id",
                "select utid, thread.name, is_main_thread, process.name
                    from thread left join process using (upid) where tid > 0 order by utid",
                "select name, cmdline is not null, arg_set_id from process where pid > 0 order by name",
            ],
        );
        assert_eq!(losses, Rows::new());
        let mut sets = Arguments(BTreeMap::new());
        for [set, key, kind, value] in columns(arguments) {
            sets.0
                .entry(set)
                .or_default()
                .push((key, format!("{kind}:{value}")));
        }
        let mut dump = Dump(BTreeMap::new());
        let mut names = Names {
            tracks: BTreeMap::new(),
            threads: BTreeMap::new(),
        };
        for [utid, name, is_main, process] in columns(threads) {
            dump.add("threads", format!("{name} | main {is_main} | {process}"));
            names.threads.insert(utid, name);
        }
        for [name, has_cmdline, set] in columns(processes) {
            dump.add(
                "processes",
                format!("{name} | {has_cmdline} | {}", sets.line(&set, &names)),
            );
        }
        dump.tracks(tracks, &sets, &mut names);
        dump.slices(slices, flows, &sets, &names, times);
        let mut last_value = (String::new(), 0.0);
        for [track, value, set] in columns(counters) {
            let title = &names.tracks[&track];
            // Thread time varies, but must not go back.
            let value = if title.contains("/thread_time ") {
                let last = std::mem::replace(&mut last_value, (track.clone(), value.parse::<f64>().unwrap()));
                let before = if last.0 == track { last.1 } else { 0.0 };
                format!("{:?}", last_value.1.total_cmp(&before))
            } else {
                value
            };
            dump.add_numbered("counters", title, format!("{value} {}", sets.line(&set, &names)));
        }
        for [utid, priority, tag, message] in columns(logs) {
            let thread = &names.threads[&utid];
            dump.add_numbered("logs", thread, format!("{priority} {tag}: {message}"));
        }
        for state in states(trace) {
            dump.add_numbered("states", "", state);
        }
        dump
    }

    fn add(&mut self, subject: &'static str, line: String) {
        self.0.entry(subject).or_default().insert(line);
    }

    /// Adds a line with a number that counts the lines with the same beginning.
    fn add_numbered(&mut self, subject: &'static str, begin: &str, rest: String) -> String {
        let begin = format!("{begin} #");
        let lines = self.0.entry(subject).or_default();
        let earlier = lines.iter().filter(|line| line.starts_with(&begin)).count();
        let title = format!("{begin}{:04} {rest}", earlier + 1);
        lines.insert(title.clone());
        title
    }

    fn tracks(&mut self, rows: Rows, sets: &Arguments, names: &mut Names) {
        let mut uuids = BTreeMap::new();
        // The track of the process. Tracks without a parent are below it.
        let root = rows.iter().find(|row| row[3] == "process_track_event");
        let process_uuid = root.and_then(|row| sets.number(&row[4], "trace_id")).unwrap_or(0);
        for [id, parent, name, kind, set, unit, description, utid, tid, process] in columns(rows) {
            let scope = match names.threads.get(&utid) {
                Some(thread) => format!("thread {thread}"),
                None => process,
            };
            let above = names
                .tracks
                .get(&parent)
                .map_or(&*scope, |parent| parent.as_str());
            let title = format!("{above}/{name}");
            // Uuids are compared relative to the parents' uuids.
            let uuid = sets.number(&set, "trace_id");
            let parents_uuid = match (uuids.get(&parent), tid.parse::<u64>()) {
                (Some(&parent), _) => parent,
                (None, _) if kind.starts_with("global") => 0,
                (None, Ok(tid)) => process_uuid ^ tid,
                (None, Err(_)) => process_uuid,
            };
            let relative = uuid.map_or(String::new(), |uuid| format!("{:x}", uuid ^ parents_uuid));
            uuids.insert(id.clone(), uuid.unwrap_or(0));
            let line = format!(
                "{title} | {kind} | {relative} | {unit} | {description} | {}",
                sets.line(&set, names)
            );
            self.add("tracks", line);
            // Numbered tracks share their name with others.
            names.tracks.insert(id, format!("{title} {relative}"));
        }
    }

    fn slices(&mut self, slices: Rows, flows: Rows, sets: &Arguments, names: &Names, times: Times) {
        let mut titles: BTreeMap<String, String> = BTreeMap::new();
        for [
            id,
            track,
            depth,
            parent,
            category,
            name,
            end,
            thread_time,
            thread_duration,
            set,
        ] in columns(slices)
        {
            let parent = titles.get(&parent).map_or("", |parent| parent.as_str());
            let place = match times {
                Times::Distinct => format!("depth {depth} in <{parent}>"),
                Times::Coarse => String::new(),
            };
            let rest = format!(
                "{name} | {place} | {category} | {end} | \
                 thread time {thread_time} {thread_duration} | {}",
                sets.line(&set, names)
            );
            let title = self.add_numbered("slices", &names.tracks[&track], rest);
            let title = title.split(" | ").next().unwrap_or_default().to_owned();
            titles.insert(id, title);
        }
        for [from, to, set] in columns(flows) {
            let begin = format!("<{}> -> <{}>", titles[&from], titles[&to]);
            self.add_numbered("flows", &begin, sets.line(&set, names));
        }
    }

    /// Fails with the lines that only one of the two dumps has.
    #[track_caller]
    pub(crate) fn assert_same(&self, ours: &Dump, variant: &str) {
        let mut differences = Vec::new();
        let subjects: BTreeSet<_> = self.0.keys().chain(ours.0.keys()).collect();
        for subject in subjects {
            let of = |dump: &Dump| dump.0.get(subject).cloned().unwrap_or_default();
            let (theirs, ours) = (of(self), of(ours));
            let only = |whose: &str, lines: BTreeSet<String>| -> Vec<String> {
                lines
                    .iter()
                    .map(|line| format!("{whose} {subject}: {line}"))
                    .collect()
            };
            differences.extend(only("upstream's", &theirs - &ours));
            differences.extend(only("ours      ", &ours - &theirs));
        }
        assert!(differences.is_empty(), "{variant}:\n{}", differences.join("\n"));
        // Empty dumps would be the same too.
        let least = [
            ("slices", 60),
            ("tracks", 30),
            ("counters", 25),
            ("flows", 3),
            ("logs", 4),
            ("states", 6),
        ];
        for (subject, least) in least {
            let lines = self.0.get(subject).map_or(0, BTreeSet::len);
            assert!(lines >= least, "{variant}: {lines} {subject}");
        }
    }
}

/// Returns the cells of rows.
fn columns<const N: usize>(rows: Rows) -> impl Iterator<Item = [String; N]> {
    rows.into_iter().map(|row| row.try_into().unwrap())
}

/// Returns the changes of states, with the names of their tracks, directly from the packets, because this trace processor does not read them.
fn states(trace: &Path) -> Vec<String> {
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let (mut names, mut tracks) = (BTreeMap::new(), BTreeMap::new());
    let mut states = Vec::new();
    for packet in &trace.packet {
        let sequence = match packet.optional_trusted_packet_sequence_id {
            Some(OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(id)) => id,
            None => 0,
        };
        let data = &packet.interned_data;
        for entry in &data.event_names {
            names.insert(
                (sequence, entry.iid.unwrap()),
                entry.name.clone().unwrap_or_default(),
            );
        }
        match &packet.data {
            Some(Data::TrackDescriptor(track)) => {
                tracks.insert(
                    track.uuid,
                    format!("{:?} {:?}", track.static_or_dynamic_name, track.state.is_set()),
                );
            }
            Some(Data::TrackEvent(event)) if event.r#type == Some(Type::TYPE_STATE) => {
                let name = match &event.name_field {
                    Some(NameField::Name(name)) => name.clone(),
                    Some(NameField::NameIid(iid)) => names[&(sequence, *iid)].clone(),
                    // Upstream's SDK writes an empty name where ours omits it: both mean that there is no state.
                    None => String::new(),
                };
                states.push(format!(
                    "{} := {name:?} {}",
                    tracks[&event.track_uuid],
                    event.debug_annotations.len()
                ));
            }
            _ => {}
        }
    }
    states
}
