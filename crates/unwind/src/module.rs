//! An ELF file, or the vdso, as far as unwinding needs it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::elf::{Headers, Image, Segment, Unusable, address_of_mapping};
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

    /// The linker's entry in the note `NT_GNU_BUILD_ID`, in bytes; empty if there is none.
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

    /// The address, as the module counts them, of the first byte of an executable mapping that starts at `offset` in the file.
    pub(crate) fn address_of_mapping(&self, offset: u64) -> Option<u64> {
        address_of_mapping(&self.segments, offset)
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
