//! Arbitrary bytes as a row of choices. Used by the fuzzed parts of this crate.

/// Takes bytes from the front of the input; zeroes when there are no more.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    /// Four bytes, the lowest first.
    pub fn number(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// As many bytes as are left, up to `count`.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        self.0.split_off(..count.min(self.0.len())).unwrap_or_default()
    }
}
