//! Understands `/proc/<pid>/status`, `smaps_rollup` and `stat` (proc_pid_status(5), proc_pid_stat(5)).
//!
//! Called with the content of one file of a process or thread. Kernels differ in their lines (`NSpid` since 4.1,
//! `RssAnon` since 4.5, `Kthread` since 6.4; kernel threads have no memory lines at all). A missing or malformed line
//! affects only its own part of the result.

use crate::kernel_text::{
    key_and_value, leading_i64, leading_u64, lines, task_id, trimmed, whole_u64, words,
};

/// The identity of a process or thread, from its `status` file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status<'text> {
    /// Name of the thread (its "comm"), with the kernel's escapes for line ends and backslashes.
    pub(crate) name: &'text [u8],
    /// Process that the thread belongs to.
    pub(crate) tgid: Option<i32>,
    /// Id of the thread itself.
    pub(crate) tid: Option<i32>,
    /// Parent process; 0 for processes that the kernel started.
    pub(crate) ppid: i32,
    /// Real user id. Ids above `i32::MAX` come out negative, as the trace format has them.
    pub(crate) uid: i32,
    /// Ids in the process id namespaces below the root one, still as text.
    nested_ids: &'text [u8],
    /// Whether it is a thread of the kernel, where the kernel says so.
    pub(crate) kthread: Option<bool>,
}

impl<'text> Status<'text> {
    /// Parses `text`.
    pub(crate) fn parse(text: &'text [u8]) -> Self {
        let mut status = Self::default();
        for line in lines(text) {
            let Some((key, value)) = key_and_value(line) else {
                continue;
            };
            match key {
                b"Name" => status.name = value,
                b"Tgid" => status.tgid = task_id(value),
                b"Pid" => status.tid = task_id(value),
                b"PPid" => status.ppid = task_id(value).unwrap_or(0),
                // Four ids: real, effective, saved, file system. The cast is the format's: see the field.
                b"Uid" => status.uid = leading_u64(value).unwrap_or(0) as i32,
                b"NSpid" => status.nested_ids = value,
                b"Kthread" => status.kthread = whole_u64(value).and_then(kthread_flag),
                _ => {}
            }
            if key == b"Kthread" || key == b"VmPeak" {
                break; // all of the above come before
            }
        }
        status
    }

    /// Ids of the thread in each process id namespace it is in, from the outermost one below the root to its own.
    pub(crate) fn namespaced_ids(&self) -> impl Iterator<Item = i32> + 'text {
        words(self.nested_ids).skip(1).map(|id| task_id(id).unwrap_or(0))
    }

    /// Whether it lives in a process id namespace other than the root one.
    pub(crate) fn is_namespaced(&self) -> bool {
        self.namespaced_ids().next().is_some()
    }
}

fn kthread_flag(value: u64) -> Option<bool> {
    match value {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Counters that are sampled of every process. Each is a slot of a [`Sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    VmSize,
    VmRss,
    RssAnon,
    RssFile,
    RssShmem,
    VmSwap,
    VmLocked,
    VmHwm,
    OomScoreAdj,
    SmapsRss,
    SmapsPss,
    SmapsPssAnon,
    SmapsPssFile,
    SmapsPssShmem,
    SmapsSwapPss,
    RuntimeUser,
    RuntimeKernel,
    DmabufRss,
}

impl Counter {
    /// The number of counters.
    pub(crate) const COUNT: usize = Self::DmabufRss as usize + 1;

    /// All of them, in the order of their slots.
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::VmSize,
        Self::VmRss,
        Self::RssAnon,
        Self::RssFile,
        Self::RssShmem,
        Self::VmSwap,
        Self::VmLocked,
        Self::VmHwm,
        Self::OomScoreAdj,
        Self::SmapsRss,
        Self::SmapsPss,
        Self::SmapsPssAnon,
        Self::SmapsPssFile,
        Self::SmapsPssShmem,
        Self::SmapsSwapPss,
        Self::RuntimeUser,
        Self::RuntimeKernel,
        Self::DmabufRss,
    ];
}

/// One value for each counter; negative ones (only `oom_score_adj`) in two's complement. `None` is "not there".
pub(crate) type Sample = [Option<u64>; Counter::COUNT];

/// Puts the memory counters of a `status` file into `sample`. Returns whether there were any: kernel threads and
/// zombies have no memory.
pub(crate) fn sample_status(text: &[u8], sample: &mut Sample) -> bool {
    sample_kilobytes(text, sample, |key| {
        Some(match key {
            b"VmSize" => Counter::VmSize,
            b"VmLck" => Counter::VmLocked,
            b"VmHWM" => Counter::VmHwm,
            b"VmRSS" => Counter::VmRss,
            b"RssAnon" => Counter::RssAnon,
            b"RssFile" => Counter::RssFile,
            b"RssShmem" => Counter::RssShmem,
            b"VmSwap" => Counter::VmSwap,
            _ => return None,
        })
    });
    sample[Counter::VmSize as usize].is_some()
}

/// Puts the counters of a `smaps_rollup` file into `sample`.
pub(crate) fn sample_smaps_rollup(text: &[u8], sample: &mut Sample) {
    sample_kilobytes(text, sample, |key| {
        Some(match key {
            b"Rss" => Counter::SmapsRss,
            b"Pss" => Counter::SmapsPss,
            b"Pss_Anon" => Counter::SmapsPssAnon,
            b"Pss_File" => Counter::SmapsPssFile,
            b"Pss_Shmem" => Counter::SmapsPssShmem,
            b"SwapPss" => Counter::SmapsSwapPss,
            _ => return None,
        })
    });
}

fn sample_kilobytes(text: &[u8], sample: &mut Sample, slot: impl Fn(&[u8]) -> Option<Counter>) {
    for line in lines(text) {
        // Few lines of a status file matter here, so the colon is searched only as far as the longest wanted key
        // reaches.
        let Some(colon) = line.iter().take(12).position(|&byte| byte == b':') else {
            continue;
        };
        let Some(counter) = slot(&line[..colon]) else {
            continue;
        };
        if let Some(kilobytes) = leading_u64(&line[colon + 1..]) {
            sample[counter as usize] = Some(kilobytes);
        }
    }
}

/// Puts the value of `oom_score_adj` into `sample`.
pub(crate) fn sample_oom_score_adj(text: &[u8], sample: &mut Sample) {
    sample[Counter::OomScoreAdj as usize] = leading_i64(text).map(i64::cast_unsigned);
}

/// Puts the value of `dmabuf_rss`, in bytes, into `sample`.
pub(crate) fn sample_dmabuf_rss(text: &[u8], sample: &mut Sample) {
    sample[Counter::DmabufRss as usize] = leading_u64(text).map(|bytes| bytes / 1024);
}

/// Times out of a `stat` file, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatTimes {
    /// Spent in user mode.
    pub(crate) user: u64,
    /// Spent in the kernel.
    pub(crate) kernel: u64,
    /// From boot to the start of the process.
    pub(crate) start: u64,
}

impl StatTimes {
    /// Parses `text`. The second field is the name in parentheses. The name may hold blanks and parentheses itself,
    /// so fields are counted from the last closing one.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let name_end = text.iter().rposition(|&byte| byte == b')')?;
        // Fields 14, 15 and 22 of proc_pid_stat(5), the next one being the third.
        let mut fields = words(trimmed(&text[name_end + 1..])).skip(14 - 3);
        let user = whole_u64(fields.next()?)?;
        let kernel = whole_u64(fields.next()?)?;
        let start = whole_u64(fields.nth(22 - 16)?)?;
        Some(Self { user, kernel, start })
    }
}
