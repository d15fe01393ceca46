//! System calls in the name of another process, as code that has taken it over would make them.
//!
//! A debugger's means (ptrace) stop the process's main thread, and step it over one system call. So the process under test is the binary that is shipped,
//! with all that it has given up by itself. Only for x86-64.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

/// The result of an injected call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its result: an error is a negative number.
    Returned(i64),
    /// The process ended by this signal.
    Killed(i32),
}

/// An argument of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Number(i64),
    /// The address of a text in the other process.
    Text(&'static str),
}

/// Bytes of the instruction for a system call.
const SYSCALL: u64 = 2;

/// Has the main thread of a process make a call. A process that survives goes on as before.
pub(crate) fn inject(pid: u32, number: i64, arguments: &[Argument]) -> Outcome {
    let pid = pid as libc::pid_t;
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .unwrap();
    let before = stop_in_a_call(pid, &memory);
    let mut during = before;
    during.rip -= SYSCALL;
    // No call is to be begun again.
    during.orig_rax = u64::MAX;
    during.rax = number as u64;
    // Below what the thread uses.
    let mut space = before.rsp - 64 * 1024;
    let mut values = [0; 6];
    for (value, argument) in values.iter_mut().zip(arguments) {
        *value = match argument {
            Argument::Number(number) => *number as u64,
            Argument::Text(text) => {
                memory.write_all_at(text.as_bytes(), space).unwrap();
                memory.write_all_at(&[0], space + text.len() as u64).unwrap();
                let address = space;
                space += 4096;
                address
            }
        };
    }
    [
        during.rdi, during.rsi, during.rdx, during.r10, during.r8, during.r9,
    ] = values;
    ptrace(libc::PTRACE_SETREGS, pid, (&raw const during).cast_mut().cast()).unwrap();
    ptrace(libc::PTRACE_SINGLESTEP, pid, std::ptr::null_mut()).unwrap();
    if let Some(signal) = await_stop(pid) {
        return Outcome::Killed(signal);
    }
    let result = registers(pid).rax as i64;
    ptrace(libc::PTRACE_SETREGS, pid, (&raw const before).cast_mut().cast()).unwrap();
    ptrace(libc::PTRACE_DETACH, pid, std::ptr::null_mut()).unwrap();
    Outcome::Returned(result)
}

/// Stops the main thread in its event loop's call, where it is sooner or later, and returns its registers.
fn stop_in_a_call(pid: libc::pid_t, memory: &File) -> libc::user_regs_struct {
    loop {
        ptrace(libc::PTRACE_ATTACH, pid, std::ptr::null_mut()).unwrap();
        assert_eq!(await_stop(pid), None, "it ended before the call");
        let registers = registers(pid);
        let mut instruction = [0; SYSCALL as usize];
        memory
            .read_exact_at(&mut instruction, registers.rip - SYSCALL)
            .unwrap();
        if instruction == [0x0f, 0x05] {
            return registers;
        }
        ptrace(libc::PTRACE_DETACH, pid, std::ptr::null_mut()).unwrap();
        std::thread::yield_now();
    }
}

fn registers(pid: libc::pid_t) -> libc::user_regs_struct {
    let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
    ptrace(libc::PTRACE_GETREGS, pid, registers.as_mut_ptr().cast()).unwrap();
    // SAFETY: the kernel has filled it, and every bit pattern is one.
    unsafe { registers.assume_init() }
}

fn ptrace(request: libc::c_uint, pid: libc::pid_t, data: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: `data` is null or points to registers, which outlive the call.
    match unsafe { libc::ptrace(request, pid, std::ptr::null_mut::<libc::c_void>(), data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Waits until the process stops; returns the signal if it ends instead. Its status is then left to the process that started it.
fn await_stop(pid: libc::pid_t) -> Option<i32> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let awaited = libc::WEXITED | libc::WSTOPPED | libc::__WALL;
    let id = pid as libc::id_t;
    // SAFETY: the kernel writes one `siginfo_t`, for which there is room, and every bit pattern is one.
    let (code, status) = unsafe {
        let result = libc::waitid(libc::P_PID, id, information.as_mut_ptr(), awaited | libc::WNOWAIT);
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        let information = information.assume_init();
        (information.si_code, information.si_status())
    };
    match code {
        libc::CLD_EXITED => panic!("it exited with {status}"),
        libc::CLD_KILLED | libc::CLD_DUMPED => Some(status),
        _ => {
            // SAFETY: as above.
            unsafe { libc::waitid(libc::P_PID, id, information.as_mut_ptr(), awaited) };
            None
        }
    }
}
