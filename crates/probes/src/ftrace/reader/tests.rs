//! Tests of the module.

use super::*;
use crate::ftrace::test_instance::TestInstance;
use std::io::Write;

/// Length of the events in a page.
fn length(page: &[u8]) -> usize {
    (u32::from_ne_bytes(page[8..12].try_into().unwrap()) & LENGTH_MASK) as usize
}

#[test]
fn every_page_that_was_written_is_read_once() {
    let Some(instance) = TestInstance::new() else {
        return;
    };
    let mut marker = std::fs::OpenOptions::new()
        .write(true)
        .open(instance.tracefs.root().join("trace_marker"))
        .unwrap();
    let message = [b'x'; 500];
    const MESSAGES: usize = 400;
    for _ in 0..MESSAGES {
        assert_eq!(marker.write(&message).unwrap(), message.len());
    }

    let cpus = instance.tracefs.cpus().unwrap().into_iter();
    let buffers: Vec<CpuBuffer> = cpus
        .map(|cpu| CpuBuffer::open(&instance.tracefs, cpu).unwrap())
        .collect();
    let mut pool = PagePool::new(4096);
    let mut bytes = 0;
    for buffer in &buffers {
        loop {
            let batch = buffer.read(&mut pool, 7);
            assert!(batch.count <= 7);
            assert_eq!(batch.pages.len(), batch.count * 4096);
            bytes += batch.pages.chunks(4096).map(length).sum::<usize>();
            match batch.end {
                BatchEnd::Limit => assert_eq!(batch.count, 7),
                BatchEnd::CaughtUp => break,
                other => panic!("{other:?}"),
            }
        }
        let after = buffer.read(&mut pool, BATCH_PAGES);
        assert_eq!((after.count, after.end), (0, BatchEnd::CaughtUp));
    }
    assert!(bytes >= MESSAGES * message.len(), "{bytes} bytes came out");
    assert!(bytes < MESSAGES * (message.len() + 64), "{bytes} bytes came out");
}
