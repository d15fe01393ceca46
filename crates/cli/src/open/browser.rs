//! Starts the user's browser.
//!
//! [`run`](super::run) calls it. `xdg-open` finds the browser on every desktop (and obeys `$BROWSER`).

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The result of starting a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Start {
    /// `xdg-open` was started.
    Started,
    /// The user wants none.
    NotWanted,
    /// There is no display.
    NoDisplay,
    /// There is no `xdg-open`.
    NoOpener,
    /// The page that it should show first cannot be reached, for this reason.
    OutOfReach(String),
}

/// Makes the user's browser visit `address`, if there is a display and `look` can reach the page.
pub(super) fn start(address: &str, look: impl FnOnce() -> Result<(), String>) -> Start {
    let display = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|variable| std::env::var_os(variable).is_some_and(|value| value.as_os_str() != OsStr::new("")));
    if !display {
        return Start::NoDisplay;
    }
    if let Err(reason) = look() {
        return Start::OutOfReach(reason);
    }
    let opener = Command::new("xdg-open")
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // `xdg-open` may become the browser, which Ctrl-C here should not end.
        .process_group(0)
        .spawn();
    let Ok(mut opener) = opener else {
        return Start::NoOpener;
    };
    // `xdg-open` may run as long as the browser.
    std::thread::spawn(move || match opener.wait() {
        Ok(status) if !status.success() => {
            super::say("xdg-open found no browser to start: visit the address yourself")
        }
        _ => {}
    });
    Start::Started
}
