//! A scheduler, two executors and a program that asks, as processes.
#![cfg(feature = "ballista")]
#![allow(clippy::unwrap_used)]

#[path = "../../tables/tests/truth/generator.rs"]
#[allow(dead_code)]
mod generator;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferretto-query"));
    command.args(arguments);
    command
}

fn output(arguments: &[&str]) -> Output {
    program(arguments).stdin(Stdio::null()).output().unwrap()
}

fn answer(arguments: &[&str]) -> String {
    let output = output(arguments);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaints}");
    String::from_utf8(output.stdout).unwrap()
}

/// Ends its process.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A scheduler and two executors.
struct Cluster {
    scheduler: String,
    /// Where the results of each executor are.
    work: [PathBuf; 2],
    _processes: Vec<Process>,
}

impl Cluster {
    fn start(folder: &Path) -> Cluster {
        // Of this test process's own: then no other program has its ports.
        let [a, b, c, _] = std::process::id().to_le_bytes();
        let host = format!("127.{}.{b}.{a}", 100 + c);
        let mut scheduler = Process(
            program(&["scheduler", "--listen", &format!("{host}:50050")])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut line = String::new();
        BufReader::new(scheduler.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.strip_prefix("listening at ").unwrap().trim().to_owned();
        let work = ["one", "two"].map(|name| folder.join(name));
        let mut processes = vec![scheduler];
        for (work, port) in work.iter().zip([50060, 50070]) {
            std::fs::create_dir(work).unwrap();
            let listen = format!("{host}:{port}");
            let work = work.to_str().unwrap();
            let arguments = [
                "executor",
                "--scheduler",
                &address,
                "--listen",
                &listen,
                "--work-dir",
                work,
                "--tasks",
                "2",
            ];
            processes.push(Process(program(&arguments).spawn().unwrap()));
        }
        Cluster {
            scheduler: address,
            work,
            _processes: processes,
        }
    }
}

/// Tables of so many traces.
fn tables(folder: &Path, traces: u64) -> String {
    let from = folder.join("traces");
    std::fs::create_dir(&from).unwrap();
    for seed in 0..traces {
        std::fs::write(
            from.join(format!("{seed}.pftrace")),
            generator::Generator::whole(seed),
        )
        .unwrap();
    }
    let tables = folder.join("tables");
    let tables = tables.to_str().unwrap().to_owned();
    answer(&["export", from.to_str().unwrap(), "--out", &tables]);
    tables
}

const LATENCY: &str = "select process.name, count(*) as waits, human_duration(max(latency_dur)) as longest
    from sched_latency_for_running_interval join thread using (utid) join process using (upid)
    group by process.name order by waits desc, process.name";

#[test]
fn a_scheduler_with_two_executors_gives_the_answers_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let tables = tables(folder.path(), 8);
    let cluster = Cluster::start(folder.path());
    for sql in [
        LATENCY,
        "select machine, count(distinct trace) as traces from sched group by machine order by machine",
        "select trace, count(*) as n, min(utid) as least from thread group by trace order by trace",
        "select time_bucket(ts, '10ms') as bucket, printf('%05.1f', sum(dur) / 1000.0) as us from sched where dur > 0 group by 1 order by 1 limit 20",
        "select name from ftrace_event order by name",
    ] {
        let here = output(&["query", &tables, sql, "-f", "csv"]);
        let there = output(&[
            "query",
            "--scheduler",
            &cluster.scheduler,
            &tables,
            sql,
            "-f",
            "csv",
        ]);
        assert_eq!(
            String::from_utf8_lossy(&here.stdout),
            String::from_utf8_lossy(&there.stdout),
            "{sql}: {}",
            String::from_utf8_lossy(&there.stderr)
        );
        assert_eq!(here.status.code(), there.status.code(), "{sql}");
    }
    // A plan that the executors cannot run does not reach them: they would fail it, and then not work.
    for (sql, complaint) in [
        (
            "select * from descendant_slice(1)",
            "other machines run no table functions",
        ),
        (
            "select * from span_join('sched', 'sched', 'utid')",
            "other machines run no table functions",
        ),
        (
            "with recursive n as (select 1 as i union all select i + 1 from n where i < 3) select * from n",
            "no recursion",
        ),
        (
            "select extract_arg(arg_set_id, 'x') from slice",
            "other machines do not have extract_arg",
        ),
        (
            "create table t as select * from thread; select * from t",
            "make a view",
        ),
    ] {
        let refused = output(&["query", "--scheduler", &cluster.scheduler, &tables, sql]);
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && told.contains(complaint),
            "{sql}: {told}"
        );
    }
    for report in ["cpu", "sched-latency", "slices"] {
        let here = answer(&["report", report, &tables]);
        let there = answer(&["report", "--scheduler", &cluster.scheduler, report, &tables]);
        assert_eq!(there, here, "{report}");
        assert!(here.lines().count() > 3, "{here}");
    }
    // The scheduler may give one executor all parts of statements as small as these.
    let results = |work: &PathBuf| std::fs::read_dir(work).unwrap().count();
    assert!(
        cluster.work.iter().map(results).sum::<usize>() > 0,
        "no executor has results"
    );
}

#[test]
fn what_a_cluster_cannot_do_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let tables = tables(folder.path(), 2);
    let trace = folder.path().join("traces/0.pftrace");
    let nobody = output(&[
        "query",
        "--scheduler",
        "127.0.0.1:1",
        &tables,
        "select 1 from thread",
    ]);
    let told = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(!nobody.status.success() && told.contains("127.0.0.1:1"), "{told}");
    let of_trace = output(&[
        "query",
        "--scheduler",
        "127.0.0.1:1",
        trace.to_str().unwrap(),
        "select 1",
    ]);
    let told = String::from_utf8_lossy(&of_trace.stderr).into_owned();
    assert!(told.contains("export the traces into one first"), "{told}");
}
