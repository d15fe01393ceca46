//! The states of a session, and the order in which it goes through them.
//!
//! This is pure data. `lifecycle` carries out the transitions.

/// The states of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Buffers exist, data sources are set up, nothing records yet.
    Configured,
    /// Recording.
    Started,
    /// Producers were told to stop, and some have not acknowledged.
    DisablingWaitingStopAcks,
    /// No producer records any more; the buffers can be read.
    Disabled,
    /// A clone: nothing ever recorded into it; the buffers can be read.
    ClonedReadOnly,
}

impl State {
    /// The name in `TracingServiceState`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Configured => "CONFIGURED",
            State::Started => "STARTED",
            State::DisablingWaitingStopAcks => "STOP_WAIT",
            State::Disabled => "DISABLED",
            State::ClonedReadOnly => "CLONED_READ_ONLY",
        }
    }

    /// Whether producers write for it, or may.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, State::Started | State::DisablingWaitingStopAcks)
    }

    /// The work of a stop for a session in this state; `None` if it has no effect.
    pub(super) fn on_stop(self, stop: Stop) -> Option<Stopping> {
        match (self, stop) {
            // Nothing ran, so nothing has to be ended.
            (State::Configured, _) | (State::Started, Stop::AtOnce) => Some(Stopping::Begin(Stop::AtOnce)),
            (State::Started, Stop::Graceful) => Some(Stopping::Begin(Stop::Graceful)),
            (State::DisablingWaitingStopAcks, Stop::AtOnce) => Some(Stopping::CutShort),
            (State::DisablingWaitingStopAcks, Stop::Graceful) => None,
            (State::Disabled | State::ClonedReadOnly, _) => None,
        }
    }
}

/// Whether producers get time to acknowledge that they stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Graceful,
    AtOnce,
}

/// The work of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopping {
    /// All instances are told.
    Begin(Stop),
    /// They were told earlier. The session does not wait for their acknowledgements any more.
    CutShort,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_stops_once_and_gracefully_only_while_it_records() {
        use State::*;
        use Stop::*;
        let stops = [
            Configured,
            Started,
            DisablingWaitingStopAcks,
            Disabled,
            ClonedReadOnly,
        ]
        .map(|state| (state.on_stop(Graceful), state.on_stop(AtOnce)));
        let begin = |stop| Some(Stopping::Begin(stop));
        assert_eq!(
            stops,
            [
                (begin(AtOnce), begin(AtOnce)),
                (begin(Graceful), begin(AtOnce)),
                (None, Some(Stopping::CutShort)),
                (None, None),
                (None, None),
            ]
        );
    }
}
