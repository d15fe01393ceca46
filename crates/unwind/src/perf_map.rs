//! The names that a just-in-time compiler writes down for `perf`: `/tmp/perf-PID.map`, lines of `START SIZE NAME` with hexadecimal numbers
//! (`tools/perf/Documentation/jit-interface.txt` of Linux).
//!
//! The file is the process's own: its names are only shown. It is looked for below the process's root, under the process's id in its own pid namespace.
//! The CPU profiler names frames of memory without a file with it. Compilers append to it as they go, so it is read again when it has grown.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::fs::OFlags;
use thiserror::Error;

/// Functions that are kept.
const MOST: usize = 1 << 20;
/// Bytes of a line that are looked at.
const LONGEST_LINE: u64 = 4 << 10;

/// Why there are no names of just-in-time compiled functions.
#[derive(Debug, Error)]
pub enum PerfMapError {
    /// The file cannot be read; most processes have none.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// Anybody may put a file into `/tmp`.
    #[error("{path} belongs to user {owner}, who neither runs the process nor this program")]
    OtherOwner {
        /// The file.
        path: String,
        /// Its owner's user id.
        owner: u32,
    },
    /// It is a link, a pipe, or the like.
    #[error("{path} is not a regular file")]
    NotRegular {
        /// The file.
        path: String,
    },
}

/// Functions by absolute address. Of lines that overlap, the later counts: compilers reuse memory.
#[derive(Debug, Default, Clone)]
pub struct PerfMap {
    /// Sorted by start; they do not overlap.
    functions: Vec<Function>,
    names: String,
    /// Bytes that the file had when it was read.
    length: u64,
}

#[derive(Debug, Clone, Copy)]
struct Function {
    start: u64,
    end: u64,
    name: (u32, u32),
}

impl PerfMap {
    /// The names that the process with this id has written down so far, from at most so many bytes of its file. As for `perf`, the file has to belong
    /// to root or to the user of this program; the user who runs the process will do too.
    ///
    /// # Errors
    /// If there is no such file, or it is another user's.
    pub fn of_process(pid: u32, most_bytes: u64) -> Result<PerfMap, PerfMapError> {
        let mut map = PerfMap::default();
        map.renew(pid, most_bytes)?;
        Ok(map)
    }

    /// Reads the file of the same process again if its length has changed; returns whether it has.
    ///
    /// # Errors
    /// As for [`PerfMap::of_process`]. The names that are known stay.
    pub fn renew(&mut self, pid: u32, most_bytes: u64) -> Result<bool, PerfMapError> {
        let path = format!("/proc/{pid}/root/tmp/perf-{}.map", own_id(pid).unwrap_or(pid));
        let unreadable = |error| PerfMapError::Unreadable {
            path: path.clone(),
            error,
        };
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::options()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(&path)
            .map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(PerfMapError::NotRegular { path });
        }
        let owner = metadata.uid();
        let of_process = fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid());
        let own = rustix::process::geteuid().as_raw();
        if owner != 0 && owner != own && of_process.ok() != Some(owner) {
            return Err(PerfMapError::OtherOwner { path, owner });
        }
        let length = metadata.len();
        if length == self.length {
            return Ok(false);
        }
        *self = PerfMap::read(BufReader::new(file.take(most_bytes))).map_err(unreadable)?;
        self.length = length;
        Ok(true)
    }

    /// Parses such a file. Lines of another form are left out.
    ///
    /// # Errors
    /// If `text` cannot be read.
    pub fn read(mut text: impl BufRead) -> io::Result<PerfMap> {
        let mut map = PerfMap::default();
        let mut line = Vec::new();
        let mut starts_line = true;
        loop {
            line.clear();
            if (&mut text).take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let ends_line = line.last() == Some(&b'\n');
            if std::mem::replace(&mut starts_line, ends_line) && map.functions.len() < MOST {
                map.add(&line);
            }
        }
        map.settle();
        Ok(map)
    }

    fn add(&mut self, line: &[u8]) -> Option<()> {
        let line = String::from_utf8_lossy(line);
        let (start, rest) = line.trim_end().split_once(' ')?;
        let (size, name) = rest.split_once(' ')?;
        let number = |digits: &str| u64::from_str_radix(digits.trim_start_matches("0x"), 16).ok();
        let (start, size) = (number(start)?, number(size)?);
        let end = start.checked_add(size).filter(|&end| end > start)?;
        let from = u32::try_from(self.names.len()).ok()?;
        let to = u32::try_from(self.names.len() + name.len()).ok()?;
        self.names.push_str(name);
        self.functions.push(Function {
            start,
            end,
            name: (from, to),
        });
        Some(())
    }

    /// Sorts the functions and cuts those that later ones overlap.
    fn settle(&mut self) {
        let mut kept: std::collections::BTreeMap<u64, Function> = std::collections::BTreeMap::new();
        for function in std::mem::take(&mut self.functions) {
            // The one that reaches into this from before keeps its beginning, and its end if it has one behind.
            if let Some((_, before)) = kept.range_mut(..function.start).next_back()
                && before.end > function.start
            {
                let behind = *before;
                before.end = function.start;
                if behind.end > function.end {
                    kept.insert(
                        function.end,
                        Function {
                            start: function.end,
                            ..behind
                        },
                    );
                }
            }
            while let Some((&start, &inside)) = kept.range(function.start..function.end).next() {
                kept.remove(&start);
                if inside.end > function.end {
                    kept.insert(
                        function.end,
                        Function {
                            start: function.end,
                            ..inside
                        },
                    );
                }
            }
            kept.insert(function.start, function);
        }
        self.functions = kept.into_values().collect();
    }

    /// The name of the function that `pc` is in.
    pub fn lookup(&self, pc: u64) -> Option<&str> {
        let after = self.functions.partition_point(|function| function.start <= pc);
        let function = self.functions[..after]
            .last()
            .filter(|function| pc < function.end)?;
        self.names.get(function.name.0 as usize..function.name.1 as usize)
    }

    /// Bytes that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.names.len() + self.functions.len() * size_of::<Function>()
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// The process's id in its own pid namespace: the last number of `NSpid`.
fn own_id(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn later_lines_replace_what_they_overlap_of_earlier_ones() {
        let text = "1000 100 first\n2000 10 LazyCompile:~f file.js:1\nno line\n1040 20 second\n";
        let map = PerfMap::read(text.as_bytes()).expect("text");
        assert_eq!(map.lookup(0x1000), Some("first"));
        assert_eq!(map.lookup(0x1040), Some("second"));
        assert_eq!(map.lookup(0x105f), Some("second"));
        assert_eq!(map.lookup(0x1060), Some("first"));
        assert_eq!(map.lookup(0x1100), None);
        assert_eq!(map.lookup(0x2005), Some("LazyCompile:~f file.js:1"));
    }

    proptest! {
        #[test]
        fn every_address_has_the_name_of_the_last_line_that_has_it(lines in prop::collection::vec((0u64..64, 1u64..20), 0..20)) {
            let text: String = lines
                .iter()
                .enumerate()
                .map(|(number, (start, size))| format!("{start:x} {size:x} {number}\n"))
                .collect();
            let map = PerfMap::read(text.as_bytes()).expect("text");
            for address in 0..100 {
                let last = lines.iter().rposition(|(start, size)| (*start..start + size).contains(&address));
                let expected = last.map(|number| number.to_string());
                prop_assert_eq!(map.lookup(address), expected.as_deref());
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            PerfMap::read(bytes.as_slice()).expect("bytes");
        }
    }
}
