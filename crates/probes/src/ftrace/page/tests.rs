use super::super::fixtures::{HEADER_PAGE, MIXED, PAGE_SIZE, SCHED};
use super::*;
use proptest::prelude::*;

/// Contents that the kernel may put into a page (with times that do not add up to more than 59 bits), and the events that a reader has to make of them.
#[derive(Clone, Debug)]
enum Entry {
    Event { delta: u32, words: Vec<u32> },
    LongEvent { delta: u32, words: Vec<u32> },
    Discarded { delta: u32, words: u32 },
    TimeExtend { delta: u64 },
    TimeStamp { time: u64 },
}

const DELTA_LIMIT: u32 = 1 << 27;

fn any_entry() -> impl Strategy<Value = Entry> {
    let delta = 0..DELTA_LIMIT;
    prop_oneof![
        4 => (delta.clone(), prop::collection::vec(any::<u32>(), 1..=28)).prop_map(|(delta, words)| Entry::Event { delta, words }),
        1 => (delta.clone(), prop::collection::vec(any::<u32>(), 1..60)).prop_map(|(delta, words)| Entry::LongEvent { delta, words }),
        1 => (1..DELTA_LIMIT, 0u32..30).prop_map(|(delta, words)| Entry::Discarded { delta, words }),
        1 => (0u64..1 << 52).prop_map(|delta| Entry::TimeExtend { delta }),
        1 => (0u64..1 << 58).prop_map(|time| Entry::TimeStamp { time }),
    ]
}

fn header(kind: u32, delta: u32) -> u32 {
    delta << 5 | kind
}

/// Writes entries as the kernel does, next to a plain list of the events and their times.
fn build(start: u64, entries: &[Entry]) -> (Vec<u32>, Vec<(u64, Vec<u8>)>) {
    let (mut words, mut events, mut now) = (Vec::new(), Vec::new(), start);
    let bytes = |words: &[u32]| {
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    for entry in entries {
        match entry {
            Entry::Event {
                delta,
                words: payload,
            } => {
                now += u64::from(*delta);
                words.push(header(payload.len() as u32, *delta));
                words.extend(payload);
                events.push((now, bytes(payload)));
            }
            Entry::LongEvent {
                delta,
                words: payload,
            } => {
                now += u64::from(*delta);
                words.extend([header(0, *delta), 4 + payload.len() as u32 * 4]);
                words.extend(payload);
                events.push((now, bytes(payload)));
            }
            Entry::Discarded { delta, words: len } => {
                now += u64::from(*delta);
                words.extend([header(29, *delta), 4 + len * 4]);
                words.extend((0..*len).map(|_| 0xdead_beef));
            }
            Entry::TimeExtend { delta } => {
                now += delta;
                words.extend([header(30, *delta as u32 % DELTA_LIMIT), (delta >> 27) as u32]);
            }
            Entry::TimeStamp { time } => {
                now = *time;
                words.extend([header(31, *time as u32 % DELTA_LIMIT), (time >> 27) as u32]);
            }
        }
    }
    (words, events)
}

fn page_of(start: u64, flags: u32, words: &[u32]) -> Vec<u8> {
    let mut page = start.to_le_bytes().to_vec();
    page.extend(u64::from((words.len() as u32 * 4) | flags).to_le_bytes());
    page.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    page
}

const LAYOUT: PageLayout = PageLayout::sixty_four_bit(PAGE_SIZE);

proptest! {
    #[test]
    fn what_the_kernel_writes_is_what_is_read(start in 0u64..1 << 58, entries in prop::collection::vec(any_entry(), 1..20)) {
        let (words, events) = build(start, &entries);
        let bytes = page_of(start, 0, &words);
        let page = Page::parse(&LAYOUT, &bytes).unwrap();
        let read: Vec<_> = page.records().map(|record| record.map(|r| (r.timestamp, r.payload.to_vec()))).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, events);
    }

    #[test]
    fn any_bytes_are_a_page_or_not(bytes in prop::collection::vec(any::<u8>(), 0..400), commit in 0u32..420) {
        let mut bytes = bytes;
        if bytes.len() >= 12 {
            bytes[8..12].copy_from_slice(&commit.to_le_bytes());
        }
        check_total(&bytes);
    }

    #[test]
    fn damaged_pages_of_a_real_kernel_do_no_harm(page in 0usize..5, damage in prop::collection::vec((0usize..PAGE_SIZE, any::<u8>()), 1..30)) {
        let all: Vec<u8> = [SCHED.pages, MIXED.pages].concat();
        let mut bytes = all[page * PAGE_SIZE..][..PAGE_SIZE].to_vec();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        check_total(&bytes);
    }
}

/// All results lie within the page, in order, and end.
fn check_total(bytes: &[u8]) {
    let Ok(page) = Page::parse(&LAYOUT, bytes) else {
        return;
    };
    let mut end = bytes.as_ptr() as usize;
    let limit = end + bytes.len();
    let mut records = page.records();
    for record in records.by_ref() {
        let Ok(record) = record else { break };
        assert!(record.payload.as_ptr() as usize >= end, "records overlap");
        end = record.payload.as_ptr() as usize + record.payload.len();
        assert!(end <= limit && record.payload.len() >= 2);
        assert_eq!(record.event_id.to_le_bytes(), record.payload[..2]);
    }
    assert_eq!(records.next(), None, "nothing comes after the end or an error");
}

#[test]
fn real_pages_hold_as_many_events_as_the_kernel_prints() {
    let layout = PageLayout::parse(HEADER_PAGE).unwrap();
    for recording in [SCHED, MIXED] {
        let mut times = Vec::new();
        for bytes in recording.pages.chunks(PAGE_SIZE) {
            let page = Page::parse(&layout, bytes).unwrap();
            assert_eq!(page.loss, Loss::None);
            times.extend(page.records().map(|record| record.unwrap().timestamp));
        }
        assert_eq!(times.len(), recording.lines().len());
        assert!(times.is_sorted());
    }
}

#[test]
fn losses_are_told_with_their_number_if_there_was_room() {
    let event = [header(1, 0), 7];
    let loss = |flags: u32, behind: &[u8]| {
        let bytes = [page_of(1, flags, &event).as_slice(), behind].concat();
        Page::parse(&LAYOUT, &bytes).unwrap().loss
    };
    assert_eq!(loss(0, &9u64.to_le_bytes()), Loss::None);
    assert_eq!(loss(1 << 31, &9u64.to_le_bytes()), Loss::Unknown);
    assert_eq!(loss(1 << 31 | 1 << 30, &9u64.to_le_bytes()), Loss::Events(9));
    assert_eq!(
        loss(1 << 31 | 1 << 30, &[1, 2]),
        Loss::Unknown,
        "the number is cut off"
    );
}

#[test]
fn pages_of_32_bit_kernels_have_a_shorter_header() {
    let layout = PageLayout::parse(
        &HEADER_PAGE
            .replace("commit;\toffset:8;\tsize:8", "commit;\toffset:8;\tsize:4")
            .replace("offset:16;\tsize:4080", "offset:12;\tsize:4084"),
    )
    .unwrap();
    let mut bytes = 5u64.to_le_bytes().to_vec();
    for word in [8 | 1 << 31 | 1 << 30, header(1, 2), 77, 3] {
        bytes.extend(u32::to_le_bytes(word));
    }
    let page = Page::parse(&layout, &bytes).unwrap();
    assert_eq!(page.loss, Loss::Events(3));
    let records: Vec<_> = page.records().collect();
    assert_eq!(
        records,
        [Ok(Record {
            timestamp: 7,
            event_id: 77,
            payload: &77u32.to_le_bytes()
        })]
    );
}

#[test]
fn headers_that_lie_are_refused() {
    let good = page_of(42, 0, &[header(1, 0), 1]);
    assert!(Page::parse(&LAYOUT, &good).is_ok());
    for len in 0..good.len() {
        let timestamp = if len < 8 { 0 } else { 42 };
        assert_eq!(
            Page::parse(&LAYOUT, &good[..len]).unwrap_err(),
            InvalidPage { timestamp },
            "{len} bytes"
        );
    }
    let empty = page_of(42, 0, &[]);
    assert_eq!(
        Page::parse(&LAYOUT, &empty).unwrap_err(),
        InvalidPage { timestamp: 42 }
    );
}

#[test]
fn each_contradiction_has_its_status() {
    let event = [header(1, 5), 7];
    let cases: &[(&[u32], ParseStatus)] = &[
        (&[header(29, 0)], ParseStatus::NullPadding),
        (&[header(29, 1)], ParseStatus::ShortPaddingLength),
        (&[header(29, 1), 3], ParseStatus::InvalidPaddingLength),
        (&[header(30, 1)], ParseStatus::ShortTimeExtend),
        (&[header(31, 1)], ParseStatus::ShortTimeStamp),
        (&[header(0, 1)], ParseStatus::ShortDataLength),
        (&[0, 0], ParseStatus::ZeroDataLength),
        (&[header(0, 1), 3], ParseStatus::InvalidDataLength),
        (&[header(0, 1), 4], ParseStatus::ShortEventId),
        (&[header(2, 1), 3], ParseStatus::EndOverflow),
        (&[header(0, 1), 12, 1], ParseStatus::EndOverflow),
    ];
    for (words, expected) in cases {
        let words = [&event, *words].concat();
        let bytes = page_of(100, 0, &words);
        let records: Vec<_> = Page::parse(&LAYOUT, &bytes).unwrap().records().collect();
        let before = Record {
            timestamp: 105,
            event_id: 7,
            payload: &7u32.to_le_bytes(),
        };
        assert_eq!(
            records,
            [Ok(before), Err(*expected)],
            "what came before the error is kept"
        );
    }
    let mut bytes = page_of(100, 0, &event);
    bytes[8] = 10;
    bytes.extend([0; 4]);
    let last = Page::parse(&LAYOUT, &bytes).unwrap().records().last();
    assert_eq!(last, Some(Err(ParseStatus::ShortEventHeader)));
}

#[test]
fn absolute_times_get_back_the_bits_they_have_no_room_for() {
    let high = 3 << 59;
    assert_eq!(complete_absolute_time(1000, 500), 1000);
    assert_eq!(
        complete_absolute_time(1000, 5000),
        1000,
        "time may go backwards while there are no high bits"
    );
    assert_eq!(complete_absolute_time(1000, high + 500), high + 1000);
    assert_eq!(
        complete_absolute_time(1000, high + (1 << 59) - 1),
        high + (1 << 59) + 1000,
        "wrapped around"
    );
}
