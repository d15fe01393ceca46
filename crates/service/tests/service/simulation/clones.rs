//! Consumers that clone sessions in any state, and then treat the clones as their own.

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::TraceConfig;
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, ClonedContent, ConsumerId, Original, SessionId,
};

use super::checks::Told;
use super::{Owned, Simulation};

impl Simulation {
    pub(super) fn clone_session(&mut self, id: ConsumerId) {
        let all: Vec<SessionId> = self.sessions.keys().copied().collect();
        // The latest sessions are most likely to exist still.
        let latest = &all[all.len().saturating_sub(6)..];
        let Some(original) = self.random.pick(latest) else {
            return;
        };
        let for_bugreport = self.random.one_in(8);
        // The simulation does not know which session a bug report gets.
        let forgets = for_bugreport || self.sessions[&original].forgets;
        let request = CloneRequest {
            original: if for_bugreport {
                Original::BUGREPORT
            } else {
                Original::Id(original.0)
            },
            purpose: ClonePurpose::Snapshot,
            filter: CloneFilter::Applied,
            trigger: None,
            file: if self.random.one_in(4) {
                CloneFile::None
            } else {
                CloneFile::Passed
            },
        };
        let (uuid, now) = (self.random.next().into(), self.world.now);
        if let Ok(clone) = self.world.service.clone_session(id, request, uuid, &now) {
            self.cloning.insert(id, (clone, forgets));
        }
    }

    /// Handles the answers to consumers that asked for clones.
    pub(super) fn check_clones(&mut self, alive: &BTreeSet<u64>) {
        let connected = &self.consumers;
        self.cloning.retain(|id, _| connected.contains_key(id));
        for (id, (clone, forgets)) in self.cloning.clone() {
            let answers = &self.world.consumers[&id].clones;
            let mut answers = answers.iter().filter(|(answered, _)| *answered == clone);
            let Some((_, result)) = answers.next() else {
                continue;
            };
            assert!(answers.next().is_none(), "{clone} was answered twice");
            self.cloning.remove(&id);
            let Ok(cloned) = result else { continue };
            // A file that comes with a clone has no limit.
            let streams = (cloned.content == ClonedContent::File).then_some(u64::MAX);
            let owned = Owned {
                owner: Some(id),
                is_clone: true,
                forgets,
                streams,
                file_failed: false,
                triggers: Vec::new(),
                is_triggered: false,
                trace: Told::default(),
                accounts: BTreeMap::new(),
            };
            self.sessions.insert(clone, owned);
            self.check_file(clone);
            // The data after the file is read as in any session.
            self.sessions.get_mut(&clone).expect("known").streams = None;
            // The consumer may have freed the clone while the file was written, and may have begun something else.
            if alive.contains(&clone.0) {
                self.consumers.insert(id, Some(clone));
            }
        }
    }
}

/// Whether only the clones of such a session have packets.
pub(super) fn forgets(config: &TraceConfig) -> bool {
    let mut buffers = config.buffers.iter();
    buffers.any(|buffer| buffer.transfer_on_clone == Some(true) || buffer.clear_before_clone == Some(true))
}
