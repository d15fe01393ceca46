use std::collections::BTreeMap;

use ferretto_proto::write::profile_packet::{HeapSample, ProcessHeapSamples};
use ferretto_proto::write::{InternedData, ProfilePacket};

use crate::samples::tests::{CLEARED, packet};
use crate::samples::{Keep, Measure, Recorder, Recording};

/// Frames 1 and 2, `main` and `work` in `/prog`; and the stacks 1 (`main`) and 2 (`main`, `work`). Stack 3 is the same as stack 2.
fn stacks(interned: &mut InternedData<'_>) {
    for (iid, name) in [(1, "main"), (2, "work")] {
        interned.function_names(|text| {
            text.iid(iid).str(name);
        });
        interned.frames(|frame| {
            frame
                .iid(iid)
                .function_name_id(iid)
                .mapping_id(1)
                .rel_pc(iid * 16);
        });
    }
    interned.mapping_paths(|text| {
        text.iid(1).str("prog");
    });
    interned.mappings(|mapping| {
        mapping.iid(1).path_string_ids(1);
    });
    interned.callstacks(|stack| {
        stack.iid(1).frame_ids(1);
    });
    for iid in [2, 3] {
        interned.callstacks(|stack| {
            stack.iid(iid).frame_ids(1).frame_ids(2);
        });
    }
}

fn interned() -> Vec<u8> {
    packet(|packet| {
        packet.sequence_flags(CLEARED).interned_data(stacks);
    })
}

fn profile(index: u64, fill: impl FnOnce(&mut ProfilePacket<'_>)) -> Vec<u8> {
    packet(|packet| {
        packet.profile_packet(|profile| {
            profile.index(index);
            fill(profile);
        });
    })
}

/// The counts of a stack: bytes allocated and freed. Each allocation has ten bytes.
fn counted(stack: u64, allocated: u64, freed: u64) -> impl FnOnce(&mut HeapSample<'_>) {
    move |sample| {
        sample
            .callstack_id(stack)
            .self_allocated(allocated)
            .self_freed(freed)
            .alloc_count(allocated / 10)
            .free_count(freed / 10);
    }
}

fn dump(dump: &mut ProcessHeapSamples<'_>, time: u64, stacks: &[(u64, u64, u64)]) {
    dump.pid(5)
        .heap_name("libc.malloc")
        .timestamp(time)
        .sampling_interval_bytes(4096)
        .orig_sampling_interval_bytes(4096);
    for (stack, allocated, freed) in stacks {
        dump.samples(counted(*stack, *allocated, *freed));
    }
}

fn recording(packets: &[Vec<u8>]) -> Recording {
    let mut recorder = Recorder::new(Keep::Totals, |_| true);
    for packet in packets {
        recorder.packet(packet);
    }
    recorder.finish()
}

/// Returns the numbers of each stack. The key of a stack consists of the names of its frames.
fn counts(recording: &Recording, measure: Measure) -> BTreeMap<String, u64> {
    let of_measure = recording.totals.sorted().into_iter();
    let of_measure = of_measure.filter(|(key, _)| recording.measure(key.event) == Some(measure));
    let profile = &recording.profile;
    let named = of_measure.map(|(key, count)| {
        let frames = profile.stacks.frames(key.stack);
        let mut names: Vec<String> = frames
            .flat_map(|frame| profile.lines(frame))
            .map(|line| line.name.into_owned())
            .collect();
        names.reverse();
        (names.join(";"), count)
    });
    named.collect()
}

fn stack_counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect()
}

#[test]
fn the_last_dump_of_a_stack_has_everything() {
    let first = profile(0, |packet| {
        packet.process_dumps(|out| dump(out, 10, &[(1, 100, 0), (2, 500, 200)]));
    });
    let second = profile(1, |packet| {
        packet.process_dumps(|out| dump(out, 20, &[(2, 700, 650)]));
    });
    let recording = recording(&[interned(), first, second]);
    assert_eq!(
        counts(&recording, Measure::AllocatedSize),
        stack_counts(&[("main", 100), ("main;work", 700)])
    );
    assert_eq!(
        counts(&recording, Measure::LiveSize),
        stack_counts(&[("main", 100), ("main;work", 50)])
    );
    assert_eq!(
        counts(&recording, Measure::LiveCount),
        stack_counts(&[("main", 10), ("main;work", 5)])
    );
    let [heap] = &recording.profile.heaps[..] else {
        panic!()
    };
    assert_eq!((heap.pid, &*heap.name, heap.dumps), (5, "libc.malloc", 2));
    assert_eq!(recording.profile.losses.heaps.missing_packets, 0);
}

#[test]
fn stacks_may_come_after_the_samples_that_refer_to_them() {
    let samples = profile(0, |packet| {
        packet
            .continued(true)
            .process_dumps(|out| dump(out, 10, &[(1, 100, 0)]));
    });
    let more = profile(1, |packet| {
        packet
            .continued(true)
            .process_dumps(|out| dump(out, 10, &[(2, 300, 0)]));
    });
    let end = profile(2, |_| {});
    let whole = recording(&[samples.clone(), more.clone(), interned(), end]);
    let expected = stack_counts(&[("main", 100), ("main;work", 300)]);
    assert_eq!(counts(&whole, Measure::LiveSize), expected);
    assert_eq!(whole.profile.heaps[0].dumps, 1);
    // Nor is anything lost if the profiler was killed before it wrote the end.
    let described = packet(|packet| {
        packet.interned_data(stacks);
    });
    let cut = recording(&[samples, more, described]);
    assert_eq!(counts(&cut, Measure::LiveSize), expected);
}

#[test]
fn the_tables_of_old_profilers_hold_until_the_end_of_a_dump() {
    let with_tables = |index, name: &str, allocated| {
        profile(index, |packet| {
            for (iid, text) in [(1, name), (2, "lib.so"), (3, "\u{1}\u{2}")] {
                packet.strings(|string| {
                    string.iid(iid).str(text);
                });
            }
            packet.frames(|frame| {
                frame.iid(1).function_name_id(1).mapping_id(1).rel_pc(16);
            });
            packet.callstacks(|stack| {
                stack.iid(1).frame_ids(1);
            });
            packet.mappings(|mapping| {
                mapping.iid(1).path_string_ids(2).build_id(3);
            });
            packet.process_dumps(|dump| {
                dump.pid(5).samples(counted(1, allocated, 0));
            });
        })
    };
    let recording = recording(&[with_tables(0, "early", 100), with_tables(1, "late", 200)]);
    assert_eq!(
        counts(&recording, Measure::AllocatedSize),
        stack_counts(&[("early", 100), ("late", 200)])
    );
    let module = recording.profile.unnamed();
    assert_eq!(module.len(), 1);
    assert_eq!(
        (&*module[0].path, &*module[0].build_id),
        ("/lib.so", &b"\x01\x02"[..])
    );
    assert_eq!(recording.profile.heaps[0].name, "unknown");
}

#[test]
fn a_stack_with_a_new_number_counts_from_zero_and_is_added() {
    let first = profile(0, |packet| {
        packet.process_dumps(|out| dump(out, 10, &[(2, 100, 100)]));
    });
    let second = profile(1, |packet| {
        packet.process_dumps(|out| dump(out, 20, &[(3, 70, 20)]));
    });
    let recording = recording(&[interned(), first, second]);
    assert_eq!(
        counts(&recording, Measure::AllocatedSize),
        stack_counts(&[("main;work", 170)])
    );
    assert_eq!(
        counts(&recording, Measure::LiveSize),
        stack_counts(&[("main;work", 50)])
    );
}

#[test]
fn a_process_that_runs_another_program_begins_a_new_profile() {
    let ended = profile(0, |packet| {
        packet.continued(true).process_dumps(|out| {
            dump(out, 10, &[(1, 100, 0)]);
            out.disconnected(true);
        });
    });
    // The same dump, in its next packet.
    let its_rest = profile(1, |packet| {
        packet.process_dumps(|out| {
            dump(out, 10, &[(2, 40, 0)]);
            out.disconnected(true);
        });
    });
    let next = profile(2, |packet| {
        packet.process_dumps(|out| dump(out, 20, &[(1, 30, 0)]));
    });
    let recording = recording(&[interned(), ended, its_rest, next]);
    assert_eq!(
        counts(&recording, Measure::AllocatedSize),
        stack_counts(&[("main", 130), ("main;work", 40)])
    );
}

#[test]
fn at_the_maximum_counts_are_those_of_that_time() {
    let old = |asked: u64| {
        let at_max = profile(0, |packet| {
            packet.process_dumps(|dump| {
                dump.pid(5)
                    .heap_name("libc.malloc")
                    .orig_sampling_interval_bytes(asked)
                    .samples(|sample| {
                        sample.callstack_id(1).self_max(900).self_max_count(9);
                    });
            });
        });
        let recording = recording(&[interned(), at_max]);
        assert!(recording.profile.heaps[0].is_at_max);
        assert_eq!(
            counts(&recording, Measure::LiveSize),
            stack_counts(&[("main", 900)])
        );
        counts(&recording, Measure::LiveCount)
    };
    assert_eq!(old(4096), stack_counts(&[("main", 9)]));
    // Profilers without this field counted wrongly.
    assert_eq!(old(0), stack_counts(&[]));
}

#[test]
fn what_cannot_be_read_is_counted() {
    let unknown_stack = profile(0, |packet| {
        packet.process_dumps(|out| dump(out, 10, &[(9, 100, 0), (1, 5, 0)]));
    });
    let later = profile(4, |_| {});
    let recording = recording(&[interned(), unknown_stack, later]);
    assert_eq!(
        counts(&recording, Measure::AllocatedSize),
        stack_counts(&[("main", 5)])
    );
    let losses = &recording.profile.losses.heaps;
    assert_eq!((losses.unreadable, losses.missing_packets), (1, 3));
}

#[test]
fn names_of_numbers_are_those_of_upstream_for_each_kind_of_heap() {
    let names = |heaps: &[&str]| {
        let packets: Vec<Vec<u8>> = heaps
            .iter()
            .enumerate()
            .map(|(index, heap)| {
                profile(index as u64, |packet| {
                    packet.process_dumps(|dump| {
                        dump.pid(5).heap_name(*heap).samples(counted(1, 10, 0));
                    });
                })
            })
            .collect();
        let recording = recording(&[vec![interned()], packets].concat());
        let events = recording.profile.events.iter();
        events.map(|event| event.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&["libc.malloc"]),
        [
            "Total malloc count",
            "Total malloc size",
            "Unreleased malloc count",
            "Unreleased malloc size"
        ]
    );
    assert_eq!(
        names(&["libc.malloc", "my.heap"]),
        ["Total count", "Total size", "Unreleased count", "Unreleased size"]
    );
    assert_eq!(
        names(&["com.android.art"]),
        ["Total allocation count", "Total allocation size"]
    );
}

/// A final dump of a heap, which reports lost samples.
fn final_dump(out: &mut ProcessHeapSamples<'_>, heap: &str, time: u64, lost: u64) {
    out.pid(5)
        .heap_name(heap)
        .timestamp(time)
        .disconnected(true)
        .losses(|losses| {
            losses.samples(lost);
        });
}

#[test]
fn losses_of_processes_with_the_same_id_add_up_and_those_of_the_heaps_of_one_do_not() {
    let lost = |packets: &[Vec<u8>]| recording(packets).profile.losses.heaps.missing().samples;
    let packets = [
        profile(0, |packet| {
            packet.process_dumps(|out| final_dump(out, "libc.malloc", 10, 3));
            packet.continued(true);
        }),
        // The rest of it.
        profile(1, |packet| {
            packet.process_dumps(|out| final_dump(out, "libc.malloc", 10, 3));
        }),
        profile(2, |packet| {
            packet.process_dumps(|out| final_dump(out, "other", 11, 3));
        }),
        // The next process.
        profile(3, |packet| {
            packet.process_dumps(|out| {
                out.pid(5)
                    .heap_name("libc.malloc")
                    .timestamp(20)
                    .losses(|losses| {
                        losses.samples(1);
                    });
            });
        }),
        profile(4, |packet| {
            packet.process_dumps(|out| final_dump(out, "libc.malloc", 30, 4));
        }),
        // And one that lives too shortly for more than one dump.
        profile(5, |packet| {
            packet.process_dumps(|out| final_dump(out, "libc.malloc", 40, 5));
        }),
    ];
    assert_eq!(lost(&packets[..3]), 3);
    assert_eq!(lost(&packets[..4]), 3 + 1);
    assert_eq!(lost(&packets[..5]), 3 + 4);
    assert_eq!(lost(&packets), 3 + 4 + 5);
}

#[test]
fn processes_that_are_not_wanted_are_neither_counted_nor_missed() {
    let packet = profile(0, |packet| {
        packet.process_dumps(|out| {
            out.pid(4)
                .heap_name("a stranger's")
                .timestamp(10)
                .buffer_overran(true)
                .samples(counted(1, 70, 0))
                .losses(|losses| {
                    losses.samples(9);
                });
        });
        packet.process_dumps(|out| dump(out, 10, &[(1, 100, 0)]));
    });
    let mut recorder = Recorder::new(Keep::Totals, |thread: crate::samples::Thread| thread.pid == 5);
    for packet in [interned(), packet] {
        recorder.packet(&packet);
    }
    let recording = recorder.finish();
    let heaps = recording.profile.heaps.iter();
    let heaps: Vec<(u32, &str)> = heaps.map(|heap| (heap.pid, &*heap.name)).collect();
    assert_eq!(heaps, [(5, "libc.malloc")]);
    assert_eq!(
        counts(&recording, Measure::AllocatedSize),
        stack_counts(&[("main", 100)])
    );
    let owner = recording.totals.sorted()[0].0.owner;
    assert!(matches!(owner, crate::samples::Owner::Heap(heap) if recording.profile.heap(heap).is_some()));
    let losses = &recording.profile.losses.heaps;
    assert_eq!((losses.overran.len(), losses.missing().samples), (0, 0));
}
