use super::*;

fn memory(ring_words: usize) -> Vec<AtomicU64> {
    (0..HEADER_WORDS + ring_words)
        .map(|_| AtomicU64::new(0))
        .collect()
}

#[test]
fn records_come_back_in_their_order_over_many_laps() {
    let memory = memory(MIN_RING_WORDS);
    let ring = Ring::new(&memory).expect("a possible size");
    ring.initialize();
    assert!(ring.is_initialized());
    let (mut reader, mut payload) = (Reader::new(), Vec::new());
    let mut written = 0_u64;
    let mut read = 0_u64;
    while read < 5000 {
        // Sizes that never divide the ring, so that padding is met at every place.
        let words = 1 + (written * 7 % 61) as usize;
        if let Some(space) = ring.take(Kind::Free, words) {
            for index in 0..words {
                space.write(index, written + index as u64);
            }
            space.complete();
            written += 1;
            continue;
        }
        while reader.next(ring, &mut payload) == Next::Record(Kind::Free) {
            let words = 1 + (read * 7 % 61) as usize;
            let expected: Vec<u64> = (0..words as u64).map(|index| read + index).collect();
            assert_eq!(payload, expected);
            read += 1;
        }
    }
    assert!(reader.position() > 10 * MIN_RING_WORDS as u64);
}

#[test]
fn frees_find_space_when_allocations_do_not() {
    let memory = memory(MIN_RING_WORDS);
    let ring = Ring::new(&memory).expect("a possible size");
    ring.initialize();
    while let Some(space) = ring.take(Kind::Allocation, 9) {
        space.complete();
    }
    let frees = std::iter::from_fn(|| ring.take(Kind::Free, crate::layout::free::WORDS));
    assert!(frees.map(Space::complete).count() >= MIN_RING_WORDS / 8 / 4);
}

#[test]
fn a_record_that_its_writer_did_not_complete_is_passed_over_only_when_the_reader_is_told_to() {
    let memory = memory(MIN_RING_WORDS);
    let ring = Ring::new(&memory).expect("a possible size");
    ring.initialize();
    let killed = ring.take(Kind::Allocation, 3);
    ring.take(Kind::Free, 2).expect("space").complete();
    drop(killed);
    let (mut reader, mut payload) = (Reader::new(), Vec::new());
    assert_eq!(reader.next(ring, &mut payload), Next::Incomplete);
    assert!(reader.skip_incomplete(ring));
    assert_eq!(reader.next(ring, &mut payload), Next::Record(Kind::Free));
    assert_eq!(reader.next(ring, &mut payload), Next::Empty);
    // A writer that was killed before it could mark its space.
    ring.header(header::WRITE).fetch_add(5, Relaxed);
    assert_eq!(reader.next(ring, &mut payload), Next::Incomplete);
    assert!(!reader.skip_incomplete(ring));
}

#[test]
fn nonsense_is_corrupt_and_nothing_else() {
    let memory = memory(MIN_RING_WORDS);
    let ring = Ring::new(&memory).expect("a possible size");
    let nonsense = [
        (MIN_RING_WORDS as u64 + 1, COMPLETE | head(Kind::Free, 3)),
        (8, COMPLETE | head(Kind::Free, 9)),
        (8, COMPLETE | head(Kind::Free, 0)),
        (8, COMPLETE | 3),
        (8, u64::MAX),
    ];
    for (write, head) in nonsense {
        ring.initialize();
        ring.header(header::WRITE).store(write, Relaxed);
        ring.word(0).store(head, Relaxed);
        assert_eq!(
            Reader::new().next(ring, &mut Vec::new()),
            Next::Corrupt,
            "{write} {head:x}"
        );
    }
    // A writer finds no space in a ring whose header makes no sense.
    ring.header(header::READ).store(u64::MAX / 2, Relaxed);
    assert!(ring.take(Kind::Free, 2).is_none());
}
