//! The producer port: turns calls of producers into inputs of the service, and its commands into replies of their `GetAsyncCommand` call,
//! which stays open for that.

use std::borrow::Cow;
use std::os::fd::AsFd;
use std::sync::Arc;

use ferretto_ipc::PassedFd;
use ferretto_ipc::host::{Reply, ReplyTo, ReplyWanted, Request};
use ferretto_ipc::ports::ProducerMethod;
use ferretto_proto::messages::get_async_command_response::{
    ClearIncrementalState, Flush, SetupDataSource, SetupTracing, StartDataSource, StopDataSource,
};
use ferretto_proto::messages::{
    ActivateTriggersRequest, DecodeError, GetAsyncCommandResponse as Command, InitializeConnectionRequest,
    InitializeConnectionResponse, Message, NotifyDataSourceStartedRequest, NotifyDataSourceStoppedRequest,
    RegisterDataSourceRequest, RegisterTraceWriterRequest, UnregisterDataSourceRequest,
    UnregisterTraceWriterRequest, initialize_connection_request,
};
use ferretto_proto::opaque::essence;
use ferretto_service::{
    Introduction, MemorySharing, ProducerCommand, ProducerId, Scraping, Service, SmbOrigin, limits,
};
use ferretto_smb::{PageSize, Peer, ServiceSmb, SharedMemory};
use ferretto_wire::{Reader, Value, Writer};

use super::clocks::TurnTime;
use super::connection::Replies;
use super::random;
use super::relay_port::Caller;
use super::repair;

/// Commands that may wait for a producer to ask for them.
const MAX_EARLY_COMMANDS: usize = 4096;
/// Bytes of these commands: configs of data sources, most of all. A producer that listens to commands at all asks for them right away.
const MAX_EARLY_BYTES: usize = 4 * 1024 * 1024;

/// The host's state for a producer's connection.
#[derive(Default)]
pub(crate) struct ProducerLink {
    sharing: MemorySharing,
    pub(crate) id: Option<ProducerId>,
    /// The open `GetAsyncCommand` call.
    commands: Option<ReplyTo>,
    /// Commands from before that call.
    early: Vec<Reply>,
    early_bytes: usize,
}

impl ProducerLink {
    /// A producer that has not introduced itself yet.
    pub(crate) fn new(sharing: MemorySharing) -> ProducerLink {
        ProducerLink {
            sharing,
            ..Default::default()
        }
    }

    /// Bytes of commands that wait for a `GetAsyncCommand` call.
    pub(crate) fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    /// Handles one call; immediate answers go to `replies`.
    ///
    /// # Errors
    /// Why the call is rejected.
    pub(crate) fn call(
        &mut self,
        service: &mut Service,
        caller: &Caller<'_>,
        method: ProducerMethod,
        request: Request<'_>,
        replies: &mut Replies,
        turn: &TurnTime,
    ) -> Result<(), String> {
        let Request {
            payload,
            fd,
            reply_to: to,
            ..
        } = request;
        let Some(id) = self.id.filter(|_| method != ProducerMethod::InitializeConnection) else {
            let reply = match method {
                ProducerMethod::InitializeConnection => {
                    self.initialize(service, caller, payload, fd, turn)?
                }
                _ => Reply::rejected(),
            };
            replies.push(to, reply);
            return Ok(());
        };
        let undecodable = |error| format!("{error} of {}", method.name());
        /// Decodes the request or rejects the call.
        macro_rules! decode {
            ($message:ty) => {
                <$message>::decode_from_slice(payload).map_err(undecodable)?
            };
            ($message:ty, $texts:expr) => {
                repair::decode::<$message>(payload, &$texts).map_err(undecodable)?
            };
        }
        match method {
            ProducerMethod::InitializeConnection | ProducerMethod::Sync => {}
            ProducerMethod::RegisterDataSource => {
                let descriptor = descriptor(payload).map_err(undecodable)?;
                service.register_data_source(id, &descriptor, turn.now());
            }
            ProducerMethod::UpdateDataSource => {
                let descriptor = descriptor(payload).map_err(undecodable)?;
                service.update_data_source(id, &descriptor);
            }
            ProducerMethod::UnregisterDataSource => {
                let (request, _) = decode!(UnregisterDataSourceRequest, repair::UNREGISTER_DATA_SOURCE);
                service.unregister_data_source(
                    id,
                    request.data_source_name.as_deref().unwrap_or_default(),
                    turn.now(),
                );
            }
            ProducerMethod::CommitData => {
                service
                    .commit_encoded(id, payload, || *turn.now())
                    .map_err(undecodable)?;
            }
            ProducerMethod::RegisterTraceWriter => {
                let request = decode!(RegisterTraceWriterRequest);
                service.register_trace_writer(
                    id,
                    request.trace_writer_id.unwrap_or_default(),
                    request.target_buffer.unwrap_or_default(),
                );
            }
            ProducerMethod::UnregisterTraceWriter => {
                let request = decode!(UnregisterTraceWriterRequest);
                service.unregister_trace_writer(id, request.trace_writer_id.unwrap_or_default());
            }
            ProducerMethod::NotifyDataSourceStarted => {
                let request = decode!(NotifyDataSourceStartedRequest);
                service.data_source_started(id, request.data_source_id.unwrap_or_default(), turn.now());
            }
            ProducerMethod::NotifyDataSourceStopped => {
                let request = decode!(NotifyDataSourceStoppedRequest);
                service.data_source_stopped(id, request.data_source_id.unwrap_or_default(), turn.now());
            }
            ProducerMethod::ActivateTriggers => {
                let (request, _) = decode!(ActivateTriggersRequest, repair::ACTIVATE_TRIGGERS);
                service.activate_triggers(id, &request.trigger_names, random::bits(), turn.now());
            }
            ProducerMethod::GetAsyncCommand => {
                if to.wanted() == ReplyWanted::Yes {
                    // A later call takes over from an earlier one.
                    if let Some(earlier) = self.commands.replace(to) {
                        replies.push(earlier, Reply::rejected());
                    }
                    let early = std::mem::take(&mut self.early);
                    self.early_bytes = 0;
                    early.into_iter().for_each(|command| replies.push(to, command));
                }
                return Ok(());
            }
        }
        replies.push(to, Reply::last(Vec::new()));
        Ok(())
    }

    /// Sends a command, now or once the producer asks for commands.
    ///
    /// # Errors
    /// If too many commands wait for a producer that never asks.
    pub(crate) fn command(&mut self, command: Reply, replies: &mut Replies) -> Result<(), String> {
        match self.commands {
            Some(to) => replies.push(to, command),
            None if self.early.len() >= MAX_EARLY_COMMANDS || self.early_bytes >= MAX_EARLY_BYTES => {
                return Err("does not ask for its commands".into());
            }
            None => {
                self.early_bytes += command.size();
                self.early.push(command);
            }
        }
        Ok(())
    }

    fn initialize(
        &mut self,
        service: &mut Service,
        caller: &Caller<'_>,
        payload: &[u8],
        fd: Option<PassedFd>,
        turn: &TurnTime,
    ) -> Result<Reply, String> {
        use initialize_connection_request::ProducerSMBScrapingMode;
        if self.id.is_some() {
            return Ok(Reply::rejected());
        }
        let (request, _) =
            repair::decode::<InitializeConnectionRequest>(payload, &repair::INITIALIZE_CONNECTION)
                .map_err(|error| format!("{error} of InitializeConnection"))?;
        let page_size = request.shared_memory_page_size_hint_bytes.unwrap_or_default() as usize;
        let introduction = Introduction {
            name: request.producer_name.unwrap_or_default(),
            sdk_version: request.sdk_version.unwrap_or_default(),
            smb_size_hint: request.shared_memory_size_hint_bytes.unwrap_or_default() as usize,
            smb_page_size_hint: page_size,
            scraping: match request.smb_scraping_mode {
                Some(ProducerSMBScrapingMode::SMB_SCRAPING_ENABLED) => Scraping::Enabled,
                _ => Scraping::Disabled,
            },
            sharing: self.sharing,
            machine: caller.machine(),
        };
        let name = introduction.name.clone();
        let Some(id) = service.connect_producer(caller.credentials(), introduction) else {
            return Ok(Reply::rejected());
        };
        self.id = Some(id);
        let offered =
            request.producer_provided_shmem.unwrap_or_default() && self.sharing == MemorySharing::Possible;
        let adopted = match fd.filter(|_| offered) {
            Some(fd) => match adopt(service, id, &fd, page_size) {
                Ok(smb) => {
                    service.attach_shared_memory(id, smb, SmbOrigin::Producer);
                    true
                }
                Err(reason) => {
                    turn.program().warning(format_args!(
                        "the shared memory that producer {name:?} offers is not used: {reason}; it gets some of ours"
                    ));
                    false
                }
            },
            None => false,
        };
        let response = InitializeConnectionResponse {
            using_shmem_provided_by_producer: Some(adopted),
            direct_smb_patching_supported: Some(true),
            use_shmem_emulation: Some(self.sharing == MemorySharing::Impossible),
            ..Default::default()
        };
        Ok(Reply::last(response.encode_to_vec()))
    }
}

fn adopt(
    service: &Service,
    producer: ProducerId,
    fd: &PassedFd,
    page_size: usize,
) -> Result<ServiceSmb, String> {
    let memory =
        SharedMemory::attach(fd, Peer::Producer, limits::MAX_SMB_SIZE).map_err(|error| error.to_string())?;
    service.check_shared_memory(producer, memory.size())?;
    if !Service::would_adopt(memory.size(), page_size) {
        return Err(format!(
            "{} bytes in pages of {page_size} are not a size the service uses",
            memory.size()
        ));
    }
    divide(memory, page_size)
}

fn divide(memory: SharedMemory, page_size: usize) -> Result<ServiceSmb, String> {
    let page_size = PageSize::new(page_size).ok_or_else(|| format!("{page_size} bytes are no page size"))?;
    ServiceSmb::new(Arc::new(memory), page_size).map_err(|error| error.to_string())
}

/// Makes the shared memory that the service wants for a producer, and the command that hands it over.
pub(crate) fn create_shared_memory(size: usize, page_size: usize) -> Result<(ServiceSmb, Reply), String> {
    let failed =
        |error: &dyn std::fmt::Display| format!("cannot make {size} bytes of shared memory: {error}");
    let memory = SharedMemory::create(size).map_err(|error| failed(&error))?;
    let fd = memory
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| failed(&error))?;
    let smb = divide(memory, page_size)?;
    let mut payload = Writer::new();
    setup_tracing(&mut payload, page_size);
    Ok((smb, Reply::more(payload.as_slice().to_vec()).with_fd(fd)))
}

fn setup_tracing(payload: &mut Writer, page_size: usize) {
    payload.nested(Command::SETUP_TRACING, |setup| {
        setup.varint_field(SetupTracing::SHARED_BUFFER_PAGE_SIZE_KB, page_size as u64 / 1024);
    });
}

/// A command as one reply of the `GetAsyncCommand` stream; `None` for the one that needs memory made first. Configs go in as they came.
pub(crate) fn encode_command(command: &ProducerCommand) -> Option<Reply> {
    let mut payload = Writer::new();
    match command {
        ProducerCommand::CreateSharedMemory { .. } => return None,
        ProducerCommand::EmulateSharedMemory { page_size } => setup_tracing(&mut payload, *page_size),
        ProducerCommand::SharedMemoryAdopted => payload.nested(Command::SETUP_TRACING, |_| {}),
        ProducerCommand::SetupDataSource { instance, config } => {
            payload.nested(Command::SETUP_DATA_SOURCE, |message| {
                message.varint_field(SetupDataSource::NEW_INSTANCE_ID, instance.0);
                message.bytes_field(SetupDataSource::CONFIG, config);
            });
        }
        ProducerCommand::StartDataSource { instance, config } => {
            payload.nested(Command::START_DATA_SOURCE, |message| {
                message.varint_field(StartDataSource::NEW_INSTANCE_ID, instance.0);
                message.bytes_field(StartDataSource::CONFIG, config);
            });
        }
        ProducerCommand::StopDataSource { instance } => {
            payload.nested(Command::STOP_DATA_SOURCE, |message| {
                message.varint_field(StopDataSource::INSTANCE_ID, instance.0)
            });
        }
        ProducerCommand::Flush {
            request,
            instances,
            flags,
        } => {
            payload.nested(Command::FLUSH, |message| {
                for instance in instances {
                    message.varint_field(Flush::DATA_SOURCE_IDS, instance.0);
                }
                message.varint_field(Flush::REQUEST_ID, request.0);
                message.varint_field(Flush::FLAGS, *flags);
            });
        }
        ProducerCommand::ClearIncrementalState { instances } => {
            payload.nested(Command::CLEAR_INCREMENTAL_STATE, |message| {
                for instance in instances {
                    message.varint_field(ClearIncrementalState::DATA_SOURCE_IDS, instance.0);
                }
            });
        }
    }
    Some(Reply::more(payload.as_slice().to_vec()))
}

/// The descriptor inside `RegisterDataSourceRequest` and `UpdateDataSourceRequest`. It stays as it came, except that a name that is not UTF-8
/// is repaired.
fn descriptor(payload: &[u8]) -> Result<Cow<'_, [u8]>, DecodeError> {
    const DATA_SOURCE_DESCRIPTOR: u32 = RegisterDataSourceRequest::DATA_SOURCE_DESCRIPTOR;
    let mut descriptor: &[u8] = &[];
    for field in Reader::new(payload) {
        let field = field?;
        if let (DATA_SOURCE_DESCRIPTOR, Value::Bytes(bytes)) = (field.number, field.value) {
            descriptor = bytes;
        }
    }
    repair::in_need(descriptor, &repair::DESCRIPTOR, essence).map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_a_producer_never_asks_for_are_bounded() {
        for size in [0, 100_000] {
            let mut link = ProducerLink::new(MemorySharing::Possible);
            let mut replies = Replies::default();
            let mut bytes = 0;
            let kept = (0..1_000_000)
                .take_while(|_| link.command(Reply::more(vec![0; size]), &mut replies).is_ok())
                .inspect(|_| bytes += size)
                .count();
            assert!(kept <= MAX_EARLY_COMMANDS, "{kept}");
            assert!(bytes <= MAX_EARLY_BYTES + size, "{bytes}");
            assert!(kept == MAX_EARLY_COMMANDS || bytes >= MAX_EARLY_BYTES);
        }
    }
}
