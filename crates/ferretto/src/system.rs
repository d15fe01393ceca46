//! What the SDK asks the system that the standard library has not: who and where this process is.
//!
//! Straight from the C library. The crate for system calls that the rest of the workspace uses has all of this as well, and takes
//! twice as long to compile with it.
#![allow(unsafe_code)]

#[cfg(feature = "in-process")]
use std::io;
#[cfg(feature = "in-process")]
use std::os::fd::{AsFd, AsRawFd};

/// The user that this process acts as.
#[cfg(feature = "in-process")]
pub(crate) fn effective_user() -> u32 {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::geteuid() }
}

/// The calling thread's number. Safe in a signal handler.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes nothing and always succeeds. By its number, for not all C libraries have a function of the name.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    tid as u32
}

/// The calling thread's name, as the kernel knows it.
pub(crate) fn thread_name() -> Option<Vec<u8>> {
    /// The kernel's `TASK_COMM_LEN`.
    const SIZE: usize = 16;
    let mut name = [0u8; SIZE];
    // SAFETY: the kernel writes as many bytes at most, the last of which is zero.
    let result = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let length = name.iter().position(|byte| *byte == 0)?;
    (result == 0).then(|| name[..length].to_vec())
}

/// The flags that a file was opened with, `O_…`.
#[cfg(feature = "in-process")]
pub(crate) fn open_flags(file: impl AsFd) -> io::Result<i32> {
    // SAFETY: takes no pointers.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETFL) } {
        flags @ 0.. => Ok(flags),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The size of a page of memory, in bytes.
#[cfg(feature = "in-process")]
pub(crate) fn page_size() -> Option<u32> {
    // SAFETY: takes no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(size).ok().filter(|size| *size > 0)
}

/// The machine's memory, in bytes.
#[cfg(feature = "in-process")]
pub(crate) fn total_memory() -> Option<u64> {
    let mut info = std::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the pointer is to a live local of the type that is written, which consists of integers: zeroes are values of them.
    let (result, info) = unsafe { (libc::sysinfo(info.as_mut_ptr()), info.assume_init()) };
    #[allow(clippy::unnecessary_cast, reason = "it is as wide as a pointer")]
    (result == 0).then(|| info.totalram as u64 * u64::from(info.mem_unit))
}

/// How far the local time is ahead of universal time now.
#[cfg(feature = "in-process")]
pub(crate) fn timezone_offset_minutes() -> Option<i32> {
    let mut local = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: the pointers are null and to a live local of the type that is written, which is one that zeroes are a value of. The environment
    // is read, as by much else in the C library: whoever changes it has to make sure that no other thread runs.
    let (result, local) = unsafe {
        let now = libc::time(std::ptr::null_mut());
        (libc::localtime_r(&now, local.as_mut_ptr()), local.assume_init())
    };
    (!result.is_null()).then_some((local.tm_gmtoff / 60) as i32)
}

/// What `uname` says of the system.
#[cfg(feature = "in-process")]
pub(crate) struct Uname {
    pub(crate) system: String,
    pub(crate) release: String,
    pub(crate) version: String,
    pub(crate) machine: String,
}

/// What `uname` says.
#[cfg(feature = "in-process")]
pub(crate) fn uname() -> Option<Uname> {
    let mut names = std::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the pointer is to a live local of the type that is written, which consists of bytes.
    let (result, names) = unsafe { (libc::uname(names.as_mut_ptr()), names.assume_init()) };
    let text = |name: &[libc::c_char]| {
        let bytes: Vec<u8> = name
            .iter()
            .map(|&byte| byte as u8)
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    (result == 0).then(|| Uname {
        system: text(&names.sysname),
        release: text(&names.release),
        version: text(&names.version),
        machine: text(&names.machine),
    })
}

/// Random bytes; `None` before the kernel has gathered entropy at boot.
#[cfg(feature = "in-process")]
pub(crate) fn random_bytes() -> Option<[u8; 16]> {
    let mut bytes = [0u8; 16];
    // SAFETY: as many bytes are written at most as the buffer has.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    (count == bytes.len() as isize).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_numbers_and_names() {
        let thread = std::thread::Builder::new().name("a-long-thread-name".into());
        let (tid, name) = thread
            .spawn(|| (thread_id(), thread_name()))
            .and_then(|thread| thread.join().map_err(|_| std::io::Error::other("it panicked")))
            .expect("a thread");
        assert_ne!(tid, thread_id());
        assert_eq!(name.as_deref(), Some(&b"a-long-thread-n"[..]));
    }

    #[cfg(feature = "in-process")]
    #[test]
    fn the_machine_is_the_one_that_proc_describes() {
        let proc = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).expect("a /proc");
            text.trim_end().to_owned()
        };
        let uname = uname().expect("a name");
        assert_eq!(
            [uname.system, uname.release, uname.version],
            [proc("ostype"), proc("osrelease"), proc("version")]
        );
        assert!(!uname.machine.is_empty());
        let memory = std::fs::read_to_string("/proc/meminfo").expect("a /proc");
        let total: u64 = memory
            .split_whitespace()
            .nth(1)
            .and_then(|kb| kb.parse().ok())
            .expect("MemTotal comes first");
        assert_eq!(total_memory(), Some(total * 1024));
        let offset = std::process::Command::new("date")
            .arg("+%z")
            .output()
            .expect("date");
        let offset: i32 = String::from_utf8_lossy(&offset.stdout)
            .trim()
            .parse()
            .expect("+hhmm");
        assert_eq!(timezone_offset_minutes(), Some(offset / 100 * 60 + offset % 100));
        assert!(page_size().is_some_and(u32::is_power_of_two));
        assert_ne!(random_bytes(), random_bytes());
    }
}
