//! The program as a user calls it.
#![allow(clippy::unwrap_used)]

#[path = "../../tables/tests/truth/generator.rs"]
#[allow(dead_code)]
mod generator;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferretto-query"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that fails early does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn answer(arguments: &[&str], input: &[u8]) -> String {
    let output = run(arguments, input);
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {complaints}");
    String::from_utf8(output.stdout).unwrap()
}

fn trace(folder: &Path) -> String {
    let path = folder.join("trace.pftrace");
    std::fs::write(&path, generator::Generator::whole(1)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_trace_and_its_exported_tables_give_the_same_answers_in_each_format() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let tables = folder.path().join("tables");
    let tables = tables.to_str().unwrap();
    answer(&["export", &trace, "--out", tables], b"");
    let sql = "select utid, name from thread where utid < 3 order by utid";
    for format in ["table", "csv", "json"] {
        let of_trace = answer(&["query", &trace, sql, "-f", format], b"");
        assert_eq!(of_trace, answer(&["query", tables, sql, "-f", format], b""));
        assert!(of_trace.contains("utid"), "{of_trace}");
    }
    let csv = answer(&["query", &trace, "-f", "csv"], sql.as_bytes());
    assert_eq!(csv.lines().next(), Some("utid,name"));
    assert_eq!(csv.lines().count(), 4);
    let bytes = std::fs::read(&trace).unwrap();
    assert_eq!(answer(&["query", "-", sql, "-f", "csv"], &bytes), csv);
    let none = answer(
        &[
            "query",
            &trace,
            "select name from thread where utid < 0",
            "-f",
            "csv",
        ],
        b"",
    );
    assert_eq!(none, "name\n");
    for (format, magic) in [("arrow", &[0xff; 4][..]), ("parquet", b"PAR1")] {
        let file = folder.path().join(format);
        answer(
            &["query", &trace, sql, "-f", format, "-o", file.to_str().unwrap()],
            b"",
        );
        assert!(std::fs::read(&file).unwrap().starts_with(magic), "{format}");
    }
}

#[test]
fn kernel_events_are_exported_on_request_and_missed_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let sql = "select count(*), count(extract_arg(arg_set_id, 'next_comm')) from ftrace_event where name = 'sched_switch'";
    let of_trace = answer(&["query", &trace, sql, "-f", "csv"], b"");
    let path = |name| folder.path().join(name).to_str().unwrap().to_owned();
    let (with, without) = (path("with"), path("without"));
    answer(&["export", &trace, "--ftrace-events", "-o", &with], b"");
    assert_eq!(answer(&["query", &with, sql, "-f", "csv"], b""), of_trace);
    answer(&["export", &trace, "-o", &without], b"");
    let output = run(&["query", &without, sql], b"");
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        complaint.contains("has no ftrace_event; export the trace with --ftrace-events"),
        "{complaint}"
    );
}

/// A shell on a terminal.
struct Shell {
    child: std::process::Child,
    /// The user's side of the terminal.
    user: File,
    /// What it has printed and nobody has looked at yet.
    printed: Vec<u8>,
}

impl Shell {
    /// Its prompt, with nothing behind it.
    const PROMPT: &'static str = "ferretto> \r\x1b[10C";

    fn start(trace: &str, home: &Path) -> Shell {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap().into_string().unwrap();
        let inside = || File::options().read(true).write(true).open(&name).unwrap();
        let child = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_ferretto-query"), "query", trace])
            .env("HOME", home)
            .env("TERM", "xterm")
            .env_remove("XDG_STATE_HOME")
            .stdin(inside())
            .stdout(inside())
            .stderr(inside())
            .spawn();
        Shell {
            child: child.unwrap(),
            user: user.into(),
            printed: Vec::new(),
        }
    }

    /// Waits for the prompt; returns what comes before it.
    fn until_prompt(&mut self) -> String {
        self.until(Shell::PROMPT)
    }

    /// Waits for a text; returns what comes up to its end.
    fn until(&mut self, wanted: &str) -> String {
        loop {
            let place = self
                .printed
                .windows(wanted.len())
                .position(|it| it == wanted.as_bytes());
            if let Some(at) = place {
                let rest = self.printed.split_off(at + wanted.len());
                let said = std::mem::replace(&mut self.printed, rest);
                return String::from_utf8_lossy(&said).into_owned();
            }
            let mut some = [0; 4096];
            // EIO, once nobody has the other side open.
            let Ok(count @ 1..) = self.user.read(&mut some) else {
                let said = String::from_utf8_lossy(&self.printed);
                panic!("it ends, {}, after {said}", self.child.wait().unwrap());
            };
            self.printed.extend_from_slice(&some[..count]);
        }
    }

    /// Types a line; returns what is printed up to the next prompt.
    fn type_in(&mut self, line: &str) -> String {
        self.press(&format!("{line}\n"));
        self.until_prompt()
    }

    fn press(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).unwrap();
    }
}

#[test]
fn a_terminal_becomes_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let mut shell = Shell::start(&trace, folder.path());
    shell.until_prompt();
    let tables = shell.type_in(".tables");
    assert!(
        tables.contains("thread_state") && tables.contains("sched_latency_for"),
        "{tables}"
    );
    // A statement ends with its `;`, on whichever line.
    let answer = shell.type_in("select 40 + count(*) as answer\nfrom thread where utid in (1, 2);");
    assert!(answer.contains("answer") && answer.contains("42"), "{answer}");
    // A mistake does not end it.
    let mistake = shell.type_in("select nothing from thread;");
    assert!(mistake.contains("nothing"), "{mistake}");
    let mistake = shell.type_in(".wrong");
    assert!(mistake.contains("there is no command `.wrong`"), "{mistake}");
    shell.type_in(".mode csv");
    let answer = shell.type_in("select utid, 7 as seven from thread where utid = 1;");
    assert!(answer.contains("utid,seven\r\n1,7\r\n"), "{answer}");
    // The first row is there at once, and the second one never.
    let from: Vec<String> = (0..12).map(|place| format!("thread t{place}")).collect();
    let endless = format!(
        "select 8 as eight union all select count(*) from {};\n",
        from.join(", ")
    );
    shell.press(&endless);
    shell.until("\r\neight\r\n8\r\n");
    shell.press("\x03");
    let said = shell.until_prompt();
    assert!(said.contains("interrupted"), "{said}");
    let answer = shell.type_in("select 9 as nine;");
    assert!(answer.contains("nine\r\n9\r\n"), "{answer}");
    shell.press(".quit\n");
    let status = shell.child.wait().unwrap();
    assert!(status.success(), "{status}");
    let history = std::fs::read_to_string(folder.path().join(".local/state/ferretto/query_history")).unwrap();
    assert!(history.contains("7 as seven"), "{history}");
}

#[test]
fn a_table_says_that_there_is_more() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let text = answer(
        &["query", &trace, "select 1 as x from thread", "--rows", "2"],
        b"",
    );
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..4], ["x", "─", "1", "1"]);
    assert!(
        lines[4].contains("more than 2 rows") && lines.len() == 5,
        "{text}"
    );
}

#[test]
fn reports_have_bars_and_all_of_them_are_one_pass() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let cpu = answer(&["report", "cpu", &trace], b"");
    assert!(
        cpu.starts_with("Which threads ran longest?\n") && cpu.contains('█'),
        "{cpu}"
    );
    let bytes = std::fs::read(&trace).unwrap();
    let all = answer(&["report", "all", "-"], &bytes);
    assert!(all.contains(&cpu), "{all}");
    assert!(all.contains("Which slices took longest in total?"), "{all}");
}

#[test]
fn the_examples_are_statements() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let examples = answer(&["query", "--examples"], b"");
    assert!(examples.matches(";\n").count() > 20);
    answer(&["query", &trace], examples.as_bytes());
    let views = answer(&["query", "--views"], b"");
    answer(
        &["query", &trace],
        format!("{views}; select * from thread_slice").as_bytes(),
    );
}

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let garbage = folder.path().join("garbage");
    std::fs::write(&garbage, "no trace").unwrap();
    let garbage = garbage.to_str().unwrap();
    for (arguments, message) in [
        (
            &["query", "/no/such/trace", "select 1"][..],
            "/no/such/trace does not exist",
        ),
        (&["query", garbage, "select * from sched"], "is no Perfetto trace"),
        (
            &["query", &trace, "select * from nothing"],
            "table 'nothing' not found",
        ),
        (&["query", &trace, ""], "there is no SQL"),
        (&["query", "-"], "stdin is the trace"),
        (
            &["query", &trace, "--query-file", "/no/such/file"],
            "/no/such/file cannot be read",
        ),
        (
            &["query", &trace, "select 1", "-o", "/no/such/folder/file"],
            "cannot be written",
        ),
        (&["report", "cpu", garbage], "is no Perfetto trace"),
    ] {
        let output = run(arguments, b"");
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {complaint}");
        assert!(
            complaint.starts_with("ferretto-query: ") && complaint.contains(message),
            "{arguments:?}: {complaint}"
        );
        assert!(output.stdout.is_empty());
    }
    let tables = folder.path().join("tables of nothing");
    let output = run(&["export", garbage, "-o", tables.to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(!tables.exists());
    // Neither a wrong query nor a source that is no trace touches the file for the answer.
    let kept = folder.path().join("kept");
    std::fs::write(&kept, "before").unwrap();
    run(
        &[
            "query",
            garbage,
            "select * from sched",
            "-f",
            "csv",
            "-o",
            kept.to_str().unwrap(),
        ],
        b"",
    );
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "before");
}

#[test]
fn many_traces_share_a_folder_and_one_that_fails_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    std::fs::create_dir(&traces).unwrap();
    for seed in 0..2 {
        std::fs::write(
            traces.join(format!("{seed}.pftrace")),
            generator::Generator::whole(seed),
        )
        .unwrap();
    }
    let (first, second) = (traces.join("0.pftrace"), traces.join("1.pftrace"));
    let [first, second] = [&first, &second].map(|path| path.to_str().unwrap());
    // They may be within the folder of the traces.
    let tables = traces.join("tables");
    let tables = tables.to_str().unwrap();
    let output = run(&["export", traces.to_str().unwrap(), "-o", tables], b"");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && message.contains("wrote the tables of 2 traces"),
        "{message}"
    );
    let count = "select trace, count(*) as n from thread group by 1 order by 1";
    let before = answer(&["query", tables, count, "-f", "csv"], b"");
    assert!(
        before.contains("\n0.pftrace,") && before.contains("\n1.pftrace,"),
        "{before}"
    );
    let output = run(&["export", traces.to_str().unwrap(), "-o", tables], b"");
    assert!(output.status.success(), "{output:?}");
    // Several traces are asked as such a folder is.
    assert_eq!(answer(&["query", first, second, count, "-f", "csv"], b""), before);
    assert_eq!(
        answer(&["query", traces.to_str().unwrap(), count, "-f", "csv"], b""),
        before
    );
    let report = answer(&["report", "cpu", tables], b"");
    assert!(
        report.contains("trace ") && report.contains("0.pftrace") && report.contains("1.pftrace"),
        "{report}"
    );

    // A single one goes to the others, and one that was there before is replaced.
    let third = trace(folder.path());
    let garbage = folder.path().join("garbage");
    std::fs::write(&garbage, "no trace").unwrap();
    let garbage = garbage.to_str().unwrap();
    let output = run(
        &["export", garbage, &third, "/no/such/trace", first, "-o", tables],
        b"",
    );
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    for part in [
        "wrote the tables of 2 traces",
        "1 were there before and are replaced",
        "2 of 4 traces have no tables",
        "garbage: is no Perfetto trace",
        "/no/such/trace cannot be opened",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let after = answer(&["query", tables, count, "-f", "csv"], b"");
    assert!(
        after.starts_with(&before) && after.contains("\ntrace.pftrace,"),
        "{after}"
    );
    answer(&["export", second, "-o", tables], b"");
    assert_eq!(answer(&["query", tables, count, "-f", "csv"], b""), after);

    // One trace alone has no partition unless somebody asks for it.
    let plain = folder.path().join("plain");
    let plain = plain.to_str().unwrap();
    answer(&["export", first, "-o", plain], b"");
    let output = run(&["export", second, "--partition", "-o", plain], b"");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("has the tables of one trace without partitions"),
        "{message}"
    );
    let named = folder.path().join("named");
    let named = named.to_str().unwrap();
    answer(&["export", first, "--machine", "web 1", "-o", named], b"");
    let machines = answer(
        &[
            "query",
            named,
            "select distinct machine, date from metadata",
            "-f",
            "csv",
        ],
        b"",
    );
    assert_eq!(machines, "machine,date\nweb_1,2006-07-14\n");
}
