//! What a command line asks for: which flags go together, and the config that results.
//!
//! Called by [`run`](super::run) between parsing the flags and touching the world: nothing here opens the output or a
//! socket, only configs are read. The combinations that are refused are those upstream's `perfetto_cmd.cc` refuses.

mod requested;

use std::ffi::OsString;
use std::path::PathBuf;

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

/// How what stands behind `--` is told of.
const COMMAND: &str = "-- COMMAND";

/// What to do.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Say something and be done.
    Notice(&'static str),
    /// Show the service's state.
    Query(QueryFormat),
    /// Record a trace.
    Record(Box<Recording>),
    /// Activate triggers of other recordings.
    Activate(Activation),
    /// Clone all recordings for a bug report.
    SaveAllForBugreport(Process),
}

/// Triggers to be activated.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Activation {
    pub(crate) triggers: Vec<String>,
    /// Which process does it.
    pub(crate) process: Process,
    /// A descriptor that is told when it is done.
    pub(crate) notify_fd: Option<i32>,
}

/// A recording to be made.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Which session it is.
    pub(crate) job: Job,
    /// As it goes to the service.
    pub(crate) config: TraceConfig,
    /// As it was asked for; `None` where there was nothing to ask for.
    pub(crate) written: Option<WrittenConfig>,
    /// Where the trace goes.
    pub(crate) sink: Sink,
    /// What happens to a file that is there already.
    pub(crate) existing: ExistingFile,
    /// Which process records.
    pub(crate) process: Process,
    /// A descriptor that is told when all data sources have started.
    pub(crate) notify_fd: Option<i32>,
    pub(crate) strictness: Strictness,
    /// What runs meanwhile; the recording ends with it.
    pub(crate) command: Option<CommandLine>,
}

/// Whether a recording that is not complete is a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Strictness {
    #[default]
    Lenient,
    Strict,
}

/// Which session it is, and what is done with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// A new one, to its end.
    Record,
    /// A new one, which goes on by itself under this key.
    StartAndDetach(String),
    /// The one that was detached under this key.
    Attach(String, AfterAttach),
    /// A copy of another.
    Clone(CloneOf),
}

/// A copy of another session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CloneOf {
    pub(crate) original: Original,
    pub(crate) filter: TraceFilter,
    /// What led to it, to be noted in the trace.
    pub(crate) trigger: Option<HitTrigger>,
}

/// A trigger that was hit, as the service tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HitTrigger {
    pub(crate) name: String,
    pub(crate) producer_name: String,
    pub(crate) producer_uid: u32,
    pub(crate) boot_time_ns: u64,
    pub(crate) delay_ms: u64,
}

/// What is done with a session taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterAttach {
    /// It is followed to its end.
    Follow,
    /// It ends now.
    Stop,
    /// It is detached again: the question was whether it is there.
    DetachAgain,
}

/// Which session is cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Original {
    Id(u64),
    /// Its `unique_session_name`.
    Name(String),
}

impl Original {
    /// The one that a bug report wants.
    pub(crate) const BUGREPORT: Original = Original::Id(BUGREPORT_SESSION);
}

/// What happens to the `trace_filter` of a session that is cloned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TraceFilter {
    Applied,
    /// Bug reports want everything.
    Skipped,
}

/// Where the trace goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sink {
    /// Into this file.
    File(PathBuf),
    /// To stdout.
    Stdout,
    /// The service opens `output_path` of the config by itself.
    OpenedByService(PathBuf),
    /// Where it went before the session was detached.
    SameAsBefore,
}

/// What happens to an output file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExistingFile {
    /// It is replaced.
    Replace,
    /// The recording is refused.
    Refuse,
}

/// Which process records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Process {
    /// This one.
    Foreground,
    /// A background process; this one exits at once.
    Background,
    /// A background process; this one exits when all data sources have started.
    BackgroundOnceStarted,
}

/// A command line that cannot be followed. The exit code is 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("{0} cannot be combined with {1}")]
    Conflict(&'static str, &'static str),
    // The sentences that begin with a capital letter are upstream's, and those of `Needs`: tests and scripts look for them.
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
    #[error("--notify-fd 2 is stderr, where what goes wrong is said; pass another descriptor")]
    NotifyStderr,
}

/// Makes the plan.
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
        // Their exit code tells nobody what became of the recording.
        (strict && arguments.background, "--strict", "--background"),
        (strict && arguments.detach.is_some(), "--strict", "--detach"),
        (
            arguments.clone.is_some() && arguments.clone_by_name.is_some(),
            "--clone",
            "--clone-by-name",
        ),
        // Where the process id goes, or the trace.
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

/// A command runs beside a recording of this process, and has its standard streams.
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

/// Upstream's aborts on an empty key.
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

/// One or all recordings for a bug report.
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

/// Where traces for bug reports go: upstream's folder for temporary files.
pub(crate) fn bugreport_folder() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from)
}

/// A session that was detached: there is nothing to configure any more.
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
    })))
}

/// What of a command line gives a config.
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
    // The rest of such a config means nothing.
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
        // Whoever gives no name loses no earlier trace.
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
    })))
}

/// Sets what the command line adds to every config: who asked, a name for the trace, the attributes.
fn add_command_line_metadata(config: &mut TraceConfig, arguments: &Arguments) -> Result<(), PlanError> {
    let StatsdFlags {
        alert_id,
        config_id,
        config_uid,
        subscription_id,
    } = arguments.statsd;
    // Present even when empty, and in place of what a config says: upstream's does the same.
    *config.statsd_metadata.get_or_insert_default() = trace_config::StatsdMetadata {
        triggering_alert_id: alert_id,
        triggering_config_id: config_id,
        triggering_config_uid: config_uid,
        triggering_subscription_id: subscription_id,
        ..Default::default()
    };
    if config.trace_uuid_lsb.unwrap_or(0) == 0 && config.trace_uuid_msb.unwrap_or(0) == 0 {
        let (lsb, msb) = random_uuid();
        // So that statsd finds the trace of its subscription.
        config.trace_uuid_lsb = Some(subscription_id.filter(|id| *id != 0).unwrap_or(lsb));
        config.trace_uuid_msb = Some(msb);
    }
    let enabled = trace_config::StatsdLogging::STATSD_LOGGING_ENABLED;
    if config.statsd_logging != Some(enabled) {
        config.statsd_logging = Some(trace_config::StatsdLogging::STATSD_LOGGING_DISABLED);
    }
    // Those guardrails are for traces that are uploaded.
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

/// 128 random bits. The kernel gives them without blocking, but for the first seconds after a boot.
fn random_uuid() -> (i64, i64) {
    let mut bytes = [0; 16];
    // A failure (no getrandom in a sandbox) leaves zeros, which the service replaces by a name of its own.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let bits = u128::from_ne_bytes(bytes);
    (bits as i64, (bits >> 64) as i64)
}

/// Where the service is to write by itself.
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

/// A name for a trace that was given none: when it was begun, with a number if there is one of that second.
fn unused_name() -> PathBuf {
    let time = chrono::Local::now().format("%Y%m%d-%H%M%S");
    let first = PathBuf::from(format!("trace-{time}.pftrace"));
    let others = (2..).map(|number| PathBuf::from(format!("trace-{time}-{number}.pftrace")));
    // A link that leads nowhere is taken, too.
    let is_taken = |name: &PathBuf| name.symlink_metadata().is_ok();
    std::iter::once(first)
        .chain(others)
        .find(|name| !is_taken(name))
        .unwrap_or_default()
}

/// Of a config whose `output_path` was checked.
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
