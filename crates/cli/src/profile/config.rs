//! The trace config of a profile: samples of `linux.perf` beside the scheduler's decisions and the names of processes.
//!
//! [`run`](super::run) calls it with the flags. Scheduling and names are those that `ferretto -- COMMAND` records.

use ferretto_proto::messages::ftrace_config::CompactSchedConfig;
use ferretto_proto::messages::perf_event_config::{CallstackSampling, Scope, UnwindMode};
use ferretto_proto::messages::perf_events::{PerfClock, Timebase, Tracepoint, timebase};
use ferretto_proto::messages::{DataSourceConfig, MessageField, PerfEventConfig, TraceConfig, trace_config};

use ferretto_profile::source::NAME;

use super::args::{Args, ArgsError, CallGraph, Interval};
use super::targets::Targets;
use crate::perfetto::OF_COMMAND;
use crate::perfetto::light_config::{LightFlags, SCHEDULING, Wanted, add_overview, light_config};
use crate::samples::OFF_CPU;

/// The buffer of kernel events, names and counters. The service writes the file meanwhile, so it only has to hold one write period.
const BUFFER: &str = "64mb";
/// The buffer of samples, for the same time.
const SAMPLES_BUFFER_KB: u32 = 32 << 10;
const SAMPLES_BUFFER: u32 = 1;
/// A tenth of the default: a busy machine fills the buffers in less than the default.
const FILE_WRITE_PERIOD_MS: u32 = 500;

/// Threads that leave a CPU to wait for something: sleeping (1), in uninterruptible sleep (2), stopped (4), traced (8) or parked (64). Left out are
/// those that could go on, idle threads of the kernel, and those that end.
const BLOCKS: &str = "prev_state & 79";

/// Makes the config.
pub(super) fn config(arguments: &Args, targets: &Targets) -> Result<TraceConfig, ArgsError> {
    let flags = LightFlags {
        time: Some("0".to_owned()),
        buffer: Some(BUFFER.to_owned()),
        ..LightFlags::default()
    };
    let mut config = light_config(&flags, &SCHEDULING.map(Wanted::of_perfetto))?;
    // `run` sets the length of the recording, because it counts from the start of the data sources.
    config.duration_ms = Some(0);
    config.write_into_file = Some(true);
    config.file_write_period_ms = Some(FILE_WRITE_PERIOD_MS);
    add_overview(&mut config);
    for source in &mut config.data_sources {
        let ftrace = &mut source.config.get_or_insert_default().ftrace_config;
        if let Some(ftrace) = ftrace.as_option_mut() {
            ftrace.compact_sched = MessageField::some(CompactSchedConfig {
                enabled: Some(true),
                ..Default::default()
            });
        }
    }
    config.buffers.push(trace_config::BufferConfig {
        size_kb: Some(SAMPLES_BUFFER_KB),
        ..Default::default()
    });
    for (event, interval) in arguments.events()? {
        let timebase = Timebase {
            interval: Some(match interval {
                Interval::Frequency(frequency) => timebase::Interval::Frequency(frequency),
                Interval::Period(period) => timebase::Interval::Period(period),
            }),
            ..event.timebase()
        };
        config.data_sources.push(perf(arguments, targets, timebase));
    }
    if arguments.off_cpu {
        let timebase = Timebase {
            interval: Some(timebase::Interval::Period(1)),
            event: Some(timebase::Event::Tracepoint(Box::new(Tracepoint {
                name: Some("sched:sched_switch".to_owned()),
                filter: Some(BLOCKS.to_owned()),
                ..Default::default()
            }))),
            name: Some(OFF_CPU.to_owned()),
            // The monotonic clock keeps step with the boot clock of ftrace, whose events end the waiting. Tracepoints cannot have the boot clock itself.
            timestamp_clock: Some(PerfClock::PERF_CLOCK_MONOTONIC),
            ..Default::default()
        };
        config.data_sources.push(perf(arguments, targets, timebase));
    }
    Ok(config)
}

/// Whether the command, with all that it starts, is to be sampled alone.
fn is_of_command(arguments: &Args, targets: &Targets) -> bool {
    !arguments.command.is_empty() && targets.processes.is_empty() && !arguments.all
}

fn perf(arguments: &Args, targets: &Targets, timebase: Timebase) -> trace_config::DataSource {
    let mode = match arguments.call_graph {
        CallGraph::Dwarf => UnwindMode::UNWIND_DWARF,
        CallGraph::Fp => UnwindMode::UNWIND_FRAME_POINTER,
        CallGraph::KernelFp => UnwindMode::UNWIND_KERNEL_FRAME_POINTER,
    };
    let sampling = CallstackSampling {
        scope: MessageField::some(Scope {
            target_pid: targets.processes.clone(),
            family_of: is_of_command(arguments, targets).then_some(OF_COMMAND),
            ..Default::default()
        }),
        kernel_frames: Some(true),
        user_frames: Some(mode),
        ..Default::default()
    };
    let perf = PerfEventConfig {
        timebase: MessageField::some(timebase),
        callstack_sampling: MessageField::some(sampling),
        target_cpu: targets.cpus.clone(),
        ..Default::default()
    };
    trace_config::DataSource {
        config: MessageField::some(DataSourceConfig {
            name: Some(NAME.to_owned()),
            target_buffer: Some(SAMPLES_BUFFER),
            perf_event_config: MessageField::some(perf),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config_of(line: &str) -> TraceConfig {
        let arguments = Args::parse_from(line.split_whitespace());
        let targets = arguments.targets().unwrap();
        config(&arguments, &targets).unwrap()
    }

    fn perf_configs(config: &TraceConfig) -> Vec<&PerfEventConfig> {
        let sources = config.data_sources.iter();
        sources
            .filter(|source| source.config.name.as_deref() == Some(NAME))
            .map(|source| &*source.config.perf_event_config)
            .collect()
    }

    #[test]
    fn without_flags_it_samples_the_machine_beside_scheduling() {
        let config = config_of("profile");
        let [perf] = perf_configs(&config)[..] else {
            panic!()
        };
        let frequency = timebase::Interval::Frequency(999);
        assert_eq!(perf.timebase.interval, Some(frequency));
        assert!(perf.callstack_sampling.scope.target_pid.is_empty());
        let names: Vec<_> = config
            .data_sources
            .iter()
            .filter_map(|source| source.config.name.as_deref())
            .collect();
        for name in ["linux.ftrace", "linux.process_stats", "linux.system_info"] {
            assert!(names.contains(&name), "{names:?}");
        }
    }

    #[test]
    fn flags_of_perf_choose_event_interval_scope_and_unwinding() {
        let own = std::process::id();
        let config = config_of(&format!(
            "profile -p 1,{own} -e page-faults -c 100 --call-graph kernel-fp -- make -j4"
        ));
        let [perf] = perf_configs(&config)[..] else {
            panic!()
        };
        assert_eq!(perf.timebase.interval, Some(timebase::Interval::Period(100)));
        assert_eq!(perf.callstack_sampling.scope.target_pid, [1, own as i32]);
        let mode = Some(UnwindMode::UNWIND_KERNEL_FRAME_POINTER);
        assert_eq!(perf.callstack_sampling.user_frames, mode);
    }

    #[test]
    fn a_thread_is_sampled_with_its_process_and_a_cpu_alone() {
        let tid = rustix::thread::gettid().as_raw_pid();
        let own = std::process::id() as i32;
        assert_ne!(tid, own, "tests have threads of their own");
        let config = config_of(&format!("profile -t {tid} -C 0 --off-cpu"));
        let perf = perf_configs(&config);
        assert_eq!(perf.len(), 2);
        for perf in perf {
            assert_eq!(perf.callstack_sampling.scope.target_pid, [own]);
            assert_eq!(perf.target_cpu, [0]);
        }
    }

    #[test]
    fn waiting_is_sampled_by_a_second_instance() {
        let config = config_of("profile --off-cpu");
        let [_, off_cpu] = perf_configs(&config)[..] else {
            panic!()
        };
        assert_eq!(off_cpu.timebase.name.as_deref(), Some(OFF_CPU));
        assert_eq!(off_cpu.timebase.interval, Some(timebase::Interval::Period(1)));
    }
}
