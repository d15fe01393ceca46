//! Reads a trace's statements about heaps, packet by packet: no trace processor is needed, and everything that counts is exact.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use ferretto_proto::messages::profile_packet::process_heap_samples::Losses;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, TracePacket};
use ferretto_proto::write;
use ferretto_wire::{Reader, Value};

/// The heap profiles of a trace, by process.
#[derive(Debug, Default)]
pub(crate) struct HeapTrace {
    pub(crate) processes: BTreeMap<u32, ProcessHeap>,
}

/// All heaps of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessHeap {
    /// By call stack, as it was told last.
    pub(crate) accounts: HashMap<u64, Account>,
    pub(crate) heap_name: String,
    pub(crate) from_startup: bool,
    pub(crate) hit_guardrail: bool,
    pub(crate) buffer_overran: bool,
    pub(crate) rejected: bool,
    /// The losses, as the trace stated them last.
    pub(crate) losses: Losses,
}

/// The allocations and releases of a call stack.
#[derive(Debug, Default, Clone)]
pub(crate) struct Account {
    /// From the outermost function to the innermost.
    pub(crate) functions: Vec<String>,
    pub(crate) allocated: u64,
    pub(crate) freed: u64,
    pub(crate) allocations: u64,
}

impl Account {
    /// Whether the function is on the stack.
    pub(crate) fn is_under(&self, function: &str) -> bool {
        self.functions.iter().any(|name| name == function)
    }
}

impl ProcessHeap {
    /// The call stacks under a function.
    pub(crate) fn under(&self, function: &str) -> impl Iterator<Item = &Account> {
        self.accounts
            .values()
            .filter(move |account| account.is_under(function))
    }

    /// Bytes that were allocated under a function.
    pub(crate) fn allocated_under(&self, function: &str) -> u64 {
        self.under(function).map(|account| account.allocated).sum()
    }
}

fn is_of_heaps(packet: &[u8]) -> bool {
    let mut numbers = Reader::new(packet).map(|field| field.unwrap().number);
    numbers.any(|number| {
        [
            write::TracePacket::PROFILE_PACKET,
            write::TracePacket::INTERNED_DATA,
        ]
        .contains(&number)
    })
}

impl HeapTrace {
    /// Reads the heap profiles of one data source.
    pub(crate) fn read(trace: &Path) -> HeapTrace {
        let trace = std::fs::read(trace).unwrap();
        let (mut names, mut frames, mut stacks) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut heaps = HeapTrace::default();
        // Other packets have command lines, which need not be text.
        let packets = Reader::new(&trace).map(|field| field.unwrap().value);
        let of_heaps = packets.filter_map(|packet| match packet {
            Value::Bytes(packet) => {
                is_of_heaps(packet).then(|| TracePacket::decode_from_slice(packet).unwrap())
            }
            _ => None,
        });
        for packet in of_heaps {
            for name in &packet.interned_data.function_names {
                let text = String::from_utf8_lossy(name.str.as_deref().unwrap_or_default()).into_owned();
                names.insert(name.iid.unwrap(), text);
            }
            for frame in &packet.interned_data.frames {
                frames.insert(frame.iid.unwrap(), frame.function_name_id.unwrap_or(0));
            }
            for stack in &packet.interned_data.callstacks {
                stacks.insert(stack.iid.unwrap(), stack.frame_ids.clone());
            }
            let Some(Data::ProfilePacket(profile)) = &packet.data else {
                continue;
            };
            for dump in &profile.process_dumps {
                let process = heaps.processes.entry(dump.pid.unwrap() as u32).or_default();
                process.heap_name = dump.heap_name.clone().unwrap_or_default();
                process.from_startup |= dump.from_startup == Some(true);
                process.hit_guardrail |= dump.hit_guardrail == Some(true);
                process.buffer_overran |= dump.buffer_overran == Some(true);
                process.rejected |= dump.rejected_concurrent == Some(true);
                if let Some(losses) = dump.losses.as_option() {
                    process.losses = losses.clone();
                }
                for sample in &dump.samples {
                    let id = sample.callstack_id.unwrap();
                    let functions = stacks[&id].iter().map(|frame| names[&frames[frame]].clone());
                    let account = Account {
                        functions: functions.collect(),
                        allocated: sample.self_allocated.unwrap_or(0),
                        freed: sample.self_freed.unwrap_or(0),
                        allocations: sample.alloc_count.unwrap_or(0),
                    };
                    process.accounts.insert(id, account);
                }
            }
        }
        heaps
    }

    /// The profile of a process.
    pub(crate) fn of(&self, pid: u32) -> &ProcessHeap {
        let process = self.processes.get(&pid);
        process.unwrap_or_else(|| panic!("process {pid} is not among {:?}", self.processes.keys()))
    }
}
