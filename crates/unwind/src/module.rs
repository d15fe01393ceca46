//! An ELF file, or the vdso, as far as unwinding needs it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::elf::{Headers, Image, Segment, Unusable};
use crate::registers::Arch;
use crate::tables::Tables;

/// An ELF file that processes have mapped. The [`ModuleCache`](crate::ModuleCache) makes them, one for each file.
///
/// A module outlives its unwind tables: the cache drops them when it needs the memory, and reads them again when somebody asks.
#[derive(Debug)]
pub struct Module {
    /// Never that of another module of this process.
    serial: u64,
    arch: Arch,
    build_id: Box<[u8]>,
    load_bias: u64,
    segments: Box<[Segment]>,
    tables: Mutex<Option<Arc<Tables>>>,
    uses: AtomicU64,
}

impl Module {
    /// Reads a module.
    ///
    /// # Errors
    /// If it is not an ELF file for one of the processors of [`Arch`], or damaged.
    pub fn read(image: &dyn Image) -> Result<Module, Unusable> {
        let headers = Headers::read(image)?;
        let tables = Tables::read(image, &headers)?;
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Ok(Module {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            arch: headers.arch,
            build_id: headers.build_id.as_slice().into(),
            load_bias: headers.load_bias(),
            segments: headers.segments.as_slice().into(),
            tables: Mutex::new(Some(Arc::new(tables))),
            uses: AtomicU64::new(0),
        })
    }

    /// The processor that it is for.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// What the linker wrote into the note `NT_GNU_BUILD_ID`, in bytes; empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// `Mapping.load_bias` of traces: address less place in the file (`p_vaddr - p_offset`) of the first executable segment.
    pub fn load_bias(&self) -> u64 {
        self.load_bias
    }

    /// Tells it from all other modules of this process.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// The address, as the module counts them, of the first byte of an executable mapping of so many bytes from `offset` in the file.
    ///
    /// A mapping begins and ends with a page, a segment anywhere: the first page may have the end of the segment before as well.
    pub(crate) fn address_of(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.saturating_add(length);
        let mut executable = self.segments.iter().filter(|segment| segment.executable);
        let segment = executable.find(|segment| segment.offset < end && offset < segment.end())?;
        Some(segment.address.wrapping_add(offset).wrapping_sub(segment.offset))
    }

    /// The tables, unless they were dropped.
    pub(crate) fn tables(&self) -> Option<Arc<Tables>> {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.locked_tables().clone()
    }

    /// How often the tables were asked for.
    pub(crate) fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    pub(crate) fn has_tables(&self) -> bool {
        self.locked_tables().is_some()
    }

    pub(crate) fn drop_tables(&self) {
        *self.locked_tables() = None;
    }

    /// Takes over the tables of a module that was read from the same file.
    pub(crate) fn take_tables_of(&self, other: &Module) {
        let tables = other.locked_tables().take();
        *self.locked_tables() = tables;
    }

    /// Bytes that the tables take.
    pub(crate) fn table_bytes(&self) -> usize {
        self.locked_tables()
            .as_ref()
            .map_or(0, |tables| tables.memory_bytes())
    }

    fn locked_tables(&self) -> MutexGuard<'_, Option<Arc<Tables>>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_mapping_may_begin_within_the_segment_before() {
        let segment = |offset, file_size, address, executable| Segment {
            offset,
            file_size,
            address,
            executable,
        };
        let module = Module {
            serial: 1,
            arch: Arch::X86_64,
            build_id: Box::default(),
            load_bias: 0x1000,
            // As lld lays them out: no byte of the file is wasted, and addresses have the offset's place in their page.
            segments: [segment(0, 0x680, 0, false), segment(0x680, 0x2000, 0x1680, true)].into(),
            tables: Mutex::default(),
            uses: AtomicU64::default(),
        };
        assert_eq!(module.address_of(0, 0x3000), Some(0x1000));
        assert_eq!(module.address_of(0x1000, 0x2000), Some(0x2000));
        assert_eq!(module.address_of(0x4000, 0x1000), None);
    }
}
