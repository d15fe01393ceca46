//! Data sources for Linux: linux.ftrace, linux.process_stats, linux.sys_stats.
