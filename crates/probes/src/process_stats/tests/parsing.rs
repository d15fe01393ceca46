//! The parsers on files of several kernel versions.

use super::super::status::{Counter, Sample, StatTimes, Status, sample_smaps_rollup, sample_status};
use super::stat_text;

/// `status` of a process of Linux 3.10 (no `NSpid`, no `RssAnon`), of 4.14 and of 6.18.
#[test]
fn status_files_of_many_kernels_are_understood() {
    let linux_3_10 = "Name:\tsystemd-udevd\nState:\tS (sleeping)\nTgid:\t412\nPid:\t412\nPPid:\t1\nTracerPid:\t0\n\
        Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t\nVmPeak:\t   43672 kB\nVmSize:\t   43668 kB\n\
        VmLck:\t       0 kB\nVmPin:\t       0 kB\nVmHWM:\t    2968 kB\nVmRSS:\t    2964 kB\nVmData:\t    1252 kB\n\
        VmSwap:\t       4 kB\nThreads:\t1\n";
    let linux_4_14 = "Name:\tinit\nUmask:\t0000\nState:\tS (sleeping)\nTgid:\t1\nNgid:\t0\nPid:\t1\nPPid:\t0\n\
        TracerPid:\t0\nUid:\t4294967294\t0\t0\t0\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t\nNStgid:\t1\nNSpid:\t1\n\
        NSpgid:\t0\nNSsid:\t0\nVmPeak:\t 10632 kB\nVmSize:\t 10632 kB\nVmLck:\t 0 kB\nVmPin:\t 0 kB\nVmHWM:\t 3152 kB\n\
        VmRSS:\t 3148 kB\nRssAnon:\t 1040 kB\nRssFile:\t 2108 kB\nRssShmem:\t 0 kB\nVmSwap:\t 0 kB\n";
    let linux_6_18 = "Name:\tkworker/0:1-events (x)\nUmask:\t0000\nState:\tI (idle)\nTgid:\t9\nNgid:\t0\nPid:\t9\nPPid:\t2\n\
        TracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t \nNStgid:\t9\nNSpid:\t9\nNSpgid:\t0\n\
        NSsid:\t0\nKthread:\t1\nThreads:\t1\n";
    let about = |text: &'static str| {
        let status = Status::parse(text.as_bytes());
        let mut sample = Sample::default();
        let memory = sample_status(text.as_bytes(), &mut sample);
        let [size, rss, anon] =
            [Counter::VmSize, Counter::VmRss, Counter::RssAnon].map(|at| sample[at as usize]);
        assert_eq!(memory, size.is_some());
        (
            status.name,
            status.tgid,
            status.tid,
            status.ppid,
            status.uid,
            status.kthread,
            [size, rss, anon],
        )
    };
    assert_eq!(
        about(linux_3_10),
        (
            &b"systemd-udevd"[..],
            Some(412),
            Some(412),
            1,
            0,
            None,
            [Some(43668), Some(2964), None]
        )
    );
    assert_eq!(
        about(linux_4_14),
        (
            &b"init"[..],
            Some(1),
            Some(1),
            0,
            -2,
            None,
            [Some(10632), Some(3148), Some(1040)]
        )
    );
    assert_eq!(
        about(linux_6_18),
        (
            &b"kworker/0:1-events (x)"[..],
            Some(9),
            Some(9),
            2,
            0,
            Some(true),
            [None; 3]
        )
    );
}

#[test]
fn a_name_cannot_pass_for_another_line() {
    let status = Status::parse(b"Name:\tTgid:\t7\\nPid: 8\nTgid:\t5\nPid:\t5\n");
    assert_eq!((status.tgid, status.tid), (Some(5), Some(5)));
    assert_eq!(status.name, b"Tgid:\t7\\nPid: 8");
}

#[test]
fn stat_files_that_are_cut_short_have_no_times() {
    let whole = stat_text("x", 1, 2, 3);
    let start_ends = whole.find(" 3 ").unwrap() + 2;
    for end in 0..whole.len() {
        let times = StatTimes::parse(&whole.as_bytes()[..end]);
        assert_eq!(times.is_some(), end >= start_ends, "cut at {end}");
    }
}

#[test]
fn rollups_of_old_kernels_lack_some_counters() {
    let mut sample = Sample::default();
    sample_smaps_rollup(
        b"Rss:  884 kB\nPss:  385 kB\nShared_Clean: 696 kB\nSwapPss: 0 kB\n",
        &mut sample,
    );
    assert_eq!(sample[Counter::SmapsRss as usize], Some(884));
    assert_eq!(sample[Counter::SmapsPssAnon as usize], None);
    assert_eq!(sample[Counter::SmapsSwapPss as usize], Some(0));
}
