//! The kernel's list of its symbols, opened so that it shows addresses.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const KALLSYMS: &str = "/proc/kallsyms";
const KPTR_RESTRICT: &str = "/proc/sys/kernel/kptr_restrict";
/// How long a daemon waits for another one that lowers the setting. Whoever may read its file can hold its lock for longer.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The list with addresses, where the kernel hides them from who opens it now.
static RESERVED: Mutex<Option<File>> = Mutex::new(None);

/// Opens the list for this process's [`KernelSymbols`](super::KernelSymbols), if the kernel hides addresses from root, too (`kptr_restrict` 2). The kernel
/// decides at the opening (since Linux 4.15), so this lowers the setting for that long. To be called while the process has CAP_SYS_ADMIN, without which
/// the setting cannot be changed.
///
/// # Errors
/// If the setting was lowered and cannot be restored. What else fails shows when the list is read.
pub fn reserve() -> Result<(), NotRestored> {
    let Ok(setting) = Setting::open(KPTR_RESTRICT) else {
        return Ok(());
    };
    let list = setting.lowered_until(|| File::open(KALLSYMS), shows_addresses)?;
    *RESERVED.lock().unwrap_or_else(PoisonError::into_inner) = list;
    Ok(())
}

/// Reads the list from its beginning.
pub(super) fn read<T>(read: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
    read_either(&RESERVED, read)
}

fn read_either<T>(
    reserved: &Mutex<Option<File>>,
    read: impl FnOnce(&File) -> io::Result<T>,
) -> io::Result<T> {
    // Whoever reads it moves its position.
    match &*reserved.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(list) => {
            (&*list).rewind()?;
            read(list)
        }
        None => read(&File::open(KALLSYMS)?),
    }
}

/// The kernel hides its addresses from fewer programs than it was told to.
#[derive(Debug, thiserror::Error)]
#[error("kernel.kptr_restrict is {lowered} by now and cannot be set back to {found}: {source}")]
pub struct NotRestored {
    found: u8,
    lowered: u8,
    source: io::Error,
}

/// `kptr_restrict`, which no other daemon changes as long as this is open.
struct Setting {
    file: File,
    found: u8,
}

impl Setting {
    fn open(path: &str) -> io::Result<Setting> {
        let file = File::options().write(true).open(path)?;
        let until = Instant::now() + LOCK_PATIENCE;
        while let Err(error) = file.try_lock() {
            if Instant::now() > until {
                return Err(error.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let found = fs::read_to_string(path)?;
        let found = found.trim().parse().map_err(io::Error::other)?;
        Ok(Setting { file, found })
    }

    fn write(&self, value: u8) -> io::Result<()> {
        self.file.write_all_at(value.to_string().as_bytes(), 0)
    }

    /// Opens a list, each time with a lower setting, until it shows what it should. `None` if it never does, or does at once.
    ///
    /// A process that is killed restores nothing, so nothing but the opening happens while the setting is lower.
    fn lowered_until(
        &self,
        open: impl Fn() -> io::Result<File>,
        shows: impl Fn(&File) -> io::Result<bool>,
    ) -> Result<Option<File>, NotRestored> {
        let is_shown = |list: &io::Result<File>| {
            let list = list.as_ref();
            list.is_ok_and(|list| shows(list).unwrap_or(false))
        };
        if is_shown(&open()) {
            return Ok(None);
        }
        for lowered in (0..self.found).rev() {
            if self.write(lowered).is_err() {
                break;
            }
            let list = open();
            self.write(self.found).map_err(|source| NotRestored {
                found: self.found,
                lowered,
                source,
            })?;
            if is_shown(&list) {
                return Ok(list.ok());
            }
        }
        Ok(None)
    }
}

/// Whether the list that was just opened has addresses.
fn shows_addresses(mut list: &File) -> io::Result<bool> {
    let mut start = [0; 4096];
    let read = list.read(&mut start)?;
    // On some kernels the first lines are zero even if addresses are shown.
    let lines = std::str::from_utf8(&start[..read]).unwrap_or_default().lines();
    Ok(lines
        .map_while(|line| line.split_once(' '))
        .any(|(address, _)| address.bytes().any(|b| b != b'0')))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::test_files::TempDir;

    /// A folder with a `kptr_restrict`, and two lists of which the kernel opens one.
    struct Proc {
        folder: TempDir,
        setting: Setting,
        /// The highest setting at which addresses are shown.
        shown_at: u8,
        /// The settings at which the list was opened.
        opened_at: RefCell<Vec<u8>>,
    }

    impl Proc {
        fn new(setting: &str, shown_at: u8) -> Proc {
            let folder = TempDir::new("kallsyms");
            folder.write("kptr_restrict", setting);
            folder.write("hidden", "0000000000000000 T _text\n0000000000000000 T start\n");
            folder.write("shown", "0000000000000000 A first\nffffffff81000000 T _text\n");
            Proc {
                setting: Setting::open(folder.path().join("kptr_restrict").to_str().unwrap()).unwrap(),
                folder,
                shown_at,
                opened_at: RefCell::default(),
            }
        }

        fn value(&self) -> String {
            fs::read_to_string(self.folder.path().join("kptr_restrict")).unwrap()
        }

        /// Whether there is a list with addresses in the end, and the settings at which lists were opened.
        fn reserve(&self) -> (bool, Vec<u8>) {
            let open = || {
                let value = self.value().trim().parse().unwrap();
                self.opened_at.borrow_mut().push(value);
                let list = if value <= self.shown_at { "shown" } else { "hidden" };
                File::open(self.folder.path().join(list))
            };
            let shows = |list: &File| {
                assert_eq!(
                    self.value(),
                    format!("{}\n", self.setting.found),
                    "while it is read"
                );
                shows_addresses(list)
            };
            let list = self.setting.lowered_until(open, shows).unwrap();
            (list.is_some(), self.opened_at.take())
        }
    }

    #[test]
    fn the_setting_is_lowered_by_as_little_as_needed_and_for_the_opening_alone() {
        for (found, shown_at, expected) in [
            ("2\n", 2, (false, vec![2])),
            ("2\n", 1, (true, vec![2, 1])),
            ("2\n", 0, (true, vec![2, 1, 0])),
            ("1\n", 0, (true, vec![1, 0])),
            ("0\n", 0, (false, vec![0])),
        ] {
            let proc = Proc::new(found, shown_at);
            assert_eq!(proc.reserve(), expected, "{found:?} {shown_at}");
            assert_eq!(proc.value(), found);
        }
    }

    #[test]
    fn lists_that_cannot_be_opened_or_show_nothing_leave_the_setting_as_it_was() {
        let proc = Proc::new("2\n", 1);
        let fails = || Err(io::Error::from(io::ErrorKind::NotFound));
        let list = proc.setting.lowered_until(fails, shows_addresses);
        assert!(list.unwrap().is_none());
        assert_eq!(proc.value(), "2\n");
        let hidden = || File::open(proc.folder.path().join("hidden"));
        let list = proc.setting.lowered_until(hidden, shows_addresses);
        assert!(list.unwrap().is_none());
        assert_eq!(proc.value(), "2\n");
    }

    #[test]
    fn two_daemons_do_not_lower_the_setting_at_once() {
        let proc = Proc::new("2\n", 1);
        let path = proc.folder.path().join("kptr_restrict");
        assert!(
            Setting::open(path.to_str().unwrap()).is_err(),
            "as long as the first has it"
        );
        drop(proc.setting);
        assert_eq!(Setting::open(path.to_str().unwrap()).unwrap().found, 2);
    }

    /// Those who read the reserved list again find its beginning.
    #[test]
    fn a_reserved_list_is_read_from_its_beginning_each_time() {
        let proc = Proc::new("2\n", 1);
        let shown = File::open(proc.folder.path().join("shown")).unwrap();
        assert!(shows_addresses(&shown).unwrap());
        let kept = Mutex::new(Some(shown));
        for _ in 0..2 {
            let text = read_either(&kept, |list| io::read_to_string(list)).unwrap();
            assert_eq!(text.lines().count(), 2);
        }
    }
}
