//! System calls as slices of their threads, from the events `sys_enter` and `sys_exit` that have numbers.
//!
//! The names are those that release 52 of the trace processor knows: the kernel's own up to Linux 6.7, in `syscalls/`, a number and a name on each line.
//! Numbers without a name become `sys_` and the number.

use ferretto_wire::Value as WireValue;
use hashbrown::HashSet;

use super::Trackers;
use super::args::Value;
use super::descriptors::thread_track;
use super::kernel_slices::At;
use super::processes::Utid;
use super::slices::Named;
use crate::context::Context;
use crate::fields::{fields, number, number_of};
use crate::strings::{StringId, Strings};

/// Numbers from here on are none of system calls.
const MOST_NUMBERS: usize = 550;
/// The fields of `SysEnterFtraceEvent` and `SysExitFtraceEvent`.
const ID: u32 = 1;
const ARGS: u32 = 2;
const RET: u32 = 2;

/// What numbers of system calls depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    X86,
    X86_64,
    Arm32,
    Arm64,
}

impl Architecture {
    /// Returns the architecture of a machine, which is called as `uname` does.
    pub(crate) fn of_machine(machine: &str) -> Option<Architecture> {
        match machine {
            "i686" => Some(Architecture::X86),
            "x86_64" => Some(Architecture::X86_64),
            "armv7l" | "armv8l" => Some(Architecture::Arm32),
            "aarch64" => Some(Architecture::Arm64),
            _ => None,
        }
    }

    fn list(self) -> &'static str {
        match self {
            Architecture::X86 => include_str!("syscalls/x86.txt"),
            Architecture::X86_64 => include_str!("syscalls/x86_64.txt"),
            Architecture::Arm32 => include_str!("syscalls/arm32.txt"),
            Architecture::Arm64 => include_str!("syscalls/arm64.txt"),
        }
    }

    /// Returns the numbers and names of its system calls.
    fn names(self) -> impl Iterator<Item = (usize, &'static str)> {
        self.list().lines().filter_map(|line| {
            let (number, name) = line.split_once(' ')?;
            Some((number.parse().ok()?, name))
        })
    }
}

/// The names of a trace's system calls.
#[derive(Debug)]
struct Names {
    by_number: Vec<StringId>,
    /// `sys_write`, if the architecture is known.
    write: Option<StringId>,
    /// `sys_rt_sigreturn`, if the architecture is known.
    sigreturn: Option<StringId>,
    args: StringId,
    ret: StringId,
}

impl Names {
    fn new(architecture: Option<Architecture>, strings: &mut Strings) -> Names {
        let mut by_number: Vec<StringId> = (0..MOST_NUMBERS)
            .map(|number| strings.intern(&format!("sys_{number}")))
            .collect();
        let (mut write, mut sigreturn) = (None, None);
        for (number, name) in architecture.into_iter().flat_map(Architecture::names) {
            let Some(entry) = by_number.get_mut(number) else {
                continue;
            };
            *entry = strings.intern(&format!("sys_{name}"));
            match name {
                "write" => write = Some(*entry),
                "rt_sigreturn" => sigreturn = Some(*entry),
                _ => {}
            }
        }
        Names {
            by_number,
            write,
            sigreturn,
            args: strings.intern("args"),
            ret: strings.intern("ret"),
        }
    }
}

/// What is known about system calls so far.
#[derive(Debug, Default)]
pub(crate) struct Syscalls {
    names: Option<Names>,
    /// The keys `args[0]` and so on.
    keys: Vec<StringId>,
    /// The threads that are in `sys_write`.
    writing: HashSet<Utid>,
}

impl Trackers {
    /// Returns the names. The first system call makes them, when the whole trace has been read and so the architecture is known.
    fn syscall_names(&mut self, context: &mut Context<'_>) -> &Names {
        let architecture = context.architecture;
        self.syscalls
            .names
            .get_or_insert_with(|| Names::new(architecture, &mut context.strings))
    }

    pub(crate) fn sys_enter(&mut self, at: At, message: &[u8], context: &mut Context<'_>) {
        let names = self.syscall_names(context);
        let Some(name) = names.by_number.get(id(message)).copied() else {
            return;
        };
        let flat_key = names.args;
        let is_write = names.write == Some(name);
        // Nothing returns from it: the thread goes on where the signal came.
        let dur = (names.sigreturn == Some(name)).then_some(0);
        let utid = self.processes.thread(at.pid);
        let track = thread_track(utid, &mut self.tracks, context);
        let args = fields(message).filter(|field| field.number == ARGS);
        let args = args.filter(|field| !matches!(field.value, WireValue::Bytes(_)));
        let args: Vec<u64> = args.filter_map(|field| number(field.value)).collect();
        while self.syscalls.keys.len() < args.len() {
            let key = format!("args[{}]", self.syscalls.keys.len());
            self.syscalls.keys.push(context.strings.intern(&key));
        }
        let named = Named {
            category: None,
            name: Some(name),
        };
        if let Some(slice) = self.slices.begin(at.ts, track, named, dur, context) {
            for (key, value) in self.syscalls.keys.iter().zip(args) {
                slice.args.add(flat_key, *key, Value::Uint(value));
            }
        }
        if is_write {
            self.syscalls.writing.insert(utid);
        }
    }

    pub(crate) fn sys_exit(&mut self, at: At, message: &[u8], context: &mut Context<'_>) {
        let names = self.syscall_names(context);
        let Some(name) = names.by_number.get(id(message)).copied() else {
            return;
        };
        let key = names.ret;
        let is_write = names.write == Some(name);
        let utid = self.processes.thread(at.pid);
        // Without this the end of a call that began before the trace, or that a mark has ended, would end an outer one.
        if is_write && !self.syscalls.writing.remove(&utid) {
            return;
        }
        let track = thread_track(utid, &mut self.tracks, context);
        let named = Named {
            category: None,
            name: Some(name),
        };
        self.slices.end(at.ts, track, named, context, |slice, _| {
            if let Some(ret) = number_of(message, RET) {
                slice.args.add(key, key, Value::Int(ret as i64));
            }
        });
    }

    /// Ends the call of `sys_write` by which a program makes a mark, so that slices of marks do not overlap it partly.
    pub(super) fn end_write(&mut self, ts: i64, utid: Utid, context: &mut Context<'_>) {
        if !self.syscalls.writing.remove(&utid) {
            return;
        }
        context.stats.add("truncated_sys_write_duration", None, 1);
        let named = Named {
            category: None,
            name: self.syscall_names(context).write,
        };
        let track = thread_track(utid, &mut self.tracks, context);
        self.slices.end(ts, track, named, context, |_, _| {});
    }
}

/// Returns the number of the system call.
fn id(message: &[u8]) -> usize {
    number_of(message, ID).unwrap_or(0) as u32 as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What all kernels of an architecture agree on, from its headers.
    #[test]
    fn lists_are_whole_and_in_order() {
        for (architecture, lines, write, sigreturn) in [
            (Architecture::X86, 446, 4, 173),
            (Architecture::X86_64, 404, 1, 15),
            (Architecture::Arm32, 421, 4, 173),
            (Architecture::Arm64, 333, 64, 139),
        ] {
            let names: Vec<(usize, &str)> = architecture.names().collect();
            assert_eq!(names.len(), lines);
            assert_eq!(architecture.list().lines().count(), lines);
            assert!(names.is_sorted_by(|a, b| a.0 < b.0));
            assert!(names.iter().all(|(number, _)| *number < MOST_NUMBERS));
            assert!(names.contains(&(write, "write")));
            assert!(names.contains(&(sigreturn, "rt_sigreturn")));
        }
    }
}
