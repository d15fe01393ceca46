//! Data sources for Linux: linux.frozen_ftrace, linux.ftrace, linux.inode_file_map, linux.process_stats, linux.sys_stats,
//! linux.sysfs_power, linux.system_info, linux.systemd_journald, perfetto.metatrace.
#![deny(unsafe_code)]

pub mod cpu_ranges;
pub mod ftrace;
pub mod inode_file_map;
pub mod journald;
pub mod kernel_files;
mod kernel_text;
pub mod lru;
pub mod metatrace;
pub(crate) mod notice;
mod own_threads;
pub mod pid_namespace;
pub mod process_stats;
pub mod producer;
pub mod sys_stats;
pub mod sysfs_power;
pub mod system_info;
#[cfg(test)]
mod test_files;
#[cfg(test)]
mod test_processes;
mod time;
