//! Requests and their queries on tokio, as slices that survive awaits and hops between threads.
//!
//! ```text
//! cargo run --example tokio [FILE]
//! ```

use std::time::Duration;

use ferretto::future::TraceFuture;
use ferretto::{trace_async, trace_event_instant, trace_function, trace_slice};
use tokio::time::sleep;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1);
    let _trace = ferretto::record_to(path.as_deref().unwrap_or("trace.pftrace"))?;

    let requests: Vec<_> = (0..8).map(|number| tokio::spawn(serve(number))).collect();
    let mut rows = 0;
    for request in requests {
        rows += request.await?;
    }
    println!("{rows} rows");
    Ok(())
}

/// A slice from the first poll to the end, whichever threads poll it.
#[trace_function("net", args(number))]
async fn serve(number: u64) -> usize {
    // This slice is within that of `serve`.
    let user = query(number, "select name from users").await;
    // Two at the same time: each has a line of its own.
    let (books, loans) = tokio::join!(
        query(number, "select title from books"),
        query(number, "select due from loans"),
    );
    // Any other future can be a slice, too.
    let body = query(number, "select body from pages")
        // Shows when it runs, on the thread that runs it.
        .polls_in(|| trace_slice!("net", "Poll page"))
        .in_slice(|| trace_async!("net", "Page", "number" => number))
        .await;
    // A task that is spawned is within this slice because of `in_current_slice`.
    let audit = tokio::spawn(query(number, "insert into audit").in_current_slice());
    let audit = audit.await.unwrap_or_default();
    trace_event_instant!("net", "Served", "number" => number);
    user + books + loans + body + audit
}

#[trace_function("db", args)]
async fn query(number: u64, sql: &str) -> usize {
    sleep(Duration::from_millis(1 + number % 3)).await;
    sql.len()
}
