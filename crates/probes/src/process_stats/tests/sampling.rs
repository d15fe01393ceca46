//! Which counters are written, and when they are written again.

use super::*;

#[test]
fn all_counters_are_sampled_where_asked_for() {
    let config = ProcessStatsConfig {
        scan_smaps_rollup: Some(true),
        record_process_runtime: Some(true),
        record_process_dmabuf_rss: Some(true),
        ..polling()
    };
    let mut proc = Fixture::new(config);
    let memory = "VmPeak: 999 kB\nVmSize: 20000000000 kB\nVmLck: 3 kB\nVmHWM: 4 kB\nVmRSS: 5 kB\nRssAnon: 6 kB\n\
                  RssFile: 7 kB\nRssShmem: 8 kB\nVmSwap: 9 kB\n";
    proc.process(1, memory, "x");
    proc.proc.write("1/oom_score_adj", "-1000\n");
    proc.proc.write("1/dmabuf_rss", "8192\n");
    proc.proc.write("1/stat", stat_text("x", 12, 34, 56));
    let rollup = "00400000-7fff [rollup]\nRss: 11 kB\nPss: 12 kB\nPss_Dirty: 99 kB\nPss_Anon: 13 kB\nPss_File: 14 kB\n\
                  Pss_Shmem: 15 kB\nSwap: 99 kB\nSwapPss: 16 kB\n";
    proc.proc.write("1/smaps_rollup", rollup);
    proc.start();
    let stats = proc.sample();
    let process = &stats[0].processes[0];
    assert_eq!(process.pid, Some(1));
    assert_eq!(
        process.vm_size_kb,
        Some(20_000_000_000),
        "address spaces are larger than 32 bits of kilobytes"
    );
    assert_eq!(
        (process.vm_locked_kb, process.vm_hwm_kb, process.vm_rss_kb),
        (Some(3), Some(4), Some(5))
    );
    assert_eq!(
        (process.rss_anon_kb, process.rss_file_kb, process.rss_shmem_kb),
        (Some(6), Some(7), Some(8))
    );
    assert_eq!(
        (process.vm_swap_kb, process.oom_score_adj),
        (Some(9), Some(-1000))
    );
    assert_eq!((process.smr_rss_kb, process.smr_pss_kb), (Some(11), Some(12)));
    assert_eq!(
        (process.smr_pss_anon_kb, process.smr_pss_file_kb),
        (Some(13), Some(14))
    );
    assert_eq!(
        (process.smr_pss_shmem_kb, process.smr_swap_pss_kb),
        (Some(15), Some(16))
    );
    let tick = nanos_per_tick();
    assert_eq!(
        (process.runtime_user_mode, process.runtime_kernel_mode),
        (Some(12 * tick), Some(34 * tick))
    );
    assert_eq!(process.dmabuf_rss_kb, Some(8));
    assert!(stats[0].collection_end_timestamp.is_some());
}

#[test]
fn files_that_were_not_asked_for_are_not_read() {
    let mut proc = Fixture::new(polling());
    proc.process(1, MEMORY, "x");
    proc.proc.write("1/smaps_rollup", "Rss: 11 kB\n");
    proc.proc.write("1/dmabuf_rss", "8192\n");
    proc.proc.write("1/stat", stat_text("x", 12, 34, 56));
    proc.proc.link("1/fd/0", "/dev/null");
    proc.start();
    let stats = proc.sample();
    let process = &stats[0].processes[0];
    assert_eq!(process.vm_size_kb, Some(800));
    assert_eq!(
        (
            process.smr_rss_kb,
            process.dmabuf_rss_kb,
            process.runtime_user_mode
        ),
        (None, None, None)
    );
    assert!(process.fds.is_empty());
}

#[test]
fn within_the_life_of_the_cache_only_what_changed_is_written() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        proc_stats_cache_ttl_ms: Some(399),
        ..polling()
    });
    proc.process(1, MEMORY, "x");
    proc.start();
    let samples: Vec<_> = (0..7)
        .map(|sample| {
            if sample == 2 {
                proc.process(1, &MEMORY.replace("70 kB", "71 kB"), "x");
            }
            let stats = proc.sample();
            stats
                .first()
                .map(|stats| (stats.processes[0].vm_size_kb, stats.processes[0].vm_rss_kb))
        })
        .collect();
    // 399 ms are three periods, rounded down.
    let all = |rss| Some((Some(800), Some(rss)));
    assert_eq!(
        samples,
        [
            all(70),
            None,
            Some((None, Some(71))),
            all(71),
            None,
            None,
            all(71)
        ]
    );
}

#[test]
fn without_a_cache_time_every_sample_is_whole() {
    let mut proc = Fixture::new(polling());
    proc.process(1, MEMORY, "x");
    proc.start();
    for _ in 0..3 {
        assert_eq!(proc.sample()[0].processes[0].vm_size_kb, Some(800));
    }
}

#[test]
fn clearing_incremental_state_writes_cached_values_again() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        proc_stats_cache_ttl_ms: Some(300),
        ..polling()
    });
    proc.process(1, MEMORY, "x");
    proc.start();
    assert_eq!([proc.sample().len(), proc.sample().len()], [1, 0]);
    proc.source.clear_incremental_state();
    // The cache's time starts anew as well.
    let written: Vec<_> = (0..4).map(|_| proc.sample().len()).collect();
    assert_eq!(written, [1, 0, 0, 1]);
}

#[test]
fn a_process_without_memory_is_looked_at_once_until_it_is_gone() {
    let mut proc = Fixture::new(polling());
    proc.process(2, "", "");
    proc.start();
    assert!(proc.sample().is_empty());
    proc.process(2, MEMORY, "");
    for _ in 0..3 {
        assert!(proc.sample().is_empty(), "it was not read again");
    }
    proc.proc.remove("2");
    assert!(proc.sample().is_empty());
    proc.process(2, MEMORY, "another with the same id");
    assert_eq!(proc.sample()[0].processes[0].vm_size_kb, Some(800));
}

#[test]
fn kernel_threads_have_run_times_and_are_described_for_them() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        record_process_runtime: Some(true),
        ..polling()
    });
    proc.process(2, "", "");
    proc.proc.write("2/stat", stat_text("kthreadd", 0, 7, 0));
    proc.start();
    for sample in 0..2 {
        proc.source
            .on_deadline(proc.source.next_deadline().unwrap(), &mut proc.sink);
        let packets = proc.packets();
        assert_eq!(packets.len(), if sample == 0 { 2 } else { 1 });
        let stats = stats(packets[0].clone()).unwrap();
        assert_eq!(stats.processes[0].runtime_kernel_mode, Some(7 * nanos_per_tick()));
        assert_eq!(stats.processes[0].oom_score_adj, None);
    }
}

#[test]
fn open_files_are_told_once_per_life_of_the_cache() {
    let config = ProcessStatsConfig {
        resolve_process_fds: Some(true),
        scan_all_processes_on_start: Some(true),
        proc_stats_cache_ttl_ms: Some(200),
        ..polling()
    };
    let mut proc = Fixture::new(config);
    proc.process(1, MEMORY, "x");
    proc.process(2, MEMORY, "y");
    proc.proc.link("1/fd/5", "/dev/dummy");
    proc.proc.link("1/fd/7", "pipe:[12]");
    proc.proc.write("1/fd/9", "not a link");
    proc.start();
    let files = |stats: &[Stats]| -> Vec<(i32, u64, String)> {
        let mut files: Vec<_> = stats
            .iter()
            .flat_map(|stats| &stats.processes)
            .flat_map(|process| {
                process
                    .fds
                    .iter()
                    .map(|file| (process.pid.unwrap(), file.fd.unwrap(), file.path.clone().unwrap()))
            })
            .collect();
        files.sort();
        files
    };
    let both = [(1, 5, "/dev/dummy".to_owned()), (1, 7, "pipe:[12]".to_owned())];
    assert_eq!(files(&proc.stats()), both, "at the start");
    assert_eq!(files(&proc.sample()), []);
    proc.proc.link("2/fd/3", "/new");
    assert_eq!(files(&proc.sample()), [(2, 3, "/new".to_owned())]);
    assert_eq!(files(&proc.sample()).len(), 3, "the cache's time is over");

    // System calls name files of threads.
    proc.thread(2, 22, "");
    proc.see(&[2, 22]);
    proc.proc.link("2/fd/4", "/newer");
    let seen = BTreeSet::from([(22, 3), (22, 4), (22, 99), (77, 1)]);
    proc.source.on_files_seen(&seen, 9, &mut proc.sink);
    assert_eq!(files(&proc.stats()), [(2, 4, "/newer".to_owned())]);
}

#[test]
fn a_long_link_is_cut() {
    let config = ProcessStatsConfig {
        resolve_process_fds: Some(true),
        ..polling()
    };
    let mut proc = Fixture::new(config);
    proc.process(1, MEMORY, "x");
    proc.proc.link("1/fd/5", &"/x".repeat(1000));
    proc.start();
    assert_eq!(
        proc.sample()[0].processes[0].fds[0].path.as_deref(),
        Some(&*"/x".repeat(128))
    );
}
