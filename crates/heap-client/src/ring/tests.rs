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
fn there_is_space_exactly_when_it_can_be_taken() {
    let memory = memory(MIN_RING_WORDS);
    let ring = Ring::new(&memory).expect("a possible size");
    let (mut reader, mut payload) = (Reader::new(), Vec::<u64>::new());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for step in 0..100_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let kind = [Kind::Allocation, Kind::Free][(random % 2) as usize];
        // Large ones may need as much padding.
        let words = (random >> 8) as usize % (MIN_RING_WORDS / 3);
        let has_space = ring.has_space(kind, words);
        let taken = ring.take(kind, words);
        assert_eq!(
            has_space,
            taken.is_some(),
            "step {step}: {kind:?} of {words} words"
        );
        match taken {
            Some(space) => space.complete(),
            None => {
                reader.next(ring, &mut payload);
            }
        }
    }
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
    // Its writer was killed.
    let _ = ring.take(Kind::Allocation, 3);
    ring.take(Kind::Free, 2).expect("space").complete();
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

#[test]
fn paddings_that_no_writer_makes_are_corrupt() {
    let memory = memory(MIN_RING_WORDS * 16);
    let ring = Ring::new(&memory).expect("a possible size");
    let fill_with_paddings = |words: usize| {
        ring.header(header::WRITE).store(ring.capacity(), Relaxed);
        for place in (0..ring.capacity()).step_by(words) {
            ring.word(place)
                .store(COMPLETE | head(Kind::Padding, words as u64), Relaxed);
        }
    };
    // A client could write one after the other for as long as they are passed over.
    fill_with_paddings(1);
    let mut reader = Reader::new();
    assert_eq!(reader.next(ring, &mut Vec::new()), Next::Corrupt);
    assert_eq!(reader.position(), 1);
    // One as long as the ring would take as long as a thousand records.
    fill_with_paddings(MIN_RING_WORDS * 16);
    let mut reader = Reader::new();
    assert_eq!(reader.next(ring, &mut Vec::new()), Next::Corrupt);
    assert_eq!(reader.position(), 0);
}

/// The ring on loom's atomics: interleavings of writers and the reader, and the reorderings that the orderings allow.
mod model {
    use std::sync::atomic::{AtomicU32, Ordering};

    use loom::sync::Arc;

    use super::*;

    impl Word for loom::sync::atomic::AtomicU64 {
        fn load(&self, ordering: Ordering) -> u64 {
            match ordering {
                // These loads may see stale values, which is the reason for loom.
                Ordering::Relaxed => self.load(ordering),
                // Loom (0.7) forgets a load as a point to switch threads at once another thread loads too. A head or position that is stale is
                // one that the thread could as well have loaded earlier.
                _ => self.fetch_or(0, ordering),
            }
        }

        fn store(&self, value: u64, ordering: Ordering) {
            // Loom keeps stores beside read-modify-writes in no order at all, and would find lost ones.
            self.swap(value, ordering);
        }

        fn swap(&self, value: u64, ordering: Ordering) -> u64 {
            self.swap(value, ordering)
        }

        fn compare_exchange_weak(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            // Loom never fails without a reason.
            self.compare_exchange(current, new, success, failure)
        }
    }

    /// Memory too small for `Ring::new`: few words, so that writers and the reader meet.
    struct Memory {
        header: Vec<loom::sync::atomic::AtomicU64>,
        words: Vec<loom::sync::atomic::AtomicU64>,
    }

    impl Memory {
        fn new(words: usize) -> Memory {
            let zeroes = |count| {
                (0..count)
                    .map(|_| loom::sync::atomic::AtomicU64::new(0))
                    .collect()
            };
            Memory {
                header: zeroes(header::READ + 1),
                words: zeroes(words),
            }
        }

        fn ring(&self) -> Ring<'_, loom::sync::atomic::AtomicU64> {
            Ring {
                header: &self.header,
                words: &self.words,
            }
        }

        /// Writes a record of two equal words. Returns whether there was space.
        fn write(&self, value: u64) -> bool {
            let Some(space) = self.ring().take(Kind::Free, 2) else {
                return false;
            };
            space.write(0, value);
            space.write(1, value);
            space.complete();
            true
        }
    }

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let runs = std::sync::Arc::new(AtomicU32::new(0));
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.max_branches = 10_000;
        builder.check({
            let runs = runs.clone();
            move || {
                runs.fetch_add(1, Ordering::Relaxed);
                model();
            }
        });
        let runs = runs.load(Ordering::Relaxed);
        assert!(runs > 20, "only {runs} interleavings explored");
    }

    #[test]
    fn two_writers_and_a_reader_lose_and_invent_nothing() {
        check(|| {
            let memory = Arc::new(Memory::new(8));
            let writers = [1, 2].map(|value| {
                let memory = memory.clone();
                loom::thread::spawn(move || memory.write(value))
            });
            let (mut reader, mut payload, mut read) = (Reader::new(), Vec::new(), Vec::new());
            let mut next = |read: &mut Vec<u64>| {
                let next = reader.next(memory.ring(), &mut payload);
                assert_ne!(next, Next::Corrupt);
                if next == Next::Record(Kind::Free) {
                    assert_eq!(payload[0], payload[1], "a record that is half another");
                    read.push(payload[0]);
                }
                next
            };
            next(&mut read);
            next(&mut read);
            let written = writers.map(|writer| writer.join().expect("no panic"));
            assert_eq!(written, [true, true], "there is space for both");
            while next(&mut read) != Next::Empty {}
            read.sort_unstable();
            assert_eq!(read, [1, 2]);
        });
    }

    #[test]
    fn writers_that_lap_the_reader_find_clean_space() {
        check(|| {
            // Space for one record of three words, and each begins at another place: with padding before it.
            let memory = Arc::new(Memory::new(4));
            let writer = {
                let memory = memory.clone();
                loom::thread::spawn(move || [1, 2].map(|value| memory.write(value)))
            };
            let (mut reader, mut payload, mut read) = (Reader::new(), Vec::new(), Vec::new());
            let mut turn = |read: &mut Vec<u64>| {
                let next = reader.next(memory.ring(), &mut payload);
                assert_ne!(next, Next::Corrupt);
                if next == Next::Record(Kind::Free) {
                    assert_eq!(payload[0], payload[1], "a record that is half another");
                    read.push(payload[0]);
                }
                next
            };
            turn(&mut read);
            turn(&mut read);
            let written = writer.join().expect("no panic");
            while turn(&mut read) != Next::Empty {}
            let expected: Vec<u64> = [1, 2]
                .into_iter()
                .zip(written)
                .filter(|(_, done)| *done)
                .map(|(value, _)| value)
                .collect();
            assert_eq!(read, expected);
        });
    }
}
