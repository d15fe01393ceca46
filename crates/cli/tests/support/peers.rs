//! A producer and a consumer that use frames ([`super::wire`]), for requests that our libraries would never send.

use std::os::fd::OwnedFd;

use ferretto_ipc::ports::{CONSUMER_PORT, PRODUCER_PORT};
use ferretto_proto::messages::get_async_command_response::Cmd;
use ferretto_proto::messages::trace_config::{BufferConfig, DataSource};
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceConfig, EnableTracingRequest, EnableTracingResponse,
    GetAsyncCommandResponse, GetTraceStatsResponse, InitializeConnectionRequest,
    InitializeConnectionResponse, Message, QueryServiceStateRequest, QueryServiceStateResponse,
    ReadBuffersResponse, TraceConfig, TraceStats, TracingServiceState, commit_data_request,
};
use ferretto_proto::write;
use ferretto_wire::{Reader, Writer};
use rustix::fs::{MemfdFlags, SealFlags};

use super::System;
use super::wire::{Answer, Client, registration};

/// The page size that these producers request.
pub(crate) const PAGE: usize = 4096;

pub(crate) fn introduction(name: &str) -> InitializeConnectionRequest {
    InitializeConnectionRequest {
        producer_name: Some(name.to_owned()),
        shared_memory_page_size_hint_bytes: Some(PAGE as u32),
        ..Default::default()
    }
}

pub(crate) fn config(source: &str) -> TraceConfig {
    TraceConfig {
        buffers: vec![BufferConfig {
            size_kb: Some(1024),
            ..Default::default()
        }],
        data_sources: vec![DataSource {
            config: DataSourceConfig {
                name: Some(source.to_owned()),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub(crate) fn enabling(config: TraceConfig) -> Vec<u8> {
    EnableTracingRequest {
        trace_config: config.into(),
        ..Default::default()
    }
    .encode_to_vec()
}

/// A producer that has introduced itself and waits for commands.
pub(crate) struct Producer {
    pub(crate) client: Client,
    commands: u64,
    pub(crate) answer: InitializeConnectionResponse,
}

impl Producer {
    pub(crate) fn new(
        system: &System<'_>,
        introduction: &InitializeConnectionRequest,
        fd: Option<&OwnedFd>,
    ) -> Producer {
        let mut client = Client::connect(&system.producer_socket(), &PRODUCER_PORT);
        let request = client.call_with("InitializeConnection", &introduction.encode_to_vec(), fd);
        let answer = client.answer(request).decode();
        let commands = client.call("GetAsyncCommand", &[]);
        Producer {
            client,
            commands,
            answer,
        }
    }

    pub(crate) fn next_command(&mut self) -> (Cmd, Option<OwnedFd>) {
        let answer = self.next_answer();
        let command = answer.decode::<GetAsyncCommandResponse>().cmd.unwrap();
        (command, answer.fd)
    }

    /// Returns the next command as it came.
    pub(crate) fn next_answer(&mut self) -> Answer {
        self.client.answer(self.commands)
    }

    /// Registers a data source for which a session waits; returns the shared memory and the buffer to write into.
    pub(crate) fn join(&mut self, source: &str) -> (Option<OwnedFd>, u32) {
        self.client.call("RegisterDataSource", &registration(source));
        let (setup, memory) = self.next_command();
        assert!(matches!(setup, Cmd::SetupTracing(_)), "{setup:?}");
        let (setup, _) = self.next_command();
        let Cmd::SetupDataSource(setup) = setup else {
            panic!("{setup:?}");
        };
        let (start, _) = self.next_command();
        assert!(matches!(start, Cmd::StartDataSource(_)), "{start:?}");
        (memory, setup.config.target_buffer.unwrap())
    }

    /// Waits until the service has handled all requests.
    pub(crate) fn sync(&mut self) {
        self.client.ask("Sync", &[]);
    }
}

/// A consumer with a session.
pub(crate) struct Session {
    pub(crate) client: Client,
    enabled: u64,
}

impl Session {
    pub(crate) fn begin(system: &System<'_>, config: TraceConfig) -> Session {
        let mut client = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
        let enabled = client.call("EnableTracing", &enabling(config));
        let mut session = Session { client, enabled };
        // An answer to this shows that the session exists.
        session.stats();
        session
    }

    pub(crate) fn stats(&mut self) -> TraceStats {
        let answer: GetTraceStatsResponse = self.client.ask("GetTraceStats", &[]).decode();
        answer.trace_stats.into_option().unwrap()
    }

    /// Reads everything that is there; returns the packets, and the sizes of their frames.
    pub(crate) fn read(&mut self) -> (Vec<Vec<u8>>, Vec<usize>) {
        let read = self.client.call("ReadBuffers", &[]);
        let (mut packets, mut packet, mut frames) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let answer = self.client.answer(read);
            frames.push(answer.frame_size);
            for slice in answer.decode::<ReadBuffersResponse>().slices {
                packet.extend(slice.data.unwrap_or_default());
                if slice.last_slice_for_packet.unwrap_or_default() {
                    packets.push(std::mem::take(&mut packet));
                }
            }
            if !answer.has_more {
                return (packets, frames);
            }
        }
    }

    /// Stops and reads the session; returns the payloads of the test's packets.
    pub(crate) fn end(mut self) -> Vec<Vec<u8>> {
        self.client.call("DisableTracing", &[]);
        let end: EnableTracingResponse = self.client.answer(self.enabled).decode();
        assert_eq!(end.error, None);
        let (packets, _) = self.read();
        let payload = |packet: &Vec<u8>| {
            let field = Reader::new(packet)
                .flatten()
                .find(|field| field.number == write::TracePacket::FOR_TESTING)?;
            Some(field.value.as_bytes().unwrap().to_vec())
        };
        packets.iter().filter_map(payload).collect()
    }
}

/// A chunk as it is sent without shared memory, with one packet for testing.
pub(crate) fn chunk(id: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = Writer::new();
    packet.bytes_field(write::TracePacket::FOR_TESTING, payload);
    let mut chunk = Writer::new();
    chunk.raw(&id.to_le_bytes());
    chunk.raw(&[1, 0, 1, 0]);
    chunk.varint(packet.len() as u64);
    chunk.raw(packet.as_slice());
    chunk.as_slice().to_vec()
}

pub(crate) fn commit(target: u32, data: Vec<u8>) -> Vec<u8> {
    CommitDataRequest {
        chunks_to_move: vec![commit_data_request::ChunksToMove {
            target_buffer: Some(target),
            data: Some(data),
            ..Default::default()
        }],
        ..Default::default()
    }
    .encode_to_vec()
}

/// Returns the state of the service, joined from its parts.
pub(crate) fn state(client: &mut Client) -> TracingServiceState {
    let query = client.call(
        "QueryServiceState",
        &QueryServiceStateRequest::default().encode_to_vec(),
    );
    let mut whole = TracingServiceState::default();
    loop {
        let answer = client.answer(query);
        let part = answer.decode::<QueryServiceStateResponse>().service_state;
        whole.merge_from_slice(&part.encode_to_vec()).unwrap();
        if !answer.has_more {
            return whole;
        }
    }
}

/// A memory file with these seals.
pub(crate) fn memory(size: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&memory, size).unwrap();
    rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
    memory
}

/// The seals that a producer's memory must have.
pub(crate) fn sealed() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// Memory that a service accepts from a producer.
pub(crate) fn shared_memory(size: u64) -> OwnedFd {
    memory(size, sealed())
}
