use std::future::poll_fn;
use std::pin::pin;

use ferretto_proto::messages::debug_annotation::{NameField, Value};
use ferretto_proto::messages::track_event::Type;
use ferretto_proto::messages::{TrackEvent, TrackEventConfig};

use super::super::TraceFuture;
use crate::track_event::tests::{Events, Recording, alone, name};

use super::*;

fn record(events: impl FnOnce() + Send) -> Events {
    Events::of(&Recording::of(TrackEventConfig::default(), events))
}

fn block_on(future: impl Future) {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future);
}

fn argument(event: &TrackEvent, wanted: &str) -> Option<Value> {
    let argument = event
        .debug_annotations
        .iter()
        .find(|argument| argument.name_field == Some(NameField::Name(wanted.to_owned())));
    argument.and_then(|argument| argument.value.clone())
}

#[test]
fn a_task_has_its_life_and_its_polls_on_its_track_and_arrows_from_wakes() {
    let events = record(|| {
        block_on(async {
            let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
            let task = tokio::spawn(receiver.in_task("receiver"));
            tokio::task::yield_now().await;
            std::thread::scope(|scope| scope.spawn(|| sender.send(()).unwrap()).join()).unwrap();
            task.await.unwrap().unwrap();
        });
    });
    let track = NamedTrack::dynamic("receiver").id(0).child_of(&TASKS);
    let uuid = crate::track::TrackLike::uuid(&track);
    let mut all: Vec<_> = events.events.iter().collect();
    all.sort_by_key(|(time, _)| *time);
    let of_task: Vec<_> = all
        .iter()
        .filter(|(_, event)| event.track_uuid == Some(uuid))
        .map(|(_, event)| event)
        .collect();
    let told: Vec<_> = of_task
        .iter()
        .map(|event| (event.r#type.unwrap(), name(event)))
        .collect();
    let (begin, end) = (Type::TYPE_SLICE_BEGIN, Type::TYPE_SLICE_END);
    let poll = [(begin, "poll"), (end, "")];
    assert_eq!(
        told,
        [&[(begin, "receiver")][..], &poll, &poll, &[(end, "")]].concat()
    );
    let last = of_task.last().unwrap();
    for (wanted, value) in [("polls", 2), ("wakes", 1), ("self_wakes", 0)] {
        assert_eq!(argument(last, wanted), Some(Value::UintValue(value)), "{wanted}");
    }
    assert!(argument(last, "busy_ns").is_some() && argument(last, "longest_poll_ns").is_some());

    // On the thread that woke it, then on the one that polls it, then on the task's.
    let flow = of_task[3].terminating_flow_ids[0];
    let others: Vec<_> = all
        .iter()
        .filter(|(_, event)| event.flow_ids.contains(&flow))
        .map(|(_, event)| (event.r#type.unwrap(), name(event), event.track_uuid))
        .collect();
    assert_eq!(
        others,
        [(Type::TYPE_INSTANT, "wake", None), (begin, "receiver", None)]
    );
}

#[test]
fn a_task_that_wakes_itself_is_marked_so() {
    let events = record(|| {
        let mut left = 3;
        block_on(
            poll_fn(move |context| {
                left -= 1;
                if left == 0 {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .in_task(String::from("busy")),
        );
    });
    let (_, last) = events
        .events
        .iter()
        .find(|(_, event)| argument(event, "polls").is_some())
        .unwrap();
    for (wanted, value) in [("polls", 3), ("wakes", 2), ("self_wakes", 2)] {
        assert_eq!(argument(last, wanted), Some(Value::UintValue(value)), "{wanted}");
    }
}

struct Counts(AtomicU64);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn wakers_are_wrapped_while_somebody_records_and_wake_for_ever() {
    let counts = Arc::new(Counts(AtomicU64::new(0)));
    let executors = Waker::from(Arc::clone(&counts));
    let mut seen: Vec<Waker> = Vec::new();
    let mut task = Box::pin(
        poll_fn(|context| {
            seen.push(context.waker().clone());
            match seen.len() {
                4 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .in_task("keeps its wakers"),
    );
    let mut poll = |ready: bool| {
        let polled = task.as_mut().poll(&mut Context::from_waker(&executors));
        assert_eq!(polled.is_ready(), ready);
    };
    {
        let _alone = alone();
        poll(false);
    }
    let events = record(|| {
        poll(false);
        poll(false);
    });
    {
        let _alone = alone();
        poll(true);
    }
    drop(task);
    let executors_own: Vec<_> = seen.iter().map(|waker| waker.will_wake(&executors)).collect();
    assert_eq!(executors_own, [true, false, false, true]);
    assert!(seen[1].will_wake(&seen[2]));
    let _alone = alone();
    for waker in seen {
        waker.wake();
    }
    assert_eq!(counts.0.load(Ordering::Relaxed), 4);
    let polls = events.events.iter().filter(|(_, event)| name(event) == "poll");
    assert_eq!(polls.count(), 2);
}

#[test]
fn a_task_that_is_dropped_has_ended() {
    let events = record(|| {
        let mut task = Box::pin(std::future::pending::<()>().in_task("never"));
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(&mut task).poll(&mut context).is_pending());
    });
    let (_, end) = events.events.last().unwrap();
    assert_eq!(argument(end, "polls"), Some(Value::UintValue(1)));
}
