//! The present state of ftrace, which the whole machine shares, and the processes that read it.
//!
//! The doctor's checks judge it, and [`status`](crate::status) reports it. Only root can see which of other users' processes have a kernel buffer
//! open.

use ferretto_probes::ftrace::tracefs::EventName;

use super::Machine;
use super::processes::{Holder, opened};

/// The state of ftrace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FtraceUse {
    /// The current tracer; `None` for `nop`.
    pub(crate) tracer: Option<String>,
    /// The enabled events, as `group/name`.
    pub(crate) events: Vec<String>,
    pub(crate) readers: Vec<Reader>,
    /// The instances, each with its own buffers.
    pub(crate) instances: Vec<String>,
}

/// A process that has buffers of ftrace open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) process: Holder,
    /// The instance of the buffers; `None` for the top-level one.
    pub(crate) instance: Option<String>,
}

impl FtraceUse {
    /// Examines the tracefs that is mounted at `root`.
    pub(crate) fn look(machine: &dyn Machine, root: &str) -> FtraceUse {
        let text = |file: &str| machine.read(&format!("{root}/{file}")).unwrap_or_default();
        let tracer = text("current_tracer")
            .split_ascii_whitespace()
            .next()
            .filter(|tracer| *tracer != "nop")
            .map(str::to_owned);
        let events = text("set_event")
            .lines()
            .filter_map(EventName::from_set_event)
            .map(|event| event.to_string())
            .collect();
        let mut readers: Vec<Reader> = Vec::new();
        for (process, instance) in opened(machine, |open| buffers_of(root, open)) {
            let reader = Reader { process, instance };
            if !readers.contains(&reader) {
                readers.push(reader);
            }
        }
        FtraceUse {
            tracer,
            events,
            readers,
            instances: machine.list(&format!("{root}/instances")).unwrap_or_default(),
        }
    }
}

/// Returns the instance whose buffers an open file belongs to, `Some(None)` for the top-level one; `None` for other files.
fn buffers_of(root: &str, open: &str) -> Option<Option<String>> {
    let file = open.strip_prefix(root)?.strip_prefix('/')?;
    let (instance, file) = match file.strip_prefix("instances/") {
        Some(of_instance) => {
            let (instance, file) = of_instance.split_once('/')?;
            (Some(instance.to_owned()), file)
        }
        None => (None, file),
    };
    file.contains("trace_pipe").then_some(instance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_distinguished_from_other_files() {
        let of = |open| buffers_of("/sys/kernel/tracing", open);
        assert_eq!(of("/sys/kernel/tracing/per_cpu/cpu0/trace_pipe_raw"), Some(None));
        assert_eq!(of("/sys/kernel/tracing/trace_pipe"), Some(None));
        assert_eq!(
            of("/sys/kernel/tracing/instances/mine/per_cpu/cpu1/trace_pipe_raw"),
            Some(Some("mine".to_owned()))
        );
        assert_eq!(of("/sys/kernel/tracing/trace_marker"), None);
        assert_eq!(of("/sys/kernel/tracing2/trace_pipe"), None);
    }
}
