//! The service's commands to a producer: `GetAsyncCommandResponse`, decoded.
//!
//! Called by [`super::ProducerEndpoint`]. Configs are kept as the bytes that the consumer wrote, beside their decoded form, so that a data source of
//! a newer schema finds its fields there.

use std::os::fd::OwnedFd;

use ferretto_proto::messages::get_async_command_response::{Cmd, SetupDataSource, StartDataSource};
use ferretto_proto::messages::{DataSourceConfig, DecodeError, GetAsyncCommandResponse, Message};
use ferretto_wire::Reader;

use super::{DataSourceInstanceId, FlushRequestId};

/// The memory for packets.
#[derive(Debug)]
pub enum SharedMemoryOffer {
    /// The service made it: the usual case.
    FromService {
        /// The memory, of the size that `fstat` tells.
        fd: OwnedFd,
        /// Bytes of a page in it.
        page_size: u32,
    },
    /// The memory that we offered is used.
    Ours,
    /// No memory can be shared; commits carry the data ([`Arbiter::emulating`](crate::arbiter::Arbiter::emulating)).
    Emulated {
        /// Bytes of a page in memory of our own.
        page_size: u32,
    },
}

/// An instance of a data source with its config.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSourceSetup {
    /// The instance.
    pub instance: DataSourceInstanceId,
    /// The config as far as our schema knows it.
    pub config: Box<DataSourceConfig>,
    /// The config, byte for byte.
    pub encoded_config: Vec<u8>,
}

/// A flush of some data sources: write out buffered data, then acknowledge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// The id for the acknowledgement.
    pub id: FlushRequestId,
    /// The instances to flush.
    pub instances: Vec<DataSourceInstanceId>,
    /// The flush's initiator and reason (upstream's `FlushFlags`); 0 when unknown.
    pub flags: u64,
}

/// A command of the service.
#[derive(Debug)]
pub enum ProducerCommand {
    /// Offers shared memory: writers can be made. Comes before the first data source is set up.
    SetupTracing(SharedMemoryOffer),
    /// Prepare an instance, so that starting it is quick.
    SetupDataSource(DataSourceSetup),
    /// Start an instance that was set up. The config is the same.
    StartDataSource(DataSourceSetup),
    /// Stop an instance.
    StopDataSource(DataSourceInstanceId),
    /// Write out buffered data.
    Flush(Flush),
    /// Repeat everything that later packets refer to, because the earlier packets may be gone.
    ClearIncrementalState(Vec<DataSourceInstanceId>),
}

/// A command as it came, before it is judged against the connection's state.
pub(super) enum Received {
    SetupTracing { page_size: u32, fd: Option<OwnedFd> },
    SetupDataSource(DataSourceSetup),
    StartDataSource(DataSourceSetup),
    StopDataSource(DataSourceInstanceId),
    Flush(Flush),
    ClearIncrementalState(Vec<DataSourceInstanceId>),
    Unknown,
}

impl Received {
    /// Decodes the one command of a message.
    pub(super) fn decode(payload: &[u8], fd: Option<OwnedFd>) -> Result<Received, DecodeError> {
        let Some(command) = GetAsyncCommandResponse::decode_from_slice(payload)?.cmd else {
            return Ok(Received::Unknown);
        };
        Ok(match command {
            Cmd::SetupTracing(setup) => Received::SetupTracing {
                page_size: setup.shared_buffer_page_size_kb.unwrap_or(0).saturating_mul(1024),
                fd,
            },
            Cmd::SetupDataSource(setup) => Received::SetupDataSource(DataSourceSetup {
                instance: DataSourceInstanceId(setup.new_instance_id.unwrap_or(0)),
                config: Box::new(setup.config.into_option().unwrap_or_default()),
                encoded_config: encoded_config(
                    payload,
                    GetAsyncCommandResponse::SETUP_DATA_SOURCE,
                    SetupDataSource::CONFIG,
                ),
            }),
            Cmd::StartDataSource(start) => Received::StartDataSource(DataSourceSetup {
                instance: DataSourceInstanceId(start.new_instance_id.unwrap_or(0)),
                config: Box::new(start.config.into_option().unwrap_or_default()),
                encoded_config: encoded_config(
                    payload,
                    GetAsyncCommandResponse::START_DATA_SOURCE,
                    StartDataSource::CONFIG,
                ),
            }),
            Cmd::StopDataSource(stop) => {
                Received::StopDataSource(DataSourceInstanceId(stop.instance_id.unwrap_or(0)))
            }
            Cmd::Flush(flush) => Received::Flush(Flush {
                id: FlushRequestId(flush.request_id.unwrap_or(0)),
                instances: flush
                    .data_source_ids
                    .into_iter()
                    .map(DataSourceInstanceId)
                    .collect(),
                flags: flush.flags.unwrap_or(0),
            }),
            Cmd::ClearIncrementalState(clear) => Received::ClearIncrementalState(
                clear
                    .data_source_ids
                    .into_iter()
                    .map(DataSourceInstanceId)
                    .collect(),
            ),
        })
    }
}

/// The bytes of the field `config` in the field `command` of a message that decodes. If it occurs twice, the two encodings in a row mean the two
/// merged.
fn encoded_config(payload: &[u8], command: u32, config: u32) -> Vec<u8> {
    fields(payload, command)
        .flat_map(|command| fields(command, config))
        .flatten()
        .copied()
        .collect()
}

/// The contents of the length-delimited fields of this number.
fn fields(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    Reader::new(message)
        .map_while(Result::ok)
        .filter(move |field| field.number == number)
        .filter_map(|field| field.value.as_bytes())
}
