//! Many writers on little memory: chunks get smaller, and larger again, and all losses are reported.

use super::*;

/// An operation of one of the writers.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    Flush,
    /// It ends, and another one comes in its place.
    Replace,
    /// The service does its work.
    Serve,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0usize..300).prop_map(Step::Write),
        1 => (2000usize..6000).prop_map(Step::Write),
        2 => Just(Step::Flush),
        2 => Just(Step::Replace),
        6 => Just(Step::Serve),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn many_writers_share_few_pages(
        pages in 8usize..24,
        crowd in 1usize..48,
        steps in prop::collection::vec((0usize..48, step()), 1..600),
    ) {
        let mut service = Service::new(pages, 4096, Partitioning::ByWriters, Silent);
        // The packets that each writer was given and how often it lost some, ended writers included.
        let mut written: BTreeMap<WriterId, (usize, u64)> = BTreeMap::new();
        let mut writers: Vec<_> = (0..crowd).map(|_| service.writer(BufferExhaustedPolicy::Drop)).collect();
        for (index, step) in steps {
            let writer = &mut writers[index % crowd];
            match step {
                Step::Write(len) => {
                    let (count, losses) = written.entry(writer.id()).or_default();
                    writer.write_packet(&packet(*count, len));
                    (*count, *losses) = (*count + 1, writer.losses());
                }
                Step::Flush => writer.flush(),
                Step::Replace => *writer = service.writer(BufferExhaustedPolicy::Drop),
                Step::Serve => service.serve(),
            }
        }
        // With room again every loss can be told.
        service.serve();
        for writer in &mut writers {
            let (count, losses) = written.entry(writer.id()).or_default();
            writer.write_packet(&packet(*count, 1));
            writer.flush();
            prop_assert_eq!(writer.losses(), *losses, "there is room after all was served");
            *count += 1;
            service.serve();
        }
        drop(writers);
        service.serve();
        prop_assert!(service.all_pages_are_free(), "whatever they were cut into");
        let told: usize = service.sequences.values().map(|sequence| sequence.dropped).sum();
        let lost: u64 = written.values().map(|(_, losses)| losses).sum();
        prop_assert_eq!(told as u64, lost, "each row of lost packets is told to the service once");
        for (id, (count, losses)) in written {
            let packets = service.sequences.get(&id).map_or_else(Vec::new, |_| service.packets(id));
            let mut next = 0;
            let mut gaps = 0;
            for received in &packets {
                let number = number(&received.packet);
                prop_assert!(number >= next);
                prop_assert_eq!(number > next, received.dropped.is_some(), "a gap is marked, and nothing else");
                gaps += u64::from(number > next);
                next = number + 1;
            }
            let lost_its_last = next < count;
            prop_assert_eq!(gaps + u64::from(lost_its_last), losses);
        }
    }

    #[test]
    fn writers_that_come_one_by_one_find_room(pages in 1usize..32) {
        let mut service = Service::new(pages, 4096, Partitioning::ByWriters, Silent);
        let mut writers = Vec::new();
        for _ in 0..4 * pages {
            let mut writer = service.writer(BufferExhaustedPolicy::Drop);
            writer.write_packet(&packet(0, 20));
            writers.push(writer);
        }
        // No writer has returned anything so far.
        prop_assert!(writers.iter().all(|writer| writer.losses() == 0));
        for writer in &mut writers {
            (0..30).for_each(|number| writer.write_packet(&packet(number, 20)));
            service.serve();
            prop_assert_eq!(writer.losses(), 0);
        }
        drop(writers);
        service.serve();
        let mut alone = service.writer(BufferExhaustedPolicy::Drop);
        alone.write_packet(&packet(0, 3000));
        let headers = (0..pages).filter_map(|page| service.smb.page_header(page));
        let layouts: Vec<_> = headers.filter_map(PageHeader::layout).collect();
        let whole_pages = pages >= 4;
        prop_assert_eq!(layouts == [PageLayout::Div1], whole_pages, "one writer alone has large chunks again");
    }
}

#[test]
fn the_loss_of_a_writer_that_never_had_a_chunk_is_reported() {
    let mut service = Service::new(1, 4096, PageLayout::Div1, Silent);
    let mut other = service.writer(BufferExhaustedPolicy::Drop);
    other.write_packet(&packet(0, 10));
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    (0..3).for_each(|number| writer.write_packet(&packet(number, 10)));
    drop((writer, other));
    service.serve();
    // Only now there is a chunk to tell it with.
    service.serve();
    let dropped: usize = service.sequences.values().map(|sequence| sequence.dropped).sum();
    assert_eq!(dropped, 1);
    assert_eq!(
        service.registered.len(),
        1,
        "whoever told it may have to tell more"
    );
    assert!(service.all_pages_are_free());
}
