//! Gathers the facts for a recording's account, and reports some of them at once.
//!
//! [`record`](super) calls it with the service's notifications.

use ferretto_proto::messages::TracingServiceState;
use ferretto_proto::messages::observable_events::DataSourceInstanceStateChange;

use super::*;
use crate::account::evidence::{Evidence, Failed, SourceOf};
use crate::account::watch::{Question, Watch};
use crate::account::{Account, Case, FileState, Finding, Severity, Subject, TraceFile, Wording, listed};
use crate::config::advice::ConfigOrigin;
use crate::config::length::Length;
use ferretto_trace_file::Follower;

/// The longest look into the file while a recording runs.
const LOOK_TIME: Duration = Duration::from_millis(200);

/// The facts for an account, except the trace itself.
pub(super) struct Knowledge {
    pub(super) config: TraceConfig,
    wording: Wording,
    length: Length,
    subject: Subject,
    watch: Watch,
    hearing: Hearing,
    inquiry: Inquiry,
}

/// Whether the service sends notifications about data sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hearing {
    Nothing,
    All,
}

/// The state of the query for the service's producers and data sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inquiry {
    None,
    UnderWay,
    /// An answer is due, and another query is needed because something happened since.
    Outdated,
}

impl Knowledge {
    pub(super) fn of(recording: &Recording) -> Knowledge {
        let written = recording.written.as_ref();
        let by_flags = written.is_some_and(|written| matches!(written.origin, ConfigOrigin::Flags));
        Knowledge {
            config: recording.config.clone(),
            wording: if by_flags { Wording::Flags } else { Wording::Config },
            length: match recording.command {
                Some(_) => Length::with_command(&recording.config),
                None => Length::of(&recording.config),
            },
            subject: match recording.job {
                Job::Clone(_) => Subject::Clone,
                Job::Record | Job::StartAndDetach(_) | Job::Attach(..) => Subject::AsMarked,
            },
            watch: match recording.job {
                Job::Record => Watch::from_the_start(),
                Job::StartAndDetach(_) | Job::Attach(..) | Job::Clone(_) => Watch::from_now_on(),
            },
            hearing: Hearing::Nothing,
            inquiry: Inquiry::None,
        }
    }

    /// Notes that notifications were requested.
    pub(super) fn somebody_tells(&mut self) {
        self.hearing = Hearing::All;
    }

    /// Notes that the service is too old to send notifications.
    pub(super) fn nobody_tells(&mut self) {
        self.hearing = Hearing::Nothing;
    }

    /// Whether a notification will come when all data sources have started.
    pub(super) fn hears(&self) -> bool {
        self.hearing == Hearing::All
    }

    fn watch(&self) -> Option<&Watch> {
        self.hears().then_some(&self.watch)
    }
}

impl Recorder<'_> {
    /// Returns the account of the known facts. `evidence` is from the packets if all of them were seen.
    pub(super) fn account(&self, evidence: Option<&Evidence>) -> Account {
        Account::of(&Case {
            length: self.knowledge.length,
            stats: self.session.stats(),
            baseline: self.session.baseline(),
            evidence,
            watch: self.knowledge.watch(),
            subject: self.knowledge.subject,
            last_flush: self.last_flush,
            file: self.file(),
            ..Case::of(&self.knowledge.config, self.knowledge.wording)
        })
    }

    /// Returns the file. The account uses its state only with evidence from all packets, which exists once the service has ended the recording.
    fn file(&self) -> Option<TraceFile> {
        let size = self.output.as_ref().and_then(Output::size)?;
        let state = FileState::Complete;
        Some(TraceFile { size, state })
    }

    /// Takes in state changes of data source instances.
    pub(super) fn instances_changed(&mut self, changes: &[DataSourceInstanceStateChange]) {
        // Changes while everything stops are expected.
        if !self.session.is_recording() {
            return;
        }
        let recorded = self.session.recorded(now());
        let mut question = Question::None;
        for change in changes {
            if self.knowledge.watch.changed(change, recorded) == Question::WhoIsThere {
                question = Question::WhoIsThere;
            }
        }
        if question == Question::WhoIsThere {
            self.ask_who_is_there();
        }
    }

    fn ask_who_is_there(&mut self) {
        if self.knowledge.inquiry != Inquiry::None {
            self.knowledge.inquiry = Inquiry::Outdated;
            return;
        }
        if let Some(endpoint) = &mut self.endpoint
            && endpoint.query_service_state(StateScope::Everything).is_ok()
        {
            self.knowledge.inquiry = Inquiry::UnderWay;
        }
    }

    /// Takes in the service's state; `None` if the service cannot report it.
    pub(super) fn take_service_state(&mut self, state: Option<&TracingServiceState>) {
        let outdated = self.knowledge.inquiry == Inquiry::Outdated;
        self.knowledge.inquiry = Inquiry::None;
        let Some(state) = state else { return };
        for departure in self.knowledge.watch.is_there(state) {
            self.console.say(departure.notice());
        }
        if outdated {
            self.ask_who_is_there();
        }
    }

    /// Reports the start: all data sources that are still offered have started.
    pub(super) fn report_start(&mut self) {
        match self.not_started() {
            // Their producers disconnected before they acknowledged the start.
            Some(waiting) => self.report(StartStatus::TimedOut, &format!("not started: {waiting}")),
            None => self.report(StartStatus::Started, ""),
        }
    }

    /// Reports the start at the end of a recording to processes that still wait for it.
    pub(super) fn report_end(&mut self) {
        if self.reports.is_empty() || self.activity == Activity::AwaitingTrigger {
            return self.report(StartStatus::Started, "");
        }
        // The trace may have the reason. A trace that the service wrote is read only later.
        let evidence = self
            .contents
            .evidence()
            .filter(|_| self.session.writer() == Writer::Us);
        let has_failures = evidence.is_some_and(|evidence| !evidence.failed().is_empty());
        let waiting = match self.not_started() {
            // An instance of a data source may have failed while another has started.
            None if has_failures => String::new(),
            None => return self.report(StartStatus::Started, ""),
            Some(waiting) => waiting,
        };
        let account = self.account(evidence);
        let missing = account
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Missing);
        let missing: Vec<String> = missing.map(Finding::sentence).collect();
        let reason = match missing.is_empty() {
            // Another producer may have recorded a data source that one has not started.
            true => format!("the recording is over. Not started: {waiting}"),
            false => format!("the recording is over. Not recorded: {}", missing.join("; ")),
        };
        self.report(StartStatus::TimedOut, &reason);
    }

    /// Tells the user once which data sources have not started, and later tells waiting processes with a deadline that the start took too long.
    pub(super) fn start_may_be_late(&mut self) {
        if self.patience_ends.is_some_and(|end| now() >= end) {
            self.patience_ends = None;
            if self.session.is_recording() {
                self.tell_of_late_starts();
            }
        }
        if self.start_due.is_none_or(|due| now() < due) {
            return;
        }
        self.start_due = None;
        let mut reason = format!(
            "the data sources have not all started within {} s",
            START_WAIT.as_secs()
        );
        if let Some(waiting) = self.not_started() {
            reason.push_str(&format!(": no word of {waiting}"));
        }
        let (waiting, patient) = self.reports.drain(..).partition(StartReport::has_a_deadline);
        self.reports = patient;
        let waiting: Vec<StartReport> = waiting;
        for report in waiting {
            report.send(StartStatus::TimedOut, &reason);
        }
    }

    /// Says which data sources have not started, and why if the file that the service writes has the reason. If nothing else is awaited, a command and a
    /// length of time begin now.
    fn tell_of_late_starts(&mut self) {
        let waiting = self.knowledge.watch().map(Watch::not_started);
        let mut waiting = waiting.unwrap_or_default();
        if waiting.is_empty() {
            return;
        }
        for failed in self.failures_so_far() {
            waiting.retain(|waiting| waiting.source != failed.source);
            self.console.say(format_args!("not recorded: {failed}"));
        }
        match listed(&waiting, SourceOf::to_string) {
            Some(waiting) => self
                .console
                .say(format_args!("still waiting for {waiting} to start")),
            None => {
                self.command_is_due = true;
                self.ends_at = self.once_started.map(|length| now() + length);
            }
        }
    }

    /// Looks in the part of the file that the service has written so far for data sources that could not start. For other recordings, only the end tells.
    fn failures_so_far(&self) -> Vec<Failed> {
        let path = self.output.as_ref().and_then(Output::path);
        let Some(path) = path.filter(|_| self.session.writer() == Writer::Service) else {
            return Vec::new();
        };
        let until = now() + LOOK_TIME;
        let mut contents = Contents::default();
        // Without an answer the end of the recording tells.
        let _ = Follower::open(path)
            .and_then(|mut file| file.advance(|| now() < until, |packet| contents.observe(packet)));
        let evidence = contents.evidence();
        evidence.map_or_else(Vec::new, Evidence::failed_to_start)
    }

    /// Lists the data sources that have an instance and have never started, if the service sends notifications.
    fn not_started(&self) -> Option<String> {
        let waiting = self.knowledge.watch()?.not_started();
        listed(&waiting, SourceOf::to_string)
    }
}
