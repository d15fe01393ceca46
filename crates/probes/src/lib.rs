//! Data sources for Linux: linux.ftrace, linux.process_stats, linux.sys_stats.
#![forbid(unsafe_code)]

pub mod data_source;
