//! A terminal with a program in it. Tests press keys, and a model of the screen shows the user's view.
//!
//! The tests of output for people use it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{PATIENCE, Running, is_readable, signals};

/// Rows and columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size(pub(crate) u16, pub(crate) u16);

/// A terminal window.
pub(crate) struct Terminal {
    /// The user's side of the terminal.
    user: std::fs::File,
    screen: vt100::Parser,
    /// Everything that was written to the terminal.
    written: Vec<u8>,
    program: Running,
}

impl Terminal {
    /// Opens a window in which `command` runs, as the leader of a session with this controlling terminal. Its standard streams are the terminal.
    pub(crate) fn open(size: Size, command: &Command) -> Terminal {
        Terminal::open_with(size, command, |_| {})
    }

    /// Like [`Terminal::open`], after `prepare` has changed the command.
    pub(crate) fn open_with(size: Size, command: &Command, prepare: impl FnOnce(&mut Command)) -> Terminal {
        signals::as_usual();
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap().into_string().unwrap();
        let inside = || -> OwnedFd {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).open(&name).unwrap().into()
        };
        let mut session = Command::new("setsid");
        session
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        session.env("TERM", "xterm").env_remove("NO_COLOR");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            session.current_dir(folder);
        }
        session
            .stdin(Stdio::from(inside()))
            .stdout(Stdio::from(inside()))
            .stderr(Stdio::from(inside()));
        prepare(&mut session);
        set_size(&user, size);
        let program = Running(session.spawn().unwrap());
        Terminal {
            user: user.into(),
            screen: vt100::Parser::new(size.0, size.1, 0),
            written: Vec::new(),
            program,
        }
    }

    /// Runs an interactive bash that looks the same on all machines, with `folder` as its working directory.
    pub(crate) fn shell(size: Size, folder: &Path) -> Terminal {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "-i"])
            .current_dir(folder)
            .env("HOME", folder)
            .env("PS1", "ready> ")
            .env_remove("HISTFILE")
            .env("INPUTRC", "/dev/null")
            .env("BASH_SILENCE_DEPRECATION_WARNING", "1");
        let mut terminal = Terminal::open(size, &bash);
        terminal.await_prompt();
        terminal
    }

    /// Returns the program's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line in a [shell](Self::shell), and waits for the end of its command. Returns the content of the screen, which was cleared before.
    pub(crate) fn run(&mut self, line: &str) -> String {
        self.press("\x0c");
        self.await_screen("a clean screen", |rows| rows.len() == 1 && rows[0] == "ready>");
        self.press(&format!("{line}\r"));
        self.await_screen("the prompt after a command", |rows| {
            rows.len() > 1 && rows.last().is_some_and(|row| row == "ready>")
        })
    }

    /// Waits for the first prompt of a shell. If the locale is not installed, bash prints a complaint before it.
    pub(crate) fn await_prompt(&mut self) {
        self.await_screen("a prompt", |rows| rows.last().is_some_and(|row| row == "ready>"));
    }

    /// Waits until the screen is as wanted; returns it.
    pub(crate) fn await_screen(&mut self, wish: &str, wanted: impl Fn(&[String]) -> bool) -> String {
        self.await_cursor(wish, |rows, _| wanted(rows))
    }

    /// Waits until the screen, and row and column of the cursor on it, are as wanted. Returns the screen.
    ///
    /// A program draws in several steps, and any of them may be the last one that has arrived. A look at the cursor therefore belongs into `wanted`, not
    /// after it.
    pub(crate) fn await_cursor(
        &mut self,
        wish: &str,
        wanted: impl Fn(&[String], (u16, u16)) -> bool,
    ) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let rows = self.rows();
            let cursor = self.screen.screen().cursor_position();
            if wanted(&rows, cursor) {
                return rows.join("\n");
            }
            assert!(
                self.take(until),
                "{wish} did not come; the cursor is at {cursor:?} of the screen:\n{}",
                rows.join("\n")
            );
        }
    }

    /// Waits until the program has ended; returns its status and the last screen.
    pub(crate) fn finish(mut self) -> (ExitStatus, String) {
        let until = Instant::now() + PATIENCE;
        while self.take(until) {}
        let status = self.program.wait(PATIENCE);
        let screen = self.rows().join("\n");
        (status.unwrap_or_else(|| panic!("it goes on:\n{screen}")), screen)
    }

    /// Reads the output. Returns whether there may be more, which is false once the program is gone or the time is over.
    fn take(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if !is_readable(&self.user, left) {
            return false;
        }
        let mut bytes = [0; 4096];
        // EIO, once nobody has the other side open.
        let Ok(count @ 1..) = self.user.read(&mut bytes) else {
            return false;
        };
        self.written.extend_from_slice(&bytes[..count]);
        self.screen.process(&bytes[..count]);
        true
    }

    /// Changes the size of the window. Text beyond it is cut off.
    pub(crate) fn resize(&mut self, size: Size) {
        self.screen.screen_mut().set_size(size.0, size.1);
        set_size(&self.user, size);
    }

    /// Returns the rows of the screen, without empty ones at the end.
    pub(crate) fn rows(&self) -> Vec<String> {
        let screen = self.screen.screen();
        let rows = screen.rows(0, screen.size().1);
        let mut rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    /// Returns everything that was written so far, including control sequences.
    pub(crate) fn written(&self) -> String {
        String::from_utf8_lossy(&self.written).into_owned()
    }
}

fn set_size(user: impl std::os::fd::AsFd, size: Size) {
    let size = Winsize {
        ws_row: size.0,
        ws_col: size.1,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(user, size).unwrap();
}
