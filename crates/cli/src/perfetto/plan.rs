//! Turns a command line into a plan: checks that its flags go together, and makes the config.
//!
//! [`run`](super::run) calls it after parsing the flags. It reads configs, but opens neither the output nor a socket. It refuses the combinations
//! that upstream's `perfetto_cmd.cc` refuses.

mod requested;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ferretto_proto::messages::{TraceAttributes, TraceConfig, trace_attributes, trace_config};

use super::Program;
use super::args::{Arguments, StatsdFlags};
use super::event_words::WordError;
use super::light_config::LightFlagError;
use super::workload::CommandLine;
use crate::config::config_source::{ConfigError, WrittenConfig};
use crate::config::refusals::{Refusal, check_config, takes_snapshots};
use crate::service_state::QueryFormat;
use requested::requested_config;

/// The id by which services know the session that a bug report wants: all bits set.
const BUGREPORT_SESSION: u64 = u64::MAX;
/// The file of a recording that has no `bugreport_filename`.
pub(crate) const DEFAULT_BUGREPORT_FILE: &str = "systrace.pftrace";

/// The name of the command after `--` in messages.
const COMMAND: &str = "-- COMMAND";

/// The action of a command line.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Print this message and exit.
    Notice(&'static str),
    /// Print the service's state.
    Query(QueryFormat),
    /// Record a trace.
    Record(Box<Recording>),
    /// Activate triggers of other recordings.
    Activate(Activation),
    /// Clone all recordings for a bug report.
    SaveAllForBugreport(Process),
}

/// The triggers that a config activates.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Activation {
    pub(crate) triggers: Vec<String>,
    /// The process that activates them.
    pub(crate) process: Process,
    /// A descriptor that is notified when it is done.
    pub(crate) notify_fd: Option<i32>,
}

/// A recording to be made.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The session, and the use made of it.
    pub(crate) job: Job,
    /// The config for the service.
    pub(crate) config: TraceConfig,
    /// The config as the user wrote it; `None` if the job needs none.
    pub(crate) written: Option<WrittenConfig>,
    /// The destination of the trace.
    pub(crate) sink: Sink,
    /// The treatment of an existing file.
    pub(crate) existing: ExistingFile,
    /// The process that records.
    pub(crate) process: Process,
    /// A descriptor that is notified when all data sources have started.
    pub(crate) notify_fd: Option<i32>,
    pub(crate) strictness: Strictness,
    /// A command that runs meanwhile; the recording ends with it.
    pub(crate) command: Option<CommandLine>,
    /// How long to record, counted from the time at which all data sources have started; otherwise the config decides.
    pub(crate) once_started: Option<Duration>,
}

/// Whether an incomplete recording is a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Strictness {
    #[default]
    Lenient,
    Strict,
}

/// The session of a recording, and the use made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// A new session, recorded to its end.
    Record,
    /// A new session, which goes on by itself under this key.
    StartAndDetach(String),
    /// The session that was detached under this key.
    Attach(String, AfterAttach),
    /// A clone of another session.
    Clone(CloneOf),
}

/// A clone of another session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CloneOf {
    pub(crate) original: Original,
    pub(crate) filter: TraceFilter,
    /// The trigger that caused it, to be noted in the trace.
    pub(crate) trigger: Option<HitTrigger>,
}

/// A trigger that was hit, as the service reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HitTrigger {
    pub(crate) name: String,
    pub(crate) producer_name: String,
    pub(crate) producer_uid: u32,
    pub(crate) boot_time_ns: u64,
    pub(crate) delay_ms: u64,
}

/// The use made of a session after attaching to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterAttach {
    /// It is recorded to its end.
    Follow,
    /// It is ended now.
    Stop,
    /// It is detached again, because only its existence was in question.
    DetachAgain,
}

/// The session to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Original {
    Id(u64),
    /// Its `unique_session_name`.
    Name(String),
}

impl Original {
    /// The session that a bug report wants.
    pub(crate) const BUGREPORT: Original = Original::Id(BUGREPORT_SESSION);
}

/// The treatment of the `trace_filter` of a cloned session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TraceFilter {
    Applied,
    /// It is ignored, because bug reports want everything.
    Skipped,
}

/// The destination of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sink {
    /// This file.
    File(PathBuf),
    /// stdout.
    Stdout,
    /// The config's `output_path`, which the service opens.
    OpenedByService(PathBuf),
    /// The destination that it had before the session was detached.
    SameAsBefore,
}

/// The treatment of an existing output file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExistingFile {
    /// The file is replaced.
    Replace,
    /// The recording is refused.
    Refuse,
}

/// The process that records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Process {
    /// This process.
    Foreground,
    /// A background process; this one exits at once.
    Background,
    /// A background process; this one exits when all data sources have started.
    BackgroundOnceStarted,
}

/// An error in a command line. The exit code is 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("{0} cannot be combined with {1}")]
    Conflict(&'static str, &'static str),
    // The sentences that begin with a capital letter, and those of `Needs`, are upstream's. Tests and scripts look for them.
    #[error("Cannot specify a trace config with {0}: leave out {1}")]
    NoConfigWanted(&'static str, &'static str),
    #[error(
        "Cannot specify both -c/--config and any of --time, --buffer, --size, --app or events: write those into the config"
    )]
    TwoConfigs,
    #[error("{0} is supported only in combination with {1}")]
    Needs(&'static str, &'static str),
    #[error("--{0} only works on Android")]
    AndroidOnly(&'static str),
    #[error("--add-attribute needs a key: write --add-attribute KEY=VALUE")]
    AttributeWithoutKey,
    #[error("The TraceConfig is empty: name events (like sched/sched_switch), or a config with -c FILE")]
    NoConfig,
    #[error("{0} needs a key that is not empty")]
    EmptyKey(&'static str),
    #[error(
        "--detach needs write_into_file: true in the trace config (or -s): this process will be gone at the end"
    )]
    DetachWithoutFile,
    #[error("The TraceConfig is empty: there is nothing in {0}")]
    EmptyConfig(String),
    #[error("{0}")]
    Light(#[from] LightFlagError),
    #[error(transparent)]
    Word(#[from] WordError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Refusal(#[from] Refusal),
    #[error(
        "the trace config sets output_path, where the service writes by itself; leave out -o or output_path"
    )]
    TwoOutputs,
    #[error(
        "{0}, the output_path of the trace config, exists, and the service overwrites no files; remove it or choose \
         another path"
    )]
    OutputPathExists(PathBuf),
    #[error(
        "the trace config takes snapshots (trigger_mode: CLONE_SNAPSHOT), which go into FILE.0, FILE.1, …: add -o FILE"
    )]
    SnapshotsWithoutFile,
    #[error(
        "Either --out or --upload is required: add -o FILE (or -o - for stdout); --upload is for Android"
    )]
    NoOutput,
    #[error("--notify-fd 2 is stderr, which is for errors; pass another descriptor")]
    NotifyStderr,
}

/// Makes the plan for a command line.
pub(crate) fn plan(program: Program, arguments: Arguments) -> Result<Plan, PlanError> {
    if let Some(flag) = arguments.android_only {
        return Err(PlanError::AndroidOnly(flag));
    }
    if arguments.reset_guardrails {
        return Ok(Plan::Notice(
            "There are no guardrails to reset; --reset-guardrails does nothing.",
        ));
    }
    for attribute in &arguments.attributes {
        if attribute.is_empty() || attribute.starts_with('=') {
            return Err(PlanError::AttributeWithoutKey);
        }
    }
    if arguments.notify_fd == Some(2) {
        return Err(PlanError::NotifyStderr);
    }
    check_keys(&arguments)?;
    let attach = arguments.attach.is_some() || arguments.is_detached.is_some();
    let clone = arguments.clone.is_some() || arguments.clone_by_name.is_some();
    let strict = arguments.strictness == Strictness::Strict;
    let conflicts = [
        (arguments.query && arguments.background, "--query", "--background"),
        (
            arguments.query && arguments.detach.is_some(),
            "--query",
            "--detach",
        ),
        (arguments.query && attach, "--query", "--attach"),
        (attach && arguments.detach.is_some(), "--attach", "--detach"),
        (attach && clone, "--attach", "--clone"),
        (clone && arguments.detach.is_some(), "--clone", "--detach"),
        (
            arguments.detach.is_some() && arguments.background,
            "--detach",
            "--background",
        ),
        // Their exit code says nothing about the recording's completeness.
        (strict && arguments.background, "--strict", "--background"),
        (strict && arguments.detach.is_some(), "--strict", "--detach"),
        (
            arguments.clone.is_some() && arguments.clone_by_name.is_some(),
            "--clone",
            "--clone-by-name",
        ),
        // The process id, or the trace, goes to stdout.
        (
            arguments.notify_fd == Some(1) && arguments.background,
            "--notify-fd 1",
            "--background",
        ),
        (
            arguments.notify_fd == Some(1) && arguments.out.as_deref() == Some("-".as_ref()),
            "--notify-fd 1",
            "--out -",
        ),
    ];
    check_command(&arguments)?;
    if let Some((_, one, other)) = conflicts.into_iter().find(|(both, ..)| *both) {
        return Err(PlanError::Conflict(one, other));
    }
    if arguments.stop && !attach {
        return Err(PlanError::Needs("--stop", "--attach"));
    }
    if arguments.clone_for_bugreport && !clone {
        return Err(PlanError::Needs(
            "--clone-for-bugreport",
            "--clone or --clone-by-name",
        ));
    }
    if arguments.long && !arguments.query {
        return Err(PlanError::Needs("--long", "--query"));
    }
    if arguments.json && !arguments.query {
        return Err(PlanError::Needs("--json", "--query"));
    }
    if arguments.text && arguments.lossy_text {
        return Err(PlanError::Conflict("--txt", "--txt-lossy"));
    }
    if arguments.save_for_bugreport || arguments.save_all_for_bugreport {
        return bugreport(program, arguments);
    }
    if arguments.query {
        return query(&arguments);
    }
    if attach {
        return reattach(arguments);
    }
    record(program, arguments)
}

/// Checks the flags beside a command, which needs a recording in this process, and its standard streams for itself.
fn check_command(arguments: &Arguments) -> Result<(), PlanError> {
    let attach = arguments.attach.is_some() || arguments.is_detached.is_some();
    let clone = arguments.clone.is_some() || arguments.clone_by_name.is_some();
    let bugreport = arguments.save_for_bugreport || arguments.save_all_for_bugreport;
    let conflicts = [
        (arguments.background, "--background"),
        (arguments.detach.is_some(), "--detach"),
        (attach, "--attach"),
        (clone, "--clone"),
        (bugreport, "--save-for-bugreport"),
        (arguments.query, "--query"),
        (arguments.out.as_deref() == Some("-".as_ref()), "--out -"),
    ];
    match conflicts.into_iter().find(|(given, _)| *given) {
        Some((_, flag)) if arguments.command.is_some() => Err(PlanError::Conflict(COMMAND, flag)),
        _ => Ok(()),
    }
}

/// Refuses empty keys, on which upstream's program aborts.
fn check_keys(arguments: &Arguments) -> Result<(), PlanError> {
    let keys = [
        ("--detach", &arguments.detach),
        ("--attach", &arguments.attach),
        ("--is_detached", &arguments.is_detached),
        ("--clone-by-name", &arguments.clone_by_name),
    ];
    match keys.into_iter().find(|(_, key)| key.as_deref() == Some("")) {
        Some((flag, _)) => Err(PlanError::EmptyKey(flag)),
        None => Ok(()),
    }
}

/// Plans to clone one or all sessions for a bug report.
fn bugreport(program: Program, mut arguments: Arguments) -> Result<Plan, PlanError> {
    let flag = if arguments.save_all_for_bugreport {
        "--save-all-for-bugreport"
    } else {
        "--save-for-bugreport"
    };
    let attach = arguments.attach.is_some() || arguments.is_detached.is_some();
    let clone = arguments.clone.is_some() || arguments.clone_by_name.is_some();
    let conflicts = [
        (arguments.query, "--query"),
        (attach, "--attach"),
        (arguments.detach.is_some(), "--detach"),
        (clone, "--clone"),
        (
            arguments.light.any() || !arguments.configs.is_empty(),
            "a trace config",
        ),
        (arguments.background_wait, "--background-wait"),
        (
            arguments.save_all_for_bugreport && arguments.out.is_some(),
            "--out",
        ),
    ];
    if let Some((_, other)) = conflicts.into_iter().find(|(given, _)| *given) {
        return Err(PlanError::Conflict(flag, other));
    }
    if arguments.save_all_for_bugreport {
        return Ok(Plan::SaveAllForBugreport(process(arguments.background, false)));
    }
    arguments.clone = Some(BUGREPORT_SESSION as i64);
    arguments.clone_for_bugreport = true;
    let file = || bugreport_folder().join(DEFAULT_BUGREPORT_FILE).into_os_string();
    arguments.out.get_or_insert_with(file);
    record(program, arguments)
}

/// Returns the folder for bug reports: upstream's folder for temporary files.
pub(crate) fn bugreport_folder() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from)
}

/// Plans to attach to a detached session, which accepts no config.
fn reattach(arguments: Arguments) -> Result<Plan, PlanError> {
    if !arguments.configs.is_empty() || arguments.light.any() {
        let given = config_flag(&arguments);
        return Err(PlanError::NoConfigWanted("--attach", given));
    }
    if arguments.out.is_some() {
        return Err(PlanError::Conflict("--attach", "--out"));
    }
    let (key, then) = match (arguments.is_detached, arguments.attach, arguments.stop) {
        (Some(key), ..) => (key, AfterAttach::DetachAgain),
        (None, key, true) => (key.unwrap_or_default(), AfterAttach::Stop),
        (None, key, false) => (key.unwrap_or_default(), AfterAttach::Follow),
    };
    Ok(Plan::Record(Box::new(Recording {
        job: Job::Attach(key, then),
        config: TraceConfig::default(),
        written: None,
        sink: Sink::SameAsBefore,
        existing: ExistingFile::Replace,
        process: process(arguments.background, arguments.background_wait),
        notify_fd: arguments.notify_fd,
        strictness: arguments.strictness,
        command: None,
        once_started: None,
    })))
}

/// Names the flags that gave a config, for messages.
fn config_flag(arguments: &Arguments) -> &'static str {
    match arguments.configs.is_empty() {
        true => "--time, --buffer, --size, --app and events",
        false => "-c",
    }
}

fn process(background: bool, wait: bool) -> Process {
    match (wait, background) {
        (true, _) => Process::BackgroundOnceStarted,
        (false, true) => Process::Background,
        (false, false) => Process::Foreground,
    }
}

fn query(arguments: &Arguments) -> Result<Plan, PlanError> {
    if !arguments.configs.is_empty() || arguments.light.any() {
        return Err(PlanError::NoConfigWanted("--query", config_flag(arguments)));
    }
    if arguments.out.is_some() {
        return Err(PlanError::Conflict("--query", "--out"));
    }
    Ok(Plan::Query(
        match (arguments.query_raw, arguments.json, arguments.long) {
            (true, true, _) => return Err(PlanError::Conflict("--query-raw", "--json")),
            (true, false, _) => QueryFormat::Raw,
            (false, true, _) => QueryFormat::Json,
            (false, false, true) => QueryFormat::LongTable,
            (false, false, false) => QueryFormat::Table,
        },
    ))
}

fn record(program: Program, arguments: Arguments) -> Result<Plan, PlanError> {
    let written = requested_config(program, &arguments)?;
    let mut config = written.config.clone();
    check_config(&config, &written.origin)?;
    add_command_line_metadata(&mut config, &arguments)?;
    check_output_path(&config, arguments.out.as_ref())?;
    // The other fields of such a config mean nothing.
    if !config.activate_triggers.is_empty() {
        if arguments.command.is_some() {
            return Err(PlanError::Conflict(COMMAND, "activate_triggers"));
        }
        return Ok(Plan::Activate(Activation {
            triggers: std::mem::take(&mut config.activate_triggers),
            process: process(arguments.background, arguments.background_wait),
            notify_fd: arguments.notify_fd,
        }));
    }
    let (sink, existing) = match (sink(&config, arguments.out), program) {
        // A generated file name never replaces an earlier trace.
        (Err(PlanError::NoOutput), Program::Ferretto) => (Sink::File(unused_name()), ExistingFile::Refuse),
        (sink, _) if arguments.no_clobber => (sink?, ExistingFile::Refuse),
        (sink, _) => (sink?, ExistingFile::Replace),
    };
    if arguments.detach.is_some() && config.write_into_file != Some(true) {
        return Err(PlanError::DetachWithoutFile);
    }
    let original = arguments
        .clone
        .map(|id| Original::Id(id as u64))
        .or(arguments.clone_by_name.map(Original::Name));
    let filter = if arguments.clone_for_bugreport {
        TraceFilter::Skipped
    } else {
        TraceFilter::Applied
    };
    let job = match (original, arguments.detach) {
        (Some(original), _) => Job::Clone(CloneOf {
            original,
            filter,
            trigger: None,
        }),
        (None, Some(key)) => Job::StartAndDetach(key),
        (None, None) => Job::Record,
    };
    if job == Job::Record && takes_snapshots(&config) && !matches!(sink, Sink::File(_)) {
        return Err(PlanError::SnapshotsWithoutFile);
    }
    Ok(Plan::Record(Box::new(Recording {
        written: (!matches!(job, Job::Clone(_))).then_some(written),
        job,
        config,
        sink,
        existing,
        process: process(arguments.background, arguments.background_wait),
        notify_fd: arguments.notify_fd,
        strictness: arguments.strictness,
        command: arguments.command,
        once_started: arguments.once_started,
    })))
}

/// Sets the fields that the command line adds to every config: statsd's ids, a UUID for the trace, the attributes.
fn add_command_line_metadata(config: &mut TraceConfig, arguments: &Arguments) -> Result<(), PlanError> {
    let StatsdFlags {
        alert_id,
        config_id,
        config_uid,
        subscription_id,
    } = arguments.statsd;
    // Set even if empty, and replacing the config's own, as upstream does.
    *config.statsd_metadata.get_or_insert_default() = trace_config::StatsdMetadata {
        triggering_alert_id: alert_id,
        triggering_config_id: config_id,
        triggering_config_uid: config_uid,
        triggering_subscription_id: subscription_id,
        ..Default::default()
    };
    if config.trace_uuid_lsb.unwrap_or(0) == 0 && config.trace_uuid_msb.unwrap_or(0) == 0 {
        let (lsb, msb) = random_uuid();
        // With this UUID statsd finds the trace of its subscription.
        config.trace_uuid_lsb = Some(subscription_id.filter(|id| *id != 0).unwrap_or(lsb));
        config.trace_uuid_msb = Some(msb);
    }
    let enabled = trace_config::StatsdLogging::STATSD_LOGGING_ENABLED;
    if config.statsd_logging != Some(enabled) {
        config.statsd_logging = Some(trace_config::StatsdLogging::STATSD_LOGGING_DISABLED);
    }
    // These guardrails are for traces that are uploaded.
    config.enable_extra_guardrails = Some(false);
    if !arguments.attributes.is_empty() {
        let attributes: &mut TraceAttributes = config.trace_attributes.get_or_insert_default();
        for attribute in &arguments.attributes {
            let (key, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            attributes.attribute.push(trace_attributes::Attribute {
                key: Some(key.to_owned()),
                value: Some(trace_attributes::attribute::Value::StringValue(value.to_owned())),
                ..Default::default()
            });
        }
    }
    Ok(())
}

/// Returns 128 random bits. The kernel provides them without blocking, except in the first seconds after a boot.
fn random_uuid() -> (i64, i64) {
    let mut bytes = [0; 16];
    // On failure (no getrandom in a sandbox) they stay zero, and the service makes a UUID of its own.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let bits = u128::from_ne_bytes(bytes);
    (bits as i64, (bits >> 64) as i64)
}

/// Returns the path at which the service should write by itself.
fn output_path(config: &TraceConfig) -> Option<PathBuf> {
    let path = config.output_path.as_deref().filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}

fn check_output_path(config: &TraceConfig, out: Option<&OsString>) -> Result<(), PlanError> {
    match (output_path(config), out) {
        (Some(_), Some(_)) => Err(PlanError::TwoOutputs),
        (Some(path), None) if path.exists() => Err(PlanError::OutputPathExists(path)),
        _ => Ok(()),
    }
}

/// Makes a name for a trace without one: the present time, with a number if that name is taken.
pub(crate) fn unused_name() -> PathBuf {
    let time = chrono::Local::now().format("%Y%m%d-%H%M%S");
    let first = PathBuf::from(format!("trace-{time}.pftrace"));
    let others = (2..).map(|number| PathBuf::from(format!("trace-{time}-{number}.pftrace")));
    // A dangling link counts as taken.
    let is_taken = |name: &PathBuf| name.symlink_metadata().is_ok();
    std::iter::once(first)
        .chain(others)
        .find(|name| !is_taken(name))
        .unwrap_or_default()
}

/// Returns the destination of the trace. The config's `output_path` has been checked.
fn sink(config: &TraceConfig, out: Option<OsString>) -> Result<Sink, PlanError> {
    match (output_path(config), out) {
        (Some(path), None) if config.write_into_file == Some(true) => Ok(Sink::OpenedByService(path)),
        (_, None) => Err(PlanError::NoOutput),
        (_, Some(out)) if out.is_empty() => Err(PlanError::NoOutput),
        (_, Some(out)) if out == "-" => Ok(Sink::Stdout),
        (_, Some(out)) => Ok(Sink::File(PathBuf::from(out))),
    }
}

#[cfg(test)]
mod tests;
