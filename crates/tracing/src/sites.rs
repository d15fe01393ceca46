//! The state of each call site of `tracing`, found by the address of its metadata.
//!
//! Asked for each span that is made and each event, so a lookup takes no lock: sites are leaked, put into a hash table that only ever
//! grows, and never taken out. A site is made when `tracing` first asks whether anyone is interested in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ferretto::private::{CallSite, EventType};
use ferretto::track::NamedTrack;
use tracing_core::{Level, Metadata};

use crate::counters::Counter;
use crate::lanes::Lanes;

/// The span or event in one place of the source.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) metadata: &'static Metadata<'static>,
    /// Begins slices, or is the instant.
    pub(crate) call_site: &'static CallSite,
    /// The roles of fields, by their index.
    pub(crate) roles: Box<[Role]>,
    /// Whether the event was given a name, or has the one that macros make of its place.
    pub(crate) is_named: bool,
    /// Whether it stands for records of the crate `log`, of one level.
    is_log: bool,
    pub(crate) counters: Box<[Counter]>,
    /// The lanes of such spans as have no parent with one.
    pub(crate) lanes: Lanes,
    /// The track of a lane, without its number.
    pub(crate) track: NamedTrack<'static>,
    behaviour: AtomicU8,
    end: OnceLock<&'static CallSite>,
    instant: OnceLock<&'static CallSite>,
}

/// The purpose of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// An argument.
    Argument,
    /// The event's text.
    Message,
    /// A sample of this counter of the site's.
    Counter(usize),
    /// The origin of a record of the crate `log`, in four fields.
    LogTarget,
    LogFile,
    LogLine,
    LogModule,
}

/// How spans of a site have behaved so far. The last one decides how the next one is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Not known: each span gets an account.
    Unknown,
    /// Entered once, by the thread that made it, right after that: as guards and synchronous functions do.
    Scoped,
    /// Entered several times, as futures do.
    Resumed,
}

impl Site {
    fn new(metadata: &'static Metadata<'static>) -> Self {
        let names: Vec<&'static str> = metadata.fields().iter().map(|field| field.name()).collect();
        let event = metadata.is_event();
        let is_log = event && metadata.target() == "log" && metadata.name() == "log event";
        let is_named = !event || !metadata.name().starts_with("event ") && !is_log;
        let mut counters = Vec::new();
        let roles = names.iter().map(|&name| match name {
            "message" if event => Role::Message,
            "log.target" if is_log => Role::LogTarget,
            "log.file" if is_log => Role::LogFile,
            "log.line" if is_log => Role::LogLine,
            "log.module_path" if is_log => Role::LogModule,
            // Only events are samples.
            _ => match event.then(|| Counter::of_field(metadata, name)).flatten() {
                None => Role::Argument,
                Some(counter) => {
                    counters.push(counter);
                    Role::Counter(counters.len() - 1)
                }
            },
        });
        Self {
            metadata,
            roles: roles.collect(),
            call_site: CallSite::leak(
                if event {
                    EventType::Instant
                } else {
                    EventType::SliceBegin
                },
                metadata.target(),
                tags(*metadata.level()),
                if is_named { metadata.name() } else { "" },
                names.leak(),
            ),
            is_named,
            is_log,
            counters: counters.into(),
            lanes: Lanes::new(),
            track: NamedTrack::new(metadata.name()),
            behaviour: AtomicU8::new(Behaviour::Unknown as u8),
            end: OnceLock::new(),
            instant: OnceLock::new(),
        }
    }

    /// Whether any session records it.
    #[inline(always)]
    pub(crate) fn is_recorded(&self) -> bool {
        self.call_site.recorded_by() != 0
    }

    pub(crate) fn is_log(&self) -> bool {
        self.is_log
    }

    #[inline(always)]
    pub(crate) fn has_fields(&self) -> bool {
        !self.roles.is_empty()
    }

    #[inline(always)]
    pub(crate) fn behaviour(&self) -> Behaviour {
        match self.behaviour.load(Ordering::Relaxed) {
            0 => Behaviour::Unknown,
            1 => Behaviour::Scoped,
            _ => Behaviour::Resumed,
        }
    }

    pub(crate) fn set_behaviour(&self, behaviour: Behaviour) {
        // So as not to take the line from other threads' caches each time.
        if self.behaviour() != behaviour {
            self.behaviour.store(behaviour as u8, Ordering::Relaxed);
        }
    }

    /// For ends with arguments that were recorded after the beginning.
    pub(crate) fn end(&self) -> &'static CallSite {
        made_once(&self.end, || self.call_site.leak_end())
    }

    /// For instants that stand for the span.
    pub(crate) fn instant(&self) -> &'static CallSite {
        made_once(&self.instant, || {
            let (metadata, tags) = (self.metadata, tags(*self.metadata.level()));
            CallSite::leak(EventType::Instant, metadata.target(), tags, metadata.name(), &[])
        })
    }
}

/// Makes a value at its first use, under the lock for making sites: otherwise a fork could leave it half made.
fn made_once(
    place: &OnceLock<&'static CallSite>,
    make: impl FnOnce() -> &'static CallSite,
) -> &'static CallSite {
    match place.get() {
        Some(site) => site,
        None => {
            let _making = SITES.hold();
            place.get_or_init(make)
        }
    }
}

/// The level as tags, by which configs can choose. Configs have to ask for `debug`, and for `trace` as well.
pub(crate) fn tags(level: Level) -> &'static [&'static str] {
    match level {
        Level::ERROR => &["error"],
        Level::WARN => &["warn"],
        Level::INFO => &["info"],
        Level::DEBUG => &["debug"],
        Level::TRACE => &["trace", "debug"],
    }
}

/// All of them.
pub(crate) static SITES: Sites = Sites {
    tables: [const { OnceLock::new() }; TABLES],
    making: Mutex::new(()),
};

/// The most tables; each has twice the places of the one before.
const TABLES: usize = 20;
/// The size of the first table, in bits.
const FIRST_TABLE_BITS: u32 = 10;
/// Places that are looked at in each table.
const PROBES: usize = 8;

type Place = OnceLock<&'static Site>;

/// A hash table that is read without a lock: places are filled once, and when all places for a site are taken, it goes to the next table. So the
/// first free place on a site's way shows that the site is in no table.
#[derive(Debug)]
pub(crate) struct Sites {
    tables: [OnceLock<Box<[Place]>>; TABLES],
    /// Held while a site is added, or completed.
    making: Mutex<()>,
}

impl Sites {
    /// Keeps others from adding any.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Site> {
        let tables = self.tables.iter().map_while(OnceLock::get);
        tables.flatten().filter_map(|place| place.get().copied())
    }

    /// The site with this metadata.
    #[inline(always)]
    pub(crate) fn of(&self, metadata: &'static Metadata<'static>) -> &'static Site {
        match self.find(metadata) {
            Some(site) => site,
            None => self.make(metadata),
        }
    }

    /// The site whose metadata is at this address, if there is one. Metadata that is made for a question has no site.
    #[inline(always)]
    pub(crate) fn find(&self, metadata: &Metadata<'_>) -> Option<&'static Site> {
        let address = std::ptr::from_ref(metadata).addr();
        for (index, table) in self.tables.iter().enumerate() {
            for place in way(address, index, table.get()?) {
                match place.get() {
                    None => return None,
                    Some(site) if std::ptr::from_ref(site.metadata).addr() == address => return Some(site),
                    Some(_) => {}
                }
            }
        }
        None
    }

    #[cold]
    #[inline(never)]
    fn make(&self, metadata: &'static Metadata<'static>) -> &'static Site {
        let _making = self.hold();
        if let Some(site) = self.find(metadata) {
            return site;
        }
        let site: &'static Site = Box::leak(Box::new(Site::new(metadata)));
        let address = std::ptr::from_ref(metadata).addr();
        for (index, table) in self.tables.iter().enumerate() {
            let table = table.get_or_init(|| {
                (0..1 << (FIRST_TABLE_BITS as usize + index))
                    .map(|_| Place::new())
                    .collect()
            });
            for place in way(address, index, table) {
                if place.set(site).is_ok() {
                    return site;
                }
            }
        }
        // A thousand million call sites: then this one is made anew each time.
        site
    }
}

/// The places of a table where a site may be.
#[inline(always)]
fn way(address: usize, index: usize, table: &[Place]) -> impl Iterator<Item = &Place> {
    let bits = FIRST_TABLE_BITS + index as u32;
    // Addresses differ in a few bits: all are brought to bear on the upper ones (Fibonacci hashing).
    let start = ((address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize;
    let mask = table.len().wrapping_sub(1);
    (0..PROBES).filter_map(move |step| table.get((start + step) & mask))
}

/// Call sites for records of the crate `log`, whose targets are only known from each record.
pub(crate) static LOG_SITES: LogSites = LogSites(Mutex::new(BTreeMap::new()));

/// The number of targets that are kept apart; later ones are merged.
const MAX_LOG_TARGETS: usize = 4096;

/// By their targets and levels.
pub(crate) type LogCallSites = BTreeMap<&'static str, [Option<&'static CallSite>; 5]>;

pub(crate) struct LogSites(Mutex<LogCallSites>);

impl LogSites {
    /// Keeps all others out.
    pub(crate) fn hold(&self) -> MutexGuard<'_, LogCallSites> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call site for records of this target and level.
    pub(crate) fn of(&self, target: &str, level: Level) -> &'static CallSite {
        let mut sites = self.hold();
        let target: &'static str = match sites.get_key_value(target) {
            Some((&target, _)) => target,
            None if sites.len() >= MAX_LOG_TARGETS => "log",
            None => target.to_owned().leak(),
        };
        let index = match level {
            Level::ERROR => 0,
            Level::WARN => 1,
            Level::INFO => 2,
            Level::DEBUG => 3,
            Level::TRACE => 4,
        };
        sites.entry(target).or_default()[index]
            .get_or_insert_with(|| CallSite::leak(EventType::Instant, target, tags(level), "", &[]))
    }
}

#[cfg(test)]
pub(crate) mod tests;
