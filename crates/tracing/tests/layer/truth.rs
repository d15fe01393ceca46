//! Recordings as Perfetto's own trace processor reads them. `FERRETTO_TPQ` names the program.

use std::pin::Pin;
use std::process::Command;

use tracing::{Instrument, info, info_span, warn};

use crate::trace::Recording;
use crate::with_layer;

/// The rows of a query, or all statistics that tell of errors and losses, for the argument `--stats`.
fn tpq(trace: &str, query: &str) -> Option<Vec<String>> {
    let Ok(program) = std::env::var("FERRETTO_TPQ") else {
        println!("skipped: FERRETTO_TPQ names no trace processor");
        return None;
    };
    let arguments = if query == "--stats" {
        [query, trace]
    } else {
        [trace, query]
    };
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(
        text.lines()
            .skip(usize::from(query != "--stats"))
            .map(str::to_owned)
            .collect(),
    )
}

#[test]
fn the_trace_processor_agrees() {
    let recording = Recording::start();
    with_layer(|| {
        for number in 0..3 {
            let yielding = async { tokio::task::yield_now().await };
            let mut request: Pin<Box<dyn Future<Output = ()>>> =
                Box::pin(yielding.instrument(info_span!("request", number, answer = tracing::field::Empty)));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            while request.as_mut().poll(&mut context).is_pending() {
                info!(counter.waiting = number, "pending");
            }
        }
        let (first, second, after) = (info_span!("first"), info_span!("second"), info_span!("after"));
        let entered = first.enter();
        let _second = second.enter();
        after.follows_from(&second);
        drop(entered);
        drop(_second);
        after.in_scope(|| warn!("done"));
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), recording.stop_to_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let Some(stats) = tpq(path, "--stats") else { return };
    assert_eq!(stats, [] as [String; 0]);
    let rows = |query| tpq(path, query).unwrap();
    assert_eq!(
        rows("select name, count(*), min(dur) >= 0 from slice where dur != 0 group by name order by name"),
        ["after\t1\t1", "first\t1\t1", "request\t12\t1", "second\t2\t1"]
    );
    assert_eq!(
        rows(
            "select extract_arg(arg_set_id, 'debug.number') from slice join track on track_id = track.id \
            where track.name = 'request' order by ts"
        ),
        ["0", "1", "2"]
    );
    assert_eq!(
        rows(
            "select a.name, b.name, b.dur > 0 from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
        ),
        ["after\tafter\t1"]
    );
    assert_eq!(
        rows("select value from counter order by ts"),
        ["0.0", "1.0", "2.0"].map(|row| row.to_owned())
    );
    assert_eq!(
        rows("select prio, msg from android_logs order by ts"),
        ["4\tpending", "4\tpending", "4\tpending", "5\tdone"]
    );
}
