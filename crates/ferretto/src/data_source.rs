//! Data sources of the application: they record packets of any kind into traces.
//!
//! A data source is a type that implements [`DataSource`], and a static [`DataSourceHandle`], which registers it and writes its packets. Each session
//! that has it in its config gets an *instance*: a value of the type, made from that config.
//!
//! ```
//! use ferretto::data_source::{DataSource, DataSourceHandle, SetUp};
//! use ferretto::wire::Reader;
//!
//! struct Temperature {
//!     unit: &'static str,
//! }
//!
//! impl DataSource for Temperature {
//!     const NAME: &'static str = "com.example.temperature";
//!     type Incremental = ();
//!     type Thread = ();
//!
//!     fn set_up(set_up: &SetUp<'_>) -> Self {
//!         // What a session wants is in its config: here in the field `legacy_config`, which is a text.
//!         const LEGACY_CONFIG: u32 = 1000;
//!         let mut fields = Reader::new(set_up.encoded_config).flatten();
//!         let wish = fields.find(|field| field.number == LEGACY_CONFIG);
//!         let in_fahrenheit = wish.and_then(|wish| wish.value.as_bytes()) == Some(b"imperial");
//!         Temperature { unit: if in_fahrenheit { "F" } else { "C" } }
//!     }
//! }
//!
//! static TEMPERATURE: DataSourceHandle<Temperature> = DataSourceHandle::new();
//!
//! ferretto::initialize(ferretto::Options::system());
//! TEMPERATURE.register();
//! TEMPERATURE.trace(|ctx| {
//!     const FOR_TESTING: u32 = 900;
//!     const STR: u32 = 1;
//!     let unit = ctx.instance.unit;
//!     ctx.encode(|packet| {
//!         packet.nested(FOR_TESTING, |event| event.bytes_field(STR, format!("21 {unit}").as_bytes()));
//!     });
//! });
//! ```
//!
//! With the feature `unstable-proto` fields have names: `set_up.config.legacy_config`, and
//! `ctx.packet(|packet| { packet.for_testing(|event| { event.str(..); }); })`.
//!
//! While nothing is recorded, [`DataSourceHandle::trace`] costs a load and a branch. Otherwise each thread writes a sequence of packets of its own
//! for each instance, straight into the memory shared with the service.

mod instances;
mod thread_state;

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub use ferretto_client::arbiter::BufferExhaustedPolicy;
use ferretto_client::trace_writer::TraceWriter;
#[cfg(feature = "unstable-proto")]
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor};
#[cfg(feature = "unstable-proto")]
use ferretto_proto::write::TracePacket;
use ferretto_wire::Writer;

use crate::muxer;
use crate::off::OFF;
pub use crate::options::{Backend, Concurrency};
use crate::source::{Acknowledge, MAX_INSTANCES};
use crate::track_event;
use instances::{Bridge, InstanceSlot};

/// The side that decides what happens when the shared memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicySource {
    /// The data source.
    DataSource,
    /// The trace config (`buffer_exhausted_policy`). Where it says nothing, the data source.
    Config,
}

/// Something that records packets; see the [module](self). The methods are called on the SDK's thread, and should not take long, because the thread
/// serves nothing else meanwhile.
pub trait DataSource: Send + Sync + Sized + 'static {
    /// The name in trace configs: by custom, the reverse of a domain's name.
    const NAME: &'static str;

    /// The state of each thread's sequence that later packets rely on (numbers for strings, say). It begins anew whenever earlier packets of the
    /// sequence may be lost; the next packet then should say so, with `SEQ_INCREMENTAL_STATE_CLEARED` in its `sequence_flags`. `()` if there is none.
    type Incremental: Default + 'static;

    /// The state that each thread keeps for an instance, for as long as the instance records. `()` if there is none.
    type Thread: Default + 'static;

    /// The behaviour of writers when the shared memory is full.
    const EXHAUSTED: BufferExhaustedPolicy = BufferExhaustedPolicy::Drop;

    /// Whether the trace config may choose that behaviour.
    const POLICY_SOURCE: PolicySource = PolicySource::DataSource;

    /// The number of instances at the same time.
    const CONCURRENCY: Concurrency = Concurrency::Many;

    /// The descriptor that services get; without the feature `unstable-proto`, it has only the name. The SDK adds the fields that are the same for
    /// all data sources: the id, that starting and stopping is acknowledged (stopping only if `will_notify_on_stop` is not set to false here), and
    /// that incremental state is cleared. It is one of the schema's types, so it is [not part of the stable interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    fn descriptor() -> DataSourceDescriptor {
        DataSourceDescriptor {
            name: Some(Self::NAME.to_owned()),
            ..Default::default()
        }
    }

    /// Makes an instance, which is started soon after. Slow preparations belong here.
    fn set_up(set_up: &SetUp<'_>) -> Self;

    /// The instance has begun to record. Dropping `start` tells the service so. Keep it to tell the service later, from any thread.
    fn start(&self, start: Start) {
        drop(start);
    }

    /// The instance has to stop recording. Dropping `stop` completes this; keep it to stop later, from any thread. Until then packets can be written.
    /// The instance may not have been started.
    fn stop(&self, stop: Stop<Self>) {
        drop(stop);
    }

    /// Writes everything that the instance holds back. Dropping `flush` tells the service that this is done; keep it to tell the service later.
    fn flush(&self, flush: Flush) {
        drop(flush);
    }

    /// Called before the incremental state of all threads begins anew.
    fn will_clear_incremental_state(&self) {}

    /// Whether a session with the config `session` can take over an instance that has recorded [from startup on](crate::startup_tracing) with the
    /// config `startup`. By default it can if the configs are equal in all fields that services do not fill in. Without the feature `unstable-proto`
    /// that is always the rule. The configs are of the schema's types, so this is [not part of the stable interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    fn can_adopt(startup: &DataSourceConfig, session: &DataSourceConfig) -> bool {
        crate::source::difference(startup, session).is_none()
    }
}

/// The input from which an instance is made.
#[derive(Debug)]
#[non_exhaustive]
pub struct SetUp<'a> {
    /// The service whose session it is for.
    pub backend: Backend,
    /// The config, as far as this version of Perfetto's schema knows it. It is one of the schema's types, so it is [not part of the stable
    /// interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    pub config: &'a DataSourceConfig,
    /// The config as the session has it, byte for byte, with fields that only this data source knows.
    pub encoded_config: &'a [u8],
}

/// Dropping this reports that an instance has begun to record.
#[derive(Debug)]
pub struct Start(#[allow(dead_code, reason = "it is there to be dropped")] Acknowledge);

/// Dropping this stops an instance, and reports it.
pub struct Stop<D: DataSource> {
    /// Dropped last: the service is told when no thread writes any more.
    _acknowledge: Acknowledge,
    end: Option<instances::End<D>>,
}

impl<D: DataSource> Drop for Stop<D> {
    fn drop(&mut self) {
        drop(self.end.take());
    }
}

impl<D: DataSource> fmt::Debug for Stop<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stop")
    }
}

/// Dropping this reports that an instance has flushed.
#[derive(Debug)]
pub struct Flush {
    _acknowledge: Acknowledge,
    /// The flush's initiator and reason: upstream's `FlushFlags`; 0 if unknown.
    pub flags: u64,
}

/// A data source of this process. Make it a `static`, through which threads write.
pub struct DataSourceHandle<D: DataSource> {
    /// A bit for each slot whose instance records.
    active: AtomicU32,
    slots: [InstanceSlot<D>; MAX_INSTANCES],
    /// Its registration, with the key of the threads' state.
    registered: OnceLock<Registration>,
}

/// The result of registration.
struct Registration {
    index: usize,
    entry: &'static muxer::Entry,
}

impl<D: DataSource> Default for DataSourceHandle<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: DataSource> fmt::Debug for DataSourceHandle<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataSourceHandle")
            .field("name", &D::NAME)
            .field("active", &self.active)
            .finish_non_exhaustive()
    }
}

impl<D: DataSource> DataSourceHandle<D> {
    /// Makes a handle that is not registered.
    pub const fn new() -> Self {
        Self {
            active: AtomicU32::new(0),
            slots: [const { InstanceSlot::new() }; MAX_INSTANCES],
            registered: OnceLock::new(),
        }
    }

    /// Offers the data source to all services, now and whenever they are connected to. May be called before [`initialize`](crate::initialize).
    /// Further calls have no effect.
    pub fn register(&'static self) {
        if OFF {
            return;
        }
        muxer::once(&self.registered, || Registration {
            index: thread_state::next_index(),
            entry: muxer::register(std::sync::Arc::new(Bridge(self))),
        });
    }

    /// Withdraws the data source for good: its instances are stopped, and it cannot be registered again.
    pub fn unregister(&'static self) {
        if let Some(registration) = self.registered.get() {
            muxer::unregister(registration.entry);
        }
    }

    /// Has services told the current result of [`DataSource::descriptor`].
    #[cfg(feature = "unstable-proto")]
    pub fn update_descriptor(&'static self) {
        if let Some(registration) = self.registered.get() {
            muxer::source_changed(registration.entry);
        }
    }

    /// Whether some session records it.
    #[inline]
    pub fn is_active(&self) -> bool {
        !OFF && self.active.load(Ordering::Relaxed) != 0
    }

    /// Calls `write` for each instance that records, if there are any: to write packets, or for anything else. Packets that `write` itself traces
    /// with data sources are not recorded.
    #[inline]
    pub fn trace(&'static self, write: impl FnMut(&mut TraceContext<'_, D>)) {
        let active = self.active.load(Ordering::Relaxed);
        if !OFF && active != 0 {
            thread_state::trace(self, active, write);
        }
    }
}

/// An instance, and this thread's state for it, during a [`DataSourceHandle::trace`].
#[non_exhaustive]
pub struct TraceContext<'a, D: DataSource> {
    /// This thread's sequence of packets.
    pub writer: PacketWriter<'a>,
    /// The state of the sequence that later packets rely on.
    pub incremental: &'a mut D::Incremental,
    /// This thread's state.
    pub thread: &'a mut D::Thread,
    /// The instance.
    pub instance: &'a D,
}

impl<D: DataSource> TraceContext<'_, D> {
    /// As [`PacketWriter::encode`].
    pub fn encode<R>(&mut self, fill: impl FnOnce(&mut Writer) -> R) -> R {
        self.writer.encode(fill)
    }

    /// As [`PacketWriter::packet`].
    #[cfg(feature = "unstable-proto")]
    pub fn packet<R>(&mut self, fill: impl FnOnce(&mut TracePacket<'_>) -> R) -> R {
        self.writer.packet(fill)
    }
}

impl<D: DataSource> fmt::Debug for TraceContext<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceContext")
            .field("writer", &self.writer)
            .finish_non_exhaustive()
    }
}

/// Writes the packets of one thread for one instance.
#[derive(Debug)]
pub struct PacketWriter<'a>(&'a mut TraceWriter);

impl PacketWriter<'_> {
    /// Writes a packet: `fill` appends fields of a `TracePacket` by their numbers, straight into the memory shared with the service. It must not
    /// append the fields that only services write.
    pub fn encode<R>(&mut self, fill: impl FnOnce(&mut Writer) -> R) -> R {
        self.0.packet(fill)
    }

    /// As [`PacketWriter::encode`], with a method for each field. The writer is one of the schema's types, so this is [not part of the stable
    /// interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    pub fn packet<R>(&mut self, fill: impl FnOnce(&mut TracePacket<'_>) -> R) -> R {
        self.encode(|writer| fill(&mut TracePacket::new(writer)))
    }

    /// Writes a packet that is already encoded, without the fields that only services write.
    pub fn raw_packet(&mut self, packet: &[u8]) {
        self.0.write_packet(packet);
    }

    /// The writer, for the crate's own kinds of packets.
    pub(crate) fn trace_writer(&mut self) -> &mut TraceWriter {
        self.0
    }

    /// Hands the packets written so far to the service, now.
    pub fn flush(&mut self) {
        let _confined = track_event::confine();
        self.0.flush();
    }

    /// Hands the packets written so far to the service, and has `done` called on the SDK's thread once the service has them. If the connection is
    /// lost before, `done` is dropped.
    pub fn flush_then(&mut self, done: impl FnOnce() + Send + 'static) {
        self.flush();
        muxer::post(muxer::Command::Sync(Box::new(done)));
    }

    /// How often packets had to be dropped, because there was no room: once for each uninterrupted row of them.
    pub fn losses(&self) -> u64 {
        self.0.losses()
    }
}
