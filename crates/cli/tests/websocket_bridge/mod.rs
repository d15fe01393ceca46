//! `websocket_bridge` as a process, with clients that behave as browsers do, and as browsers never would; with services that the tests play, with
//! ours and upstream's.

mod access;
mod bridge;
mod browser;
mod bytes;
mod ends;
mod services;
