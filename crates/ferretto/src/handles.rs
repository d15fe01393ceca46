//! The types in which files and sockets are handed over, on each system: by [`Session`](crate::Session)s and
//! [`Transport`](crate::options::Transport)s.

#[cfg(any(unix, target_os = "wasi"))]
pub(crate) use std::os::fd::{OwnedFd as OwnedFile, OwnedFd as OwnedSocket};
#[cfg(windows)]
pub(crate) use std::os::windows::io::{OwnedHandle as OwnedFile, OwnedSocket};
#[cfg(not(any(unix, windows, target_os = "wasi")))]
pub(crate) use std::{fs::File as OwnedFile, net::TcpStream as OwnedSocket};
