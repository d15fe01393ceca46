//! Ends that come when another instance has taken the place of the one that recorded the beginning.

use ferretto_proto::messages::{Message, TrackEventConfig, trace_packet};

use super::*;
use crate::track_event::registry;
use crate::track_event::tests::Recording;

#[test]
fn an_instance_that_started_since_gets_no_end() {
    // The end of a slice first reads the listeners: an instance may take another's place right after that.
    let before = registry::starts();
    let packets = Recording::of(Default::default(), || {
        EventCategory::listeners("", &END);
        let end = |starts, number: u64| {
            let fields = Fill::new(move |event: &mut EventContext<'_, '_>| {
                event.annotation("number", number);
            });
            write_end(&END, 1, starts, TrackRef::Thread, &fields)
        };
        assert_eq!(end(before, 1), 0);
        assert_eq!(end(registry::starts(), 2), 1);
    });
    let ends = packets
        .iter()
        .filter(|packet| matches!(packet.data, Some(trace_packet::Data::TrackEvent(_))));
    assert_eq!(ends.count(), 1);
}

#[test]
fn an_error_is_not_in_the_log_of_a_trace_without_arguments() {
    let fail = || {
        let slice = crate::trace_slice!("c", "Login");
        slice.end_with(|event| mark_error(event, format_args!("{} is wrong", "SECRET")));
    };
    let has_secret = |filter| {
        let config = TrackEventConfig {
            filter_debug_annotations: Some(filter),
            ..Default::default()
        };
        let packets = Recording::of(config, fail);
        packets.iter().any(|packet| {
            let encoded = packet.encode_to_vec();
            encoded.windows(6).any(|bytes| bytes == b"SECRET")
        })
    };
    assert!(has_secret(false));
    assert!(!has_secret(true));
}
