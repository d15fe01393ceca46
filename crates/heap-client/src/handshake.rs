//! The messages of a client and the daemon to each other, once, over a Unix socket of packets (`SOCK_SEQPACKET`).
//!
//! The client says [`Hello`]. The daemon answers with a [`Welcome`] and the descriptor of the ring, or closes the connection if the process is not to be
//! profiled. Then both close it: the client keeps no descriptor that its program could close, and the daemon learns of its end by a pidfd.
//!
//! Numbers are in the byte order of the machine. Both ends check the other's credentials (`SO_PEERCRED`).

/// Overrides where the daemon listens and clients look for it: a path, or `@name` in the abstract namespace.
pub const HEAP_SOCK_NAME: &str = "FERRETTO_HEAP_SOCK_NAME";

/// Where the daemon listens if `/run/perfetto` may be entered.
pub const RUN_SOCKET: &str = "/run/perfetto/heapprofd.sock";

/// Where the daemon listens otherwise.
pub const TMP_SOCKET: &str = "/tmp/perfetto-heapprofd";

/// The signal by which the daemon asks a running process to connect: `SIGURG`.
///
/// Its default action is to do nothing. So it does not end a process that has lost its handler since the daemon looked: a program that another one has
/// replaced (`exec`) has the default again, also for a signal that was pending then. Programs with a handler of their own have to expect this signal at
/// any time, because the kernel merges signals of this kind and anybody's socket may cause one. The signal of bionic's profilers, 36, ends a process by
/// default.
pub const SIGNAL: i32 = libc::SIGURG;

/// The name of the file that a process which handles [`SIGNAL`] has mapped; `/proc/PID/maps` shows it with `/memfd:` before it.
pub const MARK: &str = "ferretto_heap";

/// Bytes of a heap's name, with the zero at its end, as upstream's.
pub const HEAP_NAME_BYTES: usize = 64;

/// Heaps that a config may name, as upstream.
pub const MOST_NAMED_HEAPS: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"FHP\x01");

/// Why a client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// Its program has just begun.
    Startup = 1,
    /// The daemon has sent the signal.
    Signal = 2,
    /// It is the child of a process that is profiled.
    Fork = 3,
}

/// The client's first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Why it connects.
    pub reason: Reason,
    /// Registers that its samples have: [`layout::REGISTERS`](crate::layout::REGISTERS). A client of another architecture, under emulation, differs.
    pub registers: u32,
}

impl Hello {
    /// Bytes of the message.
    pub const BYTES: usize = 12;

    /// The message.
    pub fn encode(self) -> [u8; Hello::BYTES] {
        let mut bytes = [0; Hello::BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[4..8].copy_from_slice(&(self.reason as u32).to_ne_bytes());
        bytes[8..].copy_from_slice(&self.registers.to_ne_bytes());
        bytes
    }

    /// Decodes a message; `None` if it is none of this version.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let mut numbers = Numbers(bytes);
        if bytes.len() != Hello::BYTES || numbers.half()? != MAGIC {
            return None;
        }
        let reason = match numbers.half()? {
            1 => Reason::Startup,
            2 => Reason::Signal,
            3 => Reason::Fork,
            _ => return None,
        };
        Some(Hello {
            reason,
            registers: numbers.half()?,
        })
    }
}

/// How a heap is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapInterval {
    /// Its name, with zeroes at the end.
    pub name: [u8; HEAP_NAME_BYTES],
    /// Bytes between two samples on average. 0: not at all.
    pub bytes: u64,
}

/// The behaviour of a client when the ring is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It loses the sample, and counts it.
    Lose,
    /// It waits for space. After so many microseconds it gives up for good; never if that is 0.
    Wait {
        /// Microseconds.
        at_most_us: u32,
    },
}

/// The daemon's answer, which comes with the ring's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Bytes between two samples for heaps that have no interval of their own. 0: they are not sampled.
    pub other_heaps: u64,
    /// Bytes that the ring has free when the interval is doubled. 0: never.
    pub adaptive_threshold: u64,
    /// The interval is not doubled beyond this many bytes. 0: no bound.
    pub adaptive_most: u64,
    /// The behaviour when the ring is full.
    pub when_full: WhenFull,
    heaps: [HeapInterval; MOST_NAMED_HEAPS],
    count: usize,
}

impl Welcome {
    /// Bytes of the message at most.
    pub const MOST_BYTES: usize = 40 + MOST_NAMED_HEAPS * (HEAP_NAME_BYTES + 8);

    /// With this interval for heaps that have none of their own, and no heap yet that has.
    pub const fn new(other_heaps: u64, when_full: WhenFull) -> Welcome {
        Welcome {
            other_heaps,
            adaptive_threshold: 0,
            adaptive_most: 0,
            when_full,
            heaps: [HeapInterval {
                name: [0; HEAP_NAME_BYTES],
                bytes: 0,
            }; MOST_NAMED_HEAPS],
            count: 0,
        }
    }

    /// Gives a heap an interval of its own. `false` if its name is too long or there are too many.
    #[must_use]
    pub fn set_interval(&mut self, name: &[u8], bytes: u64) -> bool {
        if name.len() >= HEAP_NAME_BYTES || self.count == MOST_NAMED_HEAPS {
            return false;
        }
        let heap = &mut self.heaps[self.count];
        heap.name[..name.len()].copy_from_slice(name);
        heap.bytes = bytes;
        self.count += 1;
        true
    }

    /// Heaps with intervals of their own.
    pub fn heaps(&self) -> &[HeapInterval] {
        &self.heaps[..self.count]
    }

    /// Bytes between two samples of the heap with this name. 0: it is not sampled.
    pub fn interval_of(&self, name: &[u8]) -> u64 {
        self.own_interval_of(name).unwrap_or(self.other_heaps)
    }

    /// Bytes between two samples of the heap with this name, if it has an interval of its own. 0: it is not sampled.
    pub(crate) fn own_interval_of(&self, name: &[u8]) -> Option<u64> {
        let own = self.heaps().iter().find(|heap| {
            let length = heap
                .name
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(HEAP_NAME_BYTES);
            &heap.name[..length] == name
        });
        own.map(|heap| heap.bytes)
    }

    /// The shortest of all intervals. 0: nothing is sampled.
    pub(crate) fn least_interval(&self) -> u64 {
        let own = self.heaps().iter().map(|heap| heap.bytes);
        let all = own.chain([self.other_heaps]).filter(|bytes| *bytes != 0);
        all.min().unwrap_or(0)
    }

    /// Writes the message, and returns its length.
    pub fn encode(&self, into: &mut [u8; Welcome::MOST_BYTES]) -> usize {
        let (waits, at_most_us) = match self.when_full {
            WhenFull::Lose => (0, 0),
            WhenFull::Wait { at_most_us } => (1, at_most_us),
        };
        into[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        into[4..8].copy_from_slice(&(self.count as u32).to_ne_bytes());
        into[8..12].copy_from_slice(&u32::to_ne_bytes(waits));
        into[12..16].copy_from_slice(&at_most_us.to_ne_bytes());
        into[16..24].copy_from_slice(&self.other_heaps.to_ne_bytes());
        into[24..32].copy_from_slice(&self.adaptive_threshold.to_ne_bytes());
        into[32..40].copy_from_slice(&self.adaptive_most.to_ne_bytes());
        let mut end = 40;
        for heap in self.heaps() {
            into[end..end + HEAP_NAME_BYTES].copy_from_slice(&heap.name);
            end += HEAP_NAME_BYTES;
            into[end..end + 8].copy_from_slice(&heap.bytes.to_ne_bytes());
            end += 8;
        }
        end
    }

    /// Decodes a message; `None` if it is none of this version.
    pub fn decode(bytes: &[u8]) -> Option<Welcome> {
        let mut welcome = Welcome::new(0, WhenFull::Lose);
        welcome.decode_from(bytes).then_some(welcome)
    }

    /// Becomes what a message says; `false` if it is none of this version, and then the value is of no use. Takes little stack, which signal
    /// handlers have little of.
    #[must_use]
    pub(crate) fn decode_from(&mut self, bytes: &[u8]) -> bool {
        self.count = 0;
        self.read(bytes).is_some()
    }

    fn read(&mut self, bytes: &[u8]) -> Option<()> {
        let mut numbers = Numbers(bytes);
        if numbers.half()? != MAGIC {
            return None;
        }
        let count = usize::try_from(numbers.half()?)
            .ok()
            .filter(|count| *count <= MOST_NAMED_HEAPS)?;
        self.when_full = match (numbers.half()?, numbers.half()?) {
            (0, _) => WhenFull::Lose,
            (_, at_most_us) => WhenFull::Wait { at_most_us },
        };
        self.other_heaps = numbers.word()?;
        self.adaptive_threshold = numbers.word()?;
        self.adaptive_most = numbers.word()?;
        for heap in self.heaps.iter_mut().take(count) {
            heap.name = *numbers.take::<HEAP_NAME_BYTES>()?;
            heap.bytes = numbers.word()?;
        }
        self.count = count;
        numbers.0.is_empty().then_some(())
    }
}

/// The rest of a message.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn take<const BYTES: usize>(&mut self) -> Option<&[u8; BYTES]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(first)
    }

    fn half(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    fn word(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_ne_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests;
