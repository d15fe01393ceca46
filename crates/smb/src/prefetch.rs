//! Tells the processor which memory will be needed soon, so that it is cached in time.
//!
//! Called by the service's trace buffer, which is larger than the caches: the place of the next chunk was last touched when the ring came round, and
//! when a chunk is read, the length of each packet gives the place of the next one. A hint is no access: it changes nothing, cannot fault, and waits
//! for nothing. On processors other than the ones below there are no hints.

/// The bytes that one hint covers.
const CACHE_LINE: usize = 64;

/// Says that all of `bytes` will be written soon.
#[inline]
pub fn prefetch_for_writing(bytes: &[u8]) {
    for line in bytes.chunks(CACHE_LINE) {
        will_write(line.as_ptr());
    }
}

/// Says that some of `bytes` will be read soon, here and there.
#[inline]
pub fn prefetch_for_reading(bytes: &[u8]) {
    for line in bytes.chunks(CACHE_LINE) {
        will_read(line.as_ptr());
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn will_write(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
    // SAFETY: a hint about any address at all is sound. Processors without this one take the instruction for none.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(line.cast()) }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn will_read(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint about any address at all is sound.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn will_write(line: *const u8) {
    // SAFETY: a hint about any address at all is sound.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags));
    }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn will_read(line: *const u8) {
    // SAFETY: a hint about any address at all is sound.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn will_write(_line: *const u8) {}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn will_read(_line: *const u8) {}
