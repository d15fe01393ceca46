//! Ends and forks of real processes: each test runs itself once more, as the process that is looked at.

use std::env;
use std::fmt::Display;
use std::io::{Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, exit};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Instant;

use super::*;

/// Environment variable: set in the process under test.
const SUBJECT: &str = "FERRETTO_PROCESS_HOOKS_SUBJECT";

/// How a process ended.
struct End {
    code: Option<i32>,
    /// The lines that it and its children [said](say).
    said: Vec<String>,
    took: Duration,
}

/// Runs the test `name` again, with `subject` in place of the rest, and returns how that ended.
///
/// In the process that runs `subject` this does not return.
fn end_of(name: &str, subject: fn()) -> End {
    if env::var_os(SUBJECT).is_some() {
        subject();
        panic!("the process was to end");
    }
    let began = Instant::now();
    let output = Command::new(env::current_exe().expect("this program"))
        .args([
            &format!("process_hooks::tests::{name}"),
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(SUBJECT, "1")
        .output()
        .expect("this program runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = printed
        .lines()
        .filter_map(|line| line.split_once("said: "))
        .map(|(_, said)| said.to_owned())
        .collect();
    if !output.status.success() {
        println!("{printed}{}", String::from_utf8_lossy(&output.stderr));
    }
    End {
        code: output.status.code(),
        said,
        took: began.elapsed(),
    }
}

/// Prints a line for the observing process. It is one write, so that lines of several processes do not mix.
fn say(what: impl Display) {
    let line = format!("\nsaid: {what}\n");
    io::stdout().write_all(line.as_bytes()).expect("someone reads");
}

/// Forks. The child runs `child`, and exits with 3; its exit code is returned.
fn fork(child: impl FnOnce()) -> i32 {
    wait(start_fork(child))
}

fn start_fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the children of these tests need no lock that other threads of libtest or of the tests hold.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        child();
        exit(3);
    }
    pid
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process's.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    libc::WEXITSTATUS(status)
}

static CHILDREN: AtomicUsize = AtomicUsize::new(0);

fn count_child() {
    CHILDREN.fetch_add(1, Ordering::Relaxed);
}

fn say_exit(patience: Duration) {
    say(format_args!("exit, {} ms", patience.as_millis()));
}

static HOOKS_THAT_SAY: Hooks = Hooks {
    before_fork: || {},
    after_fork: || {},
    at_exit: say_exit,
    in_forked_child: count_child,
};

const SAID_EXIT: &str = "exit, 100 ms";

#[test]
fn the_exit_of_a_process_is_reported_once() {
    let end = end_of("the_exit_of_a_process_is_reported_once", || {
        install(&HOOKS_THAT_SAY).expect("handlers");
        install(&HOOKS_THAT_SAY).expect("again");
        exit(7);
    });
    assert_eq!((end.code, end.said), (Some(7), vec![SAID_EXIT.to_owned()]));
}

#[test]
fn any_thread_may_exit_the_process() {
    let end = end_of("any_thread_may_exit_the_process", || {
        install(&HOOKS_THAT_SAY).expect("handlers");
        let thread = thread::spawn(|| exit(8));
        let _ = thread.join();
    });
    assert_eq!((end.code, end.said), (Some(8), vec![SAID_EXIT.to_owned()]));
}

#[test]
fn a_panic_at_exit_changes_nothing() {
    static HOOKS: Hooks = Hooks {
        before_fork: || {},
        after_fork: || {},
        at_exit: |_| panic!("at exit"),
        in_forked_child: count_child,
    };
    let end = end_of("a_panic_at_exit_changes_nothing", || {
        install(&HOOKS).expect("handlers");
        exit(9);
    });
    assert_eq!(end.code, Some(9));
}

/// The channel by which [`HOOKS_THAT_ASK`] ask another thread.
static ASK: Mutex<Option<Sender<SyncSender<()>>>> = Mutex::new(None);

/// The time to wait for the answer. The hook's own patience may be too short on a busy machine.
static WAIT: Mutex<Option<Duration>> = Mutex::new(None);

static HOOKS_THAT_ASK: Hooks = Hooks {
    before_fork: || {},
    after_fork: || {},
    at_exit: |patience| {
        let patience = WAIT.lock().expect("not poisoned").unwrap_or(patience);
        let (done, wait) = sync_channel(1);
        let asked = ASK
            .lock()
            .expect("not poisoned")
            .as_ref()
            .map(|ask| ask.send(done));
        asked.expect("there is a thread").expect("it listens");
        say(match wait.recv_timeout(patience) {
            Ok(()) => "answered",
            Err(_) => "gave up",
        });
    },
    in_forked_child: count_child,
};

fn exit_with_another_thread(listen: fn(Receiver<SyncSender<()>>)) {
    let (ask, asked) = channel();
    *ASK.lock().expect("not poisoned") = Some(ask);
    install(&HOOKS_THAT_ASK).expect("handlers");
    thread::spawn(move || listen(asked));
    exit(0);
}

#[test]
fn the_hook_can_have_another_thread_finish() {
    let end = end_of("the_hook_can_have_another_thread_finish", || {
        *WAIT.lock().expect("not poisoned") = Some(Duration::from_secs(60));
        exit_with_another_thread(|asked| {
            asked
                .iter()
                .for_each(|done| done.send(()).expect("someone waits"))
        });
    });
    assert_eq!((end.code, end.said), (Some(0), vec!["answered".to_owned()]));
}

#[test]
fn a_thread_that_does_not_finish_holds_up_the_exit_for_a_moment() {
    let end = end_of(
        "a_thread_that_does_not_finish_holds_up_the_exit_for_a_moment",
        || {
            exit_with_another_thread(|asked| {
                let _unanswered: Vec<_> = asked.iter().collect();
            });
        },
    );
    assert_eq!((end.code, end.said), (Some(0), vec!["gave up".to_owned()]));
    assert!(end.took >= PATIENCE, "{:?}", end.took);
}

#[test]
fn a_child_is_reported_and_its_exit_is_not() {
    let end = end_of("a_child_is_reported_and_its_exit_is_not", || {
        let before_hooks = fork(|| say(format_args!("without hooks: {}", generation())));
        install(&HOOKS_THAT_SAY).expect("handlers");
        let child = fork(|| {
            say(format_args!(
                "child: {}, told {}",
                generation(),
                CHILDREN.load(Ordering::Relaxed)
            ));
            fork(|| {
                say(format_args!(
                    "grandchild: {}, told {}",
                    generation(),
                    CHILDREN.load(Ordering::Relaxed)
                ))
            });
        });
        say(format_args!(
            "parent: {}, told {}",
            generation(),
            CHILDREN.load(Ordering::Relaxed)
        ));
        exit(before_hooks + child);
    });
    let expected = [
        "without hooks: 0",
        "child: 1, told 1",
        "grandchild: 2, told 2",
        "parent: 0, told 0",
        SAID_EXIT,
    ];
    assert_eq!(
        (end.code, end.said),
        (Some(6), expected.map(str::to_owned).into())
    );
}

#[test]
fn a_child_that_traces_by_itself_has_an_exit_of_its_own() {
    let end = end_of("a_child_that_traces_by_itself_has_an_exit_of_its_own", || {
        install(&HOOKS_THAT_SAY).expect("handlers");
        fork(|| {
            install(&HOOKS_THAT_SAY).expect("handlers");
            fork(|| say("grandchild"));
            say("child");
        });
        say("parent");
        exit(0);
    });
    let expected = ["grandchild", "child", SAID_EXIT, "parent", SAID_EXIT];
    assert_eq!(
        (end.code, end.said),
        (Some(0), expected.map(str::to_owned).into())
    );
}

/// Whether the stream is at its end.
fn is_at_end(mut stream: impl Read) -> bool {
    stream.read(&mut [0]).is_ok_and(|read| read == 0)
}

#[test]
fn a_child_does_not_keep_the_parents_connection_alive() {
    let end = end_of("a_child_does_not_keep_the_parents_connection_alive", || {
        install(&HOOKS_THAT_SAY).expect("handlers");
        // This is a pipe, because a socket would be shut down.
        let (shared_peer, shared) = pipe().expect("a pipe");
        drop(KeptFromChildren::new(shared.as_fd()));
        let (connection, peer) = UnixStream::pair().expect("sockets");
        let connection = KeptFromChildren::new(connection);
        let (wait_here, release) = pipe().expect("a pipe");
        let child = start_fork(|| {
            let written = (&*connection).write(b"from the child");
            say(format_args!(
                "refused: {}",
                written.is_err_and(|error| error.raw_os_error() == Some(libc::ENOTSOCK))
            ));
            // SAFETY: asks about a number.
            let flags = unsafe { libc::fcntl(connection.as_raw_fd(), libc::F_GETFD) };
            say(format_args!("closed by exec: {}", flags & libc::FD_CLOEXEC != 0));
            (&shared).write_all(b"!").expect("what is not kept is shared");
            (&wait_here).read_exact(&mut [0]).expect("the parent tells");
        });
        drop(connection);
        say(format_args!("the peer sees the end: {}", is_at_end(&peer)));
        (&shared_peer).read_exact(&mut [0]).expect("the child's byte");
        (&release).write_all(b"!").expect("the child waits");
        exit(wait(child));
    });
    let mut said = end.said;
    said.sort();
    let expected = [
        "closed by exec: true",
        SAID_EXIT,
        "refused: true",
        "the peer sees the end: true",
    ];
    assert_eq!((end.code, said), (Some(3), expected.map(str::to_owned).into()));
}

#[test]
fn a_childs_own_descriptor_is_kept_although_the_parents_is_dropped_there() {
    let end = end_of(
        "a_childs_own_descriptor_is_kept_although_the_parents_is_dropped_there",
        || {
            install(&HOOKS_THAT_SAY).expect("handlers");
            let parents = KeptFromChildren::new(pipe().expect("a pipe").0);
            exit(fork(move || {
                let (own, peer) = UnixStream::pair().expect("sockets");
                let own = KeptFromChildren::new(own);
                assert!(
                    own.place
                        .zip(parents.place)
                        .is_some_and(|(own, parents)| ptr::eq(own, parents))
                );
                drop(parents);
                let grandchild =
                    start_fork(|| assert_eq!((&peer).read(&mut [0]).ok(), Some(0), "it has no copy either"));
                drop(own);
                say(format_args!("the grandchild exits with {}", wait(grandchild)));
            }));
        },
    );
    assert_eq!(
        (end.code, end.said),
        (
            Some(3),
            vec!["the grandchild exits with 3".to_owned(), SAID_EXIT.to_owned()]
        )
    );
}

#[test]
fn more_descriptors_than_there_is_room_for_do_no_harm() {
    let (socket, _peer) = UnixStream::pair().expect("sockets");
    let kept: Vec<_> = (0..KEPT.len() + 1)
        .map(|_| KeptFromChildren::new(socket.as_fd()))
        .collect();
    assert!(kept.last().expect("one").place.is_none());
    drop(kept);
    assert!(
        KeptFromChildren::new(socket.as_fd()).place.is_some(),
        "there is room again"
    );
}

#[test]
fn a_child_forked_while_a_thread_initializes_tracing_can_do_so_itself() {
    let end = end_of(
        "a_child_forked_while_a_thread_initializes_tracing_can_do_so_itself",
        || {
            let quiet = || crate::Options::system().log(|_, _| ());
            for delay in 0..60 {
                let ended = fork(|| {
                    let (ready, begin) = sync_channel(1);
                    thread::spawn(move || {
                        ready.send(()).expect("it is waited for");
                        crate::initialize(quiet());
                    });
                    begin.recv().expect("the thread");
                    let began = Instant::now();
                    while began.elapsed() < Duration::from_micros(delay * 5) {}
                    let child = start_fork(|| {
                        // SAFETY: has no conditions. One that waits for ever is to end.
                        unsafe { libc::alarm(10) };
                        crate::initialize(quiet());
                    });
                    let mut status = 0;
                    // SAFETY: waits for a child of this process's.
                    unsafe { libc::waitpid(child, &mut status, 0) };
                    if status != 3 << 8 {
                        say(format_args!("after {delay}: {status:#x}"));
                        exit(4);
                    }
                });
                if ended != 3 {
                    exit(1);
                }
            }
            exit(0);
        },
    );
    assert_eq!((end.code, end.said), (Some(0), Vec::new()));
}

#[test]
fn a_child_forked_while_a_thread_made_a_piece_of_trace_time_makes_its_own() {
    let end = end_of(
        "a_child_forked_while_a_thread_made_a_piece_of_trace_time_makes_its_own",
        || {
            install(&HOOKS_THAT_SAY).expect("handlers");
            let mut code = None;
            clock::while_making_a_piece(|| {
                code = Some(fork(|| {
                    if !clock::uses_counter() {
                        return say("a piece");
                    }
                    let mut anchor = clock::Anchor::EXPIRED;
                    let mut last = clock::now();
                    let began = Instant::now();
                    while anchor.now().is_none() && began.elapsed() < Duration::from_secs(10) {
                        last = anchor.renew(last);
                    }
                    say(if anchor.now().is_some() {
                        "a piece"
                    } else {
                        "no piece"
                    });
                }));
            });
            exit(code.expect("there was a child"));
        },
    );
    assert_eq!(
        (end.code, end.said),
        (Some(3), vec!["a piece".to_owned(), SAID_EXIT.to_owned()])
    );
}
