use std::collections::HashSet;
use std::future::{pending, ready};
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
        assert_eq!(header.parse().as_ref(), Ok(&known), "{header}");
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
        .cloned()
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
        assert_eq!(TraceContext::current().as_ref(), Some(&outer));
        let inner = TraceContext::outgoing();
        assert_eq!(inner.trace_id(), outer.trace_id());
        assert_ne!(inner.parent_id(), outer.parent_id());
        ready(()).in_context(inner).await;
        assert_eq!(TraceContext::current().as_ref(), Some(&outer));
    };
    let polled = pin!(future.in_context(outer.clone())).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready());
    assert_eq!(TraceContext::current(), None);
    assert_ne!(TraceContext::outgoing().trace_id(), outer.trace_id());
}

#[test]
fn a_context_is_current_on_its_thread_until_its_guard_is_dropped() {
    let [outer, inner] = [(); 2].map(|()| TraceContext::start());
    let is_current = |context: &TraceContext| TraceContext::current().as_ref() == Some(context);
    let _outer = outer.clone().enter();
    {
        let _inner = inner.clone().enter();
        assert!(is_current(&inner));
        let sent = TraceContext::outgoing();
        assert_eq!(sent.trace_id(), inner.trace_id());
        let elsewhere = std::thread::spawn(TraceContext::current);
        assert_eq!(elsewhere.join().unwrap(), None);
    }
    assert!(is_current(&outer));
    let unwound = std::panic::catch_unwind(|| {
        let _inner = inner.clone().enter();
        panic!("within");
    });
    assert!(unwound.is_err());
    assert!(is_current(&outer));
}

#[test]
fn guards_in_another_order_leave_nothing_behind() {
    let [a, b, c] = [(); 3].map(|()| TraceContext::start());
    let [outer, inner] = [a.clone().enter(), b.enter()];
    drop(outer);
    assert_eq!(TraceContext::current(), None);
    let _next = c.clone().enter();
    drop(inner);
    assert_eq!(TraceContext::current(), Some(c.clone()));
    let outer = a.enter();
    std::mem::forget(c.clone().enter());
    drop(outer);
    assert_eq!(TraceContext::current(), Some(c));
}

#[test]
fn a_guard_that_a_future_keeps_ends_with_the_poll() {
    let inner = TraceContext::start();
    let mut future = pin!(
        async {
            let _kept = inner.clone().enter();
            pending::<()>().await;
        }
        .in_context(TraceContext::start())
    );
    assert!(
        future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    assert_eq!(TraceContext::current(), None);
}

#[test]
fn a_thread_that_ends_has_no_current_context_and_does_not_panic() {
    struct AtEnd(Option<EnteredContext>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            let entered = TraceContext::start().enter();
            drop((self.0.take(), entered));
            assert_eq!(TraceContext::current(), None);
        }
    }
    thread_local! {
        static AT_END: std::cell::RefCell<AtEnd> = const { std::cell::RefCell::new(AtEnd(None)) };
    }
    let thread = std::thread::spawn(|| {
        // Destroyed after the contexts, which come to be later.
        AT_END.with_borrow_mut(|at_end| at_end.0 = Some(TraceContext::start().enter()));
    });
    thread.join().unwrap();
}

#[test]
fn the_data_of_others_goes_with_all_requests_of_the_trace() {
    let context = TraceContext::start().with_tracestate("rojo=00f067aa0ba902b7 , congo=t61rcWkgMzE");
    let expected = Some("rojo=00f067aa0ba902b7 , congo=t61rcWkgMzE");
    assert_eq!(context.tracestate(), expected);
    assert_eq!(context.child().tracestate(), expected);
    {
        let _entered = context.clone().enter();
        assert_eq!(TraceContext::outgoing().tracestate(), expected);
    }
    let future = async { TraceContext::outgoing().tracestate() == expected };
    let polled = pin!(future.in_context(context.clone())).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(true));
    assert_eq!(TraceContext::outgoing().tracestate(), None);
    assert_eq!(TraceContext::start().tracestate(), None);
    assert_eq!(context.with_tracestate("").tracestate(), None);
}

/// What is passed on of this header; the context stays in any case.
fn passed_on(header: &str) -> Option<String> {
    let context: TraceContext = EXAMPLE.parse().unwrap();
    let with = context.with_tracestate(header);
    assert_eq!(with.to_string(), EXAMPLE);
    with.tracestate().map(str::to_owned)
}

#[test]
fn a_state_that_the_standard_allows_is_passed_on_unchanged_and_any_other_dropped() {
    let long = "x".repeat(256);
    let whole = vec!["a=1"; 32].join(",");
    for allowed in [
        "a=1",
        "a=1,,b=2,",
        "a=1\t,\tb=2",
        "0tenant@vendor=x y",
        "a_-*/=!~",
        &format!("{long}=1"),
        &format!("a={long}"),
        &whole,
    ] {
        assert_eq!(passed_on(allowed).as_deref(), Some(allowed));
    }
    assert_eq!(passed_on(" a=1\t").as_deref(), Some("a=1"));
    for forbidden in [
        "",
        " , ",
        "a",
        "=1",
        "a=",
        "a= ",
        "a=1=2",
        "A=1",
        "@a=1",
        "a b=1",
        "a =1",
        "a=1;b=é",
        "a=1\tb",
        "good=1,bad",
        &format!("{long}x=1"),
        &format!("a={long}x"),
        &format!("{whole},a=1"),
    ] {
        assert_eq!(passed_on(forbidden), None, "{forbidden}");
    }
}

#[test]
fn a_state_that_is_too_long_loses_whole_members_the_long_ones_first() {
    let member = |key: &str, len: usize| format!("{key}={}", "x".repeat(len - key.len() - 1));
    let (short, long) = (|key| member(key, 128), |key| member(key, 129));
    // 515 bytes, and 512 with the commas.
    let four = [short("a"), short("b"), short("c"), member("d", 125)].join(",");
    assert_eq!(four.len(), 512);
    assert_eq!(passed_on(&four), Some(four.clone()));
    let five = [short("a"), long("b"), short("c"), short("d"), short("e")];
    let expected = [&*five[0], &five[2], &five[3]].join(",");
    assert_eq!(passed_on(&five.join(",")), Some(expected));
    let last = [long("a"), long("b"), short("c"), short("d")];
    let expected = [&*last[0], &last[2], &last[3]].join(",");
    assert_eq!(passed_on(&last.join(",")), Some(expected));
    assert_eq!(passed_on(&member("a", 400).replace('=', "")), None);
    assert_eq!(
        passed_on(&format!("{}={}", "a".repeat(256), "b".repeat(256))),
        None
    );
}

proptest! {
    #[test]
    fn a_written_header_parses_to_the_same_context(trace_id in 1..u128::MAX, parent_id in 1..u64::MAX, flags in 0..4u8) {
        let context = TraceContext {
            trace_id: NonZeroU128::new(trace_id).unwrap(),
            parent_id: NonZeroU64::new(parent_id).unwrap(),
            flags,
            state: None,
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

    #[test]
    fn a_state_is_bounded_and_passed_on_again_as_it_is(header in "[ab=, ]{0,700}|(k=[a-z]{0,200},){0,40}|.{0,60}") {
        if let Some(state) = passed_on(&header) {
            prop_assert!((1..=512).contains(&state.len()));
            prop_assert_eq!(passed_on(&state), Some(state));
        }
    }
}
