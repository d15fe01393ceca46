//! A copy of the top of a thread's stack, as a sample has it, and more of the stack that was read later.

/// Bytes of a [`StackPage`].
pub(crate) const PAGE: usize = 4096;

/// A page of a stack, behind what a sample has of it.
///
/// It belongs to functions that have been active for longer than the others, and that mostly still are when it is read. So frames that are found with it
/// are likely those of the sample, but need not be.
#[derive(Debug, Clone)]
pub struct StackPage {
    pub(crate) address: u64,
    pub(crate) bytes: Box<[u8; PAGE]>,
}

/// Bytes that were at [`base`](Self::base) when the sample was taken (`PERF_SAMPLE_STACK_USER`).
#[derive(Debug, Clone, Copy)]
pub struct StackCopy<'a> {
    /// Address of the first byte: the stack pointer.
    pub base: u64,
    /// The bytes that the kernel copied (`dyn_size` of them).
    pub bytes: &'a [u8],
    /// Pages behind them, as [`Process::read_stack`](crate::Process::read_stack) has read them, sorted by their addresses. Empty if only the sample
    /// counts.
    pub rest: &'a [StackPage],
}

/// Why something of the stack could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    /// It is behind what was copied, at this address.
    Behind(u64),
    /// It is elsewhere.
    Elsewhere,
}

impl StackCopy<'_> {
    pub(crate) fn read(&self, address: u64) -> Result<u64, Outside> {
        let offset = address.wrapping_sub(self.base);
        let value = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.bytes.get(offset..)?.first_chunk());
        match value {
            Some(bytes) => Ok(u64::from_le_bytes(*bytes)),
            None if address >= self.base => self.read_behind(address).ok_or(Outside::Behind(address)),
            None => Err(Outside::Elsewhere),
        }
    }

    /// Where the sample's copy has this value last, in words of which only the bits of `mask` count.
    pub(crate) fn last_place_of(&self, value: u64, mask: u64) -> Option<u64> {
        let (words, _) = self.bytes.as_chunks();
        let index = words
            .iter()
            .rposition(|word| u64::from_le_bytes(*word) & mask == value)?;
        Some(self.base.wrapping_add(8 * index as u64))
    }

    #[cold]
    fn read_behind(&self, address: u64) -> Option<u64> {
        let after = self.rest.partition_point(|page| page.address <= address);
        let page = &self.rest[after.checked_sub(1)?];
        let offset = usize::try_from(address.checked_sub(page.address)?).ok()?;
        let bytes = page.bytes.get(offset..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }
}
