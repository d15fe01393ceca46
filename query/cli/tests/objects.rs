//! The program with traces and tables that are elsewhere: in a bucket of a server that speaks S3, and on the web.
#![allow(clippy::unwrap_used)]

#[path = "../../tables/tests/truth/generator.rs"]
#[allow(dead_code)]
mod generator;
#[path = "../../store/tests/servers/mod.rs"]
#[allow(dead_code)]
mod servers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferretto_sql::datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, new_null_array};
use ferretto_sql::datafusion::arrow::datatypes::DataType;
use ferretto_tables::{ParquetFolder, Sink, TABLES};

use servers::bucket::Bucket;
use servers::proxy::{Fate, Proxy};

/// What nobody needs this long for.
const BOUND: Duration = Duration::from_secs(100);

/// The program with a bucket at an address, which is the server's own or that of a proxy.
struct Program<'a> {
    bucket: &'a Bucket,
    address: SocketAddr,
    /// Further variables, which win.
    variables: Vec<(&'static str, &'static str)>,
}

impl<'a> Program<'a> {
    fn of(bucket: &'a Bucket) -> Program<'a> {
        Program::at(bucket, bucket.address)
    }

    fn at(bucket: &'a Bucket, address: SocketAddr) -> Program<'a> {
        Program {
            bucket,
            address,
            variables: Vec::new(),
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferretto-query"));
        command.args(arguments).env_clear();
        command.envs(self.bucket.variables(self.address));
        command.envs(self.variables.iter().copied()).output().unwrap()
    }

    fn answer(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {complaints}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs what has to fail, and checks what it says.
    fn fails(&self, arguments: &[&str], message: &str) {
        let began = Instant::now();
        let output = self.run(arguments);
        assert!(began.elapsed() < BOUND, "{arguments:?}: {:?}", began.elapsed());
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {complaint}");
        assert!(
            complaint.starts_with("ferretto-query: ") && complaint.contains(message),
            "{arguments:?}: {complaint}"
        );
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        println!("{complaint}");
        assert!(output.stdout.is_empty());
    }
}

/// A bucket with two traces, the tables of one, and those of both.
fn filled() -> Bucket {
    let bucket = Bucket::start();
    let objects = bucket.objects();
    std::fs::create_dir_all(&objects).unwrap();
    let program = Program::of(&bucket);
    let path = |name: &str| objects.join(name).to_str().unwrap().to_owned();
    for seed in 1..3 {
        std::fs::write(
            path(&format!("{seed}.pftrace")),
            generator::Generator::whole(seed),
        )
        .unwrap();
    }
    program.answer(&["export", &path("1.pftrace"), "-o", &path("one of them")]);
    program.answer(&[
        "export",
        &path("1.pftrace"),
        &path("2.pftrace"),
        "-o",
        &path("both"),
    ]);
    std::fs::write(path("garbage"), "no trace").unwrap();
    bucket
}

#[test]
fn what_is_in_a_bucket_answers_as_what_is_in_a_folder() {
    let bucket = filled();
    let program = Program::of(&bucket);
    let objects = bucket.objects();
    let there = |name: &str| objects.join(name).to_str().unwrap().to_owned();
    for (url, local) in [
        ("s3://bucket/traces/one%20of%20them", there("one of them")),
        ("s3://bucket/traces/both/", there("both")),
        ("s3://bucket/traces/1.pftrace", there("1.pftrace")),
    ] {
        for arguments in [
            &["report", "all", "WHERE"][..],
            &[
                "query",
                "WHERE",
                "select count(*), sum(dur) from thread_slice",
                "-f",
                "csv",
            ],
            &[
                "query",
                "WHERE",
                "select * from sched join thread using (utid) order by sched.id, thread.id limit 9",
            ],
            &["query", "WHERE", "describe sched", "-f", "json"],
            &["query", "WHERE", "--views"],
            &["query", "WHERE", "--examples"],
        ] {
            let at = |place: &str| -> String {
                let arguments: Vec<&str> = arguments
                    .iter()
                    .map(|it| if *it == "WHERE" { place } else { it })
                    .collect();
                program.answer(&arguments)
            };
            assert_eq!(at(url), at(&local), "{arguments:?} {url}");
        }
    }
    // Several, wherever they are.
    let count = "select trace, count(*) from thread group by 1 order by 1";
    let both = program.answer(&["query", &there("both"), count]);
    let (second, file) = (
        "s3://bucket/traces/2.pftrace",
        format!("file://{}", there("1.pftrace")),
    );
    assert_eq!(program.answer(&["query", &file, second, count]), both);
    program.fails(
        &["query", "s3://bucket/traces/both", second, count],
        "has tables, which are not queried together with others",
    );
    program.fails(
        &["query", "s3://bucket/traces/both", "select * from ftrace_event"],
        "s3://bucket/traces/both has no ftrace_event; export the trace with --ftrace-events",
    );
}

#[test]
fn of_a_folder_only_the_needed_columns_are_read() {
    const ROWS: usize = 400_000;
    let bucket = Bucket::start();
    let folder = bucket.objects().join("large");
    std::fs::create_dir_all(&folder).unwrap();
    let table = *TABLES.iter().find(|table| table.name == "sched_slice").unwrap();
    // Numbers that no encoding makes small.
    let mut number = 1_u64;
    let mut next = |_| {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (number >> 20) as i64
    };
    let columns = table.arrow_schema();
    let columns: Vec<ArrayRef> = columns
        .fields()
        .iter()
        .map(|field| match field.data_type() {
            DataType::Int64 => Arc::new((0..ROWS).map(&mut next).collect::<Int64Array>()) as ArrayRef,
            other => new_null_array(other, ROWS),
        })
        .collect();
    let mut files = ParquetFolder::create(&folder).unwrap();
    files
        .write(
            table,
            RecordBatch::try_new(table.arrow_schema(), columns).unwrap(),
        )
        .unwrap();
    files.finish().unwrap();
    let size = std::fs::metadata(folder.join("sched_slice/part-0.parquet"))
        .unwrap()
        .len();

    let proxy = Proxy::start(bucket.address, [Fate::Pass]);
    let program = Program::at(&bucket, proxy.address);
    let sql = "select count(*) as n, sum(dur % 1000) as s from sched_slice";
    let local = program.answer(&["query", folder.to_str().unwrap(), sql]);
    assert_eq!(program.answer(&["query", "s3://bucket/traces/large", sql]), local);
    let column = ROWS as u64 * 8;
    println!(
        "{} of {size} bytes were read, for a column of at most {column}",
        proxy.served()
    );
    assert!(proxy.served() < column + (1 << 20), "{}", proxy.served());
    assert!(proxy.served() * 3 < size);
}

#[test]
fn of_many_traces_only_those_are_read_that_a_condition_names() {
    let bucket = filled();
    let cost = |condition: &str| {
        let proxy = Proxy::start(bucket.address, [Fate::Pass]);
        let program = Program::at(&bucket, proxy.address);
        let sql = format!("select count(*), sum(ts + dur + utid) from sched where {condition}");
        program.answer(&["query", "s3://bucket/traces/both", &sql]);
        proxy.served()
    };
    let (all, one) = (cost("trace is not null"), cost("trace = '1.pftrace'"));
    println!("{all} bytes of both traces, {one} of one");
    assert!(one < all);
}

#[test]
fn mistakes_are_named() {
    let bucket = filled();
    let mut program = Program::of(&bucket);
    for (url, message) in [
        (
            "s3://no-bucket/x",
            "s3://no-bucket/x: there is no bucket no-bucket",
        ),
        (
            "s3://bucket/traces/nothing",
            "there is nothing at s3://bucket/traces/nothing",
        ),
        (
            "s3://bucket/traces/garbage",
            "s3://bucket/traces/garbage: is no Perfetto trace",
        ),
        (
            "s3://bucket/traces",
            "s3://bucket/traces has no tables; name a single trace in it",
        ),
        ("ftp://host/x", "ftp://host/x cannot be read: "),
        ("file://host/x", "names another machine"),
        ("file:///no/such/file", "/no/such/file does not exist"),
    ] {
        program.fails(&["query", url, "select count(*) from sched"], message);
        program.fails(&["report", "cpu", url], message);
    }
    program.variables = vec![("AWS_SECRET_ACCESS_KEY", "wrong")];
    let sched = [
        "query",
        "s3://bucket/traces/one%20of%20them",
        "select count(*) from sched",
    ];
    program.fails(&sched, "may not be read with the credentials in AWS_*");
    // Nobody listens there.
    program.address = SocketAddr::from(([127, 0, 0, 1], 1));
    program.fails(
        &sched,
        "cannot be read, with server and credentials as AWS_* have them",
    );
    program.fails(
        &[
            "query",
            &format!("http://{}/x?key=secret", program.address),
            "select 1",
        ],
        &format!("http://{}/x cannot be fetched: ", program.address),
    );
}

#[test]
fn a_server_that_stalls_is_waited_for_a_bounded_time() {
    let bucket = filled();
    let url = "s3://bucket/traces/both";
    for (stalls_at, timeout, message) in [
        (
            "GET",
            "1s",
            "cannot be read, with server and credentials as AWS_* have them",
        ),
        // It lists what there is, in time, and stalls when tables are read.
        (".parquet", "5s", "tables in object storage cannot be read: "),
    ] {
        let proxy = Proxy::start(bucket.address, [Fate::Stall(stalls_at)]);
        let mut program = Program::at(&bucket, proxy.address);
        program.variables = vec![("AWS_TIMEOUT", timeout)];
        program.fails(&["query", url, "select * from slice"], message);
    }
}

/// Serves a file on the web to whoever asks.
fn serve(file: &Path) -> String {
    let content = std::fs::read(file).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/some/trace.pftrace", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut some = [0; 1024];
            while !head.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut some).unwrap();
                head.extend_from_slice(&some[..count]);
            }
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                content.len()
            );
            stream.write_all(answer.as_bytes()).unwrap();
            // A client may have seen enough.
            let _ = stream.write_all(&content);
        }
    });
    url
}

#[test]
fn a_trace_on_the_web_is_fetched_and_goes_with_the_answer() {
    let bucket = filled();
    let mut program = Program::of(&bucket);
    let temporary = tempfile::tempdir().unwrap();
    let folder: &'static str = temporary.path().to_str().unwrap().to_owned().leak();
    program.variables = vec![("TMPDIR", folder)];
    let trace = bucket.objects().join("1.pftrace");
    let url = serve(&trace);
    let cpu = program.answer(&["report", "cpu", trace.to_str().unwrap()]);
    assert_eq!(program.answer(&["report", "cpu", &url]), cpu);
    let names = program.answer(&[
        "query",
        &url,
        "s3://bucket/traces/2.pftrace",
        "select distinct trace from thread",
        "-f",
        "csv",
    ]);
    assert!(
        names.contains("\ntrace.pftrace\n") && names.contains("\n2.pftrace\n"),
        "{names}"
    );
    // The server of the bucket wants credentials.
    program.fails(
        &[
            "query",
            &format!("http://{}/bucket/traces/1.pftrace", bucket.address),
            "select 1",
        ],
        "cannot be fetched: the server answers 403 Forbidden",
    );
    let url = serve(&bucket.objects().join("garbage"));
    program.fails(
        &["query", &url, "select * from sched"],
        &format!("{url}: is no Perfetto trace"),
    );
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn ctrl_c_ends_a_fetch_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    let child = Command::new(env!("CARGO_BIN_EXE_ferretto-query"))
        .args(["query", &url, "select 1"])
        .env_clear()
        .env("TMPDIR", temporary.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    // The request is short, and comes in one piece.
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
        .unwrap();
    let files = || std::fs::read_dir(temporary.path()).unwrap().count();
    servers::await_that("the fetch has begun", || files() == 1);
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert_eq!(complaint, "ferretto-query: interrupted\n");
    assert_eq!(files(), 0);
}
