//! Records of the kernel's ring buffers.
//!
//! `Record::parse` takes one record as `Ring` hands it out, and survives any bytes. Which fields a sample has is decided by
//! the attributes of its event, so a `SampleLayout` comes with it. Source: `perf_event_open(2)`, "MMAP layout".

use perf_event_open_sys::bindings as sys;

/// The contents of an event's samples besides thread, time and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleLayout {
    /// Counts of several events (`PERF_FORMAT_GROUP`) instead of one.
    pub is_group: bool,
    /// The words beside each count.
    pub count: CountFormat,
    /// Addresses of callers.
    pub has_callchain: bool,
    /// Registers of user space, so many, and a copy of its stack.
    pub stack: Option<RegisterCount>,
}

/// The words that the kernel writes for each count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountFormat {
    /// The count.
    #[default]
    Plain,
    /// The count, then how many records of the event were lost so far (`PERF_FORMAT_LOST`, Linux 6.0).
    WithLosses,
    /// The count since the sample before (`PERF_SAMPLE_PERIOD`).
    SinceLast,
    /// None, because so much is counted between two samples.
    Fixed(u64),
}

impl CountFormat {
    fn words(self) -> usize {
        match self {
            CountFormat::Plain | CountFormat::SinceLast => 1,
            CountFormat::WithLosses => 2,
            CountFormat::Fixed(_) => 0,
        }
    }
}

/// Bits that are set in `perf_event_attr.sample_regs_user`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterCount(pub u32);

/// A record as far as profiles need it.
#[derive(Clone, Debug, PartialEq)]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// The ring was full: this many records are missing.
    Lost(u64),
    /// The processor had no room for this many samples, so they never reached the ring.
    LostSamples(u64),
    /// The kernel takes no samples for a while, because there were too many.
    Throttled {
        /// Since when, on the clock of samples.
        timestamp: u64,
    },
    /// The kernel takes samples again.
    Unthrottled {
        /// Since when, on the clock of samples.
        timestamp: u64,
    },
    /// A process runs another program now.
    Exec {
        /// The process.
        pid: i32,
        /// When, on the clock of samples.
        timestamp: u64,
    },
    /// A process has made another, which has the same memory at first.
    Fork {
        /// The new process.
        pid: i32,
        /// The one that made it.
        parent: i32,
        /// When, on the clock of samples.
        timestamp: u64,
    },
    /// A process has ended: its last thread, or so it seems.
    Exit {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// When, on the clock of samples.
        timestamp: u64,
    },
    /// A process has mapped a file so that it can execute it.
    Mapped(Mapped<'a>),
    /// One that does not matter here.
    Other,
}

/// A sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample<'a> {
    /// `PERF_RECORD_MISC_CPUMODE_MASK` of the record's header: kernel, user, and so on.
    pub cpu_mode: u16,
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// On the clock of the config, in nanoseconds.
    pub timestamp: u64,
    /// The count of the leader, then those of followers.
    pub counts: Counts<'a>,
    /// Addresses and marks, of callees before callers. Empty if the layout has none.
    pub callchain: Words<'a>,
    /// Registers of user space; `None` for threads of the kernel, and if the layout has none.
    pub registers: Option<UserRegisters<'a>>,
    /// The stack of user space from the stack pointer on.
    pub stack: &'a [u8],
    /// The copy may end before the stack does.
    pub is_stack_cut: bool,
}

/// Registers of user space when the sample was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRegisters<'a> {
    /// Whether the program has 64-bit registers.
    pub is_64_bit: bool,
    /// The registers that were asked for, by their number.
    pub values: Words<'a>,
}

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapped<'a> {
    /// The process.
    pub pid: i32,
    /// Its first address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// The file's inode.
    pub inode: u64,
    /// `PROT_EXEC` and so on.
    pub protection: u32,
    /// The file's path, or a name in brackets or like `//anon`.
    pub path: &'a [u8],
}

impl Mapped<'_> {
    /// Whether code in it can run.
    pub(crate) fn is_executable(&self) -> bool {
        self.protection & libc::PROT_EXEC.cast_unsigned() != 0
    }
}

/// Numbers of 64 bits in a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words<'a>(&'a [[u8; 8]]);

impl<'a> Words<'a> {
    /// The numbers.
    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + 'a {
        self.0.iter().map(|word| u64::from_ne_bytes(*word))
    }

    /// How many there are.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// Each with the bytes of the machine's order.
    pub(crate) fn as_chunks(self) -> &'a [[u8; 8]] {
        self.0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> From<&'a [[u8; 8]]> for Words<'a> {
    fn from(words: &'a [[u8; 8]]) -> Self {
        Words(words)
    }
}

/// The counts of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts<'a> {
    /// As the kernel writes them.
    pub words: Words<'a>,
    /// The format of the words.
    pub format: CountFormat,
    /// The count before that of the words.
    pub before: u64,
}

impl<'a> Counts<'a> {
    /// The counts alone.
    pub(crate) fn iter(self) -> impl Iterator<Item = u64> + 'a {
        let fixed = match self.format {
            CountFormat::Fixed(count) => Some(count),
            _ => None,
        };
        let words = self.words.iter().step_by(self.format.words().max(1));
        fixed
            .into_iter()
            .chain(words)
            .map(move |count| self.before.wrapping_add(count))
    }

    /// Continues from the counts that were `counted` before, and adds to them, if the kernel gives only the difference since.
    pub(crate) fn follow(&mut self, counted: &mut u64) {
        self.before = *counted;
        if let CountFormat::SinceLast | CountFormat::Fixed(_) = self.format {
            *counted = self.iter().next().unwrap_or(*counted);
        }
    }
}

/// The rest of a record.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*taken))
    }

    fn u64(&mut self) -> Option<u64> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*taken))
    }

    fn pid(&mut self) -> Option<i32> {
        self.u32().map(u32::cast_signed)
    }

    fn words(&mut self, count: u64) -> Option<Words<'a>> {
        let bytes = usize::try_from(count).ok()?.checked_mul(8)?;
        self.bytes(bytes).map(|bytes| Words(bytes.as_chunks().0))
    }
}

impl<'a> Record<'a> {
    /// Reads a record with its header; `None` if the kernel would not write such a one.
    pub(crate) fn parse(record: &'a [u8], layout: SampleLayout) -> Option<Record<'a>> {
        let mut rest = Rest(record);
        let kind = rest.u32()?;
        let misc_and_size = rest.bytes(4)?;
        let misc = u16::from_ne_bytes([misc_and_size[0], misc_and_size[1]]);
        Some(match kind {
            sys::PERF_RECORD_SAMPLE => Record::Sample(sample(&mut rest, misc, layout)?),
            sys::PERF_RECORD_LOST => {
                let _id = rest.u64()?;
                Record::Lost(rest.u64()?)
            }
            sys::PERF_RECORD_LOST_SAMPLES => Record::LostSamples(rest.u64()?),
            sys::PERF_RECORD_THROTTLE => Record::Throttled {
                timestamp: rest.u64()?,
            },
            sys::PERF_RECORD_UNTHROTTLE => Record::Unthrottled {
                timestamp: rest.u64()?,
            },
            sys::PERF_RECORD_COMM if u32::from(misc) & sys::PERF_RECORD_MISC_COMM_EXEC != 0 => Record::Exec {
                pid: rest.pid()?,
                timestamp: timestamp(record)?,
            },
            sys::PERF_RECORD_FORK => {
                let pid = rest.pid()?;
                Record::Fork {
                    pid,
                    parent: rest.pid()?,
                    timestamp: timestamp(record)?,
                }
            }
            sys::PERF_RECORD_EXIT => {
                let pid = rest.pid()?;
                let _parent = rest.pid()?;
                Record::Exit {
                    pid,
                    tid: rest.pid()?,
                    timestamp: timestamp(record)?,
                }
            }
            sys::PERF_RECORD_MMAP2 => Record::Mapped(mapped(&mut rest, misc)?),
            _ => Record::Other,
        })
    }
}

/// When a record that is no sample was written: `sample_id_all` puts thread and time at the end of each.
fn timestamp(record: &[u8]) -> Option<u64> {
    record.last_chunk().map(|word| u64::from_ne_bytes(*word))
}

fn sample<'a>(rest: &mut Rest<'a>, misc: u16, layout: SampleLayout) -> Option<Sample<'a>> {
    let (pid, tid) = (rest.pid()?, rest.pid()?);
    let timestamp = rest.u64()?;
    let count = match layout.is_group {
        true => rest.u64()?,
        false => 1,
    };
    let counts = Counts {
        words: rest.words(count.checked_mul(layout.count.words() as u64)?)?,
        format: layout.count,
        before: 0,
    };
    let mut callchain = Words::default();
    if layout.has_callchain {
        let length = rest.u64()?;
        callchain = rest.words(length)?;
    }
    let mut registers = None;
    let mut stack: &[u8] = &[];
    let mut is_stack_cut = false;
    if let Some(RegisterCount(count)) = layout.stack {
        let abi = rest.u64()?;
        if abi != u64::from(sys::PERF_SAMPLE_REGS_ABI_NONE) {
            registers = Some(UserRegisters {
                is_64_bit: abi == u64::from(sys::PERF_SAMPLE_REGS_ABI_64),
                values: rest.words(count.into())?,
            });
        }
        let room = usize::try_from(rest.u64()?).ok()?;
        if room > 0 {
            let copied = rest.bytes(room)?;
            let length = usize::try_from(rest.u64()?).ok()?;
            stack = copied.get(..length)?;
            // Even a copy that is shorter than its room: the kernel ends it at the first page that is not in memory, such as the
            // part of a large frame that was never written.
            is_stack_cut = true;
        }
    }
    Some(Sample {
        cpu_mode: misc & sys::PERF_RECORD_MISC_CPUMODE_MASK as u16,
        pid,
        tid,
        timestamp,
        counts,
        callchain,
        registers,
        stack,
        is_stack_cut,
    })
}

fn mapped<'a>(rest: &mut Rest<'a>, misc: u16) -> Option<Mapped<'a>> {
    let (pid, _tid) = (rest.pid()?, rest.pid()?);
    let (start, length, offset) = (rest.u64()?, rest.u64()?, rest.u64()?);
    if u32::from(misc) & sys::PERF_RECORD_MISC_MMAP_BUILD_ID != 0 {
        // Not asked for: it would stand in the place of device and inode.
        return None;
    }
    let device = (rest.u32()?, rest.u32()?);
    let inode = rest.u64()?;
    let _generation = rest.u64()?;
    let protection = rest.u32()?;
    let _flags = rest.u32()?;
    let path = rest.0.split(|&byte| byte == 0).next()?;
    Some(Mapped {
        pid,
        start,
        length,
        offset,
        device,
        inode,
        protection,
        path,
    })
}

#[cfg(test)]
mod tests;
