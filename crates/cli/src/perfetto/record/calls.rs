//! Makes a recording's calls to the service, with their preparations.
//!
//! [`record`](super) calls it for each [`Step::Call`].

use super::*;

impl Recorder<'_> {
    pub(super) fn call(&mut self, call: Call) {
        let file = match self.open_for(call) {
            Ok(file) => file,
            Err(error) => return self.session.output_failed(why(&error)),
        };
        if call == Call::EnableTracing {
            self.warn_of_little_room();
            self.name_command();
            if let Some(path) = self.output.as_ref().and_then(Output::path) {
                self.console.recording_into(path);
            }
        }
        if call == Call::ReadBuffers
            && let Some(output) = self.output.as_ref().filter(|output| output.awaits_reader())
        {
            self.console
                .say(format_args!("waiting for somebody to read {}", output.name()));
        }
        let Some(endpoint) = &mut self.endpoint else {
            return;
        };
        let called: Result<_, InvokeError> = match call {
            Call::Observe => {
                let start_awaited = !self.reports.is_empty() || self.activity != Activity::Recording;
                let start = start_awaited.then_some(ObservableEventType::TYPE_ALL_DATA_SOURCES_STARTED);
                let triggers = self
                    .snapshots
                    .is_some()
                    .then_some(ObservableEventType::TYPE_CLONE_TRIGGER_HIT);
                let instances = Some(ObservableEventType::TYPE_DATA_SOURCES_INSTANCES);
                let kinds: Vec<_> = [instances, start, triggers].into_iter().flatten().collect();
                self.knowledge.somebody_tells();
                endpoint.observe_events(&kinds)
            }
            Call::EnableTracing => {
                // The query goes first, so that its answer shows the producers at the beginning of the recording. If it cannot be sent, the next call
                // reports the error.
                let _ = endpoint.query_service_state(StateScope::Everything);
                endpoint.enable_tracing(&self.config, file)
            }
            Call::Flush => endpoint.flush_producers(DEFAULT_FLUSH_TIMEOUT, FLUSH_FLAGS),
            Call::DisableTracing => endpoint.disable_tracing(),
            Call::ReadBuffers => endpoint.read_buffers(),
            Call::GetTraceStats => endpoint.trace_stats(),
            Call::Detach => endpoint.detach(key(&self.job)),
            Call::Attach => endpoint.attach(key(&self.job)),
            Call::CloneSession => endpoint.clone_session(&clone_request(&self.job), file),
        };
        if let Err(error) = called {
            match call {
                Call::EnableTracing => {
                    let error = format!("the trace config cannot be sent: {error}");
                    self.session.tracing_disabled(Some(error), now());
                }
                // The service has stopped reading.
                _ => {
                    self.trouble = Some(error.to_string());
                    self.session.disconnected();
                }
            }
        }
    }

    /// Warns the user if the output may have too little space for the recording.
    fn warn_of_little_room(&mut self) {
        let config = &self.knowledge.config;
        let (needed, what) = match config.write_into_file {
            Some(true) => (config.max_file_size_bytes.unwrap_or(0), "the file may grow to"),
            _ => {
                let sizes = config
                    .buffers
                    .iter()
                    .map(|buffer| u64::from(buffer.size_kb.unwrap_or(0)) << 10);
                (sizes.sum(), "the buffers hold up to")
            }
        };
        if let Some(output) = &self.output
            && let Some(room) = output.room()
            && room < needed
        {
            let name = output.name();
            self.console.notice(format_args!(
                "only {} free for {name}, but {what} {}: free some space, or choose another place with -o",
                Bytes(room),
                Bytes(needed)
            ));
        }
    }

    /// Prepares the output before the call that causes data to be written into it; returns the descriptor to send with that call.
    fn open_for(&mut self, call: Call) -> io::Result<Option<OwnedFd>> {
        let Some(output) = &mut self.output else {
            return Ok(None);
        };
        let writer = match call {
            Call::EnableTracing => self.session.writer(),
            // Only the service knows whether the original writes into a file. Until it answers, the clone may do so too.
            Call::CloneSession => Writer::Service,
            Call::ReadBuffers => Writer::Us,
            _ => return Ok(None),
        };
        let is_streamed = self.knowledge.config.write_into_file == Some(true);
        match call {
            Call::EnableTracing if !is_streamed => output.expect(writer),
            _ => output.begin(writer)?,
        }
        match writer {
            Writer::Service => output.descriptor().map(Some),
            Writer::Us => Ok(None),
        }
    }
}

fn clone_request(job: &Job) -> CloneSessionRequest {
    let Job::Clone(clone) = job else {
        return CloneSessionRequest::default();
    };
    let for_bugreport = clone.filter == TraceFilter::Skipped;
    let request = CloneSessionRequest {
        selector: Some(match &clone.original {
            Original::Id(id) => clone_session_request::Selector::SessionId(*id),
            Original::Name(name) => clone_session_request::Selector::UniqueSessionName(name.clone()),
        }),
        skip_trace_filter: Some(for_bugreport),
        for_bugreport: Some(for_bugreport),
        ..Default::default()
    };
    let Some(trigger) = &clone.trigger else {
        return request;
    };
    CloneSessionRequest {
        clone_trigger_name: Some(trigger.name.clone()),
        clone_trigger_producer_name: Some(trigger.producer_name.clone()),
        clone_trigger_trusted_producer_uid: Some(trigger.producer_uid as i32),
        clone_trigger_boot_time_ns: Some(trigger.boot_time_ns),
        clone_trigger_delay_ms: Some(trigger.delay_ms),
        ..request
    }
}
