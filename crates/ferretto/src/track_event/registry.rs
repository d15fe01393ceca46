//! The listeners of all events: all categories, all call sites that were used, and all instances that record.
//!
//! One lock, taken when a site is first used and when instances start and stop. Events take it only if their category is known only at run time. The
//! masks of call sites change under this lock, and nowhere else. Nothing is allocated or freed under it, and no code of the application is called:
//! [`ferretto_client::room`] has the reasons. Confined threads ([`super::thread`]) never wait for it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_client::room::lock_with_room;
use ferretto_client::trace_writer::PreparedPacket;
use ferretto_proto::messages::{TrackEventCategory, TrackEventDescriptor};

use super::call_site::{CallSite, Registered, UNREGISTERED};
use super::category::{Category, Listing};
use super::config::{CategoryFilter, TrackEventOptions};
use super::dynamic_site;
use super::interning::{ANNOTATION_NAMES, CATEGORIES, EVENT_NAMES, Held, Interner};
use super::open_slices;
use super::sequence::Event;
use super::thread::{self, Confined};
use super::wire::{self, AnnotationFront, ShortFront};
use crate::callstack::NoLookUps;
use crate::off::OFF;
use crate::process_hooks;
use crate::source::{MAX_INSTANCES, Output, Slot, slots};

/// The epoch of each slot, which its sequences compare. It changes when an instance starts there, when it stops, and when its incremental state is
/// cleared. 0 while there is no instance.
pub(super) static EPOCHS: [AtomicU32; MAX_INSTANCES] = [const { AtomicU32::new(0) }; MAX_INSTANCES];

/// An epoch that no slot ever has, not even one without an instance.
pub(super) const NO_EPOCH: u32 = u32::MAX;

/// Counts the starts of instances. With it, a slice can tell whether all listeners at its end were there when it began.
static STARTS: AtomicU32 = AtomicU32::new(0);

/// A bit for each instance that records.
static LISTENERS: AtomicU32 = AtomicU32::new(0);

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    categories: Vec::new(),
    test_prefixes: Vec::new(),
    sites: Vec::new(),
    active: [const { None }; MAX_INSTANCES],
    last_epoch: 0,
});

struct Registry {
    /// Sorted by name, without groups.
    categories: Vec<Category>,
    /// Categories whose names begin with these are not listed.
    test_prefixes: Vec<&'static str>,
    sites: Vec<Site>,
    active: [Option<Active>; MAX_INSTANCES],
    last_epoch: u32,
}

struct Site {
    site: &'static CallSite,
    category: &'static str,
    /// The site's own tags, beside those of its category.
    tags: &'static [&'static str],
}

/// An instance that records.
#[derive(Clone, Debug)]
pub(super) struct Active {
    /// The instance's.
    pub(super) serial: u32,
    /// The count of starts, including its own.
    started: u32,
    pub(super) output: Output,
    pub(super) options: Arc<TrackEventOptions>,
    filter: Arc<CategoryFilter>,
}

impl Active {
    /// Whether it had started when the count of starts was `starts`.
    fn had_started(&self, starts: u32) -> bool {
        self.started.wrapping_sub(starts).cast_signed() <= 0
    }
}

fn registry() -> MutexGuard<'static, Registry> {
    // Nothing panics while it holds the lock.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `change` under the lock, so on one thread at a time, and never while the process forks. It must neither allocate nor free.
pub(super) fn while_locked<R>(change: impl FnOnce() -> R) -> R {
    let _registry = registry();
    change()
}

/// Whether any instance records.
#[inline(always)]
pub(super) fn anyone_listens() -> bool {
    !OFF && LISTENERS.load(Ordering::Relaxed) != 0
}

/// How many instances have started so far. Threads that see an instance's start here also see that the instance before it in its slot is over.
#[inline(always)]
pub(super) fn starts() -> u32 {
    STARTS.load(Ordering::Acquire)
}

/// Returns those of the `listeners` that are still the instances whose serials are at the slots' indexes, and the count of starts now.
#[cold]
pub(super) fn still_active(listeners: u32, serials: &[Option<u32>; MAX_INSTANCES]) -> (u32, u32) {
    let registry = registry();
    let active = slots()
        .filter(|slot| listeners & slot.bit() != 0)
        .filter(|slot| {
            let active = registry.active[slot.index()].as_ref();
            active.is_some_and(|active| serials[slot.index()] == Some(active.serial))
        })
        .fold(0, |bits, slot| bits | slot.bit());
    (active, STARTS.load(Ordering::Relaxed))
}

/// Returns those of the `listeners` whose instances had started when the count of starts was `starts`.
#[cold]
pub(super) fn started_before(listeners: u32, starts: u32) -> u32 {
    if thread::is_confined() {
        thread::count_unrecorded();
        return 0;
    }
    let registry = registry();
    slots()
        .filter(|slot| listeners & slot.bit() != 0)
        .filter(|slot| {
            let active = registry.active[slot.index()].as_ref();
            active.is_some_and(|active| active.had_started(starts))
        })
        .fold(0, |bits, slot| bits | slot.bit())
}

/// Registers a site at its first use. Returns its listeners. On a confined thread it records nothing, and leaves the registration to the next use.
#[cold]
pub(super) fn register_site(site: &'static CallSite, category: &Category) -> u32 {
    if thread::is_confined() {
        if anyone_listens() {
            thread::count_unrecorded();
        }
        return 0;
    }
    register_tagged_site(site, category, &[])
}

/// Registers a site that has tags of its own, which count together with those of its category. Returns its listeners.
#[cold]
pub(super) fn register_tagged_site(
    site: &'static CallSite,
    category: &Category,
    tags: &'static [&'static str],
) -> u32 {
    // Otherwise an event of the allocator would register its site too, which calls the allocator again.
    let _confined = thread::confine();
    let registered = prepare_site(site, Some(category.name));
    let mut registry = lock_with_room(
        || with_room_for_categories(members(category.name).count()),
        |registry| &mut registry.sites,
        1,
    );
    if site.registered().is_some() {
        return site.listeners();
    }
    let news = registry.add_category(category);
    site.set_registered(registered);
    registry.sites.push(Site {
        site,
        category: category.name,
        tags,
    });
    let listeners = registry.listeners_of(category.name, tags);
    site.set_listeners(listeners);
    drop(registry);
    if news {
        super::source::changed();
    }
    listeners
}

/// Returns the listeners of an event whose category is known only now. Its site keeps asking.
#[cold]
pub(super) fn listeners_of_dynamic(site: &'static CallSite, category: &str) -> u32 {
    if thread::is_confined() {
        thread::count_unrecorded();
        return 0;
    }
    let _confined = thread::confine();
    let mut registered = site.registered().is_none().then(|| prepare_site(site, None));
    let registry = registry();
    if site.registered().is_none()
        && let Some(registered) = registered.take()
    {
        site.set_registered(registered);
    }
    // Such a category has no tags, not even those of a defined category of the same name: upstream decides so.
    registry.listeners_of_tagged(category, [&[]; 2])
}

/// Returns the listeners of a category or group.
pub(super) fn listeners_of_category(category: &Category) -> u32 {
    registry().listeners_of(category.name, &[])
}

/// Makes categories known, to services too.
pub(super) fn register_categories(categories: &[&'static Category]) {
    let members = |category: &&Category| members(category.name).count();
    let mut registry = with_room_for_categories(categories.iter().map(members).sum());
    let news = categories
        .iter()
        .fold(false, |news, category| registry.add_category(category) | news);
    drop(registry);
    if news {
        super::source::changed();
    }
}

/// Hides categories whose names begin with these from services.
pub(super) fn add_test_category_prefixes(prefixes: &[&'static str]) {
    let mut registry = lock_with_room(registry, |registry| &mut registry.test_prefixes, prefixes.len());
    registry.test_prefixes.extend_from_slice(prefixes);
}

/// An instance records from now on.
pub(super) fn start(
    slot: Slot,
    serial: u32,
    output: Output,
    filter: CategoryFilter,
    options: TrackEventOptions,
) {
    let (options, filter) = (Arc::new(options), Arc::new(filter));
    let mut registry = registry();
    let started = STARTS.load(Ordering::Relaxed).wrapping_add(1);
    let before = registry.active[slot.index()].replace(Active {
        serial,
        started,
        output,
        options,
        filter,
    });
    // Threads that see the new listeners must find the instance, which they look for under the lock. Threads that see the count of starts too early
    // only look once more.
    STARTS.store(started, Ordering::Release);
    registry.new_epoch(slot);
    registry.update_sites();
    drop(registry);
    drop(before);
}

/// An instance records no more.
pub(super) fn stop(slot: Slot) {
    let mut registry = registry();
    let before = registry.active[slot.index()].take();
    EPOCHS[slot.index()].store(0, Ordering::Relaxed);
    registry.update_sites();
    drop(registry);
    drop(before);
}

/// Has the sequences of this instance emit again all data that their packets refer to.
pub(super) fn clear_incremental_state(slot: Slot) {
    let mut registry = registry();
    if registry.active[slot.index()].is_some() {
        registry.new_epoch(slot);
    }
}

/// The locks, which are released in this order.
struct HeldForFork {
    _open_slices: open_slices::Held,
    _tables: [Held<'static>; 3],
    _registry: MutexGuard<'static, Registry>,
    _others: dynamic_site::HeldForFork,
    _look_ups: NoLookUps,
    _confined: Confined,
    /// The process that is about to fork: see [`process_hooks::generation`].
    parent: u32,
}

thread_local! {
    /// The locks that this thread holds while it forks.
    static HELD_FOR_FORK: RefCell<Option<HeldForFork>> = const { RefCell::new(None) };
}

/// Takes the locks before this thread forks. No other thread could release them in the child, and the child has to find call sites that were
/// registered before.
pub(crate) fn hold_for_fork() {
    // Other fork handlers may trace: they must not wait for these locks, nor write into the parent's memory.
    let confined = thread::confine_for_fork();
    let look_ups = NoLookUps::hold();
    // In the order in which they are taken elsewhere.
    let others = dynamic_site::HeldForFork::hold();
    let registry = registry();
    let tables = [&EVENT_NAMES, &CATEGORIES, &ANNOTATION_NAMES].map(Interner::hold);
    let all = HeldForFork {
        _open_slices: open_slices::Held::hold(),
        _tables: tables,
        _registry: registry,
        _others: others,
        _look_ups: look_ups,
        _confined: confined,
        parent: process_hooks::generation(),
    };
    // A thread that is past its thread-locals forks as it can.
    let _ = HELD_FOR_FORK.try_with(|held| *held.borrow_mut() = Some(all));
}

/// This thread has forked, as parent or child.
pub(crate) fn release_after_fork() {
    let held = HELD_FOR_FORK.try_with(|held| held.borrow_mut().take());
    if let Ok(Some(held)) = &held
        && held.parent != process_hooks::generation()
    {
        // This thread's sequences are the parent's, which it must not write to from now on.
        for epoch in &EPOCHS {
            epoch.store(0, Ordering::Relaxed);
        }
    }
    drop(held);
}

/// This is a forked child, so nothing is recorded. The outputs belong to the parent, so they are left as they are.
pub(super) fn forget() {
    let mut registry = registry();
    for active in &mut registry.active {
        std::mem::forget(active.take());
    }
    for epoch in &EPOCHS {
        epoch.store(0, Ordering::Relaxed);
    }
    registry.update_sites();
}

/// The instance that records in a slot.
pub(super) struct Found {
    pub(super) active: Active,
    pub(super) epoch: u32,
    /// Whether the instance records the event. The thread has read the listeners before, without the lock: by now the slot may have another instance.
    pub(super) records_event: bool,
}

/// The instance that records in a slot.
pub(super) fn active(slot: Slot, event: &Event<'_>) -> Option<Found> {
    let registry = registry();
    let active = registry.active[slot.index()].clone()?;
    let listeners = match (event.begun, event.category, event.site) {
        (Some(starts), _, _) => match active.had_started(starts) {
            true => slot.bit(),
            false => 0,
        },
        (None, Some(category), _) => registry.listeners_of_tagged(category, [&[]; 2]),
        // Ends of slices may have sites that are of no category.
        (None, None, Some(site)) if !site.event.is_end() => site.listeners(),
        (None, None, _) => slot.bit(),
    };
    Some(Found {
        epoch: EPOCHS[slot.index()].load(Ordering::Relaxed),
        records_event: listeners & slot.bit() != 0,
        active,
    })
}

/// Returns the descriptor of our categories, for services.
pub(super) fn descriptor() -> TrackEventDescriptor {
    let categories = copy_of(|registry| &registry.categories);
    let test_prefixes = copy_of(|registry| &registry.test_prefixes);
    let listed = categories.iter().filter(|category| {
        category.listing == Listing::Listed
            && !test_prefixes
                .iter()
                .any(|prefix| category.name.starts_with(prefix))
    });
    TrackEventDescriptor {
        available_categories: listed
            .map(|category| TrackEventCategory {
                name: Some(category.name.to_owned()),
                description: category.description.map(str::to_owned),
                tags: category.tags.iter().map(|&tag| tag.to_owned()).collect(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

/// Takes the lock when there is room for this many more categories.
fn with_room_for_categories(more: usize) -> MutexGuard<'static, Registry> {
    lock_with_room(registry, |registry| &mut registry.categories, more)
}

/// Returns a copy of a list of the registry.
fn copy_of<T: Copy>(list: impl Fn(&Registry) -> &Vec<T>) -> Vec<T> {
    let mut copy = Vec::new();
    loop {
        let registry = registry();
        let list = list(&registry);
        if copy.capacity() >= list.len() {
            copy.extend_from_slice(list);
            return copy;
        }
        let needed = list.len();
        drop(registry);
        copy.reserve(needed);
    }
}

/// Computes the registration of a site.
fn prepare_site(site: &CallSite, category: Option<&'static str>) -> Registered {
    let categories: Box<[u32]> = category
        .into_iter()
        .flat_map(members)
        .map(|name| CATEGORIES.id(name))
        .collect();
    let name = match site.name {
        "" => 0,
        name => EVENT_NAMES.id(name),
    };
    let whole = site.annotations.is_empty() && (name != 0 || site.event.is_end());
    let prepared = whole
        .then(|| PreparedPacket::new(&wire::front(site.event, &categories, name)))
        .flatten();
    let annotations: Box<[u32]> = site
        .annotations
        .iter()
        .map(|&name| ANNOTATION_NAMES.id(name))
        .collect();
    Registered {
        index: site_index(),
        front: ShortFront::new(site.event, &categories, name),
        annotation_fronts: annotations.iter().map(|&id| AnnotationFront::new(id)).collect(),
        categories,
        name,
        annotations,
        prepared,
    }
}

/// The members of a group, or the category itself.
fn members(category: &str) -> impl Iterator<Item = &str> {
    category.split(',').filter(|name| !name.is_empty())
}

impl Registry {
    /// The position of the category, or else the position to insert it at.
    fn find_category(&self, name: &str) -> Result<usize, usize> {
        self.categories
            .binary_search_by(|category| category.name.cmp(name))
    }

    /// Adds a category or group, and what is new about known members. The caller has made room. Returns whether anything was new.
    fn add_category(&mut self, category: &Category) -> bool {
        let (mut news, mut new_tags) = (false, false);
        let is_group = category.name.contains(',');
        for name in members(category.name) {
            let member = Category {
                name,
                // That of a group is of all its members together.
                description: category.description.filter(|_| !is_group),
                ..*category
            };
            let before = match self.find_category(name) {
                Ok(at) => {
                    let before = self.categories[at];
                    self.categories[at].fill_in(&member);
                    (before != self.categories[at]).then_some(before.tags)
                }
                Err(at) => {
                    self.categories.insert(at, member);
                    Some(&[][..])
                }
            };
            if let Some(tags) = before {
                news = true;
                new_tags |= tags.is_empty() && !member.tags.is_empty();
            }
        }
        if new_tags {
            // Events of this name were there before, and the new tags may change their listeners.
            self.update_sites();
        }
        news
    }

    /// The instances that record a category or group, for a site with these tags of its own.
    fn listeners_of(&self, category: &str, own_tags: &[&str]) -> u32 {
        let defined = self.tags_of(category).unwrap_or_default();
        self.listeners_of_tagged(category, [own_tags, defined])
    }

    /// The tags of a category that is known.
    fn tags_of(&self, category: &str) -> Option<&'static [&'static str]> {
        let at = self.find_category(category).ok()?;
        Some(self.categories[at].tags)
    }

    /// The same for a category with these tags, or for a group, whose members have tags of their own.
    fn listeners_of_tagged(&self, category: &str, tags: [&[&str]; 2]) -> u32 {
        let mut listeners = 0;
        for slot in slots() {
            let Some(active) = &self.active[slot.index()] else {
                continue;
            };
            // The layer for `tracing` has no groups: its tags are those of the one category.
            let enabled = if category.contains(',') {
                let tags_of = |name: &str| self.tags_of(name);
                active.filter.is_group_enabled(category, tags_of)
            } else {
                active.filter.is_enabled_by(category, tags)
            };
            if enabled {
                listeners |= slot.bit();
            }
        }
        listeners
    }

    fn update_sites(&self) {
        let active = slots()
            .filter(|slot| self.active[slot.index()].is_some())
            .fold(0, |bits, slot| bits | slot.bit());
        LISTENERS.store(active, Ordering::Relaxed);
        for Site { site, category, tags } in &self.sites {
            site.set_listeners(self.listeners_of(category, tags));
        }
    }

    fn new_epoch(&mut self, slot: Slot) {
        self.last_epoch = match self.last_epoch + 1 {
            NO_EPOCH => 1,
            epoch => epoch,
        };
        EPOCHS[slot.index()].store(self.last_epoch, Ordering::Relaxed);
    }
}

/// Numbers the sites, from 0 on.
fn site_index() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

const _: () = assert!(MAX_INSTANCES < UNREGISTERED.trailing_zeros() as usize);
