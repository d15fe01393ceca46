//! Data sources for Linux: linux.ftrace, linux.frozen_ftrace, linux.inode_file_map, linux.process_stats, linux.sys_stats, linux.system_info.
#![forbid(unsafe_code)]

pub mod ftrace;
pub mod inode_file_map;
pub mod kernel_files;
mod kernel_text;
pub mod notice;
mod own_threads;
pub mod process_stats;
pub mod producer;
pub mod sys_stats;
pub mod system_info;
#[cfg(test)]
mod test_files;
mod time;
