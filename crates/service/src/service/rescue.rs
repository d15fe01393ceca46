//! Saving the data that a producer leaves in shared memory when it disconnects.

use super::Service;
use super::sessions::Sessions;
use crate::ids::{BufferId, ProducerId};
use crate::ordered::OrderedSet;
use crate::producers::Scraping;
use crate::session::scrape::{ScrapeBudget, ScrapedProducer, Strangers, Targets};
use crate::trace_buffer::TraceBuffer;

impl Targets for Sessions {
    fn buffer_mut(&mut self, id: BufferId) -> Option<&mut TraceBuffer> {
        Sessions::buffer_mut(self, id)
    }
}

impl Service {
    /// Saves the data that a producer leaves in shared memory when it goes away, even if it did not want flushes to scrape it: no commit of
    /// it will come any more. If it did not, only sessions that still record get its data. Leftovers for sessions that are over mean nothing.
    ///
    /// A process that was killed right after its first packets may have left chunks of writers that it had not yet registered. They go to the buffer
    /// that it writes into for the sessions that still record. If there are several, they are counted as discarded in each of these sessions, since
    /// the service cannot know which of them lacks the data.
    pub(crate) fn rescue(&mut self, id: ProducerId) {
        let Some(producer) = self.common.producers.get(id) else {
            return;
        };
        let recording = self.sessions.iter().filter(|session| session.records(id));
        let buffers: Vec<BufferId> = match producer.scraping {
            Scraping::Enabled => self
                .sessions
                .iter()
                .flat_map(|session| &session.buffer_ids)
                .copied()
                .collect(),
            Scraping::Disabled => recording
                .clone()
                .flat_map(|session| &session.buffer_ids)
                .copied()
                .collect(),
        };
        let own = recording.flat_map(|session| session.instances.of_producer(id));
        let targets: OrderedSet<BufferId> = own.map(|(_, instance)| instance.buffer).collect();
        let mut strangers = Strangers::of_one_that_writes_into(&targets);
        let mut scraping = ScrapedProducer {
            id,
            producer,
            buffers: &buffers,
            strangers: &mut strangers,
        };
        let mut left = ScrapeBudget::of_the_last_time();
        let _ = scraping.scrape(&mut self.sessions, &mut left, &mut self.common.chunk);
        if let Strangers::Lost(chunks) = strangers {
            for session in self.sessions.iter_mut().filter(|session| session.records(id)) {
                session.losses.chunks_discarded += chunks;
            }
        }
        for buffer in &producer.allowed_buffers {
            if let Some(buffer) = self.sessions.buffer_mut(*buffer) {
                buffer.producer_gone(id);
            }
        }
        if let Some(producer) = self.common.producers.get_mut(id) {
            // The flushes and stops that its end completes find nothing of it any more: it would be counted and charged again.
            producer.smb = None;
            producer.writers.clear();
        }
    }
}
