//! The settings of a `SysStatsConfig`: groups of counters, their periods, and their ticks of the common timer.

use ferretto_proto::messages::SysStatsConfig;

use super::SetupError;
use crate::notice::Notice;

/// Shortest period of a group, upstream's as well: some of the files take a millisecond to read.
pub const SHORTEST_PERIOD_MS: u32 = 10;

/// Counters that are sampled together, from one kernel file or one directory of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Meminfo,
    Vmstat,
    Stat,
    Devfreq,
    Cpufreq,
    Buddyinfo,
    Diskstat,
    Psi,
    Thermal,
    Cpuidle,
    Gpufreq,
    Slab,
}

impl Group {
    /// The field of the config with the group's period.
    pub(crate) fn period_field(self) -> &'static str {
        match self {
            Self::Meminfo => "meminfo_period_ms",
            Self::Vmstat => "vmstat_period_ms",
            Self::Stat => "stat_period_ms",
            Self::Devfreq => "devfreq_period_ms",
            Self::Cpufreq => "cpufreq_period_ms",
            Self::Buddyinfo => "buddyinfo_period_ms",
            Self::Diskstat => "diskstat_period_ms",
            Self::Psi => "psi_period_ms",
            Self::Thermal => "thermal_period_ms",
            Self::Cpuidle => "cpuidle_period_ms",
            Self::Gpufreq => "gpufreq_period_ms",
            Self::Slab => "slab_period_ms",
        }
    }
}

/// Each group, with its period in milliseconds if the config names one.
pub(super) fn asked(config: &SysStatsConfig) -> [(Group, Option<u32>); 12] {
    [
        (Group::Meminfo, config.meminfo_period_ms),
        (Group::Vmstat, config.vmstat_period_ms),
        (Group::Stat, config.stat_period_ms),
        (Group::Devfreq, config.devfreq_period_ms),
        (Group::Cpufreq, config.cpufreq_period_ms),
        (Group::Buddyinfo, config.buddyinfo_period_ms),
        (Group::Diskstat, config.diskstat_period_ms),
        (Group::Psi, config.psi_period_ms),
        (Group::Thermal, config.thermal_period_ms),
        (Group::Cpuidle, config.cpuidle_period_ms),
        (Group::Gpufreq, config.gpufreq_period_ms),
        (Group::Slab, config.slab_period_ms),
    ]
}

/// The sampling times of all groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Nanoseconds from one tick to the next: the shortest of the groups' periods.
    pub(crate) period: u64,
    /// The groups in the order of sampling, each with the number of ticks between its samples (at least 1).
    pub(crate) groups: Vec<(Group, u32)>,
}

impl Schedule {
    /// Reads `config`. Adds a notice for each setting that is not followed. `None` if nothing is to be sampled.
    pub(crate) fn new(
        config: &SysStatsConfig,
        notices: &mut Vec<Notice>,
    ) -> Result<Option<Self>, SetupError> {
        let mut periods = Vec::new();
        for (group, asked_ms) in asked(config) {
            let Some(asked_ms) = asked_ms.filter(|&period| period > 0) else {
                continue;
            };
            let used_ms = asked_ms.max(SHORTEST_PERIOD_MS);
            if used_ms != asked_ms {
                notices.push(Notice::PeriodRaised {
                    field: group.period_field(),
                    asked_ms,
                    used_ms,
                });
            }
            periods.push((group, used_ms));
        }
        let Some(&(shortest, tick_ms)) = periods.iter().min_by_key(|(_, period)| *period) else {
            return Ok(None);
        };
        let mut groups = Vec::with_capacity(periods.len());
        for (group, period_ms) in periods {
            if period_ms % tick_ms != 0 {
                return Err(SetupError::PeriodsDoNotFit {
                    field: group.period_field(),
                    period_ms,
                    shortest_field: shortest.period_field(),
                    shortest_ms: tick_ms,
                });
            }
            groups.push((group, period_ms / tick_ms));
        }
        Ok(Some(Self {
            period: u64::from(tick_ms) * 1_000_000,
            groups,
        }))
    }
}
