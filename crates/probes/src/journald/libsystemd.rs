//! The reading half of sd-journal(3), from `libsystemd.so.0`, which is loaded when a session first wants it.
//!
//! The follower of the journal calls it ([`follow`](super::follow)). Guarantees: programs neither link the library nor need it to start. A missing library or function is an
//! error that says what to install. The data of an entry, which the library lends, is only accessible while it is valid. The functions and their
//! contracts are those of systemd's manual pages; the constants are from `sd-journal.h`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use ferretto_ipc::reactor::monotonic_now;
use libloading::Library;

use super::place::JournalFiles;

/// The library's name on all systems with systemd.
const NAME: &str = "libsystemd.so.0";

/// `SD_JOURNAL_LOCAL_ONLY`: no journals that came from other machines.
const LOCAL_ONLY: c_int = 1;

/// `struct sd_journal`, of which only the library knows the content.
#[repr(C)]
struct SdJournal {
    _opaque: [u8; 0],
}

/// Why the journal cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The dynamic linker could not load the library.
    #[error("cannot load {NAME}: {0}; install it (Debian has it in libsystemd0, Fedora in systemd-libs)")]
    NoLibrary(libloading::Error),
    /// The library lacks a function.
    #[error("{NAME} is older than systemd 246: {0}; install a newer one")]
    OldLibrary(libloading::Error),
    /// A function failed.
    #[error("{call} failed: {source}")]
    Call {
        /// The function.
        call: &'static str,
        /// The error that it returned.
        source: io::Error,
    },
}

/// The functions as a table, each with its signature.
macro_rules! functions {
    ($($(#[$attribute:meta])* $name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Functions {
            $($(#[$attribute])* $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, libloading::Error> {
                Ok(Functions {
                    $(
                        $(#[$attribute])*
                        // SAFETY: the signature is the one that the manual page of the function gives.
                        $name: unsafe { *library.get(concat!("sd_journal_", stringify!($name)))? },
                    )*
                })
            }
        }
    };
}

functions! {
    open: fn(*mut *mut SdJournal, c_int) -> c_int;
    close: fn(*mut SdJournal);
    has_runtime_files: fn(*mut SdJournal) -> c_int;
    has_persistent_files: fn(*mut SdJournal) -> c_int;
    set_data_threshold: fn(*mut SdJournal, usize) -> c_int;
    add_match: fn(*mut SdJournal, *const c_void, usize) -> c_int;
    seek_head: fn(*mut SdJournal) -> c_int;
    seek_tail: fn(*mut SdJournal) -> c_int;
    previous: fn(*mut SdJournal) -> c_int;
    next: fn(*mut SdJournal) -> c_int;
    get_fd: fn(*mut SdJournal) -> c_int;
    get_timeout: fn(*mut SdJournal, *mut u64) -> c_int;
    process: fn(*mut SdJournal) -> c_int;
    get_monotonic_usec: fn(*mut SdJournal, *mut u64, *mut c_void) -> c_int;
    restart_data: fn(*mut SdJournal);
    enumerate_available_data: fn(*mut SdJournal, *mut *const c_void, *mut usize) -> c_int;
    #[cfg(test)]
    open_directory: fn(*mut *mut SdJournal, *const std::ffi::c_char, c_int) -> c_int;
}

/// The library, loaded once. It stays loaded, because it may have started something that unloading would break. A failure is not kept: the library
/// may be installed before the next session.
fn functions() -> Result<&'static Functions, Error> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    if let Some(functions) = LOADED.get() {
        return Ok(functions);
    }
    // SAFETY: loading it runs the initialisers of the system's own library and of those that it needs.
    let library = unsafe { Library::new(NAME) }.map_err(Error::NoLibrary)?;
    let functions = Functions::of(&library).map_err(Error::OldLibrary)?;
    std::mem::forget(library);
    Ok(LOADED.get_or_init(|| functions))
}

/// An open journal, with a position in it. It stays on its thread, as the library demands.
pub struct Journal {
    functions: &'static Functions,
    handle: NonNull<SdJournal>,
    /// Neither `Send` nor `Sync`.
    _thread: PhantomData<*mut ()>,
}

impl Journal {
    /// Opens this machine's journal. The process sees the files that it may read, perhaps none.
    pub(super) fn open() -> Result<Journal, Error> {
        let functions = functions()?;
        // SAFETY: the library writes one pointer.
        Self::from("sd_journal_open", functions, |handle| unsafe {
            (functions.open)(handle, LOCAL_ONLY)
        })
    }

    /// Opens the journal files in a folder and in those below it.
    #[cfg(test)]
    pub(super) fn open_directory(path: &std::ffi::CStr) -> Result<Journal, Error> {
        let functions = functions()?;
        // SAFETY: the library writes one pointer, and reads a path that ends in NUL.
        Self::from("sd_journal_open_directory", functions, |handle| unsafe {
            (functions.open_directory)(handle, path.as_ptr(), 0)
        })
    }

    fn from(
        call: &'static str,
        functions: &'static Functions,
        open: impl FnOnce(*mut *mut SdJournal) -> c_int,
    ) -> Result<Journal, Error> {
        let mut handle = ptr::null_mut();
        check(call, open(&mut handle))?;
        let handle = NonNull::new(handle).ok_or(Error::Call {
            call,
            source: io::ErrorKind::InvalidData.into(),
        })?;
        Ok(Journal {
            functions,
            handle,
            _thread: PhantomData,
        })
    }

    /// Whether this machine's journal has files that the process may read.
    pub(super) fn files(&self) -> Result<JournalFiles, Error> {
        let Functions {
            has_runtime_files,
            has_persistent_files,
            ..
        } = *self.functions;
        // SAFETY: the handle is open.
        let runtime = unsafe { has_runtime_files(self.handle.as_ptr()) };
        // SAFETY: the handle is open.
        let persistent = unsafe { has_persistent_files(self.handle.as_ptr()) };
        let runtime = check("sd_journal_has_runtime_files", runtime)?;
        match runtime + check("sd_journal_has_persistent_files", persistent)? {
            0 => Ok(JournalFiles::None),
            _ => Ok(JournalFiles::Some),
        }
    }

    /// Has the library expand no more than so many bytes of a compressed field.
    pub(super) fn set_data_threshold(&mut self, bytes: usize) -> Result<(), Error> {
        // SAFETY: the handle is open.
        let result = unsafe { (self.functions.set_data_threshold)(self.handle.as_ptr(), bytes) };
        check("sd_journal_set_data_threshold", result).map(drop)
    }

    /// Leaves out entries that do not match. Several matches for one field are alternatives; the matches of different fields must all hold.
    pub(super) fn add_match(&mut self, field_and_value: &[u8]) -> Result<(), Error> {
        let (data, len) = (field_and_value.as_ptr().cast(), field_and_value.len());
        // SAFETY: the handle is open, and the library copies `len` bytes.
        let result = unsafe { (self.functions.add_match)(self.handle.as_ptr(), data, len) };
        check("sd_journal_add_match", result).map(drop)
    }

    /// Moves behind the last entry that matches, so that only new entries follow.
    pub(super) fn seek_to_end(&mut self) -> Result<(), Error> {
        // SAFETY: the handle is open.
        check("sd_journal_seek_tail", unsafe {
            (self.functions.seek_tail)(self.handle.as_ptr())
        })?;
        // SAFETY: the handle is open.
        let found = check("sd_journal_previous", unsafe {
            (self.functions.previous)(self.handle.as_ptr())
        })?;
        if found > 0 {
            return Ok(());
        }
        // No entry matches. From the tail, versions of the library go to the last of the new entries, or to none at all
        // (https://github.com/systemd/systemd/issues/25369). From the head, all new entries follow.
        // SAFETY: the handle is open.
        check("sd_journal_seek_head", unsafe {
            (self.functions.seek_head)(self.handle.as_ptr())
        })
        .map(drop)
    }

    /// Goes to the next entry. Returns whether there is one.
    ///
    /// # Errors
    /// If the library fails.
    pub fn next_entry(&mut self) -> Result<bool, Error> {
        // SAFETY: the handle is open.
        let found = unsafe { (self.functions.next)(self.handle.as_ptr()) };
        check("sd_journal_next", found).map(|found| found > 0)
    }

    /// Starts to watch the journal, if it is not watched yet. The descriptor becomes readable when [`Journal::process`] has to be
    /// called.
    ///
    /// # Errors
    /// If the library fails.
    pub fn watch(&self) -> Result<BorrowedFd<'_>, Error> {
        // SAFETY: the handle is open.
        let fd = unsafe { (self.functions.get_fd)(self.handle.as_ptr()) };
        let fd = check("sd_journal_get_fd", fd)?;
        // SAFETY: the descriptor is the journal's, which stays open as long as this is borrowed.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// When to call [`Journal::process`] even if the descriptor is not readable, in microseconds of the monotonic clock: some file
    /// systems, such as NFS, do not tell of changes.
    fn timeout(&self) -> Result<Option<u64>, Error> {
        let mut at = u64::MAX;
        // SAFETY: the handle is open, and the library writes one number.
        let result = unsafe { (self.functions.get_timeout)(self.handle.as_ptr(), &mut at) };
        check("sd_journal_get_timeout", result)?;
        Ok((at != u64::MAX).then_some(at))
    }

    /// When to call [`Journal::process`] and look for entries even if the descriptor is not readable, in nanoseconds of the monotonic clock.
    ///
    /// # Errors
    /// If the library fails.
    pub fn deadline(&self) -> Result<Option<u64>, Error> {
        let timeout = self.timeout()?;
        // The library may say "now" by a time long past.
        Ok(timeout.map(|usec| usec.saturating_mul(1000).max(monotonic_now())))
    }

    /// Processes changes: files that are new or gone.
    ///
    /// # Errors
    /// If the library fails.
    pub fn process(&mut self) -> Result<(), Error> {
        // SAFETY: the handle is open.
        let result = unsafe { (self.functions.process)(self.handle.as_ptr()) };
        check("sd_journal_process", result).map(drop)
    }

    /// When the entry was received, in microseconds of the monotonic clock. An entry from before the machine was booted has no such
    /// time.
    pub(super) fn monotonic_usec(&self) -> Result<u64, Error> {
        let mut usec = 0;
        // SAFETY: the handle is open, and the library writes one number; with no place for it, it checks the boot id itself.
        let result =
            unsafe { (self.functions.get_monotonic_usec)(self.handle.as_ptr(), &mut usec, ptr::null_mut()) };
        check("sd_journal_get_monotonic_usec", result).map(|_| usec)
    }

    /// Gives each field of the entry (`NAME=value`) to `take`.
    ///
    /// # Errors
    /// If the library fails.
    pub fn for_each_field(&mut self, mut take: impl FnMut(&[u8])) -> Result<(), Error> {
        // SAFETY: the handle is open.
        unsafe { (self.functions.restart_data)(self.handle.as_ptr()) };
        loop {
            let (mut data, mut len) = (ptr::null(), 0);
            // SAFETY: the handle is open, and the library writes a pointer and a length.
            let found = unsafe {
                (self.functions.enumerate_available_data)(self.handle.as_ptr(), &mut data, &mut len)
            };
            if check("sd_journal_enumerate_available_data", found)? == 0 || data.is_null() {
                return Ok(());
            }
            // SAFETY: the library lends `len` bytes at `data` until it is called again, which `take` cannot.
            take(unsafe { std::slice::from_raw_parts(data.cast(), len) });
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody uses it any more.
        unsafe { (self.functions.close)(self.handle.as_ptr()) };
    }
}

/// The library returns negative error numbers.
fn check(call: &'static str, result: c_int) -> Result<c_int, Error> {
    match result {
        0.. => Ok(result),
        _ => Err(Error::Call {
            call,
            source: io::Error::from_raw_os_error(result.saturating_neg()),
        }),
    }
}
