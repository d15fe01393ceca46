//! The thread that reads batteries. The driver of a battery may take seconds to answer: that of a wireless device asks by radio.
//!
//! [`SysfsPower`](super::SysfsPower) starts the thread, asks for samples and takes the packets. The thread finds the batteries, samples them
//! once, and samples them again each time it is asked. Guarantees that nobody waits for a battery: taking and asking only need a lock that the
//! thread does not hold while it reads. While one battery answers slowly, all are sampled at its pace. Dropping the [`Reader`] ends the thread
//! as soon as the driver lets it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ferretto_ipc::reactor::boot_now;
use ferretto_proto::write;
use ferretto_wire::Writer;
use rustix::io::Errno;

use super::{MOST_BATTERIES, NAME};
use crate::kernel_files::{Keep, PolledFile, for_each_entry, open_dir, read_once};
use crate::kernel_text::leading_i64;
use crate::metatrace::{Event, span};
use crate::notice::Notice;
use crate::own_threads;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Reader(Arc<Shared>);

/// The thread's present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// It reads, or has been asked to.
    #[default]
    Reading,
    /// It waits to be asked.
    Idle,
    /// There is nothing to be read.
    Ended,
}

/// The thread's results since the last look.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// At most two samples: the thread waits for another question after each.
    pub(super) packets: Vec<Vec<u8>>,
    pub(super) notices: Vec<Notice>,
    pub(super) phase: Phase,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    results: Taken,
    is_cancelled: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a sample and waits for the next question. Returns `false` if no question will come.
    fn wait_for_question(&self) -> bool {
        let mut state = self.lock();
        state.results.phase = Phase::Idle;
        self.changed.notify_all();
        let state = self.changed.wait_while(state, |state| {
            state.results.phase == Phase::Idle && !state.is_cancelled
        });
        !state.unwrap_or_else(PoisonError::into_inner).is_cancelled
    }

    fn tell(&self, notice: Notice) {
        self.lock().results.notices.push(notice);
    }

    fn end(&self) {
        self.lock().results.phase = Phase::Ended;
        self.changed.notify_all();
    }
}

impl Reader {
    /// Starts a thread that calls `join`, looks for batteries in `dir` and samples them once.
    ///
    /// # Errors
    /// If the system refuses another thread: a clause that says why.
    pub(super) fn start(dir: PathBuf, join: impl FnOnce() + Send + 'static) -> Result<Reader, String> {
        let shared = Arc::new(Shared::default());
        let reader = Reader(shared.clone());
        own_threads::spawn("battery-reader", move || {
            join();
            run(&shared, &dir);
        })?;
        Ok(reader)
    }

    /// Asks for a sample. Does nothing while one is under way.
    pub(super) fn ask(&self) {
        let mut state = self.0.lock();
        if state.results.phase == Phase::Idle {
            state.results.phase = Phase::Reading;
            self.0.changed.notify_all();
        }
    }

    /// The results since the last call.
    pub(super) fn take(&self) -> Taken {
        let mut state = self.0.lock();
        let phase = state.results.phase;
        std::mem::replace(
            &mut state.results,
            Taken {
                phase,
                ..Taken::default()
            },
        )
    }

    /// A reader whose thread waits for a battery for ever.
    #[cfg(test)]
    pub(super) fn without_an_answer() -> Reader {
        Reader(Arc::default())
    }

    /// Waits until no sample is under way.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        let state = self.0.lock();
        let settled = self
            .0
            .changed
            .wait_while(state, |state| state.results.phase == Phase::Reading);
        drop(settled.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.lock().is_cancelled = true;
        self.0.changed.notify_all();
    }
}

/// The body of the thread.
fn run(shared: &Shared, dir: &Path) {
    let mut buffer = Vec::new();
    let mut batteries = match find_batteries(dir, &mut buffer) {
        Ok(batteries) => batteries,
        Err(error) => {
            shared.tell(Notice::Unreadable {
                field: NAME,
                path: dir.to_owned(),
                source: error.into(),
            });
            return shared.end();
        }
    };
    if batteries.is_empty() {
        shared.tell(Notice::NoBattery { dir: dir.to_owned() });
        return shared.end();
    }
    if batteries.len() > MOST_BATTERIES {
        shared.tell(Notice::TooManyBatteries {
            found: batteries.len(),
            used: MOST_BATTERIES,
        });
        batteries.truncate(MOST_BATTERIES);
    }
    let company = match batteries.len() {
        1 => Company::None,
        _ => Company::Others,
    };
    loop {
        let span = span(Event::LinuxPowerSysfsTick);
        for battery in &mut batteries {
            if let Some(packet) = battery.sample(company, &mut buffer) {
                shared.lock().results.packets.push(packet);
            }
        }
        drop(span);
        if !shared.wait_for_question() {
            return;
        }
    }
}

/// The batteries that are present, in the kernel's order.
fn find_batteries(dir: &Path, buffer: &mut Vec<u8>) -> Result<Vec<Battery>, Errno> {
    let mut names = Vec::new();
    for_each_entry(open_dir(dir)?, |name, _| names.push(name.to_vec()))?;
    let mut batteries = Vec::new();
    for name in names {
        let dir = dir.join(OsStr::from_bytes(&name));
        let mut says = |file, expected: &[u8]| {
            read_once(dir.join(file), buffer).is_some_and(|content| content == expected)
        };
        if says("type", b"Battery") && says("present", b"1") {
            batteries.push(Battery::new(&dir, name));
        }
    }
    Ok(batteries)
}

/// Whether the machine has further batteries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    None,
    Others,
}

/// A battery that was present at the start.
#[derive(Debug)]
struct Battery {
    name: Vec<u8>,
    charge: PolledFile,
    capacity: PolledFile,
    current: PolledFile,
    current_average: PolledFile,
    energy: PolledFile,
    voltage: PolledFile,
}

impl Battery {
    fn new(dir: &Path, name: Vec<u8>) -> Self {
        let file = |name| PolledFile::new(dir.join(name), Keep::Open);
        Self {
            name,
            charge: file("charge_now"),
            capacity: file("capacity"),
            current: file("current_now"),
            current_average: file("current_avg"),
            energy: file("energy_now"),
            voltage: file("voltage_now"),
        }
    }

    /// A packet with the battery's values, and with its name if there are others; `None` if it has no values.
    fn sample(&mut self, company: Company, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
        let mut packet = Writer::default();
        let mut values = 0;
        let mut value = |file: &mut PolledFile| {
            let value = file.read(buffer).ok().and_then(leading_i64);
            values += u32::from(value.is_some());
            value
        };
        write::TracePacket::new(&mut packet)
            .timestamp(boot_now())
            .battery(|counters| {
                if let Some(charge) = value(&mut self.charge) {
                    counters.charge_counter_uah(charge);
                }
                if let Some(capacity) = value(&mut self.capacity) {
                    counters.capacity_percent(capacity as f32);
                }
                if let Some(current) = value(&mut self.current) {
                    counters.current_ua(current);
                }
                if let Some(current) = value(&mut self.current_average) {
                    counters.current_avg_ua(current);
                }
                if let Some(energy) = value(&mut self.energy) {
                    counters.energy_counter_uwh(energy);
                }
                if let Some(voltage) = value(&mut self.voltage) {
                    counters.voltage_uv(voltage);
                }
                if company == Company::Others {
                    counters.name(&self.name);
                }
            });
        (values > 0).then(|| packet.as_slice().to_vec())
    }
}
