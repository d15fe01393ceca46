use std::collections::HashSet;
use std::future::ready;
use std::pin::pin;
use std::task::Waker;

use proptest::prelude::*;

use super::*;
use crate::future::TraceFuture;

/// The standard's example.
const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn the_standards_example_reads_and_is_written_as_it_was() {
    let context: TraceContext = EXAMPLE.parse().unwrap();
    assert_eq!(context.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
    assert_eq!(context.parent_id(), 0x00f0_67aa_0ba9_02b7);
    assert!(context.is_sampled());
    assert_eq!(context.to_string(), EXAMPLE);
    // Other processes, of other versions too, compute the same.
    assert_eq!(context.flow().id(), EXAMPLE_FLOW);
}

const EXAMPLE_FLOW: u64 = 0x05e3_2548_cb6f_07f1;

#[test]
fn headers_that_the_standard_forbids_are_refused_with_the_reason() {
    let wrong = |header: &str, reason: &str| {
        let error = header.parse::<TraceContext>().unwrap_err().to_string();
        assert!(error.contains(reason), "{header}: {error}");
    };
    wrong("", "shorter");
    wrong(&EXAMPLE[..54], "shorter");
    wrong(&format!("{EXAMPLE}-"), "longer");
    wrong(&format!("{EXAMPLE} "), "longer");
    wrong(&EXAMPLE.replace("4bf9", "4BF9"), "digits");
    wrong(&EXAMPLE.replace("4bf9", "+bf9"), "digits");
    wrong(&EXAMPLE.replace("4bf92", "4bfé"), "digits");
    wrong(&EXAMPLE.replace('-', "_"), "four numbers");
    wrong(&EXAMPLE.replacen("00", "ff", 1), "version ff");
    wrong(
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "trace is 0",
    );
    wrong(
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "parent is 0",
    );
    wrong(&format!("{}1", EXAMPLE.replacen("00", "01", 1)), "more than two");
}

#[test]
fn versions_to_come_are_read_as_far_as_they_are_known() {
    let known: TraceContext = EXAMPLE.parse().unwrap();
    for header in [
        EXAMPLE.replacen("00", "cc", 1),
        format!("{}-what-the-future-brings", EXAMPLE.replacen("00", "01", 1)),
        format!("{}ff", &EXAMPLE.replacen("00", "01", 1)[..53]),
    ] {
        assert_eq!(header.parse(), Ok(known), "{header}");
    }
}

#[test]
fn unknown_flags_are_not_passed_on() {
    let context: TraceContext = EXAMPLE.replace("-01", "-fe").parse().unwrap();
    assert!(!context.is_sampled());
    assert!(context.to_string().ends_with("-02"));
}

#[test]
fn numbers_are_new_each_time_and_children_stay_in_the_trace() {
    let traces: Vec<_> = (0..1000).map(|_| TraceContext::start()).collect();
    let children = traces.iter().map(TraceContext::child);
    for (trace, child) in traces.iter().zip(children.clone()) {
        assert_eq!(trace.trace_id(), child.trace_id());
        assert_eq!(trace.is_sampled(), child.is_sampled());
    }
    let flows: HashSet<_> = traces
        .iter()
        .copied()
        .chain(children)
        .map(|context| context.flow())
        .collect();
    assert_eq!(flows.len(), 2000);
}

#[test]
fn contexts_sent_within_a_request_belong_to_its_trace() {
    assert_eq!(TraceContext::current(), None);
    let outer = TraceContext::start();
    let future = async {
        assert_eq!(TraceContext::current(), Some(outer));
        let inner = TraceContext::outgoing();
        assert_eq!(inner.trace_id(), outer.trace_id());
        assert_ne!(inner.parent_id(), outer.parent_id());
        ready(()).in_context(inner).await;
        assert_eq!(TraceContext::current(), Some(outer));
    };
    let polled = pin!(future.in_context(outer)).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready());
    assert_eq!(TraceContext::current(), None);
    assert_ne!(TraceContext::outgoing().trace_id(), outer.trace_id());
}

proptest! {
    #[test]
    fn a_written_header_parses_to_the_same_context(trace_id in 1..u128::MAX, parent_id in 1..u64::MAX, flags in 0..4u8) {
        let context = TraceContext {
            trace_id: NonZeroU128::new(trace_id).unwrap(),
            parent_id: NonZeroU64::new(parent_id).unwrap(),
            flags,
        };
        prop_assert_eq!(context.to_string().parse(), Ok(context));
    }

    #[test]
    fn no_header_panics(header in "[0-9a-f-]{0,60}|.{50,60}") {
        if let Ok(context) = header.parse::<TraceContext>() {
            // Except for version and flags it is the parsed header.
            prop_assert_eq!(&context.to_string()[2..53], &header[2..53]);
        }
    }
}
