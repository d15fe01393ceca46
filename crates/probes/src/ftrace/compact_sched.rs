//! The dense encoding of `sched_switch` and `sched_waking`: one packed column per field, thread names interned.
//!
//! The bundle writer adds event by event, and writes the columns into the bundle when the bundle ends. This is the inner
//! half of the hot path. The columns and the name table are kept from bundle to bundle, so that a steady recording
//! allocates nothing.
//!
//! The columns leave out fields that readers can derive: the thread that ran before a switch is the one that the last
//! switch on the same CPU switched to. So `sched_waking` is compact only where `sched_switch` is recorded as well.

use super::field::{FieldKind, Width};
use super::format::{EventFormat, FormatField};
use super::metadata::Metadata;
use ferretto_proto::write::ftrace_event_bundle::CompactSched as Fields;
use ferretto_wire::{MAX_SHORT_VARINT, MAX_VARINT_LEN, Writer, encode_varint, short_varint, varint_len};

#[cfg(test)]
mod tests;

/// Length of a thread name with its NUL in the kernel (`TASK_COMM_LEN`).
const NAME_LEN: usize = 16;

/// The layout of a format: the one that nearly all 64-bit kernels share, or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Usual,
    Other,
}

/// Where the needed fields of `sched_switch` lie on this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SwitchFormat {
    layout: Layout,
    size: usize,
    prev_state: (u16, Width),
    next_comm: u16,
    next_pid: u16,
    next_prio: u16,
}

impl SwitchFormat {
    const USUAL: Self = Self {
        layout: Layout::Usual,
        size: 64,
        prev_state: (32, Width::Eight),
        next_comm: 40,
        next_pid: 56,
        next_prio: 60,
    };

    /// `None` if a field is missing or not of the type that the columns are made for.
    pub(super) fn of(format: &EventFormat) -> Option<Self> {
        let fields = &format.fields;
        let prev_state = find(fields, "prev_state", |kind| {
            kind == FieldKind::Signed(Width::Eight)
        });
        let prev_state = match prev_state {
            Some(offset) => (offset, Width::Eight),
            None => (
                find(fields, "prev_state", |kind| {
                    kind == FieldKind::Signed(Width::Four)
                })?,
                Width::Four,
            ),
        };
        let mut found = Self {
            layout: Layout::Usual,
            size: format.fields.iter().map(|field| usize::from(field.end())).max()?,
            prev_state,
            next_comm: find_name(fields, "next_comm")?,
            next_pid: find(fields, "next_pid", |kind| kind == FieldKind::Pid)?,
            next_prio: find(fields, "next_prio", |kind| kind == FieldKind::Signed(Width::Four))?,
        };
        if found != Self::USUAL {
            found.layout = Layout::Other;
        }
        Some(found)
    }
}

/// Where the needed fields of `sched_waking` lie on this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WakingFormat {
    layout: Layout,
    size: usize,
    common_flags: u16,
    comm: u16,
    pid: u16,
    prio: u16,
    target_cpu: u16,
}

impl WakingFormat {
    const USUAL: Self = Self {
        layout: Layout::Usual,
        size: 36,
        common_flags: 2,
        comm: 8,
        pid: 24,
        prio: 28,
        target_cpu: 32,
    };

    /// `None` if a field is missing or not of the type that the columns are made for.
    pub(super) fn of(format: &EventFormat) -> Option<Self> {
        let fields = &format.fields;
        let int = |kind| kind == FieldKind::Signed(Width::Four);
        let mut found = Self {
            layout: Layout::Usual,
            size: format.fields.iter().map(|field| usize::from(field.end())).max()?,
            common_flags: find(&format.common, "common_flags", |kind| {
                kind == FieldKind::Unsigned(Width::One)
            })?,
            comm: find_name(fields, "comm")?,
            pid: find(fields, "pid", |kind| kind == FieldKind::Pid)?,
            prio: find(fields, "prio", int)?,
            target_cpu: find(fields, "target_cpu", int)?,
        };
        if found != Self::USUAL {
            found.layout = Layout::Other;
        }
        Some(found)
    }
}

fn find(fields: &[FormatField], name: &str, fits: impl Fn(FieldKind) -> bool) -> Option<u16> {
    let field = fields.iter().find(|field| field.name() == Some(name))?;
    field.kind().filter(|kind| fits(*kind)).map(|_| field.offset)
}

fn find_name(fields: &[FormatField], name: &str) -> Option<u16> {
    let offset = find(fields, name, |kind| kind == FieldKind::FixedString)?;
    fields
        .iter()
        .any(|field| field.name() == Some(name) && usize::from(field.size) == NAME_LEN)
        .then_some(offset)
}

/// An event that is shorter than its format says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooShort;

/// The fields that are kept of a `sched_switch`.
struct Switch {
    prev_state: u64,
    next_comm: [u8; NAME_LEN],
    next_pid: i32,
    next_prio: i32,
}

impl Switch {
    #[inline(always)]
    fn read(format: &SwitchFormat, payload: &[u8]) -> Result<Self, TooShort> {
        if payload.len() < format.size {
            return Err(TooShort);
        }
        Ok(Self {
            prev_state: match format.prev_state {
                (offset, Width::Eight) => u64::from_le_bytes(read(payload, offset)?),
                (offset, _) => extend(read_i32(payload, offset)?),
            },
            next_comm: read(payload, format.next_comm)?,
            next_pid: read_i32(payload, format.next_pid)?,
            next_prio: read_i32(payload, format.next_prio)?,
        })
    }
}

/// The fields that are kept of a `sched_waking`.
struct Waking {
    common_flags: u8,
    comm: [u8; NAME_LEN],
    pid: i32,
    prio: i32,
    target_cpu: i32,
}

impl Waking {
    #[inline(always)]
    fn read(format: &WakingFormat, payload: &[u8]) -> Result<Self, TooShort> {
        if payload.len() < format.size {
            return Err(TooShort);
        }
        let [common_flags] = read(payload, format.common_flags)?;
        Ok(Self {
            common_flags,
            comm: read(payload, format.comm)?,
            pid: read_i32(payload, format.pid)?,
            prio: read_i32(payload, format.prio)?,
            target_cpu: read_i32(payload, format.target_cpu)?,
        })
    }
}

/// The scheduler events of the bundle being written.
#[derive(Debug, Default)]
pub(super) struct CompactSched {
    names: NameTable,
    switch: Columns<5>,
    waking: Columns<6>,
}

/// Field numbers, in the order in which [`CompactSched::add_switch`] fills the columns.
const SWITCH_NUMBERS: [u32; 5] = [
    Fields::SWITCH_TIMESTAMP,
    Fields::SWITCH_PREV_STATE,
    Fields::SWITCH_NEXT_PID,
    Fields::SWITCH_NEXT_PRIO,
    Fields::SWITCH_NEXT_COMM_INDEX,
];

/// Field numbers, in the order in which [`CompactSched::add_waking`] fills the columns.
const WAKING_NUMBERS: [u32; 6] = [
    Fields::WAKING_TIMESTAMP,
    Fields::WAKING_PID,
    Fields::WAKING_TARGET_CPU,
    Fields::WAKING_PRIO,
    Fields::WAKING_COMM_INDEX,
    Fields::WAKING_COMMON_FLAGS,
];

impl CompactSched {
    pub(super) fn is_empty(&self) -> bool {
        self.names.names.is_empty()
    }

    /// Adds an event whole or not at all.
    #[inline(always)]
    pub(super) fn add_switch(
        &mut self,
        format: &SwitchFormat,
        timestamp: u64,
        payload: &[u8],
        metadata: &mut Metadata,
    ) -> Result<(), TooShort> {
        // Constant offsets make one comparison of the size do for all fields.
        let event = match format.layout {
            Layout::Usual => Switch::read(&SwitchFormat::USUAL, payload)?,
            Layout::Other => Switch::read(format, payload)?,
        };
        let name = self.names.intern(event.next_comm);
        metadata.add_thread(event.next_pid);

        let delta = self.switch.delta(timestamp);
        let [timestamps, prev_states, next_pids, next_prios, next_names] = self.switch.row();
        timestamps.push(delta);
        prev_states.push_mostly_small(event.prev_state);
        next_pids.push(extend(event.next_pid));
        next_prios.push_mostly_small(extend(event.next_prio));
        next_names.push_mostly_small(u64::from(name));
        Ok(())
    }

    /// Adds an event whole or not at all.
    #[inline(always)]
    pub(super) fn add_waking(
        &mut self,
        format: &WakingFormat,
        timestamp: u64,
        payload: &[u8],
        metadata: &mut Metadata,
    ) -> Result<(), TooShort> {
        let event = match format.layout {
            Layout::Usual => Waking::read(&WakingFormat::USUAL, payload)?,
            Layout::Other => Waking::read(format, payload)?,
        };
        let name = self.names.intern(event.comm);
        metadata.add_thread(event.pid);

        let delta = self.waking.delta(timestamp);
        let [timestamps, pids, target_cpus, prios, names, common_flags] = self.waking.row();
        timestamps.push(delta);
        pids.push(extend(event.pid));
        target_cpus.push_mostly_small(extend(event.target_cpu));
        prios.push_mostly_small(extend(event.prio));
        names.push_mostly_small(u64::from(name));
        common_flags.push_mostly_small(u64::from(event.common_flags));
        Ok(())
    }

    /// Length of the message that [`CompactSched::write`] would write, in bytes.
    pub(super) fn encoded_len(&self) -> usize {
        // All field numbers are below 16 and names below 128 bytes: tags and names' lengths take one byte.
        let names: usize = self
            .names
            .names
            .iter()
            .map(|name| 1 + 1 + name.as_bytes().len())
            .sum();
        names + self.switch.encoded_len() + self.waking.encoded_len()
    }

    /// Appends the fields of a `CompactSched` message.
    pub(super) fn write(&mut self, out: &mut Writer) {
        for name in &self.names.names {
            out.bytes_field(Fields::INTERN_TABLE, name.as_bytes());
        }
        self.switch.write(&SWITCH_NUMBERS, out);
        self.waking.write(&WAKING_NUMBERS, out);
    }

    /// Starts an empty bundle.
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.switch.clear();
        self.waking.clear();
    }
}

/// Signed protobuf integers are encoded as if they had 64 bits.
#[inline(always)]
fn extend(value: i32) -> u64 {
    i64::from(value) as u64
}

#[inline(always)]
fn read_i32(payload: &[u8], offset: u16) -> Result<i32, TooShort> {
    read(payload, offset).map(i32::from_le_bytes)
}

/// One comparison is enough, since adding to an offset of 16 bits cannot overflow.
#[inline(always)]
fn read<const N: usize>(payload: &[u8], offset: u16) -> Result<[u8; N], TooShort> {
    let start = usize::from(offset);
    let bytes = payload
        .get(start..start + N)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or(TooShort)
}

/// The columns of one kind of event.
#[derive(Debug)]
struct Columns<const N: usize> {
    columns: [Column; N],
    /// The number of events that fit the columns' recent parts even if each value has the greatest length.
    room: usize,
    last_timestamp: u64,
}

impl<const N: usize> Default for Columns<N> {
    fn default() -> Self {
        Self {
            columns: std::array::from_fn(|_| Column::default()),
            room: EVENTS_PER_SPILL,
            last_timestamp: 0,
        }
    }
}

impl<const N: usize> Columns<N> {
    /// Time since the event before. The first event of a bundle has its absolute time.
    #[inline(always)]
    fn delta(&mut self, timestamp: u64) -> u64 {
        let delta = timestamp.wrapping_sub(self.last_timestamp);
        self.last_timestamp = timestamp;
        delta
    }

    /// Makes room for one more value in each column.
    #[inline(always)]
    fn row(&mut self) -> &mut [Column; N] {
        if self.room == 0 {
            self.spill();
        }
        self.room -= 1;
        &mut self.columns
    }

    #[cold]
    #[inline(never)]
    fn spill(&mut self) {
        self.columns.iter_mut().for_each(Column::spill);
        self.room = EVENTS_PER_SPILL;
    }

    fn encoded_len(&self) -> usize {
        let lens = self.columns.iter().map(Column::len).filter(|len| *len > 0);
        lens.map(|len| 1 + varint_len(len as u64) + len).sum()
    }

    fn write(&mut self, numbers: &[u32; N], out: &mut Writer) {
        self.spill();
        for (number, column) in numbers.iter().zip(&self.columns) {
            if !column.spilled.is_empty() {
                out.bytes_field(*number, &column.spilled);
            }
        }
    }

    fn clear(&mut self) {
        for column in &mut self.columns {
            column.spilled.clear();
            column.recent_len = 0;
        }
        self.room = EVENTS_PER_SPILL;
        self.last_timestamp = 0;
    }
}

/// Bytes of a column that are written without checking its capacity. A power of two.
const RECENT: usize = 2048;

/// The number of values of any size that fit into [`RECENT`] bytes.
const EVENTS_PER_SPILL: usize = RECENT / MAX_VARINT_LEN;

/// Bytes that may be written at any position, for a value of any length.
const SLACK: usize = MAX_VARINT_LEN;

/// Varints one behind the other: the contents of a packed field.
///
/// The newest ones lie in an array of fixed size, whose indices need no check. [`Columns`] moves them away before the
/// array is full.
#[derive(Debug)]
struct Column {
    recent: [u8; RECENT + SLACK],
    recent_len: usize,
    spilled: Vec<u8>,
}

impl Default for Column {
    fn default() -> Self {
        Self {
            recent: [0; RECENT + SLACK],
            recent_len: 0,
            spilled: Vec::new(),
        }
    }
}

impl Column {
    fn len(&self) -> usize {
        self.spilled.len() + self.recent_len
    }

    /// Where the next byte goes. The remainder changes nothing, but proves to the compiler what [`Columns::row`] ensures.
    #[inline(always)]
    fn position(&self) -> usize {
        debug_assert!(self.recent_len < RECENT);
        self.recent_len % RECENT
    }

    /// Appends a value that most often takes one byte.
    #[inline(always)]
    fn push_mostly_small(&mut self, value: u64) {
        if value < 0x80 {
            self.recent[self.position()] = value as u8;
            self.recent_len += 1;
        } else {
            self.push_any(value);
        }
    }

    /// Appends a value of 28 bits or less without a branch on its length: time differences and thread ids vary in
    /// length from one event to the next, and a mispredicted branch would cost more than the rest of the work.
    #[inline(always)]
    fn push(&mut self, value: u64) {
        if value >= MAX_SHORT_VARINT.into() {
            return self.push_any(value);
        }
        let (bytes, len) = short_varint(value as u32);
        let bytes = bytes.to_le_bytes();
        let at = self.position();
        self.recent[at..at + bytes.len()].copy_from_slice(&bytes);
        self.recent_len += len;
    }

    #[cold]
    #[inline(never)]
    fn push_any(&mut self, value: u64) {
        // There is always enough room: `SLACK` behind the last position.
        let at = self.position();
        if let Some(place) = self.recent[at..].first_chunk_mut() {
            self.recent_len += encode_varint(value, place).len();
        }
    }

    fn spill(&mut self) {
        self.spilled.extend_from_slice(&self.recent[..self.recent_len]);
        self.recent_len = 0;
    }
}

/// Gives every distinct thread name of a bundle an index.
///
/// An open-addressing table with the names' sixteen bytes from the kernel as keys. Some kernels leave bytes of an older,
/// longer name behind the NUL. Each such spelling of a name gets an entry, and all spellings share one index.
#[derive(Debug)]
struct NameTable {
    /// A power of two, at least twice as many as there are entries in use.
    slots: Vec<Slot>,
    used: usize,
    /// Slots of another generation count as empty: forgetting all names costs one increment.
    generation: u32,
    names: Vec<Name>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    bytes: [u8; NAME_LEN],
    generation: u32,
    index: u32,
}

/// A name with zeroes from its NUL on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name([u8; NAME_LEN]);

impl Name {
    fn of(bytes: [u8; NAME_LEN]) -> Self {
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        let mut name = [0; NAME_LEN];
        name[..len].copy_from_slice(&bytes[..len]);
        Self(name)
    }

    fn as_bytes(&self) -> &[u8] {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        &self.0[..len]
    }
}

impl Default for NameTable {
    fn default() -> Self {
        Self {
            slots: vec![Slot::default(); 256],
            used: 0,
            generation: 1,
            names: Vec::new(),
        }
    }
}

impl NameTable {
    #[inline(always)]
    fn intern(&mut self, bytes: [u8; NAME_LEN]) -> u32 {
        match self.slots.get(self.home(&bytes)) {
            Some(slot) if slot.bytes == bytes && slot.generation == self.generation => slot.index,
            _ => self.intern_away_from_home(bytes),
        }
    }

    /// Where the search for these bytes starts.
    #[inline(always)]
    fn home(&self, bytes: &[u8; NAME_LEN]) -> usize {
        // Names that differ in one digit are common: the folded product of the halves spreads them well. The odd
        // constants only keep a half of zeroes from wiping out the other.
        let all = u128::from_le_bytes(*bytes);
        let (low, high) = (
            all as u64 ^ 0x9e37_79b9_7f4a_7c15,
            (all >> 64) as u64 ^ 0xd6e8_feb8_6659_fd93,
        );
        let product = u128::from(low) * u128::from(high);
        (product as u64 ^ (product >> 64) as u64) as usize & (self.slots.len() - 1)
    }

    #[inline(never)]
    fn intern_away_from_home(&mut self, bytes: [u8; NAME_LEN]) -> u32 {
        if let Some(index) = self.find(&bytes) {
            return index;
        }
        let name = Name::of(bytes);
        let index = if name.0 == bytes {
            self.names.push(name);
            (self.names.len() - 1) as u32
        } else {
            self.intern_away_from_home(name.0)
        };
        self.insert(Slot {
            bytes,
            generation: self.generation,
            index,
        });
        index
    }

    fn find(&self, bytes: &[u8; NAME_LEN]) -> Option<u32> {
        let mut at = self.home(bytes);
        // The loop ends because at least half of the slots are empty.
        while self.slots[at].generation == self.generation {
            if self.slots[at].bytes == *bytes {
                return Some(self.slots[at].index);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Adds an entry for bytes that have none.
    fn insert(&mut self, entry: Slot) {
        if (self.used + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.used += 1;
        self.place(entry);
    }

    fn place(&mut self, entry: Slot) {
        let mut at = self.home(&entry.bytes);
        while self.slots[at].generation == self.generation {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = entry;
    }

    fn grow(&mut self) {
        let twice = vec![Slot::default(); self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, twice);
        let generation = self.generation;
        for slot in old.into_iter().filter(|slot| slot.generation == generation) {
            self.place(slot);
        }
    }

    fn clear(&mut self) {
        self.names.clear();
        self.used = 0;
        self.generation = self.generation.wrapping_add(1);
        if self.generation == 0 {
            // This happens once in four billion bundles. Otherwise slots of the first round would count as new.
            self.slots.fill(Slot::default());
            self.generation = 1;
        }
    }
}
