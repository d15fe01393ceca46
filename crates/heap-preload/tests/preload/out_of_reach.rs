//! Programs that no longer see the daemon's socket, as after `chroot`: here the socket is gone, and the daemon is not.

use std::time::Instant;

use ferretto_heap_client::handshake::WhenFull;
use ferretto_heap_client::layout::header;

use crate::daemon::{Daemon, PATIENCE, samples};
use crate::{lossless, of_malloc, output, program};

#[test]
fn a_daemon_that_reads_is_believed_to_be_there() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["fills", "3000"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let mut client = daemon.accept(&lossless(1000), 1 << 12);
    drop(daemon);
    let began = Instant::now();
    while client.header(header::WAITING) == 0 {
        assert!(began.elapsed() < PATIENCE, "the program does not wait");
        std::thread::yield_now();
    }
    let records = client.until_exit();
    output(child);
    let samples = samples(&records).filter(|sample| sample.size == 20_000);
    assert_eq!(samples.count(), 3000);
    assert_eq!(client.header(header::OUT_OF_REACH), 0);
}

#[test]
fn a_full_ring_that_nobody_reads_ends_the_session_and_is_no_time_out() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["fills", "20000"], &daemon) else {
        return;
    };
    let child = program.spawn().expect("a program");
    let client = daemon.accept(&of_malloc(1000, WhenFull::Wait { at_most_us: 0 }), 1 << 14);
    drop(daemon);
    assert_eq!(output(child), "done\n");
    assert_eq!(client.header(header::OUT_OF_REACH), 1);
    assert_eq!(client.header(header::TIMED_OUT), 0);
}
