//! The cost of encoding one scheduler event: `cargo bench -p ferretto-wire`. Prints nanoseconds per event.

use ferretto_wire::Writer;
use std::hint::black_box;
use std::time::Instant;

const EVENTS: u64 = 1 << 12;
const ROUNDS: u32 = 500;

/// The best of many rounds, for the machine has other things to do in the others.
fn measure(name: &str, mut round: impl FnMut()) {
    let best = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    println!("{name}: {:.2} ns/event", best.as_nanos() as f64 / EVENTS as f64);
}

fn main() {
    let mut writer = Writer::new();
    measure("sched_switch as an FtraceEvent", || {
        writer.clear();
        for event in 0..black_box(EVENTS) {
            writer.nested(2, |writer| {
                writer.varint_field(1, 1_000_000_000_000 + event * 7_000);
                writer.varint_field(2, 4_000 + (event & 63));
                writer.nested(4, |writer| {
                    writer.bytes_field(1, b"kworker/0:1");
                    writer.varint_field(2, 4_000 + (event & 63));
                    writer.varint_field(3, 120);
                    writer.varint_field(4, event & 1);
                    writer.bytes_field(5, b"swapper/0");
                    writer.varint_field(6, event & 1_023);
                    writer.varint_field(7, 120);
                });
            });
        }
        black_box(writer.len());
    });
    measure("compact sched_switch, five packed columns", || {
        writer.clear();
        for column in 1..=5u32 {
            writer.packed_field(
                column,
                (0..black_box(EVENTS)).map(|event| (event * 37) >> (column * 2)),
            );
        }
        black_box(writer.len());
    });
}
