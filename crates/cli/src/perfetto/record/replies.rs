//! Handles the service's replies to a recording.
//!
//! [`record`](super::record) calls it whenever data arrive. Packets go into the output, everything else to the session.

use super::*;

impl Recorder<'_> {
    /// Handles all pending events; returns whether there were any.
    pub(super) fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoint.as_mut().and_then(ConsumerEndpoint::next_event) {
            any = true;
            match event {
                ConsumerEvent::Connected => self.session.connected(now()),
                // The end of the connection follows, with the reason.
                ConsumerEvent::Reply {
                    reply: Err(CallError::ConnectionLost),
                    ..
                } => {}
                ConsumerEvent::Reply { method, reply, .. } => self.take_reply(method, reply),
                ConsumerEvent::Disconnected(reason) => {
                    self.trouble.get_or_insert(reason.to_string());
                    self.session.disconnected();
                }
            }
        }
        any
    }

    fn take_reply(&mut self, method: ConsumerMethod, reply: Result<ConsumerReply, CallError>) {
        match (method, reply) {
            (_, Ok(ConsumerReply::TracingDisabled { error })) => self.session.tracing_disabled(error, now()),
            (_, Ok(ConsumerReply::TraceData { packets, more })) => {
                let written = packets.iter().try_for_each(|packet| self.write_packet(packet));
                let written = match more {
                    More::Last => written.and_then(|()| self.finish_output()),
                    More::Follows => written,
                };
                match (written, more) {
                    (Err(error), _) => self.session.output_failed(why(&error)),
                    (Ok(()), More::Follows) => {
                        self.session.packets_read(now());
                        if !self.session.is_recording() {
                            self.show_writing();
                        }
                    }
                    (Ok(()), More::Last) => {
                        self.session.all_packets_read(now());
                        self.end_at_most_bytes();
                    }
                }
            }
            (_, Ok(ConsumerReply::TraceStats(stats))) => {
                // Without a session for us, the service answers with empty stats.
                let stats = (!stats.buffer_stats.is_empty()).then_some(*stats);
                self.session.trace_stats(stats, now());
            }
            (_, Ok(ConsumerReply::Observed(events))) => {
                self.instances_changed(&events.instance_state_changes);
                if events.all_data_sources_started == Some(true) {
                    self.command_is_due = true;
                    self.ends_at = self.once_started.map(|length| now() + length);
                    self.activity = Activity::Recording;
                    self.session.all_data_sources_started();
                }
                if let Some(hit) = events.clone_trigger_hit.as_option() {
                    self.take_snapshot(hit);
                }
            }
            (_, Ok(ConsumerReply::Attached { trace_config })) => {
                let config = TraceConfig::decode_from_slice(&trace_config).map_err(drop);
                if let Ok(config) = &config {
                    self.knowledge.config = config.clone();
                }
                self.session.attached(config, now());
            }
            (_, Ok(ConsumerReply::SessionCloned(response))) => {
                self.session.cloned(cloned(&self.job, &response), now());
            }
            (ConsumerMethod::QueryServiceState, state) => {
                let state = match &state {
                    Ok(ConsumerReply::ServiceState { state, .. }) => Some(&**state),
                    _ => None,
                };
                if let Some(written) = self.written.take() {
                    warnings::warn(&written, state, self.console);
                }
                self.take_service_state(state);
            }
            (ConsumerMethod::ObserveEvents, Err(_)) => self.knowledge.nobody_tells(),
            (ConsumerMethod::Attach, Err(_)) => self.session.attached(Err(()), now()),
            (ConsumerMethod::Detach, outcome) => self.session.detached(outcome.map(drop).map_err(drop)),
            (ConsumerMethod::CloneSession, Err(error)) => {
                self.session.cloned(Err(format!("cannot clone: {error}")), now());
            }
            (ConsumerMethod::EnableTracing, Err(error)) => {
                self.session.tracing_disabled(Some(error.to_string()), now());
            }
            (ConsumerMethod::ReadBuffers, Err(error)) => self.session.read_failed(error.to_string()),
            (ConsumerMethod::GetTraceStats, Err(_)) => self.session.trace_stats(None, now()),
            (ConsumerMethod::Flush, outcome) => self.session.flushed(outcome.map(drop).map_err(drop)),
            _ => {}
        }
    }

    fn write_packet(&mut self, packet: &[u8]) -> io::Result<()> {
        self.contents.observe(packet);
        let Some(output) = &mut self.output else {
            return Ok(());
        };
        if self.output_failure.is_some() {
            output.miss_packet(packet);
            return Ok(());
        }
        let written = output.write_packet(packet);
        self.heed_failure(written)
    }

    /// Ends a recording whose file has as many bytes as it may.
    fn end_at_most_bytes(&mut self) {
        let size = self.output.as_ref().and_then(Output::size);
        if let (Some(size), Some(most)) = (size, self.most_bytes)
            && size >= most
        {
            self.session.nothing_more_to_record(now());
        }
    }

    fn finish_output(&mut self) -> io::Result<()> {
        let finished = self.output.as_mut().map_or(Ok(()), Output::finish);
        self.heed_failure(finished)
    }

    /// Keeps a file that cannot take all packets, with those that it took. The rest is read nevertheless, to report how much is missing.
    fn heed_failure(&mut self, written: io::Result<()>) -> io::Result<()> {
        match written {
            Err(error) if self.output.as_ref().is_some_and(Output::is_file) => {
                self.output_failure.get_or_insert(why(&error));
                Ok(())
            }
            written => written,
        }
    }
}

/// Returns the writer of the clone's output, or the reason why there is no clone.
fn cloned(job: &Job, response: &CloneSessionResponse) -> Result<Writer, String> {
    if response.success == Some(true) {
        return Ok(if response.was_write_into_file == Some(true) {
            Writer::Service
        } else {
            Writer::Us
        });
    }
    let original = match job {
        Job::Clone(clone) => match &clone.original {
            &Original::BUGREPORT => "for a bug report".to_owned(),
            Original::Id(id) => id.to_string(),
            Original::Name(name) => format!("{name:?}"),
        },
        Job::Record | Job::StartAndDetach(_) | Job::Attach(..) => String::new(),
    };
    let reason = response.error.as_deref().unwrap_or_default();
    Err(format!("cannot clone the session {original}: {reason}"))
}
