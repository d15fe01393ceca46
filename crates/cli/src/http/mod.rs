//! HTTP on this machine's loopback addresses: one listener, one reader of requests, and one event loop for connections.
//!
//! [`open`](crate::open), which serves files, [`websocket_bridge`](crate::websocket_bridge), which turns connections into WebSockets, and
//! [`recorder`](crate::recorder), which serves its metrics, use it.
//! Each implements [`Application`], which judges requests and drives the exchanges that follow. [`server`] has the event loop and the limits,
//! [`browser`] the socket of a connection, [`head`] the heads of requests and answers.
//!
//! Guarantees, for any input from browsers and other programs: a bounded number of connections, each with a bounded head and a bounded turn; a time
//! limit for requests and for closing; one request for each connection; no threads and no calls that wait.

mod browser;
mod head;
mod server;

pub(crate) use browser::{Browser, PATIENCE, send};
pub(crate) use head::{Head, Repeated, Response, quoted};
pub(crate) use server::{Application, Exchange, MOST_EXCHANGES, Server, State, Waits, Wake};

#[cfg(test)]
pub(crate) use head::BadHead;
