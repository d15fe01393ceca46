use ferretto_proto::messages::{DataSourceConfig, trace_config};
use ferretto_proto::write;
use ferretto_wire::Writer;
use proptest::prelude::*;

use super::*;
use crate::info::sequences::OTHERS;

const BOOTTIME: u32 = 6;
const REALTIME: u32 = 1;

fn observe(summary: &mut Summary, fill: impl FnOnce(&mut write::TracePacket<'_>)) {
    let mut packet = Writer::new();
    fill(&mut write::TracePacket::new(&mut packet));
    summary.piece(Piece::Packet(packet.as_slice()));
}

#[test]
fn packets_are_counted_by_kind() {
    let mut summary = Summary::default();
    observe(&mut summary, |packet| {
        packet.timestamp(1).interned_data(|_| {}).track_event(|_| {});
    });
    observe(&mut summary, |packet| {
        packet.track_event(|_| {}).interned_data(|_| {});
    });
    observe(&mut summary, |packet| {
        packet.interned_data(|_| {}).trusted_uid(5);
    });
    observe(&mut summary, |packet| {
        packet.timestamp(1);
    });
    let counts: Vec<_> = summary
        .kinds
        .iter()
        .map(|(kind, tally)| (*kind, tally.packets))
        .collect();
    assert_eq!(
        counts,
        [
            (0, 1),
            (TracePacket::TRACK_EVENT, 2),
            (TracePacket::INTERNED_DATA, 1)
        ]
    );
    assert_eq!(summary.all.packets, 4);
    assert_eq!(
        summary.all.bytes,
        summary.kinds.values().map(|tally| tally.bytes).sum::<u64>()
    );
}

#[test]
fn kernel_events_have_the_names_that_the_trace_gives_them() {
    let mut summary = Summary::default();
    observe(&mut summary, |packet| {
        packet.ftrace_events(|bundle| {
            let writer = bundle.writer();
            writer.nested(FtraceEventBundle::GENERIC_EVENT_DESCRIPTORS, |described| {
                described.varint_field(1, 65_537);
                described.nested(2, |descriptor| descriptor.bytes_field(1, b"oven_door"));
                described.bytes_field(3, b"kitchen");
            });
            writer.nested(FtraceEventBundle::EVENT, |event| event.nested(65_537, |_| {}));
        });
    });
    let named: Vec<_> = summary
        .kernel_events
        .keys()
        .map(|field| summary.described_event(*field))
        .collect();
    assert_eq!(named, [Some("oven_door")]);
}

#[test]
fn the_data_reach_from_the_first_to_the_last_time_of_producers_packets() {
    let mut summary = Summary::default();
    observe(&mut summary, |packet| {
        packet.trusted_packet_sequence_id(1).clock_snapshot(|snapshot| {
            for (id, time) in [(BOOTTIME, 1_000_000), (REALTIME, 1_795_158_735_000_000_000)] {
                snapshot.clocks(|clock| {
                    clock.clock_id(id).timestamp(time);
                });
            }
        });
    });
    for (time, event) in [(900, true), (7000, false)] {
        observe(&mut summary, |packet| {
            packet
                .timestamp(time)
                .trusted_packet_sequence_id(1)
                .service_event(|life| {
                    if event {
                        life.tracing_started(true);
                    } else {
                        life.tracing_disabled(true);
                    }
                });
        });
    }
    for time in [5000, 3000, 4000] {
        observe(&mut summary, |packet| {
            packet
                .timestamp(time)
                .trusted_packet_sequence_id(2)
                .for_testing(|_| {});
        });
    }
    let data = Span {
        first: 3000,
        last: 5000,
    };
    assert_eq!(summary.data, Some(data));
    assert_eq!((summary.duration(), summary.start()), (Some(6100), Some(900)));
    assert_eq!(
        summary.timeline.wall_time(1_000_000 + 7),
        Some(1_795_158_735_000_000_007)
    );
}

#[test]
fn times_of_a_sequence_are_on_the_clock_of_its_defaults() {
    let mut summary = Summary::default();
    observe(&mut summary, |packet| {
        packet.trusted_packet_sequence_id(2).clock_snapshot(|snapshot| {
            snapshot.clocks(|clock| {
                clock.clock_id(BOOTTIME).timestamp(5000);
            });
            snapshot.clocks(|clock| {
                clock
                    .clock_id(64)
                    .timestamp(5)
                    .unit_multiplier_ns(1000)
                    .is_incremental(true);
            });
        });
    });
    observe(&mut summary, |packet| {
        packet
            .sequence_flags(1)
            .trusted_packet_sequence_id(2)
            .trace_packet_defaults(|defaults| {
                defaults.timestamp_clock_id(64);
            });
    });
    for _ in 0..3 {
        observe(&mut summary, |packet| {
            packet
                .timestamp(2)
                .sequence_flags(2)
                .trusted_packet_sequence_id(2)
                .track_event(|_| {});
        });
    }
    let data = Span {
        first: 7000,
        last: 11_000,
    };
    assert_eq!(summary.data, Some(data));
    observe(&mut summary, |packet| {
        packet
            .timestamp(2)
            .timestamp_clock_id(77)
            .trusted_packet_sequence_id(9)
            .track_event(|_| {});
    });
    assert_eq!(summary.timeless, 1);
}

#[test]
fn kernel_events_are_counted_and_their_times_are_data() {
    let mut summary = Summary::default();
    observe(&mut summary, |packet| {
        packet.ftrace_events(|bundle| {
            bundle.cpu(1);
            bundle.event(|event| {
                event.timestamp(3000).pid(1).task_rename(|_| {});
            });
            bundle.compact_sched(|compact| {
                compact
                    .switch_timestamp([2000, 500, 4000])
                    .waking_timestamp([2100]);
            });
        });
    });
    let events: Vec<_> = summary
        .kernel_events
        .iter()
        .map(|(kind, count)| (*kind, *count))
        .collect();
    assert_eq!(events, [(4, 3), (20, 1), (236, 1)]);
    let data = Span {
        first: 2000,
        last: 6500,
    };
    assert_eq!(summary.data, Some(data));
    let mut summary = Summary::default();
    observe(&mut summary, |packet| {
        packet.ftrace_events(|bundle| {
            // The kernel's own clock, which shows 10 when boot time is 5000.
            bundle.event(|event| {
                event.timestamp(12).task_rename(|_| {});
            });
            let writer = bundle.writer();
            writer.varint_field(FtraceEventBundle::FTRACE_CLOCK, 2);
            writer.varint_field(FtraceEventBundle::FTRACE_TIMESTAMP, 10);
            writer.varint_field(FtraceEventBundle::BOOT_TIMESTAMP, 5000);
        });
    });
    assert_eq!(summary.data.map(|data| data.first), Some(5002));
}

#[test]
fn processes_are_called_by_the_end_of_their_path() {
    let mut summary = Summary::default();
    observe(&mut summary, |packet| {
        packet.process_tree(|tree| {
            tree.processes(|process| {
                process
                    .pid(5)
                    .cmdline("/usr/bin/some\x1b[2Jthing")
                    .cmdline("--flag");
            });
            tree.processes(|process| {
                process.pid(6);
            });
        });
    });
    observe(&mut summary, |packet| {
        packet.track_descriptor(|track| {
            track.process(|process| {
                process.pid(7).process_name("app");
            });
        });
    });
    assert_eq!(
        summary.process_name(5),
        Some("some[2Jthing"),
        "terminals heed control characters"
    );
    assert_eq!(
        (summary.process_name(6), summary.process_name(7)),
        (None, Some("app"))
    );
}

#[test]
fn the_first_config_and_the_last_counters_count() {
    let config = |name: &str| TraceConfig {
        data_sources: vec![trace_config::DataSource {
            config: DataSourceConfig {
                name: Some(name.to_owned()),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut summary = Summary::default();
    for (name, chunks) in [("first", 1), ("second", 2)] {
        let mut packet = Writer::new();
        packet.bytes_field(TracePacket::TRACE_CONFIG, &config(name).encode_to_vec());
        summary.piece(Piece::Packet(packet.as_slice()));
        observe(&mut summary, |packet| {
            packet.trace_stats(|stats| {
                stats.chunks_discarded(chunks);
            });
        });
    }
    assert_eq!(summary.config, Some(config("first")));
    assert_eq!(summary.more_configs, 1);
    assert_eq!(summary.stats.unwrap().chunks_discarded, Some(2));
}

#[test]
fn no_file_makes_it_take_all_memory() {
    let mut summary = Summary::default();
    for number in 0..100_000_u32 {
        let mut packet = Writer::new();
        packet.varint_field(TracePacket::TRUSTED_PACKET_SEQUENCE_ID, number.into());
        packet.varint_field(2000 + number, 1);
        summary.piece(Piece::Packet(packet.as_slice()));
        observe(&mut summary, |packet| {
            packet.process_descriptor(|process| {
                process.pid(number as i32).process_name("n".repeat(1000));
            });
        });
        observe(&mut summary, |packet| {
            packet.trigger(|trigger| {
                trigger.trigger_name("t");
            });
        });
    }
    assert_eq!(summary.kinds.len(), MAX_LISTED);
    assert_eq!(summary.processes.len(), MAX_PROCESSES);
    assert_eq!(summary.process_name(5).map(str::len), Some(MAX_NAME));
    assert_eq!(summary.triggers.len(), MAX_LISTED);
    assert!(
        summary
            .sequences
            .largest_first()
            .iter()
            .any(|(id, _)| *id == OTHERS)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_counts_as_one(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..20)) {
        let mut summary = Summary::default();
        for packet in &packets {
            summary.piece(Piece::Packet(packet));
        }
        prop_assert_eq!(summary.all.packets, packets.len() as u64);
        let by_sequence: u64 = summary.sequences.largest_first().iter().map(|(_, sequence)| sequence.packets).sum();
        prop_assert_eq!(by_sequence, packets.len() as u64);
    }
}
