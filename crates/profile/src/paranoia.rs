//! The kernel's demands on programs that sample, as `/proc/sys/kernel/perf_event_paranoid` sets it.
//!
//! `cpu` says it to those whom the kernel has refused, the daemon keeps its rights by it, and the doctor foretells it.

use std::fs;

/// The file with the setting.
pub const SETTING: &str = "/proc/sys/kernel/perf_event_paranoid";

/// The kernel's setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paranoia(i32);

impl Paranoia {
    /// This kernel's. `None` where it cannot be read.
    pub fn of_this_kernel() -> Option<Paranoia> {
        let level = fs::read_to_string(SETTING).ok()?;
        Paranoia::parse(&level)
    }

    /// Reads the file's text.
    pub fn parse(level: &str) -> Option<Paranoia> {
        level.trim().parse().ok().map(Paranoia)
    }

    /// Whether kernels of distributions may let only those sample who have CAP_SYS_ADMIN: CAP_PERFMON is not enough for them. Levels above 2 are Debian's,
    /// whose kernels begin with 3, and Ubuntu's (4). To the kernel as it is published they mean what 2 means.
    pub fn may_want_an_administrator(self) -> bool {
        self.0 > 2
    }

    /// Whether users without privileges may sample whole CPUs, as a profile does. Stacks are those of their own programs all the same.
    pub fn lets_everybody_sample_cpus(self) -> bool {
        self.0 <= 0
    }

    /// Whether users without privileges may sample processes of their own, at least while these run their own code.
    pub fn lets_everybody_sample_own_processes(self) -> bool {
        !self.may_want_an_administrator()
    }

    /// Advice for a user whom the kernel does not let sample.
    pub(crate) fn advice(self) -> String {
        let Paranoia(level) = self;
        match self.may_want_an_administrator() {
            true => format!(
                "; {SETTING} is {level}, and above 2 the kernel may want CAP_SYS_ADMIN: run as root with all capabilities, or \
                 set it to 2 and run as root or with CAP_PERFMON"
            ),
            false => format!("; run as root or with CAP_PERFMON, or lower {SETTING}, which is {level}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_say_who_may_sample() {
        for (text, wants) in [("-1\n", false), ("2\n", false), ("3\n", true), ("4", true)] {
            let paranoia = Paranoia::parse(text).unwrap();
            assert_eq!(paranoia.may_want_an_administrator(), wants, "{text}");
            assert_eq!(paranoia.lets_everybody_sample_cpus(), text == "-1\n");
            assert_eq!(paranoia.advice().contains("CAP_SYS_ADMIN"), wants, "{text}");
            assert!(paranoia.advice().contains(text.trim()), "{text}");
        }
        assert_eq!(Paranoia::parse(""), None);
    }
}
