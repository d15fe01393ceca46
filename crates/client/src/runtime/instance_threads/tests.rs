//! Threads that end, as they should and as they should not.

use std::time::Duration;

use ferretto_ipc::channel::{Receiver, channel};

use super::*;

/// Far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn slot() -> Slot {
    Slot::at(3)
}

/// A program whose log is a channel.
struct Log(Sender<String>);

impl ProducerProgram for Log {
    fn info(&self, _line: &str) {}

    fn warning(&self, line: &str) {
        let _ = self.0.send(line.to_owned());
    }

    fn is_own_thread(&self) -> bool {
        false
    }
}

fn threads() -> (InstanceThreads, Receiver<String>) {
    let (log, lines) = channel();
    (InstanceThreads::new(Arc::new(Log(log)), "my.source"), lines)
}

/// Sends a command and waits until it is done.
fn tell(threads: &InstanceThreads, what: What) {
    let (tell, done) = channel();
    threads.tell(
        slot(),
        what,
        Acknowledge::new(move || {
            let _ = tell.send(());
        }),
    );
    assert_eq!(done.receive_within(PATIENCE), Ok(()), "{what:?}");
}

#[test]
fn a_panic_is_logged_and_commands_before_and_after_it_are_done() {
    let (threads, log) = threads();
    let work = |inbox: Inbox| {
        let command = loop {
            match inbox.try_receive() {
                Ok(command) => break command,
                Err(_) => std::thread::yield_now(),
            }
        };
        panic!("no {:?} for this test", command.what);
    };
    threads.start(slot(), "reader", work).unwrap();
    tell(&threads, What::Flush);
    let line = log.receive_within(PATIENCE).unwrap();
    assert!(
        line.starts_with("my.source: the thread") && line.contains("no Flush for this test"),
        "{line}"
    );
    tell(&threads, What::Flush);
    tell(&threads, What::Stop);
}

#[test]
fn an_ordinary_end_is_not_logged() {
    let (threads, log) = threads();
    threads
        .start(slot(), "reader", |inbox| drop(inbox.await_stop()))
        .unwrap();
    tell(&threads, What::Flush);
    tell(&threads, What::Stop);
    drop(threads);
    // The thread has the last part of the log's sending end.
    assert_eq!(log.receive(), None);
}
