//! The names of a profile's addresses, from the files of its modules.
//!
//! [`run`](super::run) and `ferretto profile` call it. A module is looked for where it was mapped, and by its build id where debug information is kept;
//! a file with another build id is not used. Each module with names becomes a `ModuleSymbols` packet, as upstream's symboliser writes it: the path and
//! the bytes of the build id of the mapping, and for each address of a frame its functions with lines, innermost first.

use std::path::{Path, PathBuf};

use ferretto_proto::write::{AddressSymbols, Line, ModuleSymbols, TracePacket};
use ferretto_unwind::symbols::{DebugFiles, Location, SymbolsError};
use ferretto_wire::Writer;

use crate::samples::{Profile, Unnamed};

/// The findings.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Addresses without a name.
    pub(crate) addresses: u64,
    /// Addresses that have a name now.
    pub(crate) named: u64,
    /// Modules without a file, or with one that has no names for them, and the reason.
    pub(crate) missing: Vec<Missing>,
}

/// A module whose addresses stay without names.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) path: String,
    pub(crate) build_id: String,
    pub(crate) reason: String,
    pub(crate) addresses: u64,
}

/// Returns the folders that may have debug information for this user.
pub(crate) fn debug_files() -> DebugFiles {
    DebugFiles::of_user(|name| std::env::var_os(name).map(PathBuf::from))
}

/// Passes an encoded packet to `write` for each module that has names, and adds the names to the profile.
///
/// # Errors
/// The errors of `write`.
pub(crate) fn symbolize<E>(
    profile: &mut Profile,
    files: &DebugFiles,
    write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Found, E> {
    let all = profile.unnamed();
    name(profile, all, files, write)
}

/// Does the same with these addresses only.
///
/// # Errors
/// The errors of `write`.
pub(crate) fn name<E>(
    profile: &mut Profile,
    all: impl IntoIterator<Item = Unnamed>,
    files: &DebugFiles,
    mut write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Found, E> {
    let mut found = Found::default();
    for unnamed in all {
        let addresses = unnamed.addresses.len() as u64;
        found.addresses += addresses;
        let path = Some(Path::new(&unnamed.path)).filter(|path| path.is_absolute());
        // Debug information is large, so only one module's is open.
        let symbols = match files.open(&unnamed.build_id, path) {
            Ok(symbols) => symbols,
            Err(error) => {
                found.missing.push(Missing {
                    reason: match error {
                        SymbolsError::NotFound(_) => "no file with this build id".to_owned(),
                        SymbolsError::Unusable { .. } => error.to_string(),
                    },
                    addresses,
                    build_id: unnamed.build_id_digits(),
                    path: unnamed.path,
                });
                continue;
            }
        };
        let mut named = 0;
        let mut packet = Writer::new();
        packet.nested(TracePacket::MODULE_SYMBOLS, |module| {
            module.bytes_field(ModuleSymbols::PATH, unnamed.path.as_bytes());
            if !unnamed.build_id.is_empty() {
                module.bytes_field(ModuleSymbols::BUILD_ID, &unnamed.build_id);
            }
            for address in &unnamed.addresses {
                let locations = symbols.lookup(*address);
                named += u64::from(address_symbols(module, *address, &locations));
            }
        });
        drop(symbols);
        found.named += named;
        if named == 0 {
            found.missing.push(Missing {
                reason: "its file has no names for them".to_owned(),
                addresses,
                build_id: unnamed.build_id_digits(),
                path: unnamed.path,
            });
            continue;
        }
        profile.add_symbols(packet.as_slice());
        write(packet.as_slice())?;
    }
    found
        .missing
        .sort_by_key(|missing| std::cmp::Reverse(missing.addresses));
    Ok(found)
}

/// Writes the functions at an address; returns whether there are any.
fn address_symbols(module: &mut Writer, address: u64, locations: &[Location]) -> bool {
    let named = || locations.iter().filter(|location| location.function.is_some());
    if named().next().is_none() {
        return false;
    }
    module.nested(ModuleSymbols::ADDRESS_SYMBOLS, |symbols| {
        symbols.varint_field(AddressSymbols::ADDRESS, address);
        for location in named() {
            symbols.nested(AddressSymbols::LINES, |line| {
                let name = location.function.as_deref().unwrap_or_default();
                line.bytes_field(Line::FUNCTION_NAME, name.as_bytes());
                if let Some(file) = &location.file {
                    line.bytes_field(Line::SOURCE_FILE_NAME, file.as_bytes());
                }
                if let Some(number) = location.line {
                    line.varint_field(Line::LINE_NUMBER, number.into());
                }
            });
        }
    });
    true
}
