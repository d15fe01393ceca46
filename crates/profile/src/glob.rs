//! Patterns as `fnmatch(3)` understands them, without escapes.
//!
//! [`scope`](crate::scope) matches command lines with them, as upstream does, so the C library decides.
#![allow(unsafe_code)]

use std::ffi::CString;

/// Whether a pattern matches a text. A text with a zero byte is matched up to it; such a pattern matches nothing.
pub(crate) fn matches(pattern: &str, text: &[u8]) -> bool {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let (Ok(pattern), Ok(text)) = (CString::new(pattern), CString::new(text)) else {
        return false;
    };
    // SAFETY: both strings end with a zero and outlive the call, which reads nothing else.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), libc::FNM_NOESCAPE) == 0 }
}
