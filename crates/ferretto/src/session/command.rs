//! The application's requests to a session, on their way to the SDK's thread, and the way back of the answers.
//!
//! [`Session`](super::Session) makes them, the [worker](super::worker) takes them. Everything that the application waits for is an [`Answer`], which
//! is given exactly once, whatever happens.

use std::time::Duration;

use ferretto_client::consumer::{Packets, StateScope};
use ferretto_proto::messages::observable_events::Type as ObservableEventType;
use ferretto_proto::messages::{
    CloneSessionRequest, ObservableEvents, TraceStats, TracingServiceCapabilities,
};

use super::config::TraceConfig;
use super::error::SessionError;
use super::reader::{PipeWriter, TraceChunk};
use super::{CloneTrigger, Cloned, ServiceState};
use crate::handles::OwnedFile;
use crate::muxer::{self, Stream};
use crate::options::Backend;

/// Called with the result of a request.
type Callback<T> = Box<dyn FnOnce(Result<T, SessionError>) + Send>;

/// The result of a request, yet to be given. Dropping it reports that the session is over.
pub(super) struct Answer<T>(Option<Callback<T>>);

impl<T> Answer<T> {
    pub(super) fn new(tell: impl FnOnce(Result<T, SessionError>) + Send + 'static) -> Answer<T> {
        Answer(Some(Box::new(tell)))
    }

    /// Gives the result to the application's code.
    pub(super) fn to_application(done: impl FnOnce(Result<T, SessionError>) + Send + 'static) -> Answer<T> {
        Answer::new(move |result| {
            muxer::guarded(|| done(result));
        })
    }

    pub(super) fn give(mut self, result: Result<T, SessionError>) {
        if let Some(tell) = self.0.take() {
            tell(result);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(Err(SessionError::Disconnected("it was ended".into())));
        }
    }
}

/// The destination of trace data.
pub(super) enum Sink {
    /// A pipe to an application thread that reads.
    Pipe(PipeWriter),
    /// A function of the application.
    Callback(Box<dyn FnMut(Result<Option<TraceChunk>, SessionError>) + Send>),
}

impl Sink {
    pub(super) fn push(&mut self, packets: &Packets) {
        if packets.is_empty() {
            return;
        }
        let chunk = TraceChunk::new(packets);
        match self {
            Sink::Pipe(pipe) => pipe.push(chunk),
            Sink::Callback(tell) => tell(Ok(Some(chunk))),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        match self {
            Sink::Pipe(pipe) => pipe.is_full(),
            Sink::Callback(_) => false,
        }
    }

    pub(super) fn end(self, result: Result<(), SessionError>) {
        match self {
            Sink::Pipe(pipe) => pipe.end(result),
            Sink::Callback(mut tell) => tell(result.map(|()| None)),
        }
    }
}

/// An observer of events, and the types that it observes.
pub(super) struct Observer {
    pub(super) types: Vec<ObservableEventType>,
    pub(super) tell: Box<dyn FnMut(&ObservableEvents) + Send>,
}

/// The receiver of a request's result: the code that waits for it. Without one, errors go to the session's error callback.
pub(super) type Waiting = Option<Answer<()>>;

/// The application's requests.
pub(super) enum Command {
    SetUp(TraceConfig, Option<OwnedFile>, Waiting),
    Start(Waiting),
    Stop(Waiting),
    /// Tell when the session has ended.
    AwaitEnd(Answer<()>),
    Flush(Duration, Answer<()>),
    Read(Sink),
    ChangeConfig(TraceConfig, Answer<()>),
    Clone(Box<CloneSessionRequest>, Option<OwnedFile>, Answer<Cloned>),
    Detach(String, Answer<()>),
    Attach(String, Answer<TraceConfig>),
    Stats(Answer<Box<TraceStats>>),
    State(StateScope, Answer<ServiceState>),
    Capabilities(Answer<Box<TracingServiceCapabilities>>),
    Observe(Observer),
    OnCloneTrigger(Box<dyn FnMut(CloneTrigger) + Send>),
    /// Tell when the process is about to exit, before the service in it ends its sessions.
    BeforeExit(Box<dyn FnOnce() + Send>),
    OnStart(Box<dyn FnOnce() + Send>),
    OnStop(Box<dyn FnOnce() + Send>),
    OnError(Box<dyn FnMut(SessionError) + Send>),
    /// Drop the session.
    End,
}

impl Command {
    /// Answers the command where nothing is ever recorded: a session starts, ends and is empty, and questions about it give an error with this
    /// reason.
    pub(super) fn do_nothing(self, why_off: &'static str) {
        match self {
            Command::SetUp(_, _, waiting) | Command::Start(waiting) | Command::Stop(waiting) => {
                if let Some(answer) = waiting {
                    answer.give(Ok(()));
                }
            }
            Command::AwaitEnd(answer)
            | Command::Flush(_, answer)
            | Command::ChangeConfig(_, answer)
            | Command::Detach(_, answer) => answer.give(Ok(())),
            Command::Read(sink) => sink.end(Ok(())),
            Command::OnStart(tell) | Command::OnStop(tell) => tell(),
            Command::OnError(_)
            | Command::Observe(_)
            | Command::OnCloneTrigger(_)
            | Command::BeforeExit(_)
            | Command::End => {}
            other => other.refuse(SessionError::Off(why_off)),
        }
    }

    /// Answers that the command will not be carried out.
    pub(super) fn refuse(self, error: SessionError) {
        match self {
            Command::SetUp(_, _, waiting) | Command::Start(waiting) | Command::Stop(waiting) => {
                if let Some(answer) = waiting {
                    answer.give(Err(error));
                }
            }
            Command::AwaitEnd(answer)
            | Command::Flush(_, answer)
            | Command::ChangeConfig(_, answer)
            | Command::Detach(_, answer) => answer.give(Err(error)),
            Command::Read(sink) => sink.end(Err(error)),
            Command::Clone(_, _, answer) => answer.give(Err(error)),
            Command::Attach(_, answer) => answer.give(Err(error)),
            Command::Stats(answer) => answer.give(Err(error)),
            Command::State(_, answer) => answer.give(Err(error)),
            Command::Capabilities(answer) => answer.give(Err(error)),
            Command::OnError(mut tell) => tell(error),
            Command::OnStop(tell) => tell(),
            Command::Observe(_)
            | Command::OnCloneTrigger(_)
            | Command::BeforeExit(_)
            | Command::OnStart(_)
            | Command::End => {}
        }
    }
}

/// The place of the service.
pub(super) enum ServicePlace {
    /// The process's own backend of this kind.
    Backend(Backend),
    /// The first of its backends.
    Default,
    /// At the other end of this stream.
    Stream(Box<Stream>),
}

/// The purpose of a call whose reply is awaited.
pub(super) enum Pending {
    /// No one: the result is told otherwise, or makes no difference.
    Unawaited,
    Done(&'static str, Answer<()>),
    Flush(Answer<()>),
    Clone(Answer<Cloned>),
    Detach(Answer<()>),
    Attach(Answer<TraceConfig>),
    Stats(Answer<Box<TraceStats>>),
    State(Answer<ServiceState>),
    Capabilities(Answer<Box<TracingServiceCapabilities>>),
}

impl Pending {
    pub(super) fn fail(self, why: &dyn Fn(&'static str) -> SessionError) {
        match self {
            Pending::Unawaited => {}
            Pending::Done(request, answer) => answer.give(Err(why(request))),
            Pending::Flush(answer) => answer.give(Err(why("flush"))),
            Pending::Clone(answer) => answer.give(Err(why("clone the session"))),
            Pending::Detach(answer) => answer.give(Err(why("detach from the session"))),
            Pending::Attach(answer) => answer.give(Err(why("attach to the session"))),
            Pending::Stats(answer) => answer.give(Err(why("get the session's statistics"))),
            Pending::State(answer) => answer.give(Err(why("get the service's state"))),
            Pending::Capabilities(answer) => answer.give(Err(why("get the service's capabilities"))),
        }
    }
}
