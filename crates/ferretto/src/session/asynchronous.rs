//! Session methods for asynchronous code. They send a request at once, as the others do, and return a future of the result.
//!
//! Answers come from the SDK's thread, which wakes the waiting task. So the methods work in every runtime, and the SDK depends on none.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(feature = "unstable-proto")]
use ferretto_proto::messages::TraceStats;

use super::command::{Answer, Command};
use super::config::TraceConfig;
use super::error::SessionError;
use super::{CloneSource, Cloned, ServiceState, Session, StateScope};
use crate::handles::OwnedFile;

/// The answer to a request that a session has already been sent. Dropping it cancels nothing; only the answer is lost.
///
/// It may take any time; use the timeouts of your runtime. The SDK's thread completes it, and runs callbacks, so callbacks must not wait for it.
#[must_use = "what comes of it is only told to whoever awaits this"]
pub struct Reply<T>(Arc<Mutex<State<T>>>);

enum State<T> {
    /// The waker of the task that awaits the answer.
    Awaited(Option<Waker>),
    Given(Result<T, SessionError>),
    Taken,
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    // Nothing panics while it holds the lock.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Send + 'static> Reply<T> {
    /// A reply, and the answer that completes it.
    fn new() -> (Reply<T>, Answer<T>) {
        let state = Arc::new(Mutex::new(State::Awaited(None)));
        let for_answer = Arc::clone(&state);
        let answer = Answer::new(move |result| {
            let before = std::mem::replace(&mut *lock(&for_answer), State::Given(result));
            if let State::Awaited(Some(waker)) = before {
                waker.wake();
            }
        });
        (Reply(state), answer)
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T, SessionError>;

    /// # Panics
    /// If it is polled again after completion.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0);
        match &mut *state {
            State::Awaited(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            State::Given(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Given(result) => Poll::Ready(result),
                State::Awaited(_) | State::Taken => Poll::Pending,
            },
            State::Taken => {
                drop(state);
                panic!("a session's reply is polled after it was completed")
            }
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

/// For asynchronous code: like the blocking methods, but without a time limit.
///
/// ```
/// # #[cfg(feature = "in-process")]
/// # async fn record() -> Result<(), ferretto::session::SessionError> {
/// use ferretto::session::{DataSource, Session, TraceConfig};
///
/// let session = Session::in_process();
/// let config = TraceConfig::new().buffer_kb(4096).data_source(DataSource::track_event());
/// session.setup_async(&config).await?;
/// session.start_async().await?;
/// // … what is to be traced …
/// session.stop_async().await?;
/// let mut trace = session.read()?;
/// while let Some(chunk) = trace.next_chunk_async().await? {
///     // … send chunk.as_bytes() somewhere …
/// #   drop(chunk);
/// }
/// # Ok(())
/// # }
/// ```
impl Session {
    pub(super) fn ask<T: Send + 'static>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Reply<T> {
        let (reply, answer) = Reply::new();
        self.send(command(answer));
        reply
    }

    /// As [`Session::setup`].
    pub fn setup_async(&self, config: &TraceConfig) -> Reply<()> {
        self.ask(|answer| Command::SetUp(config.clone(), None, Some(answer)))
    }

    /// As [`Session::setup_with_file`].
    pub fn setup_with_file_async(&self, config: &TraceConfig, file: impl Into<OwnedFile>) -> Reply<()> {
        self.ask(|answer| Command::SetUp(config.clone(), Some(file.into()), Some(answer)))
    }

    /// As [`Session::start_blocking`].
    pub fn start_async(&self) -> Reply<()> {
        self.ask(|answer| Command::Start(Some(answer)))
    }

    /// As [`Session::stop_blocking`].
    pub fn stop_async(&self) -> Reply<()> {
        self.ask(|answer| Command::Stop(Some(answer)))
    }

    /// As [`Session::wait_until_stopped`], without a time limit.
    pub fn stopped(&self) -> Reply<()> {
        self.ask(Command::AwaitEnd)
    }

    /// As [`Session::flush_blocking`].
    pub fn flush_async(&self, timeout: Duration) -> Reply<()> {
        self.ask(|answer| Command::Flush(timeout, answer))
    }

    /// As [`Session::change_config`].
    pub fn change_config_async(&self, config: &TraceConfig) -> Reply<()> {
        self.ask(|answer| Command::ChangeConfig(config.clone(), answer))
    }

    /// As [`Session::clone_session`].
    pub fn clone_session_async(&self, original: &CloneSource) -> Reply<Cloned> {
        self.ask(|answer| Command::Clone(original.request(), None, answer))
    }

    /// As [`Session::trace_stats`].
    #[cfg(feature = "unstable-proto")]
    pub fn trace_stats_async(&self) -> Reply<Box<TraceStats>> {
        self.ask(Command::Stats)
    }

    /// As [`Session::query_service_state`].
    pub fn query_service_state_async(&self, scope: StateScope) -> Reply<ServiceState> {
        self.ask(|answer| Command::State(scope, answer))
    }
}
