//! The settings of a `ProcessStatsConfig`, by the parts that use them. Built once per instance.

use ferretto_proto::messages::ProcessStatsConfig;
use ferretto_proto::messages::process_stats_config::Quirks;

use crate::notice::Notice;

/// Shortest polling period: reading a few files of every process costs milliseconds.
pub const SHORTEST_POLL_MS: u32 = 100;

/// When and why to look at processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Describe every process at the start.
    pub(crate) scan_at_start: bool,
    /// Describe the threads that `linux.ftrace` sees.
    pub(crate) on_demand: bool,
    /// How to sample counters, if they are sampled.
    pub(crate) poll: Option<Poll>,
    pub(crate) tree: TreeOptions,
    pub(crate) counters: CounterOptions,
}

/// When to sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Poll {
    /// Nanoseconds from one sample to the next.
    pub(crate) period: u64,
    /// The number of samples after which every value is written again, changed or not. At least 1.
    pub(crate) samples_per_cache: u32,
}

/// The details to record about processes and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeOptions {
    pub(crate) thread_names: bool,
    pub(crate) process_age: bool,
    /// Whether the main thread gets an entry of its own beside that of its process.
    pub(crate) main_thread: bool,
}

/// The data to sample beside memory and `oom_score_adj`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CounterOptions {
    pub(crate) smaps_rollup: bool,
    pub(crate) runtime: bool,
    pub(crate) dmabuf_rss: bool,
    pub(crate) open_files: bool,
}

impl Config {
    /// Reads `config`. Adds a notice for each setting that is not followed.
    pub(crate) fn new(config: &ProcessStatsConfig, notices: &mut Vec<Notice>) -> Self {
        // DISABLE_INITIAL_DUMP has had no effect since the initial dump became an option of its own.
        let on_demand = !config.quirks.contains(&Quirks::DISABLE_ON_DEMAND);
        let asked_ms = config.proc_stats_poll_ms.unwrap_or(0);
        let poll = (asked_ms > 0).then(|| {
            let period_ms = asked_ms.max(SHORTEST_POLL_MS);
            if period_ms != asked_ms {
                notices.push(Notice::PeriodRaised {
                    field: "proc_stats_poll_ms",
                    asked_ms,
                    used_ms: period_ms,
                });
            }
            Poll {
                period: u64::from(period_ms) * 1_000_000,
                samples_per_cache: (config.proc_stats_cache_ttl_ms.unwrap_or(0) / period_ms).max(1),
            }
        });
        Self {
            scan_at_start: config.scan_all_processes_on_start.unwrap_or(false),
            on_demand,
            poll,
            tree: TreeOptions {
                thread_names: config.record_thread_names.unwrap_or(false),
                process_age: config.record_process_age.unwrap_or(false),
                main_thread: !config.skip_main_thread_message.unwrap_or(false),
            },
            counters: CounterOptions {
                smaps_rollup: config.scan_smaps_rollup.unwrap_or(false),
                runtime: config.record_process_runtime.unwrap_or(false),
                dmabuf_rss: config.record_process_dmabuf_rss.unwrap_or(false),
                open_files: config.resolve_process_fds.unwrap_or(false),
            },
        }
    }
}
