//! The trace config of a heap profile: `android.heapprofd` beside the names of processes.
//!
//! [`run`](super::run) calls it with the flags.

use ferretto_proto::messages::heapprofd_config::ContinuousDumpConfig;
use ferretto_proto::messages::{
    DataSourceConfig, HeapprofdConfig, MessageField, ProcessStatsConfig, TraceConfig, trace_config,
};

use super::args::{Args, ArgsError, WhenFull};
use crate::config::advice::known_sources::HEAP;
use crate::perfetto::light_config::{LightFlags, Wanted, light_config};

/// The buffer of dumps and names. The service writes the file meanwhile, so it only has to hold one write period, and a dump as a whole.
const BUFFER: &str = "64mb";
const FILE_WRITE_PERIOD_MS: u32 = 500;
/// How long the profiler may take to unwind and write what is left at the end, as for upstream's `heap_profile`.
const FLUSH_TIMEOUT_MS: u32 = 30_000;
const STOP_TIMEOUT_MS: u32 = 30_000;
/// Events that tell which processes there were, and their names. They cost little, and only root gets them.
const PROCESSES: [&str; 4] = [
    "sched/sched_process_exec",
    "sched/sched_process_exit",
    "task/task_newtask",
    "task/task_rename",
];
/// How often processes are looked for that no event tells of.
const PROCESS_PERIOD_MS: u32 = 1_000;

/// Makes the config.
///
/// # Errors
/// If a flag has no meaning.
pub(super) fn config(arguments: &Args, events: KernelEvents) -> Result<TraceConfig, ArgsError> {
    let flags = LightFlags {
        time: Some("0".to_owned()),
        buffer: Some(BUFFER.to_owned()),
        ..LightFlags::default()
    };
    let wanted = match events {
        KernelEvents::Available => PROCESSES.map(Wanted::of_perfetto).to_vec(),
        KernelEvents::Unavailable => Vec::new(),
    };
    let mut config = light_config(&flags, &wanted)?;
    // `run` sets the length of the recording, because it counts from the start of the data sources.
    config.duration_ms = Some(0);
    config.write_into_file = Some(true);
    config.file_write_period_ms = Some(FILE_WRITE_PERIOD_MS);
    config.flush_timeout_ms = Some(FLUSH_TIMEOUT_MS);
    config.data_source_stop_timeout_ms = Some(STOP_TIMEOUT_MS);
    for source in &mut config.data_sources {
        let source = source.config.get_or_insert_default();
        if source.name.as_deref() == Some(ferretto_probes::process_stats::NAME) {
            source.process_stats_config = MessageField::some(ProcessStatsConfig {
                scan_all_processes_on_start: Some(true),
                proc_stats_poll_ms: Some(PROCESS_PERIOD_MS),
                ..Default::default()
            });
        }
    }
    config.data_sources.push(trace_config::DataSource {
        config: MessageField::some(DataSourceConfig {
            name: Some(HEAP.to_owned()),
            target_buffer: Some(0),
            heapprofd_config: MessageField::some(heapprofd(arguments)?),
            ..Default::default()
        }),
        ..Default::default()
    });
    Ok(config)
}

/// Whether this user may record kernel events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelEvents {
    Available,
    Unavailable,
}

impl KernelEvents {
    pub(super) fn of_user() -> KernelEvents {
        match rustix::process::geteuid().is_root() {
            true => KernelEvents::Available,
            false => KernelEvents::Unavailable,
        }
    }
}

fn heapprofd(arguments: &Args) -> Result<HeapprofdConfig, ArgsError> {
    let given = |flag: bool| flag.then_some(true);
    let has_command = !arguments.command.is_empty();
    let mut config = HeapprofdConfig {
        sampling_interval_bytes: Some(arguments.interval()?),
        shmem_size_bytes: Some(arguments.shared_memory()?),
        pid: arguments.pid.iter().map(|pid| *pid as u64).collect(),
        process_cmdline: arguments.name.clone(),
        // All programs that a command starts are profiled, whatever their names. Other programs do not find our profiler, or had to start just now.
        all: given(arguments.all || (has_command && arguments.name.is_empty())),
        no_running: given(arguments.no_running || has_command),
        no_startup: given(arguments.no_startup),
        heaps: arguments.heaps.clone(),
        all_heaps: given(arguments.all_heaps),
        dump_at_max: given(arguments.at_max),
        max_heapprofd_memory_kb: arguments.max_memory_kb()?,
        max_heapprofd_cpu_secs: arguments.max_heapprofd_cpu,
        ..Default::default()
    };
    if let WhenFull::Wait(microseconds) = arguments.when_full() {
        config.block_client = Some(true);
        config.block_client_timeout_us = Some(microseconds);
    }
    if let Some(milliseconds) = arguments.dump_interval_ms()? {
        config.continuous_dump_config = MessageField::some(ContinuousDumpConfig {
            dump_phase_ms: Some(0),
            dump_interval_ms: Some(milliseconds),
            ..Default::default()
        });
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config_of(line: &str) -> HeapprofdConfig {
        let arguments = Args::parse_from(line.split_whitespace());
        let config = config(&arguments, KernelEvents::Unavailable).unwrap();
        let mut sources = config.data_sources.into_iter().map(|source| source.config);
        let heap = sources
            .find(|config| config.name.as_deref() == Some(HEAP))
            .unwrap();
        (*heap.heapprofd_config).clone()
    }

    #[test]
    fn of_a_command_everything_that_starts_is_profiled() {
        let config = config_of("heap -- make -j4");
        assert_eq!((config.all, config.no_running), (Some(true), Some(true)));
        assert_eq!(config.sampling_interval_bytes, Some(4096));
        assert_eq!(config.block_client, Some(true));
        let named = config_of("heap -n cc1,as -- make -j4");
        assert_eq!(
            (named.all, &*named.process_cmdline),
            (None, &["cc1".to_owned(), "as".to_owned()][..])
        );
    }

    #[test]
    fn flags_of_heap_profile_have_the_fields_that_its_config_has() {
        let config = config_of(
            "heap -p 7,8 -i 64k -c 5000 --dump-at-max --heaps a,b --no-startup --no-block-client --shmem-size 16777216",
        );
        assert_eq!(config.pid, [7, 8]);
        assert_eq!(config.sampling_interval_bytes, Some(65_536));
        assert_eq!(config.continuous_dump_config.dump_interval_ms, Some(5000));
        assert_eq!(config.dump_at_max, Some(true));
        assert_eq!(config.heaps, ["a", "b"]);
        assert_eq!((config.no_startup, config.block_client), (Some(true), None));
        assert_eq!(config.shmem_size_bytes, Some(16 << 20));
    }

    #[test]
    fn kernel_events_are_asked_for_only_where_they_can_be_had() {
        let arguments = Args::parse_from(["heap", "--all"]);
        for (events, expected) in [
            (KernelEvents::Available, true),
            (KernelEvents::Unavailable, false),
        ] {
            let config = config(&arguments, events).unwrap();
            let mut sources = config.data_sources.iter();
            let asks = sources.any(|source| source.config.name.as_deref() == Some("linux.ftrace"));
            assert_eq!(asks, expected);
        }
    }
}
