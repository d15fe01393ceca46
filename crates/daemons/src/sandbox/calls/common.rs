//! The system calls of every daemon: those of the C library, of Rust's standard library, and of the event loop.

use std::process;

use libc::c_long;

use super::{Calls, Families, INT, calls, old_calls};

/// `linux/prctl.h`: names a mapping, for those who read `/proc/PID/maps`.
const PR_SET_VMA: u64 = 0x5356_4d41;
/// The same: what the kernel told the process at its start.
const PR_GET_AUXV: u64 = 0x4155_5856;
/// `asm-generic/ioctls.h`: the settings of a terminal, as later C libraries ask for them.
const TCGETS2: u64 = 0x802c_542a;

/// Calls that libraries try and do without. Where one of them is needed, a daemon cannot have it.
pub(super) const REFUSED: &[c_long] = calls![
    // Its flags are in memory, where no filter sees whether it makes a thread or a process. Libraries then use `clone`.
    SYS_clone3,
    // Newer forms of calls that are allowed.
    SYS_epoll_pwait2,
    SYS_futex_waitv,
    // Where memory is, asked by allocators.
    SYS_get_mempolicy,
    SYS_set_mempolicy,
    SYS_mbind,
];

/// The same, by number, because C libraries may lack the names: calls of Linux 5.17 and later. Calls with which a daemon that has been taken over could
/// do harm (io_uring, mounting, other processes, lsm_set_self_attr) are not here, whatever kernel they came with.
pub(super) const REFUSED_BY_NUMBER: &[c_long] = &[
    450, // set_mempolicy_home_node
    451, // cachestat
    452, // fchmodat2
    453, // map_shadow_stack
    454, // futex_wake
    455, // futex_wait
    456, // futex_requeue
    457, // statmount
    458, // listmount
    459, // lsm_get_self_attr
    461, // lsm_list_modules
    462, // mseal
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
    467, // open_tree_attr
    468, // file_getattr
    469, // file_setattr
    470, // listns
    471, // rseq_slice_yield
];

impl Calls {
    /// The calls of every daemon: those of the C library, of Rust's standard library, and of the event loop.
    #[allow(
        clippy::unnecessary_cast,
        reason = "musl's numbers of ioctls have another type"
    )]
    pub fn common() -> Calls {
        const THREAD: u64 = (libc::CLONE_VM | libc::CLONE_THREAD) as u64;
        const ITSELF: &[u64] = &[0];
        let this_process = process::id();
        Calls::default()
            .and(MEMORY)
            .and(THREADS)
            .and(DESCRIPTORS)
            .and(old_calls![
                SYS_poll,
                SYS_epoll_wait,
                SYS_pipe,
                SYS_dup2,
                SYS_time,
                SYS_getrlimit,
                SYS_getdents,
                SYS_open,
                SYS_stat,
                SYS_lstat,
                SYS_access,
                SYS_readlink,
                SYS_unlink,
            ])
            .and(SOCKETS)
            .and(FILES)
            .and(TIME)
            .and(ABOUT_ITSELF)
            // A thread, never a process.
            .and_if(calls![SYS_clone], 0, THREAD, &[THREAD])
            // `abort`. Another process gets no signal.
            .and_if(calls![SYS_tgkill], 0, INT, &[this_process.into()])
            // The names of threads and of memory, the auxiliary vector, and which capabilities the kernel knows.
            .and_if(
                calls![SYS_prctl],
                0,
                INT,
                &[
                    libc::PR_SET_NAME as u64,
                    PR_SET_VMA,
                    PR_GET_AUXV,
                    libc::PR_CAPBSET_READ as u64,
                ],
            )
            .and(LIBC_SIGNALS)
            .and(OF_UPROBES)
            // Descriptors that do not wait; whether one is a terminal.
            .and_if(
                calls![SYS_ioctl],
                1,
                INT,
                &[
                    libc::FIONBIO as u64,
                    libc::FIOCLEX as u64,
                    libc::TCGETS as u64,
                    TCGETS2,
                    libc::TIOCGWINSZ as u64,
                ],
            )
            // Its own limits, and the priority of its own threads.
            .and_if(
                calls![SYS_prlimit64, SYS_sched_setscheduler, SYS_sched_setattr],
                0,
                INT,
                ITSELF,
            )
            .and_if(calls![SYS_setpriority], 1, INT, ITSELF)
    }

    /// The calls of a daemon that records: it connects to its service, again and again, and shares memory with it.
    pub fn recorder(families: Families) -> Calls {
        let calls = Calls::common()
            .and_sockets(families)
            .and(calls![SYS_memfd_create, SYS_sendto]);
        match families {
            Families::Unix => calls.and_no_code(),
            // The C library loads others to look up a host.
            Families::Network => calls.and_code(),
        }
    }

    /// Memory may become code: for a daemon that loads libraries when it needs them.
    pub(crate) fn and_code(self) -> Calls {
        self.and(calls![SYS_mmap, SYS_mprotect])
    }

    /// No memory becomes code.
    pub(crate) fn and_no_code(self) -> Calls {
        self.and_if(calls![SYS_mmap, SYS_mprotect], 2, libc::PROT_EXEC as u64, &[0])
    }
}

/// With musl, `abort` sends its signal to a thread of any process; Landlock and the user bound it.
#[cfg(all(
    target_env = "musl",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
const LIBC_SIGNALS: &[c_long] = &[libc::SYS_tkill];
#[cfg(not(all(
    target_env = "musl",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
const LIBC_SIGNALS: &[c_long] = &[];

/// `uretprobe` and `uprobe`: on x86-64, the kernel itself puts these calls into a function that somebody with the right to do so traces, and takes them
/// from nowhere else.
#[cfg(target_arch = "x86_64")]
const OF_UPROBES: &[c_long] = &[335, 336];
#[cfg(not(target_arch = "x86_64"))]
const OF_UPROBES: &[c_long] = &[];

/// Without `mmap` and `mprotect`.
const MEMORY: &[c_long] = calls![
    SYS_brk,
    SYS_madvise,
    // Which pages of shared memory have been touched.
    SYS_mincore,
    SYS_mremap,
    SYS_munmap,
];

/// Threads: how they start, wait for each other, handle signals and end.
const THREADS: &[c_long] = calls![
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_get_robust_list,
    SYS_gettid,
    SYS_membarrier,
    SYS_restart_syscall,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_rt_sigpending,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sched_getaffinity,
    SYS_sched_getattr,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_yield,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_sigaltstack,
];

/// Descriptors that are open: events, reading and writing.
const DESCRIPTORS: &[c_long] = calls![
    SYS_close,
    SYS_close_range,
    SYS_copy_file_range,
    SYS_dup,
    SYS_dup3,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_fcntl,
    SYS_fstat,
    SYS_fstatfs,
    SYS_ftruncate,
    SYS_lseek,
    SYS_pipe2,
    SYS_ppoll,
    SYS_pread64,
    SYS_preadv,
    SYS_pwrite64,
    SYS_pwritev,
    SYS_read,
    SYS_readv,
    SYS_write,
    SYS_writev,
];

/// Sockets that are open, and pairs of them.
const SOCKETS: &[c_long] = calls![
    SYS_accept4,
    SYS_getpeername,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_sendmsg,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_socketpair,
];

/// Files and folders by name, as far as the user and Landlock allow; the socket's name is removed at the end.
const FILES: &[c_long] = calls![
    SYS_faccessat,
    SYS_faccessat2,
    SYS_getcwd,
    SYS_getdents64,
    SYS_newfstatat,
    SYS_openat,
    SYS_readlinkat,
    SYS_statx,
    SYS_unlinkat,
];

const TIME: &[c_long] = calls![
    SYS_clock_getres,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_gettimeofday,
    SYS_nanosleep,
    SYS_timerfd_create,
    SYS_timerfd_gettime,
    SYS_timerfd_settime,
];

/// The process's identity, its place, and random numbers.
const ABOUT_ITSELF: &[c_long] = calls![
    SYS_capget,
    SYS_getcpu,
    SYS_getegid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getpid,
    SYS_getppid,
    SYS_getpriority,
    SYS_getrandom,
    SYS_getrusage,
    SYS_getuid,
    SYS_sysinfo,
    SYS_times,
    SYS_uname,
];
