//! What can be attached to and what is refused.

use super::*;

const MIB: usize = 1 << 20;

fn memfd(size: usize, seals: i32) -> OwnedFd {
    let file = create_memfd(c"test").unwrap();
    file.set_len(size as u64).unwrap();
    add_seals(&file, seals).unwrap();
    file.into()
}

#[test]
fn both_sides_see_the_same_memory() {
    let ours = SharedMemory::create(8192).unwrap();
    let fd = ours.as_fd().try_clone_to_owned().unwrap();
    let theirs = SharedMemory::attach(fd, Peer::Producer, MIB).unwrap();
    assert_eq!(theirs.size(), 8192);
    ours.copy_in(8000, b"seen");
    let mut seen = Vec::new();
    theirs.copy_out(8000, 4, &mut seen);
    assert_eq!(seen, b"seen");
    theirs.word(16).store(7, Ordering::Relaxed);
    assert_eq!(ours.word(16).load(Ordering::Relaxed), 7);
}

#[test]
fn our_memory_cannot_be_resized_or_unsealed() {
    let ours = SharedMemory::create(8192).unwrap();
    let file = File::from(ours.as_fd().try_clone_to_owned().unwrap());
    for refused in [
        file.set_len(4096),
        file.set_len(16384),
        add_seals(&ours, libc::F_SEAL_WRITE),
    ] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}

#[test]
fn sizes_that_are_no_buffers_are_refused() {
    for size in [0, 1, 4095, 4097] {
        assert!(
            matches!(SharedMemory::create(size), Err(SharedMemoryError::Size { .. })),
            "{size}"
        );
        let attached = SharedMemory::attach(memfd(size, SIZE_SEALS), Peer::Producer, MIB);
        assert!(matches!(attached, Err(SharedMemoryError::Size { .. })), "{size}");
    }
    let too_large = SharedMemory::attach(memfd(MIB + 4096, SIZE_SEALS), Peer::Producer, MIB);
    assert!(matches!(too_large, Err(SharedMemoryError::Size { size, .. }) if size == (MIB + 4096) as u64));
    assert!(SharedMemory::attach(memfd(MIB, SIZE_SEALS), Peer::Producer, MIB).is_ok());
}

#[test]
fn a_producers_memory_needs_every_seal() {
    for missing in [libc::F_SEAL_SHRINK, libc::F_SEAL_GROW, libc::F_SEAL_SEAL] {
        let fd = memfd(4096, SIZE_SEALS & !missing);
        let attached = SharedMemory::attach(fd, Peer::Producer, MIB);
        assert!(
            matches!(attached, Err(SharedMemoryError::NotSealed)),
            "without {missing:#x}"
        );
    }
    assert!(SharedMemory::attach(memfd(4096, 0), Peer::Service, MIB).is_ok());
}

#[test]
fn memory_that_cannot_be_written_is_refused() {
    let fd = memfd(4096, SIZE_SEALS | libc::F_SEAL_WRITE);
    let attached = SharedMemory::attach(fd, Peer::Producer, MIB);
    assert!(matches!(
        attached,
        Err(SharedMemoryError::System { doing: "map", .. })
    ));
}

#[test]
fn memory_of_huge_pages_is_refused() {
    const HUGE_PAGE: u64 = 2 << 20;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
    // SAFETY: the name is a string that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), flags) };
    if fd < 0 {
        println!(
            "skipped: this kernel has no huge pages: {}",
            io::Error::last_os_error()
        );
        return;
    }
    // SAFETY: a new descriptor, which nobody else knows.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(HUGE_PAGE).unwrap();
    add_seals(&file, SIZE_SEALS).unwrap();
    let attached = SharedMemory::attach(file, Peer::Producer, 8 * MIB);
    assert!(
        matches!(attached, Err(SharedMemoryError::HugePages)),
        "{attached:?}"
    );
}

#[test]
fn descriptors_that_are_no_files_are_refused() {
    let (pipe, _write) = std::io::pipe().unwrap();
    let pipe = OwnedFd::from(pipe);
    let from_producer = SharedMemory::attach(pipe.try_clone().unwrap(), Peer::Producer, MIB);
    assert!(matches!(from_producer, Err(SharedMemoryError::NotSealed)));
    let from_service = SharedMemory::attach(pipe, Peer::Service, MIB);
    assert!(matches!(
        from_service,
        Err(SharedMemoryError::NotAFile { kind: "pipe" })
    ));
}

#[test]
#[should_panic(expected = "outside the shared memory")]
fn positions_outside_are_caught() {
    SharedMemory::create(4096).unwrap().copy_in(4093, b"over");
}

#[test]
fn what_was_never_touched_is_passed_over() {
    let ours = SharedMemory::create(4 * MIB).unwrap();
    assert_eq!(ours.next_touched(0), None);
    ours.word(MIB).store(1, Ordering::Relaxed);
    ours.word(4 * MIB - 4).store(1, Ordering::Relaxed);
    let first = ours.next_touched(0).unwrap();
    assert!(first.start == MIB && first.end < 2 * MIB, "{first:?}");
    let last = ours.next_touched(first.end).unwrap();
    assert!(last.start > 2 * MIB && last.end == 4 * MIB, "{last:?}");
    // From amidst it, and past the end.
    let rest = ours.next_touched(last.start + 4).unwrap();
    assert_eq!(rest, last.start + 4..last.end);
    assert_eq!(ours.next_touched(4 * MIB), None);
}

#[test]
fn a_file_that_cannot_say_what_was_touched_counts_as_touched() {
    let (_, socket) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut ours = SharedMemory::create(8192).unwrap();
    ours.fd = socket.into();
    assert_eq!(ours.next_touched(4096), Some(4096..8192));
}
