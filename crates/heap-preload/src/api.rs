//! Upstream's functions for heaps of a program's own, with its names, types and results; `include/ferretto_heap.h` declares them.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_void};
use core::ptr;

use ferretto_heap_client::{
    DisabledCallback, EnableInfo, EnabledCallback, Heap, report_allocation, report_free, report_sample,
};

/// Bytes between two samples in the session that has begun.
///
/// # Safety
///
/// `info` is what an enabled callback was called with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn AHeapProfileEnableCallbackInfo_getSamplingInterval(info: *const EnableInfo) -> u64 {
    // SAFETY: as the caller says, if it is not null.
    unsafe { info.as_ref() }.map_or(0, |info| info.sampling_interval)
}

/// Makes a heap with this name. Null if the name has more than 63 bytes, or there are too many heaps.
///
/// # Safety
///
/// `name` is a string, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn AHeapInfo_create(name: *const c_char) -> *const Heap {
    if name.is_null() {
        return ptr::null();
    }
    // SAFETY: as the caller says.
    let name = unsafe { CStr::from_ptr(name) };
    Heap::create(name.to_bytes()).map_or(ptr::null(), ptr::from_ref)
}

/// Has a function called when profiling of the heap begins. Null if `heap` is, or if it is registered already.
///
/// # Safety
///
/// `heap` is of [`AHeapInfo_create`]. The function may be called at any time, on another thread, with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn AHeapInfo_setEnabledCallback(
    heap: *const Heap,
    callback: Option<EnabledCallback>,
    data: *mut c_void,
) -> *const Heap {
    // SAFETY: as the caller says: heaps are static.
    let Some(known) = (unsafe { heap.as_ref() }) else {
        return ptr::null();
    };
    let is_set = callback.is_none_or(|callback| known.set_enabled_callback(callback, data));
    if is_set { heap } else { ptr::null() }
}

/// Has a function called when profiling of the heap has ended. Null if `heap` is, or if it is registered already.
///
/// # Safety
///
/// `heap` is of [`AHeapInfo_create`]. The function may be called at any time, on another thread, with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn AHeapInfo_setDisabledCallback(
    heap: *const Heap,
    callback: Option<DisabledCallback>,
    data: *mut c_void,
) -> *const Heap {
    // SAFETY: as the caller says: heaps are static.
    let Some(known) = (unsafe { heap.as_ref() }) else {
        return ptr::null();
    };
    let is_set = callback.is_none_or(|callback| known.set_disabled_callback(callback, data));
    if is_set { heap } else { ptr::null() }
}

/// Registers the heap, and returns its number; 0 if `heap` is null.
///
/// # Safety
///
/// `heap` is of [`AHeapInfo_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn AHeapProfile_registerHeap(heap: *const Heap) -> u32 {
    // SAFETY: as the caller says: heaps are static.
    unsafe { heap.as_ref() }.map_or(0, Heap::register)
}

/// Reports an allocation. Returns whether it is sampled.
#[unsafe(no_mangle)]
pub extern "C" fn AHeapProfile_reportAllocation(heap: u32, id: u64, size: u64) -> bool {
    report_allocation(heap, id, size)
}

/// Reports an allocation that the heap has chosen as a sample. Returns whether the heap is profiled.
#[unsafe(no_mangle)]
pub extern "C" fn AHeapProfile_reportSample(heap: u32, id: u64, size: u64) -> bool {
    report_sample(heap, id, size)
}

/// Reports that an allocation is about to be released.
#[unsafe(no_mangle)]
pub extern "C" fn AHeapProfile_reportFree(heap: u32, id: u64) {
    report_free(heap, id);
}
