//! The end of a recording: what is told of it, what becomes of the output, the exit code.
//!
//! Called by [`record`](super::record) when the loop is over. Data are kept, a file without any is removed.

use std::io;

use super::*;

/// A file of the service's is looked through for the summary up to this size, which takes about a second.
const MAX_LOOKED_THROUGH: u64 = 1 << 30;

impl Recorder<'_> {
    pub(super) fn conclude(mut self, ending: Ending) -> u8 {
        // Services that were started for this recording end before its summary, lest they talk into it.
        self.endpoint = None;
        self.service = None;
        match ending {
            Ending::Complete => {
                self.report(StartStatus::Started, "");
                let file = self.summarize();
                return match self.snapshots {
                    _ if file == Trace::Cut => FAILURE,
                    Some(snapshots) if snapshots.any_failed() => FAILURE,
                    _ => SUCCESS,
                };
            }
            Ending::Detached => {
                self.report(StartStatus::Started, "");
                return SUCCESS;
            }
            // `--is_detached` asks, and this is an answer.
            Ending::NotAttached if matches!(self.job, Job::Attach(_, AfterAttach::DetachAgain)) => {
                return NOT_ATTACHED;
            }
            _ => {}
        }
        if matches!(ending, Ending::Abandoned(_)) {
            self.console.key_pressed();
        }
        let problem = self.problem(&ending);
        self.console.say(&problem);
        self.keep_or_discard(&ending);
        // Last, since whoever waits for it takes everything to be done then.
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
                "there is no session detached as {:?}, or it is not yours",
                key(&self.job)
            ),
            Ending::Disconnected(Stage::Asking) => format!("the service did not do it: {trouble}"),
            Ending::ServiceError(error) => format!("Service error: {error}"),
            Ending::Disconnected(Stage::Connecting) => trouble,
            Ending::Disconnected(Stage::Recording) => format!("the recording broke off: {trouble}"),
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

    /// Data that were recorded are kept, a file without any is not. One that could not be written is no use.
    fn keep_or_discard(&mut self, ending: &Ending) {
        let Some(output) = self.output.take() else { return };
        let name = output.name().to_owned();
        if matches!(ending, Ending::OutputFailed(_)) {
            output.discard();
        } else if let Some(size) = output.salvage() {
            self.console
                .say(format_args!("{} of it are in {name}", Bytes(size)));
        }
    }

    /// One line that says what there is and whether it is all, then what is missing and what to do next; gives what there is of the
    /// trace.
    fn summarize(&mut self) -> Trace {
        let name = self.output_name();
        let size = self.output.as_ref().and_then(Output::size);
        let trace = match self.session.writer() {
            Writer::Us => Trace::Whole,
            Writer::Service => self.look_through(size),
        };
        if trace == Trace::Cut {
            self.console.say(format_args!(
                "{name} breaks off in the middle of a packet: the service could not write all of it. Is the disk full?"
            ));
        }
        // Upstream's words: scripts look for them. It says the former of clones whoever writes them.
        let written = match (self.session.writer(), &self.job) {
            (Writer::Us, _) | (Writer::Service, Job::Clone(_)) => {
                format!("Wrote {} bytes into {name}", size.unwrap_or(0))
            }
            (Writer::Service, _) => format!("Trace written into the output file {name}"),
        };
        let seen = trace == Trace::Whole;
        if self.awaited.is_some() && size == Some(0) {
            self.console.notice(written);
            match self.snapshots.as_ref().map(Snapshots::taken) {
                None => self.console.say("no trigger came: the trace is empty"),
                Some(0) => self.console.say("no snapshot was taken: there is no trace"),
                Some(_) => self.console.notice(format_args!(
                    "the snapshots have what was recorded; {name} stays empty"
                )),
            }
            return trace;
        }
        let summary = Summary {
            file: matches!(self.sink, Sink::File(_) | Sink::OpenedByService(_)).then_some(&*name),
            size,
            packets: self.contents.packets().filter(|_| seen),
            recorded: (!matches!(self.job, Job::Clone(_))).then(|| self.session.recorded(now())),
            stats: self.session.stats(),
            kernel: self.contents.kernel().filter(|_| seen),
        };
        match self.console.voice().program {
            // Scripts look at the end of that line, too.
            Program::Perfetto => {
                self.console.notice(written);
                self.console.line(format_args!("  {}", summary.facts()));
            }
            Program::Ferretto => self
                .console
                .notice(format_args!("{written}: {}", summary.facts())),
        }
        if self.newest_may_be_missing {
            self.console
                .alarm("  some producers did not hand over their newest data in time; they may be missing");
        }
        for line in summary.alarms() {
            self.console.alarm(&line);
        }
        if let Some(line) = summary.next_step() {
            self.console.line(line);
        }
        trace
    }

    /// Looks at the packets that the service wrote, unless they cannot or should not be read.
    fn look_through(&mut self, size: Option<u64>) -> Trace {
        let contents = &mut self.contents;
        let Some(output) = &mut self.output else {
            return Trace::NotSeen;
        };
        if size.is_none_or(|size| size > MAX_LOOKED_THROUGH) {
            return Trace::NotSeen;
        }
        match output.read_back(|packet| contents.observe(packet)) {
            Ok(()) => Trace::Whole,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Trace::Cut,
            Err(_) => Trace::NotSeen,
        }
    }
}

/// What was found in a file that the service wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trace {
    /// Packets, to its end.
    Whole,
    /// It ends in the middle of one.
    Cut,
    /// It was not looked at, or is something else.
    NotSeen,
}
