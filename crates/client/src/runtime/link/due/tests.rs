//! Writers leave requests and the thread takes them, in all orders. A lock around a count plays the arbiter's part.

use loom::sync::{Arc, Mutex};

use super::*;
use crate::atomic_word::model::{Modelled, check};

struct Connection {
    due: Due<Modelled>,
    arbiter: Mutex<Waiting>,
    /// Set to wake the thread from its sleep.
    woken: Modelled,
}

#[derive(Default)]
struct Waiting {
    requests: u32,
    /// Whether the endpoint was told of requests and has not taken them yet.
    told: bool,
}

impl Connection {
    /// Does what an arbiter does, and then [`Notify::wake`](crate::arbiter::Notify::wake), on another thread than the runtime's.
    fn leave_a_request(&self) {
        let tell = {
            let mut waiting = self.arbiter.lock().expect("no panic");
            waiting.requests += 1;
            !std::mem::replace(&mut waiting.told, true)
        };
        if tell && self.due.bring_forward(0) {
            self.woken.fetch_or(1, Ordering::Release);
        }
    }

    /// A turn of the runtime's thread.
    fn turn(&self) {
        self.woken.swap(0, Ordering::Acquire);
        if self.due.when().is_some() {
            self.due.take();
            *self.arbiter.lock().expect("no panic") = Waiting::default();
        }
    }
}

#[test]
fn in_any_order_no_request_is_left_while_the_thread_sleeps() {
    check(|| {
        let connection = Arc::new(Connection {
            due: Due(Modelled::new(NEVER)),
            arbiter: Mutex::default(),
            woken: Modelled::new(0),
        });
        let writers = [(); 2].map(|()| {
            let connection = connection.clone();
            loom::thread::spawn(move || connection.leave_a_request())
        });
        connection.turn();
        let sleeps = connection.due.when().is_none();
        for writer in writers {
            writer.join().expect("a writer");
        }
        if !sleeps || connection.woken.load(Ordering::Acquire) != 0 {
            connection.turn();
        }
        assert_eq!(connection.arbiter.lock().expect("no panic").requests, 0);
    });
}

#[test]
fn an_earlier_request_wakes_the_thread_and_a_later_one_does_not() {
    let due = Due::new();
    assert_eq!(due.when(), None);
    assert!(due.bring_forward(20) && !due.bring_forward(20) && !due.bring_forward(30));
    assert_eq!(due.when(), Some(20));
    assert!(due.bring_forward(0));
    due.take();
    assert_eq!(due.when(), None);
    assert!(due.bring_forward(40));
}
