//! Memory that can be attached to, and memory that is refused.

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
    // SAFETY: the descriptor is new, so this is its only owner.
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

/// The pages of 1 MiB whose beginnings count as touched.
fn touched(of: &SharedMemory) -> Vec<usize> {
    let touched = of.touched();
    let places = 0..of.size() / MIB;
    places
        .filter(|place| of.is_touched(&touched, place * MIB))
        .collect()
}

#[test]
fn untouched_pages_are_passed_over() {
    let ours = SharedMemory::create(8 * MIB).unwrap();
    assert_eq!(touched(&ours), [0; 0]);
    for place in [2, 7] {
        ours.word(place * MIB).store(1, Ordering::Relaxed);
    }
    // Where the kernel has huge pages for files in memory there may be more.
    let found = touched(&ours);
    assert!(found.contains(&2) && found.contains(&7), "{found:?}");
    let small = SharedMemory::create(MIB).unwrap();
    assert_eq!(small.touched(), Touched::All);
}

#[test]
fn memory_that_is_reserved_and_empty_is_read_to_find_out() {
    let ours = SharedMemory::create(8 * MIB).unwrap();
    // SAFETY: takes no pointers.
    let reserved = unsafe { libc::fallocate(ours.as_fd().as_raw_fd(), 0, 0, 4 * MIB as libc::off_t) };
    assert_eq!(reserved, 0);
    ours.word(5 * MIB).store(1, Ordering::Relaxed);
    assert_eq!(ours.touched(), Touched::Unknown);
    assert_eq!(touched(&ours), [5]);
}

/// A page that the kernel waits for whenever it reads it, until this is dropped.
struct Withheld {
    faults: OwnedFd,
    page: *mut libc::c_void,
}

impl Withheld {
    fn new() -> io::Result<Withheld> {
        #[repr(C)]
        struct Api([u64; 3]);
        #[repr(C)]
        struct Register {
            start: u64,
            len: u64,
            mode: u64,
            ioctls: u64,
        }
        const UFFD_API: u64 = 0xaa;
        const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
        const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
        const MISSING: u64 = 1;
        let checked = |result: libc::c_long| {
            if result < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(result)
            }
        };
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: the descriptor and the mapping are new and have no other owner, and the structures are as the kernel has them.
        unsafe {
            let faults = checked(libc::syscall(
                libc::SYS_userfaultfd,
                libc::O_CLOEXEC | libc::O_NONBLOCK,
            ))?;
            let faults = OwnedFd::from_raw_fd(faults as i32);
            let mut api = Api([UFFD_API, 0, 0]);
            checked(libc::ioctl(faults.as_raw_fd(), UFFDIO_API as _, &mut api).into())?;
            let page = libc::mmap(ptr::null_mut(), page_size(), access, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let mut register = Register {
                start: page as u64,
                len: page_size() as u64,
                mode: MISSING,
                ioctls: 0,
            };
            checked(libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER as _, &mut register).into())?;
            Ok(Withheld { faults, page })
        }
    }

    fn wait_until_it_is_wanted(&self) {
        let mut poll = libc::pollfd {
            fd: self.faults.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, as is said.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1);
    }
}

#[test]
fn a_write_to_the_memory_that_never_ends_does_not_hold_up_readers() {
    let withheld = match Withheld::new() {
        Ok(withheld) => withheld,
        Err(error) => return println!("skipped: this kernel lets nobody wait for a page here: {error}"),
    };
    let ours = SharedMemory::create(4 * MIB).unwrap();
    ours.word(2 * MIB).store(1, Ordering::Relaxed);
    let page = withheld.page as usize;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the page is mapped. The result does not matter.
            unsafe { libc::write(ours.as_fd().as_raw_fd(), page as *const _, page_size()) }
        });
        withheld.wait_until_it_is_wanted();
        scope.spawn(|| {
            let of = |touched: &Touched| [0, 2].map(|place| ours.is_touched(touched, place * MIB));
            let _ = tell.send([of(&ours.touched()), of(&Touched::Unknown)]);
        });
        let seen = told.recv_timeout(std::time::Duration::from_secs(60));
        drop(withheld);
        let seen = seen.expect("it waits for the writer");
        assert!(seen.iter().all(|places| places[1]), "{seen:?}");
    });
}
