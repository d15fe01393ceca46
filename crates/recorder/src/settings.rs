//! The settings of the recorder, `recorder.toml`.
//!
//! The command line reads the file and passes its text. A mistake is reported with its line and column, and nothing of the file counts then. Sizes and
//! times have units, because nobody remembers which unit a bare number has.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::lines::Pattern;
use crate::name::{Reason, SessionName};

/// A mistake in the settings, with its place.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(#[from] toml::de::Error);

/// The settings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The folder with the trace configs of the sessions.
    pub sessions: PathBuf,
    /// The folder of sealed files.
    pub folder: PathBuf,
    /// The socket for `ferretto recorder seal`.
    pub socket: PathBuf,
    /// The most bytes that sealed files may have together.
    #[serde(deserialize_with = "size")]
    pub quota: u64,
    /// The bytes of the disk that are left to others.
    #[serde(deserialize_with = "size")]
    pub leave_free: u64,
    /// How long sealed files are kept; as long as the quota allows, if not given.
    #[serde(deserialize_with = "optional_time")]
    pub keep: Option<Duration>,
    /// How many files a session gets for one reason at once.
    pub burst: u32,
    /// In the long run a session gets one file for one reason in this time.
    #[serde(deserialize_with = "time")]
    pub period: Duration,
    /// The sessions whose data go to the disk all the time.
    #[serde(deserialize_with = "names")]
    pub crash_safe: Vec<SessionName>,
    /// The room on the disk for the data of each crash-safe session.
    #[serde(deserialize_with = "size")]
    pub ring: u64,
    /// The loopback port of the metrics; there are none if not given.
    pub metrics: Option<u16>,
    /// Where sealed files are copied to. The uploader is another program; the recorder
    /// only looks at its state, for files that were uploaded make room first.
    pub upload: Option<Upload>,
    /// When sessions are sealed by themselves.
    #[serde(rename = "trigger")]
    pub conditions: Vec<Condition>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sessions: "/etc/ferretto/recorder.d".into(),
            folder: "/var/lib/ferretto/recorder".into(),
            socket: "/run/ferretto-recorder/socket".into(),
            quota: 2 << 30,
            leave_free: 1 << 30,
            keep: None,
            burst: 3,
            period: Duration::from_secs(600),
            crash_safe: Vec::new(),
            ring: 128 << 20,
            metrics: None,
            upload: None,
            conditions: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads them from the text of the file.
    ///
    /// # Errors
    /// If there is a mistake.
    pub fn parse(text: &str) -> Result<Settings, SettingsError> {
        Ok(toml::from_str(text)?)
    }
}

/// Where sealed files are copied to, and how.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upload {
    /// A bucket or a folder: `s3://`, `gs://`, `az://`, `file://`.
    pub url: String,
    /// The name of this machine, under which its files are; that of the host if not given.
    pub machine: Option<String>,
    /// The most bytes that are sent in a second, in the long run.
    #[serde(default, deserialize_with = "optional_size")]
    pub max_bytes_per_second: Option<u64>,
    /// The folder with the uploader's state.
    #[serde(default = "usual_upload_state")]
    pub state: PathBuf,
}

fn usual_upload_state() -> PathBuf {
    "/var/lib/ferretto/upload".into()
}

/// A state of the machine in which sessions are sealed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Condition {
    /// The reason in the names of files.
    pub name: Reason,
    /// The sessions to seal; empty for all.
    pub sessions: Vec<SessionName>,
    /// The state.
    pub kind: Kind,
}

/// A state of the machine, or an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Tasks have waited for a resource for more than this share of a time: `/proc/pressure`.
    Pressure {
        /// `cpu`, `memory` or `io`.
        resource: &'static str,
        /// Whether all tasks, and not only some, have to wait.
        line: &'static str,
        /// From 0 to 1.
        above: f64,
        /// The time.
        window: Duration,
    },
    /// Less than this share of the memory is available.
    MemoryBelow(f64),
    /// The load of the last minute, for each processor, is above this.
    LoadAbove(f64),
    /// This file has not been touched for so long.
    Watchdog {
        /// The file.
        file: PathBuf,
        /// How long.
        within: Duration,
    },
    /// The journal has such a line.
    Line {
        /// The text that the message has in it.
        message: Pattern,
        /// The unit that logs it, as a pattern with `*` and `?`.
        unit: Option<String>,
        /// The identifier of the program that logs it, likewise.
        identifier: Option<String>,
    },
    /// A unit of systemd that this pattern with `*` and `?` names has failed.
    UnitFailed(String),
}

impl Kind {
    /// Whether it is an entry of the journal that meets it, and not a state of the machine.
    pub(crate) fn is_of_journal(&self) -> bool {
        matches!(self, Kind::Line { .. } | Kind::UnitFailed(_))
    }
}

/// A condition as it is in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    #[serde(default)]
    sessions: Vec<String>,
    pressure: Option<String>,
    stalled: Option<String>,
    above: Option<String>,
    window: Option<String>,
    memory_below: Option<String>,
    load_above: Option<f64>,
    watchdog: Option<PathBuf>,
    within: Option<String>,
    journal: Option<String>,
    unit: Option<String>,
    identifier: Option<String>,
    unit_failed: Option<String>,
}

impl TryFrom<Written> for Condition {
    type Error = String;

    fn try_from(mut written: Written) -> Result<Condition, String> {
        let name = Reason::new(&written.name);
        if name.as_str() != written.name {
            return Err(format!(
                "the name {:?} of a trigger goes into names of files, so it may have letters, digits, dots and underscores only",
                written.name
            ));
        }
        let sessions = std::mem::take(&mut written.sessions);
        let sessions: Result<_, _> = sessions.iter().map(|name| SessionName::new(name)).collect();
        let kind = written.kind()?;
        let left = [
            ("pressure", written.pressure.is_some()),
            ("stalled", written.stalled.is_some()),
            ("above", written.above.is_some()),
            ("window", written.window.is_some()),
            ("memory_below", written.memory_below.is_some()),
            ("load_above", written.load_above.is_some()),
            ("watchdog", written.watchdog.is_some()),
            ("within", written.within.is_some()),
            ("journal", written.journal.is_some()),
            ("unit", written.unit.is_some()),
            ("identifier", written.identifier.is_some()),
            ("unit_failed", written.unit_failed.is_some()),
        ];
        if let Some((field, _)) = left.into_iter().find(|(_, is_left)| *is_left) {
            return Err(format!(
                "{field} does not go together with the other fields of this trigger"
            ));
        }
        Ok(Condition {
            name,
            sessions: sessions.map_err(|error| error.to_string())?,
            kind,
        })
    }
}

impl Written {
    /// Takes the fields of the kind.
    fn kind(&mut self) -> Result<Kind, String> {
        if let Some(resource) = self.pressure.take() {
            let resource = ["cpu", "memory", "io"]
                .into_iter()
                .find(|known| *known == resource);
            let stalled = self.stalled.take().unwrap_or_else(|| "some".to_owned());
            let line = ["some", "full"].into_iter().find(|known| *known == stalled);
            let above = self
                .above
                .take()
                .ok_or("pressure needs above, such as \"20 %\"")?;
            let window = self
                .window
                .take()
                .map_or(Ok(Duration::from_secs(1)), |text| parse_time(&text))?;
            if window.is_zero() || window > Duration::from_secs(600) {
                return Err("window has to be above 0 and at most 10 min".to_owned());
            }
            return Ok(Kind::Pressure {
                resource: resource.ok_or("pressure is \"cpu\", \"memory\" or \"io\"")?,
                line: line.ok_or("stalled is \"some\" or \"full\"")?,
                above: parse_share(&above)?,
                window,
            });
        }
        if let Some(share) = self.memory_below.take() {
            return Ok(Kind::MemoryBelow(parse_share(&share)?));
        }
        if let Some(load) = self.load_above.take() {
            return Ok(Kind::LoadAbove(load));
        }
        if let Some(file) = self.watchdog.take() {
            let within = self
                .within
                .take()
                .ok_or("watchdog needs within, such as \"30 s\"")?;
            let within = parse_time(&within)?;
            return Ok(Kind::Watchdog { file, within });
        }
        if let Some(text) = self.journal.take() {
            let message = Pattern::new(&text).map_err(|error| {
                format!("journal has to be a regular expression, and {text:?} is none: {error}")
            })?;
            return Ok(Kind::Line {
                message,
                unit: self.unit.take(),
                identifier: self.identifier.take(),
            });
        }
        if let Some(unit) = self.unit_failed.take() {
            return Ok(Kind::UnitFailed(unit));
        }
        Err(
            "a trigger needs one of pressure, memory_below, load_above, watchdog, journal and unit_failed"
                .to_owned(),
        )
    }
}

fn names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SessionName>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let names: Result<_, _> = names.iter().map(|name| SessionName::new(name)).collect();
    names.map_err(serde::de::Error::custom)
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    parse_size(&text).map_err(serde::de::Error::custom)
}

fn optional_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    size(from).map(Some)
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_time(&text).map_err(serde::de::Error::custom)
}

fn optional_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    time(from).map(Some)
}

/// Splits a number from its unit, and looks the unit up.
fn quantity(text: &str, units: &[(&str, u64)], what: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = units.iter().find(|(name, _)| *name == unit.trim());
    let value = number.parse::<u64>().ok().zip(unit);
    value
        .and_then(|(number, (_, unit))| number.checked_mul(*unit))
        .ok_or_else(|| {
            let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
            format!(
                "{text:?} is no {what}: write a whole number and one of the units {}",
                names.join(", ")
            )
        })
}

fn parse_size(text: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("B", 1),
    ];
    quantity(text, &units, "size")
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("min", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    quantity(text, &units, "time").map(Duration::from_millis)
}

fn parse_share(text: &str) -> Result<f64, String> {
    let percent = text
        .strip_suffix('%')
        .and_then(|number| number.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!(
            "{text:?} is no share: write a number from 0 to 100 and %"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_has_its_usual_value_which_the_example_shows() {
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
        let example = include_str!("../../../contrib/recorder/recorder.toml");
        assert_eq!(Settings::parse(example).unwrap(), Settings::default());
        // The settings that are commented out are right as well.
        let settings = |line: &str| {
            let line = line.strip_prefix("# ").unwrap_or(line);
            let is_setting = line.starts_with('[')
                || line
                    .split_once(" = ")
                    .is_some_and(|(name, _)| !name.contains(' '));
            is_setting.then(|| line.to_owned())
        };
        let all: Vec<String> = example.lines().filter_map(settings).collect();
        let all = Settings::parse(&all.join("\n")).unwrap();
        assert_eq!((all.conditions.len(), all.keep.is_some()), (6, true));
        let upload = all.upload.unwrap();
        assert_eq!(upload.state, usual_upload_state());
        assert!(upload.machine.is_some() && upload.max_bytes_per_second.is_some());
    }

    #[test]
    fn every_setting_is_read() {
        let text = r#"
            sessions = "/a"
            folder = "/b"
            socket = "/c"
            quota = "10 GiB"
            leave_free = "512MiB"
            keep = "14 d"
            burst = 5
            period = "90 s"
            crash_safe = ["io"]
            ring = "64 MiB"
            metrics = 9464

            [upload]
            url = "s3://traces/fleet"
            machine = "web-1"
            max_bytes_per_second = "2 MiB"
            state = "/d"

            [[trigger]]
            name = "pressure"
            sessions = ["sched", "io"]
            pressure = "memory"
            stalled = "full"
            above = "12.5 %"
            window = "500 ms"

            [[trigger]]
            name = "low"
            memory_below = "5%"

            [[trigger]]
            name = "load"
            load_above = 2.5

            [[trigger]]
            name = "hung"
            watchdog = "/run/alive"
            within = "30 s"

            [[trigger]]
            name = "oom"
            journal = "Out of memory"
            unit = "app@*.service"
            identifier = "kernel"

            [[trigger]]
            name = "failed"
            unit_failed = "*"
        "#;
        let condition = |name, sessions: &[&str], kind| Condition {
            name: Reason::new(name),
            sessions: sessions
                .iter()
                .map(|name| SessionName::new(name).unwrap())
                .collect(),
            kind,
        };
        let pressure = Kind::Pressure {
            resource: "memory",
            line: "full",
            above: 0.125,
            window: Duration::from_millis(500),
        };
        let watchdog = Kind::Watchdog {
            file: "/run/alive".into(),
            within: Duration::from_secs(30),
        };
        let line = Kind::Line {
            message: Pattern::new("Out of memory").unwrap(),
            unit: Some("app@*.service".to_owned()),
            identifier: Some("kernel".to_owned()),
        };
        let expected = Settings {
            sessions: "/a".into(),
            folder: "/b".into(),
            socket: "/c".into(),
            quota: 10 << 30,
            leave_free: 512 << 20,
            keep: Some(Duration::from_secs(14 * 86_400)),
            burst: 5,
            period: Duration::from_secs(90),
            crash_safe: vec![SessionName::new("io").unwrap()],
            ring: 64 << 20,
            metrics: Some(9464),
            upload: Some(Upload {
                url: "s3://traces/fleet".to_owned(),
                machine: Some("web-1".to_owned()),
                max_bytes_per_second: Some(2 << 20),
                state: "/d".into(),
            }),
            conditions: vec![
                condition("pressure", &["sched", "io"], pressure),
                condition("low", &[], Kind::MemoryBelow(0.05)),
                condition("load", &[], Kind::LoadAbove(2.5)),
                condition("hung", &[], watchdog),
                condition("oom", &[], line),
                condition("failed", &[], Kind::UnitFailed("*".to_owned())),
            ],
        };
        assert_eq!(Settings::parse(text).unwrap(), expected);
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_column() {
        for (text, place, words) in [
            ("\nquota = \"5 parsecs\"", "line 2, column 9", "5 parsecs"),
            ("kwota = 5", "line 1, column 1", "kwota"),
            ("burst = -1", "line 1, column 9", "-1"),
            (
                "[[trigger]]\nname = \"a\"",
                "line 1, column 1",
                "needs one of pressure",
            ),
            (
                "[[trigger]]\nname = \"a/b\"\nload_above = 1.0",
                "line 1, column 1",
                "a/b",
            ),
            (
                "[[trigger]]\nname = \"a\"\nload_above = 1.0\nwithin = \"1 s\"",
                "line 1, column 1",
                "within does not go",
            ),
            (
                "[[trigger]]\nname = \"a\"\npressure = \"disk\"\nabove = \"1 %\"",
                "line 1",
                "\"io\"",
            ),
            (
                "[[trigger]]\nname = \"a\"\njournal = \"(\"",
                "line 1, column 1",
                "unclosed group",
            ),
            (
                "[[trigger]]\nname = \"a\"\nunit_failed = \"a\"\nunit = \"b\"",
                "line 1, column 1",
                "unit does not go",
            ),
            (
                "[[trigger]]\nname = \"a\"\nmemory_below = \"101 %\"",
                "line 1",
                "101 %",
            ),
        ] {
            let error = Settings::parse(text).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains(words), "{text}\n{error}");
        }
    }
}
