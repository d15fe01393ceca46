//! Prints messages while a recording runs.
//!
//! [`record`](super) calls it.

use super::*;

impl Recorder<'_> {
    pub(super) fn show_progress(&mut self) {
        let Some(stats) = self.session.stats() else {
            return;
        };
        // Older services do not notify us that all data sources have started.
        if bytes_written(stats) > 0 {
            self.activity = Activity::Recording;
        }
        let mut line = self.progress.line(&Moment {
            activity: self.activity,
            recorded: self.session.recorded(now()),
            duration: self.session.duration(),
            stats,
            account: &self.account(None),
        });
        if self.console.kind() == StderrKind::Terminal {
            line.push(6, Tone::Usual, " (Ctrl-C ends it)");
        }
        self.console.progress(line);
    }

    pub(super) fn show_writing(&mut self) {
        if self.console.kind() == StderrKind::Terminal
            && now().saturating_sub(self.write_shown_at) >= TERMINAL_PERIOD
            && let Some(output) = &mut self.output
        {
            self.write_shown_at = now();
            let bytes = Bytes(output.size().unwrap_or(0));
            let line = Line::new(format_args!("writing {}: {bytes}", output.name()));
            self.console.live(line);
        }
    }

    /// Prints a notice. The sentences about the connection and the line "Wrote … bytes into …" are upstream's, and scripts wait for them.
    pub(super) fn tell(&mut self, notice: Notice) {
        match notice {
            Notice::Recording(duration) => self.tell_of_the_start(duration),
            Notice::Accepted => {
                // The command may activate the trigger.
                self.command_is_due |= self.activity == Activity::AwaitingTrigger;
                if let Some(awaited) = &self.awaited {
                    self.console.notice(awaited);
                }
                if let Some(started) = self.service.as_ref().and_then(|service| service.started.as_ref()) {
                    self.console.notice(format_args!(
                        "to activate one: PERFETTO_PRODUCER_SOCK_NAME={} ferretto trigger_perfetto NAME",
                        started.producer_socket
                    ));
                }
            }
            Notice::Stopping(signal) => {
                self.console.key_pressed();
                let signal = signals::name(signal);
                self.console.notice(format_args!(
                    "{signal}: ending the recording (again to give it up)"
                ));
                self.console.live(Line::new("waiting for the newest data"));
            }
            // The summary reports it, because a recording that still waits for its trigger has no data to lose.
            Notice::FlushFailed => self.last_flush = LastFlush::Failed,
            Notice::AlreadyEnding => {
                self.console.key_pressed();
                self.console
                    .notice("the recording is over and being written (again to give it up)");
            }
        }
    }

    fn tell_of_the_start(&mut self, duration: Option<Duration>) {
        let patience = match self.knowledge.hears() {
            true => START_PATIENCE,
            false => Duration::ZERO,
        };
        self.ends_at = self.once_started.map(|length| now() + patience + length);
        let duration = duration.or(self.once_started);
        if let Some(workload) = &mut self.workload {
            workload.recording_begins(now());
            let name = workload.name();
            return match duration {
                Some(duration) => self.console.notice(format_args!(
                    "recording while {name} runs, for {} at most",
                    Elapsed(duration)
                )),
                None => self.console.notice(format_args!("recording while {name} runs")),
            };
        }
        let program = self.console.voice().program;
        if program == Program::Perfetto {
            self.console.notice(match duration {
                Some(duration) => {
                    let seconds = duration.as_millis().div_ceil(1000);
                    format!("Connected to the Perfetto traced service, TTL: {seconds}s")
                }
                None => "Connected to the Perfetto traced service, starting tracing".to_owned(),
            });
        }
        if let Job::StartAndDetach(key) = &self.job {
            let stop = format!("`{} --attach {key} --stop` ends it", program.name());
            return self.console.notice(match (duration, &self.awaited) {
                (Some(duration), None) => {
                    format!("the service records on for {}; {stop} earlier", Elapsed(duration))
                }
                (None, _) | (_, Some(_)) => format!("the service records on; {stop}"),
            });
        }
        match (program, duration, &self.awaited) {
            (Program::Perfetto, Some(_), _) => {}
            (Program::Perfetto, None, _) => {
                self.console
                    .notice("Ctrl-C ends the recording and keeps the data");
            }
            // The next message says what it waits for.
            (Program::Ferretto, _, Some(_)) => {}
            (Program::Ferretto, Some(duration), None) => self.console.notice(format_args!(
                "recording for {}; Ctrl-C ends it earlier and keeps the data",
                Elapsed(duration)
            )),
            (Program::Ferretto, None, None) => {
                self.console
                    .notice("recording until Ctrl-C, which keeps the data");
            }
        }
    }
}
