//! Clones of sessions with a trace filter. A clone has the filter of its original, unless its consumer asks for a clone without.

use ferretto_proto::messages::trace_config::TraceFilter;
use ferretto_proto::messages::trace_config::trace_filter::{
    StringFilterChain, StringFilterPolicy, StringFilterRule,
};

use ferretto_service::ReadCall;

use super::*;
use crate::filter_bytecode::{Rule, bytecode};

/// Removes everything from producers' packets except the time.
pub(super) fn filtered() -> TraceConfig {
    const PACKET: u32 = 1;
    const TIMESTAMP: u32 = 8;
    TraceConfig {
        trace_filter: TraceFilter {
            bytecode_v2: Some(bytecode(&[&[Rule::Nested(PACKET, 1)], &[Rule::Keep(TIMESTAMP)]])),
            ..Default::default()
        }
        .into(),
        bugreport_score: Some(1),
        ..config(&["d"])
    }
}

pub(super) fn for_bugreport(original: Original) -> CloneRequest {
    CloneRequest {
        original,
        purpose: ClonePurpose::Bugreport,
        filter: CloneFilter::Skipped,
        ..request(SessionId(0))
    }
}

#[test]
fn a_clone_is_filtered_as_its_original_is() {
    let mut scene = Scene::with(&filtered());
    scene.write(&["read of the original before"]);
    assert!(scene.texts(scene.owner).is_empty());
    scene.write(&["secret"]);
    scene.clone();
    let cloned = scene.world.read_encoded(scene.cloner, 1 << 20);
    let sizes: Vec<u64> = cloned.iter().map(|packet| packet.len() as u64).collect();
    let (of_statistics, others) = sizes.split_last().unwrap();
    assert!(*of_statistics > 0);
    let decode = |packet: &Vec<u8>| TracePacket::decode_from_slice(packet).expect("a packet");
    let cloned: Vec<TracePacket> = cloned.iter().map(decode).collect();
    assert!(texts(&cloned).is_empty());
    // The clone has all packets but the statistics, and no counts of the original's filter.
    let filter = stats(&cloned).filter_stats.clone();
    assert_eq!(filter.input_packets, Some(others.len() as u64));
    assert_eq!(filter.output_bytes, Some(others.iter().sum()));
    let of_original = scene.world.service.trace_stats(scene.owner).unwrap().filter_stats;
    assert!(filter.input_bytes < of_original.input_bytes);
    assert!(scene.texts(scene.owner).is_empty());
}

#[test]
fn rules_hide_text_in_a_compressed_clone_that_is_made_while_its_original_is_read() {
    const PACKET: u32 = 1;
    const FOR_TESTING: u32 = 900;
    const STR: u32 = 1;
    let rule = StringFilterRule {
        policy: Some(StringFilterPolicy::SFP_MATCH_REDACT_GROUPS),
        regex_pattern: Some("secret: (.*)".into()),
        ..Default::default()
    };
    let mut scene = Scene::with(&TraceConfig {
        trace_filter: TraceFilter {
            bytecode_v2: Some(bytecode(&[
                &[Rule::Nested(PACKET, 1)],
                &[Rule::Nested(FOR_TESTING, 2)],
                &[Rule::Text(STR)],
            ])),
            string_filter_chain: StringFilterChain {
                rules: vec![rule],
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }
        .into(),
        compression_type: Some(trace_config::CompressionType::COMPRESSION_TYPE_DEFLATE),
        ..config(&["d"])
    });
    scene.write(&["secret: first"]);
    scene.write(&["secret: second"]);
    let texts_in = |packets: Vec<Vec<u8>>| {
        let decode = |packet: &Vec<u8>| TracePacket::decode_from_slice(packet).expect("a packet");
        let packets: Vec<TracePacket> = crate::world::expanded(packets).iter().map(decode).collect();
        texts(&packets)
    };
    let now = scene.world.now;
    let batch = scene
        .world
        .service
        .read_buffers(scene.owner, &mut ReadCall::default(), 1, &now);
    let batch = batch.expect("a session");
    assert!(batch.has_more);
    let begun = batch.packets().map(|packet| packet.collect::<Vec<_>>().concat());
    assert_eq!(texts_in(begun.collect()), ["secret: P60RE"]);
    scene.clone();
    for consumer in [scene.cloner, scene.owner] {
        let rest = scene.world.read_encoded(consumer, 1 << 20);
        assert_eq!(texts_in(rest), ["secret: P60RED"]);
    }
}

#[test]
fn a_bug_report_has_the_fields_that_the_filter_cuts_out() {
    let session = Scene::with(&filtered()).session;
    // Older clients only report that the clone is for a bug report.
    let old_way = CloneRequest {
        original: Original::BUGREPORT,
        ..request(SessionId(0))
    };
    for request in [for_bugreport(Original::Id(session.0)), old_way] {
        let mut scene = Scene::with(&filtered());
        scene.write(&["secret"]);
        scene.clone_as(request);
        let cloned = scene.world.read(scene.cloner);
        assert_eq!(texts(&cloned), ["secret"]);
        assert!(stats(&cloned).filter_stats.as_option().is_none());
        assert!(
            scene.texts(scene.owner).is_empty(),
            "the original goes on filtering"
        );
    }
}

#[test]
fn a_user_that_may_not_clone_a_session_gets_no_unfiltered_clone_either() {
    let mut scene = Scene::with(&filtered());
    let stranger = scene.world.consumer_of(1234);
    let request = for_bugreport(Original::Id(scene.session.0));
    let error = scene.world.try_clone(stranger, request).unwrap_err();
    assert!(error.contains("UID"), "{error}");
}
