//! The SDK's examples, run as programs: what they put into traces is what they are there to show.
//!
//! They are built by `cargo test --workspace`, as by `cargo build --examples`.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Command, Stdio};

use support::example::example;
use support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use support::tracefs::Tracefs;
use support::{PATIENCE, Programs, Running, Side, System};

/// Runs an example that records itself; gives what its trace answers.
fn record_itself<const N: usize>(name: &str, queries: [&str; N]) -> Option<[Rows; N]> {
    let (program, processor) = (example(name)?, TraceProcessor::find()?);
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.pftrace");
    let output = Command::new(program).arg(&trace).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let [losses] = processor.query(&trace, [LOSSES]);
    assert_eq!(losses, Rows::new());
    Some(processor.query(&trace, queries))
}

#[test]
fn an_instrumented_program_is_seen_beside_the_kernels_scheduling() {
    let (Some(program), Some(processor), Some(_tracefs)) =
        (example("track_events"), TraceProcessor::find(), Tracefs::lock())
    else {
        return;
    };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let mut command = system.command(&program, "program.log");
    let mut program = Running(command.arg("2").stdout(Stdio::piped()).spawn().unwrap());
    system.await_state(|state| {
        let categories = state.data_sources.iter().map(|source| {
            let descriptor = &source.ds_descriptor.track_event_descriptor;
            descriptor.available_categories.len()
        });
        categories.sum::<usize>() >= 2
    });
    let recording = system.record(
        Side::Ours,
        r#"buffers { size_kb: 65536 }
        data_sources { config { name: "track_event" } }
        data_sources { config {
          name: "linux.ftrace"
          ftrace_config { ftrace_events: "sched/sched_switch" ftrace_events: "sched/sched_waking" }
        } }
        data_sources { config { name: "linux.process_stats" process_stats_config { scan_all_processes_on_start: true } } }"#,
    );
    assert!(program.wait(PATIENCE).is_some_and(|status| status.success()));
    let trace = recording.interrupt();
    let [losses, slices, frames, scheduling, heap, flows] = processor.query(
        &trace,
        [
            LOSSES,
            "select sum(slice.name = 'Draw'), sum(slice.name = 'DrawPlayer'), sum(slice.name = 'Dropped') from slice
                join thread_track t on t.id = track_id join thread using (utid) join process using (upid)
                where process.name like '%track_events' and is_main_thread",
            "select count(*), max(number) - min(number) + 1
                from (select extract_arg(s.arg_set_id, 'debug.number') number from slice s
                    join track t on t.id = track_id where t.name = 'Frames' and s.name = 'Frame')",
            // Whoever draws is running, says the kernel.
            "select count(*), sum(exists (select 1 from sched where sched.utid = t.utid
                    and sched.ts <= slice.ts and slice.ts < sched.ts + sched.dur))
                from slice join thread_track t on t.id = track_id where slice.name = 'Draw'",
            "select count(*), max(value) from counter join counter_track t on t.id = track_id
                where t.name = 'Heap' and unit = 'bytes'",
            "select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in
                where a.name = 'Dropped' and b.name = 'Caught up'",
        ],
    );
    assert_eq!(losses, Rows::new());
    let [draws, players, dropped] = numbers(&slices);
    assert!(draws > 50, "{draws}");
    // The recording may begin in the middle of a frame.
    assert!(
        (3 * draws - 3..=3 * draws + 3).contains(&players),
        "{draws} {players}"
    );
    assert!(
        (draws / 7 - 1..=draws / 7 + 1).contains(&dropped),
        "{draws} {dropped}"
    );
    let [frames, numbered] = numbers(&frames);
    assert_eq!(frames, numbered, "frames are missing");
    let [all, running] = numbers(&scheduling);
    // It draws for some microseconds each 5 ms: were the clocks apart, it would hardly ever be running. All of them are not, for some
    // virtual machines' kernels do not tell of each switch from idle.
    assert!(
        running * 3 >= all,
        "{running} of {all} are running when they draw"
    );
    let [samples, most] = heap[0]
        .iter()
        .map(|cell| cell.parse::<f64>().unwrap())
        .collect::<Vec<_>>()[..]
    else {
        panic!("{heap:?}");
    };
    assert!(samples > 50.0 && most == 9.0 * 4096.0, "{heap:?}");
    assert!(numbers::<1>(&flows)[0] >= dropped - 1, "{flows:?}");
}

#[test]
fn a_program_records_itself() {
    let Some([slices, primes]) = record_itself(
        "in_process",
        [
            "select thread.name, s.name, count(*), sum(dur < 0) from slice s
                join thread_track t on t.id = track_id join thread using (utid) group by 1, 2",
            "select max(value) from counter join thread_counter_track t on t.id = track_id
                join thread using (utid) where t.name = 'Primes' group by thread.name",
        ],
    ) else {
        return;
    };
    let expected = ["first half", "second half"].map(|thread| {
        [("Count primes", "1"), ("Counted", "1"), ("Hundred", "100")]
            .map(|(slice, count)| [thread, slice, count, "0"].map(str::to_owned).to_vec())
    });
    assert_eq!(slices, expected.concat());
    assert_eq!(primes, [["1229.0"], ["1033.0"]]);
}

#[test]
fn a_data_source_of_ones_own_samples_as_often_as_it_is_told() {
    let Some([samples]) = record_itself(
        "custom_data_source",
        [
            "select count(*), max(value) - min(value) > 15e6, min(value) > 0, max(unit) from counter
            join counter_track t on t.id = track_id where t.name = 'Resident memory'",
        ],
    ) else {
        return;
    };
    let count: u32 = samples[0][0].parse().unwrap();
    // Every 5 ms for at least 200 ms, where the machine has time.
    assert!((10..=400).contains(&count), "{samples:?}");
    assert_eq!(samples[0][1..], ["1", "1", "bytes"]);
}

#[test]
fn futures_are_slices_on_tracks_of_their_own() {
    let Some([futures, overlapping, polls]) = record_itself(
        "tokio",
        [
            "select s.name, count(*), sum(dur < 0), parent.name from slice s join track t on t.id = track_id
                left join track parent on parent.id = t.parent_id
                where s.name in ('serve', 'read', 'Body') group by 1",
            "select count(*) > 0 from slice a join slice b on a.name = b.name and a.id < b.id
                where a.name = 'serve' and b.ts < a.ts + a.dur",
            "select count(*) >= 8, count(distinct utid) >= 1 from slice join thread_track t on t.id = track_id
                join thread using (utid) where slice.name = 'Poll body' and thread.name like 'tokio%'",
        ],
    ) else {
        return;
    };
    let expected = [("Body", "8"), ("read", "16"), ("serve", "8")];
    assert_eq!(futures, expected.map(|(name, count)| [name, count, "0", "Async"]));
    assert_eq!(overlapping, [["1"]]);
    assert_eq!(polls, [["1", "1"]]);
}
