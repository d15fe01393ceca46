//! Appends protobuf fields to the heap, or to a bounded region with the heap behind it.
//!
//! Used by the typed writers that `ferretto-proto` generates, and by hot paths directly. Every field is written after
//! one capacity check. Lengths of nested messages are patched in afterwards in their shortest encoding.

use crate::bulk;
use crate::tag::{MAX_TAG_LEN, WireType, put_tag};
use crate::varint::{MAX_VARINT_LEN, put_varint, varint_len};
use std::fmt;
use std::ptr::{self, NonNull};

#[cfg(test)]
mod tests;

/// A length of up to this many bytes fits the one byte that is set aside for it.
const MAX_ONE_BYTE_LEN: usize = 0x7f;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Heap,
    Region,
}

/// The place of a finished message, see [`Writer::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished<'a> {
    /// It lies at the start of the region; its length in bytes.
    InPlace(usize),
    /// The message, which did not fit the region (or there was none). The region holds garbage.
    Spilled(&'a [u8]),
}

/// An append-only protobuf encoder.
///
/// **Over a region.** [`Writer::start_in_region`] points the writer at memory that another process may read and write at any time, such as a chunk of
/// a shared memory buffer. That memory is only touched through raw pointers, no reference to it is ever made, and nothing read from it decides where
/// the writer writes. When a field does not fit, the bytes written so far are copied to the heap and writing goes on there; [`Writer::finish`] tells
/// where the message is.
///
/// Field numbers are the schema's, not input: they must lie in 1..=[`MAX_FIELD_NUMBER`](crate::MAX_FIELD_NUMBER), which debug builds check.
pub struct Writer {
    /// Start of the memory in use: `heap`'s allocation or the region. Valid for writing `capacity` bytes, the first
    /// `len` of which were written.
    base: NonNull<u8>,
    len: usize,
    capacity: usize,
    place: Place,
    /// The last region that this was pointed at, see [`Writer::was_lent`].
    lent: *mut u8,
    /// The allocation behind `base` when on the heap, kept for the next spill otherwise. Its own length stays 0.
    heap: Vec<u8>,
}

// SAFETY: on the heap the writer owns its memory. For a region the caller of `start_in_region` promises that the writer alone writes there from this
// process, on any thread.
unsafe impl Send for Writer {}
// SAFETY: the methods of `&Writer` read only the writer's own fields and its own heap memory.
unsafe impl Sync for Writer {}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("place", &self.place)
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish()
    }
}

impl Writer {
    /// An empty writer on the heap; allocates when the first field comes.
    pub const fn new() -> Self {
        Self {
            base: NonNull::dangling(),
            len: 0,
            capacity: 0,
            place: Place::Heap,
            lent: ptr::null_mut(),
            heap: Vec::new(),
        }
    }

    /// An empty writer on the heap with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut writer = Self {
            heap: Vec::with_capacity(capacity),
            ..Self::new()
        };
        writer.clear();
        writer
    }

    /// Forgets its contents and goes on in `region`, which has room for `capacity` bytes. The heap memory is kept for a spill. The last 15 bytes of a
    /// region may stay unused, because space is checked before lengths are known.
    ///
    /// # Safety
    /// Until the next [`Writer::finish`], [`Writer::clear`] or call of this method, and until the writer is dropped or
    /// not used any more, `region` must be valid for reading and writing `capacity` bytes, and nothing else in this
    /// process may access it. Another process may.
    pub unsafe fn start_in_region(&mut self, region: NonNull<u8>, capacity: usize) {
        self.base = region;
        self.len = 0;
        self.capacity = capacity;
        self.place = Place::Region;
        self.lent = region.as_ptr();
    }

    /// Whether this is the writer that was pointed at `region`, and not yet taken back with [`Writer::take_back`]. It may have moved to the heap
    /// since.
    ///
    /// A function that gets a `&mut Writer` can leave another writer in its place. Then the one over the region is out of reach, and the region must
    /// stay valid for good.
    pub fn was_lent(&self, region: NonNull<u8>) -> bool {
        self.lent == region.as_ptr()
    }

    /// As [`Writer::clear`]; afterwards [`Writer::was_lent`] is false for every region.
    pub fn take_back(&mut self) {
        self.clear();
        self.lent = ptr::null_mut();
    }

    /// Ends the message and returns its place. The writer is then empty and on the heap; the slice of a spilled message stays valid until the writer
    /// is used again.
    pub fn finish(&mut self) -> Finished<'_> {
        let (place, len) = (self.place, self.len);
        self.clear();
        match place {
            Place::Region => Finished::InPlace(len),
            // SAFETY: `len` bytes at `base`, now the start of the heap memory that they were written to, are initialised
            // and borrowed from `self`, so that nothing overwrites them while the slice lives.
            Place::Heap => Finished::Spilled(unsafe { std::slice::from_raw_parts(self.base.as_ptr(), len) }),
        }
    }

    /// Forgets its contents, leaves a region if there was one, and starts over on the heap.
    pub fn clear(&mut self) {
        self.len = 0;
        self.place = Place::Heap;
        // A `Vec`'s pointer is never null.
        if let Some(base) = NonNull::new(self.heap.as_mut_ptr()) {
            self.base = base;
            self.capacity = self.heap.capacity();
        }
    }

    /// Bytes written so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of heap memory held, in use or kept for a spill.
    pub fn heap_capacity(&self) -> usize {
        self.heap.capacity()
    }

    /// The bytes written so far.
    ///
    /// # Panics
    /// If the message lies in a region: other processes may write there, so no slice of it can exist.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        assert!(
            self.place == Place::Heap,
            "the bytes of a writer over a region cannot be borrowed"
        );
        // SAFETY: `len` bytes at `base` lie in our own heap memory and are initialised.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The bytes written, as memory of the caller's.
    ///
    /// # Panics
    /// If the message lies in a region.
    pub fn into_vec(mut self) -> Vec<u8> {
        assert!(
            self.place == Place::Heap,
            "the bytes of a writer over a region cannot be taken"
        );
        // SAFETY: the first `len` bytes of the allocation are initialised and `len` is within its capacity.
        unsafe { self.heap.set_len(self.len) };
        self.heap
    }

    /// Takes back everything behind the first `len` bytes; does nothing if there are not that many.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends a field of type `uint32`, `uint64`, `int32`, `int64`, `bool` or an enum. The caller sign-extends negative numbers to 64 bits, and
    /// [zigzags](crate::zigzag) `sint` types.
    #[inline]
    pub fn varint_field(&mut self, number: u32, value: u64) {
        let at = self.reserve(MAX_TAG_LEN + MAX_VARINT_LEN);
        // SAFETY: the longest tag and the longest varint were reserved.
        unsafe {
            let at = put_tag(at, number, WireType::Varint);
            let end = put_varint(at, value);
            self.advance_to(end);
        }
    }

    /// Appends a field of type `fixed32`, `sfixed32` or (as its bits) `float`.
    #[inline]
    pub fn fixed32_field(&mut self, number: u32, value: u32) {
        let at = self.reserve(MAX_TAG_LEN + 4);
        // SAFETY: the longest tag and the value's four bytes were reserved; the write needs no alignment.
        unsafe {
            let at = put_tag(at, number, WireType::Fixed32);
            at.cast::<[u8; 4]>().write_unaligned(value.to_le_bytes());
            self.advance_to(at.add(4));
        }
    }

    /// Appends a field of type `fixed64`, `sfixed64` or (as its bits) `double`.
    #[inline]
    pub fn fixed64_field(&mut self, number: u32, value: u64) {
        let at = self.reserve(MAX_TAG_LEN + 8);
        // SAFETY: the longest tag and the value's eight bytes were reserved; the write needs no alignment.
        unsafe {
            let at = put_tag(at, number, WireType::Fixed64);
            at.cast::<[u8; 8]>().write_unaligned(value.to_le_bytes());
            self.advance_to(at.add(8));
        }
    }

    /// Appends a field of type `bytes`, `string`, or a message that is already encoded.
    #[inline]
    pub fn bytes_field(&mut self, number: u32, bytes: &[u8]) {
        let at = self.reserve((MAX_TAG_LEN + MAX_VARINT_LEN).saturating_add(bytes.len()));
        // SAFETY: tag, length and bytes were reserved. `bytes` cannot overlap: it is a live reference, and no reference points to the reserved
        // memory.
        unsafe {
            let at = put_tag(at, number, WireType::Bytes);
            let at = put_varint(at, bytes.len() as u64);
            bulk::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
            self.advance_to(at.add(bytes.len()));
        }
    }

    /// Appends the tag and the length of a field of type `bytes`, `string` or a message. Its `len` bytes follow, here or elsewhere.
    #[inline]
    pub fn bytes_field_head(&mut self, number: u32, len: usize) {
        let at = self.reserve(MAX_TAG_LEN + MAX_VARINT_LEN);
        // SAFETY: the longest tag and the longest varint were reserved.
        unsafe {
            let at = put_tag(at, number, WireType::Bytes);
            let end = put_varint(at, len as u64);
            self.advance_to(end);
        }
    }

    /// Appends a message field whose contents `fill` writes. The length in front of it is patched in afterwards, in as few bytes as possible: one
    /// byte is set aside, and a message longer than 127 bytes is moved up to make room for more.
    #[inline]
    pub fn nested<R>(&mut self, number: u32, fill: impl FnOnce(&mut Writer) -> R) -> R {
        let at = self.reserve(MAX_TAG_LEN + 1);
        // SAFETY: the longest tag and one byte behind it were reserved and are written here.
        unsafe {
            let at = put_tag(at, number, WireType::Bytes);
            at.write(0);
            self.advance_to(at.add(1));
        }
        let start = self.len;
        let result = fill(self);
        self.patch_length(start);
        result
    }

    /// Appends a message without a tag, behind its length, as in a row of messages. `fill` writes its contents.
    #[inline]
    pub fn delimited<R>(&mut self, fill: impl FnOnce(&mut Writer) -> R) -> R {
        let at = self.reserve(1);
        // SAFETY: one byte was reserved and is written here.
        unsafe {
            at.write(0);
            self.advance_to(at.add(1));
        }
        let start = self.len;
        let result = fill(self);
        self.patch_length(start);
        result
    }

    /// Appends a packed repeated field of varints, or nothing if there are none (as protobuf encoders do).
    #[inline]
    pub fn packed_field(&mut self, number: u32, values: impl IntoIterator<Item = u64>) {
        let before = self.len;
        let wrote_any = self.nested(number, |writer| {
            let start = writer.len();
            values.into_iter().for_each(|value| writer.varint(value));
            writer.len() > start
        });
        if !wrote_any {
            self.truncate(before);
        }
    }

    /// Appends a bare varint without a tag, as the elements of a packed field.
    #[inline]
    pub fn varint(&mut self, value: u64) {
        let at = self.reserve(MAX_VARINT_LEN);
        // SAFETY: the longest varint was reserved.
        unsafe {
            let end = put_varint(at, value);
            self.advance_to(end);
        }
    }

    /// Appends bytes as they are: whole encoded fields, or parts of a value that is being put together.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        let at = self.reserve(bytes.len());
        // SAFETY: the bytes' length was reserved, and `bytes` cannot overlap it (see `bytes_field`).
        unsafe {
            bulk::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
            self.advance_to(at.add(bytes.len()));
        }
    }

    /// Makes sure that `additional` bytes can be written behind the first `len`, and returns where.
    #[inline(always)]
    fn reserve(&mut self, additional: usize) -> *mut u8 {
        if self.capacity - self.len < additional {
            self.grow(additional);
        }
        // SAFETY: `len <= capacity`, so this stays within the memory at `base` or one past its end.
        unsafe { self.base.as_ptr().add(self.len) }
    }

    /// # Safety
    /// `end` must lie in the memory at `base`, and everything before it must be written.
    #[inline(always)]
    unsafe fn advance_to(&mut self, end: *mut u8) {
        // SAFETY: both pointers lie in the memory at `base` (the caller vouches for `end`), `end` not before `base`.
        self.len = unsafe { end.offset_from(self.base.as_ptr()) } as usize;
        debug_assert!(self.len <= self.capacity);
    }

    /// Makes room on the heap. If the contents are in a region, moves them there.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, additional: usize) {
        match self.place {
            // SAFETY: the first `len` bytes of the allocation are initialised and `len` is within its capacity. The length tells `reserve` how much
            // to move along.
            Place::Heap => unsafe { self.heap.set_len(self.len) },
            Place::Region => {
                self.heap.clear();
                self.heap.reserve(self.len);
                // SAFETY: the region is valid for `capacity >= len` bytes by the contract of `start_in_region`, the heap has room for `len` and they
                // are different memory. If the other process overwrites the region meanwhile, the message is garbage, as it would have been in place.
                // All of `len` is initialised then.
                unsafe {
                    bulk::copy_nonoverlapping(self.base.as_ptr(), self.heap.as_mut_ptr(), self.len);
                    self.heap.set_len(self.len);
                }
                self.place = Place::Heap;
            }
        }
        self.heap.reserve(additional);
        let len = self.len;
        // The elements need no drop; only the allocation is of use from here on.
        self.heap.clear();
        self.clear();
        self.len = len;
    }

    /// Writes the length of the message that began at `start` into the byte before it, moving the message up when the
    /// length takes more than that byte.
    #[inline(always)]
    fn patch_length(&mut self, start: usize) {
        let Some(len) = self.len.checked_sub(start) else {
            // The closure truncated the writer to before its own start: its field went with it.
            return;
        };
        if len <= MAX_ONE_BYTE_LEN {
            // SAFETY: `nested` wrote a byte at `start - 1`, and `start <= self.len`.
            unsafe { self.base.as_ptr().add(start - 1).write(len as u8) };
        } else {
            self.patch_long_length(start, len);
        }
    }

    #[cold]
    #[inline(never)]
    fn patch_long_length(&mut self, start: usize, len: usize) {
        let shift = varint_len(len as u64) - 1;
        self.reserve(shift);
        // SAFETY: `len` bytes from `start` were written and `shift` more were just reserved behind them; the length takes
        // the byte before `start` and the `shift` bytes that the move sets free.
        unsafe {
            let message = self.base.as_ptr().add(start);
            ptr::copy(message, message.add(shift), len);
            put_varint(message.sub(1), len as u64);
        }
        self.len += shift;
    }
}
