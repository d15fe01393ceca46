//! Reads numbers and strings of a recording of `perf`, in the byte order of the machine that wrote it.

/// The order of the bytes in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

/// Bytes that are read from the front. Every method returns `None` at the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes<'a> {
    pub(super) rest: &'a [u8],
    pub(super) order: Order,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(rest: &'a [u8], order: Order) -> Bytes<'a> {
        Bytes { rest, order }
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let bytes = self.take(8)?.try_into().ok()?;
        Some(match self.order {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        })
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let bytes = self.take(4)?.try_into().ok()?;
        Some(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?.try_into().ok()?;
        Some(match self.order {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        })
    }

    /// Returns the bytes up to the next zero, or all of them.
    pub(super) fn text(self) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| *byte == 0);
        &self.rest[..end.unwrap_or(self.rest.len())]
    }
}
