//! Data sources that do all their work on the runtime's thread, when they are called: at the start, at deadlines, at flushes and at the
//! stop.
//!
//! [`Probes`] is the data source; it makes a [`Probe`] for each of its instances, and keeps their trace writers. Each instance writes a sequence of
//! its own, and waits for the service if the shared memory is full. Nothing is lost by that, because the kernel goes on counting.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_ipc::reactor::boot_now;
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor};

use super::ProducerProgram;
use crate::arbiter::BufferExhaustedPolicy;
use crate::data_source::{Acknowledge, DataSource, Instance, Output, Slot};
use crate::trace_writer::TraceWriter;

/// Takes finished packets of one data source instance: a trace writer in a daemon, a list in tests.
pub trait PacketSink {
    /// Appends one encoded `TracePacket`, without the fields that only the service may write.
    fn write_packet(&mut self, packet: &[u8]);

    /// How often this sink had to drop data so far. When it has grown, data that later packets refer to (interned data, incremental state) may be
    /// lost and must be written again.
    fn losses(&self) -> u64;

    /// Whether the last packet was dropped. Losses in a row count once.
    fn is_losing(&self) -> bool {
        false
    }
}

impl PacketSink for TraceWriter {
    fn write_packet(&mut self, packet: &[u8]) {
        TraceWriter::write_packet(self, packet);
    }

    fn losses(&self) -> u64 {
        TraceWriter::losses(self)
    }

    fn is_losing(&self) -> bool {
        TraceWriter::is_losing(self)
    }
}

impl PacketSink for Vec<Vec<u8>> {
    fn write_packet(&mut self, packet: &[u8]) {
        self.push(packet.to_vec());
    }

    fn losses(&self) -> u64 {
        0
    }
}

/// Packets in memory with a count of losses that tests set. Tests in which nothing is lost use a list of packets.
#[derive(Debug, Default)]
pub struct LossySink {
    /// The packets so far.
    pub packets: Vec<Vec<u8>>,
    /// The losses that [`PacketSink::losses`] claims.
    pub losses: u64,
}

impl PacketSink for LossySink {
    fn write_packet(&mut self, packet: &[u8]) {
        self.packets.push(packet.to_vec());
    }

    fn losses(&self) -> u64 {
        self.losses
    }
}

/// Boot-time clock reading in nanoseconds.
pub type BootTime = u64;

/// One instance of a data source inside one tracing session. Deadlines, flushes and the stop come after the start, or not at all.
pub trait Probe: Send {
    /// The session started: write the first packets and plan the first deadline.
    fn start(&mut self, now: BootTime, sink: &mut dyn PacketSink);

    /// When [`Probe::on_deadline`] should be called next, if at all.
    fn next_deadline(&self) -> Option<BootTime> {
        None
    }

    /// The deadline has passed (`now` may be later): sample, and plan the next one.
    fn on_deadline(&mut self, _now: BootTime, _sink: &mut dyn PacketSink) {}

    /// Writes out all data that is still held back, because the service asked for a flush.
    fn flush(&mut self, _now: BootTime, _sink: &mut dyn PacketSink) {}

    /// Whether the probe still writes what it found at the start, at deadlines that are due at once. Flushes wait for that.
    fn is_starting(&self) -> bool {
        false
    }

    /// The session ends: write the last data. Then the instance is dropped.
    fn stop(&mut self, _now: BootTime, _sink: &mut dyn PacketSink) {}

    /// Forget the reader's state: from now on everything that was interned or sent as a difference is sent in full again.
    fn clear_incremental_state(&mut self) {}

    /// Lines for the log about data that this instance cannot record, each once. Asked after the start, after deadlines and after the stop.
    fn take_notices(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// The descriptor of a data source whose packets each stand alone: nothing but its name.
pub fn standalone(name: &str) -> DataSourceDescriptor {
    DataSourceDescriptor {
        name: Some(name.to_owned()),
        ..Default::default()
    }
}

/// Makes the probe of one instance.
type Make<P> = Box<dyn Fn(&Instance) -> Result<P, String> + Send + Sync>;

/// A data source made of probes. See the [module](self).
pub struct Probes<P> {
    descriptor: DataSourceDescriptor,
    make: Make<P>,
    program: Arc<dyn ProducerProgram>,
    /// Behind a lock because data sources are shared. Only the runtime's thread takes it.
    running: Mutex<BTreeMap<Slot, Running<P>>>,
}

struct Running<P> {
    session: u64,
    probe: P,
    /// `Some` once it has started.
    writer: Option<TraceWriter>,
    /// The flushes that wait for the probe's start.
    flushes: Vec<Acknowledge>,
}

impl<P: Probe> Running<P> {
    fn started(&mut self) -> Option<(&mut P, &mut TraceWriter)> {
        Some((&mut self.probe, self.writer.as_mut()?))
    }

    fn flush(&mut self, now: BootTime) {
        if let Some((probe, writer)) = self.started() {
            probe.flush(now, writer);
            writer.flush();
        }
    }
}

impl<P> std::fmt::Debug for Probes<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probes")
            .field("name", &self.descriptor.name)
            .finish_non_exhaustive()
    }
}

impl<P: Probe> Probes<P> {
    /// Makes a data source with this descriptor. `make` makes the probe of an instance, or returns why its config cannot be carried out.
    pub fn new(
        descriptor: DataSourceDescriptor,
        program: Arc<dyn ProducerProgram>,
        make: impl Fn(&Instance) -> Result<P, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            descriptor,
            make: Box::new(make),
            program,
            running: Mutex::default(),
        }
    }

    /// Gives the probes that have started for a tracing session to `work`, with their sinks. `work` must not call this data source.
    pub fn for_session(&self, session: u64, mut work: impl FnMut(&mut P, &mut dyn PacketSink)) {
        let mut all = self.running();
        let of_session = all.values_mut().filter(|running| running.session == session);
        for (probe, writer) in of_session.filter_map(Running::started) {
            work(probe, writer);
        }
    }

    /// Has the started probes of a tracing session write out the data that they hold back.
    pub fn flush_session(&self, session: u64) {
        let now = boot_now();
        for running in self.running().values_mut() {
            if running.session == session {
                running.flush(now);
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Slot, Running<P>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on_notices(&self, probe: &mut P) {
        for notice in probe.take_notices() {
            self.program.warning(&notice);
        }
    }
}

impl<P: Probe> DataSource for Probes<P> {
    fn descriptor(&self) -> DataSourceDescriptor {
        self.descriptor.clone()
    }

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        let running = Running {
            session: instance.config.tracing_session_id.unwrap_or_default(),
            probe: (self.make)(instance)?,
            writer: None,
            flushes: Vec::new(),
        };
        self.running().insert(instance.slot, running);
        Ok(())
    }

    fn start(&self, instance: &Instance, output: Output, _started: Acknowledge) -> Result<(), String> {
        let mut all = self.running();
        let writer = output.create_trace_writer().map_err(|error| {
            all.remove(&instance.slot);
            error.to_string()
        })?;
        if let Some(running) = all.get_mut(&instance.slot) {
            let writer = running.writer.insert(writer);
            running.probe.start(boot_now(), writer);
            // Packets that are written once, at the start, must not wait until the writer has more.
            writer.flush();
            self.pass_on_notices(&mut running.probe);
        }
        Ok(())
    }

    fn stop(&self, slot: Slot, _stopped: Acknowledge) {
        // Drops the writer, and so returns the last chunk, before the service hears that the instance has stopped.
        let mut ended = self.running().remove(&slot);
        if let Some((probe, writer)) = ended.as_mut().and_then(Running::started) {
            probe.stop(boot_now(), writer);
            self.pass_on_notices(probe);
        }
    }

    fn flush(&self, slot: Slot, _flags: u64, flushed: Acknowledge) {
        if let Some(running) = self.running().get_mut(&slot) {
            running.flush(boot_now());
            if running.probe.is_starting() {
                running.flushes.push(flushed);
            }
        }
    }

    fn clear_incremental_state(&self, slot: Slot) {
        if let Some(running) = self.running().get_mut(&slot) {
            running.probe.clear_incremental_state();
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let all = self.running();
        let started = all.values().filter(|running| running.writer.is_some());
        started.filter_map(|running| running.probe.next_deadline()).min()
    }

    fn on_deadline(&self) {
        let now = boot_now();
        for running in self.running().values_mut() {
            if let Some((probe, writer)) = running.started()
                && probe.next_deadline().is_some_and(|deadline| deadline <= now)
            {
                probe.on_deadline(now, writer);
                self.pass_on_notices(probe);
            }
            if !running.flushes.is_empty() && !running.probe.is_starting() {
                running.flush(now);
                running.flushes.clear();
            }
        }
    }

    /// Waiting costs nothing: all data that could be recorded meanwhile would have to go through the same memory.
    fn exhausted_policy(&self, _config: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::StallThenDrop
    }
}
