//! Our programs with a service that is older than they are and lacks methods and fields, or newer and has more of both.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use crate::support::peers::shared_memory;
use crate::support::service::{Asked, ScriptedService};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};
use ferretto_ipc::host::{Reply, ReplyTo};
use ferretto_ipc::ports::ServiceDescriptor;
use ferretto_wire::{Reader, Writer};

/// The ports of the first release.
static OLD_CONSUMER_PORT: ServiceDescriptor = ServiceDescriptor {
    name: "ConsumerPort",
    methods: &[
        "EnableTracing",
        "DisableTracing",
        "ReadBuffers",
        "FreeBuffers",
        "Flush",
    ],
};
static OLD_PRODUCER_PORT: ServiceDescriptor = ServiceDescriptor {
    name: "ProducerPort",
    methods: &[
        "InitializeConnection",
        "RegisterDataSource",
        "UnregisterDataSource",
        "CommitData",
        "GetAsyncCommand",
    ],
};
/// The ports of a later release: all present methods in another order, and others between them.
static NEW_CONSUMER_PORT: ServiceDescriptor = ServiceDescriptor {
    name: "ConsumerPort",
    methods: &[
        "Subscribe",
        "EnableTracing",
        "DisableTracing",
        "ReadBuffers",
        "ReadBuffersV2",
        "FreeBuffers",
        "Flush",
        "StartTracing",
        "ChangeTraceConfig",
        "Detach",
        "Attach",
        "CloneSession",
        "GetTraceStats",
        "ObserveEvents",
        "QueryServiceState",
        "QueryCapabilities",
        "SaveTraceForBugreport",
    ],
};
static NEW_PRODUCER_PORT: ServiceDescriptor = ServiceDescriptor {
    name: "ProducerPort",
    methods: &[
        "Negotiate",
        "InitializeConnection",
        "RegisterDataSource",
        "UnregisterDataSource",
        "UpdateDataSource",
        "CommitData",
        "CommitDataV2",
        "GetAsyncCommand",
        "RegisterTraceWriter",
        "UnregisterTraceWriter",
        "NotifyDataSourceStarted",
        "NotifyDataSourceStopped",
        "ActivateTriggers",
        "Sync",
    ],
};

static OLD_CONSUMER: [&ServiceDescriptor; 1] = [&OLD_CONSUMER_PORT];
static NEW_CONSUMER: [&ServiceDescriptor; 1] = [&NEW_CONSUMER_PORT];
static OLD_PRODUCER: [&ServiceDescriptor; 1] = [&OLD_PRODUCER_PORT];
static NEW_PRODUCER: [&ServiceDescriptor; 1] = [&NEW_PRODUCER_PORT];

/// The age of a service, which determines its messages.
#[derive(Clone, Copy, PartialEq)]
enum Era {
    Older,
    Newer,
}

impl Era {
    /// Adds unknown fields of every wire type, if the service is newer.
    fn add_fields(self, message: &mut Writer) {
        if self == Era::Newer {
            message.varint_field(2001, u64::MAX);
            message.fixed32_field(2002, 7);
            message.fixed64_field(2003, 7);
            message.nested(2004, |inner| inner.bytes_field(1, b"later"));
        }
    }

    fn message(self, fields: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut message = Writer::new();
        self.add_fields(&mut message);
        fields(&mut message);
        self.add_fields(&mut message);
        message.as_slice().to_vec()
    }

    fn consumer_services(self) -> &'static [&'static ServiceDescriptor] {
        match self {
            Era::Older => &OLD_CONSUMER,
            Era::Newer => &NEW_CONSUMER,
        }
    }

    fn producer_services(self) -> &'static [&'static ServiceDescriptor] {
        match self {
            Era::Older => &OLD_PRODUCER,
            Era::Newer => &NEW_PRODUCER,
        }
    }
}

/// `TracePacket.for_testing` with this text.
fn packet(text: &str) -> Vec<u8> {
    let mut packet = Writer::new();
    packet.bytes_field(900, text.as_bytes());
    packet.as_slice().to_vec()
}

/// Returns the answers of a service that has recorded one packet.
fn consumer_answer(era: Era, asked: &Asked) -> Vec<(ReplyTo, Reply)> {
    let reply = match asked.method {
        // disabled
        "EnableTracing" => Reply::last(era.message(|reply| reply.varint_field(1, 1))),
        "ReadBuffers" => {
            let slice = |data: &[u8], last: bool| {
                era.message(|reply| {
                    reply.nested(2, |slice| {
                        slice.bytes_field(1, data);
                        slice.varint_field(2, last.into());
                        era.add_fields(slice);
                    });
                })
            };
            let packet = packet("from another time");
            let (start, end) = packet.split_at(5);
            return vec![
                (asked.to, Reply::more(slice(start, false))),
                (asked.to, Reply::last(slice(end, true))),
            ];
        }
        _ => Reply::last(era.message(|_| {})),
    };
    vec![(asked.to, reply)]
}

#[test]
fn our_command_line_records_from_older_and_newer_services() {
    for era in [Era::Older, Era::Newer] {
        let programs = Programs::ours();
        let system = System::new(&programs);
        let service = ScriptedService::listen(&system.consumer_socket());
        std::fs::write(system.path("config"), "buffers { size_kb: 64 } duration_ms: 1000").unwrap();
        let mut perfetto = system.command(&system.program(Side::Ours, Program::Perfetto), "perfetto.log");
        perfetto.arg("--txt").arg("-c").arg(system.path("config"));
        perfetto.arg("-o").arg(system.path("trace"));
        let mut perfetto = Running(perfetto.spawn().unwrap());
        service.serve(era.consumer_services(), |asked| {
            Some(consumer_answer(era, &asked))
        });
        let status = perfetto.wait(PATIENCE);
        assert!(
            status.is_some_and(|status| status.success()),
            "{}",
            system.log("perfetto.log")
        );
        let trace = std::fs::read(system.path("trace")).unwrap();
        let packets: Vec<&[u8]> = Reader::new(&trace)
            .map(|packet| packet.unwrap().value.as_bytes().unwrap())
            .collect();
        assert!(
            packets.contains(&packet("from another time").as_slice()),
            "{packets:?}"
        );
    }
}

#[test]
fn a_command_starts_at_once_if_the_service_does_not_tell_when_data_sources_have() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let service = ScriptedService::listen(&system.consumer_socket());
    std::fs::write(system.path("config"), "buffers { size_kb: 64 }").unwrap();
    let mut ferretto = system.command(Path::new(env!("CARGO_BIN_EXE_ferretto")), "ferretto.log");
    ferretto.arg("--txt").arg("-c").arg(system.path("config"));
    ferretto.arg("-o").arg(system.path("trace"));
    ferretto.arg("--").arg("touch").arg(system.path("ran"));
    let mut ferretto = Running(ferretto.spawn().unwrap());
    // The client first checks whether a service listens, and then connects again.
    service.serve(Era::Older.consumer_services(), |_| None);
    let mut enabled = None;
    service.serve(Era::Older.consumer_services(), |asked| {
        if asked.method == "EnableTracing" {
            enabled = Some(asked.to);
            return Some(Vec::new());
        }
        let mut answers = consumer_answer(Era::Older, &asked);
        if asked.method == "DisableTracing" {
            answers.extend(enabled.map(|to| {
                (
                    to,
                    Reply::last(Era::Older.message(|reply| reply.varint_field(1, 1))),
                )
            }));
        }
        Some(answers)
    });
    let status = ferretto.wait(PATIENCE);
    let log = system.log("ferretto.log");
    assert!(status.is_some_and(|status| status.success()), "{log}");
    assert!(
        log.contains("this service does not tell when data sources have started; touch starts at once"),
        "{log}"
    );
    assert!(!log.contains("not all data sources"), "{log}");
    assert!(system.path("ran").exists());
}

#[test]
fn abilities_that_an_older_service_lacks_are_reported_at_once() {
    for (flags, said) in [
        (&["--query"][..], "QueryServiceState"),
        (&["--attach=key"], "no session detached"),
        (&["--is_detached=key"], ""),
    ] {
        let programs = Programs::ours();
        let system = System::new(&programs);
        let service = ScriptedService::listen(&system.consumer_socket());
        let mut perfetto = system.command(&system.program(Side::Ours, Program::Perfetto), "perfetto.log");
        let mut perfetto = Running(perfetto.args(flags).stdout(Stdio::null()).spawn().unwrap());
        service.serve(Era::Older.consumer_services(), |asked| {
            Some(consumer_answer(Era::Older, &asked))
        });
        let status = perfetto.wait(PATIENCE).expect("it ends");
        assert!(!status.success(), "{flags:?}");
        let log = system.log("perfetto.log");
        assert!(log.contains(said), "{flags:?}: {log}");
    }
}

/// A service that makes the probes list the machine's processes, and sees their commits.
struct Probed {
    era: Era,
    commands: Option<ReplyTo>,
    memory: Option<std::fs::File>,
    /// The methods that were called, in order.
    methods: Vec<&'static str>,
    flushes: u64,
    flushed: bool,
}

impl Probed {
    const PAGE_KB: u64 = 4;
    const DATA_SOURCE: &str = "linux.process_stats";

    fn answer(&mut self, asked: &Asked) -> Option<Vec<(ReplyTo, Reply)>> {
        let era = self.era;
        self.methods.push(asked.method);
        let done = (asked.to, Reply::last(era.message(|_| {})));
        Some(match asked.method {
            "GetAsyncCommand" => {
                self.commands = Some(asked.to);
                Vec::new()
            }
            "RegisterDataSource" if contains(&asked.payload, Self::DATA_SOURCE.as_bytes()) => {
                let mut replies = vec![done];
                replies.extend(self.start());
                replies
            }
            // A commit with chunks begins with this field.
            "CommitData" if asked.payload.starts_with(&[0x0a]) => {
                self.flushed = true;
                return None;
            }
            // This acknowledges a flush that came before there were chunks to commit, so the service flushes again.
            "CommitData" => {
                self.flushes += 1;
                vec![done, (self.commands?, self.flush())]
            }
            _ => vec![done],
        })
    }

    fn flush(&self) -> Reply {
        let era = self.era;
        Reply::more(era.message(|reply| {
            reply.nested(5, |flush| {
                flush.varint_field(1, 7);
                flush.varint_field(2, self.flushes);
                era.add_fields(flush);
            });
        }))
    }

    /// Sends shared memory, then starts a data source. The first services had no command to set it up before the start.
    fn start(&mut self) -> Vec<(ReplyTo, Reply)> {
        let era = self.era;
        let to = self.commands.expect("it asked for commands first");
        let memory = shared_memory(256 * 1024);
        self.memory = Some(memory.try_clone().unwrap().into());
        let config = |command: &mut Writer| {
            command.varint_field(1, 7);
            command.nested(2, |config| {
                config.bytes_field(1, Self::DATA_SOURCE.as_bytes());
                config.varint_field(2, 3);
                era.add_fields(config);
                // process_stats_config { scan_all_processes_on_start: true }
                config.nested(103, |process_stats| process_stats.varint_field(2, 1));
            });
            era.add_fields(command);
        };
        let mut replies = Vec::new();
        if era == Era::Newer {
            // A command that does not exist yet.
            replies.push(Reply::more(era.message(|reply| reply.nested(99, |_| {}))));
        }
        let setup = era.message(|reply| {
            reply.nested(3, |setup| {
                setup.varint_field(1, Self::PAGE_KB);
                era.add_fields(setup);
            });
        });
        let memory = memory.as_fd().try_clone_to_owned().unwrap();
        replies.push(Reply::more(setup).with_fd(memory));
        if era == Era::Newer {
            replies.push(Reply::more(era.message(|reply| reply.nested(6, config))));
        }
        replies.push(Reply::more(era.message(|reply| reply.nested(1, config))));
        replies.push(self.flush());
        replies.into_iter().map(|reply| (to, reply)).collect()
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn our_probes_record_for_older_and_newer_services() {
    for era in [Era::Older, Era::Newer] {
        let programs = Programs::ours();
        let system = System::new(&programs);
        let service = ScriptedService::listen(&system.producer_socket());
        let mut probes = system.command(&system.program(Side::Ours, Program::TracedProbes), "probes.log");
        let _probes = Running(probes.spawn().unwrap());
        let mut probed = Probed {
            era,
            commands: None,
            memory: None,
            methods: Vec::new(),
            flushes: 1,
            flushed: false,
        };
        service.serve(era.producer_services(), |asked| probed.answer(&asked));
        assert!(
            probed.flushed,
            "{:?}\n{}",
            probed.methods,
            system.log("probes.log")
        );
        let memory = probed.memory.unwrap();
        let mut bytes = vec![0; memory.metadata().unwrap().len() as usize];
        memory.read_exact_at(&mut bytes, 0).unwrap();
        // The first turn of the scan, before the flush, describes the first process.
        let first_process = std::fs::read("/proc/1/cmdline").unwrap();
        let name = first_process.split(|&byte| byte == 0).next().unwrap();
        assert!(!name.is_empty());
        assert!(contains(&bytes, name), "no process tree in the shared memory");
        let notifies = probed.methods.contains(&"NotifyDataSourceStarted");
        assert_eq!(notifies, era == Era::Newer, "{:?}", probed.methods);
    }
}
