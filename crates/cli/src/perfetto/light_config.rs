//! The config that the light flags (`-t`, `-b`, `-s`, `-a` and event names) stand for.
//!
//! [`plan`](super::plan) calls it when there is no `-c`. The result has the same fields as upstream's `config.cc` makes from the same words: the same
//! sources in the same order, so that scripts record the same data with either program. Where upstream's integers silently wrap around (`-t 60d` in
//! milliseconds, `-b 9999999gb`), this module refuses the value.

use ferretto_proto::messages::{
    DataSourceConfig, FtraceConfig, MessageField, ProcessStatsConfig, SysStatsConfig, TraceConfig,
    trace_config,
};
use ferretto_proto::text;

const DEFAULT_TIME: &str = "10s";
const DEFAULT_BUFFER: &str = "32mb";

/// The period of flushing the producers' data in every light recording.
const FLUSH_PERIOD_MS: u32 = 30_000;
const DISKSTAT_PERIOD_MS: u32 = 1_000;
const OVERVIEW_PERIOD_MS: u32 = 1_000;

/// Events that say when threads ran, and which processes and threads they started.
pub(crate) const SCHEDULING: [&str; 7] = [
    "sched/sched_switch",
    "sched/sched_waking",
    "sched/sched_process_exec",
    "sched/sched_process_fork",
    "sched/sched_process_exit",
    "task/task_newtask",
    "task/task_rename",
];

/// Multipliers to milliseconds.
const TIME_UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
/// Multipliers to KiB.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("kb", 1),
    ("mb", 1 << 10),
    ("gb", 1 << 20),
    ("k", 1),
    ("m", 1 << 10),
    ("g", 1 << 20),
];

/// The light flags as typed. `None` stands for a missing flag, which has a default; an empty string is zero.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct LightFlags {
    /// `-t`: how long to record; 0 is until stopped. 10 s by default.
    pub(crate) time: Option<String>,
    /// `-b`: size of the one ring buffer. 32 MiB by default.
    pub(crate) buffer: Option<String>,
    /// `-s`: largest size of the file, which the service then writes while recording.
    pub(crate) size: Option<String>,
    /// `-a`: apps whose atrace events are requested.
    pub(crate) apps: Vec<String>,
    /// Words by themselves: ftrace events (`group/name`) and atrace categories.
    pub(crate) events: Vec<String>,
    /// `-e`: events in the spelling of other tools.
    pub(crate) event_flags: Vec<String>,
}

/// The meaning of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// An event of the kernel, for `ftrace_events`.
    Event(String),
    /// For `atrace_categories`.
    Category(String),
    /// For `syscall_events`.
    SystemCall(String),
}

impl Wanted {
    /// Interprets a word as upstream's command line does.
    pub(crate) fn of_perfetto(word: &str) -> Wanted {
        match word.contains('/') {
            true => Wanted::Event(word.to_owned()),
            false => Wanted::Category(word.to_owned()),
        }
    }
}

impl LightFlags {
    /// Whether any light flag was given.
    pub(crate) fn any(&self) -> bool {
        *self != LightFlags::default()
    }
}

/// A light flag whose value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value:?} is invalid: {problem}")]
pub(crate) struct LightFlagError {
    flag: &'static str,
    value: String,
    problem: QuantityError,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum QuantityError {
    #[error("it must start with a whole number, like {example}")]
    NoNumber { example: &'static str },
    #[error("the number needs a unit, like {example}")]
    NoUnit { example: &'static str },
    #[error("{unit:?} is none of the units {known}")]
    UnknownUnit { unit: String, known: String },
    #[error("at most {most} can be asked for")]
    TooLarge { most: &'static str },
}

/// Reads the length of a recording, in ms; 0 is until stopped. `flag` is named in errors.
pub(crate) fn duration_ms(flag: &'static str, value: &str) -> Result<u32, LightFlagError> {
    let most = u64::from(u32::MAX);
    let duration = quantity(flag, value, TIME_UNITS, "5s", most, "1193h (49 days)")?;
    Ok(duration as u32)
}

/// Reads a number of bytes, which may have a unit. `flag` is named in errors.
pub(crate) fn size_bytes(flag: &'static str, value: &str) -> Result<u64, LightFlagError> {
    let is_bare = !value.is_empty() && value.bytes().all(|digit| digit.is_ascii_digit());
    let value = value.to_ascii_lowercase();
    let with_unit = if is_bare { format!("{value}b") } else { value };
    quantity(
        flag,
        &with_unit,
        text::SIZE_UNITS,
        "64k",
        u64::MAX,
        "16777215 TiB",
    )
}

/// Makes the config for these flags and the meanings of their words.
pub(crate) fn light_config(flags: &LightFlags, wanted: &[Wanted]) -> Result<TraceConfig, LightFlagError> {
    let time = flags.time.as_deref().unwrap_or(DEFAULT_TIME);
    let duration_ms = duration_ms("--time", time)?;
    let buffer = flags.buffer.as_deref().unwrap_or(DEFAULT_BUFFER);
    let buffer_kb = quantity(
        "--buffer",
        buffer,
        SIZE_UNITS,
        "32mb",
        u64::from(u32::MAX),
        "4095gb",
    )?;
    let size = flags.size.as_deref().unwrap_or_default();
    let file_kb = quantity("--size", size, SIZE_UNITS, "1gb", u64::MAX >> 10, "17179869183gb")?;

    let mut data_sources = Vec::new();
    let mut ftrace = FtraceConfig {
        atrace_apps: flags.apps.clone(),
        ..Default::default()
    };
    let mut hypervisor = None;
    for wanted in wanted {
        let category = match wanted {
            Wanted::Event(name) => {
                ftrace.ftrace_events.push(name.clone());
                continue;
            }
            Wanted::SystemCall(name) => {
                ftrace.syscall_events.push(name.clone());
                continue;
            }
            Wanted::Category(name) => name.as_str(),
        };
        match category {
            name @ ("hyp" | "hypervisor") => hypervisor = Some(name),
            name => ftrace.atrace_categories.push(name.to_owned()),
        }
        // These two categories also stand for a data source.
        match category {
            "gfx" => data_sources.push(named("android.surfaceflinger.frametimeline")),
            "disk" => data_sources.push(DataSourceConfig {
                sys_stats_config: MessageField::some(SysStatsConfig {
                    diskstat_period_ms: Some(DISKSTAT_PERIOD_MS),
                    ..Default::default()
                }),
                ..named("linux.sys_stats")
            }),
            _ => {}
        }
    }
    if !(ftrace.ftrace_events.is_empty()
        && ftrace.syscall_events.is_empty()
        && ftrace.atrace_categories.is_empty()
        && ftrace.atrace_apps.is_empty())
    {
        ftrace.symbolize_ksyms = Some(true);
        data_sources.push(DataSourceConfig {
            ftrace_config: MessageField::some(ftrace),
            ..named("linux.ftrace")
        });
    }
    if let Some(instance) = hypervisor {
        // The hypervisor's events have a tracefs instance of their own, with the name of the category.
        let ftrace = FtraceConfig {
            instance_name: Some(instance.to_owned()),
            ftrace_events: vec![format!("{instance}/*")],
            ..Default::default()
        };
        data_sources.push(DataSourceConfig {
            ftrace_config: MessageField::some(ftrace),
            ..named("linux.ftrace")
        });
    }
    for name in ["linux.process_stats", "linux.system_info"] {
        data_sources.push(DataSourceConfig {
            target_buffer: Some(0),
            ..named(name)
        });
    }

    Ok(TraceConfig {
        duration_ms: Some(duration_ms),
        max_file_size_bytes: Some(file_kb * 1024),
        flush_period_ms: Some(FLUSH_PERIOD_MS),
        write_into_file: (file_kb > 0).then_some(true),
        buffers: vec![trace_config::BufferConfig {
            size_kb: Some(buffer_kb as u32),
            ..Default::default()
        }],
        data_sources: data_sources
            .into_iter()
            .map(|config| trace_config::DataSource {
                config: MessageField::some(config),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    })
}

/// Adds the data sources that `ferretto` adds to those of the flags: all processes with their threads, and memory and CPU times of the machine. They
/// cost little, give every slice a name, and work even if kernel events may not be recorded.
pub(crate) fn add_overview(config: &mut TraceConfig) {
    let overview = [
        DataSourceConfig {
            process_stats_config: MessageField::some(ProcessStatsConfig {
                scan_all_processes_on_start: Some(true),
                record_thread_names: Some(true),
                proc_stats_poll_ms: Some(OVERVIEW_PERIOD_MS),
                ..Default::default()
            }),
            ..named("linux.process_stats")
        },
        DataSourceConfig {
            sys_stats_config: MessageField::some(SysStatsConfig {
                meminfo_period_ms: Some(OVERVIEW_PERIOD_MS),
                stat_period_ms: Some(OVERVIEW_PERIOD_MS),
                ..Default::default()
            }),
            ..named("linux.sys_stats")
        },
    ];
    // There must be only one process_stats.
    config
        .data_sources
        .retain(|source| source.config.name.as_deref() != Some("linux.process_stats"));
    config
        .data_sources
        .extend(overview.map(|source| trace_config::DataSource {
            config: MessageField::some(source),
            ..Default::default()
        }));
}

/// Returns the config for `-c :test`: two seconds of scheduling and power events.
pub(crate) fn test_config() -> Result<TraceConfig, LightFlagError> {
    let events = [
        "sched/sched_switch",
        "power/cpu_idle",
        "power/cpu_frequency",
        "power/gpu_frequency",
    ];
    let flags = LightFlags {
        time: Some("2s".to_owned()),
        ..Default::default()
    };
    light_config(&flags, &events.map(Wanted::of_perfetto))
}

fn named(name: &str) -> DataSourceConfig {
    DataSourceConfig {
        name: Some(name.to_owned()),
        ..Default::default()
    }
}

/// Parses `value`: empty or `0`, or a number followed directly by its unit and nothing else. It accepts the prefixes that upstream's `strtoull`
/// skips, except a minus, for which that wraps around.
fn quantity(
    flag: &'static str,
    value: &str,
    units: &[(&str, u64)],
    example: &'static str,
    max: u64,
    most: &'static str,
) -> Result<u64, LightFlagError> {
    if value.is_empty() || value == "0" {
        return Ok(0);
    }
    let trimmed = value.trim_ascii_start();
    let unsigned = trimmed.strip_prefix('+').unwrap_or(trimmed);
    let digits = unsigned
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at(digits);
    let parsed = if number.is_empty() {
        Err(QuantityError::NoNumber { example })
    } else if unit.is_empty() {
        Err(QuantityError::NoUnit { example })
    } else if let Some((_, multiplier)) = units.iter().find(|(name, _)| *name == unit) {
        let total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*multiplier));
        total
            .filter(|total| *total <= max)
            .ok_or(QuantityError::TooLarge { most })
    } else {
        let known = units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        Err(QuantityError::UnknownUnit {
            unit: unit.to_owned(),
            known,
        })
    };
    parsed.map_err(|problem| LightFlagError {
        flag,
        value: value.to_owned(),
        problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(time: &str, buffer: &str, size: &str) -> LightFlags {
        let given = |value: &str| Some(value.to_owned());
        LightFlags {
            time: given(time),
            buffer: given(buffer),
            size: given(size),
            ..Default::default()
        }
    }

    fn with_events(events: &[&str]) -> TraceConfig {
        let wanted: Vec<Wanted> = events.iter().map(|event| Wanted::of_perfetto(event)).collect();
        light_config(&LightFlags::default(), &wanted).unwrap()
    }

    fn sources(config: &TraceConfig) -> Vec<&str> {
        config
            .data_sources
            .iter()
            .map(|source| source.config.name.as_deref().unwrap())
            .collect()
    }

    #[test]
    fn without_flags_it_is_ten_seconds_in_a_ring_buffer_of_32_mib() {
        let config = light_config(&LightFlags::default(), &[]).unwrap();
        assert_eq!(config.duration_ms, Some(10_000));
        assert_eq!(config.buffers[0].size_kb, Some(32 * 1024));
        assert_eq!(config.flush_period_ms, Some(30_000));
        assert_eq!(config.max_file_size_bytes, Some(0));
        assert_eq!(config.write_into_file, None);
        assert_eq!(sources(&config), ["linux.process_stats", "linux.system_info"]);
        assert!(
            config
                .data_sources
                .iter()
                .all(|source| source.config.target_buffer == Some(0))
        );
    }

    #[test]
    fn times_and_sizes_take_the_units_of_upstream() {
        for (typed, ms) in [
            ("2ms", 2),
            ("100s", 100_000),
            ("2m", 120_000),
            ("2h", 7_200_000),
            (" \t+2s", 2_000),
            ("0", 0),
            ("", 0),
        ] {
            assert_eq!(
                light_config(&flags(typed, "", ""), &[]).unwrap().duration_ms,
                Some(ms),
                "{typed:?}"
            );
        }
        let sizes = [
            ("2kb", 2),
            ("2k", 2),
            ("2mb", 2 << 10),
            ("2m", 2 << 10),
            ("2gb", 2 << 20),
            ("2g", 2 << 20),
        ];
        for (typed, kb) in sizes {
            let config = light_config(&flags("1s", typed, typed), &[]).unwrap();
            assert_eq!(config.buffers[0].size_kb, Some(kb), "{typed:?}");
            assert_eq!(
                config.max_file_size_bytes,
                Some(u64::from(kb) * 1024),
                "{typed:?}"
            );
            assert_eq!(config.write_into_file, Some(true), "{typed:?}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_flag_and_the_reason() {
        let problem = |flags: LightFlags| light_config(&flags, &[]).unwrap_err().to_string();
        assert!(
            problem(flags("2mb", "", ""))
                .contains("--time \"2mb\" is invalid: \"mb\" is none of the units ms")
        );
        assert!(problem(flags("", "2", "")).contains("--buffer \"2\" is invalid: the number needs a unit"));
        assert!(problem(flags("", "kb", "")).contains("must start with a whole number"));
        assert!(problem(flags("", "-1kb", "")).contains("must start with a whole number"));
        assert!(problem(flags("", "2gb ", "")).contains("\"gb \" is none of the units"));
        assert!(problem(flags("", "", "2s")).contains("--size"));
        assert!(problem(flags("1200h", "", "")).contains("at most 1193h"));
        assert!(problem(flags("99999999999999999999h", "", "")).contains("at most 1193h"));
        assert!(problem(flags("", "4096gb", "")).contains("at most 4095gb"));
        assert!(problem(flags("", "", "18446744073709551615kb")).contains("at most 17179869183gb"));
    }

    #[test]
    fn events_and_categories_share_one_ftrace_source() {
        let mut flags = flags("1h", "100mb", "1gb");
        flags.apps = vec!["com.android.chrome".to_owned()];
        let config = light_config(&flags, &["sw", "sched/sched_switch"].map(Wanted::of_perfetto)).unwrap();
        assert_eq!(
            sources(&config),
            ["linux.ftrace", "linux.process_stats", "linux.system_info"]
        );
        let ftrace = &config.data_sources[0].config.ftrace_config;
        assert_eq!(ftrace.ftrace_events, ["sched/sched_switch"]);
        assert_eq!(ftrace.atrace_categories, ["sw"]);
        assert_eq!(ftrace.atrace_apps, ["com.android.chrome"]);
        assert_eq!(ftrace.symbolize_ksyms, Some(true));
        assert_eq!(config.data_sources[0].config.target_buffer, None);
    }

    #[test]
    fn graphics_and_disk_bring_their_own_sources_first() {
        let config = with_events(&["disk", "gfx"]);
        let expected = [
            "linux.sys_stats",
            "android.surfaceflinger.frametimeline",
            "linux.ftrace",
            "linux.process_stats",
            "linux.system_info",
        ];
        assert_eq!(sources(&config), expected);
        assert_eq!(
            config.data_sources[0].config.sys_stats_config.diskstat_period_ms,
            Some(1000)
        );
        assert_eq!(
            config.data_sources[2].config.ftrace_config.atrace_categories,
            ["disk", "gfx"]
        );
    }

    #[test]
    fn hypervisor_events_come_from_an_instance_of_their_own() {
        for name in ["hyp", "hypervisor"] {
            let alone = with_events(&[name]);
            assert_eq!(
                sources(&alone),
                ["linux.ftrace", "linux.process_stats", "linux.system_info"]
            );
            let ftrace = &alone.data_sources[0].config.ftrace_config;
            assert_eq!(ftrace.instance_name.as_deref(), Some(name));
            assert_eq!(ftrace.ftrace_events, [format!("{name}/*")]);
            assert_eq!(ftrace.symbolize_ksyms, None);
        }
        let both = with_events(&["hyp", "sched/sched_switch"]);
        assert_eq!(
            both.data_sources[0].config.ftrace_config.ftrace_events,
            ["sched/sched_switch"]
        );
        assert_eq!(both.data_sources[1].config.ftrace_config.ftrace_events, ["hyp/*"]);
    }

    #[test]
    fn the_overview_brings_names_and_counters_without_kernel_events() {
        let mut config = with_events(&["sched/sched_switch"]);
        add_overview(&mut config);
        assert_eq!(
            sources(&config),
            [
                "linux.ftrace",
                "linux.system_info",
                "linux.process_stats",
                "linux.sys_stats"
            ]
        );
        let processes = &config.data_sources[2].config.process_stats_config;
        assert_eq!(processes.scan_all_processes_on_start, Some(true));
    }
}
