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
    /// Tells one state of the file from the next: the uploader puts a new file in the place of the old one.
    seen: Option<[u64; 3]>,
    /// The file that was seen.
    of: PathBuf,
}

impl Uploaded {
    /// Returns the files, if they may be others than the last time. Of a state that cannot be read, nothing was uploaded.
    pub(super) fn news(&mut self, upload: Option<&Upload>) -> Option<BTreeSet<FileName>> {
        let file = upload.map(|upload| upload.state.join(STATE)).unwrap_or_default();
        let about = std::fs::metadata(&file).ok();
        let seen = about.map(|about| [about.ino(), about.mtime() as u64, about.mtime_nsec() as u64]);
        if (&seen, &file) == (&self.seen, &self.of) {
            return None;
        }
        let state = std::fs::read(&file).ok();
        let state: Option<Value> = state.and_then(|text| serde_json::from_slice(&text).ok());
        (self.seen, self.of) = (seen, file);
        let done = state.as_ref().and_then(|state| state["done"].as_array());
        let names = done.into_iter().flatten().filter_map(Value::as_str);
        Some(names.filter_map(FileName::parse).collect())
    }
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
        write(&format!(r#"{{"done": ["{name}", "another.txt"]}}"#));
        let news = uploaded.news(Some(&upload)).unwrap();
        assert_eq!(news.iter().map(FileName::to_string).collect::<Vec<_>>(), [name]);
        assert_eq!(uploaded.news(Some(&upload)), None);
        write("{ half");
        assert_eq!(uploaded.news(Some(&upload)), Some(BTreeSet::new()));
    }
}
