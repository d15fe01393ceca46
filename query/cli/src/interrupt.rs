//! Ctrl-C ends the statement that runs, not at once the program: temporary files are removed, and a shell goes on. Where no statement runs it ends the program.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use futures::channel::oneshot;
use futures::future::{Either, select};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit status of a program that Ctrl-C has ended, as shells have it.
const INTERRUPTED: i32 = 130;

/// The stack of a thread that works on plans, some of which are deep: a scheduler reads them with functions that call themselves. What a plan does not need is
/// not taken from memory.
const STACK: usize = 16 << 20;

/// How long work has after Ctrl-C that ends by itself.
#[cfg(feature = "ballista")]
const TO_END: std::time::Duration = std::time::Duration::from_secs(10);

/// What Ctrl-C ends.
static RUNNING: Mutex<Option<oneshot::Sender<()>>> = Mutex::new(None);

/// Runs a command's work with threads for its queries. Returns what went wrong, as a sentence.
pub(crate) fn run<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let failed = |error: io::Error| format!("threads cannot be started: {error}");
    // A statement that was ended may keep one busy until it next looks up.
    let threads = available_parallelism().map_err(failed)?.get() + 1;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_stack_size(STACK)
        .enable_all()
        .build()
        .map_err(failed)?;
    // A thread of its own: those of the queries may all be busy.
    let signals = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(failed)?;
    // The handler is there before the work begins: until then, the signal ends the program whatever runs.
    let pressed = {
        let _entered = signals.enter();
        signal(SignalKind::interrupt()).map_err(|error| format!("Ctrl-C cannot be listened for: {error}"))?
    };
    std::thread::Builder::new()
        .spawn(move || signals.block_on(listen(pressed)))
        .map_err(failed)?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

/// Does work until it is done or Ctrl-C is pressed. Returns what went wrong, as a sentence.
pub(crate) async fn until_interrupted<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let (sender, pressed) = oneshot::channel();
    set_running(Some(sender));
    let done = select(Box::pin(work), pressed).await;
    set_running(None);
    match done {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err("interrupted".to_owned()),
    }
}

/// Why work has ended.
#[cfg(feature = "ballista")]
pub(crate) enum End {
    ByItself,
    Interrupted,
}

/// Does work that hears Ctrl-C itself. When it is pressed, the work has some time to end; pressed again, it ends the program. Returns what went wrong, as a
/// sentence.
#[cfg(feature = "ballista")]
pub(crate) async fn until_ended(work: impl Future<Output = Result<(), String>>) -> Result<End, String> {
    let (sender, pressed) = oneshot::channel();
    set_running(Some(sender));
    let work = match select(Box::pin(work), pressed).await {
        Either::Left((result, _)) => {
            set_running(None);
            return result.map(|()| End::ByItself);
        }
        Either::Right((_, work)) => work,
    };
    match tokio::time::timeout(TO_END, work).await {
        Ok(result) => result.map(|()| End::Interrupted),
        Err(_) => Err(format!("interrupted, and not done after {} s", TO_END.as_secs())),
    }
}

fn set_running(sender: Option<oneshot::Sender<()>>) -> Option<oneshot::Sender<()>> {
    std::mem::replace(
        &mut *RUNNING.lock().unwrap_or_else(PoisonError::into_inner),
        sender,
    )
}

async fn listen(mut pressed: Signal) {
    while pressed.recv().await.is_some() {
        match set_running(None) {
            Some(running) => {
                let _ = running.send(());
            }
            None => std::process::exit(INTERRUPTED),
        }
    }
}
