//! A copy of the Perfetto UI on this machine: a folder, or the archive `perfetto-ui.zip` that upstream releases for hosting it oneself.
//!
//! [`run`](super::run) and [`exhibition`](super::exhibition) call it. The copy is static: its `index.html` and a folder for each version. Any page
//! can make a browser request any name, and an archive can come from anywhere. So a name is decoded once and split. Nothing outside the folder is
//! opened, and no link is followed. An archive is never unpacked; its files are expanded while they are sent, up to the size in its directory.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use zip::CompressionMethod;
use zip::result::ZipError;

use super::body::{Contents, Resource};

/// The most files that are considered. The UI has about eighty.
const MOST_FILES: usize = 4096;
/// The largest file that is served. The UI's largest has 12 MB.
const LARGEST_FILE: u64 = 256 << 20;
/// The first page of the UI.
const INDEX: &str = "index.html";
/// The bytes of the first page that are checked.
const LOOKED_AT: u64 = 64 << 10;
/// A text that the UI's first page contains in every version.
const SIGN: &str = "data-perfetto_version";
/// The UI's service worker would outlive this process in the browser, and answer for any program that serves on this port next.
const SERVICE_WORKER: &str = "service_worker.js";

/// The source of copies.
pub(super) const RELEASES: &str = "https://github.com/google/perfetto/releases";

/// The reason why there is no UI.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoSite {
    #[error("cannot open the UI {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot read the archive of the UI {}: {reason}", path.display())]
    Archive { path: PathBuf, reason: String },
    #[error(
        "{} is no copy of the Perfetto UI, as {INDEX} {what}: name the folder that has it, or perfetto-ui.zip from {RELEASES}",
        path.display()
    )]
    NotTheUi { path: PathBuf, what: &'static str },
}

/// A copy of the UI.
#[derive(Debug)]
pub(super) enum Site {
    Folder(File),
    Archive {
        file: Rc<File>,
        entries: HashMap<String, Entry>,
    },
}

/// A file in an archive.
#[derive(Debug)]
pub(super) struct Entry {
    start: u64,
    compressed: u64,
    size: u64,
    packing: Packing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Stored,
    Deflated,
}

impl Site {
    /// Opens a copy, and checks that it is one.
    pub(super) fn open(path: &Path) -> Result<Site, NoSite> {
        let failed = |source| NoSite::Open {
            path: path.to_owned(),
            source,
        };
        // Opening a pipe would wait for its writer.
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let site = match (metadata.is_dir(), metadata.is_file()) {
            (true, _) => Site::Folder(File::open(path).map_err(failed)?),
            (_, true) => {
                let file = File::open(path).map_err(failed)?;
                archive(file).map_err(|reason| NoSite::Archive {
                    path: path.to_owned(),
                    reason,
                })?
            }
            _ => return Err(failed(io::ErrorKind::InvalidInput.into())),
        };
        let not_the_ui = |what| NoSite::NotTheUi {
            path: path.to_owned(),
            what,
        };
        let index = site
            .find("/")
            .map_err(failed)?
            .ok_or(not_the_ui("is not there"))?;
        let mut page = Vec::new();
        index.read_beginning(LOOKED_AT, &mut page).map_err(failed)?;
        match String::from_utf8_lossy(&page).contains(SIGN) {
            true => Ok(site),
            false => Err(not_the_ui("is not the UI's")),
        }
    }

    /// Returns the file for the decoded path of a request.
    pub(super) fn find(&self, path: &str) -> io::Result<Option<Resource>> {
        let Some(names) = names(path) else {
            return Ok(None);
        };
        let media_type = media_type(names.last().copied().unwrap_or_default());
        let (size, contents) = match self {
            Site::Folder(folder) => match file_in(folder, &names)? {
                None => return Ok(None),
                Some(file) => (file.metadata()?.len(), Contents::Whole(Rc::new(file))),
            },
            Site::Archive { file, entries } => match entries.get(&names.join("/")) {
                None => return Ok(None),
                Some(entry) => {
                    let range = entry.start..entry.start + entry.compressed;
                    let contents = match entry.packing {
                        Packing::Stored => Contents::Part(file.clone(), range),
                        Packing::Deflated => Contents::Inflated(file.clone(), range),
                    };
                    (entry.size, contents)
                }
            },
        };
        Ok(Some(Resource {
            media_type,
            size: Some(size),
            contents,
        }))
    }
}

/// Splits a path into names; `None` if one is empty, hidden, or leads elsewhere.
fn names(path: &str) -> Option<Vec<&str>> {
    let path = path.strip_prefix('/')?;
    let mut names: Vec<&str> = path.split('/').collect();
    if names.last() == Some(&"") {
        names.pop();
        names.push(INDEX);
    }
    let good = |name: &&str| {
        !name.is_empty() && !name.starts_with('.') && !name.contains(|c: char| c == '\\' || c.is_control())
    };
    (names.iter().all(good) && names != [SERVICE_WORKER]).then_some(names)
}

/// Returns the media type for a name. Browsers run scripts and WebAssembly only with the right type.
fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "wasm" => "application/wasm",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" | "md" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Opens the regular file at the end of these names. Links count as missing.
fn file_in(folder: &File, names: &[&str]) -> io::Result<Option<File>> {
    let (last, folders) = match names.split_last() {
        Some(split) => split,
        None => return Ok(None),
    };
    // Opening a pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut at = folder.try_clone()?;
    for (name, flags) in folders
        .iter()
        .map(|name| (name, flags | OFlags::DIRECTORY))
        .chain([(last, flags)])
    {
        use rustix::io::Errno;
        match rustix::fs::openat(&at, *name, flags, Mode::empty()) {
            Ok(next) => at = File::from(next),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::NXIO) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(at.metadata()?.is_file().then_some(at))
}

/// Returns the files of an archive by name.
fn archive(file: File) -> Result<Site, String> {
    let readable = file.try_clone().map_err(|error| error.to_string())?;
    let words = |error: ZipError| error.to_string();
    let mut archive = zip::ZipArchive::new(readable).map_err(words)?;
    if archive.len() > MOST_FILES {
        return Err(format!(
            "it has {} files, and the UI less than {MOST_FILES}",
            archive.len()
        ));
    }
    let mut entries = HashMap::new();
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(words)?;
        if !entry.is_file() || entry.is_symlink() {
            continue;
        }
        let name = entry.name().map_err(words)?.into_owned();
        let packing = match entry.compression() {
            _ if entry.encrypted() => return Err(format!("{name:?} is encrypted")),
            CompressionMethod::Stored => Packing::Stored,
            CompressionMethod::Deflated => Packing::Deflated,
            other => return Err(format!("{name:?} is compressed with {other}, not with deflate")),
        };
        let (size, compressed) = (entry.size(), entry.compressed_size());
        if size > LARGEST_FILE || compressed > LARGEST_FILE {
            return Err(format!(
                "{name:?} claims to have {size} bytes, more than any file of the UI"
            ));
        }
        if packing == Packing::Stored && size != compressed {
            return Err(format!("{name:?} has two sizes, {size} and {compressed}"));
        }
        let start = entry
            .data_start()
            .ok_or_else(|| format!("{name:?} is nowhere in it"))?;
        let entry = Entry {
            start,
            compressed,
            size,
            packing,
        };
        entries.insert(name, entry);
    }
    Ok(Site::Archive {
        file: Rc::new(file),
        entries,
    })
}

#[cfg(test)]
mod tests;
