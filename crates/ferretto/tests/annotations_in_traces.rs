//! How debug annotations read in upstream's trace processor.
#![allow(clippy::unwrap_used)]

mod trace_processor;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ferretto::DebugAnnotation;
use ferretto::debug_annotation::{AnnotationValue, debug, from_fn};
use ferretto_proto::messages::track_event::Type;
use ferretto_proto::write::{TracePacket, TrackEvent};
use ferretto_wire::Writer;

/// The arguments of the one event of a trace, as `key value`; of long values the length. `None` without a trace processor.
fn arguments(trace: &Path) -> Option<Vec<String>> {
    let query = "select key || ' ' || iif(length(display_value) < 1000, display_value, length(display_value)) from slice join args using (arg_set_id) \
                 where key like 'debug.%' order by args.id";
    let rows = trace_processor::ask(trace, query)?;
    Some(rows.into_iter().map(|columns| columns.join("\t")).collect())
}

/// A trace with one event that has these annotations.
fn trace(annotations: &[(&str, &dyn DebugAnnotation)]) -> Vec<u8> {
    // A trace is a message whose field 1 is repeated: packets.
    let mut writer = Writer::new();
    writer.nested(1, |packet| {
        let mut packet = TracePacket::new(packet);
        packet
            .trusted_packet_sequence_id(1)
            .sequence_flags(1)
            .track_descriptor(|track| {
                track.uuid(1).name("track");
            });
    });
    writer.nested(1, |packet| {
        let mut packet = TracePacket::new(packet);
        packet
            .trusted_packet_sequence_id(1)
            .timestamp(10)
            .track_event(|event| {
                event.r#type(Type::TYPE_INSTANT).track_uuid(1).name("event");
                for (name, value) in annotations {
                    annotate(event, name, value);
                }
            });
    });
    writer.as_slice().to_vec()
}

fn annotate(event: &mut TrackEvent<'_>, name: &str, value: &dyn DebugAnnotation) {
    event.debug_annotations(|annotation| {
        annotation.name(name);
        value.write_annotation(AnnotationValue::new(annotation.writer()));
    });
}

#[derive(DebugAnnotation)]
struct Request {
    url: &'static str,
    retries: Option<u32>,
    method: Method,
    headers: BTreeMap<&'static str, Vec<u16>>,
}

#[derive(DebugAnnotation)]
#[allow(dead_code)]
enum Method {
    Get,
    Post { length: i64 },
}

#[test]
fn annotations_read_as_documented() {
    let request = |retries, method| Request {
        url: "/",
        retries,
        method,
        headers: BTreeMap::from([("Accept", vec![1, 2])]),
    };
    let (get, post) = (
        request(None, Method::Get),
        request(Some(3), Method::Post { length: -5 }),
    );
    let failed: Result<u8, _> = "x".parse::<u8>();
    let empty: Vec<u8> = vec![];
    let long = "x".repeat(100_000);
    let pairs = from_fn(|value| {
        value.array(|pairs| {
            pairs.push((1u8, "one")).push((2u8, "two"));
        })
    });
    let bytes = trace(&[
        ("get", &get),
        ("post", &post),
        ("failed", &failed),
        ("list", &[None, Some(1.5)]),
        ("lists", &[&empty[..], &[7]]),
        ("empty", &empty),
        ("none", &None::<u8>),
        ("flag", &true),
        ("address", &std::ptr::without_provenance::<u8>(0xbeef)),
        ("took", &Duration::from_micros(3)),
        ("wide", &(u128::from(u64::MAX) + 1)),
        ("quoted", &debug("a b")),
        ("pairs", &pairs),
        ("long", &long),
    ]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let expected = [
        "debug.get.url /",
        "debug.get.method Get",
        "debug.get.headers.Accept[0] 1",
        "debug.get.headers.Accept[1] 2",
        "debug.post.url /",
        "debug.post.retries 3",
        "debug.post.method.Post.length -5",
        "debug.post.headers.Accept[0] 1",
        "debug.post.headers.Accept[1] 2",
        "debug.failed.Err invalid digit found in string",
        "debug.list[0] None",
        "debug.list[1] 1.5",
        "debug.lists[0] []",
        "debug.lists[1][0] 7",
        "debug.flag true",
        "debug.address 0xbeef",
        "debug.took 3000",
        "debug.wide 18446744073709551616",
        "debug.quoted \"a b\"",
        "debug.pairs[0][0] 1",
        "debug.pairs[0][1] one",
        "debug.pairs[1][0] 2",
        "debug.pairs[1][1] two",
        "debug.long 100000",
    ];
    if let Some(arguments) = arguments(file.path()) {
        assert_eq!(arguments, expected);
    }
}
