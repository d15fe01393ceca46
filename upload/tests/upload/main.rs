//! The uploader as a process of its own, with a folder and with a server that speaks S3: kills and faults at random moments.

#![allow(clippy::unwrap_used)]

mod folder;
mod s3;
#[path = "../../../query/store/tests/servers/mod.rs"]
#[allow(dead_code)]
mod servers;
mod site;
