//! The results of a session's futures, in a runtime of a few lines and in tokio's.

use std::future::Future;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Wake, Waker};

use super::*;

/// Runs a future on this thread, which the future's waker wakes.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park_timeout(PATIENCE);
    }
}

async fn record_and_read(recorder: &Recorder, texts: &[String]) -> Vec<u8> {
    let session = Session::in_process();
    session.setup_async(&recorder.config()).await.unwrap();
    session.start_async().await.unwrap();
    texts.iter().for_each(|text| recorder.write(text));
    session.flush_async(PATIENCE).await.unwrap();
    assert!(!session.trace_stats_async().await.unwrap().buffer_stats.is_empty());
    let ended = session.stopped();
    session.stop_async().await.unwrap();
    ended.await.unwrap();
    let mut trace = Vec::new();
    let mut reader = session.read().unwrap();
    while let Some(chunk) = reader.next_chunk_async().await.unwrap() {
        trace.extend_from_slice(chunk.as_bytes());
    }
    assert!(
        reader.next_chunk_async().await.unwrap().is_none(),
        "the end stays the end"
    );
    trace
}

#[test]
fn a_session_can_be_awaited_from_setup_to_the_last_chunk() {
    let _alone = alone();
    let recorder = Recorder::new();
    let expected: Vec<String> = (0..1000).map(|number: u32| format!("packet {number}")).collect();
    assert_eq!(texts(&block_on(record_and_read(&recorder, &expected))), expected);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let recorded = runtime.block_on(async {
        let (recorder, expected) = (recorder.clone(), expected.clone());
        tokio::spawn(async move { record_and_read(&recorder, &expected).await })
            .await
            .unwrap()
    });
    assert_eq!(texts(&recorded), expected);
}

#[test]
fn futures_return_errors_and_dropping_them_cancels_nothing() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    let error = block_on(session.start_async()).unwrap_err();
    assert!(matches!(error, SessionError::NotSetUp { .. }), "{error:?}");
    let error = block_on(session.stopped()).unwrap_err();
    assert!(matches!(error, SessionError::NotSetUp { .. }), "{error:?}");
    drop(session.setup_async(&recorder.config()));
    drop(session.start_async());
    // Everything is done in order, so when this is answered that was, too.
    block_on(session.flush_async(PATIENCE)).unwrap();
    let ended = session.stopped();
    drop(session);
    let error = block_on(ended).unwrap_err();
    assert!(matches!(error, SessionError::Disconnected(_)), "{error:?}");
}

#[test]
fn a_reply_wakes_the_task_that_asked_last() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let _alone = alone();
    let recorder = Recorder::new();
    recorder.hold_starts();
    let session = Session::in_process();
    session.setup(&recorder.config()).unwrap();
    let mut started = pin!(session.start_async());
    let (first, second) = (
        Arc::new(Count(AtomicUsize::new(0))),
        Arc::new(Count(AtomicUsize::new(0))),
    );
    for count in [&first, &second] {
        let waker = Waker::from(Arc::clone(count));
        assert!(
            started
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    recorder.release_starts();
    eventually("the task is woken", || second.0.load(Ordering::Relaxed) == 1);
    assert_eq!(first.0.load(Ordering::Relaxed), 0);
    assert!(
        started
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    );
}

#[test]
fn sessions_of_one_runtime_do_not_wait_for_each_other() {
    let _alone = alone();
    let (slow, quick) = (Recorder::new(), Recorder::new());
    slow.hold_starts();
    let both = Arc::new(Barrier::new(2));
    let waits = {
        let (config, both) = (slow.config(), Arc::clone(&both));
        std::thread::spawn(move || {
            let session = Session::in_process();
            block_on(session.setup_async(&config)).unwrap();
            let started = session.start_async();
            both.wait();
            block_on(started)
        })
    };
    both.wait();
    let session = Session::in_process();
    block_on(session.setup_async(&quick.config())).unwrap();
    block_on(session.start_async()).unwrap();
    slow.release_starts();
    waits.join().unwrap().unwrap();
}
