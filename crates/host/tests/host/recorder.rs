//! A producer for tests, which writes through an arbiter as the SDK's producers do.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Partitioning, Wake};
use ferretto_client::producer::{
    DataSourceInstanceId, ProducerCommand, ProducerEndpoint, ProducerEvent, ProducerOptions, Scraping,
    SharedMemoryOffer,
};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_host::Port;
use ferretto_proto::messages::{DataSourceDescriptor, Message, TestEvent, TracePacket, trace_packet};
use ferretto_smb::{PageSize, Peer, ProducerSmb, SharedMemory};

use crate::machine::Machine;

struct Quiet;

impl Notify for Quiet {
    fn wake(&self, _: Wake) {}
}

/// A producer of the data source `test.source`, as the muxer would run it.
pub(crate) struct Recorder {
    pub(crate) producer: ProducerEndpoint,
    pub(crate) arbiter: Option<Arc<Arbiter>>,
    pub(crate) writers: BTreeMap<DataSourceInstanceId, TraceWriter>,
    /// The buffer of the last one.
    pub(crate) target: Option<BufferId>,
    pub(crate) cleared: usize,
}

impl Recorder {
    pub(crate) fn new(machine: &mut Machine, name: &str) -> Recorder {
        let options = ProducerOptions {
            name: name.into(),
            scraping: Scraping::Enabled,
            ..Default::default()
        };
        let mut producer = ProducerEndpoint::over(machine.connect(Port::Producer), options).unwrap();
        machine.until("a connection", || {
            producer.flush();
            producer.on_readable();
            matches!(producer.next_event(), Some(ProducerEvent::Connected(_))).then_some(())
        });
        let descriptor = DataSourceDescriptor {
            name: Some("test.source".into()),
            will_notify_on_start: Some(true),
            will_notify_on_stop: Some(true),
            handles_incremental_state_clear: Some(true),
            ..Default::default()
        };
        producer.register_data_source(descriptor).unwrap();
        producer.flush();
        Recorder {
            producer,
            arbiter: None,
            writers: BTreeMap::new(),
            target: None,
            cleared: 0,
        }
    }

    pub(crate) fn turn(&mut self) {
        self.producer.on_readable();
        while let Some(event) = self.producer.next_event() {
            let ProducerEvent::Command(command) = event else {
                continue;
            };
            match command {
                ProducerCommand::SetupTracing(SharedMemoryOffer::FromService { fd, page_size }) => {
                    let memory = Arc::new(SharedMemory::attach(fd, Peer::Service, 1 << 25).unwrap());
                    let pages = PageSize::new(page_size as usize).unwrap();
                    let smb = ProducerSmb::new(memory, pages).unwrap();
                    self.arbiter = Some(Arbiter::new(smb, Partitioning::ByWriters, Quiet));
                }
                ProducerCommand::SetupTracing(other) => panic!("{other:?}"),
                ProducerCommand::SetupDataSource(setup) => {
                    assert_eq!(setup.config.name.as_deref(), Some("test.source"));
                }
                ProducerCommand::StartDataSource(setup) => {
                    let target = BufferId(setup.config.target_buffer.unwrap() as u16);
                    self.target = Some(target);
                    let arbiter = self.arbiter.as_ref().unwrap();
                    let writer = arbiter
                        .create_trace_writer(target, BufferExhaustedPolicy::Drop)
                        .unwrap();
                    self.writers.insert(setup.instance, writer);
                    self.producer.notify_data_source_started(setup.instance).unwrap();
                }
                ProducerCommand::StopDataSource(instance) => {
                    drop(self.writers.remove(&instance));
                    self.commit();
                    self.producer.notify_data_source_stopped(instance).unwrap();
                }
                ProducerCommand::Flush(flush) => {
                    self.writers.values_mut().for_each(TraceWriter::flush);
                    self.arbiter.as_ref().unwrap().acknowledge_flush(flush.id.0);
                }
                ProducerCommand::ClearIncrementalState(instances) => self.cleared += instances.len(),
            }
        }
        self.commit();
    }

    pub(crate) fn commit(&mut self) {
        if let Some(arbiter) = &self.arbiter {
            for request in arbiter.take_requests() {
                self.producer.send(request).unwrap();
            }
        }
        self.producer.flush();
    }

    /// Writes a packet for each session.
    pub(crate) fn write(&mut self, text: &str) {
        let packet = TracePacket {
            data: Some(trace_packet::Data::ForTesting(Box::new(TestEvent {
                str: Some(text.into()),
                ..Default::default()
            }))),
            ..Default::default()
        }
        .encode_to_vec();
        for writer in self.writers.values_mut() {
            writer.write_packet(&packet);
        }
        self.commit();
    }
}
