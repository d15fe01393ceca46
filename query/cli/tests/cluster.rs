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

/// Has an executor say goodbye.
fn interrupt(mut process: Process) {
    let process = &mut process.0;
    rustix::process::kill_process(
        rustix::process::Pid::from_child(process),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let status = process.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// A scheduler and two executors.
struct Cluster {
    scheduler: String,
    /// Where the results of each executor are.
    work: [PathBuf; 2],
    /// The scheduler and the executors.
    processes: Vec<Process>,
}

/// An address of this test process's own: then no other program has its ports.
fn host() -> String {
    let [a, b, c, _] = std::process::id().to_le_bytes();
    format!("127.{}.{b}.{a}", 100 + c)
}

/// Starts a scheduler, and returns where it listens.
fn scheduler(arguments: &[&str]) -> (Process, String) {
    let mut scheduler = Process(
        program(&[&["scheduler"], arguments].concat())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    BufReader::new(scheduler.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line.strip_prefix("listening at ").unwrap().trim().to_owned();
    (scheduler, address)
}

impl Cluster {
    /// Tests name different ports: their processes have the same address.
    fn start(folder: &Path, port: u16) -> Cluster {
        let host = host();
        let (scheduler, address) = scheduler(&["--listen", &format!("{host}:{port}")]);
        let work = ["one", "two"].map(|name| folder.join(name));
        let mut processes = vec![scheduler];
        for (work, port) in work.iter().zip([port + 10, port + 20]) {
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
            processes,
        }
    }

    fn answers_as_one_process(&self, tables: &str, sql: &str) {
        let here = output(&["query", tables, sql, "-f", "csv"]);
        let there = output(&["query", "--scheduler", &self.scheduler, tables, sql, "-f", "csv"]);
        assert_eq!(
            String::from_utf8_lossy(&here.stdout),
            String::from_utf8_lossy(&there.stdout),
            "{sql}: {}",
            String::from_utf8_lossy(&there.stderr)
        );
        assert_eq!(here.status.code(), there.status.code(), "{sql}");
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
    let cluster = Cluster::start(folder.path(), 50_050);
    for sql in [
        LATENCY,
        "select machine, count(distinct trace) as traces from sched group by machine order by machine",
        "select trace, count(*) as n, min(utid) as least from thread group by trace order by trace",
        "select time_bucket(ts, '10ms') as bucket, printf('%05.1f', sum(dur) / 1000.0) as us from sched where dur > 0 group by 1 order by 1 limit 20",
        "select name from ftrace_event order by name",
    ] {
        cluster.answers_as_one_process(&tables, sql);
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
        (
            "copy (select utid from thread) to '/nowhere/x.parquet' stored as parquet",
            "would write files there",
        ),
        (
            "explain analyze copy (select utid from thread) to '/nowhere/x.parquet' stored as parquet",
            "would write files there",
        ),
        (
            "insert into thread select * from thread",
            "would write files there",
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
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let results = |work: &PathBuf| entries(work).iter().map(|own| entries(own).len()).sum::<usize>();
    assert!(
        cluster.work.iter().map(results).sum::<usize>() > 0,
        "no executor has results"
    );
    // An executor that is interrupted says goodbye: the other one answers alone. It takes its results with it.
    let mut cluster = cluster;
    let interrupted = |cluster: &mut Cluster, work: usize| {
        interrupt(cluster.processes.remove(1));
        assert!(entries(&cluster.work[work]).is_empty());
    };
    interrupted(&mut cluster, 0);
    let here = answer(&["query", &tables, LATENCY]);
    assert_eq!(
        answer(&["query", "--scheduler", &cluster.scheduler, &tables, LATENCY]),
        here
    );
    interrupted(&mut cluster, 1);
}

#[test]
fn a_cluster_runs_what_keeps_traces_apart_for_one_trace_after_another() {
    let folder = tempfile::tempdir().unwrap();
    let tables = tables(folder.path(), 8);
    let mut cluster = Cluster::start(folder.path(), 50_150);
    let of_each = "select t.trace, count(*) as n, sum(s.dur) as dur
        from sched as s join thread as t using (utid) group by t.trace";
    let statements = [
        (LATENCY.to_owned(), 1),
        (format!("{of_each} order by trace"), 1),
        // All rows, of which none is lost and none is there twice.
        ("select t.trace, s.utid, s.ts, s.dur, t.name from sched as s join thread as t using (utid) order by s.utid, s.ts, s.dur, t.name".to_owned(), 1),
        ("select id, lead(ts) over (partition by utid order by ts, id) - ts as pause from sched order by id".to_owned(), 1),
        (
            format!("select * from ({of_each} union all {of_each}) order by trace"),
            2,
        ),
        (
            format!(
                "select a.trace, a.n, b.dur, count(*) over () as traces
                from ({of_each}) as a join ({of_each}) as b on a.trace = b.trace order by a.trace"
            ),
            2,
        ),
    ];
    // The traces of partitions are as many as those of others, or not, and one each.
    for (partitions, parts) in [(2, 1), (3, 1), (8, 1), (9, 0)] {
        let set = format!("set datafusion.execution.target_partitions = {partitions}");
        for (sql, apart) in &statements {
            let explain = format!("{set}; explain {sql}");
            let plan = answer(&["query", "--scheduler", &cluster.scheduler, &tables, &explain]);
            let plan = plan.split("distributed_plan").next().unwrap();
            let found = plan.matches("EachTrace: traces=8").count();
            assert_eq!(found, parts * apart, "{explain}: {plan}");
            cluster.answers_as_one_process(&tables, &format!("{set}; {sql}"));
        }
    }
    let analyze = format!("set datafusion.execution.target_partitions = 2; explain analyze {LATENCY}");
    let analyzed = answer(&["query", "--scheduler", &cluster.scheduler, &tables, &analyze]);
    assert!(analyzed.contains("EachTrace: traces=8"), "{analyzed}");
    // One executor has all traces.
    let executor = cluster.processes.pop().unwrap();
    interrupt(executor);
    for (sql, _) in &statements {
        let set = "set datafusion.execution.target_partitions = 3";
        cluster.answers_as_one_process(&tables, &format!("{set}; {sql}"));
    }
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

#[test]
fn addresses_that_cannot_work_are_refused() {
    let host = host();
    let taken = std::net::TcpListener::bind(format!("{host}:50091")).unwrap();
    let taken_by_results = format!("{host}:50091");
    let taken_by_work = format!("{host}:50090");
    let refused = |arguments: &[&str], complaint: &str| {
        let output = output(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        assert!(told.contains(complaint), "{arguments:?}: {told}");
    };
    refused(
        &["scheduler", "--listen", "0.0.0.0:50050"],
        "0.0.0.0 is every address of this machine",
    );
    refused(
        &["executor", "--listen", "[::]:50051"],
        "name it with --advertise",
    );
    refused(
        &[
            "executor",
            "--listen",
            "127.0.0.1:50051",
            "--advertise",
            "0.0.0.0",
        ],
        "name it with --advertise",
    );
    refused(
        &["executor", "--listen", "127.0.0.1:0"],
        "choose another one than 0",
    );
    refused(
        &["executor", "--listen", &taken_by_results],
        &format!("cannot listen at {host}:50091, where results are fetched"),
    );
    refused(
        &["executor", "--listen", &taken_by_work],
        &format!("cannot listen at {host}:50091, where the scheduler gives work"),
    );
    drop(taken);
    // Nobody listens there.
    refused(
        &[
            "executor",
            "--listen",
            &taken_by_results,
            "--scheduler",
            "127.0.0.1:1",
        ],
        "the executor of the scheduler at 127.0.0.1:1 cannot work",
    );
}

#[test]
fn parts_of_a_cluster_find_each_other_by_what_they_advertise() {
    let folder = tempfile::tempdir().unwrap();
    let tables = tables(folder.path(), 2);
    let sql = "select trace, count(*) as n from thread group by trace order by trace";
    let here = answer(&["query", &tables, sql, "-f", "csv"]);
    let host = host();
    let mut pairs = vec![("0.0.0.0", host.as_str(), host.clone())];
    match std::net::TcpListener::bind("[::1]:0") {
        Ok(_) => pairs.push(("[::1]", "::1", "[::1]".to_owned())),
        Err(error) => println!("skipped: [::1] is no address here: {error}"),
    }
    for (place, (listen, advertise, in_address)) in pairs.iter().enumerate() {
        // These addresses are not this process's own, so their ports are.
        let ports = free_ports(listen);
        let (_scheduler, address) =
            scheduler(&["--listen", &format!("{listen}:0"), "--advertise", advertise]);
        let port = address.rsplit(':').next().unwrap();
        let address = format!("{in_address}:{port}");
        let listen = format!("{listen}:{ports}");
        let arguments = [
            "executor",
            "--scheduler",
            &address,
            "--listen",
            &listen,
            "--advertise",
            advertise,
        ];
        let _executor = Process(program(&arguments).spawn().unwrap());
        let there = answer(&["query", "--scheduler", &address, &tables, sql, "-f", "csv"]);
        assert_eq!(there, here, "{place}: {listen}");
    }
}

/// Returns the first of two ports, one after the other, that nobody has. They are below those that the kernel gives to connections.
fn free_ports(host: &str) -> u16 {
    let bind = |port: u16| std::net::TcpListener::bind(format!("{host}:{port}"));
    let from = std::process::id() % 4000;
    (from..from + 100)
        .find_map(|place| {
            let port = u16::try_from(22_000 + 2 * place).ok()?;
            bind(port).and_then(|_first| bind(port + 1)).ok()?;
            Some(port)
        })
        .unwrap()
}

#[test]
fn a_folder_without_traces_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let tables = tables(folder.path(), 2);
    for table in std::fs::read_dir(&tables).unwrap() {
        let table = table.unwrap().path();
        let Ok(dates) = std::fs::read_dir(&table) else {
            continue;
        };
        for date in dates {
            let date = date.unwrap().path();
            if date.is_dir() {
                std::fs::remove_dir_all(date).unwrap();
            }
        }
    }
    let refused = output(&[
        "query",
        "--scheduler",
        "127.0.0.1:1",
        &tables,
        "select 1 from thread",
    ]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && told.contains("has no traces; export some into it first"),
        "{told}"
    );
}
