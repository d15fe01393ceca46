//! Clones of sessions with a trace filter: they have it too, unless they are asked for without.

use ferretto_proto::messages::trace_config::TraceFilter;

use super::*;
use crate::filter_bytecode::{Rule, bytecode};

/// Lets nothing of producers' packets pass but the time.
fn filtered() -> TraceConfig {
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

fn for_bugreport(original: Original) -> CloneRequest {
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
    scene.write(&["secret"]);
    scene.clone();
    let cloned = scene.world.read(scene.cloner);
    assert!(texts(&cloned).is_empty());
    let of_clone = stats(&cloned).filter_stats.input_packets.unwrap();
    assert_eq!(
        of_clone,
        cloned.len() as u64 - 1,
        "all but the statistics, counted from the start"
    );
    assert!(scene.texts(scene.owner).is_empty());
}

#[test]
fn a_bug_report_has_what_the_filter_cuts_out() {
    let session = Scene::with(&filtered()).session;
    for original in [Original::Id(session.0), Original::BUGREPORT] {
        let mut scene = Scene::with(&filtered());
        scene.write(&["secret"]);
        scene.clone_as(for_bugreport(original));
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
fn whoever_may_not_clone_a_session_gets_none_without_its_filter_either() {
    let mut scene = Scene::with(&filtered());
    let stranger = scene.world.consumer_of(1234);
    let request = for_bugreport(Original::Id(scene.session.0));
    let error = scene.world.try_clone(stranger, request).unwrap_err();
    assert!(error.contains("UID"), "{error}");
}
