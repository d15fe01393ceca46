//! Prints results: a table of numbers, one of ratios, and the demands on Ferretto beside its results.

use ferretto_bench_sdk::case::Case;
use ferretto_bench_sdk::peer::Tracing;

use crate::results::{Results, Row, Summary};
use crate::runner::Program;

/// The peer that others are compared with; for spans the layer on it.
const REFERENCE: &str = "perfetto-sdk";
const REFERENCE_LAYER: &str = "tracing-perfetto-sdk";
const OURS: &str = "ferretto";
const OUR_LAYER: &str = "ferretto-tracing";

/// All of it.
pub(crate) fn print(results: &Results, peers: &[Program]) {
    if results.rows().next().is_none() {
        return;
    }
    println!("\nleast / median");
    print_table(results, peers, |row, peer| {
        let Summary { count, least, median } = results.summary(row, peer)?;
        let precision = if is_small(row) { 2 } else { 0 };
        Some(pair(count, least, median, precision))
    });
    println!("\nof {REFERENCE} (spans: of {REFERENCE_LAYER}), least / median");
    print_table(results, peers, |row, peer| {
        if !is_compared(row) {
            return None;
        }
        let reference = if matches!(row, Row::Client(_, Case::Span)) {
            REFERENCE_LAYER
        } else {
            REFERENCE
        };
        let (reference, this) = (results.summary(row, reference)?, results.summary(row, peer)?);
        let (least, median) = (this.least / reference.least, this.median / reference.median);
        Some(pair(this.count, least, median, 2))
    });
    print_targets(results, peers);
}

/// Both, unless there was only one.
fn pair(count: usize, least: f64, median: f64, precision: usize) -> String {
    if count == 1 {
        format!("{least:.precision$}")
    } else {
        format!("{least:.precision$} / {median:.precision$}")
    }
}

fn is_small(row: Row) -> bool {
    matches!(
        row,
        Row::Client(Tracing::Off, _)
            | Row::Bytes(_)
            | Row::LostPaced
            | Row::LostFlat
            | Row::LostFlatTwo
            | Row::LostCrowd
            | Row::RatePaced
            | Row::RateFlat
            | Row::RateFlatTwo
            | Row::RateCrowd
    )
}

/// Whether less is better, and how much less is the question.
fn is_compared(row: Row) -> bool {
    !matches!(
        row,
        Row::LostPaced
            | Row::LostFlat
            | Row::LostFlatTwo
            | Row::LostCrowd
            | Row::RatePaced
            | Row::RateFlat
            | Row::RateFlatTwo
            | Row::RateCrowd
    )
}

fn print_table(results: &Results, peers: &[Program], cell: impl Fn(Row, &str) -> Option<String>) {
    let mut lines = vec![vec![String::new()], vec!["version".to_owned()]];
    for peer in peers {
        lines[0].push(peer.name.to_owned());
        lines[1].push(peer.description.version.clone());
    }
    for row in results.rows() {
        let cells: Vec<_> = peers.iter().map(|peer| cell(row, peer.name)).collect();
        if cells.iter().any(Option::is_some) {
            let mut line = vec![row.to_string()];
            line.extend(cells.into_iter().map(Option::unwrap_or_default));
            lines.push(line);
        }
    }
    let widths: Vec<_> = (0..lines[0].len())
        .map(|column| {
            lines
                .iter()
                .map(|line| line[column].len())
                .max()
                .unwrap_or_default()
        })
        .collect();
    for line in lines {
        let mut text = format!("{:width$}", line[0], width = widths[0]);
        for (cell, width) in line[1..].iter().zip(&widths[1..]) {
            text += &format!(" | {cell:>width$}");
        }
        println!("{}", text.trim_end());
    }
}

/// One demand: a number of ours and its limit, both from the same kind of summary.
struct Target {
    what: String,
    value: Option<(f64, f64)>,
}

fn print_targets(results: &Results, peers: &[Program]) {
    if !peers.iter().any(|peer| [OURS, OUR_LAYER].contains(&peer.name)) {
        return;
    }
    for (kind, pick) in [
        ("least", (|summary: Summary| summary.least) as fn(Summary) -> f64),
        ("median", |summary| summary.median),
    ] {
        println!("\nasked of Ferretto, by the {kind}: what was measured, and the most that it may be");
        for Target { what, value } in targets(results, peers, pick) {
            if let Some((ours, most)) = value {
                let verdict = if ours <= most { "yes" } else { "NO" };
                println!("  {verdict:3} {ours:8.2} {most:8.2}  {what}");
            }
        }
    }
}

fn targets(results: &Results, peers: &[Program], pick: fn(Summary) -> f64) -> Vec<Target> {
    use Case::{Counter, DynamicName, Instant, Pair, PairOnTwoThreads, Span};
    let get = |row, peer: &str| results.summary(row, peer).map(pick);
    let on = |case, peer: &str| get(Row::Client(Tracing::On, case), peer);
    let ratio = |what: &str, case, divisor: f64| Target {
        what: what.into(),
        value: on(case, OURS).zip(on(case, REFERENCE).map(|reference| reference / divisor)),
    };
    // The floor is no library.
    let best_peer = peers
        .iter()
        .filter(|peer| ![OURS, "floor"].contains(&peer.name))
        .filter_map(|peer| on(Pair, peer.name))
        .min_by(f64::total_cmp);
    let mut targets = vec![
        ratio("begin+end: a fifth of perfetto-sdk", Pair, 5.0),
        Target {
            what: "begin+end: below every peer".into(),
            value: on(Pair, OURS).zip(best_peer),
        },
        Target {
            what: "on two threads: 1.15 of one thread's".into(),
            value: on(PairOnTwoThreads, OURS).zip(on(Pair, OURS).map(|one| 1.15 * one)),
        },
        ratio("instant with arguments: a fifth of perfetto-sdk", Instant, 5.0),
        ratio("counter: a sixth of perfetto-sdk", Counter, 6.0),
        ratio("dynamic name: a quarter of perfetto-sdk", DynamicName, 4.0),
        Target {
            what: "span: a third of tracing-perfetto-sdk".into(),
            value: on(Span, OUR_LAYER).zip(on(Span, REFERENCE_LAYER).map(|reference| reference / 3.0)),
        },
        Target {
            what: "span: 60 ns above an empty layer".into(),
            value: on(Span, OUR_LAYER).zip(on(Span, "empty-layer").map(|empty| empty + 60.0)),
        },
    ];
    for case in [Pair, PairOnTwoThreads, Instant, Counter, DynamicName] {
        targets.push(Target {
            what: format!("tracing off: 0.5 ns an event of {}", case.title().trim_start()),
            value: get(Row::Client(Tracing::Off, case), OURS).map(|ours| (ours / case.events() as f64, 0.5)),
        });
    }
    targets.push(Target {
        what: "tracing off: 2 ns a span".into(),
        value: get(Row::Client(Tracing::Off, Span), OUR_LAYER).map(|ours| (ours, 2.0)),
    });
    targets.push(Target {
        what: "bytes per event: upstream's".into(),
        value: get(Row::Bytes(Pair), OURS).zip(get(Row::Bytes(Pair), "perfetto-cxx")),
    });
    targets.push(Target {
        what: "service CPU per pair: half of upstream's (both SDKs with the service of this run)".into(),
        value: get(Row::Service(Pair), OURS)
            .zip(get(Row::Service(Pair), REFERENCE).map(|theirs| theirs / 2.0)),
    });
    targets.push(Target {
        what: "2 M events/s for 10 s with default buffers: nothing lost".into(),
        value: get(Row::LostPaced, OURS).map(|lost| (lost, 0.0)),
    });
    for (row, what) in [
        (
            Row::LostFlatTwo,
            "two threads flat out with default buffers: nothing lost",
        ),
        (
            Row::LostCrowd,
            "1 M events/s on 1,024 threads in 256 KiB: nothing lost",
        ),
    ] {
        targets.push(Target {
            what: what.into(),
            value: get(row, OURS).map(|lost| (lost, 0.0)),
        });
    }
    targets
}
