//! The end of a recording: prints the summary, keeps or removes the output, and determines the exit code.
//!
//! [`record`](super::record) calls it after its loop. It keeps data, and removes a file without any.

use super::*;
use crate::figures::Counted;
use crate::perfetto::output::Missing;
use crate::perfetto::progress::{Known, LineKind};

/// The service has written the file, and it is not there.
const MISSING: &str = "the service has opened such a file, but here is none. It was moved, or the service has that folder to itself, as under a \
                       unit with PrivateTmp= or in a container. Choose another output_path, or have this program open the file (-o)";

/// The largest file of the service's that is read for the summary. Reading that much takes about a second.
const MAX_LOOKED_THROUGH: u64 = 1 << 30;

impl Recorder<'_> {
    /// Concludes the recording; returns the exit code, and the command if there is one.
    pub(super) fn conclude(mut self, ending: Ending) -> (u8, Option<Workload>) {
        let code = self.conclusion(ending);
        (code, self.workload)
    }

    fn conclusion(&mut self, ending: Ending) -> u8 {
        let is_here = |service: &Service| service.consumer_socket.is_unix();
        let is_missing = self.service.as_ref().is_some_and(is_here) && self.file_of_the_service_is_missing();
        // Daemons that were started for this recording end before the summary, so that their messages come first.
        self.endpoint = None;
        self.service = None;
        let ending = match (ending, self.output_failure.take()) {
            (Ending::Complete, Some(failure)) => Ending::OutputFailed(failure),
            (Ending::Complete, None) if is_missing => Ending::OutputFailed(MISSING.to_owned()),
            (ending, _) => ending,
        };
        match ending {
            Ending::Complete => {
                self.report_end();
                let conclusion = self.summarize();
                return match (&self.snapshots, self.strictness) {
                    _ if conclusion == Conclusion::Failed => FAILURE,
                    (Some(snapshots), _) if snapshots.any_failed() => FAILURE,
                    (_, Strictness::Strict) if conclusion == Conclusion::Incomplete => INCOMPLETE,
                    _ => SUCCESS,
                };
            }
            Ending::Detached => {
                self.report(StartStatus::Started, "");
                return SUCCESS;
            }
            // For `--is_detached` this is an answer and no error.
            Ending::NotAttached if matches!(self.job, Job::Attach(_, AfterAttach::DetachAgain)) => {
                return NOT_ATTACHED;
            }
            _ => {}
        }
        if matches!(ending, Ending::Abandoned(_)) {
            self.console.key_pressed();
            self.workload.iter().for_each(Workload::terminate);
        }
        let problem = self.problem(&ending);
        self.console.say(&problem);
        match ending {
            Ending::NothingToRecord(_) => {
                self.output.take().map(Output::discard);
            }
            _ => self.keep_or_discard(),
        }
        // The report goes last, because its reader assumes that everything is done.
        self.report(StartStatus::Failed, &problem);
        if let (Ending::Abandoned(signal), Signals::Taken) = (&ending, &self.signals) {
            signals::die_of(*signal);
        }
        if ending == Ending::NotAttached {
            NOT_ATTACHED
        } else {
            FAILURE
        }
    }

    /// Whether the service has opened a file that is not where this program looks. A file in a folder that this user may not enter counts as there.
    fn file_of_the_service_is_missing(&self) -> bool {
        match &self.sink {
            // A relative path begins in the folder of the service.
            Sink::OpenedByService(path) if path.is_absolute() => {
                let found = path.symlink_metadata();
                found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            }
            _ => false,
        }
    }

    fn problem(&mut self, ending: &Ending) -> String {
        let trouble = self
            .trouble
            .take()
            .unwrap_or_else(|| "the connection was lost".to_owned());
        match ending {
            Ending::Complete | Ending::Detached => String::new(),
            Ending::DetachFailed => {
                format!(
                    "the service would not detach the session; is {:?} the key of another?",
                    key(&self.job)
                )
            }
            Ending::NotAttached => format!(
                "Session re-attach failed: there is no session detached as {:?}, or it is not yours",
                key(&self.job)
            ),
            Ending::Disconnected(Stage::Asking) => format!("the service did not do it: {trouble}"),
            Ending::ServiceError(error) => format!("Service error: {error}"),
            Ending::Disconnected(Stage::Connecting) => trouble,
            Ending::Disconnected(Stage::Recording) => match self.console.voice().program {
                // The second half is upstream's sentence, for which tests look.
                Program::Perfetto => format!(
                    "the recording broke off: {trouble}. Service error: EnableTracing IPC request rejected. This is likely due to a \
                     loss of the traced connection"
                ),
                Program::Ferretto => format!("the recording broke off: {trouble}"),
            },
            Ending::Disconnected(Stage::ReadingBack) => {
                format!("the recording could not be read to its end: {trouble}")
            }
            Ending::TimedOut => "the service did not end the recording in time; it may hang".to_owned(),
            Ending::CloneTimedOut => format!(
                "the service did not clone the session within {} s: the file that it streams into may be large, or the service \
                 hangs",
                CLONE_PATIENCE.as_secs()
            ),
            Ending::ReadTimedOut => "the service fell silent while the recording was read".to_owned(),
            Ending::NothingToRecord(reason) => reason.clone(),
            Ending::OutputFailed(error) => format!("cannot write {}: {error}", self.output_name()),
            Ending::Abandoned(signal) => {
                let what = match self.job {
                    Job::Clone(_) => "clone",
                    Job::Record | Job::StartAndDetach(_) | Job::Attach(..) => "recording",
                };
                format!("{}: the {what} is given up", signals::name(*signal))
            }
        }
    }

    fn output_name(&self) -> String {
        match (&self.output, &self.sink) {
            (Some(output), _) => output.name().to_owned(),
            (None, Sink::OpenedByService(path)) => path.display().to_string(),
            (None, Sink::File(_) | Sink::Stdout | Sink::SameAsBefore) => {
                "given when it was started".to_owned()
            }
        }
    }

    /// Keeps an output with data, and removes a file without any.
    fn keep_or_discard(&mut self) {
        let Some(output) = self.output.take() else { return };
        let name = output.name().to_owned();
        let Missing { packets, bytes } = output.missing();
        if let Some(size) = output.salvage() {
            let missing = match packets {
                0 => String::new(),
                _ => format!("; {} ({}) are missing", Counted(packets, "packet"), Bytes(bytes)),
            };
            self.console
                .say(format_args!("{} of it are in {name}{missing}", Bytes(size)));
        }
    }

    /// Prints one line about the trace and its completeness, then lines about missing data and the next step.
    fn summarize(&mut self) -> Conclusion {
        let name = self.output_name();
        let size = self.output.as_ref().and_then(Output::size);
        let trace = match self.session.writer() {
            Writer::Us => Trace::Whole,
            Writer::Service => self.look_through(size),
        };
        // Upstream's sentences, for which scripts look. For clones, upstream prints the first one regardless of the process that writes the file.
        let written = match (self.session.writer(), &self.job) {
            (Writer::Us, _) | (Writer::Service, Job::Clone(_)) => {
                format!("Wrote {} bytes into {name}", size.unwrap_or(0))
            }
            (Writer::Service, _) => format!("Trace written into the output file {name}"),
        };
        if self.awaited.is_some() && size == Some(0) {
            self.console.notice(written);
            match self.snapshots.as_ref().map(Snapshots::taken) {
                None => self.console.say("no trigger came: the trace is empty"),
                Some(0) => self.console.say("no snapshot was taken: there is no trace"),
                Some(_) => self.console.notice(format_args!(
                    "the snapshots have what was recorded; {name} stays empty"
                )),
            }
            return Conclusion::Complete;
        }
        let seen = trace == Trace::Whole;
        let evidence = self.contents.evidence().filter(|_| seen);
        let mut account = self.account(evidence);
        if trace == Trace::Cut {
            account.add_cut_off();
        }
        let summary = Summary {
            file: matches!(self.sink, Sink::File(_) | Sink::OpenedByService(_)).then_some(&*name),
            size,
            packets: self.contents.packets().filter(|_| seen),
            recorded: (!matches!(self.job, Job::Clone(_))).then(|| self.session.recorded(now())),
            account: &account,
            known: match (self.session.stats(), evidence) {
                (None, _) => Known::Nothing,
                (Some(_), None) => Known::ByTheService,
                (Some(_), Some(_)) => Known::ByTheKernelToo,
            },
        };
        self.tell_summary(&written, &summary);
        let conclusion = match trace {
            Trace::Cut => Conclusion::Failed,
            Trace::Whole | Trace::NotSeen => self.judge(&summary),
        };
        if conclusion == Conclusion::Incomplete
            && self.strictness == Strictness::Strict
            && summary.known != Known::ByTheKernelToo
        {
            self.console.say(
                "--strict: not all of the trace could be looked at, so nobody knows whether it is complete",
            );
        }
        conclusion
    }

    fn tell_summary(&mut self, written: &str, summary: &Summary<'_>) {
        match self.console.voice().program {
            // Scripts match the end of this line too.
            Program::Perfetto => {
                self.console.notice(written);
                self.console.line(format_args!("  {}", summary.facts()));
            }
            Program::Ferretto => self
                .console
                .notice(format_args!("{written}: {}", summary.facts())),
        }
        for (kind, line) in summary.lines() {
            match kind {
                LineKind::Alarm => self.console.alarm(&line),
                LineKind::Aside => self.console.line(line),
            }
        }
        if let Some(line) = summary.next_step() {
            self.console.line(line);
        }
    }

    /// Judges the result of the recording.
    fn judge(&mut self, summary: &Summary<'_>) -> Conclusion {
        let is_ours = self.console.voice().program == Program::Ferretto;
        if summary.account.is_void && is_ours && matches!(self.job, Job::Record) {
            self.console.say("nothing that was asked for was recorded");
            return Conclusion::Failed;
        }
        match summary.account.is_whole() && summary.known == Known::ByTheKernelToo {
            true => Conclusion::Complete,
            false => Conclusion::Incomplete,
        }
    }

    /// Reads the packets that the service wrote, unless that is impossible or would take too long.
    fn look_through(&mut self, size: Option<u64>) -> Trace {
        let contents = &mut self.contents;
        let Some(output) = &mut self.output else {
            return Trace::NotSeen;
        };
        let too_large = |size| size > MAX_LOOKED_THROUGH && self.strictness == Strictness::Lenient;
        if size.is_none_or(too_large) {
            return Trace::NotSeen;
        }
        match output.read_back(|packet| contents.observe(packet)) {
            Ok(None) => Trace::Whole,
            Ok(Some(cut)) => {
                // An error changes nothing: the summary reports the cut anyway.
                let _ = output.cut_off(cut);
                Trace::Cut
            }
            Err(_) => Trace::NotSeen,
        }
    }
}

/// The result of a recording that came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Conclusion {
    /// Everything requested was recorded, and nothing was lost.
    Complete,
    /// Something is missing, or completeness is unknown.
    Incomplete,
    /// Nothing requested was recorded, or the file is cut off.
    Failed,
}

/// The content of a file that the service wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trace {
    /// Packets up to its end.
    Whole,
    /// Packets, the last of which is cut off.
    Cut,
    /// Unknown: it was not read, or is no trace.
    NotSeen,
}
