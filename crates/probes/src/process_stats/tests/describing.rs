//! The contents of process trees, and their repetition.

use ferretto_client::runtime::probe::LossySink;

use super::*;

#[test]
fn a_process_that_runs_is_described_once_with_its_command_line() {
    let mut proc = Fixture::new(ProcessStatsConfig::default());
    proc.process(42, "", "foo\0bar\0baz\0");
    proc.see(&[0, 42]);
    proc.see(&[42]);
    let packets = proc.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].timestamp, Some(5));
    let tree = tree(packets.into_iter().next().unwrap()).unwrap();
    assert!(tree.collection_end_timestamp > Some(5));
    let process = &tree.processes[0];
    assert_eq!(
        (process.pid, process.ppid, process.uid),
        (Some(42), Some(1), Some(42))
    );
    assert_eq!(process.cmdline, ["foo", "bar", "baz"]);
    assert_eq!((process.cmdline_is_comm, process.is_kthread), (None, None));
    assert_eq!(process.process_start_from_boot, None);
    assert_eq!(threads(&tree), [(42, 42, None)]);
}

#[test]
fn arguments_need_no_closing_nul_and_empty_ones_are_left_out() {
    let mut proc = Fixture::new(ProcessStatsConfig::default());
    proc.process(1, "", "surfaceflinger");
    proc.process(2, "", "sh\0\0-c\0");
    proc.see(&[1, 2]);
    let tree = proc.only_tree();
    assert_eq!(tree.processes[0].cmdline, ["surfaceflinger"]);
    assert_eq!(tree.processes[1].cmdline, ["sh", "-c"]);
}

#[test]
fn a_process_without_arguments_goes_by_the_name_of_its_main_thread() {
    let mut proc = Fixture::new(ProcessStatsConfig::default());
    proc.process(2, "NSpid:\t2\nKthread:\t1\n", "");
    proc.process(3, "Kthread:\t0\n", "\0\0\0");
    proc.process(4, "Kthread:\t7\n", "x");
    proc.see(&[2, 3, 4]);
    let tree = proc.only_tree();
    let about: Vec<_> = tree
        .processes
        .iter()
        .map(|process| {
            (
                process.cmdline[0].as_str(),
                process.cmdline_is_comm,
                process.is_kthread,
            )
        })
        .collect();
    assert_eq!(
        about,
        [
            ("comm2", Some(true), Some(true)),
            ("comm3", Some(true), Some(false)),
            ("x", None, None),
        ]
    );
}

#[test]
fn arguments_and_names_that_are_no_text_are_passed_on_as_they_are() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        record_thread_names: Some(true),
        ..Default::default()
    });
    proc.process(1, "", "");
    proc.proc
        .write("1/status", b"Name:\t\xff\xfename\nTgid:\t1\nPid:\t1\n");
    proc.proc.write("1/cmdline", b"\x80\xc3(\0");
    proc.see(&[1]);
    let contains = |part: &[u8]| proc.sink[0].windows(part.len()).any(|window| window == part);
    assert!(contains(b"\x80\xc3("));
    assert!(contains(b"\xff\xfename"));
}

#[test]
fn the_process_of_a_thread_is_described_before_it() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        record_thread_names: Some(true),
        ..Default::default()
    });
    proc.process(10, "", "ten\0");
    proc.thread(10, 11, "");
    proc.thread(10, 12, "");
    proc.process(20, "", "twenty\0");
    proc.see(&[11]);
    proc.see(&[10, 12, 20]);
    let trees = proc.trees();
    assert_eq!(pids(&trees[0]), [10]);
    assert_eq!(
        threads(&trees[0]),
        [(10, 10, Some("comm10")), (11, 10, Some("thread11"))]
    );
    assert_eq!(pids(&trees[1]), [20]);
    assert_eq!(
        threads(&trees[1]),
        [(12, 10, Some("thread12")), (20, 20, Some("comm20"))]
    );
}

#[test]
fn the_main_thread_has_no_entry_of_its_own_if_it_is_not_wanted() {
    let config = ProcessStatsConfig {
        skip_main_thread_message: Some(true),
        ..Default::default()
    };
    let mut proc = Fixture::new(config);
    proc.process(10, "", "ten\0");
    proc.thread(10, 11, "");
    proc.see(&[10, 11]);
    let tree = proc.only_tree();
    assert_eq!(pids(&tree), [10]);
    assert_eq!(threads(&tree), [(11, 10, None)]);
}

#[test]
fn ids_in_namespaces_are_told_for_processes_and_threads() {
    let mut proc = Fixture::new(ProcessStatsConfig::default());
    proc.process(42, "NSpid:\t42\t2\t1\n", "x");
    proc.thread(42, 43, "NSpid:\t43\t3\t2\n");
    proc.see(&[43]);
    let tree = proc.only_tree();
    assert_eq!(tree.processes[0].nspid, [2, 1]);
    let nested: Vec<_> = tree
        .threads
        .iter()
        .map(|thread| (thread.tid.unwrap(), &thread.nstid[..]))
        .collect();
    assert_eq!(nested, [(42, &[2, 1][..]), (43, &[3, 2])]);
}

#[test]
fn a_renamed_process_is_described_again_and_others_are_not() {
    let mut proc = Fixture::new(ProcessStatsConfig::default());
    proc.process(10, "", "old");
    proc.process(20, "", "other");
    proc.see(&[10, 20]);
    proc.process(10, "", "new");
    proc.source.on_threads_renamed(&BTreeSet::from([10]));
    proc.see(&[10, 20]);
    let trees = proc.trees();
    assert_eq!(pids(&trees[1]), [10]);
    assert_eq!(trees[1].processes[0].cmdline, ["new"]);
}

#[test]
fn clearing_incremental_state_is_announced_and_everything_told_again() {
    let mut proc = Fixture::new(ProcessStatsConfig::default());
    proc.process(42, "", "x");
    proc.process(43, "", "y");
    for tids in [&[42][..], &[42], &[43]] {
        proc.see(tids);
    }
    proc.source.clear_incremental_state();
    proc.see(&[42]);
    let packets = proc.packets();
    let cleared: Vec<_> = packets
        .iter()
        .map(|packet| packet.incremental_state_cleared)
        .collect();
    assert_eq!(cleared, [Some(true), None, Some(true)]);
    let told: Vec<_> = packets
        .into_iter()
        .filter_map(tree)
        .map(|tree| pids(&tree))
        .collect();
    assert_eq!(told, [[42], [43], [42]]);
}

#[test]
fn what_the_sink_lost_is_told_again() {
    let config = ProcessStatsConfig {
        scan_all_processes_on_start: Some(true),
        ..Default::default()
    };
    let mut proc = Fixture::new(config);
    proc.process(42, "", "x");
    let mut sink = LossySink {
        losses: 3, // of an earlier instance
        ..Default::default()
    };
    let tids = BTreeSet::from([42]);
    proc.source.start(1, &mut sink);
    proc.source.on_threads_seen(&tids, 5, &mut sink);
    proc.source.on_threads_seen(&tids, 6, &mut sink);
    assert_eq!(sink.packets.len(), 1);
    sink.losses += 1;
    proc.source.on_threads_seen(&tids, 7, &mut sink);
    proc.source.on_threads_seen(&tids, 8, &mut sink);
    assert_eq!(sink.packets.len(), 2);
    assert_eq!(
        TracePacket::decode_from_slice(&sink.packets[1])
            .unwrap()
            .incremental_state_cleared,
        Some(true)
    );
}

#[test]
fn a_scan_at_the_start_describes_all_processes_and_threads() {
    for names in [false, true] {
        let config = ProcessStatsConfig {
            scan_all_processes_on_start: Some(true),
            record_thread_names: Some(names),
            ..Default::default()
        };
        let mut proc = Fixture::new(config);
        proc.process(10, "", "ten");
        proc.thread(10, 11, "");
        proc.process(20, "NSpid:\t20\t1\n", "twenty");
        proc.thread(20, 21, "NSpid:\t21\t2\n");
        proc.proc.write("self/status", "Tgid:\t99\nPid:\t99\n");
        proc.start();
        let packets = proc.packets();
        assert_eq!(packets.len(), 1);
        assert_eq!(
            (packets[0].timestamp, packets[0].incremental_state_cleared),
            (Some(1), Some(true))
        );
        let tree = tree(packets.into_iter().next().unwrap()).unwrap();
        let mut found = pids(&tree);
        found.sort_unstable();
        assert_eq!(found, [10, 20]);
        let mut told = threads(&tree);
        told.sort_unstable();
        let name = |name| names.then_some(name);
        assert_eq!(
            told,
            [
                (10, 10, name("comm10")),
                (11, 10, name("thread11")),
                (20, 20, name("comm20")),
                (21, 20, name("thread21")),
            ]
        );
        // Without names the source looks closely only at threads in namespaces, and must look at these.
        assert_eq!(
            tree.threads
                .iter()
                .find(|thread| thread.tid == Some(21))
                .unwrap()
                .nstid,
            [2]
        );
        proc.see(&[10, 11, 20, 21]);
        assert!(proc.sink.is_empty(), "all of them are known now");
    }
}

#[test]
fn ftrace_is_not_listened_to_if_on_demand_is_disabled() {
    let config = ProcessStatsConfig {
        quirks: vec![Quirks::DISABLE_ON_DEMAND],
        ..polling()
    };
    let mut proc = Fixture::new(config);
    proc.process(42, MEMORY, "x");
    proc.see(&[42]);
    assert!(proc.sink.is_empty());
    // Sampled processes are described all the same.
    proc.start();
    proc.source.on_deadline(1, &mut proc.sink);
    assert_eq!(pids(&proc.only_tree()), [42]);
}

#[test]
fn the_disused_quirk_changes_nothing() {
    let quirks = vec![Quirks::DISABLE_INITIAL_DUMP];
    let mut proc = Fixture::new(ProcessStatsConfig {
        quirks,
        scan_all_processes_on_start: Some(true),
        ..Default::default()
    });
    proc.process(42, "", "x");
    proc.start();
    assert_eq!(pids(&proc.only_tree()), [42]);
}

#[test]
fn the_age_of_a_process_survives_any_name() {
    let config = ProcessStatsConfig {
        record_process_age: Some(true),
        ..Default::default()
    };
    let mut proc = Fixture::new(config);
    for (pid, name) in (1..).zip(["plain", "two words", "a) S 1 (b", ")"]) {
        proc.process(pid, "", "x");
        proc.proc
            .write(&format!("{pid}/stat"), stat_text(name, 1, 2, 15842));
    }
    proc.see(&[1, 2, 3, 4]);
    for process in proc.only_tree().processes {
        assert_eq!(
            process.process_start_from_boot,
            Some(15842 * nanos_per_tick()),
            "{process:?}"
        );
    }
}

#[test]
fn a_scan_of_many_processes_takes_turns() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        scan_all_processes_on_start: Some(true),
        ..polling()
    });
    for pid in 1..=5 {
        proc.process(pid, "", "program\0");
    }
    // One process a turn.
    proc.source.scan_turn = 0;
    proc.start();
    let first = proc.only_tree();
    assert_eq!(pids(&first).len(), 1);
    let mut described = pids(&first);
    for _ in 0..4 {
        assert_eq!(proc.source.next_deadline(), Some(0), "there is more");
        proc.source.on_deadline(7, &mut proc.sink);
        described.extend(pids(&proc.only_tree()));
    }
    described.sort_unstable();
    assert_eq!(described, [1, 2, 3, 4, 5]);
    assert_eq!(proc.source.next_deadline(), Some(1), "now it samples");
    assert_eq!(proc.source.take_notices(), Vec::<String>::new());
}

#[test]
fn a_flush_and_the_end_of_the_session_finish_the_scan() {
    let ends: [fn(&mut Fixture); 2] = [
        |proc| proc.source.flush(9, &mut proc.sink),
        |proc| proc.source.stop(9, &mut proc.sink),
    ];
    for end in ends {
        let mut proc = Fixture::new(ProcessStatsConfig {
            scan_all_processes_on_start: Some(true),
            ..ProcessStatsConfig::default()
        });
        for pid in 1..=5 {
            proc.process(pid, "", "program\0");
        }
        proc.source.scan_turn = 0;
        proc.source.longest_finish = BootTime::MAX;
        proc.start();
        end(&mut proc);
        let mut described: Vec<i32> = proc.trees().iter().flat_map(pids).collect();
        described.sort_unstable();
        assert_eq!(described, [1, 2, 3, 4, 5]);
        assert_eq!(proc.source.next_deadline(), None);
        assert_eq!(proc.source.take_notices(), Vec::<String>::new());
    }
}

#[test]
fn a_scan_that_the_session_ends_is_told() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        scan_all_processes_on_start: Some(true),
        ..ProcessStatsConfig::default()
    });
    for pid in 1..=5 {
        proc.process(pid, "", "program\0");
    }
    proc.source.scan_turn = 0;
    // There is no time for the rest.
    proc.source.longest_finish = 0;
    proc.start();
    proc.source.stop(9, &mut proc.sink);
    let notices = proc.source.take_notices();
    assert!(
        notices.len() == 1 && notices[0].contains("before 4 processes were described"),
        "{notices:?}"
    );
    assert_eq!(proc.source.next_deadline(), None);
}
