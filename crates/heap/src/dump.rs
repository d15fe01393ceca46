//! Packets of one instance: its sequence in the trace.
//!
//! [`Collector`](crate::collector::Collector) hands over what the books of a heap say as a [`Dump`], which is written in packets of some 100 KB, one in each
//! step. They are upstream's `ProfilePacket`s: all but the last say that they are continued, and their indexes have no gaps. Before them come
//! packets with the interned data that they refer to, where upstream's have it behind them. After a loss, and when the service asks for it, interned data is
//! repeated with the same numbers.

use std::time::Duration;

use ferretto_client::runtime::probe::PacketSink;
use ferretto_ipc::reactor::boot_now;
use ferretto_profile::interning::Interning;
use ferretto_proto::messages::profile_packet::process_heap_samples::ClientError;
use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::write::profile_packet::{HeapSample, ProcessHeapSamples};
use ferretto_proto::write::{InternedString, ProfilePacket, TracePacket};
use ferretto_wire::Writer;

use crate::books::Account;
use crate::config::Recorded;
use crate::profile::{Losses, Stats};
use crate::records::Allocation;

/// Bytes of a packet with interned data, but for its last entry.
const INTERNED_BYTES: usize = 100 << 10;

/// Call stacks in a packet. Each takes some 20 bytes.
const ACCOUNTS: usize = 4096;

/// See the [module](self).
#[derive(Debug)]
pub struct Output {
    recorded: Recorded,
    /// The index of the next packet.
    index: u64,
    /// The sink's losses when interned data was begun.
    losses: u64,
    has_begun: bool,
    has_cleared: bool,
    packet: Writer,
    /// Of streamed records.
    sequence_number: u64,
}

/// A heap of a process, as it was at one time.
#[derive(Debug)]
pub struct Dump {
    /// The process and its heap.
    pub header: Header,
    /// Its call stacks.
    pub accounts: Vec<Account>,
    /// How many of these are written.
    written: usize,
}

/// The statements of a dump but for call stacks. The fields are those of upstream's `ProcessHeapSamples`.
#[derive(Clone, Debug)]
pub struct Header {
    pub(crate) pid: i32,
    pub(crate) from_startup: bool,
    pub(crate) disconnected: bool,
    pub(crate) buffer_corrupted: bool,
    pub(crate) hit_guardrail: bool,
    /// The client gave up waiting for space.
    pub(crate) timed_out: bool,
    /// The client gave up because it cannot reach the daemon any more.
    pub(crate) out_of_reach: bool,
    pub(crate) heap_name: String,
    pub(crate) interval: u64,
    pub(crate) first_interval: u64,
    /// The time that the dump covers, on `CLOCK_MONOTONIC_COARSE`, in nanoseconds.
    pub(crate) covers: std::ops::Range<u64>,
    pub(crate) stats: Stats,
    /// How long the client has waited for space.
    pub(crate) waited: Duration,
    pub(crate) losses: Losses,
}

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to write.
    More,
    /// Everything is written.
    Done,
}

impl Dump {
    /// Nothing of it is written.
    pub fn new(header: Header, accounts: Vec<Account>) -> Dump {
        Dump {
            header,
            accounts,
            written: 0,
        }
    }
}

impl Output {
    /// The sequence of an instance that records this.
    pub fn new(recorded: Recorded) -> Output {
        Output {
            recorded,
            index: 0,
            losses: 0,
            has_begun: false,
            has_cleared: false,
            packet: Writer::new(),
            sequence_number: 0,
        }
    }

    /// Has interned data repeated before the next packet.
    pub(crate) fn clear_incremental_state(&mut self) {
        self.has_begun = false;
    }

    /// Makes sure that readers know what later packets rely on, or that it comes again.
    fn begin(&mut self, interning: &mut Interning, sink: &mut dyn PacketSink) {
        if self.has_begun && self.losses == sink.losses() {
            return;
        }
        self.losses = sink.losses();
        interning.forget_told();
        // The number 0 stands for no text, as upstream.
        self.packet.clear();
        let mut packet = TracePacket::new(&mut self.packet);
        packet.timestamp(boot_now());
        // Upstream's reader forgets with its state what it was told of each call stack, and would count all of it again. So the state is cleared once, and
        // no packet says that it needs it. Numbers never change.
        if !std::mem::replace(&mut self.has_cleared, true) {
            packet.sequence_flags(SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32);
        }
        packet.interned_data(|data| {
            let empty = |string: &mut InternedString<'_>| {
                string.iid(0).str("");
            };
            data.build_ids(empty).mapping_paths(empty).function_names(empty);
        });
        sink.write_packet(self.packet.as_slice());
        // Packets that follow a lost one in a row are lost, too, and do not count as another loss.
        self.has_begun = !sink.is_losing();
    }

    /// Writes one packet more of a dump.
    pub(crate) fn step(
        &mut self,
        dump: &mut Dump,
        interning: &mut Interning,
        sink: &mut dyn PacketSink,
    ) -> Step {
        self.begin(interning, sink);
        let pending = interning.take_some_pending(INTERNED_BYTES);
        if !pending.is_empty() {
            self.packet.clear();
            TracePacket::new(&mut self.packet).timestamp(boot_now());
            self.packet
                .bytes_field(TracePacket::INTERNED_DATA, pending.as_slice());
            sink.write_packet(self.packet.as_slice());
            return Step::More;
        }
        let rest = &dump.accounts[dump.written..];
        let (now, later) = rest.split_at(rest.len().min(ACCOUNTS));
        dump.written += now.len();
        let recorded = self.recorded;
        self.profile_packet(sink, |packet| {
            packet.process_dumps(|out| {
                write_header(out, &dump.header);
                for account in now {
                    out.samples(|out| write_account(out, account, recorded));
                }
            });
            if !later.is_empty() {
                packet.continued(true);
            }
        });
        match later.is_empty() {
            true => Step::Done,
            false => Step::More,
        }
    }

    /// Writes a whole dump.
    pub fn write(&mut self, dump: &mut Dump, interning: &mut Interning, sink: &mut dyn PacketSink) {
        while self.step(dump, interning, sink) == Step::More {}
    }

    /// These processes are not profiled, because another session profiles them.
    pub(crate) fn rejected(
        &mut self,
        pids: impl IntoIterator<Item = i32>,
        interning: &mut Interning,
        sink: &mut dyn PacketSink,
    ) {
        self.begin(interning, sink);
        self.profile_packet(sink, |packet| {
            for pid in pids {
                packet.process_dumps(|out| {
                    out.pid(pid.unsigned_abs().into()).rejected_concurrent(true);
                });
            }
        });
    }

    fn profile_packet(&mut self, sink: &mut dyn PacketSink, fill: impl FnOnce(&mut ProfilePacket<'_>)) {
        let index = self.index;
        self.index += 1;
        self.packet.clear();
        TracePacket::new(&mut self.packet)
            .timestamp(boot_now())
            .profile_packet(|packet| {
                packet.index(index);
                fill(packet);
            });
        sink.write_packet(self.packet.as_slice());
    }

    /// Writes one allocation, as upstream does when it streams them: without the process and the stack.
    pub(crate) fn stream_allocation(&mut self, allocation: &Allocation<'_>, sink: &mut dyn PacketSink) {
        self.sequence_number += 1;
        self.packet.clear();
        TracePacket::new(&mut self.packet).streaming_allocation(|out| {
            out.address(allocation.address)
                .size(allocation.bytes)
                .sample_size(allocation.sample_bytes)
                .clock_monotonic_coarse_timestamp(allocation.timestamp)
                .heap_id(allocation.heap)
                .sequence_number(self.sequence_number);
        });
        sink.write_packet(self.packet.as_slice());
    }

    /// Writes one release.
    pub(crate) fn stream_free(&mut self, heap: u32, address: u64, sink: &mut dyn PacketSink) {
        self.sequence_number += 1;
        self.packet.clear();
        TracePacket::new(&mut self.packet).streaming_free(|out| {
            out.address(address)
                .heap_id(heap)
                .sequence_number(self.sequence_number);
        });
        sink.write_packet(self.packet.as_slice());
    }
}

fn write_header(out: &mut ProcessHeapSamples<'_>, header: &Header) {
    let losses = &header.losses;
    // Upstream ends a profile in this way where this one may go on, so its readers know what to say.
    let has_overrun =
        header.timed_out || header.out_of_reach || (losses.samples | losses.bytes | losses.frees) != 0;
    out.pid(header.pid.unsigned_abs().into())
        .timestamp(header.covers.end)
        .start_timestamp(header.covers.start)
        .from_startup(header.from_startup)
        .disconnected(header.disconnected)
        .buffer_overran(has_overrun)
        .client_error(match header.timed_out {
            true => ClientError::CLIENT_ERROR_HIT_TIMEOUT,
            false => ClientError::CLIENT_ERROR_NONE,
        })
        .buffer_corrupted(header.buffer_corrupted)
        .hit_guardrail(header.hit_guardrail);
    if !header.heap_name.is_empty() {
        out.heap_name(&header.heap_name);
    }
    out.sampling_interval_bytes(header.interval)
        .orig_sampling_interval_bytes(header.first_interval)
        .stats(|out| {
            let stats = &header.stats;
            out.unwinding_errors(stats.unwinding_errors)
                .heap_samples(stats.samples)
                .map_reparses(stats.map_reparses)
                .total_unwinding_time_us(stats.total_unwinding_us)
                .client_spinlock_blocked_us(header.waited.as_micros() as u64)
                .unwinding_time_us(|out| stats.unwinding_time.write(out));
        });
    if header.out_of_reach || *losses != Losses::default() {
        out.losses(|out| {
            if header.out_of_reach {
                out.out_of_reach(true);
            }
            out.samples(losses.samples)
                .bytes(losses.bytes)
                .frees(losses.frees)
                .untracked(losses.untracked)
                .merged(losses.merged)
                .not_unwound(losses.not_unwound);
        });
    }
}

fn write_account(out: &mut HeapSample<'_>, account: &Account, recorded: Recorded) {
    out.callstack_id(account.stack.0);
    match recorded {
        Recorded::Maximum => {
            out.self_max(account.most.bytes)
                .self_max_count(account.most.count);
        }
        Recorded::Totals | Recorded::Stream => {
            out.self_allocated(account.allocated)
                .self_freed(account.freed)
                .alloc_count(account.allocations)
                .free_count(account.frees);
        }
    }
}

#[cfg(test)]
mod tests;
