//! A program for tests, which keeps the warnings that it logs.

use std::sync::Mutex;

use ferretto_client::runtime::ProducerProgram;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<String>>);

impl Log {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl ProducerProgram for Log {
    fn info(&self, _line: &str) {}

    fn warning(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }

    fn is_own_thread(&self) -> bool {
        false
    }
}
