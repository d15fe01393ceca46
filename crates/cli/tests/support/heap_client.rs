//! A client of `heapprofd` that a test controls. It has the handshake of a real one, and the test writes its ring. Also the library that makes other
//! programs clients.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ferretto_heap_client::handshake::{Hello, Reason, Welcome};
use ferretto_heap_client::layout::{Kind, REGISTERS, header};
use ferretto_heap_client::ring::Ring;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};

use super::{PATIENCE, await_that};

/// The library that is preloaded into programs. Cargo builds it, because this package depends on its package for tests, and puts it beside the tests.
pub(crate) fn library() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .with_file_name("libferretto_heap.so")
}

/// The profiled process, which is the process of the test.
pub(crate) struct HeapClient {
    ring: Ring<'static>,
    /// The daemon's answer.
    pub(crate) welcome: Welcome,
}

impl HeapClient {
    /// Connects; `None` if the daemon does not profile this process.
    pub(crate) fn connect(socket: &Path, reason: Reason) -> Option<HeapClient> {
        let stream = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        connect(&stream, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        rustix::net::sockopt::set_socket_timeout(
            &stream,
            rustix::net::sockopt::Timeout::Recv,
            Some(PATIENCE),
        )
        .unwrap();
        let hello = Hello {
            reason,
            registers: REGISTERS as u32,
        };
        let hello = hello.encode();
        sendmsg(
            &stream,
            &[IoSlice::new(&hello)],
            &mut SendAncillaryBuffer::default(),
            SendFlags::NOSIGNAL,
        )
        .unwrap();
        let mut bytes = [0; Welcome::MOST_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &stream,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        // A connection that is closed before the daemon has read the hello is reset.
        let length = received.map_or(0, |received| received.bytes);
        if length == 0 {
            return None;
        }
        let welcome = Welcome::decode(&bytes[..length]).expect("it is a welcome");
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let ring = map(&file.expect("a descriptor comes with it"));
        assert!(ring.is_initialized());
        Some(HeapClient { ring, welcome })
    }

    /// The words in shared memory that are not records, by their position in [`header`].
    pub(crate) fn header(&self, place: usize) -> &AtomicU64 {
        self.ring.header(place)
    }

    fn write(&self, kind: Kind, words: &[u64]) {
        let space = self.ring.take(kind, words.len()).expect("there is space");
        for (index, word) in words.iter().enumerate() {
            space.write(index, *word);
        }
        space.complete();
    }

    /// Reports that a heap is sampled.
    pub(crate) fn heap(&self, number: u64, interval: u64, name: &str) {
        let mut bytes = [0; 64];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        let mut words = vec![number, interval];
        words.extend(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)));
        self.write(Kind::Heap, &words);
    }

    /// Reports a sampled allocation by the function at `pc`, which has no caller.
    pub(crate) fn allocate(&self, heap: u64, address: u64, bytes: u64, pc: usize) {
        let mut registers = [0; REGISTERS];
        let (stack_pointer, program_counter) = match cfg!(target_arch = "x86_64") {
            true => (7, 8),
            false => (31, 32),
        };
        registers[stack_pointer] = 0x7ffc_0000_0000;
        registers[program_counter] = pc as u64;
        let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let time = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        let stack = [0; 8];
        let mut words = vec![time, address, bytes, bytes, heap, 8 * stack.len() as u64];
        words.extend(registers);
        words.extend(stack);
        self.write(Kind::Allocation, &words);
    }

    /// Reports that a sampled allocation was freed.
    pub(crate) fn free(&self, heap: u64, address: u64) {
        self.write(Kind::Free, &[address, heap]);
    }

    /// Waits until the daemon has read everything.
    pub(crate) fn await_read(&self) {
        await_that("the ring is read", || self.ring.used_bytes() == 0);
    }

    /// Whether the daemon has said that it will read nothing more.
    pub(crate) fn has_ended(&self) -> bool {
        self.header(header::ENDED).load(Ordering::Acquire) != 0
    }
}

/// Maps the file for as long as the process lives.
fn map(file: &OwnedFd) -> Ring<'static> {
    let bytes = rustix::fs::fstat(file).unwrap().st_size as usize;
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this program.
    let base = unsafe {
        mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )
    };
    // SAFETY: the mapping has this size, is never unmapped, and the file is sealed against shrinking.
    let words = unsafe { std::slice::from_raw_parts(base.unwrap().cast::<AtomicU64>(), bytes / 8) };
    Ring::new(words).expect("it is a ring")
}
