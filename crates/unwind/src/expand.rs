//! Sections of ELF files that are compressed, each to a bounded size.

use std::io::Read;

use object::LittleEndian;
use object::elf::{CompressionHeader64, ELFCOMPRESS_ZLIB};
use object::pod::from_bytes;

use crate::elf::{Headers, Image, Section, Unusable};

/// Memory that expanding `.gnu_debugdata` may take, in KB.
#[cfg(feature = "symbols")]
const XZ_MEMORY: u32 = 64 << 10;
/// Bytes of the ELF file in `.gnu_debugdata`.
#[cfg(feature = "symbols")]
const LARGEST_DEBUGDATA: u64 = 256 << 20;

/// The content of a section, expanded. `what` is its name in errors.
///
/// # Errors
/// If it is outside of the file, has more than `limit` bytes, or is damaged.
pub(crate) fn section(
    image: &dyn Image,
    headers: &Headers,
    section: Section,
    limit: u64,
    what: &'static str,
) -> Result<Vec<u8>, Unusable> {
    let content = headers.content(image, section, limit, what)?;
    if !section.compressed {
        return Ok(content);
    }
    let (header, body) =
        from_bytes::<CompressionHeader64<LittleEndian>>(&content).map_err(|()| Unusable::Truncated(what))?;
    let bytes = header.ch_size.get(LittleEndian);
    if bytes > limit {
        return Err(Unusable::TooLarge { what, bytes, limit });
    }
    match header.ch_type.get(LittleEndian) {
        ELFCOMPRESS_ZLIB => read(flate2::read::ZlibDecoder::new(body), bytes, what),
        // Sections that unwinding needs are not compressed in this way.
        #[cfg(feature = "symbols")]
        object::elf::ELFCOMPRESS_ZSTD => {
            let decoder = zstd::Decoder::new(body).map_err(|error| Unusable::from_io(&error))?;
            read(decoder, bytes, what)
        }
        _ => Err(Unusable::UnknownCompression(what)),
    }
}

/// The ELF file in `.gnu_debugdata`, which has symbols that a stripped file lacks.
///
/// # Errors
/// If it is damaged, or takes too much memory.
#[cfg(feature = "symbols")]
pub(crate) fn debugdata(content: &[u8]) -> Result<Vec<u8>, Unusable> {
    let reader = lzma_rust2::XzReader::new_mem_limit(content, false, XZ_MEMORY);
    read(reader, LARGEST_DEBUGDATA, "compressed symbols")
}

fn read(from: impl Read, limit: u64, what: &'static str) -> Result<Vec<u8>, Unusable> {
    let mut expanded = Vec::new();
    from.take(limit)
        .read_to_end(&mut expanded)
        .map_err(|_| Unusable::Truncated(what))?;
    Ok(expanded)
}
