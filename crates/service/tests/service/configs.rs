//! Fields of the trace config about the duration and the service's own packets, each with and without its effect; and fields without an effect.

use ferretto_proto::messages::trace_config::BuiltinDataSource;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    BuiltinClock, Message, TraceConfig, TracePacket, extension_descriptor, trace_config,
};
use ferretto_service::{ConfigInput, DescriptorEncoding, ExtensionDescriptor, Identity, OutputFile};

use crate::world::{World, config, packet, starts};

fn builtin(builtin: BuiltinDataSource) -> TraceConfig {
    TraceConfig {
        builtin_data_sources: builtin.into(),
        ..config(&[])
    }
}

/// The trace of a session that starts, stops after 100 ms, and is then read.
fn trace_of(world: &mut World, config: &TraceConfig) -> Vec<TracePacket> {
    let consumer = world.consumer();
    world.enable(consumer, config);
    world.advance(100);
    world.disable(consumer);
    world.read(consumer)
}

fn count(packets: &[TracePacket], kind: fn(&Data) -> bool) -> usize {
    packets
        .iter()
        .filter_map(|packet| packet.data.as_ref())
        .filter(|data| kind(data))
        .count()
}

#[test]
fn a_duration_counts_time_asleep_only_if_that_is_asked_for() {
    for (suspend_clock, ended) in [(false, 0), (true, 1)] {
        let mut world = World::new();
        let consumer = world.consumer();
        let lasting = TraceConfig {
            duration_ms: Some(10_000),
            prefer_suspend_clock_for_duration: Some(suspend_clock),
            ..config(&[])
        };
        world.enable(consumer, &lasting);
        world.advance(1_000);
        world.suspend(9_000);
        assert_eq!(
            world.consumers[&consumer].disabled.len(),
            ended,
            "{suspend_clock}"
        );
        world.advance(8_999);
        assert_eq!(world.consumers[&consumer].disabled.len(), ended);
        world.advance(1);
        assert_eq!(world.consumers[&consumer].disabled.len(), 1);
    }
}

#[test]
fn snapshots_are_taken_after_a_sleep_only_if_that_is_asked_for() {
    for (suspend_clock, markers) in [(false, 0), (true, 1)] {
        let mut world = World::new();
        let consumer = world.consumer();
        let with_interval = builtin(BuiltinDataSource {
            snapshot_interval_ms: Some(60_000),
            prefer_suspend_clock_for_snapshot: Some(suspend_clock),
            ..Default::default()
        });
        world.enable(consumer, &with_interval);
        world.read(consumer);
        world.suspend(60_000);
        let packets = world.read(consumer);
        let is_marker = |data: &Data| matches!(data, Data::SynchronizationMarker(_));
        assert_eq!(count(&packets, is_marker), markers, "{suspend_clock}");
    }
}

#[test]
fn snapshots_come_at_their_interval() {
    for (interval, expected) in [(None, 3), (Some(1_000), 30), (Some(15_000), 2)] {
        let mut world = World::new();
        let consumer = world.consumer();
        let with_interval = builtin(BuiltinDataSource {
            snapshot_interval_ms: interval,
            ..Default::default()
        });
        world.enable(consumer, &with_interval);
        world.read(consumer);
        let mut clocks = 0;
        let mut markers = 0;
        for _ in 0..300 {
            world.advance(100);
            let packets = world.read(consumer);
            clocks += count(&packets, |data| matches!(data, Data::ClockSnapshot(_)));
            markers += count(&packets, |data| matches!(data, Data::SynchronizationMarker(_)));
        }
        assert_eq!((clocks, markers), (expected, expected), "{interval:?}");
    }
}

#[test]
fn each_switch_of_the_builtin_data_sources_switches_off_its_own_packets() {
    type Switch = fn(&mut BuiltinDataSource);
    let switches: [(&str, Switch); 5] = [
        ("clocks", |builtin| {
            builtin.disable_clock_snapshotting = Some(true)
        }),
        ("config", |builtin| builtin.disable_trace_config = Some(true)),
        ("system info", |builtin| builtin.disable_system_info = Some(true)),
        ("service events", |builtin| {
            builtin.disable_service_events = Some(true)
        }),
        ("extension descriptors", |builtin| {
            builtin.disable_extension_descriptors = Some(true);
        }),
    ];
    let identity = Identity {
        extension_descriptors: vec![ExtensionDescriptor {
            name: "vendor.gz".into(),
            bytes: vec![0x1f, 0x8b],
            encoding: DescriptorEncoding::Gzip,
        }],
        ..Default::default()
    };
    let kinds = |config: &TraceConfig| {
        let mut world = World::with_identity(identity.clone());
        let packets = trace_of(&mut world, config);
        let kinds = packets.iter().filter_map(|packet| match packet.data.as_ref()? {
            Data::ClockSnapshot(_) => Some("clocks"),
            Data::TraceConfig(_) => Some("config"),
            Data::SystemInfo(_) => Some("system info"),
            Data::ServiceEvent(_) => Some("service events"),
            Data::ExtensionDescriptor(_) => Some("extension descriptors"),
            _ => None,
        });
        kinds.collect::<std::collections::BTreeSet<_>>()
    };
    let all = kinds(&config(&[]));
    assert_eq!(all.len(), switches.len());
    for (name, switch) in switches {
        let mut switched = BuiltinDataSource::default();
        switch(&mut switched);
        let mut expected = all.clone();
        expected.remove(name);
        assert_eq!(kinds(&builtin(switched)), expected, "without {name}");
    }
}

#[test]
fn extension_descriptors_go_into_each_trace_once_and_as_they_are() {
    let plain = vec![0x0a, 0x02, 0x0a, 0x00];
    let gzip = vec![0x1f, 0x8b, 0x08, 0xff];
    let mut world = World::with_identity(Identity {
        extension_descriptors: vec![
            ExtensionDescriptor {
                name: "plain".into(),
                bytes: plain.clone(),
                encoding: DescriptorEncoding::Plain,
            },
            ExtensionDescriptor {
                name: String::new(),
                bytes: gzip.clone(),
                encoding: DescriptorEncoding::Gzip,
            },
        ],
        ..Default::default()
    });
    let packets = trace_of(&mut world, &config(&[]));
    let descriptors: Vec<_> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ExtensionDescriptor(descriptor)) => Some(descriptor),
            _ => None,
        })
        .collect();
    assert_eq!(descriptors.len(), 2);
    assert_eq!(descriptors[0].file_name.as_deref(), Some("plain"));
    // Our schema has no descriptors of descriptors, so it keeps the field as an unknown one.
    const EXTENSION_SET: u32 = 1;
    let encoded = descriptors[0].encode_to_vec();
    let set = ferretto_wire::Reader::new(&encoded)
        .flatten()
        .find(|field| field.number == EXTENSION_SET)
        .and_then(|field| field.value.as_bytes().map(<[u8]>::to_vec));
    assert_eq!(set, Some(plain));
    assert_eq!(descriptors[1].file_name, None);
    assert!(matches!(
        &descriptors[1].descriptor,
        Some(extension_descriptor::Descriptor::ExtensionSetGzip(bytes)) if *bytes == gzip
    ));
}

#[test]
fn the_primary_clock_is_the_one_of_the_config_else_boot_time() {
    for (wanted, expected) in [
        (None, BuiltinClock::BUILTIN_CLOCK_BOOTTIME),
        (
            Some(BuiltinClock::BUILTIN_CLOCK_UNKNOWN),
            BuiltinClock::BUILTIN_CLOCK_BOOTTIME,
        ),
        (
            Some(BuiltinClock::BUILTIN_CLOCK_MONOTONIC),
            BuiltinClock::BUILTIN_CLOCK_MONOTONIC,
        ),
    ] {
        let packets = trace_of(
            &mut World::new(),
            &builtin(BuiltinDataSource {
                primary_trace_clock: wanted,
                ..Default::default()
            }),
        );
        let clocks: Vec<_> = packets
            .iter()
            .filter_map(|packet| match &packet.data {
                Some(Data::ClockSnapshot(snapshot)) => Some(snapshot.primary_trace_clock),
                _ => None,
            })
            .collect();
        assert!(!clocks.is_empty());
        assert!(clocks.iter().all(|clock| *clock == Some(expected)), "{clocks:?}");
    }
}

#[test]
fn histograms_of_chunks_are_left_out_where_they_are_disabled() {
    for (disabled, expected) in [(None, 1), (Some(true), 0)] {
        let (mut world, producer, consumer) = World::offering();
        let mut quiet = config(&["d"]);
        quiet
            .builtin_data_sources
            .get_or_insert_default()
            .disable_chunk_usage_histograms = disabled;
        world.enable(consumer, &quiet);
        let target = world.target(producer);
        world.commit(producer, 1, target, &[&packet("x")]);
        let packets = world.read(consumer);
        let in_trace = packets.iter().find_map(|packet| match &packet.data {
            Some(Data::TraceStats(stats)) => Some(stats.writer_stats.len()),
            _ => None,
        });
        assert_eq!(in_trace, Some(expected));
        let asked = world.service.trace_stats(consumer).unwrap();
        assert_eq!(asked.writer_stats.len(), expected);
        assert_eq!(asked.chunk_payload_histogram_def.is_empty(), disabled.is_some());
    }
}

#[test]
fn a_machine_is_known_as_host_and_by_its_name() {
    for (names, started) in [
        (&["host"][..], 1),
        (&["other", "here"], 1),
        (&["other"], 0),
        (&["HOST"], 0),
        (&[], 1),
    ] {
        let mut world = World::with_identity(Identity {
            machine_name: "here".into(),
            ..Default::default()
        });
        let producer = world.producer("p");
        world.offer(producer, "d");
        let consumer = world.consumer();
        let mut filtered = config(&["d"]);
        filtered.data_sources[0].machine_name_filter = names.iter().map(|name| (*name).into()).collect();
        world.enable(consumer, &filtered);
        assert_eq!(world.count(producer, starts), started, "{names:?}");
    }
}

#[test]
fn unsupported_options_are_refused_with_a_reason() {
    let mut world = World::new();
    let consumer = world.consumer();
    let persistent = TraceConfig {
        persist_trace_across_reboots: Some(true),
        ..config(&[])
    };
    let error = world.try_enable(consumer, &persistent).unwrap_err();
    assert!(error.contains("persist_trace_across_reboots"), "{error}");
}

#[test]
fn a_file_is_passed_or_named() {
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&[])
    };
    let mut world = World::new();
    let consumer = world.consumer();
    let input = ConfigInput {
        bytes: streaming.encode_to_vec().into(),
        config: streaming,
    };
    let now = world.now;
    let refused = world
        .service
        .enable_tracing(consumer, input, &OutputFile::None, 0, &now)
        .unwrap_err();
    assert!(refused.contains("has neither"), "{refused}");
}

#[test]
fn a_flush_period_that_does_nothing_is_pointed_out() {
    use trace_config::WriteFlushMode::{WRITE_FLUSH_AUTO, WRITE_FLUSH_DISABLED, WRITE_FLUSH_ENABLED};
    for (into_file, mode, told) in [
        (false, None, false),
        (true, None, true),
        (true, Some(WRITE_FLUSH_AUTO), true),
        (true, Some(WRITE_FLUSH_ENABLED), true),
        (true, Some(WRITE_FLUSH_DISABLED), false),
    ] {
        let mut world = World::new();
        let consumer = world.consumer();
        let flushing = TraceConfig {
            write_into_file: Some(into_file),
            write_flush_mode: mode,
            flush_period_ms: Some(1000),
            ..config(&[])
        };
        world.enable(consumer, &flushing);
        let line = world.log.iter().any(|line| line.contains("flush_period_ms"));
        assert_eq!(line, told, "{into_file} {mode:?}");
    }
}

#[test]
fn fields_for_android_or_the_command_line_are_carried_into_the_trace() {
    use trace_config::{
        AndroidReportConfig, CmdTraceStartDelay, IncidentReportConfig, StatsdLogging, StatsdMetadata,
    };
    let mut carried = TraceConfig {
        statsd_metadata: StatsdMetadata {
            triggering_alert_id: Some(1),
            ..Default::default()
        }
        .into(),
        statsd_logging: Some(StatsdLogging::STATSD_LOGGING_ENABLED),
        notify_traceur: Some(true),
        bugreport_score: Some(10),
        allow_user_build_tracing: Some(true),
        incident_report_config: IncidentReportConfig {
            destination_package: Some("p".into()),
            ..Default::default()
        }
        .into(),
        android_report_config: AndroidReportConfig {
            skip_report: Some(true),
            ..Default::default()
        }
        .into(),
        cmd_trace_start_delay: CmdTraceStartDelay {
            min_delay_ms: Some(1),
            max_delay_ms: Some(2),
            ..Default::default()
        }
        .into(),
        activate_triggers: vec!["t".into()],
        trace_all_machines: Some(true),
        experimental_trace_buffer_v2_compaction: Some(true),
        ..config(&[])
    };
    carried.trace_attributes.get_or_insert_default();
    carried.buffers[0].experimental_mode =
        Some(trace_config::buffer_config::ExperimentalMode::TRACE_BUFFER_V2);
    let packets = trace_of(&mut World::new(), &carried);
    let in_trace = packets.iter().find_map(|packet| match &packet.data {
        Some(Data::TraceConfig(config)) => Some(config.as_ref()),
        _ => None,
    });
    assert_eq!(in_trace, Some(&carried));
    let nothing_else = trace_of(&mut World::new(), &config(&[]));
    assert_eq!(packets.len(), nothing_else.len(), "and has no other effect");
}
