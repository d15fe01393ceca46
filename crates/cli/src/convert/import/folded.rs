//! Folded stacks, as `stackcollapse-perf` and many others write them, turned into samples.
//!
//! Each line is `outermost;…;innermost count`. The first part stands for the process, as these tools have it, and the rest for frames. Such files have no
//! times, so the samples come one after another at equal distances, in the order of the lines. If there were more than [`MAX_SAMPLES`], weights are
//! divided by what they have in common, which becomes the period of the event. If there are still more, the period is larger, and weights are rounded.

use std::collections::HashMap;
use std::io::BufRead;

use ferretto_proto::messages::perf_events::Timebase;
use ferretto_proto::messages::perf_events::Tracepoint;
use ferretto_proto::messages::perf_events::timebase::{Event, Interval};
use ferretto_proto::write::TracePacket;
use ferretto_wire::Writer;

use super::sample_writer::{Frame, Mapping, Sample, SampleWriter};
use super::{ImportError, Notes, Write};

/// The distance between two samples, in ns.
const DISTANCE: u64 = 1_000_000;
/// The most samples that are written.
const MAX_SAMPLES: u64 = 1 << 20;
/// The first process id that is given to a name.
const FIRST_PID: u32 = 1;

/// Whether a file that begins with these bytes looks like folded stacks: its first line ends with a count.
pub(in crate::convert) fn is_folded(head: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.find(|line| !line.trim_ascii().is_empty() && !line.starts_with(b"#"));
    let text = first.and_then(|line| std::str::from_utf8(line).ok());
    text.is_some_and(|line| parse(line).is_ok())
}

/// Splits a line into stack and count.
fn parse(line: &str) -> Result<(&str, u64), String> {
    let line = line.trim();
    let Some((stack, count)) = line.rsplit_once(' ') else {
        return Err("a stack and its count are expected, with a space between them".to_owned());
    };
    match count.parse() {
        Ok(count) if !stack.trim().is_empty() => Ok((stack.trim(), count)),
        Ok(_) => Err("there is no stack before the count".to_owned()),
        Err(_) => Err(format!("the line ends with `{count}`, which is no count")),
    }
}

/// Passes on the packets of a trace with these samples.
///
/// # Errors
/// With the number of the first line that is wrong.
pub(in crate::convert) fn import(source: impl BufRead, write: &mut Write<'_>) -> Result<Notes, ImportError> {
    let mut stacks: Vec<(String, u64)> = Vec::new();
    for (number, line) in (1..).zip(source.lines()) {
        let wrong = |reason| ImportError::Line { line: number, reason };
        let line = match line {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(wrong("it is not UTF-8".to_owned()));
            }
            line => line?,
        };
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (stack, count) = parse(&line).map_err(wrong)?;
        stacks.push((stack.to_owned(), count));
    }
    let period = period(&stacks);
    let mut samples = SampleWriter::new(1, timebase(period));
    // Frames belong to a mapping without a name, for some readers need one.
    let mapping = samples.mapping(&Mapping::default());
    let mut pids: HashMap<String, u32> = HashMap::new();
    let mut time = DISTANCE;
    for (stack, count) in &stacks {
        let (process, rest) = stack.split_once(';').unwrap_or((stack, stack));
        let next = FIRST_PID + pids.len() as u32;
        let pid = *pids.entry(process.to_owned()).or_insert(next);
        if pid == next {
            write(&named(pid, process))?;
        }
        let frames: Vec<u64> = rest
            .split(';')
            .map(|name| {
                samples.frame(&Frame {
                    mapping,
                    rel_pc: 0,
                    name: name.as_bytes().to_vec(),
                })
            })
            .collect();
        for _ in 0..(count + period / 2) / period {
            let sample = Sample {
                time,
                pid,
                tid: pid,
                cpu: None,
                mode: None,
                count: None,
                is_cut: false,
                frames: &frames,
            };
            samples.sample(&sample, write)?;
            time += DISTANCE;
        }
    }
    let rounded = stacks.iter().filter(|(_, count)| count % period != 0).count();
    let note = format!(
        "{rounded} weights are rounded to multiples of {period}, because there are very many samples"
    );
    Ok((rounded > 0).then_some(note).into_iter().collect())
}

/// Returns the weight of a sample: 1, unless that would be too many samples.
fn period(stacks: &[(String, u64)]) -> u64 {
    let total = stacks
        .iter()
        .fold(0_u64, |total, (_, count)| total.saturating_add(*count));
    if total <= MAX_SAMPLES {
        return 1;
    }
    let common = stacks
        .iter()
        .fold(0, |common, (_, count)| greatest_common_divisor(common, *count));
    common.max(total.div_ceil(MAX_SAMPLES))
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn timebase(period: u64) -> Timebase {
    Timebase {
        interval: Some(Interval::Period(period)),
        event: Some(Event::Tracepoint(Box::new(Tracepoint {
            name: Some("weight".to_owned()),
            ..Tracepoint::default()
        }))),
        name: Some("weight".to_owned()),
        ..Timebase::default()
    }
}

/// Returns a packet that names a process and its main thread.
fn named(pid: u32, name: &str) -> Vec<u8> {
    let mut writer = Writer::new();
    let mut packet = TracePacket::new(&mut writer);
    packet.timestamp(0).trusted_packet_sequence_id(1);
    packet.process_tree(|tree| {
        tree.processes(|process| {
            process.pid(pid as i32).cmdline(name);
        });
        tree.threads(|thread| {
            thread.tid(pid as i32).tgid(pid as i32).name(name);
        });
    });
    writer.into_vec()
}
