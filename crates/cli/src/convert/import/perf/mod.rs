//! Recordings of `perf` (`perf.data`), turned into samples of `linux.perf`.
//!
//! Samples keep their times, threads, processors and call chains; each event of the recording becomes a sequence with its own defaults. Frames are
//! addresses in mapped files with their build ids, as upstream's trace processor makes them from the same file: the address of a caller is moved back
//! into its call, and the address in a file is that of its mapping plus the offset. Names come later, from a symboliser.
//!
//! Records are put in order as `perf` does: those of a round are in order once the next round has ended.

mod bytes;
mod file;
mod record;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek};
use std::rc::Rc;

use ferretto_proto::messages::BuiltinClock;
use ferretto_proto::messages::perf_events::timebase::{Event, Interval};
use ferretto_proto::messages::perf_events::{Counter, RawEvent, Timebase};
use ferretto_proto::messages::profiling::CpuMode;
use ferretto_proto::write::TracePacket;
use ferretto_wire::Writer;

use super::sample_writer::{Frame, Mapping, Sample, SampleWriter};
use super::{ImportError, Notes, Write};
use file::{Attr, HEADER_ATTR, HEADER_BUILD_ID, PerfFile, damaged};
use record::{Address, Entry, Mmap, Runner};

/// Types of records between the records of the kernel.
const FINISHED_ROUND: u32 = 68;
const COMPRESSED: [u32; 2] = [81, 83];
const AUXTRACE: u32 = 71;
/// The sequence of names; those of events follow.
const NAMES_SEQUENCE: u32 = 1;

/// Passes on the packets of a trace with these samples.
///
/// # Errors
/// With the offset of the damage.
pub(in crate::convert) fn import(
    source: impl Read + Seek,
    write: &mut Write<'_>,
) -> Result<Notes, ImportError> {
    let mut file = PerfFile::open(source)?;
    if let Some(clock) = file.clock {
        write(&snapshot(clock.own, clock.wall))?;
    }
    let mut importer = Importer::default();
    // Records with their times, and those that a round has left for the next one.
    let mut waiting: Vec<(u64, Entry)> = Vec::new();
    let (mut latest, mut settled) = (0, 0);
    loop {
        let attrs = std::mem::take(&mut file.attrs);
        let order = file.order;
        let next = match file.next()? {
            None => None,
            Some(record) => match record.kind {
                FINISHED_ROUND => Some(Next::Round),
                HEADER_ATTR => Some(Next::Attr(record.body.rest.to_vec())),
                HEADER_BUILD_ID => Some(Next::BuildId(record.misc, record.body.rest.to_vec())),
                kind if COMPRESSED.contains(&kind) => {
                    let advice = "the records are compressed, which is not read: record without -z";
                    return Err(damaged(record.offset, advice));
                }
                AUXTRACE => {
                    let advice = "it has traces of the processor (Intel PT or the like), which are not read";
                    return Err(damaged(record.offset, advice));
                }
                _ => {
                    let parsed = record::parse(&record, &attrs);
                    let parsed = parsed.map_err(|()| damaged(record.offset, "a record is too short"))?;
                    Some(Next::Entry(parsed))
                }
            },
        };
        file.attrs = attrs;
        match next {
            None => break,
            Some(Next::Round) => {
                importer.take(&mut waiting, settled, &file.attrs, &file.build_ids, write)?;
                settled = latest;
            }
            Some(Next::Attr(body)) => file.attr(&body),
            Some(Next::BuildId(misc, body)) => file.build_id(misc, bytes::Bytes::new(&body, order)),
            Some(Next::Entry(None)) => {}
            Some(Next::Entry(Some((time, entry)))) => {
                latest = latest.max(time);
                waiting.push((time, entry));
            }
        }
    }
    importer.take(&mut waiting, u64::MAX, &file.attrs, &file.build_ids, write)?;
    Ok(importer.notes())
}

/// The way to treat a record.
enum Next {
    Round,
    Attr(Vec<u8>),
    BuildId(u16, Vec<u8>),
    Entry(Option<(u64, Entry)>),
}

/// The mappings of a process or of the kernel, by their start.
type Mappings = BTreeMap<u64, Rc<Mapping>>;

#[derive(Default)]
struct Importer {
    /// A writer for each event.
    writers: Vec<SampleWriter>,
    processes: HashMap<u32, Mappings>,
    kernel: Mappings,
    /// Names of threads.
    names: HashMap<u32, Vec<u8>>,
    /// The sum of the periods so far, by event and processor.
    counts: HashMap<(usize, u32), u64>,
    /// The number of samples whose program's frames are in a copy of the stack.
    stack_copies: u64,
}

impl Importer {
    fn notes(&self) -> Notes {
        let advice = "samples have a copy of the stack, which is not unwound: their call stacks lack the frames of the \
                      program; record with --call-graph fp to have them";
        let copies = (self.stack_copies > 0).then(|| format!("{} {advice}", self.stack_copies));
        copies.into_iter().collect()
    }

    /// Takes in the records that are known to be in order: the entries up to a time.
    fn take(
        &mut self,
        waiting: &mut Vec<(u64, Entry)>,
        until: u64,
        attrs: &[Attr],
        build_ids: &HashMap<Vec<u8>, Vec<u8>>,
        write: &mut Write<'_>,
    ) -> Result<(), ImportError> {
        // Entries of one time stay in the order of the file.
        waiting.sort_by_key(|(time, _)| *time);
        let count = waiting.partition_point(|(time, _)| *time <= until);
        while self.writers.len() < attrs.len() {
            let sequence = NAMES_SEQUENCE + 1 + self.writers.len() as u32;
            self.writers
                .push(SampleWriter::new(sequence, timebase(&attrs[self.writers.len()])));
        }
        for (time, entry) in waiting.drain(..count) {
            match entry {
                Entry::Sample(sample) => self.sample(time, &sample, attrs, write)?,
                Entry::Mmap(mmap) => self.mmap(mmap, build_ids),
                Entry::Comm {
                    pid,
                    tid,
                    name,
                    is_exec,
                } => {
                    if is_exec {
                        self.processes.remove(&pid);
                    }
                    write(&named(time, pid, tid, &name))?;
                    self.names.insert(tid, name);
                }
                Entry::Fork {
                    pid,
                    parent,
                    tid,
                    parent_tid,
                } => {
                    if pid != parent
                        && let Some(mappings) = self.processes.get(&parent)
                    {
                        self.processes.insert(pid, mappings.clone());
                    }
                    // A new thread has the name of the one that made it.
                    if let Some(name) = self.names.get(&parent_tid).cloned() {
                        write(&named(time, pid, tid, &name))?;
                        self.names.insert(tid, name);
                    }
                }
                Entry::Lost(count) => {
                    if let Some(writer) = self.writers.first_mut() {
                        writer.lost(time, count, write)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn mmap(&mut self, mmap: Mmap, build_ids: &HashMap<Vec<u8>, Vec<u8>>) {
        if mmap.length == 0 {
            return;
        }
        let build_id = mmap
            .build_id
            .or_else(|| build_ids.get(build_id_path(&mmap.path)).cloned());
        let mapping = Mapping {
            start: mmap.address,
            end: mmap.address.saturating_add(mmap.length),
            // The kernel's own mapping has its address there.
            offset: match mmap.is_kernel && mmap.offset == mmap.address {
                true => 0,
                false => mmap.offset,
            },
            path: mmap.path,
            build_id: build_id.unwrap_or_default(),
        };
        let mappings = match mmap.is_kernel {
            true => &mut self.kernel,
            false => self.processes.entry(mmap.pid).or_default(),
        };
        insert(mappings, mapping);
    }

    fn sample(
        &mut self,
        time: u64,
        sample: &record::Sample,
        attrs: &[Attr],
        write: &mut Write<'_>,
    ) -> Result<(), ImportError> {
        let (Some(writer), Some(attr)) = (self.writers.get_mut(sample.attr), attrs.get(sample.attr)) else {
            return Ok(());
        };
        self.stack_copies += u64::from(sample.has_stack_copy);
        let mut frames = Vec::with_capacity(sample.chain.len());
        for (depth, frame) in sample.chain.iter().enumerate() {
            // A return address belongs to the call before it.
            let caller = u64::from(depth > 0 && frame.address > 0);
            let address = Address {
                address: frame.address - caller,
                ..*frame
            };
            let mappings = match address.runner.is_kernel() {
                true => Some(&self.kernel),
                false => self.processes.get(&sample.pid),
            };
            let found = mappings.and_then(|mappings| find(mappings, address.address));
            let (mapping, rel_pc) = match found {
                Some(mapping) => {
                    let rel_pc = (address.address - mapping.start).wrapping_add(mapping.offset);
                    (writer.mapping(mapping), rel_pc)
                }
                None => (writer.mapping(&Mapping::default()), address.address),
            };
            frames.push(writer.frame(&Frame {
                mapping,
                rel_pc,
                name: Vec::new(),
            }));
        }
        frames.reverse();
        let period = sample.period.or((!attr.is_frequency).then_some(attr.period));
        let count = period.map(|period| {
            let count = self
                .counts
                .entry((sample.attr, sample.cpu.unwrap_or(0)))
                .or_default();
            *count = count.saturating_add(period);
            *count
        });
        let sample = Sample {
            time,
            pid: sample.pid,
            tid: sample.tid,
            cpu: sample.cpu,
            mode: mode(sample.runner),
            count,
            is_cut: sample.has_stack_copy,
            frames: &frames,
        };
        writer.sample(&sample, write)
    }
}

/// Adds a mapping, in place of those that were there.
fn insert(mappings: &mut Mappings, mapping: Mapping) {
    let before = mappings.range(..mapping.start).next_back();
    if let Some((_, old)) = before
        && old.end > mapping.start
    {
        let old = old.clone();
        // The part after the new one remains.
        if old.end > mapping.end {
            let rest = Mapping {
                start: mapping.end,
                offset: old.offset.wrapping_add(mapping.end - old.start),
                ..(*old).clone()
            };
            mappings.insert(rest.start, Rc::new(rest));
        }
        let front = Mapping {
            end: mapping.start,
            ..(*old).clone()
        };
        mappings.insert(front.start, Rc::new(front));
    }
    let inside: Vec<u64> = mappings
        .range(mapping.start..mapping.end)
        .map(|(start, _)| *start)
        .collect();
    for start in inside {
        if let Some(old) = mappings.remove(&start)
            && old.end > mapping.end
        {
            let rest = Mapping {
                start: mapping.end,
                offset: old.offset.wrapping_add(mapping.end - old.start),
                ..(*old).clone()
            };
            mappings.insert(rest.start, Rc::new(rest));
        }
    }
    mappings.insert(mapping.start, Rc::new(mapping));
}

fn find(mappings: &Mappings, address: u64) -> Option<&Mapping> {
    let (_, mapping) = mappings.range(..=address).next_back()?;
    (address < mapping.end).then_some(&**mapping)
}

/// Returns the path under which the build id of a mapping is listed: that of the kernel has no name of a symbol behind it.
fn build_id_path(path: &[u8]) -> &[u8] {
    const KERNEL: &[u8] = b"[kernel.kallsyms]";
    match path.starts_with(KERNEL) {
        true => KERNEL,
        false => path,
    }
}

fn mode(runner: Runner) -> Option<CpuMode> {
    match runner {
        Runner::Unknown => None,
        Runner::Kernel => Some(CpuMode::MODE_KERNEL),
        Runner::User => Some(CpuMode::MODE_USER),
        Runner::Hypervisor => Some(CpuMode::MODE_HYPERVISOR),
        Runner::GuestKernel => Some(CpuMode::MODE_GUEST_KERNEL),
        Runner::GuestUser => Some(CpuMode::MODE_GUEST_USER),
    }
}

/// Returns an event as a config has it. `PERF_TYPE_HARDWARE` is 0, `PERF_TYPE_SOFTWARE` 1.
fn timebase(attr: &Attr) -> Timebase {
    let counter = match (attr.kind, attr.config) {
        (0, 0) => Some(Counter::HW_CPU_CYCLES),
        (0, 1) => Some(Counter::HW_INSTRUCTIONS),
        (0, 2) => Some(Counter::HW_CACHE_REFERENCES),
        (0, 3) => Some(Counter::HW_CACHE_MISSES),
        (0, 4) => Some(Counter::HW_BRANCH_INSTRUCTIONS),
        (0, 5) => Some(Counter::HW_BRANCH_MISSES),
        (0, 6) => Some(Counter::HW_BUS_CYCLES),
        (0, 7) => Some(Counter::HW_STALLED_CYCLES_FRONTEND),
        (0, 8) => Some(Counter::HW_STALLED_CYCLES_BACKEND),
        (0, 9) => Some(Counter::HW_REF_CPU_CYCLES),
        (1, 0) => Some(Counter::SW_CPU_CLOCK),
        (1, 1) => Some(Counter::SW_TASK_CLOCK),
        (1, 2) => Some(Counter::SW_PAGE_FAULTS),
        (1, 3) => Some(Counter::SW_CONTEXT_SWITCHES),
        (1, 4) => Some(Counter::SW_CPU_MIGRATIONS),
        (1, 5) => Some(Counter::SW_PAGE_FAULTS_MIN),
        (1, 6) => Some(Counter::SW_PAGE_FAULTS_MAJ),
        (1, 7) => Some(Counter::SW_ALIGNMENT_FAULTS),
        (1, 8) => Some(Counter::SW_EMULATION_FAULTS),
        (1, 9) => Some(Counter::SW_DUMMY),
        _ => None,
    };
    let event = match counter {
        Some(counter) => Event::Counter(counter),
        None => Event::RawEvent(Box::new(RawEvent {
            r#type: Some(attr.kind),
            config: Some(attr.config),
            ..RawEvent::default()
        })),
    };
    Timebase {
        interval: Some(match attr.is_frequency {
            true => Interval::Frequency(attr.period),
            false => Interval::Period(attr.period),
        }),
        event: Some(event),
        name: (!attr.name.is_empty()).then(|| attr.name.clone()),
        ..Timebase::default()
    }
}

/// Returns a packet that names a thread.
fn named(time: u64, pid: u32, tid: u32, name: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    let mut packet = TracePacket::new(&mut writer);
    packet.timestamp(time).trusted_packet_sequence_id(NAMES_SEQUENCE);
    packet.process_tree(|tree| {
        if pid == tid {
            tree.processes(|process| {
                process.pid(pid as i32).cmdline(name).cmdline_is_comm(true);
            });
        }
        tree.threads(|thread| {
            thread.tid(tid as i32).tgid(pid as i32).name(name);
        });
    });
    writer.into_vec()
}

/// Returns a packet that says when the clock of the samples, which stands for boot time, showed which wall-clock time.
fn snapshot(own: u64, wall: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    let mut packet = TracePacket::new(&mut writer);
    packet.timestamp(own).trusted_packet_sequence_id(NAMES_SEQUENCE);
    packet.clock_snapshot(|snapshot| {
        for (clock, time) in [
            (BuiltinClock::BUILTIN_CLOCK_BOOTTIME, own),
            (BuiltinClock::BUILTIN_CLOCK_REALTIME, wall),
        ] {
            snapshot.clocks(|entry| {
                entry.clock_id(clock as u32).timestamp(time);
            });
        }
    });
    writer.into_vec()
}
