use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{pending, poll_fn, ready};
use std::pin::pin;
use std::task::Waker;
use std::thread;

use ferretto_proto::messages::TrackEventConfig;
use ferretto_proto::messages::track_event::Type;

use super::*;
use crate::track_event::tests::{Events, Recording, name};
use crate::{trace_async, trace_event_instant, trace_function, trace_slice};

const BEGIN: Type = Type::TYPE_SLICE_BEGIN;
const END: Type = Type::TYPE_SLICE_END;
const INSTANT: Type = Type::TYPE_INSTANT;

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Pending this often.
async fn pauses(mut count: u32) {
    poll_fn(|_| match count.checked_sub(1) {
        None => Poll::Ready(()),
        Some(left) => {
            count = left;
            Poll::Pending
        }
    })
    .await;
}

/// The events of each track in the order of their times, by the names that the track and those above it have.
fn by_track(events: &Events) -> BTreeMap<(String, u64), Vec<(Type, String)>> {
    let mut all: Vec<_> = events
        .events
        .iter()
        .filter(|(_, event)| event.track_uuid.is_some())
        .collect();
    all.sort_by_key(|(time, _)| *time);
    let mut tracks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (_, event) in all {
        let uuid = event.track_uuid.unwrap();
        let track = events.track(uuid);
        let group = events.track(track.parent_uuid.unwrap());
        assert_eq!(group.parent_uuid, Some(Track::process().uuid()));
        let path = format!(
            "{:?}",
            (&group.static_or_dynamic_name, &track.static_or_dynamic_name)
        );
        tracks
            .entry((path, uuid))
            .or_default()
            .push((event.r#type.unwrap(), name(event).to_owned()));
    }
    tracks
}

fn record(events: impl FnOnce() + Send) -> Events {
    Events::of(&Recording::of(TrackEventConfig::default(), events))
}

#[track_caller]
fn lines(events: &Events) -> Vec<Vec<(Type, String)>> {
    by_track(events).into_values().collect()
}

fn event(kind: Type, name: &str) -> (Type, String) {
    (kind, name.to_owned())
}

#[test]
fn a_slice_may_end_on_another_thread() {
    let events = record(|| {
        let slice = trace_async!("net", "Request", "url" => "/");
        assert!(slice.is_recorded());
        trace_event_instant!("net", "Retry", track = slice);
        thread::scope(|scope| scope.spawn(|| drop(slice)).join()).unwrap();
    });
    let expected = [event(BEGIN, "Request"), event(INSTANT, "Retry"), event(END, "")];
    assert_eq!(lines(&events), [expected]);
    let ((path, _), _) = by_track(&events).pop_first().unwrap();
    assert!(path.contains("Async") && path.contains("Request"), "{path}");
}

#[test]
fn slices_at_a_time_have_lines_of_their_own_and_later_ones_have_them_again() {
    let events = record(|| {
        for _ in 0..3 {
            let begin = || trace_async!("net", "Request");
            let (first, second) = (begin(), begin());
            drop(first);
            drop(second);
        }
    });
    let turn = [event(BEGIN, "Request"), event(END, "")];
    let line: Vec<_> = turn.iter().cycle().take(6).cloned().collect();
    assert_eq!(lines(&events), [line.clone(), line]);
}

#[test]
fn names_and_tracks_may_be_chosen() {
    let events = record(|| {
        let name = String::from("dynamic");
        let _slice = trace_async!("net", name, "a" => 1);
        let _other = trace_async!("net", "on a track", track = Track::process(), "a" => 1);
    });
    let process = Track::process().uuid();
    let chosen = events
        .events
        .iter()
        .filter(|(_, event)| event.track_uuid == Some(process));
    assert_eq!(chosen.count(), 2);
    let own = events
        .events
        .iter()
        .filter(|(_, event)| event.track_uuid != Some(process));
    let own: Vec<_> = own
        .map(|(_, event)| (event.r#type.unwrap(), name(event).to_owned()))
        .collect();
    assert_eq!(own, [event(BEGIN, "dynamic"), event(END, "")]);
}

#[test]
fn nothing_is_taken_while_nobody_records() {
    fn evaluated() -> u8 {
        panic!("an argument of a slice that nobody records")
    }
    let slice = trace_async!("nobody's", "Request", "a" => evaluated());
    assert!(!slice.is_recorded());
    assert!(slice.lane.is_none());
    assert_eq!(slice.uuid(), Track::process().uuid());
}

#[test]
fn an_async_function_is_a_slice_across_threads() {
    #[trace_function("net", args)]
    async fn outer(count: u32) -> u32 {
        inner().await;
        count
    }
    #[trace_function("net", name = "renamed")]
    async fn inner() {
        pauses(2).await;
    }
    let events = record(|| {
        let mut future = Box::pin(outer(5));
        for _ in 0..2 {
            let polled = thread::scope(|scope| scope.spawn(|| poll(future.as_mut())).join()).unwrap();
            assert!(polled.is_pending());
        }
        assert_eq!(poll(future.as_mut()), Poll::Ready(5));
    });
    let mut lines = lines(&events);
    lines.sort_unstable_by_key(|line| line[0].1.clone());
    let expected = |name| vec![event(BEGIN, name), event(END, "")];
    assert_eq!(lines, [expected("outer"), expected("renamed")]);
}

#[test]
fn a_functions_slice_is_on_its_thread() {
    #[trace_function("net", args(count))]
    fn synchronous(count: u32) -> u32 {
        count
    }
    let events = record(|| assert_eq!(synchronous(5), 5));
    let all: Vec<_> = events
        .events
        .iter()
        .map(|(_, event)| (event.r#type.unwrap(), name(event)))
        .collect();
    assert_eq!(all, [(BEGIN, "synchronous"), (END, "")]);
    assert!(events.events.iter().all(|(_, event)| event.track_uuid.is_none()));
    assert_eq!(events.events[0].1.debug_annotations.len(), 1);
}

thread_local! {
    static LOG: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

fn log(line: &'static str) {
    LOG.with_borrow_mut(|log| log.push(line));
}

/// Logs its end.
struct Ends(&'static str);

impl Drop for Ends {
    fn drop(&mut self) {
        log(self.0);
    }
}

fn begin() -> Ends {
    log("begin");
    Ends("end")
}

#[test]
fn a_future_in_a_slice_begins_it_when_polled_and_ends_it_when_ready() {
    let mut future = pin!(pauses(1).in_slice(begin));
    assert_eq!(LOG.take(), [""; 0]);
    assert!(poll(future.as_mut()).is_pending());
    assert_eq!(LOG.take(), ["begin"]);
    assert!(poll(future.as_mut()).is_ready());
    assert_eq!(LOG.take(), ["end"]);
}

#[test]
fn a_future_in_a_slice_is_dropped_before_it_ends() {
    let inner = Ends("dropped");
    let mut future = Box::pin(
        async move {
            pending::<()>().await;
            drop(inner)
        }
        .in_slice(begin),
    );
    assert!(poll(future.as_mut()).is_pending());
    drop(future);
    assert_eq!(LOG.take(), ["begin", "dropped", "end"]);
    drop(ready(()).in_slice(begin));
    assert_eq!(LOG.take(), [""; 0]);
}

#[test]
fn each_poll_is_a_slice() {
    let mut future = pin!(
        async {
            pauses(1).await;
            log("ready")
        }
        .polls_in(begin)
    );
    assert!(poll(future.as_mut()).is_pending());
    assert!(poll(future.as_mut()).is_ready());
    assert_eq!(LOG.take(), ["begin", "end", "begin", "ready", "end"]);
}

#[test]
fn both_kinds_of_slices_can_be_had_at_once() {
    let events = record(|| {
        let url = String::from("/");
        let future = pauses(1)
            .polls_in(|| trace_slice!("net", "poll"))
            .in_slice(|| trace_async!("net", "whole", "url" => url));
        let mut future = pin!(future);
        assert!(poll(future.as_mut()).is_pending());
        assert!(poll(future.as_mut()).is_ready());
    });
    assert_eq!(lines(&events), [[event(BEGIN, "whole"), event(END, "")]]);
    let polls = events
        .events
        .iter()
        .filter(|(_, event)| event.track_uuid.is_none());
    assert_eq!(polls.count(), 4);
}

#[test]
fn slices_and_futures_in_them_can_go_to_other_threads() {
    fn is_send<T: Send>(_: T) {}
    is_send(
        ready(5)
            .in_slice(|| trace_async!("net", "Request"))
            .polls_in(|| trace_slice!("net", "poll")),
    );
    is_send(trace_async!("net", "Request"));
}
