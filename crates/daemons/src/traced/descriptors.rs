//! Extension descriptors: the schemas that vendors add to Perfetto's, which the daemon writes into every trace so that
//! it can be understood elsewhere.
//!
//! They are read once, when the daemon starts: a `FileDescriptorSet` in each file that `FERRETTO_EXTENSION_DESCRIPTORS` names (a list as in `PATH`),
//! else in the place where Android keeps its own. A file that cannot be read is left out with a line in the log.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ferretto_service::{DescriptorEncoding, ExtensionDescriptor};

/// Files to be read, separated by `:`.
const LIST: &str = "FERRETTO_EXTENSION_DESCRIPTORS";
/// The places of the files without the list. Upstream reads these on Android only; other systems have no such files.
const USUAL_PLACES: [&str; 2] = [
    "/etc/tracing_descriptors.gz",
    "/vendor/etc/tracing_descriptors.gz",
];
/// Largest file that is read, in bytes: every trace has it.
const MAX_FILE_SIZE: u64 = 16 * 1024 * 1024;

/// All extension descriptors of this machine.
pub(super) fn load() -> Vec<ExtensionDescriptor> {
    load_from(std::env::var_os(LIST))
}

fn load_from(list: Option<OsString>) -> Vec<ExtensionDescriptor> {
    let named = list.is_some();
    let paths: Vec<PathBuf> = match list {
        Some(list) => std::env::split_paths(&list)
            .filter(|path| !path.as_os_str().is_empty())
            .collect(),
        None => USUAL_PLACES.iter().map(PathBuf::from).collect(),
    };
    let mut descriptors = Vec::new();
    for path in paths {
        match read(&path) {
            Ok(bytes) => descriptors.push(ExtensionDescriptor {
                name: path.to_string_lossy().into_owned(),
                encoding: encoding(&bytes),
                bytes,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !named => {}
            Err(error) => crate::log::warning(format_args!(
                "cannot read the extension descriptors in {}: {error}; traces go without them",
                path.display()
            )),
        }
    }
    descriptors
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_SIZE + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        return Err(io::Error::other(format!(
            "it has more than {} MB",
            MAX_FILE_SIZE / 1024 / 1024
        )));
    }
    Ok(bytes)
}

/// The first bytes of a file tell whether it is compressed: those of gzip are no tag of a `FileDescriptorSet`.
fn encoding(bytes: &[u8]) -> DescriptorEncoding {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    if bytes.starts_with(&GZIP) {
        DescriptorEncoding::Gzip
    } else {
        DescriptorEncoding::Plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_list_are_taken_as_they_are_and_missing_ones_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, gzip) = (folder.path().join("plain"), folder.path().join("gzip"));
        std::fs::write(&plain, b"\x0a\x00").unwrap();
        std::fs::write(&gzip, b"\x1f\x8b\x08").unwrap();
        let missing = folder.path().join("missing");
        let list = std::env::join_paths([&plain, &missing, &gzip]).unwrap();
        let loaded = load_from(Some(list));
        let seen: Vec<(&[u8], DescriptorEncoding)> = loaded
            .iter()
            .map(|loaded| (loaded.bytes.as_slice(), loaded.encoding))
            .collect();
        let expected: [(&[u8], _); 2] = [
            (b"\x0a\x00", DescriptorEncoding::Plain),
            (b"\x1f\x8b\x08", DescriptorEncoding::Gzip),
        ];
        assert_eq!(seen, expected);
        assert_eq!(loaded[0].name, plain.to_string_lossy());
    }

    #[test]
    fn a_file_that_is_too_large_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        for (size, expected) in [(MAX_FILE_SIZE, 1), (MAX_FILE_SIZE + 1, 0)] {
            File::create(&path).unwrap().set_len(size).unwrap();
            assert_eq!(
                load_from(Some(path.clone().into())).len(),
                expected,
                "{size} bytes"
            );
        }
    }
}
