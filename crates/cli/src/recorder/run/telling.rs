//! Tells what has become of things: the log, the clients who asked for seals, the state file and the metrics.
//!
//! [`run`](super) calls it.

use super::*;

impl Daemon {
    pub(super) fn tell(&mut self, id: SealId, outcome: &Outcome) {
        // A leftover that is refused would never become a file.
        if let Some(leftover) = self.salvages.remove(&id) {
            leftover.delete();
        }
        self.failures.remove(&id);
        let request = self.requests.remove(&id).unwrap_or_default();
        let asker = self.askers.remove(&id);
        match outcome {
            Outcome::Sealed { file, written } => {
                let cut = if written.is_cut {
                    ", cut: there was no room for more"
                } else {
                    ""
                };
                log::info(format_args!("sealed {file}: {} bytes{cut}", written.bytes));
            }
            Outcome::Refused(refusal) => {
                self.hits.remove(&id);
                log::warning(format_args!(
                    "not sealed: {request} ({}): {refusal}",
                    refusal.word()
                ));
            }
        }
        let Some((token, session)) = asker else { return };
        let line = match outcome {
            Outcome::Sealed { file, written } => {
                format!("sealed {} {}", self.folder.path(file).display(), written.bytes)
            }
            Outcome::Refused(refusal) => format!("refused {session}: {refusal}"),
        };
        if let Some(client) = self.clients.get_mut(&token) {
            client.tell(&line);
        }
        if self.askers.values().all(|(other, _)| *other != token) {
            self.clients.remove(&token);
        }
    }

    pub(super) fn save(&self) {
        let mut sessions: BTreeMap<String, SessionState> = BTreeMap::new();
        for (name, supervisor) in self.recorder.sessions() {
            let state = SessionState {
                state: if supervisor.is_running() {
                    "running"
                } else {
                    "waiting"
                },
                ends: supervisor.ends(),
                reason: self.reasons.get(name.as_str()).cloned(),
            };
            sessions.insert(name.to_string(), state);
        }
        for (name, config) in &self.configs {
            if let Err(mistake) = config {
                let refused = SessionState {
                    state: "refused",
                    ends: 0,
                    reason: Some(mistake.clone()),
                };
                sessions.entry(name.clone()).or_insert(refused);
            }
        }
        let state = report::encode(&sessions, self.recorder.counters(), self.recorder.shelf().used());
        if let Err(error) = self.folder.save(&state) {
            log::warning(format_args!("cannot write the state file: {error}"));
        }
        self.publish();
    }

    /// Renews the metrics, if there are some.
    pub(super) fn publish(&self) {
        if self.settings.metrics.is_none() {
            return;
        }
        let mut page = Page::default();
        for (name, life) in self.recorder.sessions() {
            let running = u8::from(life.is_running());
            page.add(
                "ferretto_recorder_session_running",
                &[("session", name.as_str())],
                running,
            );
        }
        for (name, life) in self.recorder.sessions() {
            page.add(
                "ferretto_recorder_session_ends_total",
                &[("session", name.as_str())],
                life.ends(),
            );
        }
        for (of, tally) in self.recorder.counters().iter() {
            page.add("ferretto_recorder_seals_total", &[("of", of)], tally.sealed);
        }
        for (of, tally) in self.recorder.counters().iter() {
            page.add("ferretto_recorder_seals_cut_total", &[("of", of)], tally.cut);
        }
        for (of, tally) in self.recorder.counters().iter() {
            for (why, count) in &tally.refused {
                page.add(
                    "ferretto_recorder_refusals_total",
                    &[("of", of), ("why", why)],
                    count,
                );
            }
        }
        let shelf = self.recorder.shelf();
        page.add("ferretto_recorder_sealed_files", &[], shelf.files().count());
        page.add("ferretto_recorder_sealed_bytes", &[], shelf.used());
        page.add("ferretto_recorder_reserved_bytes", &[], shelf.reserved());
        page.add("ferretto_recorder_quota_bytes", &[], self.settings.quota);
        metrics::add_stats(&mut page, &self.stats);
        self.board.put(page);
    }
}
