//! Starts the user's browser.
//!
//! Called by [`run`](super::run). `xdg-open` knows which browser that is (and heeds `$BROWSER`), on every desktop.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Start {
    /// A browser was asked for.
    Started,
    /// Nobody wants one.
    NotWanted,
    /// There is nothing that it could draw on.
    NoDisplay,
    /// There is no `xdg-open`.
    NoOpener,
    /// What it should show first cannot be reached; this is why.
    OutOfReach(String),
}

/// Has the user's browser visit `address`, if there is one and `look` finds what it should show.
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
        // It may become the browser, which Ctrl-C here should not end.
        .process_group(0)
        .spawn();
    let Ok(mut opener) = opener else {
        return Start::NoOpener;
    };
    // It may run for as long as the browser does.
    std::thread::spawn(move || match opener.wait() {
        Ok(status) if !status.success() => {
            super::say("xdg-open found no browser to start: visit the address yourself")
        }
        _ => {}
    });
    Start::Started
}
