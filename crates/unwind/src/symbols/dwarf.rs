//! Lines and inlined functions, from debug information in the DWARF format. `addr2line` reads it.

use std::sync::Arc;

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, LittleEndian};

use super::Location;
use crate::elf::{Headers, Image, Unusable};
use crate::expand;

type Bytes = EndianArcSlice<LittleEndian>;

/// Bytes of one section, expanded. The largest seen, of a browser, has 1.5 GB.
const LARGEST: u64 = 4 << 30;
/// Functions that one address may be inlined into, at most.
const DEEPEST: usize = 256;

pub(super) struct Lines(Context<Bytes>);

impl Lines {
    /// `None` if the file has no debug information, or damaged.
    pub(super) fn read(image: &dyn Image, headers: &Headers) -> Option<Lines> {
        headers.section(b".debug_info")?;
        let dwarf = Dwarf::load(|id| -> Result<Bytes, Unusable> {
            let content = match headers.section(id.name().as_bytes()) {
                Some(section) => expand::section(image, headers, section, LARGEST, "debug information")?,
                None => Vec::new(),
            };
            Ok(Bytes::new(Arc::from(content), LittleEndian))
        });
        Context::from_dwarf(dwarf.ok()?).ok().map(Lines)
    }

    /// The functions at `address`, innermost first, with mangled names.
    pub(super) fn lookup(&self, address: u64) -> Vec<Location> {
        let mut locations = Vec::new();
        let Ok(mut frames) = self.0.find_frames(address).skip_all_loads() else {
            return locations;
        };
        while let Ok(Some(frame)) = frames.next() {
            let name = frame
                .function
                .as_ref()
                .and_then(|function| function.raw_name().ok());
            let place = frame.location.as_ref();
            locations.push(Location {
                function: name.map(|name| name.into_owned()),
                file: place.and_then(|place| place.file).map(str::to_owned),
                line: place.and_then(|place| place.line),
            });
            if locations.len() >= DEEPEST {
                break;
            }
        }
        locations
    }
}
