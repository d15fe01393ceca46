//! The application that serves a trace, and perhaps a copy of the UI.
//!
//! [`run`](super::run) and the event loop of [`http`](crate::http) call it. [`request`](super::request) decides each answer, and
//! [`body`](super::body) sends it. It sends a bounded number of answers at a time, each in bounded turns.

use std::task::Poll;
use std::time::{Duration, Instant};

use ferretto_ipc::reactor::Interest;
use ferretto_ipc::transport::TransportError;

use super::body::{Body, Sent};
use super::request::{Answer, Part, Policy, Refusal};
use super::site::Site;
use super::subject::Subject;
use crate::http::{Application, Browser, Exchange, Head, MOST_EXCHANGES, State, Waits, Wake};

/// The bytes that a connection may send in one turn.
const TURN: usize = 1 << 20;

/// The trace and its audience. Serving ends when the trace has been fetched, except with a copy of the UI, because the UI loads parts of itself
/// later.
pub(super) struct Exhibition<T> {
    pub(super) policy: Policy,
    pub(super) subject: Subject,
    /// The copy of the UI that shows the trace.
    pub(super) site: Option<Site>,
    /// The last time that the whole trace was fetched.
    pub(super) fetched: Option<Fetched>,
    /// Receives the incidents.
    pub(super) tell: T,
}

/// A completed transfer of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fetched {
    /// The bytes sent.
    pub(super) bytes: u64,
    /// The time from the request to the last byte.
    pub(super) took: Duration,
}

/// An incident that the user may want to know about while serving goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incident {
    /// The trace was fetched, and serving goes on.
    Fetched(Fetched),
    /// The browser hung up after `sent` bytes; `of` is the whole size, if known.
    CutOff { sent: u64, of: Option<u64> },
    /// The file ended early, after `sent` bytes of `of`.
    Shrunk { sent: u64, of: u64 },
    /// The trace could not be expanded to its end. The part before the fault was sent.
    Broken(String),
    /// A file could not be read: which one, and the reason.
    Unreadable(&'static str, String),
    /// A request was refused.
    Refused(Refusal),
    /// No connections can be accepted for a while, for this reason.
    Unreachable(String),
}

/// An answer that is being sent.
pub(super) struct Transfer {
    browser: Browser,
    about: About,
    /// The rest of the body, unless it has been sent.
    body: Option<Body>,
    /// The content bytes of the body that have been sent.
    sent: u64,
    began: Instant,
    /// The time from the beginning until everything was sent.
    took: Duration,
}

/// The subject of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// The whole trace, with its size if known.
    Trace(Option<u64>),
    Other,
}

impl About {
    /// The incident of an answer that failed after `sent` bytes. Answers without the trace fail silently if the browser hangs up.
    fn failed(self, how: Sent, sent: u64) -> Option<Incident> {
        match (how, self) {
            (Sent::HungUp, About::Trace(of)) => Some(Incident::CutOff { sent, of }),
            (Sent::Shrunk, About::Trace(of)) => Some(Incident::Shrunk {
                sent,
                of: of.unwrap_or(sent),
            }),
            (Sent::Shrunk, About::Other) => {
                Some(self.unreadable("a file of it is shorter than it should be"))
            }
            (Sent::Unreadable(reason), _) => Some(self.unreadable(reason)),
            _ => None,
        }
    }

    fn unreadable(self, reason: impl ToString) -> Incident {
        let what = match self {
            About::Trace(_) => "the trace",
            About::Other => "the copy of the UI",
        };
        Incident::Unreadable(what, reason.to_string())
    }
}

impl Exchange for Transfer {
    fn waits(&self) -> Waits<'_> {
        let interest = match self.body {
            Some(_) => Interest::Writable,
            None => self.browser.interest_in_leaving(),
        };
        Waits::on(&self.browser, interest)
    }
}

impl<T: FnMut(Incident)> Application for Exhibition<T> {
    type Exchange = Transfer;

    fn answer(&mut self, head: &Head<'_>, browser: Browser, exchanges: usize) -> State<Transfer> {
        let answer = match exchanges < MOST_EXCHANGES {
            true => self.policy.answer(head),
            false => Answer::Refused(Refusal::Busy),
        };
        let next = self.begin(&answer, browser);
        if let Answer::Refused(refusal) = answer {
            (self.tell)(Incident::Refused(refusal));
        }
        next.unwrap_or_else(|incident| {
            (self.tell)(incident);
            State::Over
        })
    }

    fn turn(&mut self, mut transfer: Transfer, _: Wake) -> State<Transfer> {
        if let Some(body) = &mut transfer.body {
            match body.send(&mut transfer.browser, TURN, &mut transfer.sent) {
                Sent::Paused => return State::Waiting(transfer),
                Sent::All => {}
                Sent::Broken(reason) => (self.tell)(Incident::Broken(reason)),
                failed => return self.fail(&transfer, failed),
            }
            transfer.body = None;
            transfer.took = transfer.began.elapsed();
        }
        match (transfer.browser.leave(), transfer.about) {
            (Poll::Pending, _) => return State::Waiting(transfer),
            (Poll::Ready(Err(_)), _) => return self.fail(&transfer, Sent::HungUp),
            (Poll::Ready(Ok(())), About::Other) => {}
            (Poll::Ready(Ok(())), About::Trace(_)) => {
                let fetched = Fetched {
                    bytes: transfer.sent,
                    took: transfer.took,
                };
                self.fetched = Some(fetched);
                if !self.is_done() {
                    (self.tell)(Incident::Fetched(fetched));
                }
            }
        }
        State::Over
    }

    fn cannot_accept(&mut self, error: &TransportError) {
        (self.tell)(Incident::Unreachable(error.to_string()));
    }

    fn is_done(&self) -> bool {
        self.site.is_none() && self.fetched.is_some()
    }
}

impl<T: FnMut(Incident)> Exhibition<T> {
    fn begin(&self, answer: &Answer, mut browser: Browser) -> Result<State<Transfer>, Incident> {
        let resource = match answer {
            Answer::Trace(_) => {
                let resource = self.subject.resource();
                Some(resource.map_err(|error| About::Trace(None).unreadable(error))?)
            }
            Answer::Page(path, _) => {
                let found = self.site.as_ref().map(|site| site.find(path)).transpose();
                found.map_err(|error| About::Other.unreadable(error))?.flatten()
            }
            Answer::Permission { .. } | Answer::Refused(_) => None,
        };
        let Some(resource) = resource else {
            let missing = Answer::Refused(Refusal::NoSuchFile);
            let answer = match answer {
                Answer::Page(..) => &missing,
                answer => answer,
            };
            return Ok(State::respond(browser, self.policy.head(answer, "", None)));
        };
        let head = self.policy.head(answer, resource.media_type, resource.size);
        let about = match answer {
            Answer::Trace(Part::All) => About::Trace(resource.size),
            Answer::Page(_, Part::All) => About::Other,
            _ => return Ok(State::respond(browser, head)),
        };
        browser.respond(head);
        Ok(State::Waiting(Transfer {
            browser,
            about,
            body: Some(resource.body().map_err(|error| about.unreadable(error))?),
            sent: 0,
            began: Instant::now(),
            took: Duration::ZERO,
        }))
    }

    fn fail(&mut self, transfer: &Transfer, how: Sent) -> State<Transfer> {
        if let Some(incident) = transfer.about.failed(how, transfer.sent) {
            (self.tell)(incident);
        }
        State::Over
    }
}
