//! The system calls of a client. All but `stack_bounds` and `keep_loaded` are safe in signal handlers, allocate nothing and are no cancellation points.
//!
//! The other modules of the client call these. The `unsafe` functions say what the caller must guarantee.
#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use libc::{c_int, c_long, c_void};

/// Runs `work` and leaves `errno` as it was: programs look at it after `free`, and after a `malloc` that succeeded.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the address of this thread's errno is valid while the thread lives.
    let place = unsafe { errno_place() };
    // SAFETY: as above; nobody else writes it but this thread.
    let before = unsafe { place.read() };
    let result = work();
    // SAFETY: as above.
    unsafe { place.write(before) };
    result
}

/// Sets `errno`.
pub fn set_errno(number: c_int) {
    // SAFETY: the address of this thread's errno is valid while the thread lives.
    unsafe { errno_place().write(number) };
}

fn errno() -> c_int {
    // SAFETY: the address of this thread's errno is valid while the thread lives.
    unsafe { errno_place().read() }
}

unsafe fn errno_place() -> *mut c_int {
    // SAFETY: has no preconditions.
    unsafe { libc::__errno_location() }
}

/// A file descriptor that is closed when it is dropped.
pub(crate) struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: closes a descriptor of our own. The bare call is no cancellation point.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

fn opened(result: c_long) -> Option<Descriptor> {
    c_int::try_from(result).ok().filter(|fd| *fd >= 0).map(Descriptor)
}

/// Repeats a call while signals interrupt it, but not for ever.
fn uninterrupted(mut call: impl FnMut() -> c_long) -> c_long {
    for _ in 0..16 {
        let result = call();
        if result != -1 || errno() != libc::EINTR {
            return result;
        }
    }
    -1
}

/// The name of a Unix socket.
#[derive(Clone, Copy)]
pub(crate) struct SocketName {
    address: libc::sockaddr_un,
    length: libc::socklen_t,
}

impl SocketName {
    /// A path, or `@name` in the abstract namespace. `None` if it is empty, too long, or has a zero in it.
    pub(crate) const fn new(name: &[u8]) -> Option<SocketName> {
        let mut path = [0; 108];
        if name.is_empty() || name.len() >= path.len() {
            return None;
        }
        let mut index = 0;
        while index < name.len() {
            if name[index] == 0 {
                return None;
            }
            path[index] = name[index] as libc::c_char;
            index += 1;
        }
        let is_abstract = name[0] == b'@';
        if is_abstract {
            path[0] = 0;
        }
        // A path has its zero counted, an abstract name has none.
        let length = size_of::<libc::sa_family_t>() + name.len() + if is_abstract { 0 } else { 1 };
        Some(SocketName {
            address: libc::sockaddr_un {
                sun_family: libc::AF_UNIX as libc::sa_family_t,
                sun_path: path,
            },
            length: length as libc::socklen_t,
        })
    }
}

/// The other end of a connection, as the kernel knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// 0 if it is in another pid namespace.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// Connects to a socket of packets. All later calls on it, and the connecting, wait for at most so many milliseconds.
pub(crate) fn connect(name: &SocketName, milliseconds: u32) -> Option<Descriptor> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: takes numbers only.
    let socket = opened(unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) })?;
    let wait = libc::timeval {
        tv_sec: (milliseconds / 1000).into(),
        tv_usec: (milliseconds % 1000 * 1000).into(),
    };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        // SAFETY: the option's value is a timeval of this size.
        let set = unsafe {
            libc::syscall(
                libc::SYS_setsockopt,
                socket.0,
                libc::SOL_SOCKET,
                option,
                &raw const wait,
                size_of::<libc::timeval>(),
            )
        };
        if set != 0 {
            return None;
        }
    }
    // SAFETY: the address is valid for this length.
    let connected = uninterrupted(|| unsafe {
        libc::syscall(libc::SYS_connect, socket.0, &raw const name.address, name.length)
    });
    (connected == 0).then_some(socket)
}

/// Whether anybody listens at a socket of packets. Does not wait: a listener that is too busy to take a connection is one.
pub(crate) fn is_listening(name: &SocketName) -> bool {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let Some(socket) = opened(unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) }) else {
        // No descriptor left: nothing can be said.
        return true;
    };
    // SAFETY: the address is valid for this length.
    let connected =
        unsafe { libc::syscall(libc::SYS_connect, socket.0, &raw const name.address, name.length) };
    connected == 0 || !matches!(errno(), libc::ECONNREFUSED | libc::ENOENT)
}

/// The identity of the listener at the other end.
pub(crate) fn peer(socket: &Descriptor) -> Option<Peer> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            socket.0,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &raw mut peer,
            &raw mut length,
        )
    };
    (result == 0 && length as usize == size_of::<libc::ucred>()).then_some(Peer {
        pid: peer.pid,
        uid: peer.uid,
    })
}

/// Sends one packet. `false` if it was not sent whole.
pub(crate) fn send(socket: &Descriptor, packet: &[u8]) -> bool {
    // SAFETY: the packet is valid for its length.
    let sent = uninterrupted(|| unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.0,
            packet.as_ptr(),
            packet.len(),
            libc::MSG_NOSIGNAL,
            ptr::null::<c_void>(),
            0_usize,
        )
    });
    usize::try_from(sent) == Ok(packet.len())
}

/// Room for one descriptor in a message.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Receives one packet with one descriptor. `None` if there is none, no descriptor came, or either was cut off.
pub(crate) fn receive(socket: &Descriptor, packet: &mut [u8]) -> Option<(usize, Descriptor)> {
    let mut data = libc::iovec {
        iov_base: packet.as_mut_ptr().cast(),
        iov_len: packet.len(),
    };
    let mut control = Control([0; 24]);
    // SAFETY: a message header of zeroes is a valid one.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the header's pointers are valid for their lengths, and not used by others meanwhile.
    let received = uninterrupted(|| unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            socket.0,
            &raw mut message,
            libc::MSG_CMSG_CLOEXEC,
        )
    });
    let received = usize::try_from(received).ok()?;
    // A header (length, level, type) and the descriptor: what the kernel writes if it passes exactly one.
    let number =
        |at: usize| -> Option<c_int> { Some(c_int::from_ne_bytes(*control.0.get(at..)?.first_chunk()?)) };
    if message.msg_controllen as usize >= 20
        && number(8) == Some(libc::SOL_SOCKET)
        && number(12) == Some(libc::SCM_RIGHTS)
        && number(0) == Some(20)
    {
        let descriptor = Descriptor(number(16)?);
        let is_whole = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
        return (is_whole && received > 0).then_some((received, descriptor));
    }
    None
}

/// Bytes of a file that can never be made shorter; `None` if it can, because it would then kill those that have mapped it.
pub(crate) fn sealed_size(file: &Descriptor) -> Option<usize> {
    // SAFETY: takes numbers only.
    let seals = unsafe { libc::syscall(libc::SYS_fcntl, file.0, libc::F_GET_SEALS) };
    if seals < 0 || seals & c_long::from(libc::F_SEAL_SHRINK) == 0 {
        return None;
    }
    // SAFETY: takes numbers only.
    let size = unsafe { libc::syscall(libc::SYS_lseek, file.0, 0, libc::SEEK_END) };
    usize::try_from(size).ok()
}

/// Maps a file of the daemon, to be written by both. The mapping stays until [`unmap`].
pub(crate) fn map_shared(file: &Descriptor, words: usize) -> Option<*mut AtomicU64> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            words.checked_mul(8)?,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.0,
            0,
        )
    };
    (address != libc::MAP_FAILED).then_some(address.cast())
}

/// Unmaps what [`map_shared`] has mapped.
///
/// # Safety
///
/// Nothing refers to the memory, nor will.
pub(crate) unsafe fn unmap(memory: *mut AtomicU64, words: usize) {
    // SAFETY: the caller says so.
    unsafe { libc::munmap(memory.cast(), words * 8) };
}

/// The memory that a child has in place of its parent's private mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InChildren {
    Zeroes,
    /// The kernel, before Linux 4.14, cannot do better.
    Copy,
}

/// Maps zeroes for this process alone, which its children do not get where the kernel can do that. The mapping stays for good.
pub(crate) fn map_private(bytes: usize) -> Option<(*mut u8, InChildren)> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is ours and has only zeroes.
    let in_children = match unsafe { libc::madvise(address, bytes, libc::MADV_WIPEONFORK) } {
        0 => InChildren::Zeroes,
        _ => InChildren::Copy,
    };
    Some((address.cast(), in_children))
}

/// Makes zeroes of a private mapping again, and gives its memory back unless the program has locked it (`mlockall`).
///
/// # Safety
///
/// `memory` is a mapping of [`map_private`] of at least so many bytes, a multiple of eight, and is accessed by atomics only.
pub(crate) unsafe fn wipe(memory: *mut u8, bytes: usize) {
    // SAFETY: the caller says so. Accesses at the same time find the old bytes or zeroes.
    if unsafe { libc::madvise(memory.cast(), bytes, libc::MADV_DONTNEED) } == 0 {
        return;
    }
    // The kernel takes no locked memory back.
    for place in (0..bytes).step_by(8) {
        // SAFETY: a word of the mapping, which begins at a page.
        let word = unsafe { &*memory.wrapping_add(place).cast::<AtomicU64>() };
        word.store(0, Relaxed);
    }
}

/// Maps an empty file with this name, so that `/proc/PID/maps` shows it. Nobody reads the memory.
pub(crate) fn map_mark(name: &core::ffi::CStr) {
    // SAFETY: the name ends with a zero.
    let file = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    if let Some(file) = opened(file) {
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { libc::mmap(ptr::null_mut(), 1, libc::PROT_READ, libc::MAP_SHARED, file.0, 0) };
    }
}

/// The lower half of a word that is shared with the daemon, as a futex.
fn futex(word: &AtomicU64) -> *mut u32 {
    let half = if cfg!(target_endian = "big") { 1 } else { 0 };
    word.as_ptr().cast::<u32>().wrapping_add(half)
}

/// Waits until the word is woken, if its lower half still has this value, for at most so many microseconds.
pub(crate) fn wait(word: &AtomicU64, value: u64, microseconds: u64) {
    let time = libc::timespec {
        tv_sec: (microseconds / 1_000_000) as _,
        tv_nsec: (microseconds % 1_000_000 * 1000) as c_long,
    };
    // SAFETY: the kernel reads four bytes of the word, and the time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            futex(word),
            libc::FUTEX_WAIT,
            value as u32,
            &raw const time,
        )
    };
}

/// Waits until a word of this process is woken, if its lower half still has this value.
pub(crate) fn wait_private(word: &AtomicU64, value: u64) {
    // SAFETY: the kernel reads four bytes of the word.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            futex(word),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value as u32,
            ptr::null::<libc::timespec>(),
        )
    };
}

/// Wakes all that wait for a word of this process.
pub(crate) fn wake_private(word: &AtomicU64) {
    // SAFETY: the kernel uses the address only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            futex(word),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            c_int::MAX,
        )
    };
}

/// The clock in nanoseconds; 0 if there is none.
pub(crate) fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes the time.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// The process, as the kernel says now.
pub(crate) fn process() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}

/// The thread, as the kernel says now.
pub(crate) fn thread() -> u32 {
    // SAFETY: takes nothing.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// The user on whose behalf the process acts.
pub(crate) fn user() -> u32 {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() }
}

/// Whether a process is there. `true` if that cannot be told.
pub(crate) fn is_alive(process: i32) -> bool {
    // SAFETY: sends no signal.
    process <= 0 || unsafe { libc::syscall(libc::SYS_kill, process, 0) } == 0 || errno() != libc::ESRCH
}

/// Whether a folder may be entered.
pub(crate) fn may_enter(folder: &core::ffi::CStr) -> bool {
    // SAFETY: the path ends with a zero.
    unsafe { libc::access(folder.as_ptr(), libc::X_OK) == 0 }
}

/// Whether the process was started with more rights than its user has.
pub(crate) fn has_borrowed_rights() -> bool {
    // SAFETY: takes a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Where the environment is: on the first thread's stack, above all frames, unless the program has moved it.
pub(crate) fn environment() -> u64 {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    // SAFETY: libc's variable, of which only the value is read.
    unsafe { (&raw const environ).read() as u64 }
}

/// Keeps the object loaded that this function is in, even if the program closes it (`dlclose`). Not in signal handlers. It may allocate.
#[cfg(not(target_feature = "crt-static"))]
pub(crate) fn keep_loaded(function: *const c_void) {
    // SAFETY: takes a number.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void;
    let Some(object) = object_of(function) else { return };
    if object_of(program).is_some_and(|program| program.dli_fbase == object.dli_fbase) {
        return;
    }
    // SAFETY: the name ends with a zero, and is the loader's. Nothing is loaded by this, so no code of the object runs.
    unsafe {
        libc::dlopen(
            object.dli_fname,
            libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
        )
    };
}

/// A static program has one object, which stays.
#[cfg(target_feature = "crt-static")]
pub(crate) fn keep_loaded(_function: *const c_void) {}

/// The object that is loaded at this address; `None` if it has no name.
#[cfg(not(target_feature = "crt-static"))]
fn object_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: a struct of zeroes is valid.
    let mut object: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: the address is looked up, and nothing there is read.
    let found = unsafe { libc::dladdr(address, &raw mut object) } != 0;
    (found && !object.dli_fname.is_null()).then_some(object)
}

/// Sixteen bytes that the kernel chose at random for this process, as two numbers.
pub(crate) fn random_of_process() -> [u64; 2] {
    // SAFETY: takes a number.
    let bytes = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const [u64; 2];
    if bytes.is_null() {
        return [0; 2];
    }
    // SAFETY: the kernel has put sixteen bytes there, for the life of the process.
    unsafe { bytes.read_unaligned() }
}

/// The lowest and the highest address of this thread's stack. Not in signal handlers. It may allocate.
pub(crate) fn stack_bounds() -> Option<(u64, u64)> {
    let mut attributes = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the thread is this one, and the attributes are written if the result is 0.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut low, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are initialized.
    let result = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut bytes) };
    // SAFETY: the attributes are initialized, and not used after this.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    let low = low as u64;
    (result == 0).then(|| (low, low.saturating_add(bytes as u64)))
}

/// Copies a part of this process's memory that may not be there, page by page. Returns how many bytes were there.
///
/// # Safety
///
/// `to` is valid for writing `bytes` bytes, which nobody else accesses meanwhile but by atomics.
pub(crate) unsafe fn copy_if_there(from: u64, to: *mut u8, bytes: usize) -> usize {
    const PIECES: usize = 17;
    let mut pieces = [libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }; PIECES];
    let (mut at, mut left, mut count) = (from, bytes as u64, 0_usize);
    for piece in &mut pieces {
        let length = left.min(PAGE - at % PAGE);
        if length == 0 {
            break;
        }
        piece.iov_base = at as *mut c_void;
        piece.iov_len = length as usize;
        at = at.wrapping_add(length);
        left -= length;
        count += 1;
    }
    let into = libc::iovec {
        iov_base: to.cast(),
        iov_len: bytes,
    };
    // SAFETY: the kernel checks the source, and the caller answers for the destination.
    let read = unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            process(),
            &raw const into,
            1_usize,
            pieces.as_ptr(),
            count,
            0_usize,
        )
    };
    if read == -1 && matches!(errno(), libc::ENOSYS | libc::EPERM) {
        // SAFETY: as the caller says.
        return unsafe { copy_by_file(from, to, bytes) };
    }
    usize::try_from(read).unwrap_or(0)
}

/// As [`copy_if_there`], where the kernel or a sandbox has no such call.
unsafe fn copy_by_file(from: u64, to: *mut u8, bytes: usize) -> usize {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero.
    let memory = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/proc/self/mem".as_ptr(),
            flags,
            0,
        )
    };
    opened(memory).map_or(0, |memory| {
        // SAFETY: the kernel checks the source, and the caller answers for the destination.
        let read = unsafe { libc::syscall(libc::SYS_pread64, memory.0, to, bytes, from) };
        usize::try_from(read).unwrap_or(0)
    })
}

const PAGE: u64 = 4096;

/// How many bytes from an address on can be read, at most so many, by the page.
pub(crate) fn readable(from: u64, most: usize) -> usize {
    let end = from.saturating_add(most as u64);
    let mut at = from & !7;
    while at < end && is_readable(at) {
        at = (at / PAGE + 1).saturating_mul(PAGE);
    }
    at.clamp(from, end).wrapping_sub(from) as usize
}

/// Whether a word can be read.
fn is_readable(address: u64) -> bool {
    const NO_SUCH_WAY: c_int = -1;
    // The kernel reads the mask before it finds that there is no such way to change it: the mask stays.
    // SAFETY: the kernel checks the address, and changes nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            NO_SUCH_WAY,
            address,
            ptr::null_mut::<c_void>(),
            8_usize,
        )
    };
    result == -1 && errno() == libc::EINVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(target_feature = "crt-static"))]
    fn an_object_that_is_kept_stays_when_it_is_closed() {
        use std::ffi::CString;
        use std::process::Command;

        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("object.c");
        std::fs::write(&source, "int function(void) { return 7; }").expect("a file");
        for keeps in [false, true] {
            let object = folder.path().join(format!("{keeps}.so"));
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-o"]).args([&object, &source]);
            let Ok(status) = compiler.status() else {
                println!("skipped: there is no C compiler (cc)");
                return;
            };
            assert!(status.success());
            let name = CString::new(object.as_os_str().as_encoded_bytes()).expect("a name");
            // SAFETY: the object has no code that runs when it is loaded.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
            assert!(!handle.is_null());
            // SAFETY: the handle is open, and the name ends with a zero.
            let function = unsafe { libc::dlsym(handle, c"function".as_ptr()) };
            assert!(!function.is_null());
            if keeps {
                keep_loaded(function);
            }
            // SAFETY: the handle is open, and nothing of the object is used afterwards.
            assert_eq!(unsafe { libc::dlclose(handle) }, 0);
            // SAFETY: nothing is loaded by this.
            let again = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
            assert_eq!(!again.is_null(), keeps);
        }
        // The program itself needs nothing.
        keep_loaded(keep_loaded as *const c_void);
    }

    #[test]
    fn locked_memory_is_wiped_too() {
        const BYTES: usize = 2 * PAGE as usize;
        let (memory, _) = map_private(BYTES).expect("there is memory");
        // SAFETY: the mapping is ours, and the kernel only keeps its pages in memory.
        let locked = unsafe { libc::mlock(memory.cast(), BYTES) };
        if locked != 0 {
            println!("skipped: this user may not lock two pages of memory");
            return;
        }
        // SAFETY: the mapping is ours, and this thread alone uses it.
        let is_zero = unsafe {
            memory.write_bytes(7, BYTES);
            wipe(memory, BYTES);
            (0..BYTES).all(|place| memory.add(place).read() == 0)
        };
        assert!(is_zero);
    }
}
