//! What can be attached to and what is refused.

use super::*;

const MIB: usize = 1 << 20;

fn memfd(size: usize, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size as u64).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
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
    assert_eq!(rustix::fs::ftruncate(&ours, 4096), Err(rustix::io::Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&ours, 16384), Err(rustix::io::Errno::PERM));
    assert_eq!(
        rustix::fs::fcntl_add_seals(&ours, SealFlags::WRITE),
        Err(rustix::io::Errno::PERM)
    );
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
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let fd = memfd(4096, SIZE_SEALS.difference(missing));
        let attached = SharedMemory::attach(fd, Peer::Producer, MIB);
        assert!(
            matches!(attached, Err(SharedMemoryError::NotSealed)),
            "without {missing:?}"
        );
    }
    assert!(SharedMemory::attach(memfd(4096, SealFlags::empty()), Peer::Service, MIB).is_ok());
}

#[test]
fn memory_that_cannot_be_written_is_refused() {
    let fd = memfd(4096, SIZE_SEALS.union(SealFlags::WRITE));
    let attached = SharedMemory::attach(fd, Peer::Producer, MIB);
    assert!(matches!(
        attached,
        Err(SharedMemoryError::System { doing: "map", .. })
    ));
}

#[test]
fn descriptors_that_are_no_files_are_refused() {
    let (pipe, _write) = rustix::pipe::pipe().unwrap();
    let from_producer = SharedMemory::attach(pipe.try_clone().unwrap(), Peer::Producer, MIB);
    assert!(matches!(from_producer, Err(SharedMemoryError::NotSealed)));
    let from_service = SharedMemory::attach(pipe, Peer::Service, MIB);
    assert!(matches!(
        from_service,
        Err(SharedMemoryError::NotAFile { kind: FileType::Fifo })
    ));
}

#[test]
#[should_panic(expected = "outside the shared memory")]
fn positions_outside_are_caught() {
    SharedMemory::create(4096).unwrap().copy_in(4093, b"over");
}
