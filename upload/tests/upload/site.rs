//! The machine of a test: the recorder's folder with sealed files, and the uploader.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use ferretto_recorder::{FileName, Reason, SessionName};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const MACHINE: &str = "web-1";

/// Numbers that look random, from a seed.
pub(crate) struct Random(u64);

impl Random {
    /// Takes the seed from a failure's message, or another one.
    pub(crate) fn new() -> Random {
        let given = std::env::var("FERRETTO_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
        println!("FERRETTO_SEED={seed}");
        Random(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The multiplier is Knuth's for MMIX.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// An uploader that is killed with its value.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// See the [module](self).
pub(crate) struct Site {
    pub(crate) root: TempDir,
    variables: Vec<(&'static str, String)>,
    /// The contents of the sealed files.
    pub(crate) sealed: BTreeMap<String, Vec<u8>>,
    /// The objects that were seen whole, and their inodes: one that is uploaded again gets another.
    seen: BTreeMap<String, u64>,
}

impl Site {
    /// A site that uploads to a URL, with these variables in its environment.
    pub(crate) fn new(url: &str, variables: Vec<(&'static str, String)>) -> Site {
        let site = Site {
            root: tempfile::tempdir().unwrap(),
            variables,
            sealed: BTreeMap::new(),
            seen: BTreeMap::new(),
        };
        std::fs::create_dir(site.folder()).unwrap();
        site.set(url, "");
        site
    }

    /// Writes the settings.
    pub(crate) fn set(&self, url: &str, more: &str) {
        let state = self.root.path().join("state");
        let settings = format!(
            "folder = {:?}\n[upload]\nurl = {url:?}\nmachine = {MACHINE:?}\nstate = {state:?}\n{more}\n",
            self.folder()
        );
        std::fs::write(self.settings(), settings).unwrap();
    }

    fn settings(&self) -> PathBuf {
        self.root.path().join("recorder.toml")
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.root.path().join("sealed")
    }

    /// Seals a file of this size, as the recorder does; returns its name.
    pub(crate) fn seal(&mut self, size: usize) -> String {
        let number = self.sealed.len();
        let name = FileName {
            time: 1_795_730_177_123 + number as i64,
            session: SessionName::new("a").unwrap(),
            reason: Reason::new("b"),
        };
        let name = name.to_string();
        let mut random = Random(number as u64 ^ 0x9e37_79b9);
        let content: Vec<u8> = (0..size).map(|_| random.below(256) as u8).collect();
        let draft = self.folder().join(".draft-x");
        std::fs::write(&draft, &content).unwrap();
        std::fs::rename(draft, self.folder().join(&name)).unwrap();
        self.sealed.insert(name.clone(), content);
        name
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferretto-upload"));
        command.arg("--settings").arg(self.settings());
        command.env_clear().envs(self.variables.iter().cloned());
        command
    }

    pub(crate) fn start(&self) -> Running {
        Running(self.command().spawn().unwrap())
    }

    /// Makes it upload all files.
    pub(crate) fn once(&self) -> Output {
        self.command().arg("--once").output().unwrap()
    }

    pub(crate) fn once_well(&self) {
        let output = self.once();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Its memory.
    pub(crate) fn state(&self) -> Value {
        let state = std::fs::read(self.root.path().join("state/state.json"));
        state.map_or(Value::Null, |state| serde_json::from_slice(&state).unwrap())
    }

    /// Checks the objects below a folder: none is partial or was replaced. Returns the number of objects, and the names of other files there.
    pub(crate) fn check(&mut self, store: &Path) -> (usize, Vec<String>) {
        let Ok(entries) = std::fs::read_dir(store.join(MACHINE)) else {
            return (0, Vec::new());
        };
        let (mut objects, mut others) = (0, Vec::new());
        for entry in entries {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let Some(sealed) = self.sealed.get(&name) else {
                others.push(name);
                continue;
            };
            assert!(
                std::fs::read(entry.path()).unwrap() == *sealed,
                "{name} is not what was sealed"
            );
            let inode = entry.metadata().unwrap().ino();
            let before = self.seen.insert(name.clone(), inode);
            assert!(
                before.is_none_or(|before| before == inode),
                "{name} was uploaded twice"
            );
            objects += 1;
        }
        (objects, others)
    }
}
