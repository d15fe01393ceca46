//! What every data source of `traced_probes` looks like to the producer that drives it.
//!
//! The producer owns one boxed [`DataSource`] for each instance a session asked for, calls it with the time it read
//! (boot-time nanoseconds, the clock of every probe's timestamps) and hands it the sink of that instance. A data
//! source never blocks on anything but the kernel files it reads, and never talks to the service itself.

use std::collections::BTreeSet;

/// Takes finished packets of one data source instance: a trace writer in the daemon, a list in tests.
pub trait PacketSink {
    /// Appends one encoded `TracePacket`, without the fields that only the service may write.
    fn write_packet(&mut self, packet: &[u8]);

    /// How often this sink had to drop data so far. When it has grown, what later packets refer to (interned data,
    /// incremental state) may be lost and must be written again.
    fn losses(&self) -> u64;
}

impl PacketSink for Vec<Vec<u8>> {
    fn write_packet(&mut self, packet: &[u8]) {
        self.push(packet.to_vec());
    }

    fn losses(&self) -> u64 {
        0
    }
}

/// Boot-time clock reading in nanoseconds.
pub type BootTime = u64;

/// One instance of a data source inside one tracing session.
pub trait DataSource {
    /// The session started: write what is to be written first and plan the first deadline.
    fn start(&mut self, now: BootTime, sink: &mut dyn PacketSink);

    /// When [`DataSource::on_deadline`] wants to be called next, if at all.
    fn next_deadline(&self) -> Option<BootTime>;

    /// The deadline has passed (`now` may be later than asked for): sample, and plan the next one.
    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink);

    /// Writes out whatever is still held back, because the service asked for a flush.
    fn flush(&mut self, now: BootTime, sink: &mut dyn PacketSink);

    /// The session ends: last data, after which the instance is dropped.
    fn stop(&mut self, now: BootTime, sink: &mut dyn PacketSink);

    /// Forget what the reader was told so far: everything interned or sent as a difference is sent in full again.
    fn clear_incremental_state(&mut self);

    /// Threads seen by `linux.ftrace` of the same session since the last call. `linux.process_stats` describes those
    /// that it has not described yet.
    fn on_threads_seen(&mut self, _tids: &BTreeSet<i32>, _now: BootTime, _sink: &mut dyn PacketSink) {}

    /// Threads of which `linux.ftrace` of the same session saw the name change: what was told of them is out of date.
    /// Comes before the [`DataSource::on_threads_seen`] of the same batch, so that they are described again there.
    fn on_threads_renamed(&mut self, _tids: &BTreeSet<i32>) {}

    /// Open files (thread, file number) that `linux.ftrace` of the same session saw in system calls, after the
    /// [`DataSource::on_threads_seen`] of the same batch.
    fn on_files_seen(&mut self, _files: &BTreeSet<(i32, u64)>, _now: BootTime, _sink: &mut dyn PacketSink) {}
}
