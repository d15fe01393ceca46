//! The program that a process runs, told apart from others.
//!
//! [`Process`](crate::Process) and the heap profiler compare programs to notice that a process has executed another one.

use std::fs::File;
use std::io::Read;

/// The bytes of the auxiliary vector that are compared.
const BYTES: u64 = 1024;

/// Differs for any two programs that a process runs, unless the kernel loads all programs at the same addresses.
///
/// It is the beginning of the process's auxiliary vector (`proc_pid_auxv(5)`), which has random addresses in it. The kernel has a copy of that, so reading
/// it waits for nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program(Vec<u8>);

impl Program {
    /// Returns the program that the process with this id runs now. `None` if it has ended, or the kernel does not tell.
    pub fn of(pid: i32) -> Option<Program> {
        Program::read(File::open(format!("/proc/{pid}/auxv")).ok()?)
    }

    /// Reads it from a process's file `auxv`.
    pub(crate) fn read(auxv: File) -> Option<Program> {
        let mut vector = Vec::new();
        auxv.take(BYTES).read_to_end(&mut vector).ok()?;
        (!vector.is_empty()).then_some(Program(vector))
    }
}
