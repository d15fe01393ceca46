//! Sections of ELF files that are compressed, each to a bounded size.

use std::io::Read;

use object::LittleEndian;
use object::elf::{CompressionHeader64, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD};
use object::pod::from_bytes;

use crate::elf::{Headers, Image, Section, Unusable};

/// Bytes of one section, expanded. The largest seen, of a browser, has 1.5 GB.
const LARGEST: u64 = 4 << 30;
/// Memory that expanding `.gnu_debugdata` may take, in KB.
const XZ_MEMORY: u32 = 64 << 10;
/// Bytes of the ELF file in `.gnu_debugdata`.
const LARGEST_DEBUGDATA: u64 = 256 << 20;

const WHAT: &str = "debug information";

/// The content of a section, expanded.
///
/// # Errors
/// If it is outside of the file, too large, or damaged.
pub(crate) fn section(image: &dyn Image, headers: &Headers, section: Section) -> Result<Vec<u8>, Unusable> {
    let content = headers.large_content(image, section, LARGEST, WHAT)?;
    if !section.compressed {
        return Ok(content);
    }
    let (header, body) =
        from_bytes::<CompressionHeader64<LittleEndian>>(&content).map_err(|()| Unusable::Truncated(WHAT))?;
    let size = header.ch_size.get(LittleEndian);
    match header.ch_type.get(LittleEndian) {
        ELFCOMPRESS_ZLIB => read(flate2::read::ZlibDecoder::new(body), size),
        ELFCOMPRESS_ZSTD => read(
            zstd::Decoder::new(body).map_err(|error| Unusable::from_io(&error))?,
            size,
        ),
        _ => Err(Unusable::Unknown("compression of debug information")),
    }
}

/// The ELF file in `.gnu_debugdata`, which has symbols that a stripped file lacks.
///
/// # Errors
/// If it is damaged, or too large.
pub(crate) fn debugdata(content: &[u8]) -> Result<Vec<u8>, Unusable> {
    read(
        lzma_rust2::XzReader::new_mem_limit(content, false, XZ_MEMORY),
        LARGEST_DEBUGDATA,
    )
}

fn read(from: impl Read, limit: u64) -> Result<Vec<u8>, Unusable> {
    let limit = limit.min(LARGEST);
    let mut expanded = Vec::new();
    from.take(limit)
        .read_to_end(&mut expanded)
        .map_err(|_| Unusable::Truncated(WHAT))?;
    Ok(expanded)
}
