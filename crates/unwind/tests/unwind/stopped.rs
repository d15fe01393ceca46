//! Programs that stop at a known place, and samples of them.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ferretto_unwind::{Arch, Registers};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Bytes of stack that a sample has.
const STACK: usize = 32 << 10;

/// Compiles a C program into `folder`. Prints so and returns `None` if there is no compiler.
pub(crate) fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (from, to) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&from, source).expect("a file");
    let Ok(output) = Command::new("cc")
        .args(flags)
        .arg("-o")
        .arg(&to)
        .arg(&from)
        .arg("-pthread")
        .output()
    else {
        println!("skipped: there is no C compiler");
        return None;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(to)
}

/// A running program. It prints `NAME ADDRESS` for its functions, then `ready THREAD`.
pub(crate) struct Program {
    path: PathBuf,
    child: Child,
    thread: Pid,
    functions: Vec<(u64, String)>,
}

impl Program {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(path: &Path) -> Program {
        Program::run(path, &mut Command::new(path))
    }

    /// Starts it with arguments and waits until it is ready.
    pub(crate) fn run(path: &Path, command: &mut Command) -> Program {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let mut functions = Vec::new();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        for line in output.lines() {
            let line = line.expect("text");
            let Some((name, value)) = line.split_once(' ') else {
                continue;
            };
            if name == "ready" {
                functions.sort();
                let thread = Pid::from_raw(value.parse().expect("a number"));
                return Program {
                    path: path.to_owned(),
                    child,
                    thread,
                    functions,
                };
            }
            let address = u64::from_str_radix(value.trim_start_matches("0x"), 16);
            functions.extend(address.map(|address| (address, name.to_owned())));
        }
        panic!("the program has ended: {:?}", child.wait());
    }

    /// The file that it was started from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The name of the program's function that has `pc` in it or ends at it.
    pub(crate) fn function(&self, pc: u64) -> &str {
        let after = self.functions.partition_point(|&(start, _)| start <= pc);
        after.checked_sub(1).map_or("?", |index| &self.functions[index].1)
    }

    /// Stops the ready thread, takes a sample, and continues the thread.
    pub(crate) fn sample(&self) -> (Registers, Vec<u8>) {
        ptrace::seize(self.thread, Options::empty()).expect("a thread that may be traced");
        ptrace::interrupt(self.thread).expect("a traced thread");
        waitpid(self.thread, Some(WaitPidFlag::__WALL)).expect("a stopped thread");
        let registers = registers(self.thread);
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid())).expect("memory");
        let mut stack = vec![0; STACK];
        let mut filled = 0;
        while filled < STACK {
            match memory.read_at(&mut stack[filled..], registers.stack_pointer() + filled as u64) {
                Ok(read) if read > 0 => filled += read,
                _ => break,
            }
        }
        stack.truncate(filled);
        ptrace::detach(self.thread, None).expect("a traced thread");
        (registers, stack)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(target_arch = "x86_64")]
fn registers(thread: Pid) -> Registers {
    let all = ptrace::getregs(thread).expect("registers");
    let mut registers = Registers::new(Arch::X86_64, all.rip, all.rsp, all.rbp);
    for (number, value) in [
        (0, all.rax),
        (1, all.rdx),
        (2, all.rcx),
        (3, all.rbx),
        (4, all.rsi),
        (5, all.rdi),
        (8, all.r8),
        (9, all.r9),
        (10, all.r10),
        (11, all.r11),
        (12, all.r12),
        (13, all.r13),
        (14, all.r14),
        (15, all.r15),
    ] {
        registers.set(number, value);
    }
    registers
}
