//! Reads what unwinding needs of an ELF file, and nothing else of it.
//!
//! [`Module`](crate::Module) calls this. The file is another's: it may be of any length, change while it is read, and say anything. Its parts are
//! read with `pread` into memory of our own, because mapping it would end in SIGBUS if it became shorter. Every size is checked against the file's
//! own and against a limit before memory is taken for it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};
use object::pod::{from_bytes, slice_from_bytes};
use object::read::elf::NoteIterator;
use thiserror::Error;

use crate::registers::Arch;

type FileHeader = FileHeader64<LittleEndian>;
type ProgramHeader = ProgramHeader64<LittleEndian>;
type SectionHeader = SectionHeader64<LittleEndian>;

/// Program headers that are looked at; linkers write about ten.
const MOST_SEGMENTS: usize = 256;
/// Section headers that are looked at. There is no program with more in its file's header.
const MOST_SECTIONS: usize = 1 << 16;
/// Bytes of the sections' names.
const LONGEST_NAMES: u64 = 4 << 20;
/// Bytes of a segment of notes.
const LONGEST_NOTES: u64 = 64 << 10;
/// Bytes of a build id; linkers write 8, 16 or 20.
const LONGEST_BUILD_ID: usize = 64;

/// Why there is no [`Module`](crate::Module) for a mapping.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unusable {
    /// The file is of another kind.
    #[error("it is not an ELF file")]
    NotElf,
    /// It is an ELF file that this crate does not know.
    #[error("it is an ELF file for another kind of processor")]
    OtherProcessor,
    /// Headers or sections lie outside of the file.
    #[error("its {0} are outside of the file")]
    Truncated(&'static str),
    /// A part is larger than any that is known.
    #[error("its {what} have {bytes} bytes, which is more than the {limit} that are read")]
    TooLarge {
        /// Which part.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The largest that is read.
        limit: u64,
    },
    /// Its tables are made so that reading them takes very long.
    #[error("its {0} take too much work to read")]
    TooCostly(&'static str),
    /// The name leads to another file than the one that is mapped, or to none, and the kernel does not give the mapped one.
    #[error("it was replaced or removed after it was mapped")]
    Replaced,
    /// It is no regular file, so reading it could do anything.
    #[error("it is not a regular file")]
    NotRegular,
    /// Its file system, of this type, may have a server that any user has started and that never answers.
    #[error("it is on a file system of type {0}, which may not answer")]
    Untrusted(Box<str>),
    /// The process has ended.
    #[error("the process has ended")]
    ProcessGone,
    /// The kernel refuses it: the error number.
    #[error("it cannot be read: {}", io::Error::from_raw_os_error(*.0))]
    Unreadable(i32),
    /// It has another build id.
    #[error("it is another build")]
    OtherBuild,
    /// A part is compressed in a way that this crate does not know.
    #[error("its {0} are compressed in a way that is not known")]
    UnknownCompression(&'static str),
    /// There is nothing to read: memory without a file.
    #[error("it is not a file")]
    NoFile,
}

impl Unusable {
    pub(crate) fn from_io(error: &io::Error) -> Unusable {
        Unusable::Unreadable(
            error
                .raw_os_error()
                .unwrap_or(rustix::io::Errno::IO.raw_os_error()),
        )
    }
}

/// Bytes of an ELF file, wherever they are.
pub trait Image {
    /// Reads some bytes from `offset` on, and returns how many; none at the end.
    ///
    /// # Errors
    /// As the file's system call says.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// How many there are.
    ///
    /// # Errors
    /// As the file's system call says.
    fn size(&self) -> io::Result<u64>;
}

impl Image for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Image for &[u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
        let rest = rest.unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// Reads a part of `image`. `what` is its name in errors.
pub(crate) fn read_part(
    image: &dyn Image,
    image_size: u64,
    part: Range<u64>,
    limit: u64,
    what: &'static str,
) -> Result<Vec<u8>, Unusable> {
    let bytes = part
        .end
        .checked_sub(part.start)
        .ok_or(Unusable::Truncated(what))?;
    if part.end > image_size {
        return Err(Unusable::Truncated(what));
    }
    if bytes > limit {
        return Err(Unusable::TooLarge { what, bytes, limit });
    }
    let mut buffer = vec![0; usize::try_from(bytes).map_err(|_| Unusable::Truncated(what))?];
    let mut filled = 0;
    while filled < buffer.len() {
        match image.read_at(part.start + filled as u64, &mut buffer[filled..]) {
            // It has become shorter.
            Ok(0) => return Err(Unusable::Truncated(what)),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Unusable::from_io(&error)),
        }
    }
    Ok(buffer)
}

/// A part of the file that the loader maps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) file_size: u64,
    pub(crate) address: u64,
    pub(crate) executable: bool,
}

/// Bytes of the largest pages.
const LARGEST_PAGE: u64 = 64 << 10;

/// The address, as the file counts them, of the first byte of an executable mapping that starts at `offset` in the file. Mappings start with a page,
/// and so often before their segment, with the end of the one before.
pub(crate) fn address_of_mapping(segments: &[Segment], offset: u64) -> Option<u64> {
    let executable = || segments.iter().filter(|segment| segment.executable);
    let within = executable().find(|segment| {
        let place = offset.checked_sub(segment.offset);
        place.is_some_and(|place| place < segment.file_size)
    });
    let behind = || {
        executable().find(|segment| {
            let gap = segment.offset.checked_sub(offset);
            gap.is_some_and(|gap| gap < LARGEST_PAGE)
        })
    };
    let segment = within.or_else(behind)?;
    Some(segment.address.wrapping_add(offset.wrapping_sub(segment.offset)))
}

/// A section that unwinding or symbols need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) compressed: bool,
}

impl Section {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.size)
    }
}

/// The headers of an ELF file.
#[derive(Debug)]
pub(crate) struct Headers {
    pub(crate) arch: Arch,
    /// In the order of the file.
    pub(crate) segments: Vec<Segment>,
    /// Where PT_GNU_EH_FRAME says that `.eh_frame_hdr` is.
    pub(crate) eh_frame_hdr: Option<Section>,
    pub(crate) build_id: Vec<u8>,
    sections: SectionTable,
    pub(crate) image_size: u64,
}

#[derive(Debug, Default)]
struct SectionTable {
    headers: Vec<u8>,
    count: usize,
    names: Vec<u8>,
}

impl Headers {
    pub(crate) fn read(image: &dyn Image) -> Result<Headers, Unusable> {
        let image_size = image.size().map_err(|error| Unusable::from_io(&error))?;
        let part = |part, limit, what| read_part(image, image_size, part, limit, what);
        let header_size = size_of::<FileHeader>() as u64;
        if image_size < header_size {
            return Err(Unusable::NotElf);
        }
        let bytes = part(0..header_size, header_size, "headers")?;
        let (header, _) = from_bytes::<FileHeader>(&bytes).map_err(|()| Unusable::NotElf)?;
        if header.e_ident.magic != elf::ELFMAG {
            return Err(Unusable::NotElf);
        }
        let endian = LittleEndian;
        let known = header.e_ident.class == elf::ELFCLASS64 && header.e_ident.data == elf::ELFDATA2LSB;
        let arch = match header.e_machine.get(endian) {
            elf::EM_X86_64 if known => Arch::X86_64,
            elf::EM_AARCH64 if known => Arch::Aarch64,
            _ => return Err(Unusable::OtherProcessor),
        };

        let count = usize::from(header.e_phnum.get(endian)).min(MOST_SEGMENTS);
        let table = size_of::<ProgramHeader>() * count;
        let start = header.e_phoff.get(endian);
        let bytes = part(
            start..start.saturating_add(table as u64),
            table as u64,
            "program headers",
        )?;
        let (program_headers, _) = slice_from_bytes::<ProgramHeader>(&bytes, count)
            .map_err(|()| Unusable::Truncated("program headers"))?;
        let mut headers = Headers {
            arch,
            segments: Vec::new(),
            eh_frame_hdr: None,
            build_id: Vec::new(),
            sections: SectionTable::default(),
            image_size,
        };
        for program_header in program_headers {
            let (offset, size) = (
                program_header.p_offset.get(endian),
                program_header.p_filesz.get(endian),
            );
            let address = program_header.p_vaddr.get(endian);
            match program_header.p_type.get(endian) {
                elf::PT_LOAD => headers.segments.push(Segment {
                    offset,
                    file_size: size,
                    address,
                    executable: program_header.p_flags.get(endian).0 & elf::PF_X.0 != 0,
                }),
                elf::PT_GNU_EH_FRAME => {
                    headers.eh_frame_hdr = Some(Section {
                        address,
                        offset,
                        size,
                        compressed: false,
                    });
                }
                elf::PT_NOTE if headers.build_id.is_empty() => {
                    // Not having a build id is no reason to have no frames.
                    let notes =
                        part(offset..offset.saturating_add(size), LONGEST_NOTES, "notes").unwrap_or_default();
                    headers.build_id = build_id(&notes, program_header.p_align.get(endian));
                }
                _ => {}
            }
        }
        headers.sections = SectionTable::read(image, image_size, header).unwrap_or_default();
        Ok(headers)
    }

    /// The section called `name`, if it is in the file.
    pub(crate) fn section(&self, name: &[u8]) -> Option<Section> {
        let (headers, _) =
            slice_from_bytes::<SectionHeader>(&self.sections.headers, self.sections.count).ok()?;
        headers.iter().find_map(|header| {
            let start = header.sh_name.get(LittleEndian) as usize;
            let rest = self.sections.names.get(start..)?.strip_prefix(name)?;
            let has_content = header.sh_type.get(LittleEndian) != elf::SHT_NOBITS;
            (rest.first() == Some(&0) && has_content).then(|| Section {
                address: header.sh_addr.get(LittleEndian),
                offset: header.sh_offset.get(LittleEndian),
                size: header.sh_size.get(LittleEndian),
                compressed: header.sh_flags.get(LittleEndian).0 & elf::SHF_COMPRESSED.0 != 0,
            })
        })
    }

    /// The addresses of the sections that have any, sorted; also of those whose content is in another file.
    pub(crate) fn section_addresses(&self) -> Vec<Range<u64>> {
        let headers = slice_from_bytes::<SectionHeader>(&self.sections.headers, self.sections.count);
        let (headers, _) = headers.unwrap_or_default();
        let mut ranges: Vec<Range<u64>> = headers
            .iter()
            .filter(|header| header.sh_flags.get(LittleEndian).0 & elf::SHF_ALLOC.0 != 0)
            .map(|header| {
                let start = header.sh_addr.get(LittleEndian);
                start..start.saturating_add(header.sh_size.get(LittleEndian))
            })
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    /// The bytes of a section, of which there may be at most `limit`.
    pub(crate) fn content(
        &self,
        image: &dyn Image,
        section: Section,
        limit: u64,
        what: &'static str,
    ) -> Result<Vec<u8>, Unusable> {
        read_part(image, self.image_size, section.range(), limit, what)
    }

    /// From `address`, as the file counts them, to the end of its segment.
    pub(crate) fn segment_from(&self, address: u64) -> Option<Section> {
        self.segments.iter().find_map(|segment| {
            let within = address.checked_sub(segment.address)?;
            let size = segment.file_size.checked_sub(within)?;
            Some(Section {
                address,
                offset: segment.offset.checked_add(within)?,
                size,
                compressed: false,
            })
        })
    }

    /// The difference between the first executable segment's address and its place in the file.
    pub(crate) fn load_bias(&self) -> u64 {
        let first = self.segments.iter().find(|segment| segment.executable);
        first.map_or(0, |segment| segment.address.wrapping_sub(segment.offset))
    }
}

impl SectionTable {
    /// `None` if there are no sections, or if what should be there is not: a stripped file, or the memory of one.
    fn read(image: &dyn Image, image_size: u64, header: &FileHeader) -> Option<SectionTable> {
        let count = usize::from(header.e_shnum.get(LittleEndian)).min(MOST_SECTIONS);
        let start = header.e_shoff.get(LittleEndian);
        let table = (size_of::<SectionHeader>() * count) as u64;
        let headers = read_part(
            image,
            image_size,
            start..start.checked_add(table)?,
            table,
            "section headers",
        )
        .ok()?;
        let (sections, _) = slice_from_bytes::<SectionHeader>(&headers, count).ok()?;
        let names = sections.get(usize::from(header.e_shstrndx.get(LittleEndian).0))?;
        let start = names.sh_offset.get(LittleEndian);
        let end = start.checked_add(names.sh_size.get(LittleEndian))?;
        let names = read_part(image, image_size, start..end, LONGEST_NAMES, "names of sections").ok()?;
        Some(SectionTable {
            headers,
            count,
            names,
        })
    }
}

/// The build id among `notes`; empty if there is none.
fn build_id(notes: &[u8], align: u64) -> Vec<u8> {
    let Ok(mut notes) = NoteIterator::<FileHeader>::new(LittleEndian, align, notes) else {
        return Vec::new();
    };
    while let Ok(Some(note)) = notes.next() {
        let is_build_id =
            note.name() == elf::ELF_NOTE_GNU && note.n_type(LittleEndian) == elf::NT_GNU_BUILD_ID;
        if is_build_id && note.desc().len() <= LONGEST_BUILD_ID {
            return note.desc().to_vec();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests;
