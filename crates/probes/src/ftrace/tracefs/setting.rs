//! The settings of a tracefs directory and the names of its events, as its files spell them.
//!
//! [`Tracefs`](super::Tracefs) reads and writes the files. This module only names them and translates their texts.

/// One tracepoint, as the directory `events/<group>/<name>` names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventName {
    /// The trace system, for instance `sched`.
    pub group: String,
    /// The event in it, for instance `sched_switch`.
    pub name: String,
}

impl EventName {
    /// `group/name`.
    pub fn new(group: impl Into<String>, name: impl Into<String>) -> Self {
        EventName {
            group: group.into(),
            name: name.into(),
        }
    }

    /// Parses the spelling of the file `set_event`: `group:name`.
    pub fn from_set_event(text: &str) -> Option<Self> {
        let (group, name) = text.split_once(':')?;
        (is_file_name(group) && is_file_name(name)).then(|| EventName::new(group, name))
    }

    /// Whether both parts can be names of directories. No other text becomes a part of a path.
    pub fn is_valid(&self) -> bool {
        is_file_name(&self.group) && is_file_name(&self.name)
    }
}

impl std::fmt::Display for EventName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.group, self.name)
    }
}

pub(super) fn is_file_name(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '\0', '\n', ':', ' '])
}

/// A setting of a tracefs directory: one file that is read, changed and put back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// `tracing_on`: `1` or `0`.
    TracingOn,
    /// `trace_clock`: the name of the clock. Changing it clears the buffers.
    TraceClock,
    /// `buffer_size_kb`: size of each CPU's buffer in KiB. While it changes nothing is recorded (since Linux 6.7); a smaller
    /// buffer loses what no longer fits.
    BufferSizeKb,
    /// `per_cpu/cpuN/buffer_size_kb`: the size of one CPU's buffer, where they differ.
    CpuBufferSizeKb(u32),
    /// `buffer_percent`: how full a buffer is before `poll` on it reports it.
    BufferPercent,
    /// `current_tracer`: `nop` or the name of a tracer. Cannot be changed while a raw buffer is open.
    CurrentTracer,
    /// `set_event_pid`: threads whose events are recorded, space separated; empty for all.
    EventPids,
    /// `tracing_cpumask`: hexadecimal, comma separated.
    CpuMask,
    /// `options/<name>`: `1` or `0`.
    Option(String),
    /// `set_ftrace_filter`: functions to trace, one a line.
    FunctionFilter,
    /// `set_graph_function`: functions whose callees are traced, one a line.
    GraphFunctions,
    /// `max_graph_depth`: a number, 0 for no limit.
    MaxGraphDepth,
    /// `events/<group>/<name>/filter`: which of the event's occurrences are recorded; `0` for all.
    EventFilter(EventName),
    /// `buffer_subbuf_size_kb`: size of the pages that buffers are made of. Changing it clears the buffers.
    SubBufferSizeKb,
    /// `set_event_notrace_pid`: threads whose events are not recorded, space separated; empty for none.
    UnwantedPids,
}

/// How a new value gets into a settings file.
pub(super) enum WriteStyle {
    /// One write replaces the value.
    Replace,
    /// The file is a list: truncated first, then appended to.
    Truncate,
}

impl Setting {
    /// Path of the file below the tracefs directory.
    pub(crate) fn file(&self) -> String {
        match self {
            Setting::TracingOn => "tracing_on".into(),
            Setting::TraceClock => "trace_clock".into(),
            Setting::BufferSizeKb => "buffer_size_kb".into(),
            Setting::CpuBufferSizeKb(cpu) => format!("per_cpu/cpu{cpu}/buffer_size_kb"),
            Setting::BufferPercent => "buffer_percent".into(),
            Setting::CurrentTracer => "current_tracer".into(),
            Setting::EventPids => "set_event_pid".into(),
            Setting::CpuMask => "tracing_cpumask".into(),
            Setting::Option(name) => format!("options/{name}"),
            Setting::FunctionFilter => "set_ftrace_filter".into(),
            Setting::GraphFunctions => "set_graph_function".into(),
            Setting::MaxGraphDepth => "max_graph_depth".into(),
            Setting::EventFilter(event) => format!("events/{event}/filter"),
            Setting::SubBufferSizeKb => "buffer_subbuf_size_kb".into(),
            Setting::UnwantedPids => "set_event_notrace_pid".into(),
        }
    }

    /// The setting kept in `file`, if it is one of these. The inverse of [`Setting::file`].
    pub(crate) fn from_file(file: &str) -> Option<Setting> {
        if let Some(name) = file.strip_prefix("options/") {
            return is_option_name(name).then(|| Setting::Option(name.to_owned()));
        }
        if let Some(rest) = file.strip_prefix("per_cpu/cpu") {
            return rest
                .strip_suffix("/buffer_size_kb")?
                .parse()
                .ok()
                .map(Setting::CpuBufferSizeKb);
        }
        if let Some(rest) = file.strip_prefix("events/") {
            let (group, name) = rest.strip_suffix("/filter")?.split_once('/')?;
            let event = EventName::new(group, name);
            return event.is_valid().then_some(Setting::EventFilter(event));
        }
        [
            Setting::TracingOn,
            Setting::TraceClock,
            Setting::BufferSizeKb,
            Setting::BufferPercent,
            Setting::CurrentTracer,
            Setting::EventPids,
            Setting::CpuMask,
            Setting::FunctionFilter,
            Setting::GraphFunctions,
            Setting::MaxGraphDepth,
            Setting::SubBufferSizeKb,
            Setting::UnwantedPids,
        ]
        .into_iter()
        .find(|setting| setting.file() == file)
    }

    pub(super) fn write_style(&self) -> WriteStyle {
        match self {
            Setting::EventPids
            | Setting::UnwantedPids
            | Setting::FunctionFilter
            | Setting::GraphFunctions => WriteStyle::Truncate,
            _ => WriteStyle::Replace,
        }
    }

    /// Turns the text that the file shows into the text that sets the same value again.
    pub(super) fn writable(&self, shown: &str) -> String {
        let shown = shown.trim();
        match self {
            Setting::TraceClock => selected_clock(shown).unwrap_or_default().to_owned(),
            // Until its first use a buffer is minimal and shows `7 (expanded: 1408)`. The next user of ftrace would have got the
            // larger size, and the minimal state cannot be restored.
            Setting::BufferSizeKb | Setting::CpuBufferSizeKb(_) => {
                let expanded = shown
                    .split_once("expanded:")
                    .map_or(shown, |(_, size)| size.trim_end_matches(')'));
                expanded.trim().to_owned()
            }
            Setting::EventPids | Setting::UnwantedPids => {
                shown.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
            }
            // `#### all functions enabled ####` stands for an empty list. Lines of the form `function:command` are not part of the
            // list, and truncating leaves them alone.
            Setting::FunctionFilter | Setting::GraphFunctions => shown
                .lines()
                .filter(|line| !line.starts_with('#') && !line.contains(':'))
                .collect::<Vec<_>>()
                .join("\n"),
            Setting::EventFilter(_) if shown == "none" => "0".to_owned(),
            _ => shown.to_owned(),
        }
    }
}

/// Whether `name` can be a file in `options/` (as upstream: letters, digits, `-` and `_`).
pub(crate) fn is_option_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn selected_clock(shown: &str) -> Option<&str> {
    let (_, rest) = shown.split_once('[')?;
    rest.split_once(']').map(|(clock, _)| clock)
}
