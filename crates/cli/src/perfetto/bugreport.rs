//! `perfetto --save-all-for-bugreport`: clones every running session that a bug report wants.
//!
//! [`run`](super::run) calls it. It selects, orders and names the sessions as upstream does, but a failed clone leads to a failure's exit code.

use std::path::Path;

use ferretto_client::consumer::StateScope;
use ferretto_ipc::address::Address;
use ferretto_proto::messages::tracing_service_state::TracingSession;

use super::background::{self, Detached};
use super::console::{Console, Voice};
use super::plan::{
    CloneOf, DEFAULT_BUGREPORT_FILE, ExistingFile, Job, Original, Process, Recording, Sink, Strictness,
    TraceFilter,
};
use super::query::ask;
use super::signals::Signals;
use super::{FAILURE, SUCCESS, save_clone};
use crate::service::running_service;

/// A session to clone, and the name of its file in the folder.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    session: u64,
    score: i32,
    file: String,
}

/// Clones the sessions into files in `folder`; returns the exit code.
pub(super) fn save_all(process: Process, folder: &Path, console: &mut Console) -> u8 {
    match background::detach(process, None) {
        Ok(Detached::Recorder(_)) => {}
        Ok(Detached::Parent(status, _)) => return status as u8,
        Err(error) => {
            console.say(error);
            return FAILURE;
        }
    }
    match find_and_save(folder, console) {
        Ok(exit_code) => exit_code,
        Err(error) => {
            console.say(error);
            FAILURE
        }
    }
}

fn find_and_save(folder: &Path, console: &mut Console) -> Result<u8, String> {
    let service = running_service().map_err(|error| error.to_string())?;
    let (state, _) = ask(&service, StateScope::SessionsOnly)?;
    let wanted = wanted(&state.tracing_sessions);
    if wanted.is_empty() {
        console.say(
            "No tracing sessions eligible for bugreport were found: none that runs has a bugreport_score above 0",
        );
        return Ok(SUCCESS);
    }
    let socket = &service.consumer_socket;
    let voice = console.voice();
    // The clones run in parallel, so that all show the same time.
    let outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = wanted
            .into_iter()
            .map(|wanted| scope.spawn(move || save(voice, wanted, folder, socket)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().ok();
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    let mut exit_code = SUCCESS;
    for outcome in outcomes {
        let (lines, code) = outcome.unwrap_or((Vec::new(), FAILURE));
        lines.into_iter().for_each(|line| console.pass_on(line));
        exit_code = exit_code.max(code);
    }
    Ok(exit_code)
}

fn save(voice: Voice, wanted: Wanted, folder: &Path, socket: &Address) -> (Vec<String>, u8) {
    let path = folder.join(&wanted.file);
    let mut console = Console::kept(voice);
    console.notice(format_args!(
        "cloning tracing session {} with score {} into {}",
        wanted.session,
        wanted.score,
        path.display()
    ));
    // Other users can write to the folder, so an existing file is removed, and neither followed nor written to.
    let exit_code = match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            console.say(format_args!("cannot replace {}: {error}", path.display()));
            FAILURE
        }
        _ => {
            let recording = Recording {
                job: Job::Clone(CloneOf {
                    original: Original::Id(wanted.session),
                    filter: TraceFilter::Skipped,
                    trigger: None,
                }),
                config: Default::default(),
                written: None,
                sink: Sink::File(path),
                existing: ExistingFile::Refuse,
                process: Process::Foreground,
                notify_fd: None,
                strictness: Strictness::Lenient,
                command: None,
                once_started: None,
            };
            save_clone(recording, socket, Signals::LeftAlone, &mut console)
        }
    };
    (console.into_kept(), exit_code)
}

/// Returns the sessions that a bug report wants, the highest score first, each with a file name of its own.
fn wanted(sessions: &[TracingSession]) -> Vec<Wanted> {
    let mut eligible: Vec<&TracingSession> = sessions
        .iter()
        .filter(|session| session.is_started == Some(true) && session.bugreport_score > Some(0))
        .collect();
    eligible.sort_by_key(|session| std::cmp::Reverse(session.bugreport_score));
    let file_of = |session: &TracingSession| {
        let name = session.bugreport_filename.clone().filter(|name| !name.is_empty());
        name.unwrap_or_else(|| DEFAULT_BUGREPORT_FILE.to_owned())
    };
    let numbered = |(index, session): (usize, &&TracingSession)| {
        let file = file_of(session);
        let earlier = eligible[..index]
            .iter()
            .filter(|other| file_of(other) == file)
            .count();
        Wanted {
            session: session.id.unwrap_or_default(),
            score: session.bugreport_score.unwrap_or_default(),
            file: match (earlier, file.rsplit_once('.')) {
                (0, _) => file,
                (_, Some((stem, extension))) => format!("{stem}_{earlier}.{extension}"),
                (_, None) => format!("{file}_{earlier}"),
            },
        }
    };
    eligible.iter().enumerate().map(numbered).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: u64, score: i32, file: &str) -> TracingSession {
        TracingSession {
            id: Some(id),
            bugreport_score: Some(score),
            bugreport_filename: Some(file.to_owned()),
            is_started: Some(true),
            ..Default::default()
        }
    }

    #[test]
    fn running_sessions_with_a_score_go_highest_first_into_files_of_their_own() {
        let sessions = [
            session(1, 5, ""),
            session(2, 9, "a.b.pftrace"),
            session(3, 0, "unwanted"),
            session(4, -1, "unwanted"),
            session(5, 9, "a.b.pftrace"),
            TracingSession {
                is_started: None,
                ..session(6, 10, "stopped")
            },
            TracingSession {
                bugreport_score: None,
                ..session(7, 0, "without")
            },
            session(8, 2, "plain"),
            session(9, 1, "plain"),
            session(10, 4, "systrace.pftrace"),
            session(11, 3, ""),
        ];
        let files: Vec<(u64, String)> = wanted(&sessions)
            .into_iter()
            .map(|wanted| (wanted.session, wanted.file))
            .collect();
        let expected = [
            (2, "a.b.pftrace"),
            (5, "a.b_1.pftrace"),
            (1, "systrace.pftrace"),
            (10, "systrace_1.pftrace"),
            (11, "systrace_2.pftrace"),
            (8, "plain"),
            (9, "plain_1"),
        ];
        assert_eq!(files, expected.map(|(id, file)| (id, file.to_owned())));
    }
}
