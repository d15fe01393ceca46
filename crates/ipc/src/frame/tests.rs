//! The decoder against a list of frames, however the bytes arrive, and against hostile bytes.

use std::fs::File;
use std::os::fd::OwnedFd;

use ferretto_proto::messages::{IPCFrame, Message as _};
use proptest::prelude::*;
use rustix::fs::fstat;

use super::*;

fn encode(body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// A descriptor of a file of its own, told apart by its inode.
fn some_fd() -> (PassedFd, u64) {
    let fd = OwnedFd::from(tempfile::tempfile().unwrap());
    let inode = fstat(&fd).unwrap().st_ino;
    (fd.into(), inode)
}

fn inode(fd: &PassedFd) -> u64 {
    fstat(fd).unwrap().st_ino
}

#[derive(Debug, Clone)]
struct Sent {
    body: Vec<u8>,
    with_fd: bool,
}

fn any_frame() -> impl Strategy<Value = Sent> {
    let size = prop_oneof![8 => 0..40usize, 1 => 0..5000usize, 1 => Just(MAX_FRAME - HEADER)];
    (size, any::<u8>(), prop::bool::weighted(0.1)).prop_map(|(size, byte, with_fd)| Sent {
        body: vec![byte; size],
        with_fd,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The kernel's rule: a read ends behind the bytes that were written with a descriptor, at the latest.
    #[test]
    fn frames_come_out_as_they_were_sent_however_the_bytes_are_split(
        sent in prop::collection::vec(any_frame(), 0..12),
        splits in prop::collection::vec(1..70_000usize, 1..20),
    ) {
        let mut splits = splits.into_iter().cycle();
        let mut expected = Vec::new();
        let mut received = Vec::new();
        let mut decoder = FrameDecoder::new();
        let mut unread: Vec<u8> = Vec::new();
        let drain = |decoder: &mut FrameDecoder, received: &mut Vec<(Vec<u8>, Option<u64>)>| {
            while let Some(frame) = decoder.next_frame().unwrap() {
                received.push((decoder.body(&frame).to_vec(), frame.fd.as_ref().map(inode)));
            }
        };
        for frame in &sent {
            let bytes = encode(&frame.body);
            let fd = frame.with_fd.then(some_fd);
            if !frame.body.is_empty() {
                expected.push((frame.body.clone(), fd.as_ref().map(|(_, inode)| *inode)));
            }
            unread.extend_from_slice(&bytes);
            let Some((fd, _)) = fd else { continue };
            // Reads before the descriptor's frame may or may not have taken the bytes sent earlier; the read that takes
            // the descriptor ends in its frame.
            let earlier = unread.len() - bytes.len();
            let alone = splits.next().unwrap() % (earlier + 1);
            decoder.push(&unread[..alone], None);
            drain(&mut decoder, &mut received);
            let end = earlier + 1 + splits.next().unwrap() % bytes.len();
            decoder.push(&unread[alone..end], Some(fd));
            drain(&mut decoder, &mut received);
            unread.drain(..end);
        }
        while !unread.is_empty() {
            let count = splits.next().unwrap().min(unread.len());
            decoder.push(&unread[..count], None);
            drain(&mut decoder, &mut received);
            unread.drain(..count);
        }
        prop_assert_eq!(received, expected);
        prop_assert_eq!(decoder.pending(), 0);
        prop_assert!(decoder.fds.is_empty());
    }

    #[test]
    fn arbitrary_bytes_give_frames_or_a_violation_and_never_more_memory_than_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..4000),
        small_lengths in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if small_lengths {
            for byte in bytes.iter_mut().skip(1).step_by(3) { *byte = 0; }
        }
        let mut decoder = FrameDecoder::new();
        decoder.push(&bytes, None);
        let mut taken = 0;
        while let Ok(Some(frame)) = decoder.next_frame() {
            taken += decoder.body(&frame).len() + HEADER;
        }
        prop_assert!(taken <= bytes.len());
        prop_assert!(decoder.buffer.capacity() <= 2 * bytes.len().max(16));
    }
}

#[test]
fn a_large_frame_leaves_no_memory_behind() {
    let mut decoder = FrameDecoder::new();
    decoder.push(&encode(&vec![7; MAX_FRAME - HEADER]), None);
    decoder.push(&encode(b"next")[..2], None);
    assert!(decoder.next_frame().unwrap().is_some());
    assert!(decoder.buffer.capacity() >= MAX_FRAME);
    assert!(decoder.next_frame().unwrap().is_none());
    assert!(decoder.buffer.capacity() <= KEPT_CAPACITY);

    decoder.push(&encode(b"next")[2..], None);
    let frame = decoder.next_frame().unwrap().unwrap();
    assert_eq!(decoder.body(&frame), b"next");
}

#[test]
fn the_largest_frame_is_taken_and_one_byte_more_is_refused() {
    let mut decoder = FrameDecoder::new();
    decoder.push(&encode(&vec![7; MAX_FRAME - HEADER]), None);
    let frame = decoder.next_frame().unwrap().unwrap();
    assert_eq!(decoder.body(&frame).len(), MAX_FRAME - HEADER);

    for announced in [
        (MAX_FRAME - HEADER + 1) as u32,
        MAX_FRAME as u32,
        u32::MAX - 3,
        u32::MAX,
    ] {
        let mut decoder = FrameDecoder::new();
        decoder.push(&announced.to_le_bytes(), None);
        assert_eq!(
            decoder.next_frame().unwrap_err(),
            Violation::FrameTooLarge { announced }
        );
    }
}

#[test]
fn a_large_announcement_takes_no_memory_and_a_large_frame_gives_its_memory_back() {
    let mut decoder = FrameDecoder::new();
    decoder.push(&((MAX_FRAME - HEADER) as u32).to_le_bytes(), None);
    assert!(decoder.next_frame().unwrap().is_none());
    assert!(decoder.buffer.capacity() < 64);
    decoder.push(&vec![0; MAX_FRAME - HEADER], None);
    assert!(decoder.next_frame().unwrap().is_some());
    decoder.push(&[0, 0, 0], None);
    assert!(decoder.buffer.capacity() <= KEPT_CAPACITY);
}

#[test]
fn reading_pauses_while_bytes_or_descriptors_pile_up() {
    let mut decoder = FrameDecoder::new();
    decoder.push(&encode(&vec![1; MAX_FRAME - HEADER]), None);
    assert!(!decoder.wants_input());
    decoder.next_frame().unwrap();
    assert!(decoder.wants_input());

    let mut pushed = 0;
    while decoder.wants_input() {
        decoder.push(
            &encode(b"x"),
            Some(OwnedFd::from(File::open("/dev/null").unwrap()).into()),
        );
        pushed += 1;
    }
    assert_eq!(pushed, MAX_WAITING_FDS);
}

#[test]
fn of_several_descriptors_for_one_frame_the_first_counts() {
    let (first, first_inode) = some_fd();
    let (second, _) = some_fd();
    let mut decoder = FrameDecoder::new();
    let bytes = encode(b"frame");
    decoder.push(&bytes[..2], Some(first));
    decoder.push(&bytes[2..], Some(second));
    let frame = decoder.next_frame().unwrap().unwrap();
    assert_eq!(frame.fd.as_ref().map(inode), Some(first_inode));
    decoder.push(&encode(b"next"), None);
    assert!(decoder.next_frame().unwrap().unwrap().fd.is_none());
}

#[test]
fn a_frame_that_never_ends_costs_one_descriptor_however_many_come_with_it() {
    let (first, first_inode) = some_fd();
    let mut decoder = FrameDecoder::new();
    let bytes = encode(&[7; 100]);
    decoder.push(&bytes[..1], Some(first));
    for byte in &bytes[1..100] {
        assert!(decoder.next_frame().unwrap().is_none());
        assert!(decoder.wants_input() && decoder.fds.len() == 1);
        decoder.push(&[*byte], Some(some_fd().0));
    }
    decoder.push(&bytes[100..], None);
    let frame = decoder.next_frame().unwrap().unwrap();
    assert_eq!(frame.fd.as_ref().map(inode), Some(first_inode));
    assert!(decoder.fds.is_empty());
}

#[test]
fn frames_are_encoded_as_the_schema_says() {
    let bytes: Vec<u8> = crate::wire_protocol::invoke_method(7, 1, 300, true, vec![1, 2, 3], None)
        .unwrap()
        .parts()
        .concat();
    assert_eq!(
        bytes.len() - HEADER,
        u32::from_le_bytes(bytes[..HEADER].try_into().unwrap()) as usize
    );
    let frame = IPCFrame::decode_from_slice(&bytes[HEADER..]).unwrap();
    assert_eq!(frame.request_id, Some(7));
}

#[test]
fn a_payload_that_exceeds_a_frame_is_refused_where_it_is_made() {
    let invoke =
        |size| crate::wire_protocol::invoke_method(u64::MAX, u32::MAX, u32::MAX, true, vec![0; size], None);
    assert!(invoke(MAX_PAYLOAD).unwrap().len() <= MAX_FRAME);
    assert_eq!(
        invoke(MAX_FRAME).unwrap_err(),
        PayloadTooLarge { size: MAX_FRAME }
    );
}

#[test]
fn half_a_frame_takes_no_more_memory_than_the_whole() {
    for piece in [1, 1000, 4096, MAX_FRAME / 2 + 1] {
        let body = vec![0; MAX_FRAME - HEADER];
        let frame = encode(&body);
        let mut decoder = FrameDecoder::new();
        for bytes in frame[..frame.len() - 1].chunks(piece) {
            decoder.push(bytes, None);
            assert!(decoder.next_frame().unwrap().is_none());
        }
        assert_eq!(decoder.pending(), frame.len() - 1);
        let capacity = decoder.buffer.capacity();
        assert!(capacity <= MAX_FRAME, "{capacity} bytes for pieces of {piece}");
        decoder.push(&frame[frame.len() - 1..], None);
        assert!(decoder.next_frame().unwrap().is_some());
    }
}
