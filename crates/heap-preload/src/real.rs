//! The functions of libc that the hooks stand in front of.
//!
//! glibc exports them under second names for this purpose. With musl they are looked up at the first call. If the lookup itself allocated, it would get
//! memory of a small buffer, which is never released.
#![allow(unsafe_code)]

#[cfg(not(target_env = "musl"))]
mod glibc {
    use core::ffi::c_void;

    unsafe extern "C" {
        fn __libc_malloc(size: usize) -> *mut c_void;
        fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
        fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
        fn __libc_free(memory: *mut c_void);
        fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    }

    /// # Safety
    ///
    /// As for libc's `malloc`.
    #[inline(always)]
    pub(crate) unsafe fn malloc(size: usize) -> *mut c_void {
        // SAFETY: as the caller says.
        unsafe { __libc_malloc(size) }
    }

    /// # Safety
    ///
    /// As for libc's `calloc`.
    #[inline(always)]
    pub(crate) unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
        // SAFETY: as the caller says.
        unsafe { __libc_calloc(count, size) }
    }

    /// # Safety
    ///
    /// As for libc's `realloc`.
    #[inline(always)]
    pub(crate) unsafe fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
        // SAFETY: as the caller says.
        unsafe { __libc_realloc(memory, size) }
    }

    /// # Safety
    ///
    /// As for libc's `free`.
    #[inline(always)]
    pub(crate) unsafe fn free(memory: *mut c_void) {
        // SAFETY: as the caller says.
        unsafe { __libc_free(memory) };
    }

    /// # Safety
    ///
    /// As for libc's `memalign`.
    #[inline(always)]
    pub(crate) unsafe fn memalign(alignment: usize, size: usize) -> *mut c_void {
        // SAFETY: as the caller says.
        unsafe { __libc_memalign(alignment, size) }
    }
}

#[cfg(not(target_env = "musl"))]
pub(crate) use glibc::{calloc, free, malloc, memalign, realloc};

#[cfg(target_env = "musl")]
mod musl {
    use core::cell::UnsafeCell;
    use core::ffi::{CStr, c_void};
    use core::ptr;
    use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use core::sync::atomic::{AtomicPtr, AtomicUsize};

    /// Memory for the allocations of the lookup.
    #[repr(align(16))]
    struct Buffer(UnsafeCell<[u8; BUFFER_BYTES]>);

    const BUFFER_BYTES: usize = 4096;

    // SAFETY: each part of it is given to one caller.
    unsafe impl Sync for Buffer {}

    static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BUFFER_BYTES]));
    static USED: AtomicUsize = AtomicUsize::new(0);

    /// A function that is being looked up.
    const LOOKING: *mut c_void = 1 as *mut c_void;

    fn from_buffer(size: usize) -> *mut c_void {
        let size = size.saturating_add(15) & !15;
        let more = |used: usize| used.checked_add(size).filter(|end| *end <= BUFFER_BYTES);
        match USED.fetch_update(Relaxed, Relaxed, more) {
            Ok(start) => BUFFER.0.get().cast::<u8>().wrapping_add(start).cast(),
            Err(_) => ptr::null_mut(),
        }
    }

    fn is_from_buffer(memory: *mut c_void) -> bool {
        (memory as usize).wrapping_sub(BUFFER.0.get() as usize) < BUFFER_BYTES
    }

    /// The real function; `None` while it is being looked up.
    fn find(place: &AtomicPtr<c_void>, name: &CStr) -> Option<*mut c_void> {
        let known = place.load(Acquire);
        if known == LOOKING {
            return None;
        }
        if !known.is_null() {
            return Some(known);
        }
        place.store(LOOKING, Relaxed);
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if found.is_null() {
            // A libc without this function cannot have loaded this library.
            // SAFETY: ends the process.
            unsafe { libc::abort() };
        }
        place.store(found, Release);
        Some(found)
    }

    macro_rules! real {
        ($name:ident, $symbol:literal, ($($argument:ident: $type:ty),*) -> $result:ty, $while_looking:expr) => {
            #[inline]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                static PLACE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
                match find(&PLACE, $symbol) {
                    // SAFETY: libc's function with this name has this type.
                    Some(function) => unsafe {
                        core::mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> $result>(function)($($argument),*)
                    },
                    None => $while_looking,
                }
            }
        };
    }

    real!(malloc, c"malloc", (size: usize) -> *mut c_void, from_buffer(size));
    // musl's own `calloc` and `memalign` call `malloc` and `aligned_alloc` by their public names, which are this library's: a sample would be counted twice, and
    // the calls would have no end.
    real!(memalign, c"aligned_alloc", (alignment: usize, size: usize) -> *mut c_void, {
        if alignment <= 16 { from_buffer(size) } else { ptr::null_mut() }
    });
    real!(real_realloc, c"realloc", (memory: *mut c_void, size: usize) -> *mut c_void, ptr::null_mut());
    real!(real_free, c"free", (memory: *mut c_void) -> (), ());

    /// # Safety
    ///
    /// As for libc's `calloc`.
    #[inline]
    pub(crate) unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
        // No machine has so much memory, so `malloc` fails as it should.
        let bytes = count.checked_mul(size).unwrap_or(usize::MAX);
        // SAFETY: as the caller says.
        let memory = unsafe { malloc(bytes) };
        if !memory.is_null() {
            // SAFETY: so much was allocated.
            unsafe { ptr::write_bytes(memory.cast::<u8>(), 0, bytes) };
        }
        memory
    }

    /// # Safety
    ///
    /// As for libc's `realloc`.
    #[inline]
    pub(crate) unsafe fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
        if !is_from_buffer(memory) {
            // SAFETY: as the caller says.
            return unsafe { real_realloc(memory, size) };
        }
        // SAFETY: a fresh allocation.
        let new = unsafe { malloc(size) };
        if !new.is_null() {
            let there = BUFFER_BYTES - (memory as usize - BUFFER.0.get() as usize);
            // SAFETY: both are so long, and apart.
            unsafe { ptr::copy_nonoverlapping(memory.cast::<u8>(), new.cast::<u8>(), size.min(there)) };
        }
        new
    }

    /// # Safety
    ///
    /// As for libc's `free`.
    #[inline]
    pub(crate) unsafe fn free(memory: *mut c_void) {
        if !is_from_buffer(memory) {
            // SAFETY: as the caller says.
            unsafe { real_free(memory) };
        }
    }
}

#[cfg(target_env = "musl")]
pub(crate) use musl::{calloc, free, malloc, memalign, realloc};
