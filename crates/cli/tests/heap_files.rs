//! Heap profiles in trace files: `ferretto convert`, `info` and `symbolize` read the same from them as upstream's trace processor.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::write::profile_packet::{HeapSample, ProcessHeapSamples};
use ferretto_proto::write::{InternedData, ProfilePacket, Trace, TracePacket};
use ferretto_wire::Writer;

use crate::support::c_program::compile;
use crate::support::random::Random;
use crate::support::trace::{LOSSES, TraceProcessor};

const CLEARED: u32 = SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32;
const BOOTTIME: u32 = 6;
const MONOTONIC_COARSE: u32 = 4;

/// For each stack, `heap;outermost;…;innermost`: the number of bytes that were allocated, and the number of those that were not freed.
const STACKS: &str = "
    with recursive walk(id, parent, names) as (
        select c.id, c.parent_id, f.name from stack_profile_callsite c join stack_profile_frame f on c.frame_id = f.id
        union all
        select walk.id, c.parent_id, f.name || ';' || walk.names from walk
            join stack_profile_callsite c on walk.parent = c.id join stack_profile_frame f on c.frame_id = f.id
    )
    select a.heap_name || ';' || walk.names, sum(iif(a.size > 0, a.size, 0)), sum(a.size),
        sum(iif(a.count > 0, a.count, 0)), sum(a.count)
    from heap_profile_allocation a join walk on walk.id = a.callsite_id where walk.parent is null group by 1";

/// A trace that is being written.
#[derive(Default)]
struct File {
    trace: Writer,
    index: u64,
}

impl File {
    /// A file with clocks and the name of process 5.
    fn new() -> File {
        let mut file = File::default();
        file.packet(|packet| {
            packet.clock_snapshot(|snapshot| {
                for id in [BOOTTIME, MONOTONIC_COARSE] {
                    snapshot.clocks(|clock| {
                        clock.clock_id(id).timestamp(0);
                    });
                }
            });
        });
        file.packet(|packet| {
            packet.process_tree(|tree| {
                tree.processes(|process| {
                    process.pid(5).ppid(1).cmdline("/usr/bin/server");
                });
            });
        });
        file
    }

    fn packet(&mut self, fill: impl FnOnce(&mut TracePacket<'_>)) {
        Trace::new(&mut self.trace).packet(|packet| {
            packet.trusted_packet_sequence_id(7);
            fill(packet);
        });
    }

    fn profile(&mut self, fill: impl FnOnce(&mut ProfilePacket<'_>)) {
        let index = self.index;
        self.index += 1;
        self.packet(|packet| {
            packet.timestamp(100 + index).profile_packet(|profile| {
                profile.index(index);
                fill(profile);
            });
        });
    }

    fn write(&self, path: &Path) {
        std::fs::write(path, self.trace.as_slice()).unwrap();
    }
}

/// The stacks `0;…;n` for each number up to `most`. The ids of a stack and of its frame are the number plus one.
fn stacks(interned: &mut InternedData<'_>, most: u64) {
    interned.mapping_paths(|text| {
        text.iid(1).str("prog");
    });
    interned.mappings(|mapping| {
        mapping.iid(1).path_string_ids(1).start(0x1000).end(0x2000);
    });
    for number in 0..=most {
        interned.function_names(|text| {
            text.iid(number + 1).str(format!("f{number}"));
        });
        interned.frames(|frame| {
            frame
                .iid(number + 1)
                .function_name_id(number + 1)
                .mapping_id(1)
                .rel_pc(number * 16);
        });
        interned.callstacks(|stack| {
            stack.iid(number + 1);
            for frame in 0..=number {
                stack.frame_ids(frame + 1);
            }
        });
    }
}

/// Bytes allocated and freed, and the number of allocations and of frees.
#[derive(Debug, Clone, Copy, Default)]
struct Counts([u64; 4]);

fn sample(stack: u64, counts: Counts) -> impl FnOnce(&mut HeapSample<'_>) {
    let Counts([allocated, freed, allocations, frees]) = counts;
    move |sample| {
        sample
            .callstack_id(stack)
            .self_allocated(allocated)
            .self_freed(freed)
            .alloc_count(allocations)
            .free_count(frees);
    }
}

fn header(dump: &mut ProcessHeapSamples<'_>, heap: &str, time: u64) {
    dump.pid(5)
        .heap_name(heap)
        .timestamp(time)
        .sampling_interval_bytes(4096)
        .orig_sampling_interval_bytes(4096)
        .stats(|stats| {
            stats.heap_samples(40);
        });
}

/// Runs `ferretto`; returns its exit code, stdout and stderr.
fn ferretto(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferretto"));
    let output = command
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Returns the counts of each `heap;outermost;…;innermost` in folded stacks, except counts of 0.
fn folded(folder: &Path, trace: &str, of: &str) -> BTreeMap<String, i64> {
    let (code, folded, said) = ferretto(folder, &["convert", "--to", "folded", "--of", of, trace]);
    if said.contains("has no heap profile") {
        return BTreeMap::new();
    }
    assert_eq!((code, &*said), (Some(0), ""), "{trace} {of}");
    let lines = folded.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let (_process, stack) = stack.split_once(';').unwrap();
        (stack.to_owned(), count.parse().unwrap())
    });
    lines.collect()
}

/// Compares our conversion of a trace with upstream's trace processor. Returns the number of stacks with allocations.
fn compare(folder: &Path, trace: &str, processor: &TraceProcessor) -> usize {
    let [rows] = processor.query(&folder.join(trace), [STACKS]);
    for (column, of) in [
        (1, "allocated"),
        (2, "live"),
        (3, "allocated-count"),
        (4, "live-count"),
    ] {
        let counts = rows
            .iter()
            .map(|row| (row[0].clone(), row[column].parse().unwrap()));
        let expected: BTreeMap<String, i64> = counts.filter(|(_, count)| *count != 0).collect();
        assert_eq!(folded(folder, trace, of), expected, "{of} of {trace}");
    }
    rows.len()
}

/// Dumps of one heap in random numbers of packets. Each dump continues the counts of the dump before. Stacks come before the samples, or between the samples
/// and the end.
fn random(seed: u64) -> File {
    const STACKS: u64 = 12;
    let mut random = Random(seed);
    let mut file = File::new();
    let early = random.one_in(2);
    file.packet(|packet| {
        packet.sequence_flags(CLEARED).interned_data(|interned| {
            if early {
                stacks(interned, STACKS);
            }
        });
    });
    let mut counts = [Counts::default(); STACKS as usize];
    for dump in 0..1 + random.from(0, 4) {
        for Counts([allocated, freed, allocations, frees]) in &mut counts {
            let news = random.from(0, 5);
            *allocated += news * (1 + random.from(0, 10_000));
            *allocations += news;
            if random.one_in(2) {
                *freed += random.from(0, *allocated - *freed + 1);
                *frees += random.from(0, *allocations - *frees + 1);
            }
        }
        let mut rest: Vec<u64> = (0..STACKS).filter(|_| random.from(0, 4) > 0).collect();
        while !rest.is_empty() {
            let part: Vec<u64> = rest
                .drain(..(1 + random.from(0, rest.len() as u64)) as usize)
                .collect();
            file.profile(|profile| {
                profile.continued(true).process_dumps(|out| {
                    header(out, "libc.malloc", 1000 * (dump + 1));
                    for stack in part {
                        out.samples(sample(stack + 1, counts[stack as usize]));
                    }
                });
            });
        }
        if !early {
            file.packet(|packet| {
                packet.interned_data(|interned| stacks(interned, STACKS));
            });
        }
        file.profile(|_| {});
    }
    file
}

#[test]
fn stacks_have_the_bytes_that_upstreams_trace_processor_gives_them() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut all = 0;
    for seed in 0..8 {
        println!("seed {seed}");
        random(seed).write(&folder.path().join("random.pftrace"));
        all += compare(folder.path(), "random.pftrace", &processor);
    }
    assert!(all > 40, "only {all} stacks were compared");
}

#[test]
fn tables_of_old_profilers_several_heaps_and_the_maximum_are_read_as_upstream_reads_them() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();

    // Like packets of heapprofd on Android Q, each packet contains its own interned data. These are valid until the end of the dump.
    let mut old = File::new();
    for (name, allocated) in [("early", 100), ("late", 70)] {
        old.profile(|profile| {
            for (iid, text) in [(1, name), (2, "lib.so"), (3, "id")] {
                profile.strings(|string| {
                    string.iid(iid).str(text);
                });
            }
            profile.frames(|frame| {
                frame.iid(1).function_name_id(1).mapping_id(1).rel_pc(allocated);
            });
            profile.callstacks(|stack| {
                stack.iid(1).frame_ids(1);
            });
            profile.mappings(|mapping| {
                mapping.iid(1).path_string_ids(2).build_id(3);
            });
            profile.process_dumps(|dump| {
                dump.pid(5)
                    .timestamp(allocated)
                    .samples(sample(1, Counts([allocated, 30, 5, 1])));
            });
        });
    }
    old.write(&folder.path().join("old.pftrace"));
    assert_eq!(compare(folder.path(), "old.pftrace", &processor), 2);

    let mut heaps = File::new();
    heaps.packet(|packet| {
        packet
            .sequence_flags(CLEARED)
            .interned_data(|interned| stacks(interned, 3));
    });
    heaps.profile(|profile| {
        profile.continued(true).process_dumps(|dump| {
            header(dump, "libc.malloc", 10);
            dump.samples(sample(1, Counts([500, 100, 5, 1])));
        });
    });
    heaps.profile(|profile| {
        profile.process_dumps(|dump| {
            header(dump, "my.heap", 10);
            dump.samples(sample(2, Counts([900, 900, 9, 9])));
            dump.samples(sample(3, Counts([40, 0, 1, 0])));
        });
    });
    heaps.write(&folder.path().join("heaps.pftrace"));
    assert_eq!(compare(folder.path(), "heaps.pftrace", &processor), 3);

    let mut at_max = File::new();
    at_max.packet(|packet| {
        packet
            .sequence_flags(CLEARED)
            .interned_data(|interned| stacks(interned, 2));
    });
    at_max.profile(|profile| {
        profile.process_dumps(|dump| {
            header(dump, "libc.malloc", 10);
            for (stack, bytes) in [(1, 6000), (2, 90)] {
                dump.samples(|sample| {
                    sample.callstack_id(stack).self_max(bytes).self_max_count(stack);
                });
            }
        });
    });
    at_max.write(&folder.path().join("max.pftrace"));
    assert_eq!(compare(folder.path(), "max.pftrace", &processor), 2);
    let [problems] = processor.query(&folder.path().join("max.pftrace"), [LOSSES]);
    assert!(problems.is_empty(), "{problems:?}");
}

/// A trace with the heap `libc.malloc` of process 5, which lost samples.
fn lossy() -> File {
    let mut file = File::new();
    file.packet(|packet| {
        packet
            .sequence_flags(CLEARED)
            .interned_data(|interned| stacks(interned, 1));
    });
    file.profile(|profile| {
        profile.process_dumps(|dump| {
            header(dump, "libc.malloc", 10);
            dump.buffer_overran(true)
                .losses(|losses| {
                    losses.samples(3).bytes(12_288);
                })
                .samples(sample(1, Counts([8192, 4096, 2, 1])))
                .samples(sample(2, Counts([1 << 20, 0, 256, 0])));
        });
    });
    file
}

#[test]
fn info_names_heaps_and_what_is_missing_in_them() {
    let folder = tempfile::tempdir().unwrap();
    lossy().write(&folder.path().join("heap.pftrace"));
    let (_, report, said) = ferretto(folder.path(), &["info", "heap.pftrace"]);
    let row = report
        .lines()
        .find(|line| line.contains("libc.malloc"))
        .expect(&report);
    for word in ["5", "server", "4.0 KiB", "40", "257", "1.0 MiB", "last dump"] {
        assert!(row.contains(word), "{word}: {row}\n{said}");
    }
    assert!(report.contains("3 samples of allocations, 12.0 KiB"), "{report}");
    let (code, json, _) = ferretto(folder.path(), &["info", "--json", "--strict", "heap.pftrace"]);
    assert_eq!(code, Some(3), "a loss counts");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["heap_profiles"][0]["live_bytes"], (1 << 20) + 4096);
    assert_eq!(json["losses"][0]["cause"], "heap_buffer_overran");
}

#[test]
fn conversions_choose_what_the_trace_has_and_say_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    lossy().write(&folder.path().join("heap.pftrace"));
    let convert = |words: &[&str]| ferretto(folder.path(), &[&["convert"], words].concat());
    let (code, stacks, said) = convert(&["--to", "folded", "heap.pftrace"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        stacks,
        "server;libc.malloc;f0 4096\nserver;libc.malloc;f0;f1 1048576\n"
    );
    assert!(said.contains("3 samples of allocations lost"), "{said}");
    let (code, _, said) = convert(&["--to", "folded", "--of", "cpu", "heap.pftrace"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("leave --of out"), "{said}");
    let (code, _, said) = convert(&["--to", "firefox", "heap.pftrace"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("--to pprof"), "{said}");
    let (code, picture, _) = convert(&["--to", "svg", "--of", "allocated", "heap.pftrace"]);
    assert_eq!(code, Some(0));
    assert!(picture.contains("Total malloc size"), "{}", &picture[..500]);
    let (code, ..) = convert(&["-o", "heap.pb.gz", "heap.pftrace"]);
    assert_eq!(code, Some(0));
    let Ok(output) = Command::new("go")
        .args(["tool", "pprof", "-raw"])
        .arg(folder.path().join("heap.pb.gz"))
        .output()
    else {
        println!("skipped in part: there is no pprof");
        return;
    };
    let raw = String::from_utf8_lossy(&output.stdout);
    assert!(raw.contains("Unreleased malloc size/bytes"), "{raw}");
}

#[test]
fn symbolize_names_the_functions_of_heap_profiles() {
    const PROGRAM: &str = "__attribute__((noinline)) int holds_memory(int n) { return n * 3; }
        int main(int argc, char **argv) { return holds_memory(argc); }";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), "leaky", PROGRAM, &["-g", "-O1"]) else {
        return;
    };
    let Ok(symbols) = Command::new("nm").arg(&program).output() else {
        println!("skipped: there is no nm");
        return;
    };
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let symbol = symbols
        .lines()
        .find(|line| line.ends_with(" holds_memory"))
        .unwrap();
    let address = u64::from_str_radix(&symbol[..16], 16).unwrap();
    let mut file = File::new();
    file.packet(|packet| {
        packet.sequence_flags(CLEARED).interned_data(|interned| {
            interned.mapping_paths(|text| {
                text.iid(1).str(program.to_str().unwrap());
            });
            interned.mappings(|mapping| {
                mapping.iid(1).path_string_ids(1);
            });
            interned.frames(|frame| {
                frame.iid(1).mapping_id(1).rel_pc(address);
            });
            interned.callstacks(|stack| {
                stack.iid(1).frame_ids(1);
            });
        });
    });
    file.profile(|profile| {
        profile.process_dumps(|dump| {
            header(dump, "libc.malloc", 10);
            dump.samples(sample(1, Counts([64, 0, 1, 0])));
        });
    });
    file.write(&folder.path().join("heap.pftrace"));
    let (code, _, said) = ferretto(folder.path(), &["symbolize", "heap.pftrace"]);
    assert_eq!(code, Some(0), "{said}");
    let stacks = folded(folder.path(), "heap.pftrace", "live");
    assert_eq!(
        stacks,
        BTreeMap::from([("libc.malloc;holds_memory".to_owned(), 64)])
    );
}
