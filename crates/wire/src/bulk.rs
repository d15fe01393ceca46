//! Copies of many bytes, at full speed wherever both ends lie. Used by the [`Writer`](crate::Writer), and by all crates that copy chunks,
//! frames and pages.
//!
//! C libraries and kernels make long copies with one instruction (`rep movsb`). On an AMD EPYC, copies of 4 KB took 2 to 13 times as long if the
//! destination lay 1 to 24 bytes further into its page than the source (`bench/copy-distance`). The C library copies up to about 2 KB with
//! other instructions, for which the distance makes no difference. So copies within a program are made in pieces. The kernel copies in one
//! piece, so memory that it copies pages to is [`PageAligned`], as the kernel's own memory is.

use std::ops::{Deref, DerefMut};
use std::ptr;

/// Where two addresses lie in blocks of so many bytes decides how fast a copy is, whatever the size of the machine's pages.
const PAGE: usize = 4096;

/// As much as is copied at once. glibc makes longer copies with that instruction, where the processor says that it is fast: from 2112
/// bytes on.
const PIECE: usize = 2048;

/// Copies `len` bytes.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[inline]
pub unsafe fn copy_nonoverlapping(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller vouches for all of it.
    unsafe {
        match len <= PIECE {
            true => ptr::copy_nonoverlapping(from, to, len),
            false => copy_in_pieces(from, to, len),
        }
    }
}

/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[inline(never)]
unsafe fn copy_in_pieces(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // The last piece keeps its own length, so that compilers do not make one copy of all of them.
        let piece = PIECE.min(len - at);
        // SAFETY: the piece lies within the `len` bytes that the caller vouches for.
        unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), piece) };
        at += piece;
    }
}

/// Replaces the contents of `to`.
///
/// # Panics
/// If the two differ in length.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy of another length");
    // SAFETY: both are valid for their length, and a unique reference overlaps no other.
    unsafe { copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), from.len()) };
}

/// Appends `from` to `to`.
#[inline]
pub fn extend(to: &mut Vec<u8>, from: &[u8]) {
    to.reserve(from.len());
    // SAFETY: room for the bytes was just reserved behind the first `len`, and memory that a vector owns overlaps no reference. All of
    // the new length is written then.
    unsafe {
        copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().add(to.len()), from.len());
        to.set_len(to.len() + from.len());
    }
}

/// Memory that starts where a page does.
#[derive(Debug)]
pub struct PageAligned {
    /// A page longer than needed, and never moved.
    memory: Box<[u8]>,
    start: usize,
    len: usize,
}

impl PageAligned {
    /// `len` zeroes, which take up memory once they are written.
    pub fn new(len: usize) -> Self {
        let memory = vec![0; len + PAGE].into_boxed_slice();
        let address = memory.as_ptr().addr();
        Self {
            start: address.next_multiple_of(PAGE) - address,
            memory,
            len,
        }
    }
}

impl Deref for PageAligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for PageAligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_length_are_exact() {
        let from: Vec<u8> = (0..10_000u32).map(|number| (number * 7 % 251) as u8).collect();
        for len in [
            0,
            1,
            31,
            PIECE - 1,
            PIECE,
            PIECE + 1,
            2 * PIECE,
            2 * PIECE + 1,
            9_999,
        ] {
            let mut to = vec![0; len + 2];
            copy(&mut to[1..=len], &from[..len]);
            assert_eq!(to[1..=len], from[..len], "{len}");
            assert_eq!((to[0], to[len + 1]), (0, 0), "{len}");

            let mut longer = vec![9];
            extend(&mut longer, &from[..len]);
            assert_eq!(longer[0], 9, "{len}");
            assert_eq!(longer[1..], from[..len], "{len}");
        }
    }

    #[test]
    fn aligned_memory_starts_where_a_page_does() {
        for len in [0, 1, 4096, 100_000] {
            let mut memory = PageAligned::new(len);
            assert_eq!(memory.as_ptr().addr() % PAGE, 0);
            assert_eq!(*memory, vec![0; len]);
            memory.fill(1);
            assert_eq!(*memory, vec![1; len]);
        }
    }
}
