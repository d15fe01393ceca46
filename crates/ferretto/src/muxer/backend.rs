//! One of the services that this process knows: how to reach it, for producers and for consumers.
//!
//! [`super::thread`] keeps them. The runtime decides when to connect, and looks after the connection.

#[cfg(feature = "in-process")]
use std::sync::atomic::AtomicBool;

use ferretto_client::consumer::ConsumerEndpoint;
use ferretto_client::producer::{ProducerEndpoint, ProducerOptions};
use ferretto_client::runtime::{Connected, Help};
use ferretto_ipc::reactor::Watch;
#[cfg(feature = "in-process")]
use ferretto_ipc::reactor::{Interest, Reactor, Token};
use ferretto_ipc::{Address, Stream, socket_names};
#[cfg(feature = "in-process")]
use ferretto_service::MachineId;
#[cfg(feature = "in-process")]
use std::os::fd::AsFd;

#[cfg(feature = "in-process")]
use crate::in_process::InProcess;
use crate::options::{Backend, BackendOptions, Port, Transport};
use crate::process_hooks::KeptFromChildren;
use crate::session::Endpoint;

/// The token of the service in this process in the event loop. Others begin at 1.
#[cfg(feature = "in-process")]
const IN_PROCESS: Token = Token(0);

/// Whether sessions of the service in this process stream into files.
#[cfg(feature = "in-process")]
pub(super) static HAS_FILES: AtomicBool = AtomicBool::new(false);

/// How to reach a service.
enum Way {
    System {
        producer: Option<Address>,
        consumer: Option<Address>,
    },
    Transport(Box<dyn Transport>),
    /// Made at the first connection.
    #[cfg(feature = "in-process")]
    InProcess(MachineId, Option<(InProcess, Watch)>),
}

/// See the [module](self).
pub(super) struct BackendState {
    backend: Backend,
    way: Way,
    /// The producer's connection in the event loop.
    pub(super) watch: Watch,
}

impl BackendState {
    pub(super) fn new(options: BackendOptions, watch: Watch) -> Self {
        let backend = options.backend();
        let way = match options {
            BackendOptions::System { producer, consumer } => Way::System { producer, consumer },
            BackendOptions::Custom(transport) => Way::Transport(transport),
            #[cfg(feature = "in-process")]
            BackendOptions::InProcess { machine } => Way::InProcess(MachineId(machine), None),
        };
        Self { backend, way, watch }
    }

    pub(super) fn backend(&self) -> Backend {
        self.backend
    }

    /// Connects a producer.
    pub(super) fn connect(&mut self, options: ProducerOptions) -> Result<Connected, String> {
        let stream = self.stream(Port::Producer)?;
        let endpoint = ProducerEndpoint::over(stream, options).map_err(|error| error.to_string())?;
        Ok(Connected {
            producer: Box::new(KeptFromChildren::new(endpoint)),
            help: self.help(),
        })
    }

    /// Returns the work that the SDK's thread can do for the service while it waits for the service.
    fn help(&self) -> Option<Help> {
        #[cfg(feature = "in-process")]
        if let Some(service) = self.in_process().cloned() {
            return Some(Box::new(move || {
                let _ = service.turn();
            }));
        }
        None
    }

    /// The service, if it is in this process and was connected to.
    #[cfg(feature = "in-process")]
    pub(super) fn in_process(&self) -> Option<&InProcess> {
        match &self.way {
            Way::InProcess(_, Some((service, _))) => Some(service),
            Way::InProcess(_, None) | Way::System { .. } | Way::Transport(_) => None,
        }
    }

    /// Whether the service is in this process, connected to or not.
    #[cfg(feature = "in-process")]
    pub(super) fn is_in_process(&self) -> bool {
        matches!(self.way, Way::InProcess(..))
    }

    /// Has the loop wait for the service, if it is in this process.
    #[cfg(feature = "in-process")]
    pub(super) fn watch_in_process(&mut self, reactor: &Reactor) {
        if let Way::InProcess(_, Some((service, watch))) = &mut self.way {
            watch.update(reactor, Some((service.as_fd(), Interest::Readable)));
        }
    }

    /// Connects a consumer.
    pub(super) fn connect_consumer(&mut self) -> Result<Endpoint, String> {
        #[cfg(feature = "in-process")]
        if let Way::InProcess(machine, service) = &mut self.way {
            let (stream, valve) = made(*machine, service)?.connect_consumer()?;
            let endpoint = ConsumerEndpoint::over(stream).map_err(|error| error.to_string())?;
            return Ok(Endpoint::over(endpoint, Some(valve)));
        }
        let stream = self.stream(Port::Consumer)?;
        let endpoint = ConsumerEndpoint::over(stream).map_err(|error| error.to_string())?;
        Ok(Endpoint::over(endpoint, None))
    }

    fn stream(&mut self, port: Port) -> Result<Stream, String> {
        match &mut self.way {
            Way::System { producer, consumer } => {
                let (given, usual): (_, fn() -> _) = match port {
                    Port::Producer => (producer, socket_names::producer_address),
                    Port::Consumer => (consumer, socket_names::consumer_address),
                };
                let address = match given {
                    Some(address) => address.clone(),
                    None => usual().map_err(|error| error.to_string())?,
                };
                Stream::connect(&address).map_err(|error| error.to_string())
            }
            #[cfg(feature = "in-process")]
            Way::InProcess(machine, service) => made(*machine, service)?.connect_producer(),
            Way::Transport(transport) => {
                let fd = super::guarded(|| transport.connect(port))
                    .ok_or("the transport has panicked")?
                    .map_err(|error| error.to_string())?;
                Stream::from_fd(fd).map_err(|error| error.to_string())
            }
        }
    }
}

/// The service in this process, made now if there is none yet.
#[cfg(feature = "in-process")]
fn made(machine: MachineId, service: &mut Option<(InProcess, Watch)>) -> Result<&InProcess, String> {
    let (service, _) = match service {
        Some(made) => made,
        none => none.insert((InProcess::new(machine, &HAS_FILES)?, Watch::new(IN_PROCESS))),
    };
    Ok(service)
}
