//! System calls that the standard library lacks: the ids of process and thread, and the local time.
//!
//! Straight from the C library. The rest of the workspace uses a crate for system calls that has all of this as well, but takes twice as long to
//! compile with it.
#![allow(unsafe_code)]

/// The process's number.
pub(crate) fn process_id() -> u32 {
    std::process::id()
}

/// The calling thread's number. Safe in a signal handler.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes nothing and always succeeds. By its number, because not all C libraries have the function.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    tid as u32
}

/// The calling thread's name, as the kernel knows it.
pub(crate) fn thread_name() -> Option<Vec<u8>> {
    /// The kernel's `TASK_COMM_LEN`.
    const SIZE: usize = 16;
    let mut name = [0u8; SIZE];
    // SAFETY: the kernel writes at most as many bytes as `name` has, the last of which is zero.
    let result = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let length = name.iter().position(|byte| *byte == 0)?;
    (result == 0).then(|| name[..length].to_vec())
}

/// How far the local time is ahead of universal time now.
#[cfg(feature = "in-process")]
pub(crate) fn timezone_offset_minutes() -> Option<i32> {
    let mut local = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: one pointer is null, the other points to a live local of the written type, for which zeroes are a valid value. The call reads the
    // environment, as much of the C library does: code that changes the environment has to make sure that no other thread runs.
    let (result, local) = unsafe {
        let now = libc::time(std::ptr::null_mut());
        (libc::localtime_r(&now, local.as_mut_ptr()), local.assume_init())
    };
    (!result.is_null()).then_some((local.tm_gmtoff / 60) as i32)
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
    fn local_time_is_that_of_the_date() {
        let offset = std::process::Command::new("date")
            .arg("+%z")
            .output()
            .expect("date");
        let offset: i32 = String::from_utf8_lossy(&offset.stdout)
            .trim()
            .parse()
            .expect("+hhmm");
        assert_eq!(timezone_offset_minutes(), Some(offset / 100 * 60 + offset % 100));
    }
}
