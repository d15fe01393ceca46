//! The service in this process, on the SDK's thread: its part in each turn, and in the end of the process.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ferretto_ipc::channel::Sender;
use ferretto_ipc::reactor::monotonic_now;

use super::Thread;
use crate::in_process::Rest;
use crate::muxer::backend::HAS_FILES;
use crate::muxer::served::Readiness;
use crate::muxer::{Drained, LAST_WRITE_PATIENCE, log};
use crate::options::{Backend, LogLevel};

/// How long the service in this process takes requests when the process ends, however many there are.
const LAST_REQUESTS_PATIENCE: Duration = Duration::from_millis(50);

impl Thread {
    /// Has the service in this process carry out its producer's requests, and the producer the resulting commands. So a session that the application
    /// begins later finds the data sources that were registered before, unless they are too many for one turn.
    pub(super) fn serve_in_process(&mut self, index: usize) {
        let Some(service) = self.backends[index].in_process().cloned() else {
            return;
        };
        loop {
            self.runtime.pump(Backend::InProcess.connection());
            // The thread's next turn does the rest.
            let _ = service.turn();
            if self.serve_backend(index, Readiness::READABLE) == 0 {
                break;
            }
        }
        for line in service.take_warnings() {
            log(LogLevel::Warning, &format!("in-process service: {line}"));
        }
    }

    /// The process ends: has the service in it process all remaining requests, and complete its files.
    pub(super) fn end_in_process(&mut self, done: &Sender<Drained>) {
        // Sessions that the application has just asked for still begin: they connect, learn that they are connected, and make their requests.
        for _ in 0..3 {
            for index in 0..self.backends.len() {
                if self.backends[index].is_in_process() {
                    self.connect_if_due(index);
                    self.serve_in_process(index);
                }
            }
            self.serve_clients(|_| Readiness::READABLE);
        }
        for index in 0..self.backends.len() {
            let Some(service) = self.backends[index].in_process().cloned() else {
                continue;
            };
            let until = monotonic_now() + LAST_REQUESTS_PATIENCE.as_nanos() as u64;
            let has_files = HAS_FILES.load(Ordering::Acquire);
            if has_files {
                let _ = done.send(Drained::WritingFiles);
            }
            let connection = self.backends[index].backend().connection();
            // Threads may go on recording meanwhile.
            loop {
                self.runtime.pump_now(connection);
                let rest = service.turn();
                // The service reads no requests from a client that does not read its replies.
                self.runtime.on_readable(connection);
                if rest == Rest::None && self.runtime.is_idle(connection) || monotonic_now() >= until {
                    break;
                }
            }
            // Recordings ask what was lost so far. They read the answers when the files are complete, because the log may keep them waiting.
            for client in &mut self.clients {
                client.served.before_exit();
            }
            self.serve_clients(|_| Readiness::READABLE);
            let _ = service.turn();
            service.end(LAST_WRITE_PATIENCE);
            for line in service.take_warnings() {
                log(LogLevel::Warning, &format!("in-process service: {line}"));
            }
            if has_files {
                let _ = done.send(Drained::FilesWritten);
            }
            self.serve_clients(|_| Readiness::READABLE);
        }
    }
}
