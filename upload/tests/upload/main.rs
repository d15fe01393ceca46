//! The uploader as a process of its own, with a folder and with a server that speaks S3: kills and faults at random moments.

#![allow(clippy::unwrap_used)]

mod bucket;
mod folder;
mod proxy;
mod s3;
mod site;
