//! A daemon for tests: it listens, grants a session, and reads the ring.

use std::collections::HashMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::{Duration, Instant};

use ferretto_heap_client::handshake::{Hello, Reason, Welcome};
use ferretto_heap_client::layout::{HEADER_WORDS, Kind, allocation, free, header, heap};
use ferretto_heap_client::ring::{Next, Reader, Ring};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Daemon {
    listener: OwnedFd,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn new() -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("heapprofd");
        let flags = SocketFlags::CLOEXEC;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let listener = listener.expect("a socket");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("a short path")).expect("a name");
        rustix::net::listen(&listener, 64).expect("a listener");
        Daemon {
            listener,
            path,
            _folder: folder,
        }
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The next connection and its first message.
    pub(crate) fn hello(&self) -> (OwnedFd, Hello) {
        loop {
            let connection = self.connection(PATIENCE).expect("a client connects");
            let mut bytes = [0; 64];
            let received = rustix::net::recv(&connection, &mut bytes[..], RecvFlags::empty());
            // A client without a message only looks whether anybody listens.
            let (count, _) = received.expect("a packet");
            if let Some(hello) = Hello::decode(&bytes[..count]) {
                return (connection, hello);
            }
            assert_eq!(count, 0, "nonsense");
        }
    }

    /// The next connection, if there is one in this time.
    pub(crate) fn connection(&self, within: Duration) -> Option<OwnedFd> {
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: within.as_secs() as i64,
            tv_nsec: within.subsec_nanos().into(),
        };
        let ready = poll(&mut fds, Some(&timeout)).expect("poll");
        (ready != 0)
            .then(|| rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC).expect("a connection"))
    }

    /// Grants the next client a session.
    pub(crate) fn accept(&self, welcome: &Welcome, ring_words: usize) -> Client {
        let (connection, hello) = self.hello();
        let client = self.prepare(&connection, hello, ring_words);
        client.welcome(&connection, welcome);
        client
    }

    /// Grants a client a session, if it asks for one.
    pub(crate) fn grant(&self, connection: OwnedFd, welcome: &Welcome, ring_words: usize) -> Option<Client> {
        let mut bytes = [0; 64];
        let (count, _) = rustix::net::recv(&connection, &mut bytes[..], RecvFlags::empty()).ok()?;
        let client = self.prepare(&connection, Hello::decode(&bytes[..count])?, ring_words);
        client.welcome(&connection, welcome);
        Some(client)
    }

    /// Makes a ring for a client that is not yet welcome.
    pub(crate) fn prepare(&self, connection: &OwnedFd, hello: Hello, ring_words: usize) -> Client {
        Client::new(connection, hello, ring_words)
    }
}

/// The contents of a record.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Allocation(Sample),
    Free { heap: u64, id: u64 },
    Heap { heap: u64, name: String, interval: u64 },
}

/// A sampled allocation.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) heap: u32,
    pub(crate) thread: u32,
    pub(crate) id: u64,
    pub(crate) size: u64,
    pub(crate) stands_for: u64,
    pub(crate) registers: Vec<u64>,
    pub(crate) stack: Vec<u64>,
    pub(crate) is_cut: bool,
}

pub(crate) struct Client {
    pub(crate) pid: u32,
    pub(crate) reason: Reason,
    memory: &'static [AtomicU64],
    file: OwnedFd,
    process: OwnedFd,
    reader: Reader,
}

impl Client {
    fn new(connection: &OwnedFd, hello: Hello, ring_words: usize) -> Client {
        let pid = rustix::net::sockopt::socket_peercred(connection)
            .expect("credentials")
            .pid;
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let words = HEADER_WORDS + ring_words;
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("ring", flags).expect("memory");
        rustix::fs::ftruncate(&file, words as u64 * 8).expect("memory");
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .expect("seals");
        // SAFETY: a new mapping of so many bytes, which stays, and which is accessed by atomics.
        let memory = unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            let memory = rustix::mm::mmap(std::ptr::null_mut(), words * 8, flags, MapFlags::SHARED, &file, 0);
            std::slice::from_raw_parts(memory.expect("a mapping").cast::<AtomicU64>(), words)
        };
        Ring::new(memory).expect("a possible size").initialize();
        Client {
            pid: pid.as_raw_nonzero().get().cast_unsigned(),
            reason: hello.reason,
            memory,
            file,
            process: process.expect("a process"),
            reader: Reader::new(),
        }
    }

    /// Grants the session.
    pub(crate) fn welcome(&self, connection: &OwnedFd, welcome: &Welcome) {
        let mut bytes = [0; Welcome::MOST_BYTES];
        let length = welcome.encode(&mut bytes);
        let fds = [self.file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let data = [IoSlice::new(&bytes[..length])];
        // A client that was killed meanwhile needs no answer.
        let _ = rustix::net::sendmsg(connection, &data, &mut control, SendFlags::NOSIGNAL);
    }

    pub(crate) fn ring(&self) -> Ring<'static> {
        Ring::new(self.memory).expect("a possible size")
    }

    pub(crate) fn header(&self, place: usize) -> u64 {
        self.ring().header(place).load(Acquire)
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        self.ring().header(header::ENDED).store(1, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        let space = self.ring().header(header::SPACE);
        space.fetch_add(1, SeqCst);
        // SAFETY: the kernel uses the address only.
        unsafe { libc::syscall(libc::SYS_futex, space.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// The next record, if there is one now.
    pub(crate) fn next(&mut self) -> Option<Record> {
        let mut payload = Vec::new();
        let next = self.reader.next(self.ring(), &mut payload);
        if self.header(header::WAITING) != 0 {
            self.wake();
        }
        match next {
            Next::Record(kind) => Some(record(kind, &payload)),
            Next::Empty | Next::Incomplete => None,
            Next::Corrupt => panic!("a client wrote nonsense"),
        }
    }

    pub(crate) fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            }),
        )
        .expect("poll")
            != 0
    }

    /// All records until one is accepted. Panics when the process ends before.
    pub(crate) fn until(&mut self, mut is_it: impl FnMut(&Record) -> bool) -> Vec<Record> {
        let mut records = Vec::new();
        let began = Instant::now();
        loop {
            while let Some(record) = self.next() {
                let found = is_it(&record);
                records.push(record);
                if found {
                    return records;
                }
            }
            assert!(!self.has_exited() && began.elapsed() < PATIENCE, "no such record");
        }
    }

    /// All records until the process is gone. Those whose writers were killed are passed over.
    pub(crate) fn until_exit(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        let mut progress = Instant::now();
        loop {
            let is_last = self.has_exited();
            loop {
                match self.next() {
                    Some(record) => {
                        records.push(record);
                        progress = Instant::now();
                    }
                    None if is_last && self.header(header::WRITE) != self.reader.position() => {
                        if !self.reader.skip_incomplete(self.ring()) {
                            return records;
                        }
                    }
                    None => break,
                }
            }
            if is_last {
                return records;
            }
            assert!(
                progress.elapsed() < PATIENCE,
                "the program does nothing and does not end"
            );
        }
    }

    /// The losses: samples, bytes, frees, and samples that were not tracked.
    pub(crate) fn lost(&self) -> [u64; 4] {
        [
            header::LOST_SAMPLES,
            header::LOST_BYTES,
            header::LOST_FREES,
            header::UNTRACKED,
        ]
        .map(|place| self.header(place))
    }
}

fn record(kind: Kind, payload: &[u64]) -> Record {
    match kind {
        Kind::Padding => unreachable!("the reader passes over it"),
        Kind::Free => Record::Free {
            heap: payload[free::HEAP],
            id: payload[free::ADDRESS],
        },
        Kind::Heap => {
            let bytes: Vec<u8> = payload[heap::NAME..heap::WORDS]
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .take_while(|byte| *byte != 0)
                .collect();
            Record::Heap {
                heap: payload[heap::HEAP],
                name: String::from_utf8(bytes).expect("a name"),
                interval: payload[heap::INTERVAL],
            }
        }
        Kind::Allocation => {
            let described = payload[allocation::STACK_BYTES];
            let words = (described as u32 / 8) as usize;
            Record::Allocation(Sample {
                heap: payload[allocation::HEAP_AND_THREAD] as u32,
                thread: (payload[allocation::HEAP_AND_THREAD] >> 32) as u32,
                id: payload[allocation::ADDRESS],
                size: payload[allocation::SIZE],
                stands_for: payload[allocation::SAMPLE_SIZE],
                registers: payload[allocation::REGISTERS..allocation::STACK].to_vec(),
                stack: payload[allocation::STACK..allocation::STACK + words].to_vec(),
                is_cut: described >> 32 != 0,
            })
        }
    }
}

/// Follows the records, and fails if one releases an allocation that is not alive. Returns the live allocations at the end.
pub(crate) fn alive(records: &[Record]) -> HashMap<(u64, u64), Sample> {
    let mut alive = HashMap::new();
    for record in records {
        match record {
            Record::Allocation(sample) => {
                let before = alive.insert((u64::from(sample.heap), sample.id), sample.clone());
                assert!(
                    before.is_none(),
                    "two owners of one address: {before:?} {sample:?}"
                );
            }
            Record::Free { heap, id } => {
                assert!(
                    alive.remove(&(*heap, *id)).is_some(),
                    "released, and was not alive: heap {heap}, {id:x}"
                );
            }
            Record::Heap { .. } => {}
        }
    }
    alive
}

/// The samples among the records.
pub(crate) fn samples(records: &[Record]) -> impl Iterator<Item = &Sample> {
    records.iter().filter_map(|record| match record {
        Record::Allocation(sample) => Some(sample),
        _ => None,
    })
}
