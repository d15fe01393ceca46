//! Reads the settings and the configs, at the start and when they have changed.
//!
//! [`run`](super) calls it. A mistake changes nothing but the log and the state.

use super::*;

impl Daemon {
    /// Reads the settings and the configs again.
    pub(super) fn reload(&mut self) {
        match read_settings(&self.settings_file) {
            Ok(settings) => {
                let fixed = |settings: &Settings| {
                    let Settings {
                        sessions,
                        folder,
                        socket,
                        metrics,
                        ..
                    } = settings.clone();
                    (sessions, folder, socket, metrics)
                };
                if fixed(&settings) != fixed(&self.settings) {
                    log::warning(format_args!(
                        "changes of sessions, folder, socket and metrics count when the recorder is started again"
                    ));
                }
                self.recorder.set_settings(&settings);
                self.disk.set_leave_free(settings.leave_free);
                self.conditions.replace(settings.conditions.clone());
                self.look_at = (self.conditions.all().count() > 0).then(monotonic_now);
                let (sessions, folder, socket, metrics) = fixed(&self.settings);
                self.settings = Settings {
                    sessions,
                    folder,
                    socket,
                    metrics,
                    ..settings
                };
                self.listen_to_journal();
            }
            Err(mistake) => {
                tell_mistake(&mistake);
                log::error(format_args!("the settings stay as they were"));
            }
        }
        self.read_configs();
    }

    /// Reads the configs. Sessions whose file is unchanged are left alone, and so are those whose file has a mistake now.
    pub(super) fn read_configs(&mut self) {
        self.reload_at = None;
        let now = self.now();
        // Another folder may have the name now. If there is none, reading it tells so.
        let _ = watch_by_name(&self.changes, &self.settings.sessions);
        let found = match configs::read(&self.settings.sessions, &self.settings) {
            Ok(found) => found,
            Err(error) => {
                let folder = self.settings.sessions.display();
                return log::error(format_args!(
                    "cannot read the folder of sessions {folder}: {error}"
                ));
            }
        };
        for (name, config) in std::mem::take(&mut self.configs) {
            match (&config, found.get(&name)) {
                (Ok((session, _)), None) => {
                    log::info(format_args!("{name}: its file is gone"));
                    self.recorder.remove_session(session);
                    self.reasons.remove(&name);
                }
                (_, None) => {}
                (Ok(_), Some(Err(mistake))) => {
                    tell_mistake(mistake);
                    log::error(format_args!("{name} goes on as it was"));
                    self.configs.insert(name, config);
                }
                (_, Some(_)) => {
                    self.configs.insert(name, config);
                }
            }
        }
        for (name, config) in found {
            let before = self.configs.get(&name);
            match &config {
                _ if before == Some(&config) => {}
                Ok((session, ready)) => {
                    let ring = ready.crash_safe.as_ref().map_or(0, |crash_safe| crash_safe.ring);
                    self.recorder.add_session(session.clone(), ready.room, ring, &now);
                    self.reasons.remove(&name);
                    self.configs.insert(name, config);
                }
                Err(_) if matches!(before, Some(Ok(_))) => {}
                Err(mistake) => {
                    tell_mistake(mistake);
                    self.configs.insert(name, config);
                }
            }
        }
    }
}

/// Logs a mistake, which may have several lines that show its place.
fn tell_mistake(mistake: &str) {
    for line in mistake.lines().filter(|line| !line.trim().is_empty()) {
        log::error(format_args!("{line}"));
    }
}
