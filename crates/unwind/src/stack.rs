//! A copy of the top of a thread's stack, as a sample has it.

/// Bytes that were at [`base`](Self::base) when the sample was taken (`PERF_SAMPLE_STACK_USER`). Nothing else of the process's memory is read
/// while its stack is unwound: the process has gone on since then.
#[derive(Debug, Clone, Copy)]
pub struct StackCopy<'a> {
    /// Address of the first byte: the stack pointer.
    pub base: u64,
    /// The bytes that the kernel copied (`dyn_size` of them).
    pub bytes: &'a [u8],
}

/// Why something of the stack could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    /// It is behind what was copied.
    Behind,
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
            None if address >= self.base => Err(Outside::Behind),
            None => Err(Outside::Elsewhere),
        }
    }
}
