//! A daemon that is a producer: the program behind its runtime, and its event loop. `traced_probes`, `traced_perf` and `heapprofd` are such daemons.
//!
//! [`Recorder::new`] has the steps of starting that all of them take. The daemon then adds its data sources, and [`Recorder::serve`] gives the runtime its
//! turns until a signal comes.

use std::error::Error;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use ferretto_client::data_source::ConnectionId;
use ferretto_client::runtime::daemon::ServiceSocket;
use ferretto_client::runtime::{ConnectionOptions, Event, MemoryOptions, ProducerProgram, Runtime};
use ferretto_ipc::reactor::{Events, Token};
use ferretto_ipc::socket_names::PRODUCER_SOCK_NAME;
use ferretto_ipc::{Address, Reactor, socket_names};
use ferretto_probes::ftrace::kallsyms;
use ferretto_proto::messages::PriorityBoostConfig;

use crate::daemon::{self, Flags, Startup};
use crate::log;
use crate::open_files;
use crate::priority::Boosts;

/// The only connection.
const SERVICE: ConnectionId = ConnectionId(0);

/// The connection's place in the event loop. Data sources have others.
const SOCKET: Token = Token(0);

/// The program that the runtime knows.
struct ProducerDaemon {
    /// Set by a signal's handler.
    ending: Arc<AtomicBool>,
    boosts: Mutex<Boosts>,
    /// The one that gives the runtime its turns. Data sources have others.
    thread: ThreadId,
}

impl ProducerDaemon {
    /// The program of this thread. From now on signals end its event loop.
    fn new(reactor: &mut Reactor) -> Result<Arc<ProducerDaemon>, Box<dyn Error>> {
        let signals = daemon::ending_signals();
        reactor.watch_signals(&signals)?;
        // A writer that waits for the service does not see the loop's signals, so it checks this flag.
        let ending = Arc::new(AtomicBool::new(false));
        for signal in signals {
            signal_hook::flag::register(signal.number(), Arc::clone(&ending))?;
        }
        Ok(Arc::new(ProducerDaemon {
            ending,
            boosts: Mutex::new(Boosts::of_this_thread()),
            thread: std::thread::current().id(),
        }))
    }
}

/// A producer daemon that has its event loop, and does not ask for its service yet.
pub(crate) struct Recorder {
    /// The service's address.
    pub(crate) address: Address,
    pub(crate) reactor: Reactor,
    pub(crate) program: Arc<dyn ProducerProgram>,
}

impl Recorder {
    /// Goes into the background if the flags ask for that. From then on signals end the event loop.
    pub(crate) fn new(flags: &Flags, startup: &mut Startup) -> Result<Recorder, Box<dyn Error>> {
        // Most data sources have a descriptor for each CPU, each process or each file that they read.
        open_files::most_descriptors();
        startup.go_into_background(flags)?;
        // In the background, this process is about to change its folder.
        let address = socket_names::producer_address()?.absolute();
        let mut reactor = Reactor::new()?;
        let program = ProducerDaemon::new(&mut reactor)?;
        Ok(Recorder {
            address,
            reactor,
            program,
        })
    }

    /// The runtime of a producer of this name. Its data sources are still to be added.
    pub(crate) fn runtime(
        &self,
        producer_name: &str,
        memory: MemoryOptions,
    ) -> impl DerefMut<Target = Runtime> + use<> {
        let mut runtime = Runtime::new(self.program.clone(), self.reactor.waker());
        runtime.add_connection(ConnectionOptions {
            id: SERVICE,
            name: "the service".to_owned(),
            producer_name: producer_name.to_owned(),
            sdk_version: crate::VERSION.to_owned(),
            memory,
        });
        runtime
    }

    /// Records for the service, whenever it is there, until a signal comes. `on_events` is called with the events of descriptors that data sources have
    /// registered.
    pub(crate) fn serve(
        &mut self,
        runtime: &mut Runtime,
        startup: &mut Startup,
        on_events: impl Fn(&Events),
    ) -> Result<(), Box<dyn Error>> {
        let mut service = ServiceSocket::new(SERVICE, self.address.clone(), SOCKET);
        let mut events = Events::new();
        loop {
            on_events(&events);
            let waiting = format!("waiting for the service at {}", service.address());
            service.turn(runtime, &self.reactor, &events, |runtime, event| match event {
                Event::Connected(_) => {
                    log::info(format_args!("connected to the service"));
                    // The answer comes after the data sources were registered.
                    let _ = runtime.sync(SERVICE);
                }
                Event::Synced(..) => startup.ready("the service knows all data sources"),
                Event::CannotConnect(_, reason) => log::info(format_args!("{waiting}: {reason}")),
                Event::Disconnected { news, .. } => {
                    let reason = news.as_deref().unwrap_or("as before");
                    log::warning(format_args!("disconnected from the service: {reason}"));
                }
                // Daemons have no startup sessions.
                Event::StartupEnded(..) => {}
            });
            self.reactor.wait(&mut events, runtime.deadlines())?;
            if !events.signals().is_empty() {
                return Ok(());
            }
        }
    }
}

/// Opens the list of the kernel's functions where the daemon could not read it later. To be called while it has CAP_SYS_ADMIN.
pub(crate) fn reserve_kernel_symbols() {
    if let Err(error) = kallsyms::reserve() {
        log::error(format_args!("{error}; set it again"));
    }
}

/// Returns the part of `--help` about the environment: the service's socket, these variables, and the one with the descriptor that is told when the service
/// knows `sources`.
pub(crate) fn environment(variables: &[(&str, &str)], notify: &str, sources: &str) -> String {
    let service = (
        PRODUCER_SOCK_NAME,
        "Where the service listens: /a/path, @abstract-name, host:port or vsock://cid:port",
    );
    let meaning = format!("Number of a descriptor that gets the byte \"1\" once the service knows {sources}");
    let mut all = vec![service];
    all.extend(variables);
    all.push((notify, &meaning));
    daemon::environment(&all)
}

impl ProducerProgram for ProducerDaemon {
    fn info(&self, line: &str) {
        log::info(format_args!("{line}"));
    }

    fn warning(&self, line: &str) {
        log::warning(format_args!("{line}"));
    }

    fn is_own_thread(&self) -> bool {
        std::thread::current().id() == self.thread
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn raise_priority(&self, instance: u32, config: &PriorityBoostConfig) -> Result<(), String> {
        let mut boosts = self.boosts.lock().unwrap_or_else(PoisonError::into_inner);
        boosts.add(instance.into(), config)
    }

    fn join_instance(&self, instance: u32) {
        let boosts = self.boosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = boosts.apply_to_this_thread(instance.into()) {
            log::warning(format_args!("priority_boost: {error}"));
        }
    }

    fn lower_priority(&self, instance: u32) {
        let mut boosts = self.boosts.lock().unwrap_or_else(PoisonError::into_inner);
        boosts.remove(instance.into());
    }
}
