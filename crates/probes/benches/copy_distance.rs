//! The cost of copying 4 KB, by the distance between destination and source within their pages: `bench/copy-distance`.
//!
//! Some processors copy slowly when the destination lies a few bytes further into its page than the source. This prints a line
//! for each distance, with the CPU time of a copy in ns, the least of many batches:
//!
//! - `file`: the kernel's `read` from a file in memory into a buffer, as from the kernel's ring buffers;
//! - `pipe`: the same from a pipe;
//! - `to file`, `socket`: the kernel's `write` from a buffer into a file in memory, and into a Unix socket;
//! - `memcpy`: from buffer to buffer;
//! - `bulk`: the same with `ferretto_wire::bulk`.
//!
//! For all but the last two one of both ends is the start of a page of the kernel's.

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use ferretto_wire::bulk::{self, PageAligned};
use rustix::fs::MemfdFlags;
use rustix::time::{ClockId, clock_gettime};

/// The number of bytes that a copy moves.
const PAGE: usize = 4096;
/// Copies between two looks at the clock; each has a page of its own, as the reader's batches have.
const PAGES: usize = 32;
/// Batches, of which the fastest counts.
const BATCHES: usize = 60;

/// Memory of which any part can be had at any place within a page.
struct Buffer(PageAligned);

impl Buffer {
    fn new() -> Buffer {
        let mut memory = PageAligned::new((PAGES + 1) * PAGE);
        memory.fill(1);
        Buffer(memory)
    }

    /// [`PAGES`] pages that start `offset` bytes into one.
    fn at(&mut self, offset: usize) -> &mut [u8] {
        &mut self.0[offset..][..PAGES * PAGE]
    }
}

fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The least CPU time of one copy, where `batch` makes [`PAGES`] of them after `prepare`.
fn least(mut prepare: impl FnMut(), mut batch: impl FnMut()) -> f64 {
    let times = (0..BATCHES).map(|_| {
        prepare();
        let before = cpu_nanos();
        batch();
        cpu_nanos() - before
    });
    times.min().unwrap_or_default() as f64 / PAGES as f64
}

fn file_of_pages() -> File {
    let file =
        File::from(rustix::fs::memfd_create("copy-distance", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all_at(&vec![2; PAGES * PAGE], 0)
        .expect("room for a few pages");
    file
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, PAGES * PAGE).expect("a pipe of many pages");
    (reader, writer)
}

fn main() {
    println!(
        "{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "distance", "file", "pipe", "to file", "socket", "memcpy", "bulk"
    );
    let file = file_of_pages();
    let (pipe_reader, pipe_writer) = pipe();
    let (mut socket, mut peer) = UnixStream::pair().expect("a pair of sockets");
    let (mut here, mut there) = (Buffer::new(), Buffer::new());
    let distances = (0..=128).step_by(8).chain([1, 63, 65, 127, 256, 1024, 2048]);
    let mut distances: Vec<usize> = distances.collect();
    distances.sort_unstable();
    for distance in distances {
        let from_file = least(
            || (),
            || {
                for (index, page) in here.at(distance).chunks_exact_mut(PAGE).enumerate() {
                    file.read_exact_at(page, (index * PAGE) as u64)
                        .expect("a page of the file");
                }
            },
        );
        let fill = vec![3; PAGES * PAGE];
        let from_pipe = least(
            || {
                rustix::io::write(&pipe_writer, &fill).expect("room in the pipe");
            },
            || {
                for page in here.at(distance).chunks_exact_mut(PAGE) {
                    assert_eq!(rustix::io::read(pipe_reader.as_fd(), page), Ok(PAGE));
                }
            },
        );
        // The page that is written to starts where a page does: the distance is the source's, backwards.
        let before = (PAGE - distance) % PAGE;
        let to_file = least(
            || (),
            || {
                for (index, page) in here.at(before).chunks_exact(PAGE).enumerate() {
                    file.write_all_at(page, (index * PAGE) as u64)
                        .expect("a page of the file");
                }
            },
        );
        let mut taken = vec![0; PAGES * PAGE];
        let mut is_first = true;
        let to_socket = least(
            || {
                if !std::mem::take(&mut is_first) {
                    peer.read_exact(&mut taken).expect("what was sent");
                }
            },
            || {
                for page in here.at(before).chunks_exact(PAGE) {
                    socket.write_all(page).expect("room in the socket");
                }
            },
        );
        peer.read_exact(&mut taken).expect("what was sent");
        let mut copy = |with: fn(&mut [u8], &[u8])| {
            least(
                || (),
                || {
                    let pages = here.at(0).chunks_exact(PAGE);
                    for (to, from) in there.at(distance).chunks_exact_mut(PAGE).zip(pages) {
                        with(black_box(to), black_box(from));
                    }
                },
            )
        };
        let memcpy = copy(|to, from| to.copy_from_slice(from));
        let bulk = copy(bulk::copy);
        println!(
            "{distance:>8}{from_file:>9.0}{from_pipe:>9.0}{to_file:>9.0}{to_socket:>9.0}{memcpy:>9.0}{bulk:>9.0}"
        );
    }
}
