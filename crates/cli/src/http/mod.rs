//! HTTP on this machine's loopback addresses: the one listener, the one reader of requests and the one loop of connections.
//!
//! Called by [`open`](crate::open), which serves files, and by [`websocket_bridge`](crate::websocket_bridge), which turns connections into
//! WebSockets. Each of them is an [`Application`]; it judges requests, and drives what comes after. [`server`] has the event loop and the
//! limits, [`browser`] the socket of a connection, [`head`] the head of a request and that of an answer.
//!
//! Guarantees, whatever browsers and other programs send: a bounded number of connections, each with a bounded head and a bounded turn;
//! a time limit for requests and for taking leave; one request for each connection; no thread and no call that waits.

mod browser;
mod head;
mod server;

pub(crate) use browser::{Browser, PATIENCE, send};
pub(crate) use head::{Head, Repeated, Response, quoted};
pub(crate) use server::{Application, Exchange, MOST_EXCHANGES, Server, State, Waits, Wake};

#[cfg(test)]
pub(crate) use head::BadHead;
