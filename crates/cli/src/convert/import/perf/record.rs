//! The records that matter: samples, mappings, names, forks and losses.
//!
//! The layout of each is in `linux/perf_event.h`, under `enum perf_event_type`.

use super::bytes::Bytes;
use super::file::{Attr, Record};

/// Types of records.
const MMAP: u32 = 1;
const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;

/// Bits of `sample_type`.
const IP: u64 = 1 << 0;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDR: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const CALLCHAIN: u64 = 1 << 5;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const STREAM_ID: u64 = 1 << 9;
const STACK_USER: u64 = 1 << 13;
const IDENTIFIER: u64 = 1 << 16;

/// Bits of `read_format`.
const READ_ENABLED: u64 = 1;
const READ_RUNNING: u64 = 2;
const READ_ID: u64 = 4;
const READ_GROUP: u64 = 8;
const READ_LOST: u64 = 16;

/// Bits of a record's `misc`.
const CPU_MODE: u16 = 7;
const DATA_MAPPING: u16 = 1 << 13;
const EXEC: u16 = 1 << 13;
const HAS_BUILD_ID: u16 = 1 << 14;

/// Addresses from here on are marks in a call chain, which say who runs the frames after them.
const FIRST_MARK: u64 = -4095_i64 as u64;
const MARK_KERNEL: u64 = -128_i64 as u64;
const MARK_USER: u64 = -512_i64 as u64;

/// The kind of code that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    Unknown,
    Kernel,
    User,
    Hypervisor,
    GuestKernel,
    GuestUser,
}

impl Runner {
    fn of(misc: u16) -> Runner {
        match misc & CPU_MODE {
            1 => Runner::Kernel,
            2 => Runner::User,
            3 => Runner::Hypervisor,
            4 => Runner::GuestKernel,
            5 => Runner::GuestUser,
            _ => Runner::Unknown,
        }
    }

    pub(super) fn is_kernel(self) -> bool {
        matches!(self, Runner::Kernel | Runner::GuestKernel)
    }
}

/// An address of a call chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) runner: Runner,
    pub(super) address: u64,
}

/// A sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    /// The place of its event.
    pub(super) attr: usize,
    pub(super) runner: Runner,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) cpu: Option<u32>,
    pub(super) period: Option<u64>,
    /// Innermost first.
    pub(super) chain: Vec<Address>,
    /// Whether the record has a copy of the stack instead of the frames of the program.
    pub(super) has_stack_copy: bool,
}

/// A file that was mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mmap {
    pub(super) is_kernel: bool,
    pub(super) pid: u32,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) offset: u64,
    pub(super) path: Vec<u8>,
    pub(super) build_id: Option<Vec<u8>>,
}

/// A record as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Sample(Sample),
    Mmap(Mmap),
    Comm {
        pid: u32,
        tid: u32,
        name: Vec<u8>,
        is_exec: bool,
    },
    /// A process began as a copy of another, or a thread in its process.
    Fork {
        pid: u32,
        parent: u32,
        tid: u32,
        parent_tid: u32,
    },
    Lost(u64),
}

/// Returns what a record says and when; `None` if it does not matter. Records that `perf` made itself have the time 0.
///
/// # Errors
/// If the record is too short for its contents.
pub(super) fn parse(record: &Record<'_>, attrs: &[Attr]) -> Result<Option<(u64, Entry)>, ()> {
    let Some(first) = attrs.first() else {
        return Ok(None);
    };
    if record.kind == SAMPLE {
        return sample(record, attrs).map(Some).ok_or(());
    }
    let mut body = record.body;
    let entry = match record.kind {
        MMAP | MMAP2 => mmap(record, body),
        COMM => comm(record, body),
        FORK => fork(body),
        LOST => body.u64().and_then(|_| body.u64()).map(Entry::Lost),
        LOST_SAMPLES => body.u64().map(Entry::Lost),
        _ => return Ok(None),
    };
    let time = time_of(record, first).unwrap_or(0);
    entry.map(|entry| Some((time, entry))).ok_or(())
}

/// Returns the time at the end of a record that is no sample.
fn time_of(record: &Record<'_>, attr: &Attr) -> Option<u64> {
    if !attr.has_sample_id || attr.sample_type & TIME == 0 {
        return None;
    }
    let after = [ID, STREAM_ID, CPU, IDENTIFIER]
        .iter()
        .filter(|bit| attr.sample_type & **bit != 0)
        .count();
    let start = record.body.rest.len().checked_sub(8 * (after + 1))?;
    Bytes::new(&record.body.rest[start..], record.body.order).u64()
}

/// Returns the event of a sample, which its id says if there are several.
fn attr_of(record: &Record<'_>, attrs: &[Attr]) -> Option<usize> {
    let first = attrs.first()?;
    if attrs.len() == 1 {
        return Some(0);
    }
    let before = match first.sample_type {
        bits if bits & IDENTIFIER != 0 => 0,
        bits if bits & ID != 0 => [IP, TID, TIME, ADDR]
            .iter()
            .filter(|bit| bits & **bit != 0)
            .count(),
        _ => return Some(0),
    };
    let mut body = record.body;
    body.take(8 * before)?;
    let id = body.u64()?;
    Some(attrs.iter().position(|attr| attr.ids.contains(&id)).unwrap_or(0))
}

fn sample(record: &Record<'_>, attrs: &[Attr]) -> Option<(u64, Entry)> {
    let place = attr_of(record, attrs)?;
    let attr = attrs.get(place)?;
    let has = |bit| attr.sample_type & bit != 0;
    let mut body = record.body;
    if has(IDENTIFIER) {
        body.u64()?;
    }
    let ip = if has(IP) { Some(body.u64()?) } else { None };
    let (pid, tid) = if has(TID) {
        (body.u32()?, body.u32()?)
    } else {
        (0, 0)
    };
    let time = if has(TIME) { body.u64()? } else { 0 };
    for bit in [ADDR, ID, STREAM_ID] {
        if has(bit) {
            body.u64()?;
        }
    }
    let cpu = if has(CPU) { Some(body.u64()?) } else { None };
    let cpu = cpu.map(|pair| match body.order {
        super::bytes::Order::Little => pair as u32,
        super::bytes::Order::Big => (pair >> 32) as u32,
    });
    let period = if has(PERIOD) { Some(body.u64()?) } else { None };
    if has(READ) {
        skip_counters(&mut body, attr.read_format)?;
    }
    let runner = Runner::of(record.misc);
    let mut chain = Vec::new();
    if has(CALLCHAIN) {
        let count = body.u64()?;
        let encoded = body.take(usize::try_from(count).ok()?.checked_mul(8)?)?;
        chain = addresses(Bytes::new(encoded, body.order), runner);
    }
    if chain.is_empty() {
        chain.extend(ip.map(|address| Address { runner, address }));
    }
    let sample = Sample {
        attr: place,
        runner,
        pid,
        tid,
        cpu,
        period,
        chain,
        has_stack_copy: has(STACK_USER),
    };
    Some((time, Entry::Sample(sample)))
}

/// Skips the values of counters.
fn skip_counters(body: &mut Bytes<'_>, format: u64) -> Option<()> {
    let has = |bit| u64::from(format & bit != 0);
    let times = has(READ_ENABLED) + has(READ_RUNNING);
    let each = 1 + has(READ_ID) + has(READ_LOST);
    let count = if has(READ_GROUP) == 1 { body.u64()? } else { 1 };
    let words = count.checked_mul(each)?.checked_add(times)?;
    body.take(usize::try_from(words.checked_mul(8)?).ok()?)?;
    Some(())
}

/// Returns the frames of a call chain, without its marks.
fn addresses(mut bytes: Bytes<'_>, mut runner: Runner) -> Vec<Address> {
    let mut chain = Vec::new();
    while let Some(address) = bytes.u64() {
        match address {
            MARK_KERNEL => runner = Runner::Kernel,
            MARK_USER => runner = Runner::User,
            FIRST_MARK.. => {}
            _ => chain.push(Address { runner, address }),
        }
    }
    chain
}

/// A mapping, with the rest of the file's identity in the newer of its two forms.
fn mmap(record: &Record<'_>, mut body: Bytes<'_>) -> Option<Entry> {
    let (pid, _tid) = (body.u32()?, body.u32()?);
    let (address, length, offset) = (body.u64()?, body.u64()?, body.u64()?);
    let build_id = match record.kind {
        MMAP2 => identity(record, &mut body)?,
        _ => None,
    };
    let has_code = record.misc & DATA_MAPPING == 0;
    Some(Entry::Mmap(Mmap {
        is_kernel: Runner::of(record.misc).is_kernel(),
        pid,
        address,
        // Data have no frames.
        length: if has_code { length } else { 0 },
        offset,
        path: body.text().to_vec(),
        build_id,
    }))
}

/// Reads the identity of a mapped file, with protection and flags. Returns its build id, if the identity is one: it may be the file's device and inode.
fn identity(record: &Record<'_>, body: &mut Bytes<'_>) -> Option<Option<Vec<u8>>> {
    const BUILD_ID_ROOM: usize = 20;
    let file = body.take(4 + BUILD_ID_ROOM)?;
    let (_protection, _flags) = (body.u32()?, body.u32()?);
    let has_build_id = record.misc & HAS_BUILD_ID != 0;
    Some(has_build_id.then(|| {
        let size = usize::from(file[0]).min(BUILD_ID_ROOM);
        file[4..4 + size].to_vec()
    }))
}

fn comm(record: &Record<'_>, mut body: Bytes<'_>) -> Option<Entry> {
    let (pid, tid) = (body.u32()?, body.u32()?);
    Some(Entry::Comm {
        pid,
        tid,
        name: body.text().to_vec(),
        is_exec: record.misc & EXEC != 0,
    })
}

fn fork(mut body: Bytes<'_>) -> Option<Entry> {
    let (pid, parent) = (body.u32()?, body.u32()?);
    let (tid, parent_tid) = (body.u32()?, body.u32()?);
    Some(Entry::Fork {
        pid,
        parent,
        tid,
        parent_tid,
    })
}
