//! The stand-in for the trace filter in builds without the feature `trace-filter`. No session has a filter, because configs that want one are refused.

use std::fmt;
use std::time::Duration;

use ferretto_proto::messages::{trace_config, trace_stats};

use crate::clock::ProcessorClock;

/// Why such configs are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterError;

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "trace_filter: filters are not built into this service; build it with the feature `trace-filter`",
        )
    }
}

impl std::error::Error for FilterError {}

/// The filter of a session and its statistics. No session has one.
#[derive(Debug)]
pub(crate) enum SessionFilter {}

/// The origin of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The service itself.
    Service,
    /// The buffer of this index in the config.
    Buffer(#[allow(dead_code)] usize),
}

impl SessionFilter {
    /// Does not make a filter.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn of(_: &trace_config::TraceFilter) -> Result<Box<SessionFilter>, FilterError> {
        Err(FilterError)
    }

    pub(crate) fn afresh(&self) -> SessionFilter {
        match *self {}
    }

    pub(crate) fn begin_batch(&mut self, _: Option<ProcessorClock>) {
        match *self {}
    }

    pub(crate) fn batch_took(&self) -> Duration {
        match *self {}
    }

    pub(crate) fn filter<'p>(
        &mut self,
        _: impl IntoIterator<Item = &'p [u8]>,
        _: usize,
        _: Origin,
    ) -> Option<&[u8]> {
        match *self {}
    }

    pub(crate) fn passed_by(&mut self, _: usize) {
        match *self {}
    }

    pub(crate) fn took(&mut self, _: Duration) {
        match *self {}
    }

    pub(crate) fn stats(&self) -> trace_stats::FilterStats {
        match *self {}
    }
}
