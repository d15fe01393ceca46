//! A producer of this process: the methods and events of
//! [`ProducerEndpoint`](ferretto_client::producer::ProducerEndpoint), without a socket.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use ferretto_client::arbiter::Request;
use ferretto_client::producer::{
    self, ConnectionFeatures, DataSourceInstanceId, DataSourceSetup, Disconnect, Flush, FlushRequestId,
    ProducerEvent, ProducerOptions, SharedMemoryOffer,
};
use ferretto_ipc::client::CallId;
use ferretto_proto::messages::Message;
use ferretto_proto::messages::{CommitDataRequest, DataSourceConfig, DataSourceDescriptor};
use ferretto_service::{
    Credentials, Introduction, Machine, MachineId, MemorySharing, Now, OtherMachine, ProducerCommand,
    ProducerId, Scraping, SmbOrigin,
};
use ferretto_smb::{PageSize, ServiceSmb, SharedMemory};

use super::{Core, lock, machine};
use crate::system;

/// What a service in the same process agrees to.
const FEATURES: ConnectionFeatures = ConnectionFeatures {
    uses_our_shared_memory: false,
    direct_patching: true,
    emulates_shared_memory: false,
};

/// A producer's end, see the [module](self). The service forgets the producer when this is dropped.
pub(crate) struct Producer {
    core: Arc<Mutex<Core>>,
    /// `None` if it was turned away.
    id: Option<ProducerId>,
    /// What happens to one that was turned away.
    turned_away: VecDeque<ProducerEvent>,
    last_call: u64,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("id", &self.id).finish()
    }
}

impl Producer {
    /// Memory that the producer made is not adopted: there is no time before the connection that it could have been for.
    pub(super) fn connect(core: Arc<Mutex<Core>>, options: ProducerOptions) -> Producer {
        let machine = lock(&core).machine;
        let introduction = Introduction {
            name: options.name,
            sdk_version: options.sdk_version,
            smb_size_hint: options.shared_memory_size_hint as usize,
            smb_page_size_hint: options.page_size_hint as usize,
            // Upstream's service in the process scrapes unless told otherwise, unlike the daemon.
            scraping: match options.scraping {
                producer::Scraping::ServiceDefault | producer::Scraping::Enabled => Scraping::Enabled,
                producer::Scraping::Disabled => Scraping::Disabled,
            },
            sharing: MemorySharing::Possible,
            machine: match machine {
                MachineId::HOST => Machine::Host,
                id => Machine::Other(Box::new(OtherMachine {
                    id,
                    name: String::new(),
                })),
            },
        };
        let credentials = Credentials {
            uid: system::effective_user(),
            pid: Some(std::process::id() as i32),
        };
        let mut turned_away = VecDeque::new();
        let id = {
            let mut core = lock(&core);
            let id = core.service.connect_producer(credentials, introduction);
            match id {
                Some(id) => {
                    let connected = ProducerEvent::Connected(FEATURES);
                    core.producers.insert(id, VecDeque::from([connected]));
                }
                None => turned_away.push_back(ProducerEvent::Disconnected(Disconnect::Rejected)),
            }
            core.carry_out(&machine::now());
            id
        };
        Producer {
            core,
            id,
            turned_away,
            last_call: 0,
        }
    }

    /// The next event, or `None` when there is none for now.
    pub(crate) fn next_event(&mut self) -> Option<ProducerEvent> {
        match self.id {
            Some(id) => lock(&self.core).producers.get_mut(&id)?.pop_front(),
            None => self.turned_away.pop_front(),
        }
    }

    /// Offers a data source.
    pub(crate) fn register_data_source(&mut self, descriptor: &DataSourceDescriptor) {
        let encoded = descriptor.encode_to_vec();
        self.input(|core, id, now| core.service.register_data_source(id, &encoded, now));
    }

    /// Replaces the descriptor of a data source with the same name and id.
    pub(crate) fn update_data_source(&mut self, descriptor: &DataSourceDescriptor) {
        let encoded = descriptor.encode_to_vec();
        self.input(|core, id, _| core.service.update_data_source(id, &encoded));
    }

    /// Withdraws the data source `name`; its instances are stopped.
    pub(crate) fn unregister_data_source(&mut self, name: &str) {
        self.input(|core, id, now| core.service.unregister_data_source(id, name, now));
    }

    /// Sends what the arbiter collected.
    pub(crate) fn send(&mut self, request: &Request) {
        self.input(|core, id, now| match request {
            Request::RegisterTraceWriter(writer, target) => {
                core.service
                    .register_trace_writer(id, writer.0.into(), target.0.into());
            }
            Request::CommitData(commit) => core.service.commit(id, commit, now),
            Request::UnregisterTraceWriter(writer) => {
                core.service.unregister_trace_writer(id, writer.0.into());
            }
        });
    }

    /// Acknowledges a flush, and all earlier ones, for which no data is left to commit.
    pub(crate) fn acknowledge_flush(&mut self, flush: FlushRequestId) {
        self.send(&Request::CommitData(CommitDataRequest {
            flush_request_id: Some(flush.0),
            ..Default::default()
        }));
    }

    /// Tells that an instance runs, for data sources with `will_notify_on_start`.
    pub(crate) fn notify_data_source_started(&mut self, instance: DataSourceInstanceId) {
        self.input(|core, id, now| core.service.data_source_started(id, instance.0, now));
    }

    /// Tells that an instance has stopped, for data sources with `will_notify_on_stop`.
    pub(crate) fn notify_data_source_stopped(&mut self, instance: DataSourceInstanceId) {
        self.input(|core, id, now| core.service.data_source_stopped(id, instance.0, now));
    }

    /// Activates triggers by name, in whatever sessions wait for them.
    pub(crate) fn activate_triggers(&mut self, names: &[impl AsRef<str>]) {
        self.input(|core, id, now| core.service.activate_triggers(id, names, machine::random(), now));
    }

    /// Asks for [`ProducerEvent::Synced`] once the service has seen all earlier requests. It has.
    pub(crate) fn sync(&mut self) -> CallId {
        self.last_call += 1;
        let call = CallId::new(self.last_call);
        self.input(|core, id, _| core.tell_producer(id, ProducerEvent::Synced(call)));
        call
    }

    /// Has the service take an input, and all of what follows done.
    fn input(&mut self, give: impl FnOnce(&mut Core, ProducerId, &Now)) {
        let Some(id) = self.id else { return };
        let now = machine::now();
        let mut core = lock(&self.core);
        give(&mut core, id, &now);
        core.carry_out(&now);
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.input(|core, id, now| {
            core.producers.remove(&id);
            core.service.disconnect_producer(id, now);
        });
    }
}

impl Core {
    /// Hands a command to its producer.
    pub(super) fn command(&mut self, id: ProducerId, command: ProducerCommand, now: &Now) {
        let setup = |instance, config: &[u8]| DataSourceSetup {
            instance,
            // The service has put together what it decoded before.
            config: Box::new(DataSourceConfig::decode_from_slice(config).unwrap_or_default()),
            encoded_config: config.to_vec(),
        };
        let command = match command {
            ProducerCommand::CreateSharedMemory { size, page_size } => {
                match create_shared_memory(size, page_size) {
                    Ok((smb, offer)) => {
                        self.service.attach_shared_memory(id, smb, SmbOrigin::Service);
                        producer::ProducerCommand::SetupTracing(offer)
                    }
                    Err(error) => return self.close_producer(id, error, now),
                }
            }
            // Nobody here offers memory, or cannot be given any.
            ProducerCommand::EmulateSharedMemory { .. } | ProducerCommand::SharedMemoryAdopted => return,
            ProducerCommand::SetupDataSource { instance, config } => {
                producer::ProducerCommand::SetupDataSource(setup(instance, &config))
            }
            ProducerCommand::StartDataSource { instance, config } => {
                producer::ProducerCommand::StartDataSource(setup(instance, &config))
            }
            ProducerCommand::StopDataSource { instance } => {
                producer::ProducerCommand::StopDataSource(instance)
            }
            ProducerCommand::Flush {
                request,
                instances,
                flags,
            } => producer::ProducerCommand::Flush(Flush {
                id: request,
                instances,
                flags,
            }),
            ProducerCommand::ClearIncrementalState { instances } => {
                producer::ProducerCommand::ClearIncrementalState(instances)
            }
        };
        self.tell_producer(id, ProducerEvent::Command(command));
    }
}

/// Makes the memory that the service wants for a producer, for both ends.
fn create_shared_memory(size: usize, page_size: usize) -> Result<(ServiceSmb, SharedMemoryOffer), String> {
    let failed = |error: &dyn fmt::Display| {
        format!("cannot make {size} bytes of shared memory for a producer: {error}")
    };
    let pages = PageSize::new(page_size).ok_or_else(|| failed(&"that is no size of pages"))?;
    let memory = Arc::new(SharedMemory::create(size).map_err(|error| failed(&error))?);
    let smb = ServiceSmb::new(memory.clone(), pages).map_err(|error| failed(&error))?;
    let offer = SharedMemoryOffer::InProcess {
        memory,
        page_size: page_size as u32,
    };
    Ok((smb, offer))
}
