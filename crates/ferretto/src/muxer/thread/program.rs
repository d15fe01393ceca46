//! The SDK's thread, as the runtime sees it.

use ferretto_client::runtime::ProducerProgram;

use crate::muxer::{log, on_own_thread};
use crate::options::LogLevel;
use crate::track_event;

pub(super) struct SdkThread;

impl ProducerProgram for SdkThread {
    fn info(&self, line: &str) {
        log(LogLevel::Info, line);
    }

    fn warning(&self, line: &str) {
        log(LogLevel::Warning, line);
    }

    fn is_own_thread(&self) -> bool {
        on_own_thread()
    }

    /// Confines the thread: the application's code on it may be the writer, and its allocator may trace while this sends.
    fn send_for_writer(&self, send: &mut dyn FnMut()) {
        let _confined = track_event::confine();
        send();
    }
}
