//! The sessions of the recorder: the trace configs in a folder.
//!
//! [`run`](super::run) calls it at the start and whenever a file changes. `NAME.conf` is the session NAME, in the text form that `perfetto --txt` takes.
//! A file with a mistake is reported with its line and column, and the others count nonetheless.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use ferretto_proto::messages::trace_config::trigger_config::TriggerMode;
use ferretto_proto::messages::{Message, TraceConfig, trace_config};
use ferretto_recorder::{SessionName, Settings};

use super::journal::FLUSH_PERIOD;
use crate::config::check::refusal;
use crate::config::config_source::{ConfigSyntax, WrittenConfig, parse_config};
use crate::config::surroundings::RecordedMachine;

/// The ending of configs.
const ENDING: &str = "conf";
/// How long a session with triggers lasts at most, in any service. Then it is started again.
const LONGEST: u32 = 7 * 24 * 3600 * 1000;
/// How long producers have to write out their newest data before a seal, so that a hanging one does not hold it up. The data are taken from its
/// shared memory after that.
const FLUSH_TIMEOUT: u32 = 500;
/// How often the sequences of a crash-safe session start over, in milliseconds.
const CLEAR_PERIOD: u32 = 5000;
/// The quota has so many times the room of all rings, for their remains after a crash and for the files made of these.
const RINGS_SHARE: u64 = 3;
/// A file's share besides the contents of the buffers: the service's packets, and the fields that it adds to each packet. For small packets these are much.
const EXTRA: u64 = 2 << 20;

/// A session as its file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The encoded trace config.
    pub(super) encoded: Vec<u8>,
    /// By this name it can be cloned.
    pub(super) session_name: String,
    /// The room that its sealed file needs, in bytes.
    pub(super) room: u64,
    /// Set if it is crash-safe.
    pub(super) crash_safe: Option<CrashSafe>,
}

/// The further parts of a crash-safe session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CrashSafe {
    /// The room of its ring, in bytes.
    pub(super) ring: u64,
    /// The encoded config of a session that only hears its triggers: the data of a session that waits for triggers cannot be read.
    pub(super) ears: Option<Vec<u8>>,
}

/// The sessions in a folder, each with its config or the reason why it has none.
pub(super) type Configs = BTreeMap<String, Result<(SessionName, Config), String>>;

/// Reads all configs.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn read(folder: &Path, settings: &Settings) -> io::Result<Configs> {
    let mut configs = Configs::new();
    let mut rings = 0;
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    // In the same order each time, because the first have room for their rings.
    paths.sort();
    for path in paths {
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden || path.extension() != Some(OsStr::new(ENDING)) {
            continue;
        }
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let session = SessionName::new(&name).map_err(|error| format!("{}: {error}", path.display()));
        let config = session.and_then(|session| {
            let text =
                read_file(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            let file = path.display().to_string();
            let ring = settings.crash_safe.contains(&session).then_some(settings.ring);
            rings += ring.unwrap_or(0);
            if ring.is_some() && RINGS_SHARE.saturating_mul(rings) > settings.quota {
                return Err(format!(
                    "{file}: error: the quota has no room for its ring: raise quota in the settings to {RINGS_SHARE} times all rings, or \
                     lower ring"
                ));
            }
            Ok((session.clone(), prepare(&file, &text, &session, ring)?))
        });
        configs.insert(name, config);
    }
    Ok(configs)
}

/// Reads a file. Of anything else, a FIFO for example, there might be no end, and the recorder's loop would wait for it.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no file; write the config into one"));
    }
    std::fs::read(path)
}

/// Checks a config, and adds what a session of the recorder needs.
fn prepare(file: &str, text: &[u8], session: &SessionName, ring: Option<u64>) -> Result<Config, String> {
    let written = parse_config(file, text, ConfigSyntax::Text).map_err(|error| error.to_string())?;
    let mut config = written.config.clone();
    if let Some(reason) = unfit(&config) {
        return Err(format!("{file}: error: {reason}"));
    }
    let triggers = &config.trigger_config;
    if triggers.trigger_mode.is_some() && triggers.trigger_timeout_ms.is_none() {
        config.trigger_config.get_or_insert_default().trigger_timeout_ms = Some(LONGEST);
    }
    config.flush_timeout_ms.get_or_insert(FLUSH_TIMEOUT);
    let session_name = config
        .unique_session_name
        .get_or_insert_with(|| format!("ferretto-recorder.{session}"))
        .clone();
    let ears = ring.and_then(|_| hear(&mut config));
    if ring.is_some() {
        config.flush_period_ms.get_or_insert(FLUSH_PERIOD);
        // What the ring has lost is marked in packets, and after a mark a sequence is understood once it starts over.
        config.compression_type = None;
        let incremental_state = config.incremental_state_config.get_or_insert_default();
        incremental_state.clear_period_ms.get_or_insert(CLEAR_PERIOD);
    }
    let written = WrittenConfig {
        config,
        origin: written.origin,
    };
    if let Some(reason) = refusal(file, &written, &RecordedMachine::look()) {
        return Err(reason);
    }
    let buffers = written.config.buffers.iter();
    let buffers: u64 = buffers
        .map(|buffer| u64::from(buffer.size_kb.unwrap_or(0)) << 10)
        .sum();
    Ok(Config {
        encoded: written.config.encode_to_vec(),
        session_name,
        room: ring.unwrap_or(buffers + buffers / 2 + EXTRA),
        crash_safe: ring.map(|ring| CrashSafe { ring, ears }),
    })
}

/// Moves the triggers of a config into one of their own.
fn hear(config: &mut TraceConfig) -> Option<Vec<u8>> {
    let trigger_config = std::mem::take(&mut config.trigger_config);
    let ears = TraceConfig {
        buffers: vec![trace_config::BufferConfig {
            size_kb: Some(4),
            ..Default::default()
        }],
        unique_session_name: config
            .unique_session_name
            .as_ref()
            .map(|name| format!("{name}.triggers")),
        trigger_config,
        ..Default::default()
    };
    ears.trigger_config.is_set().then(|| ears.encode_to_vec())
}

/// Returns the reason why a config is not one of a session that always runs.
fn unfit(config: &TraceConfig) -> Option<&'static str> {
    if config.write_into_file == Some(true) || config.output_path.is_some() {
        return Some("the recorder seals ring buffers; remove write_into_file and output_path");
    }
    if config.duration_ms.unwrap_or(0) > 0 {
        return Some("a session of the recorder has no end; remove duration_ms");
    }
    if !config.activate_triggers.is_empty() {
        return Some("activate_triggers records nothing; use trigger_perfetto");
    }
    // Such is a file that is empty because a disk was full, or its editor is not done with it.
    if config.data_sources.is_empty() {
        return Some("it records nothing; name the data sources");
    }
    match config.trigger_config.trigger_mode {
        None | Some(TriggerMode::UNSPECIFIED | TriggerMode::CLONE_SNAPSHOT) => None,
        Some(_) if config.trigger_config.use_clone_snapshot_if_available == Some(true) => None,
        Some(_) => Some("this trigger_mode starts or ends a session; the recorder needs CLONE_SNAPSHOT"),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FileType, Mode};

    use super::*;

    fn prepared(text: &str) -> Result<Config, String> {
        prepare(
            "demo.conf",
            text.as_bytes(),
            &SessionName::new("demo").unwrap(),
            None,
        )
    }

    #[test]
    fn a_config_gets_what_its_session_needs_and_keeps_what_it_says() {
        let usual = "buffers { size_kb: 4096 } data_sources { config { name: \"linux.sys_stats\" } }";
        let config = prepared(&format!(
            "{usual} trigger_config {{ trigger_mode: CLONE_SNAPSHOT triggers {{ name: \"t\" }} }}"
        ));
        let config = config.unwrap();
        assert_eq!(config.session_name, "ferretto-recorder.demo");
        assert!(config.room > 6 << 20, "{}", config.room);
        let decoded = TraceConfig::decode_from_slice(&config.encoded).unwrap();
        assert_eq!(decoded.trigger_config.trigger_timeout_ms, Some(LONGEST));
        assert_eq!(decoded.flush_timeout_ms, Some(FLUSH_TIMEOUT));

        let config = prepared(&format!(
            "{usual} unique_session_name: \"own\" flush_timeout_ms: 7"
        ))
        .unwrap();
        assert_eq!(config.session_name, "own");
        let decoded = TraceConfig::decode_from_slice(&config.encoded).unwrap();
        assert_eq!(decoded.flush_timeout_ms, Some(7));
        assert!(!decoded.trigger_config.is_set());
    }

    #[test]
    fn a_crash_safe_session_hears_its_triggers_by_another_one() {
        let demo = SessionName::new("demo").unwrap();
        let text = "buffers { size_kb: 64 } data_sources { config { name: \"x\" } } compression_type: COMPRESSION_TYPE_DEFLATE";
        let triggers = "trigger_config { trigger_mode: CLONE_SNAPSHOT triggers { name: \"t\" } }";
        let config = prepare(
            "demo.conf",
            format!("{text} {triggers}").as_bytes(),
            &demo,
            Some(999),
        )
        .unwrap();
        let decoded = TraceConfig::decode_from_slice(&config.encoded).unwrap();
        assert!(!decoded.trigger_config.is_set());
        assert_eq!(decoded.flush_period_ms, Some(FLUSH_PERIOD));
        assert_eq!(decoded.compression_type, None);
        assert_eq!(
            decoded.incremental_state_config.clear_period_ms,
            Some(CLEAR_PERIOD)
        );
        let crash_safe = config.crash_safe.unwrap();
        assert_eq!((config.room, crash_safe.ring), (999, 999));
        let ears = TraceConfig::decode_from_slice(&crash_safe.ears.unwrap()).unwrap();
        assert_eq!(ears.trigger_config.triggers.len(), 1);
        assert_eq!(ears.data_sources.len(), 0);
        let config = prepare("demo.conf", text.as_bytes(), &demo, Some(999)).unwrap();
        assert_eq!(config.crash_safe.unwrap().ears, None);
    }

    #[test]
    fn rings_take_a_third_of_the_quota_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c"];
        for name in names {
            let text = "buffers { size_kb: 64 } data_sources { config { name: \"x\" } }";
            std::fs::write(folder.path().join(format!("{name}.conf")), text).unwrap();
        }
        let settings = Settings {
            quota: 600,
            ring: 100,
            crash_safe: names.map(|name| SessionName::new(name).unwrap()).to_vec(),
            ..Settings::default()
        };
        let good = |settings: &Settings| {
            read(folder.path(), settings)
                .unwrap()
                .values()
                .filter(|it| it.is_ok())
                .count()
        };
        assert_eq!(good(&settings), 2);
        assert_eq!(
            good(&Settings {
                quota: 900,
                ..settings
            }),
            3
        );
    }

    #[test]
    fn the_example_can_be_recorded() {
        prepared(include_str!("../../../../contrib/recorder/sched.conf")).unwrap();
    }

    #[test]
    fn mistakes_and_sessions_that_end_are_refused() {
        for (text, words) in [
            ("bufers {}", "demo.conf:1:1: error:"),
            ("", "it records nothing"),
            ("buffers { size_kb: 1 }", "it records nothing"),
            ("buffers { size_kb: 1 } duration_ms: 5", "duration_ms"),
            ("buffers { size_kb: 1 } write_into_file: true", "write_into_file"),
            (
                "buffers { size_kb: 1 } data_sources {} trigger_config { trigger_mode: STOP_TRACING triggers { name: \"t\" } }",
                "CLONE_SNAPSHOT",
            ),
            (
                "buffers { size_kb: 1 } data_sources { config { name: \"x\" target_buffer: 3 } }",
                "demo.conf: error: the service would refuse this config",
            ),
        ] {
            let error = prepared(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn only_visible_files_with_the_ending_are_sessions() {
        let folder = tempfile::tempdir().unwrap();
        let good = "buffers { size_kb: 64 } data_sources { config { name: \"x\" } }";
        for (name, text) in [
            ("b.conf", "nonsense"),
            ("a.conf", good),
            (".c.conf", good),
            ("d.conf~", good),
            ("ü.conf", good),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        // Whoever opened it would wait for a writer.
        let fifo = folder.path().join("fifo.conf");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("zeros.conf")).unwrap();
        let configs = read(folder.path(), &Settings::default()).unwrap();
        let found: Vec<_> = configs
            .iter()
            .map(|(name, config)| (name.as_str(), config.is_ok()))
            .collect();
        let good = [("a", true)];
        let bad = ["b", "fifo", "zeros", "ü"].map(|name| (name, false));
        assert_eq!(found, [&good[..], &bad].concat());
    }
}
