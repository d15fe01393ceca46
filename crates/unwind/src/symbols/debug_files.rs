//! Finds the symbols of a module: in the binary, or in a file that a distribution or a debugger put elsewhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::dwarf::Lines;
use super::{Symbols, SymbolsError};
use crate::elf::{Headers, Unusable};
use crate::symbol_table::SymbolTable;

/// Folders in which debug information may be.
#[derive(Debug, Clone, Default)]
pub struct DebugFiles {
    /// Folders laid out as `/usr/lib/debug` is: `.build-id/xx/yyyy.debug` by build id, and paths of binaries with the names that their section
    /// `.gnu_debuglink` says.
    pub debug_folders: Vec<PathBuf>,
    /// Where debuginfod's client keeps what it has fetched: `BUILDID/debuginfo` and `BUILDID/executable`. Nothing is fetched.
    pub debuginfod_cache: Option<PathBuf>,
}

/// An ELF file with symbols, as far as it is open.
struct Opened {
    file: File,
    headers: Headers,
}

impl DebugFiles {
    /// The folders of this machine and user. `variable` looks up an environment variable.
    pub fn of_user(variable: impl Fn(&str) -> Option<PathBuf>) -> DebugFiles {
        let cache = variable("DEBUGINFOD_CACHE_PATH")
            .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("debuginfod_client")))
            .or_else(|| Some(variable("HOME")?.join(".cache/debuginfod_client")));
        DebugFiles {
            debug_folders: vec![PathBuf::from("/usr/lib/debug")],
            debuginfod_cache: cache,
        }
    }

    /// Opens what describes the module with this build id, or at this path. With both, a file at the path with another build id is not used.
    ///
    /// # Errors
    /// If there is no such file, or the only one is damaged.
    pub fn open(&self, build_id: &[u8], path: Option<&Path>) -> Result<Symbols, SymbolsError> {
        let mut tried = Vec::new();
        let mut unusable = None;
        let mut open = |path: PathBuf, wanted: &[u8]| {
            let opened = open(&path).and_then(|opened| {
                let same = wanted.is_empty() || opened.headers.build_id == wanted;
                if same {
                    Ok(opened)
                } else {
                    Err(Unusable::OtherBuild)
                }
            });
            match opened {
                Ok(opened) => Some(opened),
                Err(reason) => {
                    let there = !matches!(reason, Unusable::Unreadable(_));
                    if there && unusable.is_none() {
                        unusable = Some((path.clone(), reason));
                    }
                    tried.push(path);
                    None
                }
            }
        };
        let binary = path.and_then(|path| open(path.to_owned(), build_id));
        // The binary may know its build id where the caller does not.
        let known = binary
            .as_ref()
            .map_or(build_id, |binary| &binary.headers.build_id)
            .to_owned();
        let mut found: Vec<Opened> = Vec::new();
        found.extend(
            self.by_build_id(&known)
                .into_iter()
                .find_map(|path| open(path, &known)),
        );
        if let (Some(binary), Some(path), true) = (&binary, path, found.is_empty()) {
            let link = debug_link(binary);
            let by_link = link.map_or(Vec::new(), |(name, checksum)| self.by_link(path, &name, checksum));
            found.extend(by_link.into_iter().find_map(|path| open(path, &known)));
        }
        found.extend(binary);
        if found.is_empty() {
            return Err(match unusable {
                Some((path, reason)) => SymbolsError::Unusable { path, reason },
                None => SymbolsError::NotFound(tried),
            });
        }
        let tables = found
            .iter()
            .map(|opened| SymbolTable::read(&opened.file, &opened.headers));
        let table = tables.reduce(SymbolTable::merge).unwrap_or_default();
        let lines = found
            .iter()
            .find_map(|opened| Lines::read(&opened.file, &opened.headers));
        Ok(Symbols { table, lines })
    }

    fn by_build_id(&self, build_id: &[u8]) -> Vec<PathBuf> {
        let hexadecimal: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let Some((first, rest)) = hexadecimal
            .split_at_checked(2)
            .filter(|(_, rest)| !rest.is_empty())
        else {
            return Vec::new();
        };
        let mut paths: Vec<PathBuf> = self
            .debug_folders
            .iter()
            .map(|folder| folder.join(format!(".build-id/{first}/{rest}.debug")))
            .collect();
        if let Some(cache) = &self.debuginfod_cache {
            paths.push(cache.join(&hexadecimal).join("debuginfo"));
            paths.push(cache.join(&hexadecimal).join("executable"));
        }
        paths
    }

    /// Files that the name in `.gnu_debuglink` may mean, and that have its checksum.
    fn by_link(&self, binary: &Path, name: &OsStr, checksum: u32) -> Vec<PathBuf> {
        let Some(folder) = binary.parent() else {
            return Vec::new();
        };
        let mut paths = vec![folder.join(name), folder.join(".debug").join(name)];
        if let Ok(relative) = folder.strip_prefix("/") {
            paths.extend(
                self.debug_folders
                    .iter()
                    .map(|debug| debug.join(relative).join(name)),
            );
        }
        paths.retain(|path| path != binary && checksum_of(path) == Some(checksum));
        paths
    }
}

fn open(path: &Path) -> Result<Opened, Unusable> {
    let file = File::open(path).map_err(|error| Unusable::from_io(&error))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(Unusable::NotRegular);
    }
    let headers = Headers::read(&file)?;
    Ok(Opened { file, headers })
}

/// The section `.gnu_debuglink`: the name of a file, padded to four bytes, and a checksum of its content.
fn debug_link(binary: &Opened) -> Option<(std::ffi::OsString, u32)> {
    let section = binary.headers.section(b".gnu_debuglink")?;
    let content = binary
        .headers
        .content(&binary.file, section, 4096, "link to debug information")
        .ok()?;
    let end = content.iter().position(|&byte| byte == 0)?;
    let name = OsStr::from_bytes(&content[..end]);
    // A name, not a path that leads elsewhere.
    if end == 0 || content[..end].contains(&b'/') {
        return None;
    }
    let checksum = content.get((end + 1).next_multiple_of(4)..)?.first_chunk()?;
    Some((name.to_owned(), u32::from_le_bytes(*checksum)))
}

fn checksum_of(path: &Path) -> Option<u32> {
    let mut file = File::open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut checksum = flate2::Crc::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(checksum.sum()),
            read => checksum.update(&buffer[..read]),
        }
    }
}
