use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tracing::{Dispatch, Instrument, info_span};
use tracing_subscriber::prelude::*;

use crate::trace::{Argument, Recording, Trace};
use crate::with_layer;

/// A future that is pending so many times, and then ready.
struct After(usize);

impl Future for After {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.0.checked_sub(1) {
            None => Poll::Ready(()),
            Some(left) => {
                self.0 = left;
                Poll::Pending
            }
        }
    }
}

/// Polls once; returns whether the future was ready.
fn poll(future: &mut Pin<Box<dyn Future<Output = ()> + Send>>) -> bool {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

#[tracing::instrument]
async fn request(number: u32) {
    query(number).await;
    After(1).await;
    query(number + 1).await;
}

#[tracing::instrument]
async fn query(number: u32) {
    After(2).await;
}

fn request_on(dispatch: &Dispatch, number: u32) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    tracing::dispatcher::with_default(dispatch, || {
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(request(number));
        future
    })
}

fn number(trace: &Trace, slice: &crate::trace::Slice) -> Option<i64> {
    assert!(trace.slices.iter().any(|other| other.begin == slice.begin));
    match slice.arguments.get("number")? {
        Argument::Uint(number) => Some(number.cast_signed()),
        Argument::Int(number) => Some(*number),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_future_has_a_slice_for_its_life_and_one_for_each_poll_wherever_it_runs() {
    let recording = Recording::start();
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(ferretto_tracing::layer()));
    for first in [1, 10, 20] {
        let mut future = request_on(&dispatch, first);
        let mut polls = 0;
        loop {
            polls += 1;
            // Each future runs on a thread of its own.
            let is_ready = std::thread::scope(|scope| {
                let poll = || tracing::dispatcher::with_default(&dispatch, || poll(&mut future));
                scope.spawn(poll).join().unwrap()
            });
            if is_ready {
                break;
            }
        }
        assert_eq!(polls, 6);
        tracing::dispatcher::with_default(&dispatch, || drop(future));
    }
    let trace = recording.stop();
    let (runs, lives) = trace.runs_and_lives("request");
    assert_eq!(lives.len(), 3);
    assert!(runs.len() >= 18, "{}", runs.len());
    for life in &lives {
        let own: Vec<_> = runs
            .iter()
            .filter(|run| run.correlation == life.correlation)
            .collect();
        // All but the very first, because the layer did not know it at its first poll.
        assert!(own.len() >= 5, "{}", own.len());
        assert!(
            own.iter()
                .all(|run| life.begin <= run.begin && run.end <= life.end)
        );
        assert!(number(&trace, life).is_some());
        assert_eq!(trace.track_name(life.track), "request");
    }
    let (_, lives) = trace.runs_and_lives("query");
    assert_eq!(lives.len(), 6);
    // The layer did not know yet that the first request was one.
    for query in lives.iter().filter(|query| number(&trace, query) >= Some(10)) {
        assert_eq!(trace.parent_name(query), Some("request"));
        let request = &trace.slices[query.parent.unwrap()];
        assert!(number(&trace, query).unwrap() - number(&trace, request).unwrap() < 2);
    }
}

#[test]
fn concurrent_children_do_not_share_a_track() {
    let recording = Recording::start();
    with_layer(|| {
        for _ in 0..2 {
            let join = async {
                let mut children: Vec<_> = (0..3u64)
                    .map(|number| Box::pin(After(2).instrument(info_span!("child", number))))
                    .collect();
                for _ in 0..3 {
                    std::future::poll_fn(|context| {
                        for child in &mut children {
                            let _ = child.as_mut().poll(context);
                        }
                        Poll::Ready(())
                    })
                    .await;
                    After(1).await;
                }
            };
            let mut join: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(join.instrument(info_span!("join")));
            while !poll(&mut join) {}
        }
    });
    let trace = recording.stop();
    let (_, joins) = trace.runs_and_lives("join");
    let (_, children) = trace.runs_and_lives("child");
    assert_eq!([joins.len(), children.len()], [2, 6]);
    let tracks: std::collections::BTreeSet<_> = children[3..].iter().map(|child| child.track).collect();
    assert_eq!(tracks.len(), 3);
    // One of them is on its parent's lane.
    assert_eq!(
        children[3..]
            .iter()
            .filter(|child| child.track == joins[1].track)
            .count(),
        1
    );
}

#[test]
fn many_futures_one_after_the_other_take_few_tracks() {
    let recording = Recording::start();
    with_layer(|| {
        for _ in 0..200 {
            let mut future: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(After(1).instrument(info_span!("short")));
            while !poll(&mut future) {}
            drop(future);
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    });
    let trace = recording.stop();
    let (_, lives) = trace.runs_and_lives("short");
    assert_eq!(lives.len(), 200);
    let tracks: std::collections::BTreeSet<_> = lives.iter().map(|life| life.track).collect();
    assert!(tracks.len() <= 100, "{}", tracks.len());
}
