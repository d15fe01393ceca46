//! The parts of a file that the dynamic linker reads.
//!
//! The command line asks before it preloads a library into a program. As in [`elf`](crate::elf), the file may say anything, and everything is bounded.

use object::LittleEndian;
use object::elf::{DT_NEEDED, DT_NULL, Dyn64, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, Sym64};
use object::pod::slice_from_bytes;

use crate::elf::{Headers, Image, Unusable};

/// Bytes of a section. The largest tables of dynamic symbols that are known have some 100 MB.
const LARGEST: u64 = 256 << 20;

/// A file's statements to the dynamic linker.
#[derive(Debug)]
pub struct DynamicLinking {
    entries: Vec<u8>,
    symbols: Vec<u8>,
    names: Vec<u8>,
}

impl DynamicLinking {
    /// Reads it. A file without sections says nothing.
    ///
    /// # Errors
    /// If it is no ELF file of a known processor, or it cannot be read.
    pub fn read(image: &dyn Image) -> Result<DynamicLinking, Unusable> {
        let headers = Headers::read(image)?;
        let content = |name: &[u8]| match headers.section(name) {
            Some(section) => headers.content(image, section, LARGEST, "sections for the dynamic linker"),
            None => Ok(Vec::new()),
        };
        Ok(DynamicLinking {
            entries: content(b".dynamic")?,
            symbols: content(b".dynsym")?,
            names: content(b".dynstr")?,
        })
    }

    /// Whether other files may call the function of this name that the file defines.
    pub fn defines(&self, function: &[u8]) -> bool {
        let count = self.symbols.len() / size_of::<Sym64<LittleEndian>>();
        let Ok((symbols, _)) = slice_from_bytes::<Sym64<LittleEndian>>(&self.symbols, count) else {
            return false;
        };
        symbols.iter().any(|symbol| {
            let (kind, binding) = (symbol.st_type(), symbol.st_bind());
            // A symbol of another file may have an address here all the same: that of the stub that calls it.
            symbol.st_shndx.get(LittleEndian).0 != 0
                && (kind == STT_FUNC || kind == STT_GNU_IFUNC)
                && (binding == STB_GLOBAL || binding == STB_WEAK)
                && self.name(symbol.st_name.get(LittleEndian).into()) == Some(function)
        })
    }

    /// The names of the libraries that the file needs.
    pub fn needed(&self) -> impl Iterator<Item = &[u8]> {
        let count = self.entries.len() / size_of::<Dyn64<LittleEndian>>();
        let entries = slice_from_bytes::<Dyn64<LittleEndian>>(&self.entries, count);
        let entries = entries.map_or(&[][..], |(entries, _)| entries).iter();
        entries
            .take_while(|entry| entry.d_tag.get(LittleEndian) != DT_NULL)
            .filter(|entry| entry.d_tag.get(LittleEndian) == DT_NEEDED)
            .filter_map(|entry| self.name(entry.d_val.get(LittleEndian)))
    }

    fn name(&self, at: u64) -> Option<&[u8]> {
        let rest = self.names.get(usize::try_from(at).ok()?..)?;
        rest.split(|byte| *byte == 0).next()
    }
}
