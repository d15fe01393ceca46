//! The command of a recording: starts it, reacts to its end and to signals, and determines the exit code.
//!
//! [`record`](super::record) calls it; the command itself is a [`Workload`].

use ferretto_ipc::address::Address;
use ferretto_proto::messages::trace_config;

use super::*;
use crate::perfetto::OF_COMMAND;

impl Recorder<'_> {
    /// Refuses a service that may be on another machine, if the config asks for the process of the command: its id would be that of some program there.
    pub(super) fn check_reach_of_command(&self, service: &Address) -> Result<(), String> {
        let Some(workload) = self.workload.as_ref().filter(|_| service.may_leave_machine()) else {
            return Ok(());
        };
        let asks = TraceConfig::decode_from_slice(&self.config).is_ok_and(|mut config| {
            config
                .data_sources
                .iter_mut()
                .any(|source| family_of_command(source).is_some())
        });
        match asks {
            false => Ok(()),
            true => Err(format!(
                "the service at {service} may be on another machine, where the process id of {} is some other program's: record on this machine, or \
                 everybody there with --all",
                workload.name()
            )),
        }
    }

    /// Has the config name the process of the command, if it asks for that. The process is there from now on, and waits.
    pub(super) fn name_command(&mut self) {
        let Some(workload) = &mut self.workload else {
            return;
        };
        let Ok(mut config) = TraceConfig::decode_from_slice(&self.config) else {
            return;
        };
        let mut asks = config
            .data_sources
            .iter_mut()
            .filter_map(family_of_command)
            .peekable();
        if asks.peek().is_none() {
            return;
        }
        let service = self.service.as_ref();
        match workload.hold(service.and_then(|service| service.started.as_ref())) {
            Ok(pid) => asks.for_each(|family| *family = pid.cast_signed()),
            // A config that names nobody means everybody.
            Err(error) => {
                let name = workload.name();
                self.console.notice(format_args!(
                    "everybody is recorded, because {name} cannot wait for the start: {error}"
                ));
                return;
            }
        }
        self.config = config.encode_to_vec();
    }

    /// Starts the command once it is due, and ends the recording when the command has ended. Returns whether either happened.
    pub(super) fn attend_to_command(&mut self, reactor: &Reactor) -> Result<bool, ReactorError> {
        let Some(workload) = &mut self.workload else {
            return Ok(false);
        };
        let nobody_tells = !self.knowledge.hears();
        let is_late = |at| nobody_tells || now() >= at;
        if workload.is_awaited() && (self.command_is_due || workload.next_deadline().is_some_and(is_late)) {
            let name = workload.name();
            if nobody_tells {
                self.console.notice(format_args!(
                    "this service does not tell when data sources have started; {name} starts at once"
                ));
            } else if !self.command_is_due {
                self.console.notice(format_args!(
                    "not all data sources have started; {name} starts nonetheless"
                ));
            }
            let service = self.service.as_ref();
            let started = service.and_then(|service| service.started.as_ref());
            match workload.start(started) {
                Ok(()) => {}
                Err(error) => {
                    self.command_failed = Some(error.status);
                    self.session.nothing_to_record(error.to_string());
                }
            }
            if let Some(end) = workload.end() {
                reactor.register(end, COMMAND, Interest::Readable)?;
            }
            return Ok(true);
        }
        let ended = workload.has_just_ended();
        if ended {
            self.session.nothing_more_to_record(now());
        }
        Ok(ended)
    }

    /// Handles a signal to this process, which may be meant for the command.
    pub(super) fn signalled(&mut self, signal: Signal, sender: Sender) {
        let Some(workload) = &mut self.workload else {
            return self.session.interrupted(signal, now());
        };
        let is_known = workload.has_a_signal();
        if !workload.takes(signal, sender, now()) {
            return self.session.interrupted(signal, now());
        }
        if is_known {
            return;
        }
        self.console.key_pressed();
        let (signal, name) = (signals::name(signal), workload.name());
        self.console.notice(format_args!(
            "{signal}: recording until {name} has ended (again to end the recording at once)"
        ));
    }
}

/// Where a data source's config asks for the process of the command.
fn family_of_command(source: &mut trace_config::DataSource) -> Option<&mut i32> {
    let perf = source.config.as_option_mut()?.perf_event_config.as_option_mut()?;
    let scope = perf.callstack_sampling.as_option_mut()?.scope.as_option_mut()?;
    scope.family_of.as_mut().filter(|family| **family == OF_COMMAND)
}

/// Waits for the command's end; returns the exit code of the recording with it.
pub(super) fn exit_code(recorded: u8, workload: Workload, failed: Option<u8>, console: &mut Console) -> u8 {
    workload.terminate();
    let name = workload.name();
    let status = match workload.outlive(console) {
        Ok(status) => status,
        Err(error) => {
            console.say(format_args!("cannot wait for {name}: {error}"));
            return FAILURE;
        }
    };
    match (recorded, failed, status) {
        (_, Some(failed), _) => failed,
        (SUCCESS, None, Some(status)) => status,
        (SUCCESS, None, None) => {
            console.say(format_args!(
                "{name} was not run: the recording was over before its data sources had started"
            ));
            FAILURE
        }
        (recorded, None, _) => recorded,
    }
}
