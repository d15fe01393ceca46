//! `ferretto recorder upload`, what `status` says of uploads, and the files that were uploaded, for the recorder.
//!
//! Another program uploads, `ferretto-upload` (`upload/` in the repository), because its HTTP and TLS are larger than the whole recorder. This module
//! starts it, and reads its state file, whose form is in `upload/src/state.rs`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use chrono::{DateTime, Local};
use ferretto_recorder::{FileName, Upload};
use serde_json::Value;

use crate::figures::{Bytes, Counted};

const PROGRAM: &str = "ferretto-upload";
const STATE: &str = "state.json";

/// Becomes the uploader; returns only if that fails. It is the one beside this program, or else one in PATH.
pub(super) fn become_uploader(settings_file: &Path, once: Option<&str>) -> String {
    let beside = std::env::current_exe()
        .ok()
        .map(|program| program.with_file_name(PROGRAM))
        .filter(|program| program.exists());
    let program = beside.unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program)
        .arg("--settings")
        .arg(settings_file)
        .args(once)
        .exec();
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{PROGRAM} is neither beside this program nor in PATH: it is a program of its own; install it, or build it in the folder upload of the \
             sources"
        ),
        _ => format!("cannot start {}: {error}", program.display()),
    }
}

/// The files that were uploaded, as the uploader's state file has them.
#[derive(Debug, Default)]
pub(super) struct Uploaded {
    /// The file and the destination that the last answer is about.
    of: Option<(PathBuf, String)>,
    /// What was read last.
    seen: Option<Seen>,
}

/// Tells one state of the file from the next: the uploader puts a new file in the place of the old one.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    File([u64; 3]),
}

impl Uploaded {
    /// Returns the files, if they may be others than the last time. A file that cannot be read just now is read the next time. Until then it counts as it
    /// did, or if it is about another destination than before, nothing was uploaded.
    pub(super) fn news(&mut self, upload: Option<&Upload>) -> Option<BTreeSet<FileName>> {
        let of = upload.map(|upload| (upload.state.join(STATE), upload.url.clone()));
        let is_other = of != self.of;
        if is_other {
            (self.of, self.seen) = (of, None);
        }
        let Some((file, url)) = &self.of else {
            return is_other.then(BTreeSet::new);
        };
        let seen = match std::fs::metadata(file) {
            Ok(about) => Seen::File([about.ino(), about.mtime() as u64, about.mtime_nsec() as u64]),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Seen::Nothing,
            Err(_) => return is_other.then(BTreeSet::new),
        };
        if self.seen.as_ref() == Some(&seen) {
            return None;
        }
        let files = match seen {
            Seen::Nothing => BTreeSet::new(),
            Seen::File(_) => match std::fs::read(file) {
                Ok(text) => done(&text, url),
                Err(_) => return is_other.then(BTreeSet::new),
            },
        };
        self.seen = Some(seen);
        Some(files)
    }
}

/// The files of which this state says that they were uploaded to this destination, where each machine has a folder.
fn done(state: &[u8], url: &str) -> BTreeSet<FileName> {
    // Of a state that is none, nothing was uploaded.
    let state: Value = serde_json::from_slice(state).unwrap_or_default();
    let place = state["url"]
        .as_str()
        .and_then(|place| place.strip_prefix(url.trim_end_matches('/')));
    if !place.is_some_and(|below| below.starts_with('/')) {
        return BTreeSet::new();
    }
    let names = state["done"].as_array().into_iter().flatten();
    names
        .filter_map(Value::as_str)
        .filter_map(FileName::parse)
        .collect()
}

/// Returns what is to be said of uploads.
pub(super) fn status(upload: &Upload) -> String {
    let state = match std::fs::read(upload.state.join(STATE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return format!(
                "nothing has been uploaded to {} yet: {PROGRAM} has never run\n",
                upload.url
            );
        }
        read => read.and_then(|text| serde_json::from_slice::<Value>(&text).map_err(io::Error::from)),
    };
    let state = match state {
        Ok(state) => state,
        Err(error) => {
            let file = upload.state.join(STATE);
            return format!(
                "cannot read the state of uploads in {}: {error}\n",
                file.display()
            );
        }
    };
    let number = |name: &str| state[name].as_u64().unwrap_or_default();
    let mut text = format!(
        "{} with {} uploaded to {}; {} with {} waiting",
        Counted(number("uploaded"), "file"),
        Bytes(number("uploaded_bytes")),
        state["url"].as_str().unwrap_or(&upload.url),
        number("waiting"),
        Bytes(number("waiting_bytes")),
    );
    // Writing to a string cannot fail.
    if number("missed") > 0 {
        let _ = write!(text, "; {} deleted before", number("missed"));
    }
    text.push('\n');
    if let Some(error) = state["last_error"]["text"].as_str() {
        let at = state["last_error"]["at"].as_i64().unwrap_or_default();
        let at = DateTime::from_timestamp(at, 0)
            .unwrap_or_default()
            .with_timezone(&Local);
        let _ = writeln!(text, "the last upload failed at {}: {error}", at.format("%F %T"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload_with_state_in(folder: &Path) -> Upload {
        Upload {
            url: "s3://bucket".to_owned(),
            machine: None,
            max_bytes_per_second: None,
            state: folder.to_owned(),
        }
    }

    #[test]
    fn the_state_of_uploads_is_told() {
        let root = tempfile::tempdir().unwrap();
        let upload = upload_with_state_in(root.path());
        assert!(status(&upload).contains("has never run"));
        std::fs::write(root.path().join(STATE), "{ half").unwrap();
        assert!(status(&upload).starts_with("cannot read the state of uploads"));
        let state = r#"{"url": "s3://bucket/web-1", "uploaded": 1, "uploaded_bytes": 2048, "waiting": 3, "waiting_bytes": 4096, "missed": 5,
            "last_error": {"at": 1795730177, "text": "the bucket is gone"}}"#;
        std::fs::write(root.path().join(STATE), state).unwrap();
        let told = status(&upload);
        assert!(
            told.starts_with(
                "1 file with 2.0 KiB uploaded to s3://bucket/web-1; 3 with 4.0 KiB waiting; 5 deleted before\nthe last upload failed at 2026-"
            ),
            "{told}"
        );
        assert!(told.ends_with(": the bucket is gone\n"), "{told}");
    }

    #[test]
    fn uploaded_files_are_read_once_for_each_state_of_the_uploader() {
        let root = tempfile::tempdir().unwrap();
        let upload = upload_with_state_in(root.path());
        let mut uploaded = Uploaded::default();
        assert_eq!(uploaded.news(None), None);
        let known = |news: Option<BTreeSet<FileName>>| {
            let names = news.map(|files| files.iter().map(FileName::to_string).collect::<Vec<_>>());
            names.unwrap_or_else(|| vec!["as before".to_owned()])
        };
        assert_eq!(
            uploaded.news(Some(&upload)),
            Some(BTreeSet::new()),
            "another file"
        );
        assert_eq!(uploaded.news(Some(&upload)), None);
        let name = "20261126T215617.123Z-sched-r.pftrace";
        let write = |text: &str| {
            let draft = root.path().join("draft");
            std::fs::write(&draft, text).unwrap();
            std::fs::rename(&draft, root.path().join(STATE)).unwrap();
        };
        let state = |url: &str| format!(r#"{{"url": "{url}", "done": ["{name}", "another.txt"]}}"#);
        write(&state("s3://bucket/web-1"));
        assert_eq!(known(uploaded.news(Some(&upload))), [name]);
        assert_eq!(uploaded.news(Some(&upload)), None);
        // Files in another bucket do not count, even before the uploader has run once with the new destination.
        for place in ["s3://bucket-2/web-1", "s3://other/web-1", "s3://bucket"] {
            write(&state(place));
            assert_eq!(uploaded.news(Some(&upload)), Some(BTreeSet::new()), "{place}");
        }
        let mut moved = upload.clone();
        moved.url = "s3://other/".to_owned();
        write(&state("s3://bucket/web-1"));
        assert_eq!(known(uploaded.news(Some(&upload))), [name]);
        assert_eq!(uploaded.news(Some(&moved)), Some(BTreeSet::new()));
        write(&state("s3://other/web-1"));
        assert_eq!(known(uploaded.news(Some(&moved))), [name]);
        assert_eq!(uploaded.news(Some(&upload)), Some(BTreeSet::new()));
        write(&state("s3://bucket/web-1"));
        assert_eq!(known(uploaded.news(Some(&upload))), [name]);
        write("{ half");
        assert_eq!(uploaded.news(Some(&upload)), Some(BTreeSet::new()));
    }

    #[test]
    fn a_state_that_cannot_be_read_just_now_counts_as_before_and_is_read_later() {
        let root = tempfile::tempdir().unwrap();
        let upload = upload_with_state_in(root.path());
        let (file, name) = (root.path().join(STATE), "20261126T215617.123Z-sched-r.pftrace");
        let write = || {
            let state = format!(r#"{{"url": "s3://bucket/web-1", "done": ["{name}"]}}"#);
            std::fs::write(&file, state).unwrap();
        };
        let mut uploaded = Uploaded::default();
        write();
        assert_eq!(uploaded.news(Some(&upload)).map(|files| files.len()), Some(1));
        // A folder is there, and cannot be read.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(uploaded.news(Some(&upload)), None);
        let mut moved = upload.clone();
        moved.url = "s3://other".to_owned();
        assert_eq!(uploaded.news(Some(&moved)), Some(BTreeSet::new()));
        assert_eq!(uploaded.news(Some(&upload)), Some(BTreeSet::new()));
        std::fs::remove_dir(&file).unwrap();
        write();
        assert_eq!(uploaded.news(Some(&upload)).map(|files| files.len()), Some(1));
    }
}
