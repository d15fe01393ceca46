//! Heaps of a program's own, by upstream's functions.

use ferretto_heap_client::handshake::{Welcome, WhenFull};

use crate::daemon::{Daemon, Record, alive, samples};
use crate::{RING_WORDS, output, program};

#[test]
fn a_registered_heap_is_profiled_and_told_when_that_begins_and_ends() {
    let daemon = Daemon::new();
    let Some(mut program) = program(&["heaps"], &daemon) else {
        return;
    };
    let mut child = program.spawn().expect("a program");
    let mut welcome = Welcome::new(0, WhenFull::Lose);
    assert!(welcome.set_interval(b"com.example.arena", 512));
    let mut client = daemon.accept(&welcome, RING_WORDS);
    let records = client.until(|record| matches!(record, Record::Free { .. }));
    let Record::Heap { heap, name, interval } = &records[0] else {
        panic!("{records:?}");
    };
    assert_eq!((name.as_str(), *interval), ("com.example.arena", 512));
    let told: Vec<_> = samples(&records)
        .map(|sample| (u64::from(sample.heap), sample.id, sample.size, sample.stands_for))
        .collect();
    assert_eq!(
        told,
        [
            (*heap, 1, 512, 512),
            (*heap, u64::MAX, 90_001, 90_001),
            (*heap, 4, 5, 5)
        ]
    );
    let mut left: Vec<u64> = alive(&records).into_keys().map(|(_, id)| id).collect();
    left.sort_unstable();
    assert_eq!(left, [1, 4]);
    assert!(
        client.next().is_none(),
        "one release, however often it is reported"
    );
    client.end();
    drop(child.stdin.take());
    output(child);
}
