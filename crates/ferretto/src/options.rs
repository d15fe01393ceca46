//! The options of the SDK, which [`initialize`](crate::initialize) takes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use ferretto_client::arbiter::BufferExhaustedPolicy;
use ferretto_client::data_source::ConnectionId;
pub(crate) use ferretto_client::runtime::MemoryOptions;
pub use ferretto_ipc::Address;

pub use crate::clock::TraceClock;
use crate::handles::OwnedSocket;
use crate::off::OFF;
pub use crate::track::SystemTracks;

/// A tracing service that this process records for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Backend {
    /// The machine's service, `traced`: traces of this process beside those of the kernel and of other processes.
    System,
    /// A service inside this process: for its own traces, without any daemon.
    #[cfg(feature = "in-process")]
    InProcess,
    /// A service that the embedder connects to: see [`Transport`].
    Custom,
}

impl Backend {
    /// The id of the connection to it, for the runtime and data sources.
    pub(crate) fn connection(self) -> ConnectionId {
        ConnectionId(match self {
            Backend::System => 0,
            #[cfg(feature = "in-process")]
            Backend::InProcess => 1,
            Backend::Custom => 2,
        })
    }

    /// The backend with this id.
    pub(crate) fn of(connection: ConnectionId) -> Backend {
        match connection {
            ConnectionId(0) => Backend::System,
            #[cfg(feature = "in-process")]
            ConnectionId(1) => Backend::InProcess,
            _ => Backend::Custom,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::System => "system service",
            #[cfg(feature = "in-process")]
            Backend::InProcess => "in-process service",
            Backend::Custom => "custom service",
        })
    }
}

/// The ports of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// The port of producers, which record.
    Producer,
    /// The port of consumers, which control recording and read traces.
    Consumer,
}

/// An embedder's way to a service: for processes that may not open sockets themselves (a sandbox), or whose service is reachable only through the
/// embedder's own transport.
///
/// Called on the SDK's thread, which serves nothing else meanwhile, so it should not take long.
pub trait Transport: Send + 'static {
    /// Opens a connected stream socket to the service. A Unix socket can share memory; over any other all data is sent. The connection is shut down
    /// when the SDK is done with it, even if it has other descriptors.
    ///
    /// # Errors
    /// Any failure to connect. For producers the SDK tries again later, at least every five seconds.
    fn connect(&mut self, port: Port) -> io::Result<OwnedSocket>;
}

impl<F: FnMut(Port) -> io::Result<OwnedSocket> + Send + 'static> Transport for F {
    fn connect(&mut self, port: Port) -> io::Result<OwnedSocket> {
        self(port)
    }
}

/// The importance of a line for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LogLevel {
    /// A success.
    Info,
    /// A trace will lack something.
    Warning,
}

/// Takes lines for the log.
pub(crate) type Log = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The options for [`initialize`](crate::initialize). A constructor names the backends, and methods change the defaults:
///
/// ```
/// use ferretto::Options;
/// use std::time::Duration;
///
/// let options = Options::system()
///     .producer_name("my-server")
///     .shared_memory_size(4 << 20)
///     .batch_commits(Duration::from_millis(5));
/// # drop(options);
/// ```
#[must_use = "nothing is set up until it is given to ferretto::initialize"]
pub struct Options {
    pub(crate) backends: Vec<BackendOptions>,
    pub(crate) memory: MemoryOptions,
    pub(crate) settings: Settings,
}

/// A backend, with the options that only it needs.
pub(crate) enum BackendOptions {
    System {
        producer: Option<Address>,
        consumer: Option<Address>,
    },
    #[cfg(feature = "in-process")]
    InProcess {
        machine: u32,
    },
    Custom(Box<dyn Transport>),
}

impl BackendOptions {
    pub(crate) fn backend(&self) -> Backend {
        match self {
            BackendOptions::System { .. } => Backend::System,
            #[cfg(feature = "in-process")]
            BackendOptions::InProcess { .. } => Backend::InProcess,
            BackendOptions::Custom(_) => Backend::Custom,
        }
    }
}

/// The shared memory that the SDK asks each service for: bridges 80 ms of two million events a second.
const DEFAULT_MEMORY: u32 = 2 * 1024 * 1024;

/// See [`Options::batch_commits`]. Too short to notice for anyone who looks at a trace while it is recorded.
const DEFAULT_BATCH: Duration = Duration::from_millis(10);

/// The settings of the whole process: those of the first [`initialize`](crate::initialize) count.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) producer_name: String,
    pub(crate) log: Option<Log>,
    pub(crate) track_event_policy: BufferExhaustedPolicy,
    pub(crate) clock: TraceClock,
    pub(crate) process_uuid: Option<u64>,
    pub(crate) merging: SystemTracks,
    pub(crate) concurrency: Concurrency,
}

/// How many sessions a data source may record for at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Concurrency {
    /// As many as possible: eight.
    #[default]
    Many,
    /// One session at a time. Sessions that begin meanwhile get nothing.
    One,
}

impl Options {
    fn with(backend: BackendOptions) -> Self {
        Self {
            backends: vec![backend],
            memory: MemoryOptions {
                size: DEFAULT_MEMORY,
                page_size: 0,
                batch_commits: DEFAULT_BATCH,
            },
            settings: Settings {
                producer_name: if OFF { String::new() } else { process_name() },
                log: None,
                track_event_policy: BufferExhaustedPolicy::Drop,
                clock: TraceClock::default(),
                process_uuid: None,
                merging: SystemTracks::default(),
                concurrency: Concurrency::default(),
            },
        }
    }

    /// Records for the machine's tracing service.
    pub fn system() -> Self {
        Self::with(BackendOptions::System {
            producer: None,
            consumer: None,
        })
    }

    /// Records for sessions of this process, without any daemon.
    #[cfg(feature = "in-process")]
    pub fn in_process() -> Self {
        Self::with(BackendOptions::InProcess { machine: 0 })
    }

    /// Records for the service that `transport` connects to.
    pub fn custom(transport: impl Transport) -> Self {
        Self::with(BackendOptions::Custom(Box::new(transport)))
    }

    /// Records for the machine's tracing service as well.
    pub fn and_system(self) -> Self {
        self.and(BackendOptions::System {
            producer: None,
            consumer: None,
        })
    }

    /// Records for sessions of this process as well.
    #[cfg(feature = "in-process")]
    pub fn and_in_process(self) -> Self {
        self.and(BackendOptions::InProcess { machine: 0 })
    }

    /// Records for the service that `transport` connects to as well.
    pub fn and_custom(self, transport: impl Transport) -> Self {
        self.and(BackendOptions::Custom(Box::new(transport)))
    }

    fn and(mut self, backend: BackendOptions) -> Self {
        self.backends.push(backend);
        self
    }

    /// The socket of the machine's service for producers, in place of `PERFETTO_PRODUCER_SOCK_NAME` or the default.
    pub fn producer_socket(mut self, address: Address) -> Self {
        for backend in &mut self.backends {
            if let BackendOptions::System { producer, .. } = backend {
                *producer = Some(address.clone());
            }
        }
        self
    }

    /// The socket of the machine's service for consumers, in place of `PERFETTO_CONSUMER_SOCK_NAME` or the default.
    pub fn consumer_socket(mut self, address: Address) -> Self {
        for backend in &mut self.backends {
            if let BackendOptions::System { consumer, .. } = backend {
                *consumer = Some(address.clone());
            }
        }
        self
    }

    /// The machine id in traces of the service in this process, in place of the local machine (0). With it, traces of several processes, or
    /// simulations, can be put together and told apart. Such a machine is recorded only if the config sets `trace_all_machines`. The machine's
    /// service ignores this option.
    #[cfg(feature = "in-process")]
    pub fn machine_id(mut self, id: u32) -> Self {
        for backend in &mut self.backends {
            if let BackendOptions::InProcess { machine } = backend {
                *machine = id;
            }
        }
        self
    }

    /// The name by which trace configs select this process (`producer_name_filter`) and people recognise it. The default is the first word of the
    /// command line, as in upstream's SDK: the program as it was started, often with its path. The filter compares whole names, so `server` does not
    /// select `./server`.
    pub fn producer_name(mut self, name: impl Into<String>) -> Self {
        self.settings.producer_name = name.into();
        self
    }

    /// Bytes of memory to share with each service: more of it bridges longer bursts. A multiple of 4096, at most 32 MiB; 0 leaves it to the service
    /// (256 KiB). The default is 2 MiB, of which only the parts in use are ever touched. A trace config may set another size.
    pub fn shared_memory_size(mut self, bytes: u32) -> Self {
        self.memory.size = bytes;
        self
    }

    /// Bytes of a page of that memory: 4096, 8192, 16384 or 32768. Large pages make fewer commits, small ones waste less when many
    /// threads record.
    pub fn page_size(mut self, bytes: u32) -> Self {
        self.memory.page_size = bytes;
        self
    }

    /// How long full pages may be collected before the service is told of them in one go. Longer times save both sides wake-ups. When half of the
    /// memory or 256 KiB are full, the service is told at once. The default is 10 ms; with 0 the SDK's thread tells it as soon as it can.
    pub fn batch_commits(mut self, duration: Duration) -> Self {
        self.memory.batch_commits = duration;
        self
    }

    /// Receives lines about tracing itself, above all why nothing is recorded. By default [warnings](LogLevel::Warning) go to standard error, and the
    /// rest nowhere. Called seldom, on the SDK's thread mostly.
    pub fn log(mut self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.settings.log = Some(Arc::new(log));
        self
    }

    /// The behaviour of track events when the shared memory is full, unless the trace config sets another. By default they are dropped.
    pub fn track_event_policy(mut self, policy: BufferExhaustedPolicy) -> Self {
        self.settings.track_event_policy = policy;
        self
    }

    /// The clock of timestamps.
    pub fn clock(mut self, clock: TraceClock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// The uuid of the process's track, unique among all processes in a trace. By default it is made from the process's id and its start time in the
    /// kernel's ticks since boot, so that all copies of Perfetto in a process have the same. Other machines, and this one after a restart, may use it
    /// again. Without `/proc` a random number takes the place of the start time.
    pub fn process_uuid(mut self, uuid: u64) -> Self {
        self.settings.process_uuid = Some(uuid);
        self
    }

    /// Whether track events of a thread are shown with the kernel's events of that thread.
    pub fn system_tracks(mut self, merging: SystemTracks) -> Self {
        self.settings.merging = merging;
        self
    }

    /// How many sessions each data source may record for at the same time, even if the data source allows more.
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.settings.concurrency = concurrency;
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backends: Vec<Backend> = self.backends.iter().map(BackendOptions::backend).collect();
        f.debug_struct("Options")
            .field("backends", &backends)
            .field("producer_name", &self.settings.producer_name)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// Returns the first argument of this process's command line, as upstream's SDK does.
fn process_name() -> String {
    let cmdline = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let name = cmdline.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
