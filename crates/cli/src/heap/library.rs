//! The library that is preloaded into a command: where it is, and the environment that loads it.
//!
//! [`run`](super::run) calls it before it records.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use ferretto_heap_client::LIBRARY_FILE;

use crate::perfetto::CommandLine;

/// Names the library, instead of looking for it.
pub(super) const LIBRARY: &str = "FERRETTO_HEAP_LIBRARY";
const PRELOAD: &str = "LD_PRELOAD";
/// Where it may be, from the folder of this program.
const FOLDERS: [&str; 3] = ["", "../lib/ferretto", "../lib"];

/// The library cannot be preloaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LibraryError {
    #[error("{named} names {path}, which cannot be read: {source}")]
    Named {
        named: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "there is no {LIBRARY_FILE}, which samples what programs allocate; looked for {}; build it with `cargo build --release -p ferretto-heap-preload`, or name it with --library or in {LIBRARY}",
        listed(.0)
    )]
    NotFound(Vec<PathBuf>),
    #[error(
        "cannot find this program's own file, beside which {LIBRARY_FILE} is: {0}; name that with --library"
    )]
    NoProgram(std::io::Error),
    #[error(
        "{0}: the dynamic linker takes no path with spaces or colons in {PRELOAD}; copy the library elsewhere and name it with --library"
    )]
    Separator(PathBuf),
}

fn listed(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// Finds the library: where the flag or the environment says, or near this program.
///
/// # Errors
/// If it is not there, or its path cannot be preloaded.
pub(super) fn find(flag: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let variable = std::env::var_os(LIBRARY).filter(|value| !value.is_empty());
    let named = match (flag, variable) {
        (Some(path), _) => Some(("--library", path.to_owned())),
        (None, Some(path)) => Some((LIBRARY, PathBuf::from(path))),
        (None, None) => None,
    };
    let found = match named {
        Some((named, path)) => {
            absolute(&path).map_err(|source| LibraryError::Named { named, path, source })?
        }
        None => {
            let program = std::env::current_exe().map_err(LibraryError::NoProgram)?;
            beside(&program)?
        }
    };
    let has_separator = found
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b" :".contains(byte));
    match has_separator {
        true => Err(LibraryError::Separator(found)),
        false => Ok(found),
    }
}

/// Returns the whole path of a file that can be read. Commands may work in other folders.
fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    std::fs::File::open(path)?;
    path.canonicalize()
}

fn beside(program: &Path) -> Result<PathBuf, LibraryError> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let candidates = FOLDERS.map(|place| folder.join(place).join(LIBRARY_FILE));
    let found = candidates.iter().find_map(|path| absolute(path).ok());
    found.ok_or_else(|| LibraryError::NotFound(candidates.into()))
}

/// Has a command load the library, before those that it is told to load already.
pub(super) fn preloaded(command: CommandLine, library: &Path) -> CommandLine {
    let value = preload(library, std::env::var_os(PRELOAD).as_deref());
    command.with_variable(PRELOAD, value)
}

fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_beside_the_program_or_in_the_folders_of_an_installation() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("bin/ferretto");
        std::fs::create_dir(root.path().join("bin")).unwrap();
        let error = beside(&program).unwrap_err().to_string();
        for said in [
            "bin/libferretto_heap.so",
            "../lib/ferretto/",
            "--library",
            LIBRARY,
        ] {
            assert!(error.contains(said), "{error}");
        }
        std::fs::create_dir_all(root.path().join("lib/ferretto")).unwrap();
        let installed = root.path().join("lib/ferretto").join(LIBRARY_FILE);
        std::fs::write(&installed, "").unwrap();
        assert_eq!(beside(&program).unwrap(), installed.canonicalize().unwrap());
        let built = root.path().join("bin").join(LIBRARY_FILE);
        std::fs::write(&built, "").unwrap();
        assert_eq!(beside(&program).unwrap(), built.canonicalize().unwrap());
    }

    #[test]
    fn a_path_that_the_linker_would_take_apart_is_refused() {
        let root = tempfile::Builder::new().prefix("with space").tempdir().unwrap();
        let library = root.path().join(LIBRARY_FILE);
        std::fs::write(&library, "").unwrap();
        let error = find(Some(&library)).unwrap_err().to_string();
        assert!(error.contains("spaces"), "{error}");
        let error = find(Some(&root.path().join("gone.so"))).unwrap_err().to_string();
        assert!(error.contains("--library names"), "{error}");
    }

    #[test]
    fn what_is_preloaded_already_stays() {
        let library = Path::new("/lib/ours.so");
        assert_eq!(preload(library, None), "/lib/ours.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/lib/ours.so");
        assert_eq!(
            preload(library, Some(OsStr::new("/a.so:/b.so"))),
            "/lib/ours.so:/a.so:/b.so"
        );
    }
}
