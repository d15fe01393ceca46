//! Runs the SDK's examples as programs, and checks that the traces show the examples' subjects, also with the queries of the cookbook.
//!
//! `cargo test --workspace` builds them, as `cargo build --examples` does.

use std::process::{Command, Stdio};

use crate::support::example::example;
use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::tracefs::Tracefs;
use crate::support::{PATIENCE, Programs, Running, Side, System};

/// Runs an example that records itself; returns the results of queries on its trace.
fn record_itself<const N: usize>(name: &str, queries: [&str; N]) -> Option<[Rows; N]> {
    record_itself_with(name, &[], queries)
}

/// Like [`record_itself`], with more arguments.
fn record_itself_with<const N: usize>(name: &str, words: &[&str], queries: [&str; N]) -> Option<[Rows; N]> {
    let (program, processor) = (example(name)?, TraceProcessor::find()?);
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.pftrace");
    let output = Command::new(program).arg(&trace).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let [losses] = processor.query(&trace, [LOSSES]);
    assert_eq!(losses, Rows::new());
    Some(processor.query(&trace, queries))
}

/// The query in the cookbook for an example.
macro_rules! query_of {
    ($name:literal) => {
        include_str!(concat!("../../ferretto/examples/", $name, ".sql"))
    };
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
    let mut program = Running(command.arg("5").stdout(Stdio::piped()).spawn().unwrap());
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
            // According to the kernel, a thread that draws is running.
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
    // A thread draws for some microseconds each 5 ms, so with differing clocks it would hardly ever be running then. Not all are running, because
    // some virtual machines' kernels do not report every switch from idle.
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
    let Some([slices, unended, primes]) = record_itself(
        "first_trace",
        [
            query_of!("first_trace"),
            "select count(*) from slice where dur < 0",
            "select max(value) from counter join thread_counter_track t on t.id = track_id
                join thread using (utid) where t.name = 'Primes' group by thread.name",
        ],
    ) else {
        return;
    };
    let counts: Vec<&[String]> = slices.iter().map(|row| &row[..3]).collect();
    let expected = ["first half", "second half"].map(|thread| {
        [("Count primes", "1"), ("Counted", "1"), ("Hundred", "100")]
            .map(|(slice, count)| [thread, slice, count].map(str::to_owned))
    });
    assert_eq!(counts, expected.concat());
    assert_eq!(unended, [["0"]]);
    assert_eq!(primes, [["1229.0"], ["1033.0"]]);
}

#[test]
fn a_data_source_of_ones_own_samples_as_often_as_it_is_told() {
    // Every 5 ms for at least 200 ms, if the machine has time: it does not have it each time.
    for is_last in [false, false, false, false, true] {
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
        if (10..=400).contains(&count) && samples[0][1] == "1" {
            assert_eq!(samples[0][2..], ["1", "bytes"]);
            return;
        }
        assert!(!is_last, "{samples:?}");
    }
}

#[test]
fn queries_are_slices_within_the_request_that_awaits_them() {
    let Some([queries, tracks, nested, beside, overlapping, polls]) = record_itself(
        "tokio",
        [
            query_of!("tokio"),
            "select s.name, count(*), sum(dur < 0) from slice s join track t on t.id = track_id
                left join track parent on parent.id = t.parent_id
                where parent.name in ('Async', 'serve') group by 1",
            // A future that is awaited alone nests in the slice of the future that awaits it.
            "select s.name, parent.name, count(*),
                sum(extract_arg(s.arg_set_id, 'debug.number') = extract_arg(parent.arg_set_id, 'debug.number'))
                from slice s join slice parent on parent.id = s.parent_id where s.name in ('query', 'Page') group by 1, 2",
            // A query that runs beside others has a lane below that of the request that awaits them.
            "select count(*), sum(extract_arg(s.arg_set_id, 'debug.number') = extract_arg(parent.arg_set_id, 'debug.number'))
                from slice s join track t on t.id = s.track_id join slice parent on parent.track_id = t.parent_id
                and parent.depth = 0 and s.ts >= parent.ts and s.ts < parent.ts + parent.dur where s.name = 'query'",
            "select count(*) > 0 from slice a join slice b on a.name = b.name and a.id < b.id
                where a.name = 'serve' and b.ts < a.ts + a.dur",
            "select count(*) >= 8, count(distinct utid) >= 1 from slice join thread_track t on t.id = track_id
                join thread using (utid) where slice.name = 'Poll page' and thread.name like 'tokio%'",
        ],
    ) else {
        return;
    };
    assert_eq!(queries.len(), 40, "{queries:?}");
    for (number, of_request) in queries.chunks(5).enumerate() {
        assert!(
            of_request.iter().all(|row| row[0] == number.to_string()),
            "{queries:?}"
        );
        assert_eq!(of_request[0][1], "select name from users");
    }
    let expected = [("Page", "8"), ("query", "40"), ("serve", "8")];
    assert_eq!(tracks, expected.map(|(name, count)| [name, count, "0"]));
    // The first of the simultaneous queries is within the request.
    let expected = [
        ("Page", "serve", "8"),
        ("query", "Page", "8"),
        ("query", "serve", "16"),
    ];
    assert_eq!(
        nested,
        expected.map(|(name, parent, count)| [name, parent, count, count])
    );
    assert_eq!(beside, [["16", "16"]]);
    assert_eq!(overlapping, [["1"]]);
    assert_eq!(polls, [["1", "1"]]);
}

#[test]
fn a_flight_recorder_saves_the_request_that_took_too_long() {
    let Some([steps, requests]) = record_itself(
        "flight_recorder",
        [
            query_of!("flight_recorder"),
            // All requests up to the slow one, which on a busy machine may be another one.
            "select count(*) = max(extract_arg(arg_set_id, 'debug.number')) + 1, sum(dur < 0)
                from slice where name = 'handle'",
        ],
    ) else {
        return;
    };
    let names: Vec<&str> = steps.iter().map(|step| step[1].as_str()).collect();
    assert!(
        names.len() == 2 && names.contains(&"look_up") && names.contains(&"render"),
        "{steps:?}"
    );
    assert_eq!(requests, [["1", "0"]]);
}

#[test]
fn allocations_are_within_the_functions_that_allocate() {
    let Some([functions, live]) = record_itself(
        "allocations",
        [
            query_of!("allocations"),
            "select max(value) - min(value) >= 38000000, max(unit) from counter
                join counter_track t on t.id = track_id where t.name = 'Live memory'",
        ],
    ) else {
        return;
    };
    // 20 to 38 MB each, then a half and a quarter of that.
    assert_eq!(
        functions,
        [["load", "10", "290000000"], ["compress", "20", "217500000"]]
    );
    assert_eq!(live, [["1", "bytes"]]);
}

#[test]
fn errors_of_a_connection_are_arguments_and_log_messages() {
    let Some([attempts, log]) = record_itself(
        "connection",
        [
            query_of!("connection"),
            "select msg from android_logs order by ts",
        ],
    ) else {
        return;
    };
    let refused = "refused: too many connections";
    let told: Vec<&[String]> = attempts.iter().map(|row| &row[2..]).collect();
    assert_eq!(told, [["1", refused], ["2", refused], ["3", "\\N"]]);
    assert_eq!(log, [[refused], [refused], ["the peer reads slowly"]]);
}

#[test]
fn events_that_a_hot_loop_leaves_out_are_counted() {
    let Some([counts]) = record_itself("hot_loop", [query_of!("hot_loop")]) else {
        return;
    };
    let happened: Vec<[&str; 2]> = counts
        .iter()
        .map(|row| [row[0].as_str(), row[2].as_str()])
        .collect();
    assert_eq!(happened, [["lookups", "200000"], ["misses", "25003"]]);
    let recorded: Vec<u32> = counts.iter().map(|row| row[1].parse().unwrap()).collect();
    // Twenty standard deviations from the expected 2000. A thread would need seconds to lose none.
    assert!(
        (1110..2890).contains(&recorded[0]) && recorded[1] < 25_003,
        "{counts:?}"
    );
}

#[test]
fn a_library_s_debug_category_is_recorded_when_it_is_asked_for() {
    const COUNTS: &str = "select sum(name = 'Load'), sum(name = 'Get') from slice";
    let Some([counts, questions]) = record_itself("library", [COUNTS, query_of!("library")]) else {
        return;
    };
    assert_eq!(counts, [["7", "0"]]);
    assert_eq!(questions, Rows::new());
    let Some([counts, questions]) =
        record_itself_with("library", &["cache.entries"], [COUNTS, query_of!("library")])
    else {
        return;
    };
    assert_eq!(counts, [["7", "100"]]);
    assert_eq!(questions[..2], [["0", "14", "15"], ["1", "14", "15"]]);
}

#[test]
fn a_program_records_itself_beside_the_kernels_scheduling() {
    let (Some(program), Some(processor), Some(_tracefs)) = (
        example("beside_the_kernel"),
        TraceProcessor::find(),
        Tracefs::lock(),
    ) else {
        return;
    };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let trace = system.path("trace.pftrace");
    let status = system
        .command(&program, "program.log")
        .arg(&trace)
        .status()
        .unwrap();
    assert!(status.success(), "{}", system.log("program.log"));
    let [losses, slices, states] = processor.query(
        &trace,
        [
            LOSSES,
            "select thread.name, slice.name, count(*) from slice join thread_track t on t.id = track_id
                join thread using (utid) where category = 'work' group by 1, 2",
            query_of!("beside_the_kernel"),
        ],
    );
    assert_eq!(losses, Rows::new());
    let of_each = |thread| ["Book", "Wait for the ledger", "Write"].map(|slice| [thread, slice, "20"]);
    assert_eq!(slices, [of_each("clerk 1"), of_each("clerk 2")].concat());
    let milliseconds = |slice: &str, state: &str| {
        let row = states.iter().find(|row| row[0] == slice && row[1] == state);
        row.map_or(0.0, |row| row[2].parse::<f64>().unwrap())
    };
    // A thread that writes runs, and a thread that waits for the other one sleeps.
    assert!(milliseconds("Write", "Running") > 0.0, "{states:?}");
    assert!(milliseconds("Wait for the ledger", "S") > 0.0, "{states:?}");
}

#[test]
fn requests_are_followed_from_one_process_to_another() {
    let (Some(program), Some(processor)) = (example("two_services"), TraceProcessor::find()) else {
        return;
    };
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    let mut command = system.command(&program, "program.log");
    let mut program = Running(command.arg("5").stdout(Stdio::piped()).spawn().unwrap());
    system.await_state(|state| {
        let categories = state.data_sources.iter().flat_map(|source| {
            let descriptor = &source.ds_descriptor.track_event_descriptor;
            descriptor
                .available_categories
                .iter()
                .filter_map(|category| category.name.as_deref())
        });
        let known: Vec<&str> = categories.collect();
        ["frontend", "backend"]
            .iter()
            .all(|category| known.contains(category))
    });
    let recording = system.record(
        Side::Ours,
        r#"buffers { size_kb: 4096 }
        data_sources { config { name: "track_event" } }"#,
    );
    assert!(program.wait(PATIENCE).is_some_and(|status| status.success()));
    let trace = recording.interrupt();
    let [losses, times, joined, asked] = processor.query(
        &trace,
        [
            LOSSES,
            query_of!("two_services"),
            "select count(*) from flow
                join slice a on a.id = slice_out join thread_track ta on ta.id = a.track_id join thread tha on tha.utid = ta.utid
                join slice b on b.id = slice_in join thread_track tb on tb.id = b.track_id join thread thb on thb.utid = tb.utid
                where a.name = 'ask' and b.name = 'answer' and tha.upid != thb.upid
                and a.ts <= b.ts and b.ts + b.dur <= a.ts + a.dur",
            // The two programs do not begin to record at the same moment.
            "select count(*) from slice
                where name = 'ask' and ts + dur >= (select min(ts) from slice where name = 'answer')",
        ],
    );
    assert_eq!(losses, Rows::new());
    let ([joined], [asked]) = (numbers(&joined), numbers(&asked));
    // The backend's recording may begin in the middle of a request.
    assert!(joined > 3 && joined + 1 >= asked, "{joined} of {asked}");
    assert_eq!(times.len(), joined as usize);
}

#[test]
fn an_interpreter_samples_the_stacks_of_its_scripts() {
    let Some(program) = example("interpreter") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (trace, out) = (
        folder.path().join("trace.pftrace"),
        folder.path().join("out.folded"),
    );
    let output = Command::new(program).arg(&trace).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = Command::new(env!("CARGO_BIN_EXE_ferretto"))
        .args([
            "convert".as_ref(),
            trace.as_os_str(),
            "-o".as_ref(),
            out.as_os_str(),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let folded = std::fs::read_to_string(&out).unwrap();
    let mut nanoseconds = 0;
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        nanoseconds += count.parse::<u64>().unwrap();
        let script = stack.find("main").map_or(stack, |at| &stack[at..]);
        let known = ["main", "main;parse", "main;draw", "main;draw;layout"];
        assert!(known.contains(&script), "{line}");
    }
    // 200 samples, each at least a millisecond after the one before.
    assert!(nanoseconds >= 200_000_000, "{folded}");
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let [losses, runs] = processor.query(
        &trace,
        [LOSSES, "select count(*) > 0 from slice where name = 'Run'"],
    );
    assert_eq!((losses, runs), (Rows::new(), vec![vec!["1".to_owned()]]));
}
