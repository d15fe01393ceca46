//! Startup tracing, on the SDK's thread: instances that no session has asked for, those that one has taken over, and what is given up.

use std::sync::Arc;

use ferretto_client::arbiter::BufferId;
use ferretto_client::producer::DataSourceSetup;
use ferretto_ipc::reactor::monotonic_now;
use ferretto_proto::messages::DataSourceConfig;

use super::{OwnMemory, Thread};
use crate::muxer::log;
use crate::muxer::sources::{Phase, Running, StartupInstance};
use crate::options::LogLevel;
use crate::source::Instance;
use crate::startup::StartupRequest;

/// A startup session that no session has taken over as a whole.
pub(super) struct StartupSession {
    pub(super) number: u64,
    pub(super) backend: usize,
    /// By serial number, the instances that no session has started yet.
    pub(super) unbound: Vec<u32>,
    /// When it is given up, in monotonic nanoseconds.
    pub(super) deadline: Option<u64>,
    pub(super) aborting: bool,
    pub(super) request: StartupRequest,
}

impl Thread {
    pub(super) fn start_up(&mut self, request: StartupRequest) {
        self.sources.discover();
        let found = self
            .backends
            .iter()
            .position(|backend| backend.backend() == request.backend);
        let Some(index) = found else {
            let reason = format!(
                "the {} is not among the backends given to ferretto::initialize",
                request.backend
            );
            return request.refused(reason);
        };
        #[cfg(feature = "in-process")]
        if self.backends[index].in_process().is_some() {
            let reason = "the service is in this process: start a session of it at once";
            return request.refused(reason.to_owned());
        }
        if self.backends[index].arbiter.is_none() {
            if self.backends[index].own_memory == OwnMemory::Refused {
                return request.refused("the service would not use this process's memory".to_owned());
            }
            if self.backends[index].retry_at().is_none() {
                // It can be offered memory when it is connected to, and only then.
                self.give_up_connection(index, "connecting again, for startup tracing");
                self.backends[index].retry_soon();
            }
            if let Err(reason) = self.backends[index].make_own_memory() {
                return request.refused(reason);
            }
        }
        let mut session = StartupSession {
            number: request.number,
            backend: index,
            unbound: Vec::new(),
            deadline: request.timeout.map(|timeout| {
                monotonic_now().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
            }),
            aborting: false,
            request,
        };
        for (config, encoded) in session.request.configs() {
            for source in 0..self.sources.all.len() {
                let state = &self.sources.all[source];
                if config.name.as_deref() == Some(&*state.name) && state.entry.is_offered() {
                    let serial = self.start_for_startup(index, source, session.number, &config, &encoded);
                    session.unbound.extend(serial);
                }
            }
        }
        session.request.set_up(session.unbound.len());
        if !session.unbound.is_empty() {
            self.startup.push(session);
        }
    }

    /// Starts an instance that no session asks for yet. Its serial number.
    fn start_for_startup(
        &mut self,
        index: usize,
        source: usize,
        session: u64,
        config: &Arc<DataSourceConfig>,
        encoded: &Arc<[u8]>,
    ) -> Option<u32> {
        let backend = &self.backends[index];
        let arbiter = backend.arbiter.as_ref()?.for_startup();
        backend.link.add_startup(&arbiter);
        let (kind, generation) = (backend.backend(), backend.generation);
        let concurrency = self.muxer.settings.concurrency;
        let placed = self.sources.insert(source, concurrency, |slot, serial| Running {
            instance: Instance {
                slot,
                serial,
                backend: kind,
                config: config.clone(),
                encoded_config: encoded.clone(),
            },
            backend: index,
            generation,
            id: None,
            phase: Phase::SetUp,
            startup: Some(StartupInstance {
                session,
                arbiter: arbiter.clone(),
            }),
        });
        self.tell_set_up(source, placed);
        let place = placed.ok()?;
        let serial = self.sources.at(place)?.instance.serial;
        self.start_with(place, arbiter, BufferId(0));
        Some(serial)
    }

    /// Lets an instance that records for startup be that of a session that asks for the same. Whether there was one.
    pub(super) fn adopt(&mut self, index: usize, setup: &DataSourceSetup) -> bool {
        let generation = self.backends[index].generation;
        let candidates = self.sources.places(|running| {
            running.backend == index
                && running.generation == generation
                && running.id.is_none()
                && running.phase == Phase::Started
        });
        for place in candidates {
            let state = &mut self.sources.all[place.source];
            let Some(running) = &mut state.slots[place.slot.index()] else {
                continue;
            };
            let source = &state.entry.source;
            if setup.config.name.as_deref() == Some(&*state.name)
                && source.can_adopt(&running.instance.config, &setup.config)
            {
                running.id = Some(setup.instance);
                running.instance.config = Arc::new((*setup.config).clone());
                running.instance.encoded_config = setup.encoded_config.as_slice().into();
                return true;
            }
        }
        false
    }

    pub(super) fn abort_startup(&mut self, number: u64) {
        for session in &mut self.startup {
            if session.number == number {
                session.aborting = true;
            }
        }
        // Those that a session has asked for already are that session's.
        for place in self.sources.places(|running| {
            let startup = running.startup.as_ref();
            running.id.is_none() && startup.is_some_and(|startup| startup.session == number)
        }) {
            self.stop(place);
        }
    }

    /// Gives up startup sessions whose time is up, and tells of those that are over.
    pub(super) fn end_startup_sessions(&mut self) {
        let now = monotonic_now();
        let late: Vec<u64> = self
            .startup
            .iter()
            .filter(|session| !session.aborting && session.deadline.is_some_and(|at| at <= now))
            .map(|session| session.number)
            .collect();
        for number in late {
            log(
                LogLevel::Warning,
                "startup tracing is given up: no session has asked for it",
            );
            self.abort_startup(number);
        }
        let (over, left) = std::mem::take(&mut self.startup)
            .into_iter()
            .partition(|session| session.unbound.is_empty());
        self.startup = left;
        for session in over {
            match session.aborting {
                true => session.request.aborted(),
                false => session.request.adopted(),
            }
        }
    }
}
