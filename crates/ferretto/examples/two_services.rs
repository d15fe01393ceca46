//! Two processes that work for one request: in a trace of both, an arrow leads from the slice that asks to the one that answers.
//!
//! ```text
//! cargo run --example two_services [SECONDS]
//! ```
//!
//! Records for the tracing service of this machine, while it runs. It starts itself a second time, as the backend, and sends it W3C's header
//! `traceparent` with each request, as services on the network do.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferretto::{Options, TraceContext, trace_function};

fn main() -> Result<(), Box<dyn Error>> {
    ferretto::initialize(Options::system());
    match std::env::args().nth(1).as_deref() {
        Some("backend") => backend()?,
        seconds => frontend(Duration::from_secs_f64(seconds.unwrap_or("2").parse()?))?,
    }
    Ok(())
}

/// The way to the other service.
struct Connection {
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

fn frontend(duration: Duration) -> Result<(), Box<dyn Error>> {
    let mut backend = Command::new(std::env::current_exe()?)
        .arg("backend")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(requests), Some(answers)) = (backend.stdin.take(), backend.stdout.take()) else {
        unreachable!("both are piped");
    };
    let mut connection = Connection {
        requests,
        answers: BufReader::new(answers),
    };
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < duration {
        ask(&TraceContext::outgoing(), &mut connection)?;
        count += 1;
        sleep(Duration::from_millis(5));
    }
    // The backend ends with its input.
    drop(connection);
    backend.wait()?;
    println!("{count} requests answered");
    Ok(())
}

#[trace_function("frontend", flow = context, err)]
fn ask(context: &TraceContext, connection: &mut Connection) -> io::Result<()> {
    writeln!(connection.requests, "{context}")?;
    connection.answers.read_line(&mut String::new())?;
    Ok(())
}

fn backend() -> io::Result<()> {
    for header in io::stdin().lines() {
        // A client that sends no valid header gets a trace of its own.
        let context: TraceContext = header?.parse().unwrap_or_else(|_| TraceContext::start());
        // Requests that it makes to further services belong to the same trace.
        let _entered = context.clone().enter();
        println!("{}", answer(&context));
    }
    Ok(())
}

#[trace_function("backend", terminating_flow = context, ret)]
fn answer(context: &TraceContext) -> bool {
    sleep(Duration::from_millis(1));
    context.is_sampled()
}
