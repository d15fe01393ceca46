//! The libraries behind the codecs, each as far as its feature is on.
//!
//! Called by [`super`] only, which knows packets; here are bytes.

use std::io::{self, Read};

use super::Codec;

/// The level of deflate that upstream uses, and zlib's default. Configs cannot set it.
#[cfg(feature = "deflate")]
const DEFLATE_LEVEL: u32 = 6;
/// The distance in bytes over which matches are searched, as a power of two. A batch is hardly longer, and the memory of the highest levels grows
/// with it.
#[cfg(feature = "zstd")]
const ZSTD_WINDOW_LOG: u32 = 20;

/// The state that a codec keeps between batches.
pub(super) trait Engine: Send {
    /// Appends the compressed `bytes` to `out`.
    fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()>;
}

/// Whether the program has this codec.
pub(super) fn is_built_in(codec: Codec) -> bool {
    match codec {
        Codec::Deflate => cfg!(feature = "deflate"),
        Codec::Zstd { .. } => cfg!(feature = "zstd"),
    }
}

/// The engine of a codec that is built in.
pub(super) fn engine(codec: Codec) -> io::Result<Box<dyn Engine>> {
    match codec {
        #[cfg(feature = "deflate")]
        Codec::Deflate => Ok(Box::new(flate2::Compress::new(
            flate2::Compression::new(DEFLATE_LEVEL),
            true,
        ))),
        #[cfg(feature = "zstd")]
        Codec::Zstd { level } => {
            let mut compressor = zstd::bulk::Compressor::new(level)?;
            compressor.set_parameter(zstd::zstd_safe::CParameter::WindowLog(ZSTD_WINDOW_LOG))?;
            Ok(Box::new(compressor))
        }
        #[allow(unreachable_patterns)]
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Returns a reader that expands `compressed`, made with a codec of this kind; `None` if the codec is not built in.
#[cfg_attr(not(any(feature = "deflate", feature = "zstd")), allow(unused_variables))]
pub(super) fn decoder<'a>(kind: Codec, compressed: &'a [u8]) -> io::Result<Option<Box<dyn Read + 'a>>> {
    match kind {
        #[cfg(feature = "deflate")]
        Codec::Deflate => Ok(Some(Box::new(flate2::bufread::ZlibDecoder::new(compressed)))),
        #[cfg(feature = "zstd")]
        Codec::Zstd { .. } => Ok(Some(Box::new(zstd::stream::read::Decoder::with_buffer(
            compressed,
        )?))),
        #[allow(unreachable_patterns)]
        _ => Ok(None),
    }
}

#[cfg(feature = "deflate")]
impl Engine for flate2::Compress {
    fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.reset();
        // Traces typically shrink to a fifth.
        out.reserve(bytes.len() / 4 + 64);
        loop {
            let rest = &bytes[self.total_in() as usize..];
            // One call counts at most this many bytes.
            let flush = if rest.len() < u32::MAX as usize {
                flate2::FlushCompress::Finish
            } else {
                flate2::FlushCompress::None
            };
            match self.compress_vec(rest, out, flush).map_err(io::Error::other)? {
                flate2::Status::StreamEnd => return Ok(()),
                flate2::Status::Ok | flate2::Status::BufError => out.reserve(out.capacity()),
            }
        }
    }
}

#[cfg(feature = "zstd")]
impl Engine for zstd::bulk::Compressor<'static> {
    fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        out.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        self.compress_to_buffer(bytes, out).map(drop)
    }
}
