//! What `ferretto open` serves: a trace, and perhaps a copy of the UI.
//!
//! Called by [`run`](super::run) and by the event loop of [`http`](crate::http). What is answered to whom, [`request`](super::request)
//! decides, and [`body`](super::body) sends it. Guarantees: a bounded number of answers at a time, each with a bounded turn.

use std::task::Poll;
use std::time::{Duration, Instant};

use ferretto_ipc::reactor::Interest;
use ferretto_ipc::transport::TransportError;

use super::body::{Body, Sent};
use super::request::{Answer, Part, Policy, Refusal};
use super::site::Site;
use super::subject::Subject;
use crate::http::{Application, Browser, Exchange, Head, MOST_EXCHANGES, State, Waits, Wake};

/// What a connection may send of the file before others have their turn.
const TURN: usize = 1 << 20;

/// What is served, and to whom. Serving is over when the trace was fetched, unless there is a copy of the UI: the UI loads parts of
/// itself later.
pub(super) struct Exhibition<T> {
    pub(super) policy: Policy,
    pub(super) subject: Subject,
    /// The copy of the UI that shows it.
    pub(super) site: Option<Site>,
    /// The last time that all of the trace was.
    pub(super) fetched: Option<Fetched>,
    /// Is told what happens.
    pub(super) tell: T,
}

/// The trace has been fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fetched {
    /// What was sent of it.
    pub(super) bytes: u64,
    /// From request to end.
    pub(super) took: Duration,
}

/// Something that the user may want to know, while serving goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incident {
    /// The trace was fetched, and serving goes on.
    Fetched(Fetched),
    /// The browser hung up in the middle, after `sent` bytes of `of`, if that is known.
    CutOff { sent: u64, of: Option<u64> },
    /// The file ended in the middle, after `sent` bytes of `of`.
    Shrunk { sent: u64, of: u64 },
    /// The trace could not be expanded to its end. The part before the fault was sent.
    Broken(String),
    /// Something could not be read: what, and why.
    Unreadable(&'static str, String),
    /// Somebody was refused.
    Refused(Refusal),
    /// For a while nobody can connect, and this is why.
    Unreachable(String),
}

/// An answer on its way.
pub(super) struct Transfer {
    browser: Browser,
    about: About,
    /// What is left to be sent of it, if anything is.
    body: Option<Body>,
    /// What was sent of the body's contents.
    sent: u64,
    began: Instant,
    /// From the beginning until all was sent.
    took: Duration,
}

/// What an answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// All of the trace, of this size if that is known.
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
