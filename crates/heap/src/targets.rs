//! Which processes a config means.
//!
//! [`Sessions`](crate::sessions::Sessions) asks for each process that connects, and `marked` for each that runs. The rules are upstream's
//! `NormalizeCmdlines` and `GetCmdlineForPID`: a command line with a `*` is a pattern; of another one only the program's name counts, up to the first
//! `@`, and it must be that of the process, which is shortened in the same way. Upstream refuses patterns for processes that begin later; here they work.

use std::collections::BTreeSet;

use ferretto_profile::scope::matches_cmdline;

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Every process.
    pub all: bool,
    /// These.
    pub pids: BTreeSet<i32>,
    /// Programs with these names.
    pub names: BTreeSet<Vec<u8>>,
    /// Programs whose command lines match these.
    pub patterns: Vec<String>,
}

impl Targets {
    /// Adds processes by a command line of a config.
    ///
    /// # Errors
    /// If it can be that of no process: a clause.
    pub(crate) fn add_cmdline(&mut self, cmdline: &str) -> Result<(), String> {
        if cmdline.contains('*') {
            self.patterns.push(cmdline.to_owned());
            return Ok(());
        }
        match name_of(cmdline.as_bytes()) {
            b"" => Err(format!(
                "process_cmdline: {cmdline:?} has no name of a program in it"
            )),
            name => {
                self.names.insert(name.to_vec());
                Ok(())
            }
        }
    }

    /// Whether a process is meant. `cmdline` reads what `/proc/PID/cmdline` has, which is `None` if it cannot be read; it is called only if that makes a
    /// difference.
    pub(crate) fn include(&self, pid: i32, cmdline: impl FnOnce() -> Option<Vec<u8>>) -> bool {
        if self.all || self.pids.contains(&pid) {
            return true;
        }
        if self.names.is_empty() && self.patterns.is_empty() {
            return false;
        }
        // Without one a process has ended, or is a thread of the kernel.
        let Some(cmdline) = cmdline().filter(|cmdline| !cmdline.is_empty()) else {
            return false;
        };
        self.names.contains(name_of(&cmdline))
            || self
                .patterns
                .iter()
                .any(|pattern| matches_cmdline(pattern, &cmdline))
    }
}

/// The name of the program in a command line, up to the first `@`.
fn name_of(cmdline: &[u8]) -> &[u8] {
    let first = |text: &[u8], end: u8| text.iter().position(|&byte| byte == end).unwrap_or(text.len());
    let program = &cmdline[..first(cmdline, 0)];
    let program = &program[..first(program, b'@')];
    program.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(cmdlines: &[&str]) -> Targets {
        let mut targets = Targets::default();
        for cmdline in cmdlines {
            targets.add_cmdline(cmdline).expect("it is good");
        }
        targets
    }

    #[test]
    fn a_command_line_means_the_program_with_its_name() {
        let cases: [(&str, &[u8], bool); 9] = [
            ("server", b"/usr/bin/server\0-d\0", true),
            ("/opt/bin/server@1.0", b"/usr/bin/server@2.0\0", true),
            ("server", b"server\0", true),
            ("server", b"/usr/bin/server2\0", false),
            ("serv*", b"/usr/bin/server2\0", true),
            ("/usr/*", b"/usr/bin/server2\0", true),
            ("/usr/*", b"/opt/bin/server2\0", false),
            // Only a star makes a pattern, as upstream.
            ("serve?", b"server\0", false),
            ("server", b"", false),
        ];
        for (wanted, cmdline, expected) in cases {
            let found = targets(&[wanted]).include(7, || Some(cmdline.to_vec()));
            assert_eq!(found, expected, "{wanted} {}", String::from_utf8_lossy(cmdline));
        }
        assert!(Targets::default().add_cmdline("/bin/").is_err());
    }

    #[test]
    fn command_lines_are_read_only_where_they_make_a_difference() {
        let never = || panic!("it is not asked for");
        let everybody = Targets {
            all: true,
            ..targets(&["a"])
        };
        assert!(everybody.include(7, never));
        let one = Targets {
            pids: [7].into(),
            ..Targets::default()
        };
        assert!(one.include(7, never));
        assert!(!one.include(8, never));
        assert!(!targets(&["*"]).include(7, || None));
    }
}
