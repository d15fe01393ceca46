use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::messages::perf_sample::producer_event::CpuEvent;
use ferretto_proto::messages::profiling::StackUnwindError;
use ferretto_proto::messages::stack_sample::{Mode as ExecutionMode, Unit};
use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::write::stack_sample::CounterDescriptor;
use ferretto_proto::write::{InternedData, PerfSample, StackSample, TracePacket};
use ferretto_wire::Writer;
use proptest::prelude::*;

use super::counted::MAX_EVENTS;
use super::*;

pub(super) const CLEARED: u32 = SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32;
const NEEDS_STATE: u32 = SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u32;

pub(super) fn packet(fill: impl FnOnce(&mut TracePacket<'_>)) -> Vec<u8> {
    let mut writer = Writer::new();
    let mut packet = TracePacket::new(&mut writer);
    packet.trusted_packet_sequence_id(7);
    fill(&mut packet);
    writer.into_vec()
}

/// A frame and its mapping refer to entries that come after them in the message.
fn description(interned: &mut InternedData<'_>) {
    interned.callstacks(|stack| {
        stack.iid(1).frame_ids(1).frame_ids(2);
    });
    interned.frames(|frame| {
        frame.iid(1).mapping_id(1).rel_pc(0x10).function_name_id(1);
    });
    interned.frames(|frame| {
        frame.iid(2).mapping_id(1).rel_pc(0x20);
    });
    interned.mappings(|mapping| {
        mapping.iid(1).build_id(1).path_string_ids(1).path_string_ids(2);
    });
    for (iid, part) in [(1, "usr"), (2, "prog")] {
        interned.mapping_paths(|text| {
            text.iid(iid).str(part);
        });
    }
    interned.build_ids(|text| {
        text.iid(1).str(b"\xab\xcd");
    });
    interned.function_names(|text| {
        text.iid(1).str("main");
    });
}

fn described() -> Vec<u8> {
    packet(|packet| {
        packet.sequence_flags(CLEARED).interned_data(description);
    })
}

fn sample(fill: impl FnOnce(&mut PerfSample<'_>)) -> Vec<u8> {
    packet(|packet| {
        packet
            .timestamp(5)
            .sequence_flags(NEEDS_STATE)
            .perf_sample(|sample| {
                sample.pid(3).tid(4);
                fill(sample);
            });
    })
}

fn with_stack() -> Vec<u8> {
    sample(|sample| {
        sample.callstack_iid(1);
    })
}

/// Symbols of the second frame: a function, inlined in another.
fn symbols(path: &str) -> Vec<u8> {
    packet(|packet| {
        packet.module_symbols(|symbols| {
            symbols
                .path(path)
                .build_id(b"\xab\xcd")
                .address_symbols(|address| {
                    address.address(0x20);
                    for (name, line) in [("inlined", 3), ("_ZN4prog5outer17h0123456789abcdefE", 9)] {
                        address.lines(|entry| {
                            entry
                                .function_name(name)
                                .source_file_name("a.rs")
                                .line_number(line);
                        });
                    }
                });
        });
    })
}

fn recording(packets: &[Vec<u8>]) -> Recording {
    let mut recorder = Recorder::new(Keep::Samples, |_| true);
    for packet in packets {
        recorder.packet(packet);
    }
    recorder.finish()
}

/// Returns the names of the only stack, outermost first.
fn names(recording: &Recording) -> Vec<String> {
    let [(key, _)] = &recording.totals.sorted()[..] else {
        panic!("not one stack")
    };
    let profile = &recording.profile;
    let frames = profile.stacks.frames(key.stack);
    let lines = frames.flat_map(|frame| profile.lines(frame));
    let mut names: Vec<String> = lines.map(|line| line.name.into_owned()).collect();
    names.reverse();
    names
}

#[test]
fn a_stack_is_read_with_its_names_and_modules() {
    let recording = recording(&[described(), with_stack(), with_stack()]);
    assert_eq!(names(&recording), ["main", "prog+0x20"]);
    let (key, count) = recording.totals.sorted()[0];
    assert_eq!((count, key.owner), (2, Owner::Thread(Thread { pid: 3, tid: 4 })));
    let profile = &recording.profile;
    let frame = profile.stacks.frames(key.stack).next().unwrap();
    let (_, module) = profile.module_of(frame).unwrap();
    assert_eq!(
        (profile.path(module), module.build_id_digits()),
        ("/usr/prog", "abcd".to_owned())
    );
    assert_eq!(recording.samples.len(), 2);
    assert_eq!(profile.losses, Losses::default());
}

/// A sample that a program took of itself.
fn stack_sample(fill: impl FnOnce(&mut StackSample<'_>)) -> Vec<u8> {
    packet(|packet| {
        packet
            .timestamp(5)
            .sequence_flags(NEEDS_STATE)
            .stack_sample(|sample| fill(sample));
    })
}

#[test]
fn samples_of_a_program_itself_are_weighted_and_of_the_thread_that_they_name() {
    let defined = packet(|packet| {
        packet
            .sequence_flags(CLEARED)
            .interned_data(|data| {
                description(data);
                data.stack_sample_task_contexts(|task| {
                    task.iid(1).pid(3).tid(4);
                });
                data.stack_sample_execution_contexts(|context| {
                    context.iid(3).cpu(6).mode(ExecutionMode::MODE_USER);
                });
                data.stack_sample_counter_descriptors(|counter| {
                    counter
                        .iid(2)
                        .name("read")
                        .unit(Unit::UNIT_BYTES)
                        .unit_multiplier(1024);
                });
            })
            .trace_packet_defaults(|defaults| {
                defaults.stack_sample_defaults(|defaults| {
                    defaults.source("test").primary_descriptor(|counter| {
                        counter.name("wall").unit(Unit::UNIT_NANOSECONDS);
                    });
                });
            });
    });
    let by_number = stack_sample(|sample| {
        sample
            .task_context_iid(1)
            .execution_context_iid(3)
            .callstack_iid(1)
            .primary_descriptor_iid(2)
            .primary_weight(100);
    });
    let inline = stack_sample(|sample| {
        sample
            .task_context(|task| {
                task.pid(3).tid(5);
            })
            .execution_context(|context| {
                context.cpu(2).mode(ExecutionMode::MODE_KERNEL);
            })
            .callstack(|stack| {
                for (name, line) in [("outer", 1), ("inner", 2)] {
                    stack.frames(|frame| {
                        frame.function_name(name).source_file("a.rs").line_number(line);
                    });
                }
            })
            .primary_weight(7);
    });
    let bare = stack_sample(|_| {});
    let recording = recording(&[defined, by_number.clone(), inline, by_number, bare]);
    let profile = &recording.profile;
    assert_eq!(
        (
            profile.samples,
            profile.losses.stackless,
            profile.losses.unreadable
        ),
        (4, 1, 0)
    );
    let totals = recording.totals.sorted().into_iter().map(|(key, count)| {
        let event = &profile.events[key.event.0 as usize];
        let frames = profile
            .stacks
            .frames(key.stack)
            .flat_map(|frame| profile.lines(frame));
        let mut names: Vec<String> = frames
            .map(|line| format!("{}:{}", line.name, line.line.unwrap_or(0)))
            .collect();
        names.reverse();
        (
            event.name.as_str(),
            &*event.unit,
            key.owner,
            names.join(";"),
            count,
        )
    });
    let owner = |tid| Owner::Thread(Thread { pid: 3, tid });
    assert_eq!(
        totals.collect::<Vec<_>>(),
        [
            (
                "read",
                "bytes",
                owner(4),
                "main:0;prog+0x20:0".to_owned(),
                200 * 1024
            ),
            ("wall", "nanoseconds", owner(5), "outer:1;inner:2".to_owned(), 7),
        ]
    );
    let samples: Vec<_> = recording
        .samples
        .iter()
        .map(|sample| (sample.cpu, sample.mode, sample.weight))
        .collect();
    let read = (Some(6), Mode::User, 100 * 1024);
    let bare = (None, Mode::Unknown, 1);
    assert_eq!(samples, [read, (Some(2), Mode::Kernel, 7), read, bare]);
}

/// A sample with its own counter.
fn counted(fill: impl FnOnce(&mut CounterDescriptor<'_>)) -> Vec<u8> {
    stack_sample(|sample| {
        sample.callstack_iid(1).primary_weight(3).primary_descriptor(fill);
    })
}

#[test]
fn counters_have_the_units_and_weights_that_upstream_reads() {
    let samples = [
        counted(|counter| {
            counter.name("lines").unit_str("lines");
        }),
        counted(|counter| {
            counter.name("none");
        }),
        // A known unit comes first, but not one that says nothing.
        counted(|counter| {
            counter.name("both").unit_str("lines").unit(Unit::UNIT_BYTES);
        }),
        counted(|counter| {
            counter
                .name("neither")
                .unit(Unit::UNIT_UNSPECIFIED)
                .unit_str("rows");
        }),
        counted(|counter| {
            counter.name("zero").unit_multiplier(0);
        }),
        counted(|counter| {
            counter.name("most").unit_multiplier(u64::MAX);
        }),
    ];
    let recording = recording(&[vec![described()], samples.to_vec()].concat());
    let read = recording.samples.iter().map(|sample| {
        let event = &recording.profile.events[sample.event.0 as usize];
        (&*event.name, &*event.unit, sample.weight)
    });
    assert_eq!(
        read.collect::<Vec<_>>(),
        [
            ("lines", "lines", 3),
            ("none", "count", 3),
            ("both", "bytes", 3),
            ("neither", "rows", 3),
            ("zero", "count", 3),
            ("most", "count", u64::MAX),
        ]
    );
}

#[test]
fn a_trace_has_a_limited_number_of_events_and_the_others_are_counted() {
    const SAMPLES: usize = 4 * MAX_EVENTS;
    let mut packets = vec![described()];
    packets.extend((0..SAMPLES).map(|number| {
        counted(|counter| {
            counter.name(number.to_string());
        })
    }));
    // Those that have a place keep it.
    packets.push(counted(|counter| {
        counter.name("0");
    }));
    let recording = recording(&packets);
    assert_eq!(recording.profile.events.len(), MAX_EVENTS);
    assert_eq!(recording.samples.len(), MAX_EVENTS + 1);
    assert_eq!(recording.samples[MAX_EVENTS].event, EventId(0));
    let losses = &recording.profile.losses;
    assert_eq!(losses.of_other_events, (SAMPLES - MAX_EVENTS) as u64);
}

#[test]
fn events_with_stacks_are_no_samples_but_their_frames_can_be_named() {
    let event = packet(|packet| {
        packet
            .timestamp(5)
            .sequence_flags(NEEDS_STATE)
            .track_event(|event| {
                event.callstack_iid(1);
            });
    });
    let recording = recording(&[described(), event]);
    assert!(recording.totals.is_empty());
    assert_eq!(
        (recording.profile.samples, recording.profile.stacks_of_events),
        (0, 1)
    );
    assert_eq!(recording.profile.unnamed().len(), 1);
}

#[test]
fn symbols_name_frames_whether_they_come_before_or_after_them() {
    for packets in [
        [described(), with_stack(), symbols("/usr/prog")],
        [symbols("/usr/prog"), described(), with_stack()],
    ] {
        let recording = recording(&packets);
        assert_eq!(names(&recording), ["main", "prog::outer", "inlined"]);
    }
}

#[test]
fn symbols_of_another_module_name_nothing() {
    let recording = recording(&[described(), with_stack(), symbols("/usr/other")]);
    assert_eq!(names(&recording), ["main", "prog+0x20"]);
}

#[test]
fn samples_after_a_loss_are_unreadable_until_the_state_is_cleared() {
    let lost = packet(|packet| {
        packet.previous_packet_dropped(1);
    });
    let recording = recording(&[described(), lost, with_stack(), described(), with_stack()]);
    assert_eq!(recording.samples.len(), 1);
    assert_eq!(recording.profile.losses.unreadable, 1);
}

#[test]
fn a_sample_that_refers_to_nothing_is_kept_without_a_stack_and_counted() {
    let cleared = packet(|packet| {
        packet.sequence_flags(CLEARED);
    });
    let recording = recording(&[cleared, with_stack()]);
    assert_eq!(recording.samples.len(), 1);
    assert!(recording.totals.is_empty());
    assert_eq!(recording.profile.losses.unreadable, 1);
}

#[test]
fn losses_are_counted_by_their_reasons() {
    let skipped = |reason| {
        sample(|sample| {
            sample.sample_skipped_reason(reason);
        })
    };
    let lost = packet(|packet| {
        packet.perf_sample(|sample| {
            sample.cpu(0).kernel_records_lost(12);
        });
    });
    let on_cpu = |event| {
        packet(|packet| {
            packet.perf_sample(|sample| {
                sample.cpu(3).producer_event(|out| {
                    out.cpu_event(event);
                });
            });
        })
    };
    let recording = recording(&[
        described(),
        on_cpu(CpuEvent::CPU_THROTTLED),
        on_cpu(CpuEvent::CPU_UNTHROTTLED),
        on_cpu(CpuEvent::CPU_GONE),
        on_cpu(CpuEvent::CPU_SAMPLED),
        on_cpu(CpuEvent::CPU_UNAVAILABLE),
        on_cpu(CpuEvent::CPU_UNREADABLE),
        skipped(SampleSkipReason::PROFILER_SKIP_UNWIND_ENQUEUE),
        skipped(SampleSkipReason::PROFILER_SKIP_READ_STAGE),
        skipped(SampleSkipReason::PROFILER_SKIP_NOT_IN_SCOPE),
        sample(|_| {}),
        lost,
    ]);
    let expected = Losses {
        kernel: 12,
        overload: 1,
        skipped: 1,
        out_of_scope: 1,
        stackless: 1,
        throttled: 1,
        counters: 1,
        gone_cpus: [3].into(),
        unavailable_cpus: [3].into(),
        ..Losses::default()
    };
    assert_eq!(recording.profile.losses, expected);
    assert_eq!(recording.profile.samples, 4);
}

#[test]
fn what_samples_of_other_threads_lack_is_not_counted_but_their_frames_have_names() {
    let mut recorder = Recorder::new(Keep::Samples, |thread| thread.pid == 5);
    let incomplete = |pid| {
        sample(|sample| {
            sample
                .pid(pid)
                .callstack_iid(1)
                .unwind_error(StackUnwindError::UNWIND_ERROR_INVALID_MAP);
        })
    };
    for packet in [described(), incomplete(3), sample(|_| {}), incomplete(5)] {
        recorder.packet(&packet);
    }
    let recording = recorder.finish();
    let expected = Losses {
        truncated: 1,
        ..Losses::default()
    };
    assert_eq!(recording.profile.losses, expected);
    assert_eq!(recording.samples.len(), 1);
    let mut recorder = Recorder::new(Keep::Totals, |_| false);
    for packet in [described(), with_stack()] {
        recorder.packet(&packet);
    }
    assert_eq!(recorder.finish().profile.unnamed().len(), 1);
}

#[test]
fn two_sequences_share_what_is_the_same() {
    let second = |mut packet: Vec<u8>| {
        // Field 10, which `packet` writes first.
        packet[1] = 8;
        packet
    };
    let recording = recording(&[
        described(),
        with_stack(),
        second(described()),
        second(with_stack()),
    ]);
    let sorted = recording.totals.sorted();
    assert_eq!(sorted.len(), 1);
    assert_eq!(sorted[0].1, 2);
}

#[test]
fn waiting_comes_last_among_events_with_stacks() {
    let of_event = |sequence: u8, name: &str| {
        let mut described = packet(|packet| {
            packet
                .sequence_flags(CLEARED)
                .interned_data(description)
                .trace_packet_defaults(|defaults| {
                    defaults.perf_sample_defaults(|defaults| {
                        defaults.timebase(|timebase| {
                            timebase.name(name);
                        });
                    });
                });
        });
        let mut sampled = with_stack();
        // Field 10, which `packet` writes first.
        (described[1], sampled[1]) = (sequence, sequence);
        [described, sampled]
    };
    let packets = [of_event(8, OFF_CPU), of_event(9, "ticks"), of_event(10, "faults")].concat();
    let recording = recording(&packets[..5]);
    let names: Vec<&str> = recording
        .events_with_stacks()
        .iter()
        .map(|event| &*recording.profile.events[event.0 as usize].name)
        .collect();
    assert_eq!(names, ["ticks", OFF_CPU]);
}

#[test]
fn threads_have_the_names_of_the_process_tree() {
    let tree = packet(|packet| {
        packet.process_tree(|tree| {
            tree.processes(|process| {
                process.pid(3).cmdline("/usr/bin/prog").cmdline("--flag");
            });
            tree.threads(|thread| {
                thread.tid(4).tgid(3).name("worker");
            });
        });
    });
    let recording = recording(&[described(), with_stack(), tree]);
    let names = &recording.profile.names;
    assert_eq!(names.process(3), Some("prog"));
    assert_eq!(names.thread(Thread { pid: 3, tid: 4 }), Some("worker"));
    assert_eq!(names.thread(Thread { pid: 3, tid: 3 }), Some("prog"));
    assert_eq!(names.thread(Thread { pid: 3, tid: 5 }), None);
}

proptest! {
    /// The seeds of failures are printed by the library.
    #[test]
    fn damaged_packets_are_survived(
        changes in prop::collection::vec((0_usize..4096, any::<u8>()), 1..20),
        order in prop::collection::vec(0_usize..4, 1..12),
    ) {
        let packets = [described(), with_stack(), symbols("/usr/prog"), sample(|_| {})];
        let mut recorder = Recorder::new(Keep::Samples, |_| true);
        for (place, which) in order.into_iter().enumerate() {
            let mut packet = packets[which].clone();
            for (at, value) in &changes {
                let at = (at + place) % packet.len();
                packet[at] = *value;
            }
            recorder.packet(&packet);
        }
        let recording = recorder.finish();
        for (key, _) in recording.totals.sorted() {
            for frame in recording.profile.stacks.frames(key.stack) {
                prop_assert!(!recording.profile.lines(frame).is_empty());
            }
        }
    }
}
