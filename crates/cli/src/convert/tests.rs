use std::io::{Cursor, Read};

use ferretto_wire::{Reader, Value};
use flate2::read::GzDecoder;
use proptest::prelude::*;

use super::import::ImportError;
use super::*;
use crate::samples::{Keep, Recording};

const FOLDED: &str = "prog;main;work 3\nprog;main;rest 1\nother;main 2\n";

/// Returns the packets that an importer makes of a file.
fn imported<N>(
    source: &[u8],
    import: impl FnOnce(Cursor<Vec<u8>>, &mut import::Write<'_>) -> Result<N, ImportError>,
) -> Result<(Vec<Vec<u8>>, N), ImportError> {
    let mut packets = Vec::new();
    let notes = import(Cursor::new(source.to_vec()), &mut |packet| {
        packets.push(packet.to_vec());
        Ok(())
    })?;
    Ok((packets, notes))
}

fn folded(text: &str) -> Result<(Vec<Vec<u8>>, import::Notes), ImportError> {
    imported(text.as_bytes(), |source, write| {
        import::folded::import(source, write)
    })
}

fn json(text: &str) -> Result<(Vec<Vec<u8>>, import::Notes), ImportError> {
    imported(text.as_bytes(), |source, write| {
        import::json::import(source, write)
    })
}

fn recording(packets: &[Vec<u8>]) -> Recording {
    let mut recorder = Recorder::new(Keep::Samples, |_| true);
    for packet in packets {
        recorder.packet(packet);
    }
    recorder.finish()
}

fn written(recording: &Recording, format: SampleFormat) -> Vec<u8> {
    let mut out = Vec::new();
    write(recording, format, &recording.events_with_stacks(), &mut out).unwrap();
    out
}

#[test]
fn folded_stacks_come_back_from_a_trace() {
    let (packets, notes) = folded(FOLDED).unwrap();
    assert!(notes.is_empty());
    let out = written(&recording(&packets), SampleFormat::Folded);
    let expected = "other;other;main 2\nprog;prog;main;rest 1\nprog;prog;main;work 3\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn weights_are_divided_by_what_they_have_in_common() {
    let (packets, notes) = folded("a;b 3000000000\na;c 1000000000\n").unwrap();
    assert!(notes.is_empty());
    let out = written(&recording(&packets), SampleFormat::Folded);
    assert_eq!(String::from_utf8(out).unwrap(), "a;a;b 3\na;a;c 1\n");
}

#[test]
fn a_wrong_line_is_named() {
    for (text, message) in [
        (
            "a;b 1\nb\n",
            "line 2: a stack and its count are expected, with a space between them",
        ),
        ("a;b x\n", "line 1: the line ends with `x`, which is no count"),
    ] {
        assert_eq!(folded(text).unwrap_err().to_string(), message);
    }
}

/// The fields of a message, by number.
fn fields(message: &[u8], number: u32) -> Vec<Value<'_>> {
    let fields = Reader::new(message).map(Result::unwrap);
    fields
        .filter(|field| field.number == number)
        .map(|field| field.value)
        .collect()
}

fn packed(value: Value<'_>) -> Vec<u64> {
    let mut bytes = value.as_bytes().unwrap();
    std::iter::from_fn(|| ferretto_wire::take_varint(&mut bytes)).collect()
}

#[test]
fn a_pprof_profile_has_the_samples_with_their_functions_and_labels() {
    let (packets, _) = folded(FOLDED).unwrap();
    let out = written(&recording(&packets), SampleFormat::Pprof);
    let mut profile = Vec::new();
    GzDecoder::new(&out[..]).read_to_end(&mut profile).unwrap();
    let strings: Vec<String> = fields(&profile, 6)
        .iter()
        .map(|text| String::from_utf8(text.as_bytes().unwrap().to_vec()).unwrap())
        .collect();
    assert_eq!(strings[0], "");
    let number = |message: &[u8], field| fields(message, field).first().and_then(|value| value.as_varint());
    let find = |kind: u32, id: u64| {
        let mut all = fields(&profile, kind)
            .into_iter()
            .map(|value| value.as_bytes().unwrap());
        all.find(|entry| number(entry, 1) == Some(id)).unwrap()
    };
    let mut seen = Vec::new();
    for sample in fields(&profile, 2) {
        let sample = sample.as_bytes().unwrap();
        let mut names = Vec::new();
        for location in packed(fields(sample, 1)[0]) {
            let location = find(4, location);
            let line = fields(location, 4)[0].as_bytes().unwrap();
            let function = find(5, number(line, 1).unwrap());
            names.push(strings[number(function, 2).unwrap() as usize].clone());
        }
        let values = packed(fields(sample, 2)[0]);
        let label = fields(sample, 3)[0].as_bytes().unwrap();
        let (key, text) = (
            number(label, 1).unwrap() as usize,
            number(label, 2).unwrap() as usize,
        );
        assert_eq!(strings[key], "process");
        seen.push(format!("{}: {} {values:?}", strings[text], names.join("<")));
    }
    seen.sort();
    // The number of samples, and what they weigh: the period of these weights is 1.
    assert_eq!(
        seen,
        [
            "other: main [2, 2]",
            "prog: rest<main [1, 1]",
            "prog: work<main [3, 3]"
        ]
    );
}

#[test]
fn a_flame_graph_names_functions_with_their_samples() {
    let (packets, _) = folded(FOLDED).unwrap();
    let out = String::from_utf8(written(&recording(&packets), SampleFormat::FlameGraph)).unwrap();
    assert!(out.starts_with("<?xml"));
    assert!(out.contains("work (3 samples, 50.00%)"), "{out}");
}

#[test]
fn a_number_at_the_end_of_a_name_is_no_count() {
    let (packets, _) = folded("prog;main;work 7 3\n").unwrap();
    let out = String::from_utf8(written(&recording(&packets), SampleFormat::FlameGraph)).unwrap();
    assert!(out.contains("work\u{a0}7 (3 samples, 100.00%)"), "{out}");
}

#[test]
fn a_profile_for_firefox_has_threads_with_samples_in_time() {
    let (packets, _) = folded(FOLDED).unwrap();
    let out = written(&recording(&packets), SampleFormat::Firefox);
    let profile: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let threads = profile["threads"].as_array().unwrap();
    let samples = |thread: &serde_json::Value| thread["samples"]["length"].as_u64().unwrap();
    let all: Vec<(&str, u64)> = threads
        .iter()
        .map(|thread| (thread["name"].as_str().unwrap(), samples(thread)))
        .collect();
    assert_eq!(all, [("prog", 4), ("other", 2)]);
}

#[test]
fn a_profile_for_firefox_has_the_weights_of_samples() {
    let (packets, _) = folded(FOLDED).unwrap();
    let mut recording = recording(&packets);
    for (sample, weight) in recording.samples.iter_mut().zip([0, 5, u64::MAX, 7]) {
        sample.weight = weight;
    }
    let threads = |recording: &Recording| {
        let profile: serde_json::Value =
            serde_json::from_slice(&written(recording, SampleFormat::Firefox)).unwrap();
        let threads = profile["threads"].as_array().unwrap();
        let samples = threads.iter().map(|thread| thread["samples"].clone());
        samples.collect::<Vec<_>>()
    };
    let samples = &threads(&recording)[0];
    assert_eq!(samples["weight"], serde_json::json!([0, 5, i32::MAX, 7]));
    assert_eq!(samples["weightType"], "samples");
    for event in &mut recording.profile.events {
        event.unit = "bytes".into();
        event.period = Some(crate::samples::Period::Weighted);
    }
    assert_eq!(threads(&recording)[0]["weightType"], "bytes");
}

#[test]
fn a_recording_without_stacks_is_no_profile() {
    let error = write(&recording(&[]), SampleFormat::Folded, &[], &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn damaged_json_is_reported_with_its_place() {
    for (text, message) in [
        (
            "{\"traceEvents\":[\n{\"ph\":\"B\" 1}]}",
            "line 2, column 11: expected `,` or `}`",
        ),
        (
            "{\"traceEvents\":[\n{\"ph\":\"B\"",
            "line 2, column 9: EOF while parsing an object",
        ),
        (
            "{\"other\":[]}",
            "line 1, column 12: the object has no `traceEvents`",
        ),
        ("[\n5]", "line 2, column 2: an event has to be an object"),
    ] {
        assert_eq!(json(text).unwrap_err().to_string(), message);
    }
}

#[test]
fn an_array_of_events_may_lack_its_end() {
    for text in [
        "[{\"ph\":\"i\",\"ts\":1,\"pid\":1,\"tid\":1}",
        "[{\"ph\":\"i\",\"ts\":1,\"pid\":1,\"tid\":1},",
    ] {
        // Two descriptors and the event.
        assert_eq!(json(text).unwrap().0.len(), 3);
    }
}

#[test]
fn events_that_become_nothing_are_counted() {
    let (_, notes) =
        json("[{\"ph\":\"X\",\"ts\":1,\"pid\":1},{\"ph\":\"P\",\"ts\":1},{\"ph\":\"P\",\"ts\":1}]").unwrap();
    assert_eq!(
        notes,
        [
            "2 events of the phase `P` have no counterpart; they are left out",
            "1 slices (`X`) have no length, `dur`; they are left out",
        ]
    );
}

#[test]
fn the_ending_of_a_file_says_its_format() {
    for (name, format) in [
        ("a.pb.gz", Some(Format::Pprof)),
        ("a.pb", Some(Format::Perfetto)),
        ("a.firefox.json", Some(Format::Firefox)),
        ("A.JSON", Some(Format::Json)),
        ("a.svg", Some(Format::Flamegraph)),
        ("a.json.gz", Some(Format::Json)),
        ("a.firefox.json.gz", Some(Format::Firefox)),
        ("a.pftrace.gz", Some(Format::Perfetto)),
        ("a.pprof.gz", Some(Format::Pprof)),
        ("a.gz", None),
        ("a", None),
    ] {
        assert_eq!(Format::of_file(std::path::Path::new(name)), format, "{name}");
    }
}

#[test]
fn the_words_of_upstream_are_understood() {
    use clap::ValueEnum;
    for (word, format) in [
        ("profile", Format::Pprof),
        ("json", Format::Json),
        ("systrace", Format::Systrace),
        ("text", Format::Text),
    ] {
        assert_eq!(Format::from_str(word, false).unwrap(), format);
    }
}

/// Packets of all kinds that the formats read.
fn mixed_packets() -> Vec<Vec<u8>> {
    let events = r#"[
        {"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"worker"}},
        {"ph":"X","pid":1,"tid":1,"ts":10,"dur":100.5,"name":"outer","cat":"c","args":{"a":[1,{"b":null}]}},
        {"ph":"C","pid":1,"tid":1,"ts":11,"name":"n","args":{"v":3}},
        {"ph":"b","pid":1,"tid":1,"ts":30,"name":"as","id":1},{"ph":"e","pid":1,"tid":1,"ts":40,"name":"as","id":1}]"#;
    let mut packets = folded(FOLDED).unwrap().0;
    packets.extend(json(events).unwrap().0);
    let mut writer = ferretto_wire::Writer::new();
    ferretto_proto::write::TracePacket::new(&mut writer).ftrace_events(|bundle| {
        bundle.cpu(1).event(|event| {
            event.timestamp(5).pid(3).sched_switch(|switch| {
                switch.prev_comm("a").prev_pid(3).next_comm("b").next_pid(4);
            });
        });
    });
    packets.push(writer.into_vec());
    packets
}

proptest! {
    #[test]
    fn damaged_packets_are_survived_by_all_formats(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..30),
    ) {
        let mut packets = mixed_packets();
        for (which, at, value) in &changes {
            let packet = which.get(&packets).clone();
            let mut changed = packet.clone();
            if !changed.is_empty() {
                let at = at.index(changed.len());
                changed[at] = *value;
            }
            let which = which.index(packets.len());
            packets[which] = changed;
        }
        super::survive::all_formats(&packets);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300), which in 0_usize..4) {
        let heads: [&[u8]; 4] = [b"PERFILE2", b"[{\"ph\":\"X\"", b"a;b 1\n", b"\x0a"];
        super::survive::convert(&[heads[which], &bytes].concat());
    }
}
