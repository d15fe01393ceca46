use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{pending, poll_fn, ready};
use std::pin::pin;
use std::task::Waker;
use std::thread;

use ferretto_proto::messages::TrackEventConfig;
use ferretto_proto::messages::track_event::Type;

use super::*;
use crate::track::NamedTrack;
use crate::track_event::tests::{Events, Recording, alone, name};
use crate::{trace_async, trace_event_instant, trace_function, trace_slice};

mod tree;

const BEGIN: Type = Type::TYPE_SLICE_BEGIN;
const END: Type = Type::TYPE_SLICE_END;
const INSTANT: Type = Type::TYPE_INSTANT;

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Is pending this many times.
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

/// The events of each track in the order of their times, by the names of the track and of the tracks above it.
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
fn a_slice_on_a_chosen_track_is_that_track() {
    static ROOT: NamedTrack = NamedTrack::new("Clients");
    let name = String::from("Client");
    let chosen = |id| NamedTrack::dynamic(&name).id(id).child_of(&ROOT);
    let events = record(|| {
        let request = trace_async!("net", "Request", track = chosen(1));
        let other = trace_async!("net", "Request", track = chosen(2));
        assert_eq!(request.uuid(), chosen(1).uuid());
        assert_eq!(request.parent_uuid(), ROOT.uuid());
        // On a thread that has to describe the track itself.
        thread::scope(|scope| {
            let reply = || {
                trace_event_instant!("net", "Retry", track = request);
                drop(trace_async!("net", "Reply", track = request));
            };
            scope.spawn(reply).join()
        })
        .unwrap();
        drop((request, other));
    });
    let of = |id: u64| {
        let uuid = chosen(id).uuid();
        let mut all: Vec<_> = events
            .events
            .iter()
            .filter(|(_, event)| event.track_uuid == Some(uuid))
            .collect();
        all.sort_by_key(|(time, _)| *time);
        let told: Vec<_> = all
            .iter()
            .map(|(_, told)| event(told.r#type.unwrap(), self::name(told)))
            .collect();
        told
    };
    let nested = [
        (BEGIN, "Request"),
        (INSTANT, "Retry"),
        (BEGIN, "Reply"),
        (END, ""),
        (END, ""),
    ];
    assert_eq!(of(1), nested.map(|(kind, name)| event(kind, name)));
    assert_eq!(of(2), [event(BEGIN, "Request"), event(END, "")]);
    let uuid = chosen(1).uuid();
    let descriptors: Vec<_> = events.tracks().filter(|track| track.uuid == Some(uuid)).collect();
    assert_eq!(descriptors.len(), 2, "one for each thread");
    assert_eq!(descriptors[0], descriptors[1]);
    let roots = events.tracks().filter(|track| track.uuid == Some(ROOT.uuid()));
    assert_eq!(roots.count(), 2);
}

#[test]
fn a_future_in_a_slice_on_a_chosen_track_has_children() {
    let track = NamedTrack::new("Chosen for a future");
    let events = record(|| {
        let whole = |number: u64| {
            async {
                let _child = trace_async!("net", "above");
                drop(trace_async!("net", "above that"));
                pauses(1)
                    .in_slice(|| trace_async!("net", "beside"))
                    .in_current_slice()
                    .await;
            }
            .in_slice(move || trace_async!("net", "whole", track = track.id(number)))
        };
        let (mut first, mut second) = (pin!(whole(1)), pin!(whole(1)));
        for _ in 0..2 {
            let _ = (poll(first.as_mut()), poll(second.as_mut()));
        }
    });
    let by = |name: &str| -> Vec<u64> {
        let all = events
            .events
            .iter()
            .filter(|(_, event)| self::name(event) == name);
        all.map(|(_, event)| event.track_uuid.unwrap()).collect()
    };
    let chosen = track.id(1).uuid();
    assert_eq!(by("whole"), [chosen; 2]);
    assert_eq!(by("above"), [chosen; 2]);
    let beside = by("beside");
    assert_ne!(beside[0], beside[1], "they run at the same time");
    for uuid in beside {
        assert_eq!(events.track(uuid).parent_uuid, Some(chosen));
    }
}

#[test]
fn a_slice_on_a_track_of_each_thread_stays_on_that_of_the_thread_it_began_on() {
    let track = NamedTrack::new("Work").thread_scoped();
    let events = record(|| {
        let slice = trace_async!("net", "Slice", track = track);
        let own = track.uuid();
        assert_eq!(slice.uuid(), own);
        thread::scope(|scope| {
            let elsewhere = || {
                assert_ne!(track.uuid(), own);
                assert_eq!(slice.uuid(), own);
                trace_event_instant!("net", "Instant", track = slice);
            };
            scope.spawn(elsewhere).join()
        })
        .unwrap();
    });
    let uuids: Vec<_> = events.events.iter().map(|(_, event)| event.track_uuid).collect();
    assert_eq!(uuids, [uuids[0]; 3]);
    let described = events.tracks().filter(|track| track.uuid == uuids[0]);
    let parents: Vec<_> = described.map(|track| track.parent_uuid).collect();
    assert_eq!(parents, [parents[0]; 2]);
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
fn no_lane_is_taken_while_nobody_records() {
    fn evaluated() -> u8 {
        panic!("an argument of a slice that nobody records")
    }
    let _alone = alone();
    let slice = trace_async!("nobody's", "Request", "a" => evaluated());
    assert!(!slice.is_recorded());
    assert!(slice.lane().is_none());
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
    let nested = [
        event(BEGIN, "outer"),
        event(BEGIN, "renamed"),
        event(END, ""),
        event(END, ""),
    ];
    assert_eq!(lines(&events), [nested]);
}

/// Each track's name and how many above it have one, with its events.
fn forest(events: &Events) -> Vec<(usize, Vec<(Type, String)>)> {
    let depth = |uuid| {
        let parents = std::iter::successors(Some(uuid), |&uuid| events.track(uuid).parent_uuid);
        parents
            .take_while(|&uuid| uuid != Track::process().uuid())
            .count()
    };
    let mut tracks: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    let mut all: Vec<_> = events.events.iter().collect();
    all.sort_by_key(|(time, _)| *time);
    for (_, event) in all {
        let line = tracks.entry(event.track_uuid.unwrap()).or_default();
        line.push((event.r#type.unwrap(), name(event).to_owned()));
    }
    let mut forest: Vec<_> = tracks
        .into_iter()
        .map(|(uuid, line)| (depth(uuid) - 2, line))
        .collect();
    forest.sort_by(|(one, left), (other, right)| (one, &left[0].1).cmp(&(other, &right[0].1)));
    forest
}

#[trace_function("net")]
async fn query(count: u32) {
    pauses(count).await;
}

#[test]
fn children_that_overlap_are_on_lines_below_their_parents() {
    #[trace_function("net")]
    async fn request() {
        let mut both = [Box::pin(query(1)), Box::pin(query(2))];
        poll_fn(|context| {
            let polled = both.each_mut().map(|query| query.as_mut().poll(context));
            if polled.iter().all(Poll::is_ready) {
                return Poll::Ready(());
            }
            // Only the second query goes on.
            both[0] = Box::pin(query(0));
            Poll::Pending
        })
        .await;
    }
    let events = record(|| {
        let mut future = pin!(request());
        while poll(future.as_mut()).is_pending() {}
    });
    let forest = forest(&events);
    assert_eq!(forest[0].0, 0);
    assert_eq!(forest[0].1[0], event(BEGIN, "request"));
    assert!(forest[0].1.contains(&event(BEGIN, "query")));
    assert!(forest[1..].iter().all(|(depth, _)| *depth == 1), "{forest:?}");
    assert!(forest.len() > 1, "{forest:?}");
}

#[test]
fn spawned_futures_are_children_if_the_program_says_so() {
    let events = record(|| {
        let parent = trace_async!("net", "parent");
        let (mut below, mut alone) = (Box::pin(query(1).child_of(&parent)), Box::pin(query(0)));
        assert!(poll(below.as_mut()).is_pending());
        drop(parent);
        assert!(poll(below.as_mut()).is_ready());
        assert!(poll(alone.as_mut()).is_ready());
    });
    let whole = |name| vec![event(BEGIN, name), event(END, "")];
    assert_eq!(
        forest(&events),
        [(0, whole("parent")), (0, whole("query")), (1, whole("query"))]
    );
}

#[test]
fn a_slice_that_outlives_its_parent_goes_on_on_another_line() {
    let events = record(|| {
        let mut left = None;
        let mut parent = Box::pin(
            poll_fn(|_| {
                left = Some(trace_async!("net", "left", "argument" => 1));
                Poll::Ready(())
            })
            .in_slice(|| trace_async!("net", "parent")),
        );
        assert!(poll(parent.as_mut()).is_ready());
        drop(parent);
        // Their lane is still taken.
        drop(trace_async!("net", "parent"));
        left.unwrap().end_with(|event| {
            event.annotation("late", 2);
        });
    });
    let both = vec![
        event(BEGIN, "parent"),
        event(BEGIN, "left"),
        event(END, ""),
        event(END, ""),
    ];
    let whole = |name| vec![event(BEGIN, name), event(END, "")];
    let mut forest = forest(&events);
    forest.sort_by_key(|(_, line)| std::cmp::Reverse(line.len()));
    assert_eq!(forest, [(0, both), (0, whole("left")), (0, whole("parent"))]);
    let (_, last) = events.events.iter().max_by_key(|(time, _)| *time).unwrap();
    assert_eq!(last.debug_annotations.len(), 1);
}

#[test]
fn an_async_function_is_a_child_of_a_slice_on_a_chosen_track() {
    let chosen = Track::new(5);
    let events = record(|| {
        let future = query(1).in_slice(|| trace_async!("net", "chosen", track = chosen));
        let mut future = pin!(future);
        assert!(poll(future.as_mut()).is_pending());
        assert!(poll(future.as_mut()).is_ready());
    });
    let on_chosen = events.events.iter().map(|(_, told)| {
        assert_eq!(told.track_uuid, Some(chosen.uuid()));
        event(told.r#type.unwrap(), name(told))
    });
    assert_eq!(
        on_chosen.collect::<Vec<_>>(),
        [
            event(BEGIN, "chosen"),
            event(BEGIN, "query"),
            event(END, ""),
            event(END, "")
        ]
    );
}

#[test]
fn the_output_of_a_future_is_recorded_at_the_end_of_its_slice() {
    #[trace_function("net", ret, err)]
    async fn parse(text: &str) -> Result<u8, std::num::ParseIntError> {
        text.parse()
    }
    #[trace_function("net", ret)]
    fn double(number: u8) -> u8 {
        number * 2
    }
    let events = record(|| {
        assert!(poll(pin!(parse("5"))).is_ready());
        assert!(poll(pin!(parse("x"))).is_ready());
        assert_eq!(double(2), 4);
        let chosen = trace_async!("net", "chosen", track = Track::new(5));
        chosen.end_with(|event| {
            event.annotation("end", 1);
        });
    });
    let ends: Vec<_> = events
        .events
        .iter()
        .filter(|(_, event)| event.r#type == Some(END))
        .collect();
    let arguments: Vec<_> = ends
        .iter()
        .map(|(_, event)| format!("{:?}", event.debug_annotations[0].name_field))
        .collect();
    let expected = ["return", "error", "return", "end"].map(|name| format!("Some(Name({name:?}))"));
    assert_eq!(arguments, expected);
    let logged: Vec<_> = ends.iter().map(|(_, event)| event.log_message.is_set()).collect();
    assert_eq!(logged, [false, true, false, false]);
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

/// A slice whose end is not recorded.
fn begin_slice() -> AsyncSlice {
    log("begin");
    trace_async!("nobody's", "slice")
}

#[test]
fn a_future_in_a_slice_begins_it_when_polled_and_ends_it_when_ready() {
    let events = record(|| {
        let mut future = pin!(pauses(1).in_slice(|| {
            log("begin");
            trace_async!("net", "slice")
        }));
        assert_eq!(LOG.take(), [""; 0]);
        assert!(poll(future.as_mut()).is_pending());
        assert_eq!(LOG.take(), ["begin"]);
        trace_event_instant!("net", "between", track = future.slice);
        assert!(poll(future.as_mut()).is_ready());
        assert!(!future.slice.is_recorded());
    });
    let expected = [event(BEGIN, "slice"), event(INSTANT, "between"), event(END, "")];
    assert_eq!(lines(&events), [expected]);
}

#[test]
fn a_future_in_a_slice_is_dropped_before_it_ends() {
    let events = record(|| {
        let inner = trace_async!("net", "inner");
        let mut future = Box::pin(
            async move {
                let _inner = inner;
                let _last = Ends("dropped");
                pending::<()>().await;
            }
            .in_slice(|| trace_async!("net", "outer")),
        );
        assert!(poll(future.as_mut()).is_pending());
        drop(future);
        assert_eq!(LOG.take(), ["dropped"]);
        drop(ready(()).in_slice(begin_slice));
        assert_eq!(LOG.take(), [""; 0]);
    });
    let times: Vec<_> = events.events.iter().map(|(time, _)| *time).collect();
    let uuids: Vec<_> = events.events.iter().map(|(_, event)| event.track_uuid).collect();
    assert!(times.is_sorted());
    // The inner slice began without a parent, so it has a track of its own. It ended first.
    assert_eq!([uuids[0], uuids[1]], [uuids[2], uuids[3]]);
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
