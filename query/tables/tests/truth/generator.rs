//! Traces of random but valid packets.

use ferretto_wire::Writer;

#[path = "kernel_slices.rs"]
mod kernel_slices;
#[path = "untyped.rs"]
mod untyped;

/// A generator of numbers, from a seed.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// What the packets of a trace have in common.
pub(crate) struct Generator {
    pub(crate) numbers: Numbers,
    pub(crate) trace: Writer,
    pub(crate) now: u64,
    pub(crate) cpus: u64,
}

const BOOTTIME: u64 = 6;
const MONOTONIC: u64 = 3;
const STATES: [u64; 6] = [0, 1, 2, 0x100, 0x80, 0x40];
/// The boot time at which traces begin.
const START: u64 = 5_000_000_000;
/// Monotonic time is behind by this.
const BEHIND: u64 = 1_000_000;

impl Generator {
    pub(crate) fn new(seed: u64) -> Generator {
        let mut numbers = Numbers::new(seed);
        let cpus = 1 + numbers.below(4);
        Generator {
            numbers,
            trace: Writer::new(),
            now: START,
            cpus,
        }
    }

    /// Returns a whole trace.
    pub(crate) fn whole(seed: u64) -> Vec<u8> {
        let mut generator = Generator::new(seed);
        generator.beginning();
        for _ in 0..20 + generator.numbers.below(60) {
            match generator.numbers.below(12) {
                0 => generator.compact(40),
                1 => generator.single(20),
                2 => generator.process_tree(),
                3 => generator.counters(),
                4 => generator.clock(),
                7 => generator.perf_samples(),
                8 => generator.heap_profile(),
                9 => generator.smaps(),
                10 | 11 => kernel_slices::bundle(&mut generator, 100),
                _ => generator.track_events(25),
            }
        }
        generator.trace.into_vec()
    }

    fn packet(&mut self, fill: impl FnOnce(&mut Writer)) {
        self.trace.nested(1, |packet| {
            packet.varint_field(3, 0);
            packet.varint_field(10, 1);
            fill(packet);
        });
    }

    /// Clocks, machine and descriptions of tracks.
    pub(crate) fn beginning(&mut self) {
        self.clock();
        const MACHINES: [&str; 5] = ["x86_64", "aarch64", "armv8l", "i686", "riscv64"];
        let machine = MACHINES[self.numbers.below(5) as usize];
        self.packet(|packet| {
            packet.nested(45, |info| {
                info.nested(1, |uts| {
                    uts.bytes_field(1, b"Linux");
                    uts.bytes_field(2, b"#1 SMP");
                    uts.bytes_field(3, b"6.1.0");
                    uts.bytes_field(4, machine.as_bytes());
                });
                info.varint_field(5, 33);
                info.varint_field(8, 4);
                info.bytes_field(14, b"maker");
            });
        });
        let cpus = self.cpus;
        self.packet(|packet| {
            packet.nested(67, |info| {
                for cpu in 0..cpus {
                    info.nested(1, |it| {
                        it.bytes_field(1, b"processor");
                        for frequency in 1..4 {
                            it.varint_field(2, (frequency + cpu % 2) * 100_000);
                        }
                    });
                }
            });
        });
        self.describe_tracks();
    }

    pub(crate) fn clock(&mut self) {
        self.now += 1000;
        let now = self.now;
        self.packet(|packet| {
            packet.nested(6, |snapshot| {
                for (clock, value) in [
                    (BOOTTIME, now),
                    (MONOTONIC, now - BEHIND),
                    (4, now - BEHIND),
                    (1, now + (1 << 60)),
                ] {
                    snapshot.nested(1, |reading| {
                        reading.varint_field(1, clock);
                        reading.varint_field(2, value);
                    });
                }
            });
        });
    }

    /// Scheduling of all CPUs in the compact encoding.
    pub(crate) fn compact(&mut self, most: u64) {
        let begin = self.now;
        for cpu in 0..self.cpus {
            let mut at = begin;
            let mut switches = Vec::new();
            let mut wakings = Vec::new();
            for _ in 0..self.numbers.below(most) {
                at += self.numbers.below(3) * 500;
                let row = [
                    at,
                    STATES[self.numbers.below(6) as usize],
                    self.numbers.below(12),
                    100 + self.numbers.below(40),
                ];
                match self.numbers.one_in(3) {
                    true => wakings.push((row, self.numbers.below(0x20))),
                    false => switches.push((row, self.numbers.below(3))),
                }
            }
            self.now = self.now.max(at);
            let deltas = |times: Vec<u64>| {
                let mut before = 0;
                times
                    .into_iter()
                    .map(move |time| time - std::mem::replace(&mut before, time))
            };
            self.packet(|packet| {
                packet.nested(1, |bundle| {
                    bundle.varint_field(1, cpu);
                    bundle.nested(4, |compact| {
                        for name in ["swapper", "alpha", "beta"] {
                            compact.bytes_field(5, name.as_bytes());
                        }
                        compact.packed_field(1, deltas(switches.iter().map(|(row, _)| row[0]).collect()));
                        compact.packed_field(2, switches.iter().map(|(row, _)| row[1]));
                        compact.packed_field(3, switches.iter().map(|(row, _)| row[2]));
                        compact.packed_field(4, switches.iter().map(|(row, _)| row[3]));
                        compact.packed_field(6, switches.iter().map(|(_, name)| *name));
                        compact.packed_field(7, deltas(wakings.iter().map(|(row, _)| row[0]).collect()));
                        compact.packed_field(8, wakings.iter().map(|(row, _)| row[2]));
                        compact.packed_field(9, wakings.iter().map(|_| 0));
                        compact.packed_field(10, wakings.iter().map(|(row, _)| row[3]));
                        compact.packed_field(11, wakings.iter().map(|_| 1));
                        compact.packed_field(12, wakings.iter().map(|(_, flags)| *flags));
                    });
                });
            });
        }
    }

    /// Single kernel events of one CPU.
    pub(crate) fn single(&mut self, most: u64) {
        let cpu = self.numbers.below(self.cpus);
        let mut events = Vec::new();
        for _ in 0..self.numbers.below(most) {
            self.now += self.numbers.below(3) * 700;
            let mut event = Writer::new();
            event.varint_field(1, self.now);
            let (pid, other) = (self.numbers.below(12), 1 + self.numbers.below(14));
            event.varint_field(2, pid);
            let numbers = &mut self.numbers;
            match numbers.below(12) {
                0..=2 => event.nested(4, |switch| {
                    switch.bytes_field(1, b"prev");
                    switch.varint_field(2, pid);
                    switch.varint_field(3, 120);
                    switch.varint_field(4, STATES[numbers.below(6) as usize]);
                    switch.bytes_field(5, b"next");
                    switch.varint_field(6, other);
                    switch.varint_field(7, 110);
                }),
                3 => event.nested(20, |waking| {
                    waking.bytes_field(1, b"woken");
                    waking.varint_field(2, other);
                    waking.varint_field(3, 120);
                }),
                4 => event.nested(235, |task| {
                    task.varint_field(1, other);
                    task.bytes_field(2, b"new");
                    task.varint_field(3, if numbers.one_in(2) { 0x1_0000 } else { 0 });
                }),
                5 => event.nested(236, |rename| {
                    rename.varint_field(1, other);
                    rename.bytes_field(2, b"old");
                    rename.bytes_field(3, format!("renamed {}", numbers.below(3)).as_bytes());
                }),
                6 => event.nested(240, |free| {
                    free.bytes_field(1, b"gone");
                    free.varint_field(2, other);
                }),
                7 => event.nested(18, |reason| {
                    reason.varint_field(1, other);
                    reason.varint_field(3, numbers.below(2));
                }),
                8 | 9 => untyped::event(&mut event, numbers),
                _ => event.nested(if numbers.one_in(2) { 11 } else { 13 }, |state| {
                    state.varint_field(1, numbers.below(5000));
                    state.varint_field(2, cpu);
                }),
            }
            events.push(event.into_vec());
        }
        self.packet(|packet| {
            packet.nested(1, |bundle| {
                bundle.varint_field(1, cpu);
                events.iter().for_each(|event| bundle.bytes_field(2, event));
                untyped::descriptors(bundle);
            });
        });
    }

    pub(crate) fn process_tree(&mut self) {
        self.now += 100;
        let (now, pid, parent) = (self.now, 1 + self.numbers.below(8), self.numbers.below(3));
        let words = 1 + self.numbers.below(3);
        let (tid, uid) = (self.numbers.below(14), self.numbers.below(200_000));
        self.packet(|packet| {
            packet.varint_field(8, now);
            packet.nested(2, |tree| {
                tree.nested(1, |process| {
                    process.varint_field(1, pid);
                    process.varint_field(2, parent);
                    for word in 0..words {
                        process.bytes_field(3, format!("word{word} of {pid}").as_bytes());
                    }
                    process.varint_field(5, uid);
                });
                tree.nested(2, |thread| {
                    thread.varint_field(1, tid);
                    thread.varint_field(3, pid);
                    thread.bytes_field(2, format!("thread {tid}").as_bytes());
                });
            });
        });
    }

    pub(crate) fn counters(&mut self) {
        self.now += 100;
        let now = self.now;
        let (pid, value, key) = (
            1 + self.numbers.below(8),
            self.numbers.below(1 << 40),
            1 + self.numbers.below(30),
        );
        self.packet(|packet| {
            packet.varint_field(8, now);
            packet.nested(9, |stats| {
                stats.nested(1, |process| {
                    process.varint_field(1, pid);
                    process.varint_field(2, value);
                    process.varint_field(10, value % 1000);
                    process.varint_field(21, value);
                    for fd in 0..value % 3 {
                        process.nested(15, |file| {
                            file.varint_field(1, fd);
                            if fd == 1 {
                                file.bytes_field(2, b"/etc/passwd");
                            }
                        });
                    }
                });
            });
        });
        self.packet(|packet| {
            packet.varint_field(8, now);
            packet.nested(7, |stats| {
                for field in [1, 2] {
                    stats.nested(field, |counter| {
                        counter.varint_field(1, key);
                        counter.varint_field(2, value);
                    });
                }
                stats.nested(3, |times| {
                    times.varint_field(1, pid % 2);
                    times.varint_field(2, value);
                });
                stats.varint_field(4, value);
                for device in [&b"sda"[..], b"nvme0n1"].iter().take(pid as usize % 3) {
                    stats.nested(13, |disk| {
                        disk.bytes_field(1, device);
                        for field in 2..=9 {
                            // Few enough digits that both programs print the same.
                            disk.varint_field(field, (value / u64::from(field) + now) % (1 << 24));
                        }
                    });
                }
                stats.nested(14, |pressure| {
                    pressure.varint_field(1, 1 + pid % 6);
                    pressure.varint_field(2, value);
                });
                stats.nested(15, |zone| {
                    zone.bytes_field(3, b"cpu-thermal");
                    zone.varint_field(2, pid * 10);
                });
                stats.nested(16, |idle| {
                    idle.varint_field(1, pid % 2);
                    for state in [&b"POLL"[..], b"C1"] {
                        idle.nested(2, |entry| {
                            entry.bytes_field(1, state);
                            entry.varint_field(2, value);
                        });
                    }
                });
            });
        });
    }

    /// Interned stacks of two functions in two mappings. Where `is_whole` is false, a function is missing.
    fn interned_stacks(packet: &mut Writer, numbers: &mut Numbers) {
        let has_frame = !numbers.one_in(4);
        packet.nested(12, |interned| {
            let mut text = |field, iid, text: &[u8]| {
                interned.nested(field, |entry| {
                    entry.varint_field(1, iid);
                    entry.bytes_field(2, text);
                });
            };
            text(16, 1, b"\x01\xab\xff");
            text(17, 1, b"lib");
            text(17, 2, b"libc.so");
            text(17, 3, b"/program");
            text(17, 4, b"kernel");
            text(5, 1, b"main");
            text(5, 2, b"malloc");
            for (iid, start, parts) in [(1, 0x1000, &[1, 2][..]), (2, 0x9000, &[3]), (3, 0, &[4])] {
                interned.nested(19, |mapping| {
                    mapping.varint_field(1, iid);
                    mapping.varint_field(2, u64::from(iid == 1));
                    mapping.varint_field(8, start / 2);
                    mapping.varint_field(4, start);
                    mapping.varint_field(5, start * 2);
                    mapping.varint_field(6, start / 16);
                    parts.iter().for_each(|part| mapping.varint_field(7, *part));
                });
            }
            for (iid, name, mapping, address) in [(1, 1, 2, 16), (2, 2, 1, 32), (3, 0, 1, 48), (4, 2, 3, 64)]
            {
                if iid == 3 && !has_frame {
                    continue;
                }
                interned.nested(6, |frame| {
                    frame.varint_field(1, iid);
                    frame.varint_field(2, name);
                    frame.varint_field(3, mapping);
                    frame.varint_field(4, address);
                });
            }
            for (iid, frames) in [
                (1, &[1, 2][..]),
                (2, &[1, 3]),
                (3, &[1, 2, 4]),
                (4, &[]),
                (5, &[1, 99]),
            ] {
                interned.nested(7, |stack| {
                    stack.varint_field(1, iid);
                    frames.iter().for_each(|frame| stack.varint_field(2, *frame));
                });
            }
        });
    }

    /// Samples of linux.perf of a sequence that starts over, and names of addresses.
    pub(crate) fn perf_samples(&mut self) {
        let sequence = 20 + self.numbers.below(2);
        for number in 0..1 + self.numbers.below(20) {
            self.now += self.numbers.below(3) * 400;
            let (now, cpu) = (self.now, self.numbers.below(self.cpus));
            let numbers = &mut self.numbers;
            self.trace.nested(1, |packet| {
                packet.varint_field(3, 0);
                packet.varint_field(10, sequence);
                packet.varint_field(8, now);
                packet.varint_field(13, if number == 0 { 3 } else { 2 });
                if number == 0 {
                    packet.nested(59, |defaults| {
                        defaults.nested(12, |defaults| {
                            defaults.nested(1, |timebase| timebase.varint_field(4, 1 + numbers.below(20)));
                            defaults.nested(4, |follower| follower.bytes_field(4, b"follower"));
                        });
                    });
                    Self::interned_stacks(packet, numbers);
                }
                packet.nested(66, |sample| {
                    sample.varint_field(1, cpu);
                    sample.varint_field(2, 1 + numbers.below(5));
                    sample.varint_field(3, 1 + numbers.below(12));
                    if !numbers.one_in(5) {
                        sample.varint_field(4, 1 + numbers.below(6));
                    }
                    sample.varint_field(5, numbers.below(6));
                    sample.varint_field(6, numbers.below(1 << 30));
                    sample.varint_field(7, numbers.below(1 << 30));
                    match numbers.below(6) {
                        0 => sample.varint_field(16, numbers.below(17)),
                        1 => sample.varint_field(17, 1 + numbers.below(5)),
                        2 => sample.varint_field(18, numbers.below(5)),
                        _ => {}
                    }
                });
            });
        }
        if self.numbers.one_in(2) {
            let (now, address) = (self.now, [16, 32, 48][self.numbers.below(3) as usize]);
            self.packet(|packet| {
                packet.varint_field(8, now);
                packet.nested(61, |symbols| {
                    symbols.bytes_field(1, b"/lib/libc.so");
                    symbols.bytes_field(2, b"\x01\xab\xff");
                    symbols.nested(3, |symbol| {
                        symbol.varint_field(1, address);
                        for line in 0..2 {
                            symbol.nested(2, |it| {
                                it.bytes_field(1, b"function");
                                if line == 1 {
                                    it.bytes_field(2, b"file.c");
                                }
                                it.varint_field(3, line);
                            });
                        }
                    });
                });
            });
        }
    }

    /// Dumps of heaps of a sequence that starts over.
    pub(crate) fn heap_profile(&mut self) {
        let sequence = 30 + self.numbers.below(2);
        let mut counts = [[0_u64; 4]; 5];
        for number in 0..1 + self.numbers.below(6) {
            self.now += 1 + self.numbers.below(3) * 400;
            let now = self.now;
            let numbers = &mut self.numbers;
            self.trace.nested(1, |packet| {
                packet.varint_field(3, 0);
                packet.varint_field(10, sequence);
                packet.varint_field(8, now);
                packet.varint_field(13, if number == 0 { 3 } else { 2 });
                if number == 0 {
                    Self::interned_stacks(packet, numbers);
                }
                packet.nested(37, |profile| {
                    for pid in 1..3 {
                        profile.nested(5, |dump| {
                            dump.varint_field(1, pid);
                            if pid == 1 {
                                dump.bytes_field(11, b"libc.malloc");
                            }
                            dump.varint_field(9, now);
                            for (iid, counts) in (1_u64..).zip(&mut counts) {
                                counts.iter_mut().for_each(|count| *count += numbers.below(3) * 8);
                                let [allocated, freed, count, frees] = *counts;
                                dump.nested(2, |sample| {
                                    sample.varint_field(1, iid);
                                    sample.varint_field(2, allocated);
                                    sample.varint_field(3, freed);
                                    sample.varint_field(5, count);
                                    sample.varint_field(6, frees);
                                });
                            }
                        });
                    }
                    profile.varint_field(6, numbers.below(2));
                    profile.varint_field(7, number);
                });
            });
        }
    }

    /// The mappings of a process.
    pub(crate) fn smaps(&mut self) {
        self.now += 100;
        let now = self.now;
        let (pid, numbers) = (
            1 + self.numbers.below(8),
            [0; 12].map(|_| self.numbers.below(1 << 40)),
        );
        self.packet(|packet| {
            packet.varint_field(8, now);
            packet.nested(68, |smaps| {
                smaps.varint_field(1, pid);
                for path in [&b"/lib/libc.so"[..], b"[stack]"] {
                    smaps.nested(2, |entry| {
                        entry.bytes_field(1, path);
                        for (field, number) in [2, 3, 4, 6, 7, 11, 12, 13, 14, 15].into_iter().zip(numbers) {
                            entry.varint_field(field, number);
                        }
                        entry.bytes_field(5, b"file");
                        entry.varint_field(10, 5);
                    });
                }
            });
        });
    }

    fn describe_tracks(&mut self) {
        let mut describe = |uuid: u64, parent: Option<u64>, fill: &dyn Fn(&mut Writer)| {
            self.packet(|packet| {
                packet.varint_field(8, START);
                packet.nested(60, |track| {
                    track.varint_field(1, uuid);
                    if let Some(parent) = parent {
                        track.varint_field(5, parent);
                    }
                    fill(track);
                });
            });
        };
        describe(10, None, &|track| {
            track.nested(3, |process| {
                process.varint_field(1, 5);
                process.bytes_field(6, b"program");
            });
        });
        for tid in [5, 6] {
            describe(10 + tid, Some(10), &|track| {
                track.nested(4, |thread| {
                    thread.varint_field(1, 5);
                    thread.varint_field(2, tid);
                    thread.bytes_field(5, format!("worker {tid}").as_bytes());
                });
            });
        }
        describe(20, Some(10), &|track| track.bytes_field(2, b"requests"));
        describe(21, Some(10), &|track| track.bytes_field(2, b"requests"));
        describe(22, None, &|track| track.bytes_field(2, b"global"));
        describe(23, Some(20), &|track| track.bytes_field(2, b"below"));
        describe(30, Some(10), &|track| {
            track.bytes_field(2, b"bytes sent");
            track.nested(8, |counter| {
                counter.varint_field(3, 3);
                counter.varint_field(4, 1024);
            });
        });
        describe(31, None, &|track| {
            track.bytes_field(2, b"sum");
            track.nested(8, |counter| {
                counter.bytes_field(6, b"apples");
                counter.varint_field(5, 1);
            });
        });
    }

    /// Track events of one sequence, after it has started over.
    pub(crate) fn track_events(&mut self, most: u64) {
        let sequence = 2 + self.numbers.below(3);
        for number in 0..self.numbers.below(most) {
            self.now += self.numbers.below(4) * 300;
            let now = self.now;
            let numbers = &mut self.numbers;
            self.trace.nested(1, |packet| {
                packet.varint_field(3, 0);
                packet.varint_field(10, sequence);
                if number == 0 {
                    packet.varint_field(41, 1);
                    packet.nested(12, |interned| {
                        for (field, texts) in [
                            (1, ["net", "disk"]),
                            (2, ["read", "write"]),
                            (3, ["size", "path.of"]),
                        ] {
                            for (iid, text) in (1..).zip(texts) {
                                interned.nested(field, |entry| {
                                    entry.varint_field(1, iid);
                                    entry.bytes_field(2, text.as_bytes());
                                });
                            }
                        }
                    });
                    packet.nested(59, |defaults| {
                        defaults.varint_field(58, MONOTONIC);
                        defaults.nested(11, |defaults| defaults.varint_field(11, 15));
                    });
                }
                packet.varint_field(13, if number == 0 { 3 } else { 2 });
                packet.varint_field(8, now - BEHIND);
                packet.nested(11, |event| track_event(event, numbers));
            });
        }
    }
}

/// Writes one track event.
fn track_event(event: &mut Writer, numbers: &mut Numbers) {
    let kind = 1 + numbers.below(4);
    event.varint_field(9, kind);
    if kind == 4 {
        event.varint_field(11, 30 + numbers.below(2));
        match numbers.one_in(2) {
            true => event.varint_field(30, numbers.below(1000)),
            false => event.fixed64_field(44, (numbers.below(1000) as f64 / 8.0).to_bits()),
        }
        return;
    }
    const TRACKS: [u64; 9] = [15, 15, 16, 10, 20, 21, 22, 23, 0];
    let track = TRACKS[numbers.below(9) as usize];
    if track != 15 {
        event.varint_field(11, track);
    }
    if kind != 2 || numbers.one_in(2) {
        event.varint_field(3, 1 + numbers.below(2));
        match numbers.one_in(3) {
            true => event.bytes_field(23, format!("dynamic {}", numbers.below(4)).as_bytes()),
            false => event.varint_field(10, 1 + numbers.below(2)),
        }
    }
    if numbers.one_in(4) {
        event.fixed64_field(47, numbers.below(4));
    }
    if numbers.one_in(6) {
        event.fixed64_field(48, numbers.below(4));
    }
    for _ in 0..numbers.below(3) {
        event.nested(4, |annotation| annotation_of(annotation, numbers, 0));
    }
}

fn annotation_of(annotation: &mut Writer, numbers: &mut Numbers, depth: u64) {
    match numbers.one_in(2) {
        true => annotation.varint_field(1, 1 + numbers.below(2)),
        false => annotation.bytes_field(10, format!("key{}", numbers.below(3)).as_bytes()),
    }
    match numbers.below(if depth < 2 { 8 } else { 6 }) {
        0 => annotation.varint_field(2, numbers.below(2)),
        1 => annotation.varint_field(3, numbers.below(1 << 40)),
        2 => annotation.varint_field(4, (numbers.below(1000) as i64 - 500) as u64),
        3 => annotation.fixed64_field(5, (numbers.below(1000) as f64 / 16.0).to_bits()),
        4 => annotation.bytes_field(6, format!("text {}", numbers.below(5)).as_bytes()),
        5 => annotation.varint_field(7, numbers.below(1 << 40)),
        6 => {
            for _ in 0..1 + numbers.below(3) {
                annotation.nested(11, |entry| annotation_of(entry, numbers, depth + 1));
            }
        }
        _ => {
            for _ in 0..1 + numbers.below(3) {
                annotation.nested(12, |entry| annotation_of(entry, numbers, depth + 1));
            }
        }
    }
}
